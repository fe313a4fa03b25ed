//! The sleeping mutex's word, and every transition it has.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0 | `waiters` | tasks sleep, or are about to, and none of them is awake: whoever unlocks looks into the list |
//! | 1 | `hand_over` | the first sleeper has woken in vain, or spun, too long: the next unlock gives it the lock |
//! | 2.. | `owner` | 0 free · number of the owning task · all ones: held by code that has no task |
//!
//! Beside it the list, under its spinlock, says whether its first is *awake*: it has been woken and not gone back to sleep. As long as it is,
//! nobody need wake it or anybody else, so the word is as if nobody slept, and locking and unlocking are one instruction.
//!
//! Written `(owner, waiters, hand_over)`:
//!
//! ```text
//!             fast or spinner            unlock
//! (0,0,0) ─── lock ──────────▶ (t,0,0) ─────────▶ (0,0,0)
//!                              (t,0,0) ── a sleeper announces itself ─────────▶ (t,1,0)
//!                              (t,1,0) ── unlock, under the spinlock ─────────▶ (0,0,0), wakes the first, which is awake now
//! (0,0,*) ── the first, awake, takes ──▶ (first,0,*) ── under the spinlock ───▶ (first,1,0), or (first,0,0) if nobody else sleeps
//!                              (t,0,0) ── the first, awake, sleeps again ─────▶ (t,1,0), awake no more
//!                              (t,*,0) ── the first asks for the lock ────────▶ (t,*,1)
//!                              (t,*,1) ── unlock, under the spinlock ─────────▶ (first,*,0), wakes it: it has the lock
//! ```
//!
//! Invariants:
//! 1. `owner` becomes nonzero by one compare-exchange from a word without owner, or by the owner's gift to the first sleeper.
//! 2. The flags change under the list's spinlock only. So whoever owns the lock and holds the spinlock may store the whole word.
//! 3. When the spinlock is free and the list is not empty, `waiters` is set, or the first is awake (or about to be woken by who marked it so), or
//!    it has just come and is yet to look.
//! 4. Who is awake sets `waiters` before its last look at the lock. So an unlock that finds the flag clear comes before that look.
//! 5. While `hand_over` is set nobody but the first sleeper takes the lock (rwsem b613c7f31476).

use super::super::parker::TaskId;
use crate::sync::{AtomicUsize, Ordering, const_fn};

const WAITERS: usize = 1;
const HAND_OVER: usize = 2;
const FLAGS: usize = WAITERS | HAND_OVER;
const OWNER_SHIFT: u32 = 2;
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
    pub(crate) fn lock(&self, me: Locker) -> bool {
        // ORDERING: Acquire, pair MUTEX-HANDOVER (Release in `unlock`, `release` and `give`): we see the last critical section.
        self.0.compare_exchange(0, me.0, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// `(0,w,0) -> (me,w,0)`: whoever comes.
    pub(crate) fn take(&self, me: Locker) -> bool {
        self.change(|now| now.is_open().then_some(now.0 | me.0))
    }

    /// `(0,w,h) -> (me,w,h)`, by the first sleeper, which then settles the flags.
    pub(crate) fn take_promised(&self, me: Locker) -> bool {
        self.change(|now| now.is_free().then_some(now.0 | me.0))
    }

    /// Takes the mutex by what `to` makes of the word, if it makes anything of it.
    fn change(&self, to: impl Fn(Snapshot) -> Option<usize>) -> bool {
        // ORDERING: Acquire, pair MUTEX-HANDOVER.
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, |now| to(Snapshot(now))).is_ok()
    }

    /// `(me,*,*) -> (me,w,0)`, by a sleeper, which has taken the mutex and left the list. Under the list's spinlock.
    pub(crate) fn settle(&self, me: Locker, others: Others) {
        // ORDERING: Relaxed: the caller owns the mutex, and the flags change under the spinlock only.
        self.0.store(me.0 | others.flag(), Ordering::Relaxed);
    }

    /// `(*,*,h) -> (*,1,h)`: a task is in the list and will sleep, once it has looked again. Under the list's spinlock.
    pub(crate) fn announce(&self) {
        // ORDERING: Relaxed. This and the owner's `unlock` are read-modify-writes of one word: if ours is second, the sleeper's next look finds
        // the lock free; if it is first, the `unlock` fails and looks into the list.
        self.0.fetch_or(WAITERS, Ordering::Relaxed);
    }

    /// `(*,w,*) -> (*,w,1)`: the first sleeper asks for the lock. Under the list's spinlock; the sleeper looks once more after that.
    pub(crate) fn ask_for_hand_over(&self) {
        // ORDERING: Relaxed, as in `announce`.
        self.0.fetch_or(HAND_OVER, Ordering::Relaxed);
    }

    /// `(t,0,0) -> (0,0,0)`. `me` is `t`, most likely: others may unlock too.
    #[inline]
    pub(crate) fn unlock(&self, me: Locker) -> Unlocked {
        // A load instead of a guess would wait for the locking instruction: 7 of 31 ns in an empty section.
        let mut now = me.0;
        while now & FLAGS == 0 {
            // ORDERING: Release, pair MUTEX-HANDOVER (Acquire in `lock` and `change`): the next owner sees our section.
            match self.0.compare_exchange(now, 0, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Unlocked::Done,
                Err(other) => now = other,
            }
        }
        Unlocked::Sleepers
    }

    /// `(*,*,*) -> (*,0,0)`. Under the list's spinlock: nobody sleeps, or the first is awake.
    pub(crate) fn clear_flags(&self) {
        // ORDERING: Relaxed, as in `announce`.
        self.0.fetch_and(!FLAGS, Ordering::Relaxed);
    }

    /// `(t,*,*) -> (0,0,0)`. Under the list's spinlock: the first sleeper is awake.
    pub(crate) fn release(&self) {
        // ORDERING: Release, pair MUTEX-HANDOVER.
        self.0.store(0, Ordering::Release);
    }

    /// `(t,*,*) -> (to,w,0)`. Under the list's spinlock, `to` taken out of the list.
    pub(crate) fn give(&self, to: TaskId, others: Others) {
        // ORDERING: Release, pair MUTEX-HANDOVER: `to` reads this word, or finds itself taken out under the spinlock.
        self.0.store(Locker::new(Some(to)).0 | others.flag(), Ordering::Release);
    }

    /// Whether every field is zero.
    #[cfg(any(test, pvlock_loom))]
    pub(crate) fn is_quiet(&self) -> bool {
        self.snapshot().0 == 0
    }
}

/// Whether tasks sleep besides the one that is spoken of, none of them awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// They do.
    Sleep,
    /// There are none.
    None,
}

impl Others {
    fn flag(self) -> usize {
        match self {
            Self::Sleep => WAITERS,
            Self::None => 0,
        }
    }
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
            assert!(word.lock(me) && !word.lock(locker(7).1) && !word.take(locker(7).1));
            assert_eq!((word.snapshot().is_free(), word.snapshot().owner()), (false, task));
            assert_eq!(word.unlock(me), Unlocked::Done);
            assert!(word.is_quiet());
        }
        assert!(TaskId::new(0).is_none() && TaskId::new(TaskId::MAX + 1).is_none());
    }

    #[test]
    fn somebody_else_may_unlock() {
        let (word, (_, me), (_, other)) = (Word::new(), locker(3), locker(4));
        assert!(word.lock(me));
        assert_eq!(word.unlock(other), Unlocked::Done);
        assert!(word.is_quiet());
    }

    #[test]
    fn an_owner_with_sleepers_looks_into_the_list() {
        let (word, (_, me)) = (Word::new(), locker(3));
        assert!(word.lock(me));
        word.announce();
        assert_eq!(word.unlock(me), Unlocked::Sleepers);
        word.release();
        assert!(word.lock(me), "a newcomer may pass a sleeper that is awake");
        assert_eq!(word.unlock(me), Unlocked::Done, "and need not wake it again");
        word.announce();
        assert!(!word.lock(me) && word.take(me), "it looks again, in vain");
        assert_eq!(word.unlock(me), Unlocked::Sleepers);
        word.release();
        assert!(word.is_quiet());
    }

    #[test]
    fn the_first_sleeper_takes_it_on_its_own_and_settles_the_flags() {
        for (others, then) in [(Others::None, Unlocked::Done), (Others::Sleep, Unlocked::Sleepers)] {
            let (word, (_, me), (_, first)) = (Word::new(), locker(3), locker(4));
            assert!(word.lock(me) && !word.take_promised(first));
            word.ask_for_hand_over();
            word.announce();
            assert_eq!(word.unlock(me), Unlocked::Sleepers);
            // Forced free, as after a forced unlock: the promise stands.
            word.0.fetch_and(FLAGS, Ordering::Relaxed);
            assert!(!word.take(me) && word.take_promised(first));
            word.settle(first, others);
            assert!(word.snapshot().is_owned_by(first) && !word.snapshot().hands_over());
            assert_eq!(word.unlock(first), then, "whether it is known that others sleep");
        }
    }

    #[test]
    fn a_promised_lock_is_for_the_first_sleeper() {
        let (word, (_, me), (first, sleeper)) = (Word::new(), locker(3), locker(TaskId::MAX));
        assert!(word.lock(me));
        word.ask_for_hand_over();
        assert_eq!(word.unlock(me), Unlocked::Sleepers);
        word.give(first, Others::None);
        assert_eq!((word.snapshot().owner(), word.snapshot().hands_over()), (Some(first), false));
        assert_eq!(word.unlock(sleeper), Unlocked::Done);
        assert!(word.is_quiet());
    }
}
