//! The figures that must hold, each with its bound, its verdict and what limits it physically.

use pvlock_bench_protocol::{Form, Limit, LockName, Metric};
use serde::Serialize;

use super::family;
use super::results::Results;
use super::row::{Row, Values};
use super::seeds;
use super::sheets::{Kind, Sheet};
use crate::report::{duration, quantity};

/// One figure.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    pub figure: String,
    /// `None` when it was not measured.
    pub value: Option<f64>,
    /// Whether other work on this machine may have spoiled it.
    pub disturbed: bool,
    pub unit: Unit,
    #[serde(flatten)]
    pub bound: Bound,
    /// What no lock can pass on this machine, measured in the same run.
    pub limit: String,
}

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Ratio,
    Times,
    Percent,
    Us,
    Accesses,
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::Ratio => format!("{value:.2}"),
            Self::Times => format!("{} times", quantity(value).trim_end()),
            Self::Percent => format!("{:.1} %", value * 100.0),
            Self::Us => duration(value),
            Self::Accesses => format!("{value:.0}"),
        }
    }
}

/// Where a figure must lie.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Figure {
    /// Whether the bound is kept; `None` when the figure was not measured.
    pub fn held(&self) -> Option<bool> {
        let value = self.value?;
        Some(match self.bound {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
        })
    }

    fn show_bound(&self) -> String {
        match self.bound {
            Bound::AtLeast(least) => format!(">= {}", self.unit.show(least)),
            Bound::AtMost(most) => format!("<= {}", self.unit.show(most)),
        }
    }

    /// The verdict in words.
    pub fn verdict(&self) -> String {
        let verdict = match self.held() {
            Some(true) => "held",
            Some(false) => "NOT held",
            None => "not measured",
        };
        verdict.to_owned() + if self.disturbed { " !" } else { "" }
    }
}

/// The figures as a table.
pub fn sheet(figures: &[Figure]) -> Sheet {
    let mut sheet = Sheet::new("Figures that must hold", &["figure", "value", "bound", "verdict", "physical limit"]);
    for figure in figures {
        let value = figure.value.map_or_else(|| "-".to_owned(), |value| figure.unit.show(value));
        let kind = match figure.held() {
            Some(true) => Kind::Held,
            Some(false) => Kind::Missed,
            None => Kind::Limit,
        };
        sheet
            .add(kind, vec![figure.figure.clone(), value, figure.show_bound(), figure.verdict(), figure.limit.clone()]);
    }
    sheet.left_from = 3;
    sheet
}

/// All figures.
pub fn all(results: &Results) -> Vec<Figure> {
    let mut figures = uncontended(results);
    figures.extend(s1(results));
    figures.extend(handoff(results));
    figures.extend(flatness(results));
    figures.extend(fairness(results));
    figures.push(longest_wait(results));
    figures.extend(against_others(results));
    figures.push(awareness(results));
    figures.push(frozen(results));
    figures.extend(family::figures(results));
    figures.extend(seeds::figures(results));
    figures
}

/// What a figure comes from.
#[derive(Debug, Clone, Copy)]
pub struct Value {
    pub value: f64,
    pub disturbed: bool,
}

pub fn figure(
    name: impl Into<String>,
    value: Option<Value>,
    unit: Unit,
    bound: Bound,
    limit: impl Into<String>,
) -> Figure {
    Figure {
        figure: name.into(),
        value: value.map(|value| value.value),
        disturbed: value.is_some_and(|value| value.disturbed),
        unit,
        bound,
        limit: limit.into(),
    }
}

/// What `of` finds in `row`.
pub fn value(row: Option<&Row>, of: impl Fn(&Row) -> Option<f64>) -> Option<Value> {
    let row = row?;
    Some(Value { value: of(row)?, disturbed: row.is_disturbed() })
}

/// `above` over `below`, if both were measured.
pub fn ratio(above: Option<&Row>, below: Option<&Row>) -> Option<Value> {
    let (above, below) = (above?, below?);
    let disturbed = above.is_disturbed() || below.is_disturbed();
    (below.value() > 0.0).then(|| Value { value: above.value() / below.value(), disturbed })
}

fn uncontended(results: &Results) -> Vec<Figure> {
    let over = |name: &str, lock: LockName, limit: Limit| {
        let (row, least) = (results.row(Metric::Uncontended, lock), results.row(Metric::Uncontended, limit));
        let shown = match least.map(|row| &row.values) {
            Some(Values::Cost { ns, .. }) => format!("1.00: {limit} takes {ns:.1} ns"),
            _ => format!("1.00: {limit}"),
        };
        figure(name, ratio(row, least), Unit::Ratio, Bound::AtMost(1.10), shown)
    };
    vec![
        over("uncontended, halting off, over its limit", LockName::PvlockNoHalt, Limit::CmpxchgStore),
        over("uncontended, halting on, over its limit", LockName::Pvlock, Limit::TwoCmpxchg),
    ]
}

fn s1(results: &Results) -> Vec<Figure> {
    let form = |form: Form| results.row(Metric::S1Dependent, form);
    let inline = ratio(form(Form::Inline), form(Form::TwoLoads));
    let limit = inline.map_or_else(String::new, |inline| format!("{:.2}: one load, inline", inline.value));
    // Read from the machine code, which other work does not change.
    let stack = form(Form::Routine).and_then(|row| match row.values {
        Values::Cost { code: Some(code), .. } => Some(Value { value: code.stack_accesses as f64, disturbed: false }),
        _ => None,
    });
    vec![
        figure(
            "vcpu_is_preempted over the two-load form",
            ratio(form(Form::Routine), form(Form::TwoLoads)),
            Unit::Ratio,
            Bound::AtMost(0.8),
            limit,
        ),
        figure("stack accesses of vcpu_is_preempted", stack, Unit::Accesses, Bound::AtMost(0.0), "0"),
    ]
}

fn handoff(results: &Results) -> Vec<Figure> {
    let lock = |lock: LockName| results.row(Metric::Handoff, lock);
    let transfer = match results.row(Metric::Handoff, Limit::LineTransfer).map(|row| &row.values) {
        Some(Values::Cost { ns, .. }) => {
            format!("the lock's line takes {ns:.0} ns: {}/s can change hands", quantity(1e9 / ns))
        }
        _ => String::new(),
    };
    let changed = match lock(LockName::Pvlock).map(|row| &row.values) {
        Some(Values::Handoff { handoffs_per_s, .. }) => format!("{}/s did", quantity(*handoffs_per_s)),
        _ => String::new(),
    };
    let over = |other: LockName| ratio(lock(LockName::Pvlock), lock(other));
    vec![
        figure("hand-off rate over spin's", over(LockName::Spin), Unit::Ratio, Bound::AtLeast(1.0), transfer),
        figure("hand-off rate over mcslock's", over(LockName::Mcs), Unit::Ratio, Bound::AtLeast(1.5), changed),
    ]
}

fn flatness(results: &Results) -> Vec<Figure> {
    let at = |degree| results.at(Metric::Overcommit, LockName::Pvlock, degree);
    let figure_at = |degree| {
        let name = format!("throughput at {degree}x over own 1x");
        figure(name, ratio(at(degree), at(1)), Unit::Ratio, Bound::AtLeast(0.9), "1.00: the same CPUs, shared")
    };
    [2, 4, 8].map(figure_at).into()
}

fn fairness(results: &Results) -> Vec<Figure> {
    let figure_at = |degree| {
        let row = results.at(Metric::Fairness, LockName::Pvlock, degree);
        let name = format!("fairness at {degree}x, samples of 3.2 s");
        let fairness = value(row, |row| Some(row.contended()?.fairness));
        figure(name, fairness, Unit::Ratio, Bound::AtLeast(0.7), "1.00: all alike")
    };
    [2, 4, 8].map(figure_at).into()
}

fn longest_wait(results: &Results) -> Figure {
    const DEGREE: usize = 4;
    let longest =
        |metric| value(results.at(metric, LockName::Pvlock, DEGREE), |row| Some(row.contended()?.max_wait_us));
    let waits = [Metric::Overcommit, Metric::Fairness].into_iter().filter_map(longest);
    let slice_us = results.options.quantum_us as f64;
    figure(
        format!("longest wait at {DEGREE}x"),
        waits.max_by(|a, b| a.value.total_cmp(&b.value)),
        Unit::Us,
        Bound::AtMost(DEGREE as f64 * slice_us * 4.0),
        format!("{}: the slices of those it shares its CPU with", duration((DEGREE - 1) as f64 * slice_us)),
    )
}

fn against_others(results: &Results) -> Vec<Figure> {
    let over = |other: LockName, degree: usize| {
        let at = |lock| results.at(Metric::Overcommit, lock, degree);
        ratio(at(LockName::Pvlock), at(other))
    };
    let overcommitted = results.degrees(Metric::Overcommit).into_iter().filter(|&degree| degree > 1);
    let least =
        overcommitted.filter_map(|degree| over(LockName::Ticket, degree)).min_by(|a, b| a.value.total_cmp(&b.value));
    let flat = |other: LockName| {
        let at = |lock, degree| results.at(Metric::Overcommit, lock, degree);
        let best = ratio(at(LockName::Pvlock, 1), at(other, 4));
        best.map_or_else(String::new, |best| format!("{:.2} times, if as fast as at 1x", best.value))
    };
    vec![
        figure("against TicketMutex, at its least from 2x on", least, Unit::Times, Bound::AtLeast(100.0), ""),
        figure(
            "against SpinMutex at 4x",
            over(LockName::Spin, 4),
            Unit::Times,
            Bound::AtLeast(1.5),
            flat(LockName::Spin),
        ),
    ]
}

fn awareness(results: &Results) -> Figure {
    let at = |lock| results.at(Metric::Awareness, lock, 1);
    figure(
        "awareness on over off at 1x",
        ratio(at(LockName::Pvlock), at(LockName::PvlockUnaware)),
        Unit::Ratio,
        Bound::AtLeast(0.98),
        "1.00: nobody is preempted",
    )
}

fn frozen(results: &Results) -> Figure {
    let row = results.row(Metric::FrozenOwner, LockName::Pvlock);
    figure(
        "CPU burned by 8 waiters, owner frozen 1 s",
        value(row, |row| Some(row.value())),
        Unit::Percent,
        Bound::AtMost(0.05),
        "0 %: all halted",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio_figure(value: Option<f64>, bound: Bound) -> Figure {
        figure("x", value.map(|value| Value { value, disturbed: value > 1.0 }), Unit::Ratio, bound, "")
    }

    #[test]
    fn a_bound_itself_is_kept_and_nothing_is_said_of_what_was_not_measured() {
        let verdict = |value, bound| ratio_figure(value, bound).verdict();
        assert_eq!(verdict(Some(0.9), Bound::AtLeast(0.9)), "held");
        assert_eq!(verdict(Some(1.11), Bound::AtMost(1.1)), "NOT held !");
        assert_eq!(verdict(None, Bound::AtMost(1.1)), "not measured");
    }

    #[test]
    fn values_are_shown_in_their_unit() {
        let shown = |unit: Unit, value| unit.show(value);
        assert_eq!(shown(Unit::Percent, 0.0123), "1.2 %");
        assert_eq!(shown(Unit::Us, 48_000.0), "48.0 ms");
        assert_eq!(shown(Unit::Times, 1234.0), "1.23 k times");
    }
}
