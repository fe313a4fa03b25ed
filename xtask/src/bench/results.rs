//! All rows of a run, with the machine they come from: what tables, JSON and page are made of.

use std::time::SystemTime;

use anyhow::Result;
use procfs::Current;
use pvlock_bench_protocol::{Cell, FOREIGN_LIMIT, LockName, Metric, Options, Subject};
use serde::Serialize;

use super::figures::{self, Figure};
use super::policies::NestedRow;
use super::program::{Ended, Measured};
use super::row::{Contended, Named, Row};
use super::sheets;
use crate::machine;

/// Everything that one run brought.
#[derive(Debug, Serialize)]
pub struct Results {
    pub machine: Machine,
    pub options: Options,
    /// Whether all that was planned was measured.
    pub complete: bool,
    pub samples: usize,
    /// Samples left out because of other work on this machine.
    pub set_aside: usize,
    /// Rows that could not be had without such samples.
    pub disturbed_rows: usize,
    pub rows: Vec<Row>,
    /// Ways to wait in a guest of a nested KVM.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nested: Vec<NestedRow>,
    pub figures: Vec<Figure>,
}

/// Where and when it was measured.
#[derive(Debug, Serialize)]
pub struct Machine {
    pub processor: String,
    pub cpus: usize,
    pub kernel: String,
    /// End of the measurement, RFC 3339.
    pub at: String,
}

impl Machine {
    fn this() -> Result<Self> {
        let processor = procfs::CpuInfo::current().ok().and_then(|info| info.model_name(0).map(str::to_owned));
        let kernel = procfs::sys::kernel::Version::current().ok();
        Ok(Self {
            processor: processor.unwrap_or_else(|| "unknown processor".to_owned()),
            cpus: machine::cpu_count()?,
            kernel: kernel.map_or_else(|| "unknown".to_owned(), |v| format!("{}.{}.{}", v.major, v.minor, v.patch)),
            at: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        })
    }
}

impl Results {
    /// Sums up `measured`.
    pub fn new(measured: &Measured, options: &Options) -> Result<Self> {
        let mut cells: Vec<Cell> = measured.samples.iter().map(|sample| sample.cell).collect();
        cells.sort();
        cells.dedup();
        let rows = cells.iter().filter_map(|cell| {
            let samples: Vec<_> = measured.samples.iter().filter(|sample| sample.cell == *cell).collect();
            Row::new(cell, &samples, &measured.codes)
        });
        let rows: Vec<Row> = rows.collect();
        let mut results = Self {
            machine: Machine::this()?,
            options: options.clone(),
            complete: matches!(measured.ended, Ended::Complete),
            samples: measured.samples.len(),
            set_aside: rows.iter().map(|row| row.set_aside).sum(),
            disturbed_rows: rows.iter().filter(|row| row.is_disturbed()).count(),
            rows,
            nested: vec![],
            figures: vec![],
        };
        results.figures = figures::all(&results);
        Ok(results)
    }

    /// The row of `subject`, alone or at the only degree at which it was measured.
    pub fn row(&self, metric: Metric, subject: impl Into<Subject>) -> Option<&Row> {
        let named = Named::from(subject.into());
        self.rows.iter().find(|row| row.metric == metric && row.subject == named)
    }

    /// The row of `lock` at `degree` vCPUs per CPU.
    pub fn at(&self, metric: Metric, lock: LockName, degree: usize) -> Option<&Row> {
        let mut rows = self.rows.iter().filter(|row| row.metric == metric && row.lock() == Some(lock));
        rows.find(|row| row.overcommit == Some(degree))
    }

    /// What `lock` read in the sweep.
    pub fn swept(&self, lock: LockName, degree: usize) -> Option<&Contended> {
        self.at(Metric::Overcommit, lock, degree)?.contended()
    }

    /// The degrees of overcommit at which `metric` was measured, ascending.
    pub fn degrees(&self, metric: Metric) -> Vec<usize> {
        let mut degrees: Vec<usize> =
            self.rows.iter().filter(|row| row.metric == metric).filter_map(|row| row.overcommit).collect();
        degrees.sort_unstable();
        degrees.dedup();
        degrees
    }

    /// The locks of which there are rows of `metric`, in their usual order.
    pub fn locks(&self, metric: Metric) -> Vec<LockName> {
        let has = |lock: &LockName| self.rows.iter().any(|row| row.metric == metric && row.lock() == Some(*lock));
        LockName::ALL.iter().copied().filter(has).collect()
    }

    /// What to know about the samples before believing them.
    pub fn samples_in_words(&self) -> String {
        let mut text = format!(
            "{} samples, {} of them set aside (other work used more than {FOREIGN_LIMIT} CPU meanwhile)",
            self.samples, self.set_aside
        );
        if self.disturbed_rows > 0 {
            text += &format!(
                "; {} of {} rows had too few undisturbed ones and use disturbed ones: marked with !",
                self.disturbed_rows,
                self.rows.len()
            );
        }
        text + "."
    }

    /// The tables and the verdicts, for a terminal.
    pub fn text(&self) -> String {
        let mut parts: Vec<String> = sheets::all(self).iter().map(sheets::Sheet::text).collect();
        if self.figures.iter().any(|figure| figure.held().is_some()) {
            parts.push(figures::sheet(&self.figures).text());
        }
        if !self.complete {
            parts.push("Not all was measured: what is missing above was not.".to_owned());
        }
        parts.push(self.samples_in_words());
        parts.join("\n\n")
    }

    /// Whether no figure that was measured misses its bound.
    pub fn all_held(&self) -> bool {
        self.figures.iter().all(|figure| figure.held() != Some(false))
    }
}
