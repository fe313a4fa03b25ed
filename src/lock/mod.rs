//! The locks.
//!
//! | | raw | with data |
//! |---|---|---|
//! | queued paravirtual spinlock | [`RawSpinLock`] | [`SpinMutex`] |

#[cfg(all(feature = "lock-api-04", not(pvlock_loom)))]
mod api04;
pub(crate) mod node;
mod spin;

pub use spin::RawSpinLock;
pub use spin::mutex::{SpinMutex, SpinMutexGuard};
