//! What a lock costs alone, and what it costs to pass it on.
//!
//! First lock+unlock on one vCPU with nobody else, then 2, 4, ... vCPUs that do nothing but take the lock. Expect some
//! ten cycles alone on silicon (more under emulation), and hand-off rates that hold as long as no vCPU is preempted.
//!
//! Parameters: `locks` (of `pvlock,spin,ticket,hermit`; all), `ms` per interval (300), `linger_ms` (0).
#![no_std]
#![no_main]

use core::hint::black_box;

use pvlock_examples::contention::{Interval, Section};
use pvlock_examples::guest::{self, Failure};
use pvlock_examples::locks::{Awareness, Lock, WithLock};
use pvlock_examples::params::Params;
use pvlock_examples::report::{self, Detail};
use pvlock_rt::{ExitCode, cpu_count, println, tsc};

pvlock_rt::entry!(main);

fn main() -> ExitCode {
    guest::run(&["locks", "ms"], handoff)
}

fn handoff(params: &Params) -> Result<(), Failure> {
    let locks = params.locks()?;
    let ms = params.number("ms", 300, 1..=60_000)?;
    for &lock in &locks {
        let tenths = lock.with(Awareness::On, Uncontended);
        println!("uncontended lock={lock} cycles={}.{}", tenths / 10, tenths % 10);
    }
    // 2, 4, ... and all of them.
    let doubling = core::iter::successors(Some(2), |n| Some(n * 2)).take_while(|&n| n < cpu_count());
    let steps = doubling.chain((cpu_count() > 1).then(cpu_count));
    for (round, vcpus) in steps.enumerate() {
        for &lock in &locks {
            let interval = Interval { round: round as u64, lock, awareness: Awareness::On, vcpus, ms, cs: 0, ncs: 0 };
            let outcome = lock.with(Awareness::On, interval);
            report::print_outcome(&interval, &outcome, Detail::Summary)?;
            report::print_sentence(&interval, &outcome);
        }
    }
    Ok(())
}

/// Lock+unlock by the boot CPU, the others halted: tenths of a TSC cycle, median of the batches.
struct Uncontended;

impl WithLock for Uncontended {
    type Output = u64;

    fn run<L: Lock>(self) -> u64 {
        const BATCHES: usize = 101;
        const BATCH: u64 = 1000;
        let lock = L::new(Section::default());
        let mut cycles = [0; BATCHES];
        for batch in &mut cycles {
            let start = tsc();
            for _ in 0..BATCH {
                drop(black_box(&lock).lock());
            }
            *batch = tsc() - start;
        }
        cycles.sort_unstable();
        cycles[BATCHES / 2] * 10 / BATCH
    }
}
