//! [`SpinMutex`]: data under a [`RawSpinLock`], with the guard behaviour as a type parameter.

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

use super::super::misuse;
use super::RawSpinLock;
use crate::cpu::{Cpu, CpuId};
use crate::guard::{Guard, NoGuard};
use crate::sync::{const_fn, spin_loop};

/// Data that one CPU at a time may use, under a queued paravirtual spinlock ([`RawSpinLock`] says how it waits).
///
/// `C` names the kernel ([`Cpu`]). `G` says what happens to the CPU while the lock is held ([`Guard`]): nothing by default,
/// [`IrqSave`](crate::guard::IrqSave) for locks that interrupt handlers take too, or the kernel's own. The layout does not depend on
/// either.
///
/// ```
/// use pvlock::{Cpu, CpuId, SpinMutex};
///
/// struct MyKernel;
///
/// impl Cpu for MyKernel {
///     type Hypervisor = pvlock::hypervisor::Native;
///     fn current() -> Option<CpuId> {
///         CpuId::new(0)
///     }
/// }
///
/// static COUNT: SpinMutex<u64, MyKernel> = SpinMutex::new(0);
///
/// *COUNT.lock() += 1;
/// assert_eq!(*COUNT.lock(), 1);
/// ```
#[repr(C)]
pub struct SpinMutex<T: ?Sized, C, G = NoGuard> {
    raw: RawSpinLock<C>,
    _guard: PhantomData<fn() -> G>,
    data: UnsafeCell<T>,
}

// SAFETY: moving the lock moves the data and nothing that is tied to a thread.
unsafe impl<T: ?Sized + Send, C, G> Send for SpinMutex<T, C, G> {}
// SAFETY: the lock gives out `&mut T` to one holder at a time, on any CPU, which needs `T: Send` and no more.
unsafe impl<T: ?Sized + Send, C, G> Sync for SpinMutex<T, C, G> {}

impl<T, C: Cpu, G: Guard<C>> SpinMutex<T, C, G> {
    const_fn! {
        /// A free lock around `data`.
        #[must_use]
        pub const fn new(data: T) -> Self {
            Self { raw: RawSpinLock::new(), _guard: PhantomData, data: UnsafeCell::new(data) }
        }
    }

    /// The data, which nobody else can hold.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<T: ?Sized, C: Cpu, G: Guard<C>> SpinMutex<T, C, G> {
    /// Acquires the lock. `G` is entered first and stays entered while waiting.
    ///
    /// # Panics
    /// In debug builds, when this CPU holds the lock already and `G` forbids preemption ([`Guard::PINS`]): it would wait for itself.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> SpinMutexGuard<'_, T, C, G> {
        let state = G::enter();
        if cfg!(debug_assertions) && G::PINS && self.raw.is_locked_by_me() {
            misuse::report::<C>("locks", "spinlock", self.address(), format_args!("it already holds"));
        }
        self.raw.lock();
        SpinMutexGuard::new(self, state)
    }

    /// Acquires the lock, but waits *outside* `G`: with interrupts as the caller had them, entering `G` anew for each attempt.
    ///
    /// For kernels whose lock holders may wait for an answer that this CPU gives in an interrupt. The price is the place in the queue: the
    /// wait is not bounded by the queue's fairness. It spins, and never yields or halts.
    pub fn lock_irqs_open(&self) -> SpinMutexGuard<'_, T, C, G> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            while self.raw.is_locked() {
                C::relax();
                spin_loop();
            }
        }
    }

    /// Acquires the lock if it is neither held nor promised to a waiter. Otherwise `G` is left again at once.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinMutexGuard<'_, T, C, G>> {
        self.attempt(RawSpinLock::try_lock)
    }

    /// As [`try_lock`](Self::try_lock), and may also fail for no reason: for callers that loop.
    #[inline]
    pub fn try_lock_weak(&self) -> Option<SpinMutexGuard<'_, T, C, G>> {
        self.attempt(RawSpinLock::try_lock_weak)
    }

    /// Tries for `rounds` looks at the lock, inside `G`; see [`RawSpinLock::try_lock_for`].
    pub fn try_lock_for(&self, rounds: u32) -> Option<SpinMutexGuard<'_, T, C, G>> {
        self.attempt(|raw| raw.try_lock_for(rounds))
    }

    #[inline]
    fn attempt(&self, take: impl FnOnce(&RawSpinLock<C>) -> bool) -> Option<SpinMutexGuard<'_, T, C, G>> {
        let state = G::enter();
        if take(&self.raw) {
            Some(SpinMutexGuard::new(self, state))
        } else {
            // SAFETY: entered above on this CPU, given back once, and nothing is held.
            unsafe { G::leave(state) };
            None
        }
    }

    /// Whether somebody holds the lock; a hint.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }

    /// See [`RawSpinLock::is_locked_by_me`].
    #[must_use]
    pub fn is_locked_by_me(&self) -> bool {
        self.raw.is_locked_by_me()
    }

    /// See [`RawSpinLock::owner`].
    #[must_use]
    pub fn owner(&self) -> Option<CpuId> {
        self.raw.owner()
    }

    /// The data, without locking: `&mut self` shows that nobody holds it.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }

    /// Where the data is.
    #[must_use]
    pub fn data_ptr(&self) -> *mut T {
        self.data.get()
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(&self.raw) as usize
    }

    /// Debug builds: a guard that pins is dropped where it was made.
    fn expect_own(&self) {
        if let Some(owner) = self.raw.owner()
            && Some(owner) != C::current()
        {
            misuse::report::<C>("unlocks", "spinlock", self.address(), format_args!("{owner} took and still holds"));
        }
    }

    /// The lock without the data.
    #[must_use]
    pub fn raw(&self) -> &RawSpinLock<C> {
        &self.raw
    }

    /// Releases the lock on behalf of a holder that will not. `G` is not left: its state lies in the lost guard.
    ///
    /// # Safety
    /// As [`RawSpinLock::force_unlock`].
    pub unsafe fn force_unlock(&self) {
        // SAFETY: passed on to the caller.
        unsafe { self.raw.force_unlock() }
    }
}

impl<T: ?Sized + fmt::Debug, C: Cpu, G: Guard<C>> fmt::Debug for SpinMutex<T, C, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("SpinMutex");
        match self.try_lock() {
            Some(guard) => out.field("data", &&*guard),
            None => out.field("data", &format_args!("<locked>")).field("owner", &self.owner()),
        };
        out.finish()
    }
}

impl<T: Default, C: Cpu, G: Guard<C>> Default for SpinMutex<T, C, G> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T, C: Cpu, G: Guard<C>> From<T> for SpinMutex<T, C, G> {
    fn from(data: T) -> Self {
        Self::new(data)
    }
}

/// Access to the data of a [`SpinMutex`]; releases the lock, then leaves `G`, when dropped.
///
/// It may be sent to another CPU if `T` and the state of `G` may: with [`NoGuard`], yes; with guards that pin, no.
#[must_use = "the lock is released when the guard is dropped"]
pub struct SpinMutexGuard<'a, T: ?Sized, C: Cpu, G: Guard<C> = NoGuard> {
    lock: &'a SpinMutex<T, C, G>,
    state: ManuallyDrop<G::State>,
    // Access to a `T` as by `&mut T`: a shared guard lets many CPUs read it.
    _data: PhantomData<&'a mut T>,
}

impl<'a, T: ?Sized, C: Cpu, G: Guard<C>> SpinMutexGuard<'a, T, C, G> {
    // INVARIANT: the lock is held and `state` comes from `G::enter` on this CPU.
    #[inline]
    fn new(lock: &'a SpinMutex<T, C, G>, state: G::State) -> Self {
        Self { lock, state: ManuallyDrop::new(state), _data: PhantomData }
    }

    /// Keeps the lock locked for ever (until [`SpinMutex::force_unlock`]) and `G` entered, and gives the data.
    pub fn leak(this: Self) -> &'a mut T {
        let this = ManuallyDrop::new(this);
        // SAFETY: the lock stays held, so this is the one reference.
        unsafe { &mut *this.lock.data.get() }
    }

    /// The lock that this guard holds.
    pub fn mutex(this: &Self) -> &'a SpinMutex<T, C, G> {
        this.lock
    }
}

impl<T: ?Sized, C: Cpu, G: Guard<C>> Deref for SpinMutexGuard<'_, T, C, G> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held as long as the guard lives.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T: ?Sized, C: Cpu, G: Guard<C>> DerefMut for SpinMutexGuard<'_, T, C, G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held as long as the guard lives, and `&mut self` shows that there is no other borrow.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T: ?Sized, C: Cpu, G: Guard<C>> Drop for SpinMutexGuard<'_, T, C, G> {
    #[inline]
    fn drop(&mut self) {
        if cfg!(debug_assertions) && G::PINS {
            self.lock.expect_own();
        }
        // SAFETY: the guard holds the lock and is going. Nothing of `self.lock` is touched from here on.
        unsafe { self.lock.raw.unlock() };
        // SAFETY: taken once, here, and the guard is not used again.
        let state = unsafe { ManuallyDrop::take(&mut self.state) };
        // SAFETY: from `enter` by the invariant, given back once, and the lock is released.
        unsafe { G::leave(state) };
    }
}

impl<T: ?Sized + fmt::Debug, C: Cpu, G: Guard<C>> fmt::Debug for SpinMutexGuard<'_, T, C, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display, C: Cpu, G: Guard<C>> fmt::Display for SpinMutexGuard<'_, T, C, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
