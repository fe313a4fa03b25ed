//! The tables, once for both terminal and page.

use pvlock_bench_protocol::{DEGREES, Form, Limit, LockName, Metric, Policy};

use super::family;
use super::policies;
use super::results::Results;
use super::row::{Contended, Named, Row, Values};
use super::seeds;
use crate::report::{align_right, duration, plain_table, quantity};

/// A table.
#[derive(Debug)]
pub struct Sheet {
    pub title: &'static str,
    /// What the reader must know to read it.
    pub note: String,
    pub header: Vec<String>,
    pub lines: Vec<Line>,
    /// Columns from this one on are text.
    pub left_from: usize,
}

/// One line of a table.
#[derive(Debug)]
pub struct Line {
    pub kind: Kind,
    pub cells: Vec<String>,
    /// Length of a bar that shows the line's value, as a part of the longest one.
    pub bar: Option<f64>,
}

/// What a line is, for its looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Ours,
    Peer,
    Limit,
    Held,
    Missed,
}

impl Kind {
    fn of(row: &Row) -> Self {
        match row.subject {
            Named::Lock(lock) if lock.is_ours() => Self::Ours,
            Named::Form(Form::Routine | Form::Inline) => Self::Ours,
            Named::Limit(_) => Self::Limit,
            Named::Policy(Policy::YieldOnce) => Self::Ours,
            Named::Lock(_) | Named::Form(_) | Named::Policy(_) | Named::Seed(_) => Self::Peer,
        }
    }
}

impl Sheet {
    pub fn new(title: &'static str, header: &[&str]) -> Self {
        let header = header.iter().copied().map(str::to_owned).collect();
        Self { title, note: String::new(), header, lines: vec![], left_from: usize::MAX }
    }

    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Adds a line without a bar.
    pub fn add(&mut self, kind: Kind, cells: Vec<String>) {
        self.lines.push(Line { kind, cells, bar: None });
    }

    fn add_with_bar(&mut self, row: &Row, cells: Vec<String>) {
        self.lines.push(Line { kind: Kind::of(row), cells, bar: Some(row.value()) });
    }

    /// Makes the longest bar 1.
    fn scale_bars(&mut self) {
        let longest = self.lines.iter().filter_map(|line| line.bar).fold(0.0, f64::max);
        for bar in self.lines.iter_mut().filter_map(|line| line.bar.as_mut()) {
            *bar = if longest > 0.0 { *bar / longest } else { 0.0 };
        }
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut table = plain_table();
        table.set_header(&self.header);
        for line in &self.lines {
            table.add_row(&line.cells);
        }
        align_right(&mut table);
        for column in table.column_iter_mut().skip(self.left_from) {
            column.set_cell_alignment(comfy_table::CellAlignment::Left);
        }
        let note = if self.note.is_empty() { String::new() } else { format!("{}\n", self.note) };
        format!("{}\n{note}\n{table}", self.title)
    }
}

/// All tables for which there is something to show.
pub fn all(results: &Results) -> Vec<Sheet> {
    let sheets = [
        uncontended(results),
        s1(results),
        handoff(results),
        against(results),
        throughput(results),
        waits(results),
        long_run(results),
        sections(results),
        frozen(results),
    ];
    let sheets = sheets
        .into_iter()
        .chain(family::sheets(results))
        .chain(policies::sheets(results))
        .chain(seeds::sheets(results));
    sheets.filter(|sheet| !sheet.lines.is_empty()).collect()
}

/// A name, marked if other work may have spoiled the row.
pub fn marked(row: &Row, name: impl ToString) -> String {
    name.to_string() + if row.is_disturbed() { " !" } else { "" }
}

/// The standard deviation, where there is one.
fn stdev(row: &Row, show: impl Fn(f64) -> String) -> String {
    if row.runs > 1 { show(row.stdev) } else { "-".to_owned() }
}

fn subject(row: &Row) -> String {
    match row.subject {
        Named::Lock(lock) => marked(row, lock),
        Named::Limit(limit) => marked(row, limit),
        Named::Form(form) => marked(row, form),
        Named::Policy(policy) => marked(row, policy),
        Named::Seed(case) => marked(row, case),
    }
}

fn rows(results: &Results, metric: Metric) -> impl Iterator<Item = &Row> {
    results.rows.iter().filter(move |row| row.metric == metric)
}

pub fn uncontended(results: &Results) -> Sheet {
    let mut sheet =
        Sheet::new("Uncontended", &["lock", "ns", "cycles", "stdev", "over its limit", "runs", "set aside"]).note(
            "Lock and unlock by one vCPU. A lock's limit is the atomic instructions that it cannot do without, alone.",
        );
    // pvlock that halts must learn at release whom to wake; all others could do with a store.
    let limit_of = |row: &Row| match row.subject {
        Named::Lock(LockName::Pvlock) => Some(Limit::TwoCmpxchg),
        Named::Lock(_) => Some(Limit::CmpxchgStore),
        _ => None,
    };
    for row in rows(results, Metric::Uncontended) {
        let Values::Cost { cycles, ns, .. } = row.values else { continue };
        let over = limit_of(row).and_then(|limit| {
            Some(format!("{:.2} of {limit}", cycles / results.row(Metric::Uncontended, limit)?.value()))
        });
        let cells = vec![
            subject(row),
            format!("{ns:.1}"),
            format!("{cycles:.1}"),
            stdev(row, |cycles| format!("{cycles:.1}")),
            over.unwrap_or_default(),
            row.runs.to_string(),
            row.set_aside.to_string(),
        ];
        sheet.add_with_bar(row, cells);
    }
    sheet.scale_bars();
    sheet
}

pub fn s1(results: &Results) -> Sheet {
    let header = ["form", "cycles", "stdev", "instr.", "stack", "in a loop", "stdev", "instr.", "stack", "runs"];
    let mut sheet = Sheet::new("Is this vCPU preempted?", &header).note(
        "Left: each question waits for the answer before it. Right: one round of a spin loop with ten values in registers, \
         without its pause. Cycles, instructions and accesses to the stack per question, the loop's own included, those of \
         calls and returns themselves not.",
    );
    for &form in Form::ALL {
        let dependent = results.row(Metric::S1Dependent, form);
        let live = results.row(Metric::S1LiveRegisters, form);
        let Some(row) = dependent.or(live) else { continue };
        let mut cells = vec![subject(row)];
        for row in [dependent, live] {
            match row.map(|row| (row, &row.values)) {
                Some((row, Values::Cost { cycles, code, .. })) => {
                    let count = |of: fn(&super::row::Instructions) -> u64| code.as_ref().map(of).unwrap_or_default();
                    cells.extend([
                        format!("{cycles:.1}"),
                        stdev(row, |cycles| format!("{cycles:.1}")),
                        count(|code| code.instructions).to_string(),
                        count(|code| code.stack_accesses).to_string(),
                    ]);
                }
                _ => cells.extend([const { String::new() }; 4]),
            }
        }
        cells.push(row.runs.to_string());
        sheet.add_with_bar(row, cells);
    }
    sheet.scale_bars();
    sheet
}

pub fn handoff(results: &Results) -> Sheet {
    let mut sheet =
        Sheet::new("Two CPUs, one lock", &["lock", "acquisitions/s", "stdev", "hand-offs/s", "runs", "set aside"]);
    for row in rows(results, Metric::Handoff) {
        match row.values {
            Values::Handoff { ops_per_s, handoffs_per_s } => {
                let cells = vec![
                    subject(row),
                    quantity(ops_per_s),
                    stdev(row, quantity),
                    quantity(handoffs_per_s),
                    row.runs.to_string(),
                    row.set_aside.to_string(),
                ];
                sheet.add_with_bar(row, cells);
            }
            Values::Cost { ns, .. } => {
                sheet.note = format!(
                    "Sections of a few instructions. A lock that its last owner takes again needs no other CPU, so acquisitions \
                     tell of speed and hand-offs of sharing. Limit: a cache line takes {ns:.0} ns one way, so at most {} \
                     hand-offs/s.",
                    quantity(1e9 / ns)
                );
            }
            _ => {}
        }
    }
    sheet.scale_bars();
    sheet
}

/// In the shape in which kernel patches show such comparisons.
pub fn against(results: &Results) -> Sheet {
    let header = ["base lock", "overcommit", "base", "stdev", "pvlock", "stdev", "improvement"];
    let mut sheet = Sheet::new("Overcommit: pvlock against each other lock", &header)
        .note("Acquisitions per second of one lock by all vCPUs; medians.");
    for lock in results.locks(Metric::Overcommit).into_iter().filter(|lock| !lock.is_ours()) {
        for degree in DEGREES {
            let at = |lock| results.at(Metric::Overcommit, lock, degree);
            let (Some(base), Some(ours)) = (at(lock), at(LockName::Pvlock)) else { continue };
            let cells = vec![
                marked(base, lock),
                format!("{degree}x"),
                quantity(base.value()),
                stdev(base, quantity),
                quantity(ours.value()),
                stdev(ours, quantity),
                format!("{:+.1} %", (ours.value() / base.value() - 1.0) * 100.0),
            ];
            sheet.add(Kind::Peer, cells);
        }
    }
    sheet
}

/// A column or two per degree of overcommit, a line per lock.
pub fn by_degree(
    results: &Results,
    metric: Metric,
    mut sheet: Sheet,
    columns: &[&str],
    cells: impl Fn(&Row, &Contended) -> Vec<String>,
) -> Sheet {
    let degrees = results.degrees(metric);
    sheet
        .header
        .extend(degrees.iter().flat_map(|degree| columns.iter().map(move |column| format!("{column}{degree}x"))));
    for lock in results.locks(metric) {
        let mut line = vec![lock.to_string()];
        for &degree in &degrees {
            match results.at(metric, lock, degree).and_then(|row| Some((row, row.contended()?))) {
                Some((row, contended)) => line.extend(cells(row, contended)),
                None => line.extend(columns.iter().map(|_| String::new())),
            }
        }
        let kind = if lock.is_ours() { Kind::Ours } else { Kind::Peer };
        sheet.add(kind, line);
    }
    sheet
}

pub fn throughput(results: &Results) -> Sheet {
    let sheet = Sheet::new("Overcommit: throughput and CPU time", &["lock"]).note(format!(
        "Acquisitions per second, and CPU time used over CPU time there was. {} CPUs, slices of {} us, sections of {} and {} \
         steps of 4 cycles. Limit: the rate at 1x, for the CPUs are the same.",
        results.options.cpus, results.options.quantum_us, results.options.cs, results.options.ncs
    ));
    by_degree(results, Metric::Overcommit, sheet, &["", "CPU "], |row, contended| {
        vec![marked(row, quantity(contended.ops_per_s)), format!("{:.2}", contended.cpu_used)]
    })
}

pub fn waits(results: &Results) -> Sheet {
    let sheet = Sheet::new("Overcommit: fairness and longest wait", &["lock"])
        .note("Fairness is the least served vCPU over the best served one, within one sample; its limit is 1.");
    by_degree(results, Metric::Overcommit, sheet, &["fair ", "wait "], |_, contended| {
        vec![format!("{:.2}", contended.fairness), duration(contended.max_wait_us)]
    })
}

pub fn long_run(results: &Results) -> Sheet {
    let sheet = Sheet::new("Fairness over 3.2 s", &["lock"])
        .note("Least over best served vCPU, the least served one's acquisitions per second, longest wait.");
    by_degree(results, Metric::Fairness, sheet, &["fair ", "least/s ", "wait "], |row, contended| {
        vec![
            marked(row, format!("{:.2}", contended.fairness)),
            quantity(contended.min_vcpu_ops_per_s),
            duration(contended.max_wait_us),
        ]
    })
}

pub fn sections(results: &Results) -> Sheet {
    let header = ["lock", "sections", "overcommit", "acquisitions/s", "stdev", "fairness", "longest wait", "runs"];
    let mut sheet = Sheet::new("Other sections", &header)
        .note("With the lock / without it, in steps of 4 cycles: saturated, seldom wanted, held for long.");
    let mut all: Vec<&Row> = rows(results, Metric::Sections).collect();
    all.sort_by_key(|row| (row.cs, row.ncs, row.vcpus));
    for row in all {
        let (Some(lock), Some(contended)) = (row.lock(), row.contended()) else { continue };
        let cells = vec![
            marked(row, lock),
            format!("{} / {}", row.cs, row.ncs),
            row.overcommit.map(|degree| format!("{degree}x")).unwrap_or_default(),
            quantity(contended.ops_per_s),
            stdev(row, quantity),
            format!("{:.2}", contended.fairness),
            duration(contended.max_wait_us),
            row.runs.to_string(),
        ];
        sheet.add(Kind::of(row), cells);
    }
    sheet
}

pub fn frozen(results: &Results) -> Sheet {
    let mut sheet = Sheet::new("The owner is frozen for 1 s", &["lock", "CPU burned", "stdev", "runs"])
        .note("CPU time that 8 waiters burn together, over 1 s. Limit: none at all.");
    for row in rows(results, Metric::FrozenOwner) {
        let percent = |value: f64| format!("{:.1} %", value * 100.0);
        let cells = vec![subject(row), percent(row.value()), stdev(row, percent), row.runs.to_string()];
        sheet.add_with_bar(row, cells);
    }
    sheet.scale_bars();
    sheet
}
