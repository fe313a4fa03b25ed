//! The guards of [`RwLock`]: access to the data while the lock is held in one way or another.

use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

use super::data::RwLock;
use crate::cpu::Cpu;
use crate::guard::Guard;

/// Defines a guard: what it holds, the state that it keeps, how it unlocks.
macro_rules! guard {
    ($(#[$doc:meta])* $name:ident, $state:ident, $unlock:ident, $access:ty) => {
        $(#[$doc])*
        #[must_use = "the lock is released when the guard is dropped"]
        pub struct $name<'a, T: ?Sized, C: Cpu, R: Guard<C>, W: Guard<C>> {
            lock: &'a RwLock<T, C, R, W>,
            state: ManuallyDrop<$state::State>,
            _data: PhantomData<$access>,
        }

        impl<'a, T: ?Sized, C: Cpu, R: Guard<C>, W: Guard<C>> $name<'a, T, C, R, W> {
            // INVARIANT: the lock is held in this way, and `state` comes from `enter` on this CPU.
            #[inline]
            pub(super) fn new(lock: &'a RwLock<T, C, R, W>, state: $state::State) -> Self {
                Self { lock, state: ManuallyDrop::new(state), _data: PhantomData }
            }

            /// The lock that this guard holds.
            pub fn rwlock(this: &Self) -> &'a RwLock<T, C, R, W> {
                this.lock
            }
        }

        impl<T: ?Sized, C: Cpu, R: Guard<C>, W: Guard<C>> Deref for $name<'_, T, C, R, W> {
            type Target = T;

            #[inline]
            fn deref(&self) -> &T {
                // SAFETY: the guard holds the lock, and nobody writes but through a guard that is borrowed mutably.
                unsafe { &*self.lock.data_ptr() }
            }
        }

        impl<T: ?Sized, C: Cpu, R: Guard<C>, W: Guard<C>> Drop for $name<'_, T, C, R, W> {
            #[inline]
            fn drop(&mut self) {
                // SAFETY: the guard holds the lock in this way and is going. Nothing of `self.lock` is touched from here on.
                unsafe { self.lock.raw().$unlock() };
                // SAFETY: taken once, here, and the guard is not used again.
                let state = unsafe { ManuallyDrop::take(&mut self.state) };
                // SAFETY: from `enter` by the invariant, given back once, and the lock is released.
                unsafe { $state::leave(state) };
            }
        }

        impl<T: ?Sized + fmt::Debug, C: Cpu, R: Guard<C>, W: Guard<C>> fmt::Debug for $name<'_, T, C, R, W> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }

        impl<T: ?Sized + fmt::Display, C: Cpu, R: Guard<C>, W: Guard<C>> fmt::Display for $name<'_, T, C, R, W> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
    };
}

guard! {
    /// Shared access to the data of a [`RwLock`].
    RwLockReadGuard, R, unlock_read, &'a T
}
guard! {
    /// Shared access to the data of a [`RwLock`], which its one holder may make exclusive.
    RwLockUpgradableGuard, W, unlock_upgradable, &'a mut T
}
guard! {
    /// Exclusive access to the data of a [`RwLock`].
    RwLockWriteGuard, W, unlock_write, &'a mut T
}

/// The guards of those who may write keep the state of `W`, and turn into each other.
macro_rules! turns_into_another {
    ($name:ident) => {
        impl<'a, T: ?Sized, C: Cpu, R: Guard<C>, W: Guard<C>> $name<'a, T, C, R, W> {
            /// The parts, with the lock held on.
            #[inline]
            fn into_parts(self) -> (&'a RwLock<T, C, R, W>, W::State) {
                let mut this = ManuallyDrop::new(self);
                // SAFETY: taken once, here, and the guard is not used again.
                (this.lock, unsafe { ManuallyDrop::take(&mut this.state) })
            }
        }
    };
}
turns_into_another!(RwLockUpgradableGuard);
turns_into_another!(RwLockWriteGuard);

impl<T: ?Sized, C: Cpu, R: Guard<C>, W: Guard<C>> DerefMut for RwLockWriteGuard<'_, T, C, R, W> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock for writing, and `&mut self` shows that there is no other borrow.
        unsafe { &mut *self.lock.data_ptr() }
    }
}

impl<'a, T: ?Sized, C: Cpu, G: Guard<C>> RwLockWriteGuard<'a, T, C, G, G> {
    /// Lets others read from now on, with no writer in between. Where readers and writers have the same guard.
    pub fn downgrade(this: Self) -> RwLockReadGuard<'a, T, C, G, G> {
        let (lock, state) = this.into_parts();
        // SAFETY: held for writing, by the guard that has just ended.
        unsafe { lock.raw().downgrade() };
        RwLockReadGuard::new(lock, state)
    }
}

impl<'a, T: ?Sized, C: Cpu, R: Guard<C>, W: Guard<C>> RwLockWriteGuard<'a, T, C, R, W> {
    /// Lets others read from now on, and keeps the right to write again before anybody else does.
    pub fn downgrade_to_upgradable(this: Self) -> RwLockUpgradableGuard<'a, T, C, R, W> {
        let (lock, state) = this.into_parts();
        // SAFETY: held for writing, by the guard that has just ended.
        unsafe { lock.raw().downgrade_to_upgradable() };
        RwLockUpgradableGuard::new(lock, state)
    }
}

impl<'a, T: ?Sized, C: Cpu, G: Guard<C>> RwLockUpgradableGuard<'a, T, C, G, G> {
    /// Gives the right to write away and reads on. Where readers and writers have the same guard.
    pub fn downgrade(this: Self) -> RwLockReadGuard<'a, T, C, G, G> {
        let (lock, state) = this.into_parts();
        // SAFETY: the upgradable share is held, by the guard that has just ended.
        unsafe { lock.raw().downgrade_upgradable() };
        RwLockReadGuard::new(lock, state)
    }
}

impl<'a, T: ?Sized, C: Cpu, R: Guard<C>, W: Guard<C>> RwLockUpgradableGuard<'a, T, C, R, W> {
    /// Writes, once the other readers have gone. No writer comes in between.
    pub fn upgrade(this: Self) -> RwLockWriteGuard<'a, T, C, R, W> {
        let (lock, state) = this.into_parts();
        // SAFETY: the upgradable share is held, by the guard that has just ended.
        unsafe { lock.raw().upgrade() };
        RwLockWriteGuard::new(lock, state)
    }

    /// Writes, unless others read.
    ///
    /// # Errors
    /// The guard itself, when others read.
    pub fn try_upgrade(this: Self) -> Result<RwLockWriteGuard<'a, T, C, R, W>, Self> {
        // SAFETY: the upgradable share is held, by this guard.
        if unsafe { this.lock.raw().try_upgrade() } {
            let (lock, state) = this.into_parts();
            Ok(RwLockWriteGuard::new(lock, state))
        } else {
            Err(this)
        }
    }
}
