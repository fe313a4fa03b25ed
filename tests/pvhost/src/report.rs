//! What a run ends in: a report of every vCPU, or a failure that carries one.

use core::any::Any;
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use pvlock::CpuId;

use crate::clock::{cpu_ns_of, now_ns};
use crate::counters::Counts;
use crate::host::{Host, HostState};
use crate::sched::State;

/// One vCPU at the time of a report.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VcpuReport {
    /// Its number.
    pub cpu: CpuId,
    /// What it was doing.
    pub state: State,
    /// Whether it was frozen.
    pub frozen: bool,
    /// For how long it had been in that state.
    pub since: Duration,
    /// CPU time that its thread has burned, exits included.
    pub cpu_time: Duration,
    /// Time on a physical CPU.
    pub run: Duration,
    /// Time ready to run but not running.
    pub steal: Duration,
    /// Time halted.
    pub halted: Duration,
    /// The protocol step that the guest named last.
    pub step: &'static str,
    /// Instruction at which it was interrupted last.
    pub rip: usize,
    /// What was counted.
    pub counts: Counts,
}

/// All vCPUs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// How long the guest had been running.
    pub elapsed: Duration,
    /// One entry per vCPU, by number.
    pub vcpus: Vec<VcpuReport>,
}

impl Report {
    pub(crate) fn take(host: &Host, state: &HostState) -> Self {
        let now_ns = now_ns();
        let vcpus = host.vcpus.iter().zip(&state.sched.tasks).enumerate().map(|(id, (vcpu, task))| {
            let in_state_ns = state.sched.in_state_ns(id, now_ns);
            let so_far = |counted, total_ns| {
                Duration::from_nanos(if task.state == counted { total_ns + in_state_ns } else { total_ns })
            };
            let tid = vcpu.tid.load(Relaxed);
            let cpu_ns = if tid == 0 { vcpu.final_cpu_ns.load(Relaxed) } else { cpu_ns_of(tid) };
            // SAFETY: null, or from a `&'static Step` (in `step`).
            let step = unsafe { vcpu.step.load(Relaxed).as_ref() };
            VcpuReport {
                cpu: vcpu.cpu,
                state: task.state,
                frozen: task.frozen_until_ns != 0,
                since: Duration::from_nanos(in_state_ns),
                cpu_time: Duration::from_nanos(cpu_ns),
                run: so_far(State::Running, task.run_ns),
                steal: so_far(State::Runnable, task.steal_ns),
                halted: so_far(State::Halted, task.halted_ns),
                step: step.map_or("", |step| step.0),
                rip: vcpu.last_rip.load(Relaxed),
                counts: vcpu.counters.read(),
            }
        });
        let vcpus = vcpus.collect();
        Self { elapsed: Duration::from_nanos(now_ns - state.started_ns), vcpus }
    }

    /// The sum of all vCPUs' counters.
    pub fn total(&self) -> Counts {
        let mut sum = Counts::default();
        self.vcpus.iter().for_each(|vcpu| sum.add(&vcpu.counts));
        sum
    }

    /// CPU time that all vCPUs together have burned.
    pub fn cpu_time(&self) -> Duration {
        self.vcpus.iter().map(|vcpu| vcpu.cpu_time).sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "after {:.3} s:", self.elapsed.as_secs_f64())?;
        for vcpu in &self.vcpus {
            let frozen = if vcpu.frozen { ", frozen" } else { "" };
            write!(
                f,
                "  {}: {:?}{frozen} for {:.1?}, last step \"{}\", rip {:#x}, cpu {:.1?}, run {:.1?}, stolen {:.1?}, halted {:.1?}",
                vcpu.cpu, vcpu.state, vcpu.since, vcpu.step, vcpu.rip, vcpu.cpu_time, vcpu.run, vcpu.steal, vcpu.halted
            )?;
            for (name, count) in vcpu.counts.entries().filter(|&(_, count)| count != 0) {
                write!(f, ", {name} {count}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// What a panic said.
pub(crate) fn panic_message(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => payload.downcast_ref::<&str>().map_or("a panic without a message".into(), ToString::to_string),
    }
}

/// Why a run failed. Its vCPUs are stopped for good; their threads stay parked until the process ends.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The guest ran longer than its limit.
    Hung(Report),
    /// Every vCPU was halted, so that none could wake another: a wake-up was lost.
    AllHalted(Report),
    /// A vCPU panicked.
    Died {
        /// The first one that did.
        cpu: CpuId,
        /// Its message.
        message: String,
        /// All vCPUs.
        report: Report,
    },
}

impl Failure {
    /// All vCPUs.
    pub fn report(&self) -> &Report {
        match self {
            Self::Hung(report) | Self::AllHalted(report) | Self::Died { report, .. } => report,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hung(_) => write!(f, "the guest did not end within its limit; look who holds and who waits, ")?,
            Self::AllHalted(_) => write!(f, "all vCPUs are halted and nobody is left to kick them, ")?,
            Self::Died { cpu, message, .. } => write!(f, "{cpu} died: {message}; ")?,
        }
        write!(f, "{}", self.report())
    }
}

impl core::error::Error for Failure {}
