//! Who contends: vCPUs of a preempting host, or plain threads of this machine's scheduler.

use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use pvhost::{Abilities, Config, Report, Slices};
use pvlock::CpuId;

use crate::Error;

/// Where contenders run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Host {
    /// On pvhost, with what it offers its guest.
    Pvhost(Abilities),
    /// As threads, spread over the CPUs and bound to them.
    Threads,
}

/// Contenders and their CPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crew {
    pub(crate) host: Host,
    pub(crate) vcpus: usize,
    pub(crate) cpus: usize,
    /// Time slice on pvhost; plain threads get the scheduler's.
    pub(crate) quantum: Duration,
    pub(crate) slices: Slices,
    /// What an exit costs on pvhost.
    pub(crate) exit_cost: Duration,
}

impl Crew {
    /// A slice so long that hardly any ends in a sample: for vCPUs with a CPU each.
    const CALM_QUANTUM: Duration = Duration::from_millis(100);

    /// What an exit costs on silicon, or little more.
    const EXIT_COST: Duration = Duration::from_micros(1);

    /// `vcpus` on `cpus`, each slice `quantum` long.
    pub(crate) fn new(host: Host, vcpus: usize, cpus: usize, quantum: Duration) -> Self {
        Self { host, vcpus, cpus, quantum, slices: Slices::FreeRunning, exit_cost: Self::EXIT_COST }
    }

    /// A CPU for each of `vcpus`.
    pub(crate) fn calm(host: Host, vcpus: usize) -> Self {
        Self::new(host, vcpus, vcpus, Self::CALM_QUANTUM)
    }

    /// Calls `work` with each contender's number, all at once, and `supervise` meanwhile. Returns when all have returned, with
    /// what `supervise` gave and the host's report.
    pub(crate) fn run<R>(
        &self,
        work: impl Fn(usize) + Send + Sync + 'static,
        supervise: impl FnOnce() -> R,
    ) -> Result<(R, Option<Report>), Error> {
        match self.host {
            Host::Pvhost(abilities) => {
                let &Self { quantum, slices, exit_cost, .. } = self;
                let config = Config { abilities, quantum, slices, exit_cost, ..Config::new(self.vcpus, self.cpus) };
                let running = pvhost::start(config, move |cpu: CpuId| work(cpu.index()))?;
                let result = supervise();
                Ok((result, Some(running.wait()?)))
            }
            Host::Threads => self.run_threads(work, supervise).map(|result| (result, None)),
        }
    }

    fn run_threads<R>(&self, work: impl Fn(usize) + Send + Sync, supervise: impl FnOnce() -> R) -> Result<R, Error> {
        let cpus = allowed_cpus(self.cpus)?;
        // One for each thread and the supervisor.
        let barrier = Arc::new(Barrier::new(self.vcpus + 1));
        let failure = Mutex::new(None);
        let result = thread::scope(|scope| {
            for index in 0..self.vcpus {
                let (barrier, failure, work, cpu) = (&barrier, &failure, &work, cpus[index % cpus.len()]);
                scope.spawn(move || {
                    let bound = bind(cpu);
                    barrier.wait();
                    let panicked = || catch_unwind(AssertUnwindSafe(|| work(index))).err().map(|_| "a thread panicked");
                    let failed = match bound {
                        Ok(()) => panicked().map(Error::from),
                        Err(errno) => Some(format!("threads cannot be bound to CPUs here ({errno})").into()),
                    };
                    if let Some(failed) = failed {
                        *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failed);
                    }
                });
            }
            barrier.wait();
            supervise()
        });
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(failure) => Err(failure),
            None => Ok(result),
        }
    }
}

/// The numbers of the first `count` CPUs that this process may use.
fn allowed_cpus(count: usize) -> Result<Vec<usize>, Error> {
    let set = sched_getaffinity(Pid::from_raw(0))
        .map_err(|errno| format!("cannot read which CPUs this process may use ({errno})"))?;
    let allowed: Vec<usize> = (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu) == Ok(true)).take(count).collect();
    if allowed.len() < count {
        let message = format!("{count} CPUs are more than the {} that this process may run on", allowed.len());
        return Err(message.into());
    }
    Ok(allowed)
}

/// Binds the calling thread to one CPU.
fn bind(cpu: usize) -> Result<(), nix::Error> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)
}
