//! The tasks that sleep for a mutex or a condition: a list of nodes on their own stacks, under a spinlock.
//!
//! Interrupts are off while the spinlock is held, so that wake-ups may come from interrupt handlers.
//!
//! Invariants:
//! 1. A node is linked and unlinked, and its fields are read and written, under the spinlock only.
//! 2. A node is linked while its task is in [`WaitList::queue`] and not longer: [`Queued`] unlinks it when it goes, however it goes.
//! 3. A task leaves the list under the spinlock, also when somebody else has unlinked it. So who wakes a task under the spinlock may touch
//!    both node and list until it releases that.

use core::cell::{Cell, UnsafeCell};
use core::fmt;
use core::marker::PhantomPinned;
use core::pin::pin;
use core::ptr::null_mut;

use super::parker::TaskId;
use super::spin::RawSpinLock;
use crate::cpu::Cpu;
use crate::guard::{Guard, IrqSave};
use crate::sync::const_fn;

/// One sleeper.
#[derive(Debug)]
pub(crate) struct Sleeper {
    task: TaskId,
    linked: Cell<bool>,
    prev: Cell<*mut Sleeper>,
    next: Cell<*mut Sleeper>,
    _pinned: PhantomPinned,
}

/// The list itself, behind its spinlock. First come, first.
#[derive(Debug)]
pub(crate) struct List {
    first: *mut Sleeper,
    last: *mut Sleeper,
}

impl List {
    /// Who has slept longest.
    pub(crate) fn first(&self) -> Option<TaskId> {
        // SAFETY: linked nodes are alive (invariant 2), and we are under the spinlock (`&self` comes from `with`).
        unsafe { self.first.as_ref() }.map(|sleeper| sleeper.task)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Who came last.
    pub(crate) fn last(&self) -> Option<TaskId> {
        // SAFETY: as in `first`.
        unsafe { self.last.as_ref() }.map(|sleeper| sleeper.task)
    }

    /// Whether more than one task is in it.
    pub(crate) fn is_shared(&self) -> bool {
        !core::ptr::eq(self.first, self.last)
    }

    /// Unlinks the first; its task finds that when it looks.
    pub(crate) fn take_first(&mut self) -> Option<TaskId> {
        let first = self.first;
        // SAFETY: as in `first`.
        let sleeper = unsafe { first.as_ref() }?;
        self.unlink(sleeper);
        Some(sleeper.task)
    }

    fn push(&mut self, sleeper: &Sleeper) {
        let this = core::ptr::from_ref(sleeper).cast_mut();
        sleeper.prev.set(self.last);
        sleeper.next.set(null_mut());
        // SAFETY: as in `first`.
        match unsafe { self.last.as_ref() } {
            Some(last) => last.next.set(this),
            None => self.first = this,
        }
        self.last = this;
        sleeper.linked.set(true);
    }

    fn unlink(&mut self, sleeper: &Sleeper) {
        let (prev, next) = (sleeper.prev.get(), sleeper.next.get());
        // SAFETY: as in `first`.
        match unsafe { prev.as_ref() } {
            Some(prev) => prev.next.set(next),
            None => self.first = next,
        }
        // SAFETY: as in `first`.
        match unsafe { next.as_ref() } {
            Some(next) => next.prev.set(prev),
            None => self.last = prev,
        }
        sleeper.linked.set(false);
    }
}

/// The list with its spinlock.
pub(crate) struct WaitList<C> {
    lock: RawSpinLock<C>,
    list: UnsafeCell<List>,
}

// SAFETY: the pointers lead to nodes that are shared under the spinlock only.
unsafe impl<C> Send for WaitList<C> {}
// SAFETY: the list is touched under the spinlock only (`with`).
unsafe impl<C> Sync for WaitList<C> {}

impl<C: Cpu> WaitList<C> {
    const_fn! {
        pub(crate) const fn new() -> Self {
            Self { lock: RawSpinLock::new(), list: UnsafeCell::new(List { first: null_mut(), last: null_mut() }) }
        }
    }

    /// Runs `f` on the list, interrupts off. `f` must not unwind, sleep or lock.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut List) -> R) -> R {
        let state = <IrqSave as Guard<C>>::enter();
        self.lock.lock();
        // SAFETY: exclusive by the spinlock.
        let result = f(unsafe { &mut *self.list.get() });
        // SAFETY: locked above.
        unsafe { self.lock.unlock() };
        // SAFETY: entered above, given back once, and the lock is released.
        unsafe { <IrqSave as Guard<C>>::leave(state) };
        result
    }

    /// Puts `task` into the list, calls `sleep` with its place there, and takes it out again.
    ///
    /// `on_queue` runs under the spinlock when it is in the list.
    pub(crate) fn queue<R>(
        &self,
        task: TaskId,
        on_queue: impl FnOnce(&List),
        sleep: impl FnOnce(&Queued<'_, C>) -> R,
    ) -> R {
        let sleeper = pin!(Sleeper {
            task,
            linked: Cell::new(false),
            prev: Cell::new(null_mut()),
            next: Cell::new(null_mut()),
            _pinned: PhantomPinned,
        });
        // From here on the node does not move, and `Queued` unlinks it before it goes.
        let queued = Queued { list: self, sleeper: sleeper.as_ref().get_ref() };
        self.with(|list| {
            list.push(queued.sleeper);
            on_queue(list);
        });
        sleep(&queued)
    }

    /// Whether nobody sleeps and the spinlock is as new.
    #[cfg(any(test, pvlock_loom))]
    pub(crate) fn is_quiet(&self) -> bool {
        self.lock.is_quiet() && self.with(|list| list.is_empty())
    }
}

/// A place in the list.
pub(crate) struct Queued<'a, C: Cpu> {
    list: &'a WaitList<C>,
    sleeper: &'a Sleeper,
}

impl<C: Cpu> Queued<'_, C> {
    /// Runs `f` under the spinlock with the list and this place in it.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut List, Place) -> R) -> R {
        self.list.with(|list| {
            let place = match (self.sleeper.linked.get(), core::ptr::eq(list.first, self.sleeper)) {
                (false, _) => Place::Out,
                (true, true) => Place::First,
                (true, false) => Place::Later,
            };
            f(list, place)
        })
    }

    /// Leaves the list if it is still in it. `f` runs under the same hold of the spinlock, after that.
    pub(crate) fn leave(&self, list: &mut List) {
        if self.sleeper.linked.get() {
            list.unlink(self.sleeper);
        }
    }
}

impl<C: Cpu> Drop for Queued<'_, C> {
    fn drop(&mut self) {
        // Invariant 3: also a task that was taken out by its waker comes here before its node goes.
        self.list.with(|list| self.leave(list));
    }
}

/// Where a sleeper stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Taken out by a waker.
    Out,
    /// First in the list.
    First,
    /// Behind others.
    Later,
}

impl<C: Cpu> fmt::Debug for WaitList<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaitList")
    }
}
