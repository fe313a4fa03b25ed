//! Contention for one lock at several degrees of overcommit, at native speed: a table for tuning.
//!
//! `cargo run --release -p pvhost --bin sweep -- --locks pvlock,spin --vcpus 2,4,8 --cpus 2`

use core::time::Duration;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use pvhost::contend::{Contended, Mix, Sections, contend};
use pvhost::locks::{Pvlock, PvlockMutex, PvlockRwLock, Spin, SpinRelax, SpinRwLock, TestAndSet, Ticket};
use pvhost::machine::Precedence;
use pvhost::{Abilities, Config, Slices};
use pvlock::stats;

/// Contention for one lock under real preemption: every lock at every number of vCPUs, in interleaved rounds.
#[derive(Debug, Parser)]
struct Args {
    /// Locks to measure.
    #[arg(long, value_delimiter = ',', default_value = "pvlock,spin,ticket")]
    locks: Vec<LockName>,
    /// Numbers of vCPUs.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,16")]
    vcpus: Vec<usize>,
    /// Physical CPUs.
    #[arg(long, default_value_t = 2)]
    cpus: usize,
    /// Length of a time slice in µs.
    #[arg(long, default_value_t = 3000)]
    quantum_us: u64,
    /// All physical CPUs switch at the same time.
    #[arg(long)]
    lock_step: bool,
    /// CPU time that an exit to the host costs, in ns.
    #[arg(long, default_value_t = 1000)]
    exit_ns: u64,
    /// Length of one run in ms.
    #[arg(long, default_value_t = 1000)]
    ms: u64,
    /// Runs of each kind.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Critical section, in iterations of 4 cycles.
    #[arg(long, default_value_t = 40)]
    cs: u32,
    /// Non-critical section, in iterations of 4 cycles.
    #[arg(long, default_value_t = 40)]
    ncs: u32,
    /// Repeat a run, three times at most, during which other programs used more than so many CPUs.
    #[arg(long, default_value_t = 0.12)]
    max_foreign: f64,
    /// Take precedence over all other sessions of the machine while measuring (needs root).
    #[arg(long)]
    first: bool,
    /// Who reads and who writes.
    #[arg(long, value_enum, default_value = "writes")]
    mix: MixName,
    /// What the guest may use.
    #[arg(long, value_delimiter = ',', default_value = "preempted,yield,halt")]
    abilities: Vec<Ability>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LockName {
    Pvlock,
    Tas,
    Spin,
    SpinRelax,
    Ticket,
    PvlockMutex,
    PvlockRwlock,
    SpinRwlock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MixName {
    /// Everybody writes.
    Writes,
    /// Everybody writes every tenth time.
    TenthWrites,
    /// Everybody reads.
    Reads,
    /// One vCPU writes, all others read.
    LoneWriter,
    /// One vCPU reads, all others write.
    LoneReader,
}

impl From<MixName> for Mix {
    fn from(name: MixName) -> Self {
        match name {
            MixName::Writes => Self::Writes,
            MixName::TenthWrites => Self::TenthWrites,
            MixName::Reads => Self::Reads,
            MixName::LoneWriter => Self::LoneWriter,
            MixName::LoneReader => Self::LoneReader,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ability {
    None,
    Preempted,
    Yield,
    Halt,
}

/// The runs of one lock at one number of vCPUs.
struct Row {
    lock: LockName,
    vcpus: usize,
    runs: Vec<(Contended, stats::Snapshot)>,
    /// Runs that were repeated because of foreign load.
    set_aside: usize,
}

/// How often a run is repeated because of foreign load, before the last one is taken as it is.
const REPEATS: usize = 3;

type Error = Box<dyn core::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match sweep(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sweep: {error}");
            ExitCode::FAILURE
        }
    }
}

fn sweep(args: &Args) -> Result<(), Error> {
    let _precedence = args.first.then(Precedence::take);
    let mut rows: Vec<Row> = Vec::new();
    for &vcpus in &args.vcpus {
        rows.extend(args.locks.iter().map(|&lock| Row { lock, vcpus, runs: Vec::new(), set_aside: 0 }));
    }
    for _ in 0..args.rounds {
        for row in &mut rows {
            row.runs.push(loop {
                stats::reset();
                let result = measure(args, row.lock, row.vcpus)?;
                if result.foreign_cpus <= args.max_foreign || row.set_aside == REPEATS * (row.runs.len() + 1) {
                    break (result, stats::total());
                }
                row.set_aside += 1;
            });
        }
    }
    println!(
        "{:<13} {:>5} {:>9} {:>7} {:>9} {:>9} {:>12} {:>9} {:>8} {:>9}",
        "lock", "vcpus", "Mops/s", "stdev", "fairness", "min op/s", "longest ms", "cpu used", "foreign", "set aside"
    );
    rows.iter().for_each(print_row);
    Ok(())
}

fn measure(args: &Args, lock: LockName, vcpus: usize) -> Result<Contended, Error> {
    let mut config = Config::new(vcpus, args.cpus);
    config.quantum = Duration::from_micros(args.quantum_us);
    config.slices = if args.lock_step { Slices::LockStep } else { Slices::FreeRunning };
    config.exit_cost = Duration::from_nanos(args.exit_ns);
    config.abilities = args.abilities.iter().fold(Abilities::empty(), |all, ability| {
        all | match ability {
            Ability::None => Abilities::empty(),
            Ability::Preempted => Abilities::PREEMPTED,
            Ability::Yield => Abilities::YIELD,
            Ability::Halt => Abilities::HALT,
        }
    });
    let sections = Sections { critical: args.cs, non_critical: args.ncs, mix: args.mix.into() };
    let duration = Duration::from_millis(args.ms);
    config.limit = duration * 2 + Duration::from_secs(60);
    match lock {
        LockName::Pvlock => contend::<Pvlock>(config, sections, duration),
        LockName::Tas => contend::<TestAndSet>(config, sections, duration),
        LockName::Spin => contend::<Spin>(config, sections, duration),
        LockName::SpinRelax => contend::<SpinRelax>(config, sections, duration),
        LockName::Ticket => contend::<Ticket>(config, sections, duration),
        LockName::PvlockMutex => contend::<PvlockMutex>(config, sections, duration),
        LockName::PvlockRwlock => contend::<PvlockRwLock>(config, sections, duration),
        LockName::SpinRwlock => contend::<SpinRwLock>(config, sections, duration),
    }
}

fn print_row(row: &Row) {
    let of = |figure: fn(&Contended) -> f64| median(row.runs.iter().map(|(run, _)| figure(run)).collect());
    let least = |run: &Contended| run.per_vcpu.iter().min().copied().unwrap_or(0) as f64 / run.elapsed.as_secs_f64();
    let rates: Vec<f64> = row.runs.iter().map(|(run, _)| run.ops_per_s()).collect();
    println!(
        "{:<13} {:>5} {:>9.3} {:>7.3} {:>9.2} {:>9.0} {:>12.1} {:>9.2} {:>8.2} {:>9}",
        row.lock.to_possible_value().map_or(String::new(), |name| name.get_name().to_owned()),
        row.vcpus,
        of(Contended::ops_per_s) / 1e6,
        stdev(&rates) / 1e6,
        of(Contended::fairness),
        of(least),
        of(|run| run.waits.longest_ns as f64 / 1e6),
        of(|run| run.cpu_burned),
        of(|run| run.foreign_cpus),
        row.set_aside,
    );
    let Some((last, counters)) = row.runs.last() else { return };
    print_counts("host", last.report.total().entries());
    print_counts("lock", counters.entries());
}

fn print_counts(whose: &str, counts: impl Iterator<Item = (&'static str, u64)>) {
    let counts: Vec<String> =
        counts.filter(|&(_, count)| count != 0).map(|(name, count)| format!("{name} {count}")).collect();
    if !counts.is_empty() {
        println!("           {whose}: {}", counts.join(", "));
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// Standard deviation of a sample; 0 for fewer than two values.
fn stdev(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64).sqrt()
}
