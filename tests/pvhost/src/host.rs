//! The host's shared state, and what it does to vCPUs: start them, interrupt them, stop all of them for good.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicPtr, AtomicUsize};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use pvlock::CpuId;

use crate::clock::now_ns;
use crate::config::Config;
use crate::sched::{Elected, Poke, Scheduler, State};
use crate::signal;
use crate::slice::SliceClock;
use crate::step::Trap;
use crate::vcpu::Vcpu;

/// One host. Never freed: vCPUs that are abandoned after a hang stay parked on it.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) config: Config,
    /// Physical CPU of each slot.
    cpus: Vec<usize>,
    pub(crate) vcpus: Vec<Vcpu>,
    state: Mutex<HostState>,
    /// A freeze has begun, or the guest is over: for the clock thread.
    pub(crate) changed: Condvar,
    /// The guest is over: for who waits for it.
    pub(crate) over: Condvar,
    /// Who is to be frozen where, and how many such traps there are.
    pub(crate) traps: Mutex<Vec<Trap>>,
    pub(crate) armed_traps: AtomicUsize,
    /// vCPUs that were stopped for good while they had a slot.
    pub(crate) parked: AtomicUsize,
}

/// What the host's lock guards.
///
/// A vCPU holds the lock only inside the host, where no tick stops it, so it is held for a microsecond at most.
#[derive(Debug)]
pub(crate) struct HostState {
    /// When the first vCPU was allowed to run.
    pub(crate) started_ns: u64,
    pub(crate) sched: Scheduler,
    /// The undirected yield that is next begins after this vCPU.
    pub(crate) last_boosted: usize,
    /// First vCPU that panicked.
    pub(crate) died: Option<Death>,
    /// No vCPU runs any more, ever.
    pub(crate) abandoned: bool,
}

/// A vCPU's panic.
#[derive(Clone, Debug)]
pub(crate) struct Death {
    pub(crate) cpu: CpuId,
    pub(crate) message: String,
    pub(crate) at_ns: u64,
}

/// The host whose guest runs now.
static CURRENT: AtomicPtr<Host> = AtomicPtr::new(core::ptr::null_mut());

/// The host whose guest runs now, if any.
pub(crate) fn current() -> Option<&'static Host> {
    // ORDERING: Acquire, pair PVHOST-CURRENT (in `make_current`): the host is seen complete.
    let host = CURRENT.load(Acquire);
    // SAFETY: null, or from a leaked box.
    unsafe { host.as_ref() }
}

impl Host {
    pub(crate) fn leak(config: Config, cpus: Vec<usize>) -> &'static Self {
        let quantum_ns = config.quantum.as_nanos() as u64;
        let clock = SliceClock::new(config.slices, quantum_ns);
        let sched = Scheduler::new(config.vcpus, cpus.len(), quantum_ns, clock);
        let vcpus = (0..config.vcpus as u32).filter_map(CpuId::new).map(Vcpu::new).collect();
        let state = HostState { started_ns: now_ns(), sched, last_boosted: 0, died: None, abandoned: false };
        Box::leak(Box::new(Self {
            armed_traps: AtomicUsize::new(config.traps.len()),
            parked: AtomicUsize::new(0),
            traps: Mutex::new(config.traps.clone()),
            config,
            cpus,
            vcpus,
            state: Mutex::new(state),
            changed: Condvar::new(),
            over: Condvar::new(),
        }))
    }

    pub(crate) fn make_current(&'static self) {
        // ORDERING: AcqRel: the release half is of pair PVHOST-CURRENT (in `current`).
        CURRENT.swap(core::ptr::from_ref(self).cast_mut(), AcqRel);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds the calling thread, or the stopped thread `tid`, to the CPU of `slot`.
    pub(crate) fn bind(&self, tid: i32, slot: usize) -> Result<(), nix::Error> {
        let mut set = CpuSet::new();
        set.set(self.cpus[slot])?;
        sched_setaffinity(Pid::from_raw(tid), &set)
    }

    /// Lets a vCPU run that has been given a slot.
    pub(crate) fn start(&self, elected: Elected) {
        let vcpu = &self.vcpus[elected.vcpu];
        if elected.migrated {
            // That the process may use this CPU was checked before the start. Should it have lost it since, the vCPU runs on
            // the CPU where it was: slower, not wrong.
            let _ = self.bind(vcpu.tid.load(Relaxed), elected.slot);
        }
        vcpu.open_gate(elected.steal_ns, elected.slice_end_ns);
    }

    pub(crate) fn poke(&self, poke: Poke) {
        match poke {
            Poke::Nobody => {}
            Poke::Start(elected) => self.start(elected),
            Poke::Interrupt(id) => {
                let vcpu = &self.vcpus[id];
                // One at a time: signals that come faster than their handler begins would pile up on the vCPU's stack.
                // ORDERING: AcqRel, pair PVHOST-POKE (in `tick`): what the tick is about was written before.
                if !vcpu.poked.swap(true, AcqRel) {
                    signal::interrupt(vcpu.tid.load(Relaxed));
                }
            }
        }
    }

    /// Fills all slots for the first time.
    pub(crate) fn start_guest(&self) {
        let mut state = self.lock();
        let now_ns = now_ns();
        state.started_ns = now_ns;
        state.sched.begin(now_ns);
        let first: Vec<_> = (0..self.cpus.len()).filter_map(|slot| state.sched.fill(slot, now_ns)).collect();
        drop(state);
        first.into_iter().for_each(|elected| self.start(elected));
    }

    /// Wakes a halted vCPU or, when it is not halted, makes its next halt return at once.
    pub(crate) fn kick_locked(&self, state: &mut HostState, target: usize, now_ns: u64) -> Poke {
        let task = &mut state.sched.tasks[target];
        match task.state {
            State::Halted => state.sched.wake(target, now_ns),
            State::Running | State::Runnable => {
                task.kicked = true;
                Poke::Nobody
            }
            State::Finished => Poke::Nobody,
        }
    }

    /// Brings an interrupt that has been made pending to its vCPU's notice.
    pub(crate) fn notice_irq_locked(&self, state: &mut HostState, target: usize, now_ns: u64) -> Poke {
        match state.sched.tasks[target].state {
            State::Halted if state.sched.tasks[target].halted_with_irqs_on => state.sched.wake(target, now_ns),
            State::Running => Poke::Interrupt(target),
            // Taken when it is switched in, or when it turns interrupts on.
            State::Halted | State::Runnable | State::Finished => Poke::Nobody,
        }
    }

    /// The vCPU `cpu` has panicked.
    pub(crate) fn record_death_locked(&self, state: &mut HostState, cpu: CpuId, message: String, at_ns: u64) {
        if state.died.is_none() {
            state.died = Some(Death { cpu, message, at_ns });
        }
        self.changed.notify_all();
    }

    /// Stops all vCPUs for good: those that run park at their next tick, the others are never started again.
    pub(crate) fn abandon_locked(&self, state: &mut HostState) {
        state.abandoned = true;
        for id in state.sched.running() {
            self.poke(Poke::Interrupt(id));
        }
        self.notify_over();
    }

    /// The guest may be over.
    pub(crate) fn notify_over(&self) {
        self.changed.notify_all();
        self.over.notify_all();
    }
}
