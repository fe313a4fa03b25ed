//! The API of [`hermit-sync` 0.2.0](https://docs.rs/hermit-sync/0.2.0) on [`pvlock`]'s locks: a kernel that takes its locks from that crate, in
//! whatever dependency, gets queued paravirtual ones by two lines in its `Cargo.toml`:
//!
//! ```toml
//! [patch.crates-io]
//! hermit-sync = { git = "https://github.com/pvlock/pvlock" }
//! ```
//!
//! and by naming its platform once, in the final image ([`pvlock::platform!`]), and registering each CPU (the guide of `pvlock`).
//!
//! What differs from the original:
//! - [`RawSpinMutex`] and [`RawTicketMutex`] are the same lock by two names: a queue whose head may be passed for a bounded time.
//!   `unlock_fair` is `unlock`.
//! - With the feature `all-one-shot`, as in the original, all mutexes may be locked once at a time only, and panic when two meet.
#![no_std]

mod raw;

pub use exclusive_cell::{CallOnce, CallOnceError, ExclusiveCell};
pub use interrupt_mutex::{InterruptMutex, InterruptMutexGuard, RawInterruptMutex};
pub use interrupts::without as without_interrupts;
pub use one_shot_mutex::sync::{
    OneShotMutex, OneShotMutexGuard, OneShotRwLock, OneShotRwLockReadGuard, OneShotRwLockUpgradableReadGuard,
    OneShotRwLockWriteGuard, RawOneShotMutex, RawOneShotRwLock,
};

#[cfg(not(feature = "all-one-shot"))]
pub use raw::{RawRwSpinLock, RawSpinMutex, RawTicketMutex};

/// With `all-one-shot`: may be locked once at a time.
#[cfg(feature = "all-one-shot")]
pub type RawSpinMutex = RawOneShotMutex;
/// With `all-one-shot`: may be locked once at a time.
#[cfg(feature = "all-one-shot")]
pub type RawTicketMutex = RawOneShotMutex;
/// With `all-one-shot`: may be locked once at a time.
#[cfg(feature = "all-one-shot")]
pub type RawRwSpinLock = RawOneShotRwLock;

/// Names for `$raw`, its mutex and its guard.
macro_rules! mutexes {
    ($($(#[$doc:meta])* $mutex:ident, $guard:ident = $raw:ty;)*) => {$(
        $(#[$doc])*
        pub type $mutex<T> = lock_api::Mutex<$raw, T>;
        #[doc = concat!("Access to the data of a [`", stringify!($mutex), "`].")]
        pub type $guard<'a, T> = lock_api::MutexGuard<'a, $raw, T>;
    )*};
}

/// [`RawSpinMutex`] with interrupts off while it is held and waited for.
pub type RawInterruptSpinMutex = RawInterruptMutex<RawSpinMutex>;
/// [`RawTicketMutex`] with interrupts off while it is held and waited for.
pub type RawInterruptTicketMutex = RawInterruptMutex<RawTicketMutex>;
/// [`RawOneShotMutex`] with interrupts off while it is held.
pub type RawInterruptOneShotMutex = RawInterruptMutex<RawOneShotMutex>;

mutexes! {
    /// Data under a spinlock.
    SpinMutex, SpinMutexGuard = RawSpinMutex;
    /// Data under a spinlock that serves waiters in order.
    TicketMutex, TicketMutexGuard = RawTicketMutex;
    /// Data under a spinlock that interrupt handlers take too.
    InterruptSpinMutex, InterruptSpinMutexGuard = RawInterruptSpinMutex;
    /// Data under a spinlock that interrupt handlers take too, and that serves waiters in order.
    InterruptTicketMutex, InterruptTicketMutexGuard = RawInterruptTicketMutex;
    /// Data that nobody else may want meanwhile, interrupt handlers included.
    InterruptOneShotMutex, InterruptOneShotMutexGuard = RawInterruptOneShotMutex;
}

/// Data under a reader-writer spinlock.
pub type RwSpinLock<T> = lock_api::RwLock<RawRwSpinLock, T>;
/// Shared access to the data of a [`RwSpinLock`].
pub type RwSpinLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, RawRwSpinLock, T>;
/// Shared access to the data of a [`RwSpinLock`], which may become exclusive.
pub type RwSpinLockUpgradableReadGuard<'a, T> = lock_api::RwLockUpgradableReadGuard<'a, RawRwSpinLock, T>;
/// Exclusive access to the data of a [`RwSpinLock`].
pub type RwSpinLockWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, RawRwSpinLock, T>;

/// A cell that is written once.
pub type OnceCell<T> = generic_once_cell::OnceCell<RawSpinMutex, T>;
/// A value that is made at its first use.
pub type Lazy<T, F = fn() -> T> = generic_once_cell::Lazy<RawSpinMutex, T, F>;
/// As [`OnceCell`], also for interrupt handlers.
pub type InterruptOnceCell<T> = generic_once_cell::OnceCell<RawInterruptSpinMutex, T>;
/// As [`Lazy`], also for interrupt handlers.
pub type InterruptLazy<T, F = fn() -> T> = generic_once_cell::Lazy<RawInterruptSpinMutex, T, F>;
