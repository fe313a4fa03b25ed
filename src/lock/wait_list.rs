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
    /// The one before; of the first, the last.
    prev: Cell<*mut Sleeper>,
    /// The one behind; null of the last.
    next: Cell<*mut Sleeper>,
    _pinned: PhantomPinned,
}

/// The list itself, behind its spinlock. First come, first.
#[derive(Debug)]
pub(crate) struct List {
    first: *mut Sleeper,
    /// Whether the first has been woken and is still about. Kept by the mutex; a new first is asleep.
    first_is_awake: bool,
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

    /// How many tasks are in it.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: as in `first`.
        let first = unsafe { self.first.as_ref() };
        // SAFETY: as in `first`.
        core::iter::successors(first, |sleeper| unsafe { sleeper.next.get().as_ref() }).count()
    }

    /// Whether the first was marked as awake.
    pub(crate) fn first_is_awake(&self) -> bool {
        self.first_is_awake
    }

    /// Marks the first as awake, or asleep.
    pub(crate) fn set_first_awake(&mut self, awake: bool) {
        self.first_is_awake = awake;
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
        sleeper.next.set(null_mut());
        // SAFETY: as in `first`.
        if let Some(first) = unsafe { self.first.as_ref() } {
            let last = first.prev.replace(this);
            sleeper.prev.set(last);
            // SAFETY: as in `first`; where there is a first there is a last.
            unsafe { (*last).next.set(this) };
        } else {
            sleeper.prev.set(this);
            self.first = this;
        }
        sleeper.linked.set(true);
    }

    fn unlink(&mut self, sleeper: &Sleeper) {
        let (prev, next) = (sleeper.prev.get(), sleeper.next.get());
        if core::ptr::eq(self.first, sleeper) {
            self.first = next;
            self.first_is_awake = false;
        } else {
            // SAFETY: as in `first`; who is not first has one before it.
            unsafe { (*prev).next.set(next) };
        }
        // Who has lost the one before it, or the first, which has lost the last.
        let behind = if next.is_null() { self.first } else { next };
        // SAFETY: as in `first`.
        if let Some(behind) = unsafe { behind.as_ref() } {
            behind.prev.set(prev);
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
            Self { lock: RawSpinLock::new(), list: UnsafeCell::new(List { first: null_mut(), first_is_awake: false }) }
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
    pub(crate) fn queue<R>(&self, task: TaskId, sleep: impl FnOnce(&Queued<'_, C>) -> R) -> R {
        let sleeper = pin!(Sleeper {
            task,
            linked: Cell::new(false),
            prev: Cell::new(null_mut()),
            next: Cell::new(null_mut()),
            _pinned: PhantomPinned,
        });
        // From here on the node does not move, and `Queued` unlinks it before it goes.
        let queued = Queued { list: self, sleeper: sleeper.as_ref().get_ref() };
        self.with(|list| list.push(queued.sleeper));
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

    /// Leaves the list if it is still in it.
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

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::*;

    fn sleeper(number: u64) -> Sleeper {
        let (prev, next) = (Cell::new(null_mut()), Cell::new(null_mut()));
        let task = TaskId::new(number).unwrap();
        Sleeper { task, linked: Cell::new(false), prev, next, _pinned: PhantomPinned }
    }

    fn numbers(list: &List) -> Vec<u64> {
        // SAFETY: the nodes of the tests live longer than their lists.
        let first = unsafe { list.first.as_ref() };
        // SAFETY: as above.
        let behind = |sleeper: &&Sleeper| unsafe { sleeper.next.get().as_ref() };
        core::iter::successors(first, behind).map(|sleeper| sleeper.task.get()).collect()
    }

    /// Every order of leaving a list of three, with one that comes again in between.
    #[test]
    fn the_order_of_the_others_is_kept_whoever_leaves() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let nodes = [sleeper(1), sleeper(2), sleeper(3), sleeper(4)];
            let mut list = List { first: null_mut(), first_is_awake: false };
            let mut expected = vec![1, 2, 3];
            nodes[..3].iter().for_each(|node| list.push(node));
            for (step, leaver) in order.into_iter().enumerate() {
                list.set_first_awake(true);
                let was_first = list.first() == Some(nodes[leaver].task);
                list.unlink(&nodes[leaver]);
                assert_eq!(list.first_is_awake(), !was_first, "a new first is asleep");
                expected.retain(|&number| number != leaver as u64 + 1);
                if step == 1 {
                    list.push(&nodes[3]);
                    expected.push(4);
                }
                assert_eq!(numbers(&list), expected, "{order:?}");
                assert_eq!(list.len(), expected.len(), "{order:?}");
            }
            assert_eq!(list.take_first().map(TaskId::get), Some(4));
            assert!(list.is_empty() && list.take_first().is_none());
        }
    }
}
