//! What the processor allows at best: the atomic instructions of a lock with nothing around them. For one CPU, as they know no waiting.

use core::cell::UnsafeCell;
use core::hint::spin_loop;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The state of either, beside data that nobody gets at.
#[repr(C)]
pub(crate) struct Limit<T>(AtomicU32, UnsafeCell<T>);

// SAFETY: the data is out of reach.
unsafe impl<T> Sync for Limit<T> {}

impl<T> Limit<T> {
    pub(crate) const fn new(data: T) -> Self {
        Self(AtomicU32::new(0), UnsafeCell::new(data))
    }

    #[inline(always)]
    fn take(&self) {
        // ORDERING: Acquire, pair COST-LIMIT (below).
        while self.0.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            spin_loop();
        }
    }

    /// `lock cmpxchg` to take, a store to release: the least that a lock can be.
    #[inline(always)]
    pub(crate) fn and_store(&self, section: impl FnOnce()) {
        self.take();
        section();
        // ORDERING: Release, pair COST-LIMIT (above).
        self.0.store(0, Release);
    }

    /// `lock cmpxchg` to take and to release: the least where the release must learn something, as whom to wake.
    #[inline(always)]
    pub(crate) fn twice(&self, section: impl FnOnce()) {
        self.take();
        section();
        // ORDERING: Release, pair COST-LIMIT (above). It is held, so it cannot fail.
        let _ = self.0.compare_exchange(1, 0, Release, Relaxed);
    }
}
