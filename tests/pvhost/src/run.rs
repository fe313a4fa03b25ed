//! Running a guest: its threads, the clock thread that ends freezes and notices hangs, and the end.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use nix::libc;
use nix::unistd::gettid;
use pvlock::CpuId;

use crate::clock::{now_ns, thread_cpu_ns};
use crate::config::{Config, ConfigError};
use crate::guest;
use crate::host::{Host, HostState};
use crate::report::{Failure, Report, panic_message};
use crate::sched::State;
use crate::signal::{self, TickTimer};
use crate::steal::StealRecord;
use crate::vcpu::{CONTEXT, Place};

/// For how long all vCPUs may be halted before that counts as a lost wake-up. Long enough for a test to kick from outside.
const ALL_HALTED_LIMIT: Duration = Duration::from_secs(1);
/// How long the others may go on after a vCPU has died.
const AFTER_DEATH_LIMIT: Duration = Duration::from_millis(500);
/// How often the clock thread looks for hangs when it has nothing else to do.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// One guest at a time: its records and the current host are global.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A guest that runs. Dropping it stops the guest for good.
#[derive(Debug)]
pub struct Running {
    host: &'static Host,
    threads: Vec<JoinHandle<()>>,
    clock: Option<JoinHandle<()>>,
    _only: MutexGuard<'static, ()>,
}

/// Runs `guest` on every vCPU and waits for the end. Waits for its turn while another guest runs in this process.
///
/// # Errors
/// [`ConfigError`] as [`start`], [`Failure`] as [`Running::wait`].
pub fn run(
    config: Config,
    guest: impl Fn(CpuId) + Send + Sync + 'static,
) -> Result<Report, Box<dyn core::error::Error + Send + Sync>> {
    Ok(start(config, guest)?.wait()?)
}

/// Starts `guest` on every vCPU. Waits for its turn while another guest runs in this process.
///
/// The function must not block in the system's calls, and should not print: it may be stopped at any instruction, also one
/// inside the allocator or with the lock of the standard output held.
///
/// # Errors
/// When the configuration is impossible, or this process may not use affinity, signals or timers.
pub fn start(config: Config, guest: impl Fn(CpuId) + Send + Sync + 'static) -> Result<Running, ConfigError> {
    if guest::current().is_some() {
        return Err(ConfigError::Nested);
    }
    let cpus = config.check()?;
    let only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    signal::install().map_err(ConfigError::Signals)?;
    guest::offer(config.vcpus, config.abilities);
    let slots = cpus.len();
    let host = Host::leak(config, cpus);
    host.make_current();

    let guest = Arc::new(guest);
    let ready = Arc::new(Barrier::new(host.vcpus.len() + 1));
    let refused = Arc::new(Mutex::new(None));
    let mut threads = Vec::with_capacity(host.vcpus.len());
    for id in 0..host.vcpus.len() {
        let (guest, ready, refused) = (Arc::clone(&guest), Arc::clone(&ready), Arc::clone(&refused));
        let vcpu_thread = move || {
            let place = enter_place(host, id, id % slots);
            let place = match place {
                Ok(place) => Some(place),
                Err(error) => {
                    *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    None
                }
            };
            ready.wait();
            // A second time: now all know whether all could be set up.
            ready.wait();
            let all_ready = refused.lock().unwrap_or_else(PoisonError::into_inner).is_none();
            if let (Some(place), true) = (place, all_ready) {
                be_vcpu(place, &*guest);
            }
        };
        threads.push(thread::Builder::new().name(format!("vcpu {id}")).spawn(vcpu_thread).expect("a thread"));
    }
    ready.wait();
    ready.wait();
    if let Some(error) = *refused.lock().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let clock = thread::Builder::new().name("pvhost clock".into()).spawn(move || be_clock(host)).expect("a thread");
    host.start_guest();
    Ok(Running { host, threads, clock: Some(clock), _only: only })
}

impl Running {
    /// Waits until every vCPU's function has returned.
    ///
    /// # Errors
    /// When the guest hangs or a vCPU dies.
    pub fn wait(mut self) -> Result<Report, Failure> {
        let mut state = self.host.lock();
        while !is_over(&state) {
            state = self.host.over.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let abandoned = state.abandoned;
        drop(state);
        if abandoned {
            self.wait_until_parked();
        } else {
            // All have left their function; let them end, so that their CPU times are final.
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        }
        if let Some(clock) = self.clock.take() {
            drop(clock.join());
        }
        let state = self.host.lock();
        let report = Report::take(self.host, &state);
        match &state.died {
            Some(death) => Err(Failure::Died { cpu: death.cpu, message: death.message.clone(), report }),
            None if !abandoned => Ok(report),
            None if state.sched.all_halted() => Err(Failure::AllHalted(report)),
            None => Err(Failure::Hung(report)),
        }
    }

    /// Waits until the vCPUs that had a slot have noticed that they were stopped for good, so that the next guest is not
    /// disturbed by them. One that Linux does not let run is not waited for longer than a second.
    fn wait_until_parked(&self) {
        let had_a_slot = self.host.lock().sched.running().count();
        for _ in 0..1000 {
            if self.host.parked.load(Relaxed) >= had_a_slot {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// All vCPUs as they are now.
    pub fn report(&self) -> Report {
        Report::take(self.host, &self.host.lock())
    }

    /// Stops `cpu` before its next instruction, for `duration`. Nothing for a CPU that the guest does not have.
    pub fn freeze(&self, cpu: CpuId, duration: Duration) {
        if cpu.index() >= self.host.vcpus.len() {
            return;
        }
        let mut state = self.host.lock();
        let poke = state.sched.freeze(cpu.index(), now_ns() + duration.as_nanos() as u64);
        self.host.changed.notify_all();
        drop(state);
        self.host.poke(poke);
    }

    /// Ends the halt of `cpu`, or makes its next one return at once. Nothing for a CPU that the guest does not have.
    pub fn kick(&self, cpu: CpuId) {
        if cpu.index() >= self.host.vcpus.len() {
            return;
        }
        let mut state = self.host.lock();
        let poke = self.host.kick_locked(&mut state, cpu.index(), now_ns());
        drop(state);
        self.host.poke(poke);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.host.lock();
        if !is_over(&state) {
            self.host.abandon_locked(&mut state);
            drop(state);
            self.wait_until_parked();
        }
    }
}

fn is_over(state: &HostState) -> bool {
    state.abandoned || state.sched.tasks.iter().all(|task| task.state == State::Finished)
}

/// Makes the calling thread the vCPU `id`, bound to `slot`, not running yet.
fn enter_place(host: &'static Host, id: usize, slot: usize) -> Result<Place, ConfigError> {
    let tid = gettid().as_raw();
    let vcpu = &host.vcpus[id];
    vcpu.tid.store(tid, Relaxed);
    host.bind(0, slot).map_err(ConfigError::Affinity)?;
    let timer = TickTimer::new(tid).map_err(ConfigError::Signals)?;
    StealRecord::of(vcpu.cpu).register();
    Ok(Place { host, vcpu, timer })
}

fn be_vcpu(place: Place, guest: &(impl Fn(CpuId) + ?Sized)) {
    CONTEXT.with(|context| {
        context.cpu.set(Some(place.vcpu.cpu));
        context.place.set(Some(place));
        context.enter();
        place.begin();
        context.leave(|| place.late_tick());

        let result = catch_unwind(AssertUnwindSafe(|| guest(place.vcpu.cpu)));

        context.enter();
        place.timer.delete();
        let died = result.err().map(panic_message);
        context.place.set(None);
        context.cpu.set(None);
        place.end(died);
        place.vcpu.final_cpu_ns.store(thread_cpu_ns(), Relaxed);
        place.vcpu.tid.store(0, Relaxed);
    });
}

/// Ends freezes in time, and the guest when it hangs.
fn be_clock(host: &'static Host) {
    become_urgent();
    let mut all_halted_since_ns = None;
    let mut state = host.lock();
    while !is_over(&state) {
        let now_ns = now_ns();
        while let Some(id) = state.sched.thaw_due(now_ns) {
            let poke = state.sched.thaw(id, now_ns);
            host.poke(poke);
        }
        let end_ns = match &state.died {
            Some(death) => death.at_ns + AFTER_DEATH_LIMIT.as_nanos() as u64,
            None => state.started_ns + host.config.limit.as_nanos() as u64,
        };
        let waited_since_ns = if state.sched.all_halted() {
            *all_halted_since_ns.get_or_insert(now_ns)
        } else {
            all_halted_since_ns = None;
            now_ns
        };
        let lost_wake = Duration::from_nanos(now_ns - waited_since_ns) >= ALL_HALTED_LIMIT;
        if lost_wake || now_ns >= end_ns {
            host.abandon_locked(&mut state);
            return;
        }
        let until_thaw = Duration::from_nanos(state.sched.next_thaw_ns().saturating_sub(now_ns));
        let wait = until_thaw.min(LOOK_EVERY);
        state = host.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Asks for real-time priority, so that a freeze ends in time also while vCPUs use all CPUs. Without the right to it, freezes
/// end a little late.
fn become_urgent() {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: a live local.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
}
