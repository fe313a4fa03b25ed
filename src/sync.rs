//! The one place that names `core::sync::atomic`, or loom's models of the same types.
//!
//! Everything above uses these names, so that a model-checked build (`--cfg pvlock_loom`) runs the very
//! code that ships.

#[cfg(not(pvlock_loom))]
pub(crate) use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(pvlock_loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Declares a constructor that is `const`, except under loom, whose atomics cannot be built in a constant.
macro_rules! const_fn {
    ($(#[$attr:meta])* $vis:vis const fn $($rest:tt)*) => {
        #[cfg(not(pvlock_loom))]
        $(#[$attr])* $vis const fn $($rest)*
        #[cfg(pvlock_loom)]
        $(#[$attr])* $vis fn $($rest)*
    };
}
pub(crate) use const_fn;

/// One iteration of a spin loop: `pause`, or under loom a point where another thread must run.
#[inline(always)]
pub(crate) fn spin_loop() {
    #[cfg(not(pvlock_loom))]
    core::hint::spin_loop();
    #[cfg(pvlock_loom)]
    loom::thread::yield_now();
}
