//! The adapter of [`RawMutex`] to `lock_api` 0.4.

use lock_api::{GuardNoSend, RawMutex as Api, RawMutexFair};

use super::RawMutex;
use crate::lock::parker::Parker;

// SAFETY: `lock` and a successful `try_lock` return with the mutex held by the caller alone (invariant 1 of its word), and it stays so
// until `unlock`.
unsafe impl<P: Parker> Api for RawMutex<P> {
    const INIT: Self = Self::new();

    // The owning task is in the word, and spinners ask where it is.
    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        self.lock();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.try_lock()
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the mutex, as the trait demands.
        unsafe { self.unlock() }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.is_locked()
    }
}

// SAFETY: it ends the caller's hold; the mutex is free afterwards, or held by one sleeper alone.
unsafe impl<P: Parker> RawMutexFair for RawMutex<P> {
    #[inline]
    unsafe fn unlock_fair(&self) {
        // SAFETY: the caller holds the mutex, as the trait demands.
        unsafe { self.unlock_fair() }
    }
}
