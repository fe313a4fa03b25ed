//! The demo's result: one structure, from which the tables, the chart and the JSON are made.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::agreement::Agreement;
use crate::backend::{Kind, KvmCounters};
use crate::overcommit::Sample;
use crate::summary::{Summary, median};

/// The lock under test, and those that it is compared with.
pub const OURS: &str = "pvlock";
pub const BASES: [&str; 3] = ["spin", "ticket", "hermit"];

/// One lock at one degree of overcommit.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub lock: String,
    pub vcpus: usize,
    pub cpus: usize,
    /// vCPUs per physical CPU.
    pub overcommit: usize,
    /// Median of the runs.
    pub ops_per_s: f64,
    /// Sample standard deviation of the runs.
    pub stdev: f64,
    pub runs: usize,
    /// Runs left out because something else kept the machine busy.
    pub set_aside: usize,
    /// Median of the CPUs that everything else on the machine used during these runs.
    pub foreign_cpus: f64,
    /// Acquisitions of the least served vCPU over those of the best served one, all runs together.
    pub fairness: f64,
    /// Acquisitions per second of the least served vCPU.
    pub min_vcpu_ops_per_s: f64,
    /// Longest wait of any vCPU in any run.
    pub max_wait_us: f64,
    /// The lock's own event counters, all runs together.
    pub counters: BTreeMap<String, u64>,
}

/// One boot's counters, ours and KVM's.
#[derive(Debug, Serialize)]
pub struct BootCounters {
    pub vcpus: usize,
    pub kvm: Option<KvmCounters>,
    pub agreement: Vec<Agreement>,
}

/// Everything that one demo brought.
#[derive(Debug, Serialize)]
pub struct Report {
    pub backend: Kind,
    /// Whether the waiting mechanism acted at all and KVM's counters bear ours out.
    pub valid: bool,
    /// What speaks against it.
    pub objections: Vec<String>,
    pub rows: Vec<Row>,
    /// KVM's counters, all boots together.
    pub kvm: KvmCounters,
    pub boots: Vec<BootCounters>,
}

impl Row {
    /// Puts the samples of one lock together; those of a busy machine only if the others are fewer than half.
    pub fn new(lock: &str, vcpus: usize, cpus: usize, samples: &[Sample]) -> Option<Self> {
        let all: Vec<&Sample> = samples.iter().filter(|sample| sample.lock == lock).collect();
        let clean: Vec<&Sample> = all.iter().copied().filter(|sample| sample.is_clean()).collect();
        let used = if enough(clean.len(), all.len()) { &clean } else { &all };
        let summary = Summary::of(&used.iter().map(|sample| sample.ops_per_s).collect::<Vec<_>>())?;
        let mut per_vcpu = vec![0u64; vcpus];
        let mut counters = BTreeMap::new();
        for sample in used {
            for (sum, count) in per_vcpu.iter_mut().zip(&sample.per_vcpu) {
                *sum += count;
            }
            for (name, count) in &sample.counters {
                *counters.entry(name.clone()).or_insert(0) += count;
            }
        }
        let (least, most) = (*per_vcpu.iter().min()? as f64, *per_vcpu.iter().max()? as f64);
        let seconds: f64 =
            used.iter().map(|sample| sample.per_vcpu.iter().sum::<u64>() as f64 / sample.ops_per_s).sum();
        Some(Self {
            lock: lock.to_owned(),
            vcpus,
            cpus,
            overcommit: vcpus / cpus,
            ops_per_s: summary.median,
            stdev: summary.stdev,
            runs: summary.runs,
            set_aside: all.len() - used.len(),
            foreign_cpus: median(&used.iter().map(|sample| sample.foreign).collect::<Vec<_>>())?,
            fairness: if most > 0.0 { least / most } else { 0.0 },
            min_vcpu_ops_per_s: if seconds > 0.0 { least / seconds } else { 0.0 },
            max_wait_us: used.iter().map(|sample| sample.max_wait_us).fold(0.0, f64::max),
            counters,
        })
    }

    fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

/// Whether `clean` samples out of `all` are worth a result.
pub fn enough(clean: usize, all: usize) -> bool {
    clean * 2 >= all && clean > 0
}

/// Whether a waiter ever met a preempted owner and did something about it, at any degree of overcommit.
pub fn mechanism_fired(rows: &[Row]) -> bool {
    let ours = rows.iter().filter(|row| row.lock == OURS && row.overcommit > 1);
    ours.into_iter().any(|row| row.counter("preempted_seen") > 0 && row.counter("yields") + row.counter("halts") > 0)
}

impl Report {
    fn row(&self, lock: &str, overcommit: usize) -> Option<&Row> {
        self.rows.iter().find(|row| row.lock == lock && row.overcommit == overcommit)
    }

    /// All degrees of overcommit, ascending.
    fn degrees(&self) -> Vec<usize> {
        let mut degrees: Vec<usize> = self.rows.iter().map(|row| row.overcommit).collect();
        degrees.sort_unstable();
        degrees.dedup();
        degrees
    }

    /// Throughput of each base lock against ours, as kernel patches show such comparisons.
    pub fn throughput_table(&self) -> String {
        let mut table = plain_table();
        table.set_header(["base lock", "overcommit", "base", "stdev", "pvlock", "stdev", "improvement"]);
        for base in BASES {
            for degree in self.degrees() {
                let (Some(base), Some(ours)) = (self.row(base, degree), self.row(OURS, degree)) else { continue };
                table.add_row([
                    base.lock.clone(),
                    format!("{degree}x"),
                    quantity(base.ops_per_s),
                    quantity(base.stdev),
                    quantity(ours.ops_per_s),
                    quantity(ours.stdev),
                    format!("{:+.1} %", (ours.ops_per_s / base.ops_per_s - 1.0) * 100.0),
                ]);
            }
        }
        align_right(&mut table);
        table.to_string()
    }

    /// How busy other work kept the machine during the runs that were used, at its worst.
    pub fn foreign_cpus(&self) -> f64 {
        self.rows.iter().map(|row| row.foreign_cpus).fold(0.0, f64::max)
    }

    /// Fairness and longest wait, which throughput alone hides.
    pub fn fairness_table(&self) -> String {
        let mut table = plain_table();
        let degrees = self.degrees();
        let columns =
            degrees.iter().flat_map(|degree| [format!("fairness {degree}x"), format!("longest wait {degree}x")]);
        table.set_header(std::iter::once("lock".to_owned()).chain(columns));
        for lock in [OURS].into_iter().chain(BASES) {
            let cells = degrees.iter().flat_map(|&degree| match self.row(lock, degree) {
                Some(row) => [format!("{:.2}", row.fairness), duration(row.max_wait_us)],
                None => [String::new(), String::new()],
            });
            table.add_row(std::iter::once(lock.to_owned()).chain(cells));
        }
        align_right(&mut table);
        table.to_string()
    }
}

/// A table without frills.
pub fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table
}

/// Aligns all columns but the first to the right.
pub fn align_right(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// Three significant digits with k or M.
pub fn quantity(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e6 => (value / 1e6, " M"),
        v if v >= 1e3 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let decimals = match scaled.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{scaled:.decimals$}{unit}")
}

/// A time in µs with the unit that suits it.
pub fn duration(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 1e3 => format!("{:.1} ms", us / 1e3),
        us => format!("{us:.0} us"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(lock: &str, ops_per_s: f64, per_vcpu: &[u64], foreign: f64) -> Sample {
        let counters = BTreeMap::from([("yields".to_owned(), 2), ("preempted_seen".to_owned(), 1)]);
        Sample {
            lock: lock.to_owned(),
            ops_per_s,
            per_vcpu: per_vcpu.to_vec(),
            max_wait_us: 10.0,
            counters,
            foreign,
            own: 0.0,
        }
    }

    #[test]
    fn busy_samples_are_set_aside_unless_they_are_the_most() {
        let mut samples = vec![
            sample("spin", 100.0, &[40, 60], 0.0),
            sample("spin", 120.0, &[60, 60], 0.02),
            sample("spin", 5.0, &[1, 4], 0.9),
            sample("ticket", 7.0, &[3, 4], 0.0),
        ];
        let row = Row::new("spin", 2, 1, &samples).unwrap();
        assert_eq!((row.ops_per_s, row.runs, row.set_aside, row.overcommit), (110.0, 2, 1, 2));
        assert!((row.fairness - 100.0 / 120.0).abs() < 1e-9);
        samples[0].foreign = 0.5;
        let row = Row::new("spin", 2, 1, &samples).unwrap();
        assert_eq!((row.runs, row.set_aside), (3, 0));
        assert!(Row::new("hermit", 2, 1, &samples).is_none());
    }

    #[test]
    fn the_mechanism_counts_only_under_overcommit() {
        let samples = [sample("pvlock", 1.0, &[1, 1], 0.0)];
        let at = |cpus| vec![Row::new("pvlock", 2, cpus, &samples).unwrap()];
        assert!(mechanism_fired(&at(1)) && !mechanism_fired(&at(2)));
    }

    #[test]
    fn quantities_have_three_digits_and_a_unit() {
        let shown: Vec<String> = [0.0, 14.26, 999.0, 10_400.0, 2_114_000.0].map(quantity).into();
        assert_eq!(shown, ["0.00", "14.3", "999", "10.4 k", "2.11 M"]);
        assert_eq!([12.0, 3_400.0, 26_000_000.0].map(duration), ["12 us", "3.4 ms", "26.00 s"]);
    }
}
