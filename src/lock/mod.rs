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

/// Cargo builds this crate once, with all features that anybody enables: the locks of those who did not must stay what they are.
#[cfg(not(pvlock_loom))]
mod layout {
    use core::mem::{align_of, size_of};

    use super::{
        Condvar, HaltParker, Mutex, MutexGuard, OsqLock, RawMutex, RawRwLock, RawSpinLock, RwLock, RwLockWriteGuard,
    };
    use super::{SpinMutex, SpinMutexGuard};
    use crate::guard::NoGuard;
    use crate::platform::Linked as P;

    type Parker = HaltParker<P>;

    const fn is<T>(size: usize, align: usize) -> bool {
        size_of::<T>() == size && align_of::<T>() == align
    }

    const _: () = {
        assert!(is::<RawSpinLock<P>>(8, 8));
        assert!(is::<SpinMutex<u64, P>>(16, 8));
        assert!(is::<SpinMutexGuard<'_, u64, P, NoGuard>>(8, 8));
        assert!(is::<RawRwLock<P>>(16, 8));
        assert!(is::<RwLock<u64, P>>(24, 8));
        assert!(is::<RwLockWriteGuard<'_, u64, P, NoGuard, NoGuard>>(8, 8));
        assert!(is::<RawMutex<Parker>>(40, 8));
        assert!(is::<Mutex<u64, Parker>>(48, 8));
        assert!(is::<MutexGuard<'_, u64, Parker>>(16, 8));
        assert!(is::<Condvar<Parker>>(24, 8));
        assert!(is::<OsqLock<P>>(2, 2));
    };
}
