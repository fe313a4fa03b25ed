//! The mutex's slow paths: spinning while that may help, sleeping otherwise, and waking the next.
//!
//! ```text
//!   lock ── fails ──▶ spinner: waits in the OSQ, then spins for the owner
//!                        │ the owner does not run, or its vCPU is preempted; this CPU has other work; the lock is promised
//!                        ▼
//!                     sleeper: in the list; announces itself, looks once more, parks
//!                        │ woken, the lock is taken: parks again; the first in the list that has woken in vain
//!                        │ VAIN_WAKES times asks for the lock to be handed over
//!                        ▼
//!                     owner
//! ```
//!
//! No wake-up is lost:
//!
//! ```text
//! sleeper                                      owner
//!   spinlock(list) { push; [RmW] waiters = 1 }   [RmW] word: (t,0,0) -> (0,0,0)   fails once waiters = 1:
//!   spinlock(list) { [RmW] woken = 0;              spinlock(list) { [RmW] owner = 0, woken = 1; who is first? }
//!                    [RmW] take, if free }         unpark(first)
//!   park()  (unparks are kept)                   with woken = 1 it may free the lock without more: the look is still to come
//! ```
//!
//! Bound: a sleeper is woken in vain at most `VAIN_WAKES` times once it is first in the list; then nobody passes it. Every sleeper becomes
//! first after those before it.

use super::super::parker::{Parker, TaskId, Whereabouts, worth_spinning};
use super::super::wait_list::{List, Place};
use super::RawMutex;
use super::word::{Locker, Others, Turn};
use crate::cpu::{Cpu, CpuId};
use crate::stats::{Counter, count};
use crate::sync::spin_loop;
use crate::wait::budget::VAIN_WAKES;
use crate::wait::drive::{self, Waited};
use crate::wait::{Abilities, Seen, Step, Waiter};

/// Acquires the mutex after a failed first attempt.
#[cold]
#[inline(never)]
pub(super) fn lock_slow<P: Parker>(mutex: &RawMutex<P>) {
    count(P::Cpu::current(), Counter::SlowPath);
    let task = P::current();
    let me = Locker::new(task);
    if spin(mutex, me) {
        return;
    }
    match task {
        Some(task) if P::may_sleep() => sleep(mutex, task, me),
        _ => without_sleep(mutex, me),
    }
}

/// Releases a mutex for which tasks sleep.
#[cold]
#[inline(never)]
pub(super) fn unlock_slow<P: Parker>(mutex: &RawMutex<P>) {
    let woken = mutex.list.with(|list| {
        if mutex.word.snapshot().hands_over()
            && let Some(first) = hand_over(mutex, list)
        {
            return Some(first);
        }
        mutex.word.release(if list.is_empty() { Others::None } else { Others::Sleep });
        list.first()
    });
    wake::<P>(woken);
}

/// Gives the mutex to the first sleeper; releases it if there is none.
#[cold]
#[inline(never)]
pub(super) fn unlock_fair_slow<P: Parker>(mutex: &RawMutex<P>) {
    let woken = mutex.list.with(|list| {
        let given = hand_over(mutex, list);
        if given.is_none() {
            mutex.word.release(Others::None);
        }
        given
    });
    wake::<P>(woken);
}

fn hand_over<P: Parker>(mutex: &RawMutex<P>, list: &mut List) -> Option<TaskId> {
    let first = list.take_first()?;
    count(P::Cpu::current(), Counter::HandOver);
    mutex.word.give(first, if list.is_empty() { Others::None } else { Others::Sleep });
    Some(first)
}

/// Wakes by name: the mutex and the sleeper's node may be gone by now.
fn wake<P: Parker>(woken: Option<TaskId>) {
    if let Some(task) = woken {
        P::unpark(task);
    }
}

/// Spins while the owner runs. `true`: the mutex is taken.
fn spin<P: Parker>(mutex: &RawMutex<P>, me: Locker) -> bool {
    P::Cpu::preempt_disable();
    let mut taken = false;
    if let Some(token) = mutex.osq.lock(|| false) {
        taken = spin_as_head(mutex, me);
        mutex.osq.unlock(token);
    }
    P::Cpu::preempt_enable();
    taken
}

fn spin_as_head<P: Parker>(mutex: &RawMutex<P>, me: Locker) -> bool {
    // The waiting policy says when it would give the CPU away; this waiter then sleeps.
    const SLEEPS: Abilities = Abilities { yields: false, yields_first: 0, halts: true };
    let mut waiter = Waiter::default();
    let cpu = P::Cpu::current();
    count(cpu, Counter::OptimisticSpin);
    loop {
        let now = mutex.word.snapshot();
        if now.is_open() && mutex.word.take(me) {
            return true;
        }
        if now.hands_over() {
            return false;
        }
        let see = || match now.owner().map(|owner| worth_spinning::<P>(owner, cpu)) {
            Some(Some(true)) => Seen::Running,
            Some(Some(false)) => Seen::Preempted,
            Some(None) | None => Seen::Unknown,
        };
        if waiter.next(|| (see(), SLEEPS)) != Step::Pause || P::Cpu::need_resched() {
            count(cpu, if P::Cpu::need_resched() { Counter::SpinResched } else { Counter::SpinPreempted });
            return false;
        }
        P::Cpu::relax();
        spin_loop();
    }
}

fn sleep<P: Parker>(mutex: &RawMutex<P>, task: TaskId, me: Locker) {
    let announce = |_: &_| mutex.word.announce();
    mutex.list.queue(task, announce, |queued| {
        let mut vain_wakes = 0;
        let mut parked = false;
        loop {
            let taken = queued.with(|list, place| {
                let turn = match place {
                    // Only the owner takes sleepers out, and only by giving them the mutex.
                    Place::Out => return true,
                    Place::First => {
                        mutex.word.awake();
                        Turn::First
                    }
                    Place::Later => Turn::Later,
                };
                let others = if list.is_shared() { Others::Sleep } else { Others::None };
                let taken = mutex.word.take_as_sleeper(me, turn, others);
                if taken {
                    queued.leave(list);
                } else if place == Place::First && parked {
                    // Only the first is woken.
                    count(P::Cpu::current(), Counter::WakeInVain);
                    vain_wakes += 1;
                    if vain_wakes >= VAIN_WAKES {
                        mutex.word.ask_for_hand_over();
                    }
                }
                taken
            });
            if taken {
                return;
            }
            count(P::Cpu::current(), Counter::Sleep);
            P::park();
            parked = true;
        }
    });
}

/// Waits where there is no task to put to sleep, or it may not: in early boot, in an interrupt.
fn without_sleep<P: Parker>(mutex: &RawMutex<P>, me: Locker) {
    let mut waiter = Waiter::default();
    let mut waited = Owner(mutex);
    while !mutex.word.take(me) {
        drive::round::<P::Cpu, _>(&mut waiter, &mut waited, P::Cpu::current(), &mut None);
    }
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
