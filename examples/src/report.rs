//! The lines of one measured interval.

use pvlock::stats::Snapshot;
use pvlock_rt::{println, tsc_khz};

use crate::contention::{Interval, Outcome};
use crate::guest::Failure;

/// Whether each vCPU gets a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// One line per interval.
    Summary,
    /// And one per vCPU.
    PerCpu,
}

/// Prints the result of an interval.
///
/// # Errors
/// When the protected counter is wrong.
pub fn print_outcome(interval: &Interval, outcome: &Outcome, detail: Detail) -> Result<(), Failure> {
    let Interval { round, lock, vcpus, .. } = interval;
    println!(
        "result round={round} lock={lock} vcpus={vcpus} acquisitions={} handoffs={} min={} max={} max_wait_cycles={} sum={}",
        outcome.acquisitions(),
        outcome.handoffs,
        outcome.per_cpu.iter().min().unwrap_or(&0),
        outcome.per_cpu.iter().max().unwrap_or(&0),
        outcome.max_wait_cycles,
        if outcome.sum_ok { "ok" } else { "wrong" }
    );
    if detail == Detail::PerCpu {
        for (cpu, acquisitions) in outcome.per_cpu.iter().enumerate() {
            println!("cpu round={round} lock={lock} cpu={cpu} acquisitions={acquisitions}");
        }
    }
    if outcome.sum_ok { Ok(()) } else { Err(Failure::WrongSum(*lock)) }
}

/// Prints the same for people.
pub fn print_sentence(interval: &Interval, outcome: &Outcome) {
    let per_ms = |count: u64| count * tsc_khz() / outcome.cycles.max(1);
    println!(
        "# {:<7} {:>3} vCPUs: {:>7} acquisitions/ms, {:>7} hand-offs/ms, longest wait {} us",
        interval.lock.name(),
        interval.vcpus,
        per_ms(outcome.acquisitions()),
        per_ms(outcome.handoffs),
        outcome.max_wait_cycles * 1000 / tsc_khz()
    );
}

/// Prints how far pvlock's counters moved in an interval.
pub fn print_counters(interval: &Interval, before: &Snapshot, after: &Snapshot) {
    let Interval { round, lock, .. } = interval;
    let mut line = alloc::format!("counters round={round} lock={lock}");
    for ((name, before), (_, after)) in before.entries().zip(after.entries()) {
        line += &alloc::format!(" {name}={}", after.wrapping_sub(before));
    }
    println!("{line}");
}
