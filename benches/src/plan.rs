//! What is measured, how often, for how long: full and quick.

use core::time::Duration;

use pvlock_bench_protocol::{
    Cell, DEGREES, Form, Host, Kind, Limit, LockName, MUTEXES, Metric, Options, Policy, RWLOCKS, SPINLOCKS, SeedCase,
    Slices, Subject, Turned,
};

use crate::seeds::CASES;

/// One sample to take.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// What it belongs to.
    pub cell: Cell,
    /// How long it measures.
    pub length: Duration,
}

/// Jobs that are to be compared: every round takes all of them once.
#[derive(Clone, Debug)]
pub struct Block {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// How many rounds.
    pub rounds: u32,
}

/// Foreign load is counted in ticks of 10 ms, so a shorter sample would not know it.
const SHORT: Duration = Duration::from_millis(250);

/// For how long an owner is frozen, and how many wait for it.
const FREEZE: Duration = Duration::from_secs(1);
const FREEZE_WAITERS: usize = 8;

/// Starvation shows in seconds, not in slices.
const FAIR_LENGTH: Duration = Duration::from_millis(3200);

/// Other sections than the sweep's, critical and non-critical, in steps of 4 cycles: the lock is all there is; it is seldom
/// wanted; it is held for long.
pub const SECTIONS: [(u32, u32); 3] = [(0, 0), (40, 2000), (2000, 200)];

/// All that `options` ask for, in the order in which it is measured.
pub fn plan(options: &Options) -> Vec<Block> {
    let all = [
        (Kind::Uncontended, uncontended(options)),
        (Kind::S1, s1(options, Metric::S1Dependent)),
        (Kind::S1, s1(options, Metric::S1LiveRegisters)),
        (Kind::Handoff, handoff(options)),
        (Kind::Frozen, frozen(options)),
        (Kind::Fairness, fairness(options)),
        (Kind::Sections, sections(options)),
        (Kind::Sweep, sweep(options)),
        (Kind::Mutex, mutex(options)),
        (Kind::Rwlock, rwlock(options)),
        (Kind::Sweep, awareness(options)),
        (Kind::Policies, policies(options)),
        (Kind::Seeds, s1(options, Metric::S1Dependent)),
        (Kind::Seeds, s1(options, Metric::S1LiveRegisters)),
        (Kind::Seeds, seeds(options)),
    ];
    let asked = all.into_iter().filter(|&(kind, _)| options.wants(kind)).map(|(_, block)| block);
    asked.filter(|block| !block.jobs.is_empty()).collect()
}

/// `full` rounds, or `quick` ones, or what the user wants.
fn rounds(options: &Options, full: u32, quick: u32) -> u32 {
    options.runs.unwrap_or(if options.quick { quick } else { full })
}

fn locks(options: &Options, among: &[LockName]) -> Vec<LockName> {
    among.iter().copied().filter(|&lock| options.wants_lock(lock)).collect()
}

fn cell(metric: Metric, subject: impl Into<Subject>, vcpus: usize, cpus: usize) -> Cell {
    Cell { metric, subject: subject.into(), vcpus, cpus, cs: 0, ncs: 0, host: None }
}

/// Differences between locks that do not show while nobody waits are left out here.
fn alone(options: &Options) -> Vec<LockName> {
    let same = [LockName::PvlockUnaware, LockName::PvlockPlain, LockName::SpinThreads];
    locks(options, &SPINLOCKS).into_iter().filter(|lock| !same.contains(lock)).collect()
}

fn uncontended(options: &Options) -> Block {
    let limits = [Limit::CmpxchgStore, Limit::TwoCmpxchg].map(Subject::from);
    // The family's mutex is measured beside its peers, which are among these.
    let locks = alone(options).into_iter().chain(locks(options, &MUTEXES[..1]));
    let subjects = limits.into_iter().chain(locks.map(Subject::from));
    let jobs = subjects.map(|subject| Job { cell: cell(Metric::Uncontended, subject, 1, 1), length: SHORT }).collect();
    Block { jobs, rounds: rounds(options, 9, 3) }
}

fn s1(options: &Options, metric: Metric) -> Block {
    let jobs = Form::ALL.iter().map(|&form| Job { cell: cell(metric, form, 1, 1), length: SHORT }).collect();
    Block { jobs, rounds: rounds(options, 9, 3) }
}

fn handoff(options: &Options) -> Block {
    let subjects =
        [Subject::from(Limit::LineTransfer)].into_iter().chain(alone(options).into_iter().map(Subject::from));
    let mut jobs: Vec<Job> =
        subjects.map(|subject| Job { cell: cell(Metric::Handoff, subject, 2, 2), length: SHORT }).collect();
    if options.cpus < 2 {
        jobs.clear();
    }
    Block { jobs, rounds: rounds(options, 15, 3) }
}

fn frozen(options: &Options) -> Block {
    let full: &[_] = &[LockName::Pvlock, LockName::PvlockNoHalt, LockName::Spin];
    let jobs = locks(options, if options.quick { &full[..1] } else { full })
        .into_iter()
        .map(|lock| Job { cell: cell(Metric::FrozenOwner, lock, FREEZE_WAITERS + 1, options.cpus), length: FREEZE });
    Block { jobs: jobs.collect(), rounds: rounds(options, 3, 1) }
}

/// Contention with `sections`, by all of `locks` at all of `degrees`.
fn contention(
    options: &Options,
    metric: Metric,
    locks: &[LockName],
    degrees: &[usize],
    (cs, ncs): (u32, u32),
    length: Duration,
) -> Vec<Job> {
    let of_degree = |&degree: &usize| {
        locks.iter().map(move |&lock| Job {
            cell: Cell { cs, ncs, ..cell(metric, lock, degree * options.cpus, options.cpus) },
            length,
        })
    };
    degrees.iter().flat_map(of_degree).collect()
}

fn fairness(options: &Options) -> Block {
    let full: &[_] = &[LockName::Pvlock, LockName::Spin];
    let locks = locks(options, if options.quick { &full[..1] } else { full });
    let jobs = contention(options, Metric::Fairness, &locks, &[2, 4, 8], (options.cs, options.ncs), FAIR_LENGTH);
    Block { jobs, rounds: rounds(options, 3, 1) }
}

fn sections(options: &Options) -> Block {
    let locks = locks(options, &[LockName::Pvlock, LockName::Spin, LockName::Ticket, LockName::ParkingLot]);
    let length = if options.quick { SHORT } else { 2 * SHORT };
    let of = |sections| contention(options, Metric::Sections, &locks, &[1, 4], sections, length);
    Block { jobs: SECTIONS.into_iter().flat_map(of).collect(), rounds: rounds(options, 3, 1) }
}

fn sweep(options: &Options) -> Block {
    let locks = locks(options, &SPINLOCKS);
    let (degrees, length): (&[_], _) = if options.quick { (&DEGREES[..4], SHORT) } else { (&DEGREES, 2 * SHORT) };
    let jobs = contention(options, Metric::Overcommit, &locks, degrees, (options.cs, options.ncs), length);
    Block { jobs, rounds: rounds(options, 10, 2) }
}

fn awareness(options: &Options) -> Block {
    let locks = locks(options, &[LockName::Pvlock, LockName::PvlockUnaware]);
    let jobs = contention(options, Metric::Awareness, &locks, &[1], (options.cs, options.ncs), SHORT);
    Block { jobs, rounds: rounds(options, 50, 4) }
}

/// vCPUs per CPU for the rest of the family.
const FAMILY_DEGREES: [usize; 4] = [1, 2, 4, 8];

/// The degree at which one is set against all others.
const LONE_AT: usize = 4;

fn family_length(options: &Options) -> Duration {
    if options.quick { SHORT } else { 8 * SHORT }
}

fn mutex(options: &Options) -> Block {
    let (locks, sections) = (locks(options, &MUTEXES), (options.cs, options.ncs));
    let jobs = contention(options, Metric::Mutex, &locks, &FAMILY_DEGREES, sections, family_length(options));
    Block { jobs, rounds: rounds(options, 5, 1) }
}

fn rwlock(options: &Options) -> Block {
    let (all, sections) = (locks(options, &RWLOCKS), (options.cs, options.ncs));
    let length = family_length(options);
    let mut jobs = contention(options, Metric::RwLock, &all, &FAMILY_DEGREES, sections, length);
    if options.cpus >= 2 {
        let cell = |lock| Cell { cs: options.cs, ..cell(Metric::ReadRead, lock, 2, 2) };
        jobs.extend(all.iter().map(|&lock| Job { cell: cell(lock), length }));
    }
    for metric in [Metric::LoneWriter, Metric::LoneReader] {
        jobs.extend(contention(options, metric, &locks(options, &RWLOCKS[..2]), &[LONE_AT], sections, length));
    }
    Block { jobs, rounds: rounds(options, 5, 1) }
}

/// Slices and exits from those of a quick host to those of a host that is emulated itself, in µs.
const QUANTA_US: [u64; 3] = [1000, 3000, 10_000];
const EXITS_US: [u64; 2] = [1, 50];

/// vCPUs per CPU when ways to wait are compared.
const POLICIES_AT: usize = 4;

fn policies(options: &Options) -> Block {
    let mut jobs = Vec::new();
    for slices in [Slices::Free, Slices::LockStep] {
        for quantum_us in QUANTA_US {
            for exit_us in EXITS_US {
                let host = Some(Host { slices, quantum_us, exit_us });
                jobs.extend(Policy::ALL.iter().map(|&policy| Job {
                    cell: Cell {
                        cs: options.cs,
                        ncs: options.ncs,
                        host,
                        ..cell(Metric::Policy, policy, POLICIES_AT * options.cpus, options.cpus)
                    },
                    length: if options.quick { SHORT } else { 2 * SHORT },
                }));
            }
        }
    }
    Block { jobs, rounds: rounds(options, 5, 1) }
}

/// vCPUs per CPU at which the five systems were measured by their authors.
const SEED_DEGREES: [usize; 4] = [1, 2, 3, 4];

fn seeds(options: &Options) -> Block {
    let length = if options.quick { SHORT } else { 2 * SHORT };
    let mut jobs = Vec::new();
    for (seed, side, load) in CASES {
        for degree in SEED_DEGREES {
            // Off and on side by side, so that whatever disturbs one disturbs the other too.
            jobs.extend(Turned::ALL.iter().map(|&turned| Job {
                cell: cell(Metric::Seed, SeedCase { seed, side, load, turned }, degree * options.cpus, options.cpus),
                length,
            }));
        }
    }
    Block { jobs, rounds: rounds(options, 9, 2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(quick: bool) -> Options {
        let (only, locks, runs) = (vec![], vec![], None);
        Options { only, locks, quick, runs, quantum_us: 3000, cpus: 2, cs: 40, ncs: 40 }
    }

    fn seconds(options: &Options) -> f64 {
        let of = |block: &Block| {
            f64::from(block.rounds) * block.jobs.iter().map(|job| job.length.as_secs_f64()).sum::<f64>()
        };
        plan(options).iter().map(of).sum()
    }

    #[test]
    fn a_full_run_takes_minutes_and_a_quick_one_about_one() {
        assert!((120.0..900.0).contains(&seconds(&options(false))), "{}", seconds(&options(false)));
        assert!((20.0..90.0).contains(&seconds(&options(true))), "{}", seconds(&options(true)));
    }

    #[test]
    fn what_is_not_asked_for_is_not_planned() {
        let only = Options { only: vec![Kind::Handoff], locks: vec![LockName::Spin], ..options(false) };
        let blocks = plan(&only);
        let subjects: Vec<Subject> = blocks.iter().flat_map(|block| &block.jobs).map(|job| job.cell.subject).collect();
        assert_eq!(subjects, [Limit::LineTransfer.into(), Subject::from(LockName::Spin)]);
        assert!(plan(&Options { cpus: 1, ..only }).is_empty(), "a hand-off takes two CPUs");
    }

    #[test]
    fn nothing_is_planned_twice() {
        let mut cells: Vec<Cell> =
            plan(&options(false)).iter().flat_map(|block| &block.jobs).map(|job| job.cell).collect();
        let all = cells.len();
        cells.sort();
        cells.dedup();
        assert_eq!(cells.len(), all);
    }
}
