//! [`Mutex`]: data under a [`RawMutex`].

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use super::RawMutex;
use super::word::Locker;
use crate::lock::parker::{Parker, TaskId};
use crate::sync::const_fn;

/// Data that one task at a time may use, under a mutex that sleeps ([`RawMutex`] says how it waits).
///
/// `P` is the kernel's scheduler ([`Parker`]); a kernel without tasks takes [`HaltParker`](super::super::HaltParker).
///
/// ```
/// use pvlock::lock::{HaltParker, Mutex};
/// use pvlock::{Cpu, CpuId};
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
/// static COUNT: Mutex<u64, HaltParker<MyKernel>> = Mutex::new(0);
///
/// *COUNT.lock() += 1;
/// assert_eq!(*COUNT.lock(), 1);
/// ```
#[repr(C)]
pub struct Mutex<T: ?Sized, P: Parker> {
    raw: RawMutex<P>,
    data: UnsafeCell<T>,
}

// SAFETY: moving the mutex moves the data and nothing that is tied to a task.
unsafe impl<T: ?Sized + Send, P: Parker> Send for Mutex<T, P> {}
// SAFETY: it gives out `&mut T` to one task at a time, on any CPU, which needs `T: Send` and no more.
unsafe impl<T: ?Sized + Send, P: Parker> Sync for Mutex<T, P> {}

impl<T, P: Parker> Mutex<T, P> {
    const_fn! {
        /// A free mutex around `data`.
        #[must_use]
        pub const fn new(data: T) -> Self {
            Self { raw: RawMutex::new(), data: UnsafeCell::new(data) }
        }
    }

    /// The data, which nobody else can hold.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<T: ?Sized, P: Parker> Mutex<T, P> {
    /// Acquires the mutex, sleeping as long as it takes.
    ///
    /// # Panics
    /// As [`RawMutex::lock`].
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T, P> {
        MutexGuard::new(self, self.raw.lock_as(P::current()))
    }

    /// Acquires the mutex if it is neither held nor promised to a sleeper.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, P>> {
        self.raw.try_lock_as(P::current()).map(|me| MutexGuard::new(self, me))
    }

    /// Whether somebody holds the mutex; a hint.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }

    /// See [`RawMutex::owner`].
    #[must_use]
    pub fn owner(&self) -> Option<TaskId> {
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

    /// The mutex without the data.
    #[must_use]
    pub fn raw(&self) -> &RawMutex<P> {
        &self.raw
    }
}

impl<T: ?Sized + fmt::Debug, P: Parker> fmt::Debug for Mutex<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Mutex");
        match self.try_lock() {
            Some(guard) => out.field("data", &&*guard),
            None => out.field("data", &format_args!("<locked>")).field("owner", &self.owner()),
        };
        out.finish()
    }
}

impl<T: Default, P: Parker> Default for Mutex<T, P> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T, P: Parker> From<T> for Mutex<T, P> {
    fn from(data: T) -> Self {
        Self::new(data)
    }
}

/// Access to the data of a [`Mutex`]; releases it when dropped. It stays with its task: the owner is in the mutex.
#[must_use = "the mutex is released when the guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized, P: Parker> {
    mutex: &'a Mutex<T, P>,
    /// Who has locked it.
    me: Locker,
    // Access to a `T` as by `&mut T`, and not `Send`.
    _data: PhantomData<(&'a mut T, *const ())>,
}

// SAFETY: through a shared guard one only gets `&T`.
unsafe impl<T: ?Sized + Sync, P: Parker> Sync for MutexGuard<'_, T, P> {}

impl<'a, T: ?Sized, P: Parker> MutexGuard<'a, T, P> {
    // INVARIANT: the mutex is held.
    #[inline]
    pub(crate) fn new(mutex: &'a Mutex<T, P>, me: Locker) -> Self {
        Self { mutex, me, _data: PhantomData }
    }

    /// Releases the mutex as [`RawMutex::unlock_fair`] does.
    pub fn unlock_fair(this: Self) {
        let mutex = this.mutex;
        core::mem::forget(this);
        // SAFETY: the guard held the mutex, and does not release it again.
        unsafe { mutex.raw.unlock_fair() };
    }

    /// The mutex that this guard holds.
    pub fn mutex(this: &Self) -> &'a Mutex<T, P> {
        this.mutex
    }
}

impl<T: ?Sized, P: Parker> Deref for MutexGuard<'_, T, P> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the mutex is held as long as the guard lives.
        unsafe { &*self.mutex.data.get() }
    }
}

impl<T: ?Sized, P: Parker> DerefMut for MutexGuard<'_, T, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the mutex is held as long as the guard lives, and `&mut self` shows that there is no other borrow.
        unsafe { &mut *self.mutex.data.get() }
    }
}

impl<T: ?Sized, P: Parker> Drop for MutexGuard<'_, T, P> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard holds the mutex and is going.
        unsafe { self.mutex.raw.unlock_as(self.me) };
    }
}

impl<T: ?Sized + fmt::Debug, P: Parker> fmt::Debug for MutexGuard<'_, T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display, P: Parker> fmt::Display for MutexGuard<'_, T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
