//! What locks are worth when vCPUs outnumber CPUs: all vCPUs contend for one lock, for each lock in turn.
//!
//! Expect, with at least twice as many vCPUs as CPUs under KVM: the ticket locks (`ticket`, `hermit`) collapse by a
//! factor of a hundred or so, `spin` keeps much of its rate, and `pvlock` keeps it with everybody served. Every
//! `result` line ends in `sum=ok`.
//!
//! Parameters: `locks` (of `pvlock,spin,ticket,hermit`, all; or `spin-relax`, `spin-no-pause`, or ways to wait, as the crate `pvlock-policies` names them), `ms` per interval (700), `rounds` (3), `cs` and `ncs`:
//! iterations of arithmetic inside and outside the critical section (200 and 100, some 0.4 and 0.2 µs on silicon: the lock
//! is the bottleneck), `aware` (1; 0 keeps pvlock from asking the hypervisor), `verbose` (0; 1 prints a line per vCPU),
//! `linger_ms` (0).
#![no_std]
#![no_main]

use pvlock::stats;
use pvlock_examples::contention::Interval;
use pvlock_examples::guest::{self, Failure};
use pvlock_examples::locks::Awareness;
use pvlock_examples::params::Params;
use pvlock_examples::report::{self, Detail};
use pvlock_rt::{ExitCode, cpu_count};

pvlock_rt::entry!(main);

fn main() -> ExitCode {
    guest::run(&["locks", "ms", "rounds", "cs", "ncs", "aware", "verbose"], overcommit)
}

fn overcommit(params: &Params) -> Result<(), Failure> {
    let locks = params.locks()?;
    let ms = params.number("ms", 700, 1..=60_000)?;
    let rounds = params.number("rounds", 3, 1..=10_000)?;
    let cs = params.number("cs", 200, 0..=10_000_000)?;
    let ncs = params.number("ncs", 100, 0..=10_000_000)?;
    let awareness = if params.number("aware", 1, 0..=1)? == 1 { Awareness::On } else { Awareness::Off };
    let detail = if params.number("verbose", 0, 0..=1)? == 1 { Detail::PerCpu } else { Detail::Summary };

    for round in 0..rounds {
        // Another lock begins each round, so that a drift of the host does not favour one of them.
        for position in 0..locks.len() {
            let lock = locks[(position + round as usize) % locks.len()];
            let interval = Interval { round, lock, awareness, vcpus: cpu_count(), ms, cs, ncs };
            let before = stats::total();
            let outcome = lock.with(awareness, interval);
            let after = stats::total();
            report::print_outcome(&interval, &outcome, detail)?;
            if lock.is_ours() {
                report::print_counters(&interval, &before, &after);
            }
            report::print_sentence(&interval, &outcome);
        }
    }
    Ok(())
}
