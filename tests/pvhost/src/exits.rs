//! Exits from the guest to the host, made on the vCPU's own thread: ticks, yields, halts, kicks, interrupts, freezes.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::time::Duration;
use std::sync::MutexGuard;

use crate::boost;
use crate::clock::{now_ns, spin_for};
use crate::counters::bump;
use crate::guest::take_interrupts;
use crate::host::HostState;
use crate::policy::{BusySpinDetector, Kick, PreemptedFlag};
use crate::sched::{Next, Poke, State};
use crate::steal::{FlushRequest, StealRecord};
use crate::vcpu::{CONTEXT, Entered, Place};
use pvlock::CpuId;

/// Far above what two readings of the clock may differ by, far below a slice.
const TIMER_MARGIN_NS: u64 = 5_000;

/// Runs `f` in the host, where no tick stops the thread. `None` when the calling thread is no vCPU.
pub(crate) fn in_host<R>(f: impl FnOnce(&Place) -> R) -> Option<R> {
    CONTEXT.with(|context| {
        let place = context.place.get()?;
        context.enter();
        place.vcpu.tick_rip.store(0, Relaxed);
        let result = f(&place);
        context.leave(|| place.late_tick());
        take_interrupts(context);
        Some(result)
    })
}

/// A tick at the instruction `rip`; called by the signal handler.
pub(crate) fn tick(rip: usize) {
    CONTEXT.with(|context| {
        let Some(place) = context.place.get() else { return };
        if context.enter_for_tick() == Entered::Already {
            return;
        }
        place.vcpu.last_rip.store(rip, Relaxed);
        place.tick(rip);
        context.leave(|| place.late_tick());
        take_interrupts(context);
    });
}

/// Directed yield. Whether the caller was scheduled out shows in its steal record's version.
pub(crate) fn yield_to(target: CpuId) {
    in_host(|place| {
        bump(&place.vcpu.counters.yields);
        spin_for(place.host.config.exit_cost);
        let me = place.vcpu.index();
        let (mut state, now_ns) = place.lock();
        if target.index() >= place.host.vcpus.len() {
            return;
        }
        if let Some((next, poke)) = state.sched.yield_to(me, target.index(), now_ns) {
            if matches!(next, Next::Switch(_)) {
                bump(&place.vcpu.counters.yields_moved);
            }
            place.settle(state, next, poke, Cause::Exit, now_ns);
        }
    });
}

/// Undirected yield: the vCPU is caught in a loop of pauses.
pub(crate) fn pause_loop() {
    in_host(|place| {
        spin_for(place.host.config.exit_cost);
        let (mut state, now_ns) = place.lock();
        let (next, poke) = boost::on_spin(place, &mut state, now_ns);
        place.settle(state, next, poke, Cause::Exit, now_ns);
    });
}

/// Halts until kicked or, `with_irqs_on`, until an interrupt is pending.
pub(crate) fn halt(with_irqs_on: bool) {
    in_host(|place| {
        let counters = &place.vcpu.counters;
        bump(&counters.halts);
        spin_for(place.host.config.exit_cost);
        let me = place.vcpu.index();
        let (mut state, now_ns) = place.lock();
        let task = &mut state.sched.tasks[me];
        if core::mem::take(&mut task.kicked) {
            bump(&counters.sticky_kicks);
        } else if with_irqs_on && place.vcpu.pending_irqs.load(Relaxed) != 0 {
            // Taken on the way out. ORDERING: a sender makes the interrupt pending before it takes the host's lock, so either
            // it is seen here, or the sender finds this vCPU halted.
        } else if state.sched.clock.draw_spurious_wake() {
            bump(&counters.spurious_wakes);
        } else {
            state.sched.tasks[me].halted_with_irqs_on = with_irqs_on;
            let next = state.sched.deschedule(me, State::Halted, now_ns);
            place.settle(state, next, Poke::Nobody, Cause::Exit, now_ns);
        }
        if with_irqs_on {
            CONTEXT.with(|context| context.irqs_on.store(true, Relaxed));
        }
    });
}

/// Wakes `target`, or makes its next halt return at once.
pub(crate) fn kick(target: CpuId) {
    in_host(|place| {
        bump(&place.vcpu.counters.kicks_sent);
        spin_for(place.host.config.exit_cost);
        let (me, target) = (place.vcpu.index(), target.index());
        if target >= place.host.vcpus.len() {
            return;
        }
        let (mut state, now_ns) = place.lock();
        let poke = place.host.kick_locked(&mut state, target, now_ns);
        let yields = place.host.config.policies.kick == Kick::WakesAndYields;
        // A yield marks the same slot as the wake-up did, so it makes the wake-up's own poke superfluous.
        match if yields { state.sched.yield_to(me, target, now_ns) } else { None } {
            Some((next, poke)) => place.settle(state, next, poke, Cause::Exit, now_ns),
            None => {
                drop(state);
                place.host.poke(poke);
            }
        }
    });
}

/// Makes the interrupt `vector` (below 64) pending at `target` and sees that it is taken.
pub(crate) fn send_irq(target: CpuId, vector: u32) {
    send_irqs([target].into_iter(), vector);
}

/// The same for many, by one exit.
pub(crate) fn send_irqs(targets: impl Iterator<Item = CpuId>, vector: u32) {
    in_host(|place| {
        spin_for(place.host.config.exit_cost);
        for target in targets {
            let Some(receiver) = place.host.vcpus.get(target.index()) else { continue };
            bump(&place.vcpu.counters.irqs_sent);
            // ORDERING: AcqRel, pair PVHOST-IRQ (in `take_interrupts`): the handler sees what was written before the send.
            receiver.pending_irqs.fetch_or(1 << (vector % 64), AcqRel);
            let (mut state, now_ns) = place.lock();
            let poke = place.host.notice_irq_locked(&mut state, target.index(), now_ns);
            drop(state);
            place.host.poke(poke);
        }
    });
}

/// Freezes the calling vCPU for `duration`.
pub(crate) fn freeze_me(duration: Duration) {
    in_host(|place| {
        bump(&place.vcpu.counters.freezes);
        let me = place.vcpu.index();
        let (mut state, now_ns) = place.lock();
        state.sched.freeze(me, now_ns + duration.as_nanos() as u64);
        let next = state.sched.deschedule(me, State::Runnable, now_ns);
        place.host.changed.notify_all();
        place.settle(state, next, Poke::Nobody, Cause::Interrupt, now_ns);
    });
}

/// Why a vCPU may have to leave its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The host's timer, between any two instructions of the guest.
    Interrupt,
    /// Something that the vCPU did.
    Exit,
}

impl Place {
    /// Waits for the first slice.
    pub(crate) fn begin(&self) {
        self.wait_for_slot();
    }

    /// The guest's function has ended; `died` says why when it panicked. The thread is no vCPU any more.
    pub(crate) fn end(&self, died: Option<String>) {
        let (mut state, now_ns) = self.lock();
        if let Some(message) = died {
            self.host.record_death_locked(&mut state, self.vcpu.cpu, message, now_ns);
        }
        let next = state.sched.deschedule(self.vcpu.index(), State::Finished, now_ns);
        StealRecord::of(self.vcpu.cpu).clear();
        self.host.notify_over();
        drop(state);
        if let Next::Switch(Some(elected)) = next {
            self.host.start(elected);
        }
    }

    /// The guest's interrupt handler has panicked. It may have been called on top of any instruction, so there is no way back.
    pub(crate) fn die_in_handler(&self, message: String) -> ! {
        CONTEXT.with(|context| context.enter());
        let (mut state, now_ns) = self.lock();
        self.host.record_death_locked(&mut state, self.vcpu.cpu, message, now_ns);
        self.host.abandon_locked(&mut state);
        drop(state);
        self.park_for_ever()
    }

    /// A tick that was put off until the vCPU left the host.
    pub(crate) fn late_tick(&self) {
        self.tick(0);
    }

    fn tick(&self, rip: usize) {
        bump(&self.vcpu.counters.ticks);
        let me = self.vcpu.index();
        // ORDERING: AcqRel, pair PVHOST-POKE (in `poke`): before the look at the state. A poke that comes later signals again.
        self.vcpu.poked.swap(false, AcqRel);
        let (mut state, now_ns) = self.lock();
        let spins = self.host.config.policies.detector == BusySpinDetector::TwoTicks
            && rip != 0
            && self.vcpu.tick_rip.swap(rip, Relaxed) == rip;
        if spins && !state.sched.waiting.is_empty() {
            self.vcpu.tick_rip.store(0, Relaxed);
            let (next, poke) = boost::on_spin(self, &mut state, now_ns);
            return self.settle(state, next, poke, Cause::Interrupt, now_ns);
        }
        if state.sched.slice_is_over(me, now_ns)
            && let Some(duration) = state.sched.clock.draw_freeze()
        {
            bump(&self.vcpu.counters.freezes);
            state.sched.freeze(me, now_ns + duration.as_nanos() as u64);
            self.host.changed.notify_all();
        }
        if let Some(vector) = self.host.config.timer {
            // ORDERING: none needed, the handler runs on this thread.
            self.vcpu.pending_irqs.fetch_or(1 << (vector % 64), Relaxed);
        }
        let next = state.sched.tick(me, now_ns);
        self.settle(state, next, Poke::Nobody, Cause::Interrupt, now_ns);
    }

    /// The host's lock, and the time: read under the lock, so that it never runs backwards from one holder to the next. A vCPU
    /// that has been abandoned gets no further.
    fn lock(&self) -> (MutexGuard<'static, HostState>, u64) {
        let state = self.host.lock();
        if state.abandoned {
            drop(state);
            self.park_for_ever();
        }
        (state, now_ns())
    }

    /// Does what the scheduler has decided about this vCPU and a third one. Returns when this vCPU runs again.
    fn settle(&self, state: MutexGuard<'_, HostState>, next: Next, poke: Poke, cause: Cause, now_ns: u64) {
        let Next::Switch(elected) = next else {
            drop(state);
            self.host.poke(poke);
            let Next::Stay { slice_end_ns } = next else { return };
            self.arm_if_due(slice_end_ns, now_ns);
            return;
        };
        if state.sched.tasks[self.vcpu.index()].state == State::Runnable {
            bump(&self.vcpu.counters.preemptions);
        }
        if cause == Cause::Interrupt || self.host.config.policies.flag == PreemptedFlag::AnyExit {
            // Before the lock is free: whoever runs next finds this vCPU marked.
            StealRecord::of(self.vcpu.cpu).switch_out();
        }
        drop(state);
        self.host.poke(poke);
        if self.next_tick_ns() > now_ns {
            self.arm(0);
        }
        if let Some(elected) = elected {
            self.host.start(elected);
        }
        self.wait_for_slot();
    }

    fn wait_for_slot(&self) {
        let (steal_ns, slice_end_ns) = self.vcpu.wait_at_gate();
        bump(&self.vcpu.counters.slices);
        if StealRecord::of(self.vcpu.cpu).switch_in(steal_ns) == FlushRequest::Asked {
            bump(&self.vcpu.counters.tlb_flushes);
        }
        self.arm(self.first_tick_ns(slice_end_ns, now_ns()));
    }

    fn arm_if_due(&self, slice_end_ns: u64, now_ns: u64) {
        // With a margin, so that a timer that has just fired is never taken for one that will.
        if self.next_tick_ns() <= now_ns + TIMER_MARGIN_NS {
            self.arm(self.first_tick_ns(slice_end_ns, now_ns));
        }
    }

    fn first_tick_ns(&self, slice_end_ns: u64, now_ns: u64) -> u64 {
        slice_end_ns.min(now_ns + self.host.config.tick_distance().as_nanos() as u64)
    }

    fn arm(&self, at_ns: u64) {
        CONTEXT.with(|context| context.next_tick_ns.set(at_ns));
        self.timer.arm(at_ns);
    }

    fn next_tick_ns(&self) -> u64 {
        CONTEXT.with(|context| context.next_tick_ns.get())
    }

    fn park_for_ever(&self) -> ! {
        self.host.parked.fetch_add(1, Relaxed);
        let never = AtomicU32::new(0);
        loop {
            atomic_wait::wait(&never, 0);
        }
    }
}
