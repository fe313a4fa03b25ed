//! The sleeping mutex's word, and every transition it has.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0 | `waiters` | tasks sleep, or are about to: whoever unlocks looks into the list |
//! | 1 | `hand_over` | the first sleeper has woken in vain too often: the next unlock gives it the lock |
//! | 2 | `woken` | the first sleeper has been woken and has not looked yet: nobody need wake it |
//! | 3.. | `owner` | 0 free · number of the owning task · all ones: held by code that has no task |
//!
//! Written `(owner, waiters, hand_over)`; `woken` saves wake-ups: an owner that locks again and again would wake the same sleeper each time
//! until that is on a CPU.
//!
//! ```text
//!            fast                 spinner or woken sleeper          unlock
//! (0,0,0) ── lock ──▶ (t,0,0) ──────────────────────────────────▶ (0,0,0)
//!                     (t,0,0) ── a sleeper announces itself ──▶ (t,1,0)
//! (0,1,0) ── take ──▶ (t,1,0) ◀─────────────────────────────────── (t,1,0) ──▶ (0,1,0), wakes the first
//! (0,1,0) woken       ◀── without the list's spinlock ──────────── (t,1,0) woken
//!                     (t,1,0) ── the first one asks ──▶ (t,1,1) ──▶ (first,*,0), wakes it: it has the lock
//! (0,1,*) ── the first one takes ──▶ (first,*,0), at once under the list's spinlock, or before it and settles the flags there
//! ```
//!
//! Invariants:
//! 1. `owner` becomes nonzero by one compare-exchange from a word without owner, or by the owner's gift to the first sleeper.
//! 2. The flags change under the list's spinlock only; `waiters` is set whenever the list is not empty. They are cleared with
//!    and-not, never by subtraction (rwsem d257cc8cb8d5).
//! 3. `woken` is set by who wakes the first sleeper, and cleared by that one before its last look whether the lock is free, or when it gets
//!    it. So an unlock that finds it set comes before that look.
//! 4. While `hand_over` is set nobody but the first sleeper takes the lock (rwsem b613c7f31476).

use super::super::parker::TaskId;
use crate::sync::{AtomicUsize, Ordering, const_fn};

const WAITERS: usize = 1;
const HAND_OVER: usize = 2;
const WOKEN: usize = 4;
const FLAGS: usize = WAITERS | HAND_OVER | WOKEN;
const OWNER_SHIFT: u32 = 3;
/// The owner that is no task. Not a task's number: those end below ([`TaskId::MAX`]).
const NO_TASK: usize = usize::MAX >> OWNER_SHIFT;

static_assertions::const_assert!(TaskId::MAX < NO_TASK as u64);

/// Who locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Locker(usize);

impl Locker {
    #[inline]
    pub(crate) fn new(task: Option<TaskId>) -> Self {
        Self(task.map_or(NO_TASK, |task| task.get() as usize) << OWNER_SHIFT)
    }
}

/// What the owner knows of the word: its value when the mutex was taken, or its own name. Others may have changed the flags since.
///
/// It spares an `unlock` from asking, so a wrong one costs time and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held(usize);

impl Held {
    /// By `locker`, with no flags set.
    #[inline]
    pub(crate) fn by(locker: Locker) -> Self {
        Self(locker.0)
    }
}

/// A value of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot(usize);

impl Snapshot {
    pub(crate) fn is_free(self) -> bool {
        self.0 & !FLAGS == 0
    }

    /// The owning task; `None` when free or held by code that has no task.
    pub(crate) fn owner(self) -> Option<TaskId> {
        TaskId::new((self.0 >> OWNER_SHIFT) as u64)
    }

    pub(crate) fn hands_over(self) -> bool {
        self.0 & HAND_OVER != 0
    }

    pub(crate) fn is_owned_by(self, locker: Locker) -> bool {
        self.0 & !FLAGS == locker.0
    }

    /// Whether tasks sleep, or are about to.
    pub(crate) fn has_sleepers(self) -> bool {
        self.0 & WAITERS != 0
    }

    /// Whether a newcomer may take it.
    pub(crate) fn is_open(self) -> bool {
        self.is_free() && !self.hands_over()
    }
}

/// What an owner that wants to unlock has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Unlocked {
    /// Nothing more.
    Done,
    /// To unlock under the list's spinlock: there are sleepers.
    Sleepers,
}

/// The mutex's state.
#[derive(Debug)]
pub(crate) struct Word(AtomicUsize);

impl Word {
    const_fn! {
        pub(crate) const fn new() -> Self {
            Self(AtomicUsize::new(0))
        }
    }

    /// The word, to look at only.
    #[inline]
    pub(crate) fn snapshot(&self) -> Snapshot {
        // ORDERING: Relaxed, a hint; whoever acts on it acts by read-modify-write.
        Snapshot(self.0.load(Ordering::Relaxed))
    }

    /// `(0,0,0) -> (me,0,0)`.
    #[inline]
    pub(crate) fn lock(&self, me: Locker) -> Result<Held, Snapshot> {
        // ORDERING: Acquire, pair MUTEX-HANDOVER (Release in `unlock`, `release` and `give`): we see the last critical section.
        match self.0.compare_exchange(0, me.0, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Held::by(me)),
            Err(now) => Err(Snapshot(now)),
        }
    }

    /// `(0,w,0) -> (me,w,0)`: a newcomer's or spinner's way past sleepers.
    pub(crate) fn take(&self, me: Locker) -> Option<Held> {
        self.take_from(self.snapshot(), me)
    }

    /// As [`take`](Self::take), by who has just seen the word.
    pub(crate) fn take_from(&self, now: Snapshot, me: Locker) -> Option<Held> {
        self.change(now, |now| now.is_open().then_some(now.0 | me.0))
    }

    /// `(0,1,h) -> (me,1,h)`, by the first sleeper, which then settles the flags.
    pub(crate) fn take_promised(&self, me: Locker) -> Option<Held> {
        self.change(self.snapshot(), |now| now.is_free().then_some(now.0 | me.0))
    }

    /// `(me,1,*) -> (me,w,0)`, by the first sleeper, which has taken the mutex and left the list. Under the list's spinlock.
    pub(crate) fn settle(&self, others: Others) -> Held {
        let keep = !FLAGS | if others == Others::Sleep { WAITERS } else { 0 };
        // ORDERING: Relaxed: the caller owns the mutex, and the flags change under the spinlock only.
        Held(self.0.fetch_and(keep, Ordering::Relaxed) & keep)
    }

    /// `(0,1,h) -> (me,w,0)`, by a sleeper; `first` says whether it may though the lock is promised, `others` that more sleep.
    pub(crate) fn take_as_sleeper(&self, me: Locker, place: Turn, others: Others) -> Option<Held> {
        let waiters = if others == Others::Sleep { WAITERS } else { 0 };
        self.change(self.snapshot(), |now| match place {
            Turn::First if now.is_free() => Some(me.0 | waiters),
            // The promise stays: it was made to somebody else.
            Turn::Later if now.is_open() => Some(me.0 | waiters),
            _ => None,
        })
    }

    /// Takes the mutex by what `to` makes of the word, if it makes anything of it.
    fn change(&self, mut now: Snapshot, to: impl Fn(Snapshot) -> Option<usize>) -> Option<Held> {
        loop {
            let new = to(now)?;
            // ORDERING: Acquire, pair MUTEX-HANDOVER.
            match self.0.compare_exchange_weak(now.0, new, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Held(new)),
                Err(other) => now = Snapshot(other),
            }
        }
    }

    /// What the owner holds now.
    pub(crate) fn held(&self) -> Held {
        Held(self.snapshot().0)
    }

    /// `(*,w,*) -> (*,1,*)`: a task is in the list and will sleep. Under the list's spinlock.
    pub(crate) fn announce(&self) {
        // ORDERING: Relaxed. This and the owner's `unlock` are read-modify-writes of one word: if ours is second, the sleeper's next look finds
        // the lock free; if it is first, the `unlock` fails and looks into the list.
        self.0.fetch_or(WAITERS, Ordering::Relaxed);
    }

    /// `(t,1,0) -> (t,1,1)`: the first sleeper asks for the lock. Under the list's spinlock.
    pub(crate) fn ask_for_hand_over(&self) {
        // ORDERING: Relaxed, as in `announce`.
        self.0.fetch_or(HAND_OVER, Ordering::Relaxed);
    }

    /// `(t,0,0) -> (0,0,0)`, and `(t,1,0) woken -> (0,1,0) woken`.
    #[inline]
    pub(crate) fn unlock(&self, held: Held) -> Unlocked {
        // A load instead of `held` would wait for the locking instruction: 7 of 31 ns in an empty section.
        let mut now = held.0;
        loop {
            let nobody_to_wake = now & HAND_OVER == 0 && (now & WAITERS == 0 || now & WOKEN != 0);
            if !nobody_to_wake {
                return Unlocked::Sleepers;
            }
            // ORDERING: Release, pair MUTEX-HANDOVER (Acquire in `lock` and `change`): the next owner sees our section.
            match self.0.compare_exchange(now, now & FLAGS, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Unlocked::Done,
                Err(other) => now = other,
            }
        }
    }

    /// `(t,1,0) -> (0,1,0) woken`, the caller wakes the first; or `(0,0,0)` if nobody sleeps. Under the list's spinlock.
    pub(crate) fn release(&self, others: Others) {
        let after = |now: usize| if others == Others::Sleep { now & FLAGS | WOKEN } else { 0 };
        let mut now = self.0.load(Ordering::Relaxed);
        // ORDERING: Release, pair MUTEX-HANDOVER.
        while let Err(other) = self.0.compare_exchange_weak(now, after(now), Ordering::Release, Ordering::Relaxed) {
            now = other;
        }
    }

    /// The first sleeper is awake and about to look. Under the list's spinlock.
    pub(crate) fn awake(&self) {
        // ORDERING: Relaxed, a read-modify-write of the word that an `unlock` changes: one that found it set comes first, and the look finds
        // the lock free.
        self.0.fetch_and(!WOKEN, Ordering::Relaxed);
    }

    /// `(t,1,*) -> (to,w,0)`. Under the list's spinlock, `to` taken out of the list.
    pub(crate) fn give(&self, to: TaskId, others: Others) {
        let waiters = if others == Others::Sleep { WAITERS } else { 0 };
        // ORDERING: Release, pair MUTEX-HANDOVER: `to` reads this word, or finds itself taken out under the spinlock.
        self.0.store(Locker::new(Some(to)).0 | waiters, Ordering::Release);
    }

    /// Whether every field is zero.
    #[cfg(any(test, pvlock_loom))]
    pub(crate) fn is_quiet(&self) -> bool {
        self.snapshot().0 == 0
    }
}

/// Which sleeper wants the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The one that has slept longest.
    First,
    /// Another one.
    Later,
}

/// Whether tasks sleep besides the one that is spoken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// They do.
    Sleep,
    /// There are none.
    None,
}

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::*;

    fn locker(number: u64) -> (TaskId, Locker) {
        let task = TaskId::new(number).unwrap();
        (task, Locker::new(Some(task)))
    }

    #[test]
    fn every_kind_of_owner_comes_and_goes() {
        for task in [Some(1), Some(2), Some(4096), Some(TaskId::MAX), None] {
            let (word, task) = (Word::new(), task.map(|n| TaskId::new(n).unwrap()));
            let me = Locker::new(task);
            assert!(word.lock(me).is_ok() && word.lock(locker(7).1).is_err() && word.take(locker(7).1).is_none());
            assert_eq!((word.snapshot().is_free(), word.snapshot().owner()), (false, task));
            assert_eq!(word.unlock(Held::by(me)), Unlocked::Done);
            assert!(word.is_quiet());
        }
        assert!(TaskId::new(0).is_none() && TaskId::new(TaskId::MAX + 1).is_none());
    }

    #[test]
    fn an_owner_with_sleepers_looks_into_the_list() {
        let (word, (_, me)) = (Word::new(), locker(3));
        let _ = word.lock(me).unwrap();
        word.announce();
        assert_eq!(word.unlock(Held::by(me)), Unlocked::Sleepers);
        word.release(Others::Sleep);
        assert!(word.snapshot().is_open() && word.lock(me).is_err(), "sleepers are not forgotten");
        assert!(word.take(me).is_some(), "a newcomer may pass them");
        word.release(Others::Sleep);
        assert!(word.take_as_sleeper(me, Turn::Later, Others::None).is_some());
        assert_eq!(word.unlock(Held::by(me)), Unlocked::Done);
        assert!(word.is_quiet());
    }

    #[test]
    fn somebody_else_may_unlock() {
        let (word, (_, me), (_, other)) = (Word::new(), locker(3), locker(4));
        let _ = word.lock(me).unwrap();
        assert_eq!(word.unlock(Held::by(other)), Unlocked::Done);
        assert!(word.is_quiet());
    }

    #[test]
    fn the_first_sleeper_takes_it_on_its_own_and_settles_the_flags() {
        for (others, before) in [(Others::None, Unlocked::Done), (Others::Sleep, Unlocked::Sleepers)] {
            let (word, (_, me), (_, first)) = (Word::new(), locker(3), locker(4));
            assert!(word.lock(me).is_ok() && word.take_promised(first).is_none());
            word.announce();
            word.ask_for_hand_over();
            word.release(Others::Sleep);
            assert!(word.take(me).is_none() && word.take_promised(first).is_some());
            let held = word.settle(others);
            assert!(word.snapshot().is_owned_by(first) && !word.snapshot().hands_over());
            assert_eq!(word.unlock(held), before, "whether it is known that others sleep");
        }
    }

    #[test]
    fn a_promised_lock_is_for_the_first_sleeper() {
        let (word, (_, me), (first, sleeper)) = (Word::new(), locker(3), locker(TaskId::MAX));
        let _ = word.lock(me).unwrap();
        word.announce();
        word.ask_for_hand_over();
        word.release(Others::Sleep);
        assert!(word.take(me).is_none() && word.take_as_sleeper(me, Turn::Later, Others::Sleep).is_none());
        assert!(word.take_as_sleeper(sleeper, Turn::First, Others::Sleep).is_some());
        assert!(!word.snapshot().hands_over(), "the promise is kept");
        word.ask_for_hand_over();
        word.give(first, Others::None);
        assert_eq!((word.snapshot().owner(), word.snapshot().hands_over()), (Some(first), false));
        assert_eq!(word.unlock(Held::by(sleeper)), Unlocked::Done);
        assert!(word.is_quiet());
    }
}
