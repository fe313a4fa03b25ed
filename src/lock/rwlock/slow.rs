//! Waiting for the reader-writer lock: a while as a newcomer, then behind a spinlock that is the queue, last as its head.
//!
//! ```text
//!   newcomer ── takes it ─────────────────────────────────────────────────────▶ holder
//!      │ rounds spent, the writer is preempted, the lock is closed, or others queue and run
//!      ▼
//!   queue.lock()  (waits as every spinlock does; its owner is the head, so those behind know whom to yield to)
//!      ▼
//!   head: waits until the word lets it take its turn; closes the lock to newcomers
//!      │     before it gives its CPU away, and after HEAD_ROUNDS rounds
//!      ▼ takes it and opens the lock again
//!   queue.unlock()  (the next one is head; a reader behind a reader enters at once) ──▶ holder
//! ```
//!
//! Bound: a head that runs is passed for at most `HEAD_ROUNDS` rounds of its own, and not at all (but for one stale pass per other CPU of a
//! writer that had read the word before) after it gave up its CPU. Everybody in the queue becomes head in turn, by the spinlock's bound. So
//! neither side starves the other.
//!
//! The upgradable reader that waits to write does not queue: it holds a share that the head must wait for.

use super::super::spin::RawSpinLock;
use super::kick;
use super::word::{Want, Word};
use crate::cpu::{Cpu, CpuId};
use crate::hypervisor::Hypervisor;
use crate::stats::{Counter, count};
use crate::sync::spin_loop;
use crate::wait::Waiter;
use crate::wait::budget::{FIRST_PAUSES, HEAD_ROUNDS, READER_TRUST, SPACED_ROUNDS, TRY_GAP_MAX, TRY_GAP_MIN};
use crate::wait::drive::{self, Waited};

/// Acquires what `want` wants after a first attempt failed.
#[cold]
#[inline(never)]
pub(super) fn lock_slow<C: Cpu>(word: &Word, queue: &RawSpinLock<C>, want: Want) {
    let me = C::current();
    count(me, Counter::SlowPath);
    if newcomer::<C>(word, queue, want, me) {
        return;
    }
    queue.lock();
    let mut head = Turn { word, want, me, closes: true };
    take::<C>(&mut head);
    // SAFETY: locked above; by this task, wherever it runs now.
    unsafe { queue.unlock() };
}

/// Reads though others wait: waits for a writer only, outside the queue, so that an interrupt may do so while it interrupted a waiter.
#[cold]
#[inline(never)]
pub(super) fn read_again_slow<C: Cpu>(word: &Word) {
    let me = C::current();
    count(me, Counter::SlowPath);
    let mut waiter = Waiter::default();
    let mut waited = Outsider { word };
    loop {
        if !word.snapshot().blocks(Want::ReadAgain) {
            match word.read_again() {
                Ok(()) => return,
                Err(halted) => kick::<C>(halted),
            }
        }
        drive::round::<C, _>(&mut waiter, &mut waited, me, &mut None);
    }
}

/// Makes a writer of the upgradable reader once the other readers have gone.
#[cold]
#[inline(never)]
pub(super) fn upgrade_slow<C: Cpu>(word: &Word) {
    let me = C::current();
    count(me, Counter::SlowPath);
    word.announce_upgrade();
    take::<C>(&mut Turn { word, want: Want::Upgrade, me, closes: false });
}

fn take<C: Cpu>(turn: &mut Turn<'_>) {
    let mut waiter = Waiter::default();
    while !turn.word.take_turn(turn.want, turn.me) {
        if waiter.rounds() >= HEAD_ROUNDS {
            turn.commit();
        }
        let me = turn.me;
        drive::round::<C, _>(&mut waiter, turn, me, &mut None);
    }
}

/// Tries without a place in the queue, at growing distances: each look takes the word's line away from those who hold the lock. `true`: it is done.
fn newcomer<C: Cpu>(word: &Word, queue: &RawSpinLock<C>, want: Want, me: Option<CpuId>) -> bool {
    let runs = |who: Option<CpuId>| who.is_none_or(|who| Some(who) == me || !C::Hypervisor::is_preempted(who));
    let (mut gap, mut rounds) = (FIRST_PAUSES, 0);
    while rounds < SPACED_ROUNDS {
        for _ in 0..gap {
            C::relax();
            spin_loop();
        }
        rounds += gap.max(1);
        gap = (gap * 2).clamp(TRY_GAP_MIN, TRY_GAP_MAX);
        let now = word.snapshot();
        if now.is_closed() {
            return false;
        }
        if !now.blocks(want) && attempt::<C>(word, want, me) {
            return true;
        }
        if !runs(now.writer()) || (queue.is_locked() && runs(queue.owner())) {
            // Only a head may yield to the writer, since only a head may close the lock; and others wait in order.
            return false;
        }
    }
    false
}

fn attempt<C: Cpu>(word: &Word, want: Want, me: Option<CpuId>) -> bool {
    match want {
        Want::Write => word.write(me),
        Want::Upgradable => word.upgradable(),
        Want::Read | Want::ReadAgain | Want::Upgrade => match word.read() {
            Ok(()) => true,
            Err(halted) => {
                kick::<C>(halted);
                false
            }
        },
    }
}

/// The head of the queue, or the upgrader, waits for its turn.
struct Turn<'a> {
    word: &'a Word,
    want: Want,
    me: Option<CpuId>,
    /// Whether the lock is still to be closed to newcomers; an upgrader's announcement has done that.
    closes: bool,
}

impl Waited for Turn<'_> {
    const HALTS: bool = true;
    const YIELDS_FIRST: bool = true;
    /// A writer too: on hosts where the holder does not read as preempted when it was taken off its CPU by a kick of its own, this keeps twice the
    /// throughput of 16 vCPUs on two CPUs.
    const TRUST: u32 = READER_TRUST;

    /// Who the readers are is not known; a waiter then spins for a bounded time and halts.
    fn target(&self) -> Option<CpuId> {
        self.word.snapshot().writer()
    }

    fn commit(&mut self) {
        if self.closes {
            self.closes = false;
            self.word.close();
            count(self.me, Counter::Reserve);
        }
    }

    fn publish_halt(&self, me: CpuId) -> bool {
        self.word.publish_halt(self.want, me)
    }
}

/// A reader outside the queue waits for the writer.
struct Outsider<'a> {
    word: &'a Word,
}

impl Waited for Outsider<'_> {
    const HALTS: bool = false;
    const YIELDS_FIRST: bool = true;

    fn target(&self) -> Option<CpuId> {
        self.word.snapshot().writer()
    }

    /// It has no right to close the lock; its yields are bounded by the waiting policy's back-off.
    fn commit(&mut self) {}

    fn publish_halt(&self, _: CpuId) -> bool {
        false
    }
}
