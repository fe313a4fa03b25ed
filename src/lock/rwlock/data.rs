//! [`RwLock`]: data under a [`RawRwLock`], with what happens to the CPU meanwhile as type parameters.

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;

use super::super::misuse;
use super::RawRwLock;
use super::guards::{RwLockReadGuard, RwLockUpgradableGuard, RwLockWriteGuard};
use crate::cpu::{Cpu, CpuId};
use crate::guard::{Guard, NoGuard};
use crate::sync::const_fn;

/// Data that many CPUs may read or one may write, under a queued paravirtual lock ([`RawRwLock`] says how it waits).
///
/// `C` names the kernel ([`Cpu`]). `R` and `W` say what happens to the CPU while the lock is held for reading, and for writing
/// ([`Guard`]): nothing by default. A lock that interrupt handlers read takes [`IrqSave`](crate::guard::IrqSave) for `W`, and
/// [`read_recursive`](Self::read_recursive) in the handlers; `R` may be `NoGuard`, but in a kernel that preempts tasks it is
/// [`NoPreempt`](crate::guard::NoPreempt): else a reader is descheduled by a task that waits to write with interrupts off, for ever.
///
/// ```
/// use pvlock::{Cpu, CpuId, RwLock};
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
/// static TABLE: RwLock<[u32; 2], MyKernel> = RwLock::new([1, 2]);
///
/// TABLE.write()[0] = 5;
/// let (one, two) = (TABLE.read(), TABLE.read());
/// assert_eq!(one[0] + two[1], 7);
/// ```
#[repr(C)]
pub struct RwLock<T: ?Sized, C, R = NoGuard, W = R> {
    raw: RawRwLock<C>,
    _guards: PhantomData<fn() -> (R, W)>,
    data: UnsafeCell<T>,
}

// SAFETY: moving the lock moves the data and nothing that is tied to a thread.
unsafe impl<T: ?Sized + Send, C, R, W> Send for RwLock<T, C, R, W> {}
// SAFETY: the lock gives out `&T` to many CPUs, which needs `Sync`, and `&mut T` to one on any CPU, which needs `Send`.
unsafe impl<T: ?Sized + Send + Sync, C, R, W> Sync for RwLock<T, C, R, W> {}

impl<T, C: Cpu, R: Guard<C>, W: Guard<C>> RwLock<T, C, R, W> {
    const_fn! {
        /// A free lock around `data`.
        #[must_use]
        pub const fn new(data: T) -> Self {
            Self { raw: RawRwLock::new(), _guards: PhantomData, data: UnsafeCell::new(data) }
        }
    }

    /// The data, which nobody else can hold.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

/// What a failed attempt leaves, and a successful one keeps.
fn entered<C: Cpu, G: Guard<C>>(attempt: impl FnOnce() -> bool) -> Option<G::State> {
    let state = G::enter();
    if attempt() {
        return Some(state);
    }
    // SAFETY: entered above on this CPU, given back once, and nothing is held.
    unsafe { G::leave(state) };
    None
}

impl<T: ?Sized, C: Cpu, R: Guard<C>, W: Guard<C>> RwLock<T, C, R, W> {
    /// Acquires a share for reading, see [`RawRwLock::read`]. `R` is entered first and stays entered while waiting.
    ///
    /// # Panics
    /// In debug builds, when this CPU writes already and `W` forbids preemption: it would wait for itself.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T, C, R, W> {
        let state = R::enter();
        self.expect_not_writing();
        self.raw.read();
        RwLockReadGuard::new(self, state)
    }

    /// Acquires a share for reading past those who wait, see [`RawRwLock::read_recursive`].
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    #[track_caller]
    pub fn read_recursive(&self) -> RwLockReadGuard<'_, T, C, R, W> {
        let state = R::enter();
        self.expect_not_writing();
        self.raw.read_recursive();
        RwLockReadGuard::new(self, state)
    }

    /// Acquires a share for reading unless there is a writer, or somebody waits for its turn.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T, C, R, W>> {
        Some(RwLockReadGuard::new(self, entered::<C, R>(|| self.raw.try_read())?))
    }

    /// Acquires the upgradable share, see [`RawRwLock::upgradable_read`]. `W` is entered: the holder may become the writer.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    #[track_caller]
    pub fn upgradable_read(&self) -> RwLockUpgradableGuard<'_, T, C, R, W> {
        let state = W::enter();
        self.expect_not_writing();
        self.raw.upgradable_read();
        RwLockUpgradableGuard::new(self, state)
    }

    /// Acquires the upgradable share if that takes no waiting.
    #[inline]
    pub fn try_upgradable_read(&self) -> Option<RwLockUpgradableGuard<'_, T, C, R, W>> {
        Some(RwLockUpgradableGuard::new(self, entered::<C, W>(|| self.raw.try_upgradable_read())?))
    }

    /// Acquires the lock for writing. `W` is entered first and stays entered while waiting.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T, C, R, W> {
        let state = W::enter();
        self.expect_not_writing();
        self.raw.write();
        RwLockWriteGuard::new(self, state)
    }

    /// Acquires the lock for writing if that takes no waiting.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T, C, R, W>> {
        Some(RwLockWriteGuard::new(self, entered::<C, W>(|| self.raw.try_write())?))
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

    /// The lock without the data.
    #[must_use]
    pub fn raw(&self) -> &RawRwLock<C> {
        &self.raw
    }

    /// Whether anybody holds the lock; a hint.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }

    /// How many read; a hint.
    #[must_use]
    pub fn reader_count(&self) -> usize {
        self.raw.reader_count()
    }

    /// See [`RawRwLock::writer`].
    #[must_use]
    pub fn writer(&self) -> Option<CpuId> {
        self.raw.writer()
    }

    #[inline(always)]
    #[track_caller]
    fn expect_not_writing(&self) {
        if cfg!(debug_assertions) && W::PINS && self.raw.is_locked_by_me() {
            misuse::report::<C>(
                "locks",
                "rwlock",
                core::ptr::from_ref(&self.raw) as usize,
                format_args!("it already holds for writing"),
            );
        }
    }
}

impl<T: ?Sized + fmt::Debug, C: Cpu, R: Guard<C>, W: Guard<C>> fmt::Debug for RwLock<T, C, R, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("RwLock");
        match self.try_read() {
            Some(guard) => out.field("data", &&*guard),
            None => out.field("data", &format_args!("<locked>")).field("writer", &self.writer()),
        };
        out.finish()
    }
}

impl<T: Default, C: Cpu, R: Guard<C>, W: Guard<C>> Default for RwLock<T, C, R, W> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T, C: Cpu, R: Guard<C>, W: Guard<C>> From<T> for RwLock<T, C, R, W> {
    fn from(data: T) -> Self {
        Self::new(data)
    }
}
