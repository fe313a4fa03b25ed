//! The machine we run on: its CPUs, and who else uses them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use procfs::CurrentSI;
use procfs::process::Process;

use crate::process::live_children;

/// The CPUs this process may use, in ascending order.
fn allowed_cpus() -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0)).context("cannot read which CPUs this process may use")?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect())
}

/// How many CPUs this process may use.
pub fn cpu_count() -> Result<usize> {
    Ok(allowed_cpus()?.len())
}

/// The first `count` of the CPUs this process may use.
pub fn first_cpus(count: usize) -> Result<CpuSet> {
    let allowed = allowed_cpus()?;
    ensure!(
        count <= allowed.len(),
        "--cpus {count} is more than the {} CPUs of this machine; only the nested back end can make up more",
        allowed.len()
    );
    let mut set = CpuSet::new();
    for &cpu in &allowed[..count] {
        set.set(cpu).context("CPU number too high for an affinity set")?;
    }
    Ok(set)
}

/// A reading of how much CPU time the machine has spent, on us and on everything else.
#[derive(Debug, Clone, Copy)]
pub struct CpuTime {
    at: Instant,
    /// Time all CPUs were busy, or taken away from us by a host below.
    busy: Duration,
    /// Time spent by this process and its children.
    own: Duration,
}

impl CpuTime {
    /// Reads the clocks now. They count in steps of 10 ms as a rule.
    pub fn now() -> Result<Self> {
        let at = Instant::now();
        let total = procfs::KernelStats::current().context("cannot read /proc/stat")?.total;
        let busy = total.user
            + total.nice
            + total.system
            + total.irq.unwrap_or(0)
            + total.softirq.unwrap_or(0)
            + total.steal.unwrap_or(0);
        let mut own = ticks_of(&Process::myself().context("cannot read /proc/self")?).unwrap_or(0);
        for child in live_children() {
            // A child that has just ended is counted by its parent, us, from the moment we wait for it.
            own += Process::new(child).ok().and_then(|process| ticks_of(&process)).unwrap_or(0);
        }
        Ok(Self { at, busy: from_ticks(busy), own: from_ticks(own) })
    }

    /// CPUs used by us and our children between `earlier` and this reading.
    pub fn own_since(&self, earlier: &Self) -> f64 {
        let elapsed = self.at.duration_since(earlier.at).as_secs_f64();
        if elapsed > 0.0 { self.own.saturating_sub(earlier.own).as_secs_f64() / elapsed } else { 0.0 }
    }

    /// CPUs used by everything but us between `earlier` and this reading: 0.5 is half of one CPU.
    pub fn foreign_since(&self, earlier: &Self) -> f64 {
        let elapsed = self.at.duration_since(earlier.at).as_secs_f64();
        let busy = self.busy.saturating_sub(earlier.busy);
        let own = self.own.saturating_sub(earlier.own);
        if elapsed > 0.0 { busy.saturating_sub(own).as_secs_f64() / elapsed } else { 0.0 }
    }
}

fn ticks_of(process: &Process) -> Option<u64> {
    let stat = process.stat().ok()?;
    let waited_for = u64::try_from(stat.cutime).ok()? + u64::try_from(stat.cstime).ok()?;
    Some(stat.utime + stat.stime + waited_for)
}

fn from_ticks(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / procfs::ticks_per_second() as f64)
}

/// Refuses machines that our guests, x86-64 kernels built by the host's own compiler, cannot be built on.
pub fn require_x86_64_linux() -> Result<()> {
    if cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Ok(());
    }
    bail!("the guests are x86-64 kernels built with the host's own target, so they need an x86-64 Linux machine");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_use_is_what_is_left_after_our_own() {
        let start = CpuTime { at: Instant::now(), busy: Duration::from_secs(10), own: Duration::from_secs(3) };
        let end = CpuTime {
            at: start.at + Duration::from_secs(2),
            busy: start.busy + Duration::from_millis(2500),
            own: start.own + Duration::from_secs(2),
        };
        assert!((end.foreign_since(&start) - 0.25).abs() < 1e-9);
        // Clocks of different grain may make us look busier than the machine.
        let odd = CpuTime { own: end.own + Duration::from_secs(9), ..end };
        assert_eq!(odd.foreign_since(&start), 0.0);
    }

    #[test]
    fn more_cpus_than_there_are_is_refused() {
        let count = cpu_count().unwrap();
        assert!(first_cpus(count).is_ok());
        assert!(first_cpus(count + 1).unwrap_err().to_string().contains("more than"));
    }
}
