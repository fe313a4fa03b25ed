//! The machine underneath: its cycle counter, and what else is running on it.

use std::fs::read_to_string;
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// The time-stamp counter.
#[inline]
pub fn rdtsc() -> u64 {
    // SAFETY: every x86-64 processor has it, and user space may read it unless the system forbids it on purpose.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// CPU time used by everything but this process, from [`begin`](Self::begin) to [`end`](Self::end).
#[derive(Debug)]
pub struct ForeignLoad {
    begun: Instant,
    machine_s: f64,
    own_s: f64,
}

impl ForeignLoad {
    /// Begins to measure.
    pub fn begin() -> Self {
        Self { begun: Instant::now(), machine_s: machine_cpu_s(), own_s: own_cpu_s() }
    }

    /// CPUs' worth of foreign load since the beginning. Linux counts in ticks of 10 ms, so ask after 0.2 s or more.
    pub fn end(&self) -> f64 {
        let foreign_s = (machine_cpu_s() - self.machine_s) - (own_cpu_s() - self.own_s);
        (foreign_s / self.begun.elapsed().as_secs_f64()).max(0.0)
    }
}

/// CPU time of the whole machine, in s: the fields of the first line of /proc/stat that are not idle. 0 where there is none.
fn machine_cpu_s() -> f64 {
    /// USER_HZ, fixed in Linux's interface on x86.
    const TICKS_PER_S: f64 = 100.0;
    /// idle and iowait in proc_stat(5), counted from 0; guest times (8, 9) are in user time already.
    const NOT_BUSY: [usize; 4] = [3, 4, 8, 9];
    let stat = read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let busy =
        fields.enumerate().filter(|(i, _)| !NOT_BUSY.contains(i)).filter_map(|(_, ticks)| ticks.parse::<f64>().ok());
    busy.sum::<f64>() / TICKS_PER_S
}

fn own_cpu_s() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| {
        (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6
    })
}
