//! The adapter to `lock_api` 0.4, which spin, parking_lot, hermit-sync and most allocators speak.

use lock_api::{GuardSend, RawMutex};

use super::RawSpinLock;
use crate::cpu::Cpu;

// SAFETY: `lock` and a successful `try_lock` return with the lock held by the caller alone (invariant 1 of the lock word), and it
// stays so until `unlock`.
unsafe impl<C: Cpu> RawMutex for RawSpinLock<C> {
    const INIT: Self = Self::new();

    // Any CPU may unlock.
    type GuardMarker = GuardSend;

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
        // SAFETY: the caller holds the lock, as the trait demands.
        unsafe { self.unlock() }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.is_locked()
    }
}
