//! One row: all samples of one thing, summed up.

use std::collections::BTreeMap;

use pvlock_bench_protocol::{
    Cell, Code, FOREIGN_LIMIT, Form, Host, Limit, LockName, Metric, Policy, Reading, Sample, SeedCase, Subject,
};
use serde::Serialize;

use crate::report;
use crate::summary::{self, Summary};

/// One row of the result. What `stdev` is about is the first of its values.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub metric: Metric,
    #[serde(flatten)]
    pub subject: Named,
    pub vcpus: usize,
    pub cpus: usize,
    /// vCPUs per CPU, where that is a whole number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overcommit: Option<usize>,
    /// Critical and non-critical section, in steps of about 4 cycles.
    pub cs: u32,
    pub ncs: u32,
    /// The host, if it was not the usual one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    #[serde(flatten)]
    pub values: Values,
    pub stdev: f64,
    pub runs: usize,
    /// Samples left out because of other work on this machine.
    pub set_aside: usize,
    /// CPUs used by other work during the samples that were used; their median.
    pub foreign_cpus: f64,
}

/// Whom a row is about, in JSON under the name of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Named {
    Lock(LockName),
    Limit(Limit),
    Form(Form),
    Policy(Policy),
    Seed(SeedCase),
}

impl From<Subject> for Named {
    fn from(subject: Subject) -> Self {
        match subject {
            Subject::Lock(lock) => Self::Lock(lock),
            Subject::Limit(limit) => Self::Limit(limit),
            Subject::Form(form) => Self::Form(form),
            Subject::Policy(policy) => Self::Policy(policy),
            Subject::Seed(case) => Self::Seed(case),
        }
    }
}

/// What was read. Medians over the samples, unless it says otherwise.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Values {
    Cost {
        cycles: f64,
        ns: f64,
        /// What the loop is made of, where that was asked.
        #[serde(flatten)]
        code: Option<Instructions>,
    },
    Handoff {
        ops_per_s: f64,
        handoffs_per_s: f64,
    },
    Contended(Contended),
    Work {
        units_per_s: f64,
        /// Events counted by the library and by the host, all samples together.
        counters: BTreeMap<String, u64>,
    },
    FrozenOwner {
        /// CPUs that the waiters burned.
        burned_cpus: f64,
    },
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Instructions {
    pub instructions: u64,
    pub stack_accesses: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Contended {
    pub ops_per_s: f64,
    /// Acquisitions of the least served over those of the best served, within one sample.
    pub fairness: f64,
    /// Acquisitions per second of the least served.
    pub min_vcpu_ops_per_s: f64,
    /// The longest wait of all in any sample.
    pub max_wait_us: f64,
    /// Acquisitions per second of the first vCPU.
    pub first_ops_per_s: f64,
    /// The longest wait of the first vCPU in any sample.
    pub first_max_wait_us: f64,
    /// `[i]` counts waits of 2^i to 2^(i+1) ns, all samples together.
    pub wait_buckets: Vec<u64>,
    /// CPU time used over CPU time there was.
    pub cpu_used: f64,
    /// Events counted by the lock and by the host, all samples together.
    pub counters: BTreeMap<String, u64>,
}

impl Row {
    /// Sums up all samples of one cell: of each round the least disturbed one, and of those the disturbed ones only if the others
    /// are fewer than half.
    pub fn new(cell: &Cell, samples: &[&Sample], codes: &[Code]) -> Option<Self> {
        let mut of_round: BTreeMap<u32, &Sample> = BTreeMap::new();
        for &sample in samples {
            let best = of_round.entry(sample.round).or_insert(sample);
            if sample.foreign_cpus < best.foreign_cpus {
                *best = sample;
            }
        }
        let all: Vec<&Sample> = of_round.into_values().collect();
        let clean: Vec<&Sample> = all.iter().copied().filter(|sample| sample.foreign_cpus <= FOREIGN_LIMIT).collect();
        let used = if report::enough(clean.len(), all.len()) { &clean[..] } else { &all };
        let Summary { stdev, runs, .. } = Summary::of(&used.iter().map(|sample| leading(sample)).collect::<Vec<_>>())?;
        let whole = cell.vcpus.is_multiple_of(cell.cpus);
        Some(Self {
            metric: cell.metric,
            subject: cell.subject.into(),
            vcpus: cell.vcpus,
            cpus: cell.cpus,
            overcommit: whole.then_some(cell.vcpus / cell.cpus),
            cs: cell.cs,
            ncs: cell.ncs,
            host: cell.host,
            values: Values::of(cell, used, codes)?,
            stdev,
            runs,
            set_aside: samples.len() - used.len(),
            foreign_cpus: summary::median(&used.iter().map(|sample| sample.foreign_cpus).collect::<Vec<_>>())?,
        })
    }

    /// Whether other work may have spoiled the row.
    pub fn is_disturbed(&self) -> bool {
        self.foreign_cpus > FOREIGN_LIMIT
    }

    /// The lock, if it is about one.
    pub fn lock(&self) -> Option<LockName> {
        match self.subject {
            Named::Lock(lock) => Some(lock),
            _ => None,
        }
    }

    /// What it read under contention, if it is about that.
    pub fn contended(&self) -> Option<&Contended> {
        match &self.values {
            Values::Contended(contended) => Some(contended),
            _ => None,
        }
    }

    /// The time of one operation in ns, if that was read.
    pub fn ns(&self) -> Option<f64> {
        match self.values {
            Values::Cost { ns, .. } => Some(ns),
            _ => None,
        }
    }

    /// The first of its values.
    pub fn value(&self) -> f64 {
        match &self.values {
            Values::Cost { cycles, .. } => *cycles,
            Values::Handoff { ops_per_s, .. } => *ops_per_s,
            Values::Contended(contended) => contended.ops_per_s,
            Values::Work { units_per_s, .. } => *units_per_s,
            Values::FrozenOwner { burned_cpus } => *burned_cpus,
        }
    }
}

/// The value of a sample that the standard deviation is about.
fn leading(sample: &Sample) -> f64 {
    match &sample.reading {
        Reading::Cost { cycles, .. } => *cycles,
        Reading::Handoff { ops_per_s, .. } => *ops_per_s,
        Reading::Contended { per_vcpu, seconds, .. } => per_vcpu.iter().sum::<u64>() as f64 / seconds,
        Reading::Work { units, seconds, .. } => *units as f64 / seconds,
        Reading::FrozenOwner { burned } => *burned,
    }
}

impl Values {
    fn of(cell: &Cell, samples: &[&Sample], codes: &[Code]) -> Option<Self> {
        let first = summary::median(&samples.iter().map(|sample| leading(sample)).collect::<Vec<_>>())?;
        Some(match samples.first()?.reading {
            Reading::Cost { .. } => Self::Cost {
                cycles: first,
                ns: median_of(
                    samples,
                    |reading| if let Reading::Cost { ns, .. } = reading { Some(*ns) } else { None },
                )?,
                code: codes
                    .iter()
                    .find(|code| code.metric == cell.metric && Subject::from(code.form) == cell.subject)
                    .map(|code| Instructions { instructions: code.instructions, stack_accesses: code.stack_accesses }),
            },
            Reading::Handoff { .. } => Self::Handoff {
                ops_per_s: first,
                handoffs_per_s: median_of(samples, |reading| match reading {
                    Reading::Handoff { handoffs_per_s, .. } => Some(*handoffs_per_s),
                    _ => None,
                })?,
            },
            Reading::Work { .. } => Self::Work {
                units_per_s: first,
                counters: sum_of_counters(samples.iter().filter_map(|sample| match &sample.reading {
                    Reading::Work { counters, .. } => Some(counters),
                    _ => None,
                })),
            },
            Reading::FrozenOwner { .. } => Self::FrozenOwner { burned_cpus: first },
            Reading::Contended { .. } => Self::Contended(Contended::of(samples, first)?),
        })
    }
}

impl Contended {
    fn of(samples: &[&Sample], ops_per_s: f64) -> Option<Self> {
        let mut contended = Self {
            ops_per_s,
            fairness: median_of(samples, |reading| match reading {
                Reading::Contended { per_vcpu, .. } => fairness(per_vcpu),
                _ => None,
            })?,
            min_vcpu_ops_per_s: median_of(samples, |reading| match reading {
                Reading::Contended { per_vcpu, seconds, .. } => Some(*per_vcpu.iter().min()? as f64 / seconds),
                _ => None,
            })?,
            cpu_used: median_of(samples, |reading| match reading {
                Reading::Contended { cpu_used, .. } => Some(*cpu_used),
                _ => None,
            })?,
            first_ops_per_s: median_of(samples, |reading| match reading {
                Reading::Contended { per_vcpu, seconds, .. } => Some(*per_vcpu.first()? as f64 / seconds),
                _ => None,
            })?,
            max_wait_us: 0.0,
            first_max_wait_us: 0.0,
            wait_buckets: vec![],
            counters: sum_of_counters(samples.iter().filter_map(|sample| match &sample.reading {
                Reading::Contended { counters, .. } => Some(counters),
                _ => None,
            })),
        };
        for sample in samples {
            let Reading::Contended { wait_buckets, longest_wait_us, first_wait_us, .. } = &sample.reading else {
                continue;
            };
            contended.max_wait_us = contended.max_wait_us.max(*longest_wait_us);
            contended.first_max_wait_us = contended.first_max_wait_us.max(*first_wait_us);
            contended.wait_buckets.resize(contended.wait_buckets.len().max(wait_buckets.len()), 0);
            contended.wait_buckets.iter_mut().zip(wait_buckets).for_each(|(sum, count)| *sum += count);
        }
        Some(contended)
    }
}

/// The median of what `value` finds in the samples.
fn median_of(samples: &[&Sample], value: impl Fn(&Reading) -> Option<f64>) -> Option<f64> {
    summary::median(&samples.iter().filter_map(|sample| value(&sample.reading)).collect::<Vec<_>>())
}

fn sum_of_counters<'a>(all: impl Iterator<Item = &'a BTreeMap<String, u64>>) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for (name, count) in all.flatten() {
        *sum.entry(name.clone()).or_insert(0) += count;
    }
    sum
}

fn fairness(per_vcpu: &[u64]) -> Option<f64> {
    let (least, most) = (*per_vcpu.iter().min()?, *per_vcpu.iter().max()?);
    Some(if most > 0 { least as f64 / most as f64 } else { 0.0 })
}

/// What is measured, in words.
pub fn metric_name(metric: Metric) -> &'static str {
    match metric {
        Metric::Uncontended => "uncontended",
        Metric::Handoff => "hand-off",
        Metric::Overcommit => "overcommit",
        Metric::Fairness => "fairness",
        Metric::Sections => "sections",
        Metric::FrozenOwner => "frozen owner",
        Metric::Awareness => "awareness",
        Metric::Mutex => "mutex",
        Metric::RwLock => "rwlock",
        Metric::ReadRead => "two readers",
        Metric::LoneWriter => "lone writer",
        Metric::LoneReader => "lone reader",
        Metric::Policy => "policy",
        Metric::Seed => "five systems",
        Metric::S1Dependent => "vcpu_is_preempted",
        Metric::S1LiveRegisters => "vcpu_is_preempted in a loop",
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn cell(metric: Metric, subject: impl Into<Subject>, vcpus: usize) -> Cell {
        Cell { metric, subject: subject.into(), vcpus, cpus: 2, cs: 40, ncs: 40, host: None }
    }

    pub fn contended(cell: Cell, round: u32, per_vcpu: &[u64], longest_wait_us: f64, foreign_cpus: f64) -> Sample {
        let counters = BTreeMap::from([("halts".to_owned(), 2)]);
        let (per_vcpu, wait_buckets) = (per_vcpu.to_vec(), vec![0, 3, 0, 1]);
        let reading = Reading::Contended {
            per_vcpu,
            seconds: 2.0,
            wait_buckets,
            longest_wait_us,
            first_wait_us: 1.0,
            cpu_used: 1.0,
            counters,
        };
        Sample { cell, round, foreign_cpus, reading }
    }

    #[test]
    fn disturbed_samples_are_set_aside_unless_they_are_the_most() {
        let cell = cell(Metric::Overcommit, LockName::Spin, 4);
        let mut samples = [
            contended(cell, 0, &[10, 20, 20, 20], 5.0, 0.0),
            contended(cell, 1, &[20, 20, 20, 40], 9.0, 0.1),
            contended(cell, 2, &[0, 1, 1, 1], 7000.0, 0.9),
            contended(cell, 2, &[0, 1, 1, 2], 6000.0, 0.8),
        ];
        let sum_up = |samples: &[Sample]| Row::new(&cell, &samples.iter().collect::<Vec<_>>(), &[]).unwrap();
        let row = sum_up(&samples);
        assert_eq!((row.runs, row.set_aside, row.overcommit, row.is_disturbed()), (2, 2, Some(2), false));
        assert_eq!(row.value(), 42.5);
        let contended = row.contended().unwrap();
        assert_eq!((contended.fairness, contended.max_wait_us, contended.counters["halts"]), (0.5, 9.0, 4));
        assert_eq!(contended.wait_buckets, [0, 6, 0, 2]);
        // Of a round that has no undisturbed sample, only the better one.
        samples[0].foreign_cpus = 0.5;
        let row = sum_up(&samples);
        assert_eq!((row.runs, row.set_aside, row.is_disturbed()), (3, 1, true));
        assert_eq!(row.contended().unwrap().max_wait_us, 6000.0);
    }

    #[test]
    fn a_repeat_replaces_what_it_repeats() {
        let cell = cell(Metric::Overcommit, LockName::Spin, 2);
        let disturbed = |round| contended(cell, round, &[1, 1], 900.0, 0.9);
        let samples = [disturbed(0), disturbed(0), contended(cell, 0, &[4, 4], 2.0, 0.0)];
        let row = Row::new(&cell, &samples.iter().collect::<Vec<_>>(), &[]).unwrap();
        assert_eq!((row.value(), row.runs, row.set_aside, row.is_disturbed()), (4.0, 1, 2, false));
    }

    #[test]
    fn the_code_of_a_loop_stands_in_its_row() {
        let cell = cell(Metric::S1Dependent, Form::Routine, 1);
        let sample = Sample { cell, round: 0, foreign_cpus: 0.0, reading: Reading::Cost { cycles: 8.0, ns: 4.0 } };
        let code = |metric, instructions| Code { metric, form: Form::Routine, instructions, stack_accesses: 0 };
        let codes = [code(Metric::S1LiveRegisters, 9), code(Metric::S1Dependent, 12)];
        let json = serde_json::to_value(Row::new(&cell, &[&sample], &codes)).unwrap();
        assert_eq!(
            (&json["form"], &json["instructions"], &json["cycles"]),
            (&"routine".into(), &12.into(), &8.0.into())
        );
    }
}
