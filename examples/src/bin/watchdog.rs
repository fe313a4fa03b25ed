//! The busy-spin detector: all vCPUs contend for a foreign lock that spins without even a pause, so that neither the lock nor the host knows who
//! waits; the timer interrupt finds out, and boosts somebody who is preempted.
//!
//! Expect, with more vCPUs than CPUs under KVM: `boosts` above zero with the detector on, none with it off; with a CPU for each vCPU none at
//! all. Every `result` line ends in `sum=ok`.
//!
//! Parameters: `ms` per interval (700), `rounds` (3), `cs` and `ncs`: iterations of arithmetic inside and outside the critical section (2000 and
//! 1000), `tick_us`: time between two timer interrupts (1000), `linger_ms` (0).
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pvlock::boost::SpinDetector;
use pvlock::{CpuId, stats};
use pvlock_examples::contention::Interval;
use pvlock_examples::guest::{self, Failure};
use pvlock_examples::locks::{Awareness, LockName};
use pvlock_examples::params::Params;
use pvlock_examples::report::{self, Detail};
use pvlock_rt::{ExitCode, RtCpu, cpu_count, on_tick, println, run_on_all, start_periodic_timer, stop_timer};

pvlock_rt::entry!(main);

fn main() -> ExitCode {
    guest::run(&["ms", "rounds", "cs", "ncs", "tick_us"], watchdog)
}

static DETECTOR: SpinDetector = SpinDetector::new();
static ON: AtomicBool = AtomicBool::new(false);

fn tick(cpu: CpuId, ip: u64) {
    if ON.load(Relaxed) {
        DETECTOR.tick::<RtCpu>(cpu, ip);
    }
}

fn watchdog(params: &Params) -> Result<(), Failure> {
    let ms = params.number("ms", 700, 1..=60_000)?;
    let rounds = params.number("rounds", 3, 1..=10_000)?;
    let cs = params.number("cs", 2000, 0..=10_000_000)?;
    let ncs = params.number("ncs", 1000, 0..=10_000_000)?;
    let tick_us = params.number("tick_us", 1000, 100..=1_000_000)?;
    on_tick(tick);
    for round in 0..rounds {
        for on in [false, true] {
            ON.store(on, Relaxed);
            run_on_all(&|_| start_periodic_timer(tick_us));
            let (lock, awareness) = (LockName::SpinNoPause, Awareness::On);
            let interval = Interval { round, lock, awareness, vcpus: cpu_count(), ms, cs, ncs };
            let before = stats::total();
            let outcome = lock.with(awareness, interval);
            let after = stats::total();
            run_on_all(&|_| stop_timer());
            report::print_outcome(&interval, &outcome, Detail::Summary)?;
            println!(
                "watchdog round={round} on={} verdicts={} boosts={} yields={} fruitless={} bail_outs={}",
                u8::from(on),
                after.busy_spins - before.busy_spins,
                after.boosts - before.boosts,
                after.yields - before.yields,
                after.fruitless_yields - before.fruitless_yields,
                after.bail_outs - before.bail_outs
            );
            println!(
                "# detector {}: found {} times that a vCPU spins, boosted {} times",
                if on { "on" } else { "off" },
                after.busy_spins - before.busy_spins,
                after.boosts - before.boosts
            );
            report::print_sentence(&interval, &outcome);
        }
    }
    Ok(())
}
