//! The mutex's slow paths: spinning while that may help, sleeping otherwise, and waking the next.
//!
//! ```text
//!   lock ── fails ──▶ newcomer: spins for the owner, and tries now and then
//!                        │ its rounds are spent, or others spin
//!                        ▼
//!                     spinner: waits in the OSQ, then spins for the owner
//!                        │ the owner does not run, or its vCPU is preempted; this CPU has other work; the lock is promised
//!                        ▼           (a newcomer goes there directly for these reasons)
//!                     sleeper: in the list; announces itself, looks once more, parks
//!                        │ woken as the first in the list: spins for the owner, and asks for the lock to be handed over after HEAD_ROUNDS
//!                        │ rounds; for the same reasons as above parks again, and asks after VAIN_WAKES wakes in vain
//!                        ▼
//!                     owner
//! ```
//!
//! No wake-up is lost:
//!
//! ```text
//! sleeper                                                  owner
//!   spinlock(list) { push }                                   [RmW] word: (t,0,0) -> (0,0,0)   fails once waiters = 1:
//!   spinlock(list) { am I first? I sleep: [RmW] waiters = 1;  spinlock(list) { word = (0,0,0); the first is awake; who is it? }
//!                    [RmW] take, if free }                    unpark(first)
//!   park()  (unparks are kept)                                while the first is awake it may free the lock without more: the look on the
//!                                                             left is still to come, also if the sleeper spins before it
//! ```
//!
//! A sleeper that is not first leaves its wake-up to that one: it sets `waiters` when it goes to sleep, and when it gets the lock.
//!
//! Bound: a sleeper that is first in the list is woken in vain at most `VAIN_WAKES` times, and passed for at most about `HEAD_ROUNDS` rounds of
//! its own spinning after each; then nobody passes it. Every sleeper becomes first after those before it. A return of `park` for no reason
//! counts as a wake in vain.

use super::super::parker::{Parker, TaskId, Whereabouts, worth_spinning};
use super::super::wait_list::{List, Place, Queued};
use super::RawMutex;
use super::word::{Locker, Others, Unlocked};
use crate::cpu::{Cpu, CpuId};
use crate::stats::{Counter, count};
use crate::sync::spin_loop;
use crate::wait::budget::{HEAD_ROUNDS, SPACED_ROUNDS, TRUSTED_ROUNDS, TRY_GAP_MAX, TRY_GAP_MIN, VAIN_WAKES};
use crate::wait::drive::{self, Waited};
use crate::wait::{Abilities, Seen, Step, Waiter};

/// Acquires the mutex after a failed first attempt.
#[cold]
#[inline(never)]
pub(super) fn lock_slow<P: Parker>(mutex: &RawMutex<P>, task: Option<TaskId>) {
    count(P::Cpu::current(), Counter::SlowPath);
    let me = Locker::new(task);
    if spin(mutex, me) {
        return;
    }
    match task {
        Some(task) if P::may_sleep() => sleep(mutex, task, me),
        _ => without_sleep(mutex, me),
    }
}

/// Releases a mutex for which tasks sleep, or which has a flag set for another reason.
#[cold]
#[inline(never)]
pub(super) fn unlock_slow<P: Parker>(mutex: &RawMutex<P>, me: Locker) {
    // Whoever is marked as awake is to be awake soon: until it is, nobody else is woken.
    P::Cpu::preempt_disable();
    // Nobody sleeps although a flag says so: a sleeper has come and taken the mutex, or its `park` has panicked.
    while !release_to_first(mutex) && mutex.word.unlock(me) == Unlocked::Sleepers {}
    P::Cpu::preempt_enable();
}

/// Releases the mutex and sees to it that the first sleeper is awake. `false`: there is none, and the mutex is still held.
///
/// Never is it released here with an empty list: the spinlock's memory may go as soon as the mutex is free and nobody sleeps.
fn release_to_first<P: Parker>(mutex: &RawMutex<P>) -> bool {
    let found = mutex.list.with(|list| {
        let Some(first) = list.first() else {
            mutex.word.clear_flags();
            return None;
        };
        if mutex.word.snapshot().hands_over() {
            return Some(hand_over(mutex, list));
        }
        let asleep = (!list.first_is_awake()).then_some(first);
        list.set_first_awake(true);
        mutex.word.release();
        Some(asleep)
    });
    let released = found.is_some();
    wake::<P>(found.flatten());
    released
}

/// Gives the mutex to the first sleeper; releases it if there is none.
#[cold]
#[inline(never)]
pub(super) fn unlock_fair_slow<P: Parker>(mutex: &RawMutex<P>, me: Locker) {
    P::Cpu::preempt_disable();
    let given = mutex.list.with(|list| hand_over(mutex, list));
    if given.is_some() {
        wake::<P>(given);
    } else if mutex.word.unlock(me) == Unlocked::Sleepers {
        // One has come in between.
        unlock_slow(mutex, me);
    }
    P::Cpu::preempt_enable();
}

fn hand_over<P: Parker>(mutex: &RawMutex<P>, list: &mut List) -> Option<TaskId> {
    let first = list.take_first()?;
    count(P::Cpu::current(), Counter::HandOver);
    mutex.word.give(first, others(list));
    Some(first)
}

fn others(list: &List) -> Others {
    if list.is_empty() || list.first_is_awake() { Others::None } else { Others::Sleep }
}

/// Wakes by name: the mutex and the sleeper's node may be gone by now.
fn wake<P: Parker>(woken: Option<TaskId>) {
    if let Some(task) = woken {
        P::unpark(task);
    }
}

/// How a spin ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spun {
    /// The mutex is the caller's.
    Taken,
    /// The caller has it to sleep: the owner does not run, the mutex is promised to somebody else, or this CPU has other work.
    Sleep,
    /// The rounds are spent, or `stops` said so.
    Spent,
}

/// Spins while the owner runs: as a newcomer, then as head of the queue of spinners. `true`: the mutex is taken.
fn spin<P: Parker>(mutex: &RawMutex<P>, me: Locker) -> bool {
    P::Cpu::preempt_disable();
    let mut spun = spin_for_owner(mutex, me, Turn::Later, SPACED_ROUNDS, || mutex.osq.is_locked());
    if spun == Spun::Spent
        && let Some(token) = mutex.osq.lock(|| false)
    {
        count(P::Cpu::current(), Counter::OptimisticSpin);
        spun = spin_for_owner(mutex, me, Turn::Later, u32::MAX, || false);
        mutex.osq.unlock(token);
    }
    P::Cpu::preempt_enable();
    spun == Spun::Taken
}

/// Spins for at most `rounds` while the owner runs, and tries for the mutex at growing distances: each try takes its line away from the owner.
///
/// Called with preemption disabled.
fn spin_for_owner<P: Parker>(
    mutex: &RawMutex<P>,
    me: Locker,
    turn: Turn,
    rounds: u32,
    stops: impl Fn() -> bool,
) -> Spun {
    // The waiting policy says when it would give the CPU away; this waiter then sleeps.
    const SLEEPS: Abilities = Abilities { yields: false, yields_first: 0, halts: true, trust: TRUSTED_ROUNDS };
    let mut waiter = Waiter::default();
    let cpu = P::Cpu::current();
    let mut now = mutex.word.snapshot();
    let (mut gap, mut until_try) = (TRY_GAP_MIN, TRY_GAP_MIN);
    loop {
        if until_try == 0 {
            now = mutex.word.snapshot();
            let taken = match turn {
                Turn::Later => now.is_open() && mutex.word.take(me),
                Turn::First => now.is_free() && mutex.word.take_promised(me),
            };
            if taken {
                return Spun::Taken;
            }
            if now.hands_over() && turn != Turn::First {
                return Spun::Sleep;
            }
            if waiter.rounds() >= rounds || stops() {
                return Spun::Spent;
            }
            gap = (gap * 2).min(TRY_GAP_MAX);
            until_try = gap;
        }
        until_try -= 1;
        let see = || match now.owner().map(|owner| worth_spinning::<P>(owner, cpu)) {
            // Free: the next try may get it.
            None if now.is_free() => Seen::Running,
            Some(Some(true)) => Seen::Running,
            Some(Some(false)) => Seen::Preempted,
            Some(None) | None => Seen::Unknown,
        };
        if waiter.next(|| (see(), SLEEPS)) != Step::Pause || P::Cpu::need_resched() {
            count(cpu, if P::Cpu::need_resched() { Counter::SpinResched } else { Counter::SpinPreempted });
            return Spun::Sleep;
        }
        P::Cpu::relax();
        spin_loop();
    }
}

fn sleep<P: Parker>(mutex: &RawMutex<P>, task: TaskId, me: Locker) {
    mutex.list.queue(task, |queued| {
        let leaves = Leaves { mutex, queued, me };
        let mut vain_wakes = 0;
        let mut parked = false;
        while !((parked && spin_as_first(mutex, queued, me)) || look_again(mutex, queued, me, parked, &mut vain_wakes))
        {
            count(P::Cpu::current(), Counter::Sleep);
            P::park();
            parked = true;
        }
        core::mem::forget(leaves);
    });
}

/// A sleeper that leaves without the mutex, since the kernel's `park` has panicked.
struct Leaves<'a, 'b, P: Parker> {
    mutex: &'a RawMutex<P>,
    queued: &'a Queued<'b, P::Cpu>,
    me: Locker,
}

impl<P: Parker> Drop for Leaves<'_, '_, P> {
    /// What was meant for this sleeper goes to the next one: the mutex that it was given, its being awake, or its request.
    fn drop(&mut self) {
        let Self { mutex, queued, me } = *self;
        P::Cpu::preempt_disable();
        let (place, next) = queued.with(|list, place| {
            queued.leave(list);
            if place != Place::First {
                return (place, None);
            }
            mutex.word.clear_flags();
            let next = list.first();
            list.set_first_awake(next.is_some());
            (place, next)
        });
        wake::<P>(next);
        if place == Place::Out && mutex.word.unlock(me) == Unlocked::Sleepers {
            unlock_slow(mutex, me);
        }
        P::Cpu::preempt_enable();
    }
}

/// The last look before sleeping. `true`: the mutex is the caller's, and it is out of the list.
fn look_again<P: Parker>(
    mutex: &RawMutex<P>,
    queued: &Queued<'_, P::Cpu>,
    me: Locker,
    parked: bool,
    vain_wakes: &mut u32,
) -> bool {
    queued.with(|list, place| {
        let taken = match place {
            // Only the owner takes sleepers out, and only by giving them the mutex.
            Place::Out => return true,
            Place::First => {
                list.set_first_awake(false);
                mutex.word.announce();
                // If this look is in vain too, that was one more.
                if *vain_wakes + u32::from(parked) >= VAIN_WAKES {
                    mutex.word.ask_for_hand_over();
                }
                mutex.word.take_promised(me)
            }
            Place::Later => mutex.word.take(me),
        };
        if taken {
            queued.leave(list);
            mutex.word.settle(me, others(list));
        } else if place == Place::First && parked {
            // Only the first is woken.
            count(P::Cpu::current(), Counter::WakeInVain);
            *vain_wakes += 1;
        }
        taken
    })
}

/// Spins as the first of the sleepers, which has been woken, while the owner runs; with the right to it once it was passed for long.
/// `true`: the mutex is the caller's, and it is out of the list.
fn spin_as_first<P: Parker>(mutex: &RawMutex<P>, queued: &Queued<'_, P::Cpu>, me: Locker) -> bool {
    if !queued.with(|_, place| place == Place::First) {
        return false;
    }
    P::Cpu::preempt_disable();
    let given = || mutex.word.snapshot().is_owned_by(me);
    let mut spun = spin_for_owner(mutex, me, Turn::First, HEAD_ROUNDS, given);
    if spun == Spun::Spent {
        queued.with(|_, place| {
            if place == Place::First {
                mutex.word.ask_for_hand_over();
            }
        });
        spun = spin_for_owner(mutex, me, Turn::First, u32::MAX, given);
    }
    let taken = spun == Spun::Taken;
    if taken {
        queued.with(|list, _| {
            queued.leave(list);
            mutex.word.settle(me, others(list));
        });
    }
    P::Cpu::preempt_enable();
    taken
}

/// Waits where there is no task to put to sleep, or it may not: in early boot, in an interrupt.
fn without_sleep<P: Parker>(mutex: &RawMutex<P>, me: Locker) {
    let mut waiter = Waiter::default();
    let mut waited = Owner(mutex);
    while !mutex.word.take(me) {
        P::Cpu::preempt_disable();
        drive::round::<P::Cpu, _>(&mut waiter, &mut waited, P::Cpu::current(), &mut None);
        P::Cpu::preempt_enable();
    }
}

/// Who spins for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The one that has slept longest.
    First,
    /// Anybody else.
    Later,
}

struct Owner<'a, P: Parker>(&'a RawMutex<P>);

impl<P: Parker> Waited for Owner<'_, P> {
    const HALTS: bool = false;
    const YIELDS_FIRST: bool = true;

    fn target(&self) -> Option<CpuId> {
        match P::whereabouts(self.0.word.snapshot().owner()?) {
            Whereabouts::On(cpu) => Some(cpu),
            Whereabouts::Off | Whereabouts::Unknown => None,
        }
    }

    /// Nothing is promised to who cannot sleep; its yields are bounded by the waiting policy's back-off.
    fn commit(&mut self) {}

    fn publish_halt(&self, _: CpuId) -> bool {
        false
    }
}
