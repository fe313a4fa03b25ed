//! [`RawMutex`]: the sleeping mutex without data. Inline fast paths; the rest is in `slow`.

#[cfg(all(feature = "lock-api-04", not(pvlock_loom)))]
mod api04;
pub(crate) mod data;
mod slow;
mod word;

use core::fmt;

use super::osq::OsqLock;
use super::parker::{Parker, TaskId};
use super::wait_list::WaitList;
use crate::cpu::{Cpu, CpuId};
use crate::sync::const_fn;
use word::{Locker, Unlocked, Word};

/// A mutex for tasks that may sleep; 40 bytes. It holds no data: see [`Mutex`](super::Mutex).
///
/// - Uncontended, `lock` and `unlock` are one atomic instruction each.
/// - Who finds it held spins as long as the owner runs, on a vCPU that runs: newcomers for a short while, one for long, the others queue behind that one
///   on lines of their own ([`OsqLock`]). Otherwise it sleeps, by the kernel's [`Parker`].
/// - A mutex that is free may be taken past those who sleep. The one that has slept longest is awake soon and spins too; when it was woken in vain twice,
///   or passed for about 1000 rounds, it gets the mutex handed over.
/// - The owner is known: [`owner`](Self::owner).
///
/// `lock` is Acquire and `unlock` is Release: what one holder wrote before unlocking, the next one sees.
///
/// Code without a task ([`Parker::current`] is `None`) spins, and takes the mutex as "owner unknown". An interrupt handler must not wait
/// for a mutex that any task takes: the owner may be one that its CPU has interrupted or descheduled. It may try.
#[repr(C)]
pub struct RawMutex<P: Parker> {
    word: Word,
    list: WaitList<P::Cpu>,
    osq: OsqLock<P::Cpu>,
}

impl<P: Parker> RawMutex<P> {
    const_fn! {
        /// A free mutex.
        #[must_use]
        pub const fn new() -> Self {
            Self { word: Word::new(), list: WaitList::new(), osq: OsqLock::new() }
        }
    }

    /// Acquires the mutex, sleeping as long as it takes.
    ///
    /// # Panics
    /// In debug builds: when the calling task owns it; and when a task may not sleep here ([`Parker::may_sleep`]; other builds spin then), even if it need not wait.
    #[inline]
    #[track_caller]
    pub fn lock(&self) {
        self.lock_as(P::current());
    }

    /// [`lock`](Self::lock), for `task`, which runs here.
    #[inline]
    #[track_caller]
    pub(super) fn lock_as(&self, task: Option<TaskId>) -> Locker {
        if cfg!(debug_assertions) {
            self.expect_lockable(task);
        }
        self.lock_unasked(task)
    }

    /// As [`lock_as`](Self::lock_as), for who may lock it here.
    #[inline]
    pub(in crate::lock) fn lock_unasked(&self, task: Option<TaskId>) -> Locker {
        let me = Locker::new(task);
        if !self.word.lock(me) {
            slow::lock_slow(self, task);
        }
        me
    }

    /// Acquires the mutex if it is neither held nor promised to a sleeper; never fails for another reason.
    #[inline]
    #[must_use]
    pub fn try_lock(&self) -> bool {
        self.try_lock_as(P::current()).is_some()
    }

    #[inline]
    pub(super) fn try_lock_as(&self, task: Option<TaskId>) -> Option<Locker> {
        let me = Locker::new(task);
        (self.word.lock(me) || self.word.take(me)).then_some(me)
    }

    /// Releases the mutex, and wakes the first sleeper, if there is one and it is not awake already. The mutex is not touched after that: its memory may be gone.
    ///
    /// # Panics
    /// In debug builds: when it is free, and when another task owns it.
    ///
    /// # Safety
    /// The mutex is held, and the caller is entitled to end that hold.
    #[inline]
    pub unsafe fn unlock(&self) {
        // SAFETY: as the caller says.
        unsafe { self.unlock_as(Locker::new(P::current())) }
    }

    /// As [`unlock`](Self::unlock), by who knows who locked it.
    ///
    /// # Safety
    /// As [`unlock`](Self::unlock).
    #[inline]
    pub(super) unsafe fn unlock_as(&self, me: Locker) {
        if cfg!(debug_assertions) {
            self.expect_owned();
        }
        if self.word.unlock(me) == Unlocked::Sleepers {
            slow::unlock_slow(self, me);
        }
    }

    /// Releases the mutex, and gives it to the task that has slept for it longest, if there is one: nobody passes that one. The mutex
    /// is not touched after that.
    ///
    /// Slower than [`unlock`](Self::unlock) for all others: the mutex is idle until that task runs. Those who spin for it are passed.
    ///
    /// # Panics
    /// As [`unlock`](Self::unlock).
    ///
    /// # Safety
    /// As [`unlock`](Self::unlock).
    #[inline]
    pub unsafe fn unlock_fair(&self) {
        if cfg!(debug_assertions) {
            self.expect_owned();
        }
        slow::unlock_fair_slow(self, Locker::new(P::current()));
    }

    /// Whether somebody holds the mutex. A hint, and without ordering.
    #[inline]
    #[must_use]
    pub fn is_locked(&self) -> bool {
        !self.word.snapshot().is_free()
    }

    /// The task that holds the mutex; `None` when it is free or was taken by code without a task. A hint.
    #[inline]
    #[must_use]
    pub fn owner(&self) -> Option<TaskId> {
        self.word.snapshot().owner()
    }

    /// Whether the mutex's memory is as in a new one.
    #[cfg(any(test, pvlock_loom))]
    #[doc(hidden)]
    pub fn is_quiet(&self) -> bool {
        self.word.is_quiet() && self.list.is_quiet() && self.osq.is_quiet()
    }

    #[track_caller]
    fn expect_lockable(&self, task: Option<TaskId>) {
        let Some(task) = task else { return };
        if self.owner() == Some(task) {
            misused(self, Some(task), "locks", "it holds already");
        }
        if !P::may_sleep() {
            misused(self, Some(task), "locks", "might make it sleep, with interrupts off or inside a spinlock");
        }
    }

    fn expect_owned(&self) {
        let (task, owner) = (P::current(), self.owner());
        if !self.is_locked() {
            misused(self, task, "unlocks", "is free: unlocked twice, initialised again while held, or overwritten");
        }
        if task.is_some() && owner.is_some() && owner != task {
            misused(self, task, "unlocks", "another task holds");
        }
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn misused<P: Parker>(mutex: &RawMutex<P>, task: Option<TaskId>, does: &str, what: &str) -> ! {
    let cpu = P::Cpu::current().map_or(usize::MAX, CpuId::index);
    let (task, owner) = (task.map_or(0, TaskId::get), mutex.owner().map_or(0, TaskId::get));
    let address = core::ptr::from_ref(mutex) as usize;
    panic!("task {task} on CPU {cpu} {does} the mutex at {address:#x} that {what} (owner: task {owner})");
}

impl<P: Parker> Default for RawMutex<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Parker> fmt::Debug for RawMutex<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawMutex").field("locked", &self.is_locked()).field("owner", &self.owner()).finish()
    }
}
