//! The raw locks, as types of their own: a kernel may implement a trait of its for each.
#![cfg(not(feature = "all-one-shot"))]

use lock_api::{GuardSend, RawMutex, RawMutexFair};
use pvlock::linked;

/// A raw reader-writer spinlock: a queue that readers pass together.
pub type RawRwSpinLock = linked::RawRwLock;

/// `$name` as a mutex that forwards to `pvlock`'s.
macro_rules! raw_mutex {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name(linked::RawMutex);

        impl $name {
            /// A free lock.
            #[must_use]
            pub const fn new() -> Self {
                Self(linked::RawMutex::new())
            }
        }

        // SAFETY: it is `pvlock`'s, which keeps the promise.
        unsafe impl RawMutex for $name {
            const INIT: Self = Self::new();
            type GuardMarker = GuardSend;

            #[inline]
            fn lock(&self) {
                self.0.lock();
            }

            #[inline]
            fn try_lock(&self) -> bool {
                self.0.try_lock()
            }

            #[inline]
            unsafe fn unlock(&self) {
                // SAFETY: as the caller says.
                unsafe { self.0.unlock() }
            }

            #[inline]
            fn is_locked(&self) -> bool {
                self.0.is_locked()
            }
        }
    )*};
}

raw_mutex! {
    /// A raw spinlock.
    RawSpinMutex;
    /// A raw spinlock that serves waiters in order, as far as they run: see `pvlock::lock::RawSpinLock`.
    RawTicketMutex;
}

// SAFETY: it releases the lock, which the caller holds.
unsafe impl RawMutexFair for RawTicketMutex {
    #[inline]
    unsafe fn unlock_fair(&self) {
        // Its queue is in order in any case.
        // SAFETY: as the caller says.
        unsafe { self.0.unlock() }
    }
}
