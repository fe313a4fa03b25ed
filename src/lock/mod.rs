//! The locks.
//!
//! | | raw | with data |
//! |---|---|---|
//! | queued paravirtual spinlock | [`RawSpinLock`] | [`SpinMutex`] |
//! | queued paravirtual reader-writer spinlock | [`RawRwLock`] | [`RwLock`] |

#[cfg(all(feature = "lock-api-04", not(pvlock_loom)))]
mod api04;
pub(crate) mod node;
mod parker;
mod rwlock;
mod spin;

pub use parker::{Parker, TaskId, Whereabouts};
pub use rwlock::RawRwLock;
pub use rwlock::data::RwLock;
pub use rwlock::guards::{RwLockReadGuard, RwLockUpgradableGuard, RwLockWriteGuard};
pub use spin::RawSpinLock;
pub use spin::mutex::{SpinMutex, SpinMutexGuard};
