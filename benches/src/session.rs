//! Carrying out the plan: rounds in rotated order, samples with foreign load repeated, everything told as it happens.

use core::time::Duration;

use pvhost::Abilities;
use pvhost::contend::{Mix, Sections};
use pvhost::machine::ForeignLoad;
use pvlock_bench_protocol::{Event, FOREIGN_LIMIT, Metric, Options, Policy, Reading, Sample, Slices, Subject};

use crate::crew::{Crew, Host};
use crate::locks::{self, candidate};
use crate::plan::{Block, Job};
use crate::{Error, harness, s1, seeds};

/// How often one sample is repeated.
const REPEATS: u32 = 2;

/// Measures `blocks` and hands what happens to `tell`. At most half as many samples again are taken because of foreign load,
/// so that a busy machine makes a run longer, not endless.
///
/// # Errors
/// When a host or thread cannot be started, a guest hangs, or exclusion is broken; and when `tell` fails.
pub fn run(options: &Options, blocks: &[Block], mut tell: impl FnMut(Event) -> Result<(), Error>) -> Result<(), Error> {
    let samples: usize = blocks.iter().map(|block| block.jobs.len() * block.rounds as usize).sum();
    let length = |block: &Block| block.jobs.iter().map(|job| job.length).sum::<Duration>() * block.rounds;
    tell(Event::Plan { samples, seconds: blocks.iter().map(length).sum::<Duration>().as_secs_f64() })?;
    if blocks.iter().flat_map(|block| &block.jobs).any(|job| job.cell.metric == Metric::S1Dependent) {
        s1::codes()?.into_iter().try_for_each(|code| tell(Event::Code(code)))?;
    }
    let mut repeats_left = samples / 2;
    for block in blocks {
        for round in 0..block.rounds {
            let mut jobs = block.jobs.clone();
            // Another one goes first each time, so that nobody always follows the same predecessor's heat.
            let turn = round as usize * jobs.len() / block.rounds as usize;
            jobs.rotate_left(turn);
            for job in &jobs {
                for repeat in 0..=REPEATS {
                    let seconds = if repeat == 0 { job.length.as_secs_f64() } else { 0.0 };
                    tell(Event::Begin { cell: job.cell, seconds })?;
                    let load = ForeignLoad::begin();
                    let reading = measure(options, job)?;
                    let foreign_cpus = load.end();
                    tell(Event::Sample(Sample { cell: job.cell, round, foreign_cpus, reading }))?;
                    if foreign_cpus <= FOREIGN_LIMIT || repeats_left == 0 || repeat == REPEATS {
                        break;
                    }
                    repeats_left -= 1;
                }
            }
        }
    }
    Ok(())
}

fn measure(options: &Options, job: &Job) -> Result<Reading, Error> {
    let &Job { cell, length } = job;
    let lock = match cell.subject {
        Subject::Limit(limit) => return harness::limit(limit, length),
        Subject::Form(form) => return s1::measure(cell.metric, form, length),
        Subject::Policy(policy) => return contend_waiting(policy, job),
        Subject::Seed(case) => {
            return seeds::measure(case, &cell, Duration::from_micros(options.quantum_us), length);
        }
        Subject::Lock(name) => candidate(name),
    };
    let crew = Crew::new(lock.host, cell.vcpus, cell.cpus, Duration::from_micros(options.quantum_us));
    let contend = |mix| {
        let sections = Sections { critical: cell.cs, non_critical: cell.ncs, mix };
        lock.harness.contended(&crew, sections, length)
    };
    match cell.metric {
        Metric::Uncontended => lock.harness.uncontended(lock.host, length),
        Metric::Handoff => lock.harness.handoff(lock.host, length),
        Metric::FrozenOwner => lock.harness.frozen_owner(&crew, length),
        Metric::Overcommit | Metric::Fairness | Metric::Sections | Metric::Awareness | Metric::Mutex => {
            contend(Mix::Writes)
        }
        Metric::RwLock => contend(Mix::TenthWrites),
        Metric::ReadRead => contend(Mix::Reads),
        Metric::LoneWriter => contend(Mix::LoneWriter),
        Metric::LoneReader => contend(Mix::LoneReader),
        Metric::Policy => Err("a lock is no way to wait".into()),
        Metric::Seed => Err("a lock is none of the five systems".into()),
        Metric::S1Dependent | Metric::S1LiveRegisters => Err("a lock is no form of vcpu_is_preempted".into()),
    }
}

/// Contention by `policy` on the host of the job.
fn contend_waiting(policy: Policy, &Job { cell, length }: &Job) -> Result<Reading, Error> {
    let host = cell.host.ok_or("a policy is measured on a host of some kind")?;
    let slices = match host.slices {
        Slices::Free => pvhost::Slices::FreeRunning,
        Slices::LockStep => pvhost::Slices::LockStep,
    };
    let quantum = Duration::from_micros(host.quantum_us);
    let exit_cost = Duration::from_micros(host.exit_us);
    let crew = Crew { slices, exit_cost, ..Crew::new(Host::Pvhost(Abilities::all()), cell.vcpus, cell.cpus, quantum) };
    let sections = Sections { critical: cell.cs, non_critical: cell.ncs, mix: Mix::Writes };
    locks::policy(policy).contended(&crew, sections, length)
}
