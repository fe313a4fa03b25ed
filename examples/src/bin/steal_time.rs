//! Who is off a CPU right now: a live table of steal time and of how often each vCPU was seen preempted.
//!
//! Every vCPU is busy watching the others, so there must be two at least. Expect, with more vCPUs than CPUs under KVM:
//! steal time that grows on every vCPU, and many flips of each preempted flag. Where the host offers no steal time the
//! guest says so and ends well.
//!
//! Parameters: `ms` in all (3000), `linger_ms` (0).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pvlock::kvm::{steal_ns, version};
use pvlock::{CpuId, vcpu_is_preempted};
use pvlock_examples::guest::{self, Failure};
use pvlock_examples::host;
use pvlock_examples::params::Params;
use pvlock_rt::{ExitCode, cpu_count, println, run_on_all, tsc, tsc_khz};

pvlock_rt::entry!(main);

/// Milliseconds between two tables.
const TABLE_MS: u64 = 500;
/// Looks at the others between two reports of what was seen.
const BATCH: u32 = 1000;

fn main() -> ExitCode {
    guest::run(&["ms"], steal_time)
}

fn steal_time(params: &Params) -> Result<(), Failure> {
    let ms = params.number("ms", 3000, 1..=600_000)?;
    if cpu_count() < 2 {
        return Err(Failure::TooFewCpus(2));
    }
    if !host::offers_steal_time() {
        println!("# the host offers no steal time: nobody can tell which vCPUs run");
        println!("steal available=no");
        return Ok(());
    }
    let seen: Vec<Seen> = (0..cpu_count()).map(|_| Seen::default()).collect();
    let start = tsc();
    run_on_all(&|me| watch(me, &seen, start, ms * tsc_khz()));
    for (cpu, seen) in cpus().zip(&seen) {
        println!("steal {}", seen.line(cpu));
    }
    Ok(())
}

/// What was seen of one vCPU by the observer that saw most: an observer is blind while it is off the CPU itself.
#[derive(Default)]
struct Seen {
    flips: AtomicU64,
    samples: AtomicU64,
    preempted_samples: AtomicU64,
}

impl Seen {
    fn merge(&self, view: &View) {
        // ORDERING: Relaxed, statistics.
        self.flips.fetch_max(view.flips, Relaxed);
        self.samples.fetch_max(view.samples, Relaxed);
        self.preempted_samples.fetch_max(view.preempted_samples, Relaxed);
    }

    fn line(&self, cpu: CpuId) -> String {
        // The host may be off in the middle of an update when the guest looks.
        let steal_ns = steal_ns(cpu).map_or_else(|_| "unknown".to_string(), |ns| ns.to_string());
        format!(
            "cpu={} steal_ns={steal_ns} version={} flips={} samples={} preempted_samples={}",
            cpu.index(),
            version(cpu),
            self.flips.load(Relaxed),
            self.samples.load(Relaxed),
            self.preempted_samples.load(Relaxed)
        )
    }
}

/// What one observer sees of one vCPU.
#[derive(Clone, Default)]
struct View {
    was_preempted: bool,
    flips: u64,
    samples: u64,
    preempted_samples: u64,
}

impl View {
    fn look(&mut self, cpu: CpuId) {
        let preempted = vcpu_is_preempted(cpu);
        self.flips += u64::from(preempted != self.was_preempted);
        self.samples += 1;
        self.preempted_samples += u64::from(preempted);
        self.was_preempted = preempted;
    }
}

fn cpus() -> impl Iterator<Item = CpuId> {
    (0..cpu_count()).filter_map(|index| CpuId::new(index as u32))
}

/// Watches all other vCPUs for `cycles` from `start` on. The boot CPU prints the tables.
fn watch(me: CpuId, seen: &[Seen], start: u64, cycles: u64) {
    let mut views = alloc::vec![View::default(); cpu_count()];
    let mut next_table = TABLE_MS;
    loop {
        for _ in 0..BATCH {
            cpus().zip(&mut views).filter(|(cpu, _)| *cpu != me).for_each(|(cpu, view)| view.look(cpu));
            core::hint::spin_loop();
        }
        seen.iter().zip(&views).for_each(|(seen, view)| seen.merge(view));
        let elapsed = tsc() - start;
        if elapsed >= cycles {
            break;
        }
        if me.index() == 0 && elapsed >= next_table * tsc_khz() {
            println!("# after {next_table} ms:");
            cpus().zip(seen).for_each(|(cpu, seen)| println!("#   {}", seen.line(cpu)));
            next_table += TABLE_MS;
        }
    }
}
