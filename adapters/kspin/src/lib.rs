//! The API of [`kspin` 0.2.0](https://docs.rs/kspin/0.2.0) on [`pvlock`]'s locks: a kernel that takes its locks from that crate, in whatever
//! dependency, gets queued paravirtual ones by two lines in its `Cargo.toml`:
//!
//! ```toml
//! [patch.crates-io]
//! kspin = { git = "https://github.com/pvlock/pvlock" }
//! ```
//!
//! and by naming its platform once, in the final image ([`pvlock::platform!`]), and registering each CPU (the guide of `pvlock`).
//!
//! What differs from the original:
//! - Without the feature `smp` the original has no lock at all. Here the lock is there in any case: a second holder on the one CPU is a mistake
//!   that it finds instead of ignoring it.
//! - Debug output of a held lock says so without data, as in the original, but by other words.
#![no_std]

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use kernel_guard::{BaseGuard, NoOp, NoPreempt, NoPreemptIrqSave};
use pvlock::lock::RawSpinLock;
use pvlock::platform::Linked;

/// A spinlock during which preemption is disabled. For data that no interrupt handler takes, or in code that runs with interrupts off.
pub type SpinNoPreempt<T> = BaseSpinLock<NoPreempt, T>;
/// Access to the data of a [`SpinNoPreempt`].
pub type SpinNoPreemptGuard<'a, T> = BaseSpinLockGuard<'a, NoPreempt, T>;
/// A spinlock during which preemption and interrupts are disabled.
pub type SpinNoIrq<T> = BaseSpinLock<NoPreemptIrqSave, T>;
/// Access to the data of a [`SpinNoIrq`].
pub type SpinNoIrqGuard<'a, T> = BaseSpinLockGuard<'a, NoPreemptIrqSave, T>;
/// A spinlock that changes nothing besides. For code that runs with preemption and interrupts disabled already.
pub type SpinRaw<T> = BaseSpinLock<NoOp, T>;
/// Access to the data of a [`SpinRaw`].
pub type SpinRawGuard<'a, T> = BaseSpinLockGuard<'a, NoOp, T>;

/// Data under a queued paravirtual spinlock; `G` says what happens to the CPU meanwhile.
pub struct BaseSpinLock<G: BaseGuard, T: ?Sized> {
    // Not `G`: a lock may be shared whether or not that can.
    _guard: PhantomData<fn() -> G>,
    raw: RawSpinLock<Linked>,
    data: UnsafeCell<T>,
}

// SAFETY: moving the lock moves the data and nothing that is tied to a thread.
unsafe impl<G: BaseGuard, T: ?Sized + Send> Send for BaseSpinLock<G, T> {}
// SAFETY: it gives out `&mut T` to one CPU at a time, on any CPU, which needs `T: Send` and no more.
unsafe impl<G: BaseGuard, T: ?Sized + Send> Sync for BaseSpinLock<G, T> {}

/// Access to the data of a [`BaseSpinLock`], which is released when this is dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct BaseSpinLockGuard<'a, G: BaseGuard, T: ?Sized> {
    lock: &'a BaseSpinLock<G, T>,
    state: G::State,
    // Access to a `T` as by `&mut T`; and not `Send`, since `state` belongs to this CPU.
    _data: PhantomData<(&'a mut T, *const ())>,
}

// SAFETY: through a shared guard one only gets `&T`.
unsafe impl<G: BaseGuard, T: ?Sized + Sync> Sync for BaseSpinLockGuard<'_, G, T> {}

impl<G: BaseGuard, T> BaseSpinLock<G, T> {
    /// A free lock around `data`.
    #[inline(always)]
    pub const fn new(data: T) -> Self {
        Self { _guard: PhantomData, raw: RawSpinLock::new(), data: UnsafeCell::new(data) }
    }

    /// The data, which nobody else can hold.
    #[inline(always)]
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<G: BaseGuard, T: ?Sized> BaseSpinLock<G, T> {
    /// Acquires the lock, waiting as long as it takes. `G` is acquired first.
    #[inline]
    pub fn lock(&self) -> BaseSpinLockGuard<'_, G, T> {
        let state = G::acquire();
        self.raw.lock();
        BaseSpinLockGuard { lock: self, state, _data: PhantomData }
    }

    /// Acquires the lock if it is neither held nor promised to a waiter. Otherwise `G` is released again at once.
    #[inline]
    pub fn try_lock(&self) -> Option<BaseSpinLockGuard<'_, G, T>> {
        let state = G::acquire();
        if self.raw.try_lock() {
            Some(BaseSpinLockGuard { lock: self, state, _data: PhantomData })
        } else {
            G::release(state);
            None
        }
    }

    /// Whether somebody holds the lock. A hint, and without ordering.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }

    /// Releases the lock on behalf of a holder that will not; what `G` changed stays changed.
    ///
    /// # Safety
    /// The lock is held, and its holder never again touches the data, nor releases the lock.
    #[inline]
    pub unsafe fn force_unlock(&self) {
        // SAFETY: as the caller says.
        unsafe { self.raw.force_unlock() }
    }

    /// The data, without locking: `&mut self` shows that nobody holds it.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }
}

impl<G: BaseGuard, T: Default> Default for BaseSpinLock<G, T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<G: BaseGuard, T: ?Sized + fmt::Debug> fmt::Debug for BaseSpinLock<G, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(guard) => f.debug_struct("BaseSpinLock").field("data", &&*guard).finish(),
            None => f.write_str("BaseSpinLock { <locked> }"),
        }
    }
}

impl<G: BaseGuard, T: ?Sized> Deref for BaseSpinLockGuard<'_, G, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held as long as the guard lives.
        unsafe { &*self.lock.data.get() }
    }
}

impl<G: BaseGuard, T: ?Sized> DerefMut for BaseSpinLockGuard<'_, G, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held as long as the guard lives, and `&mut self` shows that there is no other borrow.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<G: BaseGuard, T: ?Sized> Drop for BaseSpinLockGuard<'_, G, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the guard holds the lock and is going.
        unsafe { self.lock.raw.unlock() };
        G::release(self.state);
    }
}

impl<G: BaseGuard, T: ?Sized + fmt::Debug> fmt::Debug for BaseSpinLockGuard<'_, G, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
