//! The machine underneath: its cycle counter, and what else is running on it.

use std::fs::{read_to_string, write};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// The time-stamp counter.
#[inline]
pub fn rdtsc() -> u64 {
    // SAFETY: every x86-64 processor has it, and user space may read it unless the system forbids it on purpose.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Precedence over the other programs of a busy machine, for as long as this lives.
///
/// Linux shares CPUs out between sessions first (autogroups) and only inside a session by nice value, so this changes the nice
/// value of the whole session, its shell included, and restores it at the end. Needs root; without it nothing happens, and
/// [`ForeignLoad`] tells.
#[derive(Debug)]
pub struct Precedence {
    session_nice: Option<String>,
}

impl Precedence {
    /// Where Linux shows and takes the session's nice value (sched(7)).
    const AUTOGROUP: &'static str = "/proc/self/autogroup";

    /// Takes precedence.
    pub fn take() -> Self {
        // Shown as "/autogroup-7 nice 0".
        let shown = read_to_string(Self::AUTOGROUP).unwrap_or_default();
        let before = shown.split_whitespace().last().map(str::to_owned);
        Self { session_nice: before.filter(|_| write(Self::AUTOGROUP, "-20").is_ok()) }
    }
}

impl Drop for Precedence {
    fn drop(&mut self) {
        if let Some(nice) = &self.session_nice {
            // It could be written a moment ago.
            let _ = write(Self::AUTOGROUP, nice);
        }
    }
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
