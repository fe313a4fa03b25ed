//! The locks on the link-time platform [`Linked`], without type parameters for it: for code whose lock types have none to spare.
//!
//! A kernel on `spin` changes `use spin::{Mutex, RwLock};` into `use pvlock::linked::{Mutex, RwLock};` and names its platform once, in
//! the final image, with [`platform!`](crate::platform!). What `spin` and `hermit-sync` build on `lock_api` takes [`RawMutex`] and
//! [`RawRwLock`] in place of theirs.
//!
//! `spin::Once` and `spin::Lazy` wait only while another CPU initialises; keep them.

use crate::guard::{IrqSave, NoGuard, NoPreempt};
use crate::lock;
use crate::platform::Linked;

/// Data under a spinlock.
pub type Mutex<T> = lock::SpinMutex<T, Linked>;
/// Access to the data of a [`Mutex`].
pub type MutexGuard<'a, T> = lock::SpinMutexGuard<'a, T, Linked, NoGuard>;

/// Data under a spinlock that interrupt handlers take too.
pub type IrqMutex<T> = lock::SpinMutex<T, Linked, IrqSave>;
/// Access to the data of an [`IrqMutex`].
pub type IrqMutexGuard<'a, T> = lock::SpinMutexGuard<'a, T, Linked, IrqSave>;

/// Data under a spinlock whose holder is not descheduled.
pub type NoPreemptMutex<T> = lock::SpinMutex<T, Linked, NoPreempt>;
/// Access to the data of a [`NoPreemptMutex`].
pub type NoPreemptMutexGuard<'a, T> = lock::SpinMutexGuard<'a, T, Linked, NoPreempt>;

/// Data under a reader-writer spinlock.
pub type RwLock<T> = lock::RwLock<T, Linked>;
/// Shared access to the data of a [`RwLock`].
pub type RwLockReadGuard<'a, T> = lock::RwLockReadGuard<'a, T, Linked, NoGuard, NoGuard>;
/// Shared access to the data of a [`RwLock`], which may become exclusive.
pub type RwLockUpgradableGuard<'a, T> = lock::RwLockUpgradableGuard<'a, T, Linked, NoGuard, NoGuard>;
/// Exclusive access to the data of a [`RwLock`].
pub type RwLockWriteGuard<'a, T> = lock::RwLockWriteGuard<'a, T, Linked, NoGuard, NoGuard>;

/// Data under a reader-writer spinlock that interrupt handlers read and write too.
pub type IrqRwLock<T> = lock::RwLock<T, Linked, IrqSave>;

/// The spinlock for `lock_api`.
pub type RawMutex = lock::RawSpinLock<Linked>;
/// The reader-writer spinlock for `lock_api`.
pub type RawRwLock = lock::RawRwLock<Linked>;
