//! The locks.
//!
//! | | raw | with data |
//! |---|---|---|
//! | queued paravirtual spinlock | [`RawSpinLock`] | [`SpinMutex`] |
//! | queued paravirtual reader-writer spinlock | [`RawRwLock`] | [`RwLock`] |
//! | mutex that sleeps by the kernel's [`Parker`] | [`RawMutex`] | [`Mutex`], with [`Condvar`] |
//! | queue of those who spin for the owner of a sleeping lock | [`OsqLock`] | |

#[cfg(all(feature = "lock-api-04", not(pvlock_loom)))]
mod api04;
#[cfg(all(feature = "lock-api-05", not(pvlock_loom)))]
mod api05;
mod condvar;
mod misuse;
mod mutex;
pub(crate) mod node;
mod osq;
mod parker;
mod rwlock;
mod spin;
mod wait_list;

#[cfg(all(feature = "lock-api-05", not(pvlock_loom)))]
pub use api05::RawGuarded;
pub use condvar::Condvar;
pub use mutex::RawMutex;
pub use mutex::data::{Mutex, MutexGuard};
pub use osq::{OsqLock, OsqToken};
pub use parker::{HaltParker, Parker, TaskId, Whereabouts};
pub use rwlock::RawRwLock;
pub use rwlock::data::RwLock;
pub use rwlock::guards::{RwLockReadGuard, RwLockUpgradableGuard, RwLockWriteGuard};
pub use spin::RawSpinLock;
pub use spin::mutex::{SpinMutex, SpinMutexGuard};
