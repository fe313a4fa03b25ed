//! The tables of `--seeds`: five systems, each off and on, in the shape in which their authors showed them.

use pvlock_bench_protocol::{Form, Load, Metric, Seed, SeedCase, Side, Turned};

use super::figures::{Bound, Figure, Unit, Value, figure};
use super::results::Results;
use super::row::{Named, Row};
use super::sheets::{Kind, Sheet, marked};
use crate::report::quantity;

const HEADER: [&str; 8] = ["where, load", "vCPUs/CPU", "base", "stdev", "with it", "stdev", "improvement", "runs"];

/// vCPUs per CPU at which a mechanism against overcommitment is to help.
const OVERCOMMITTED: [usize; 3] = [2, 3, 4];

/// What each is, and what its authors found: to read the table by.
const NOTES: [(Seed, &str, &str); 4] = [
    (
        Seed::S2,
        "S2: better yield candidates",
        "Host: a caught spinner tries every sibling, or preempted ones only. Guest: spin's mutex as it is, or with pvlock::Relax on a host \
         that catches nobody. Its authors (2013): kernbench +6 to +4 %, ebizzy +12 to +41 % at 1x to 4x.",
    ),
    (
        Seed::S3,
        "S3: busy-spin detector",
        "The lock spins without a pause. Host: two ticks at one instruction. Guest: SpinDetector, fed by the guest's timer. Its authors \
         (2010): kernel build +3 to +14 %, the more the more vCPUs.",
    ),
    (
        Seed::S4,
        "S4: undercommit bail-out",
        "Host: a caught spinner tries every sibling, or gives up after three for whom nothing could be done. Guest: Relax that yields on and \
         on, or gives up; beside six vCPUs that sleep and so read as preempted. Its authors (2013): ebizzy +141 %, dbench +51 % at 1x, \
         nothing beyond 3 % at 2x and 3x.",
    ),
    (
        Seed::S5,
        "S5: boosting receivers of interrupts",
        "Host: vCPUs in user mode are never boosted, or when they have an interrupt to take. Guest: a bare spin for all answers, or wait_acks on \
         a host that catches nobody. Its authors (2021): pbzip2 +10 % oversubscribed, nothing elsewhere.",
    ),
];

/// What the guest does, for those who read the tables.
const LOADS: &str = "Locks: all vCPUs take one foreign lock all the time, with short sections and as short pauses, as ebizzy's threads do: the lock is all there is.\n\
    Mixed: a vCPU computes for some 20 000 cycles, then takes one of four locks, by turns, for 800, as the processes of a kernel build do: locks are \
    seldom wanted by two.\n\
    Interrupts: a vCPU computes in user mode for some 400 000 cycles, then interrupts all others and waits until each has taken it, as pbzip2 does when it \
    gives memory back and every TLB must forget it.\n\
    Values are units of work per second by the host's clock; a unit is an acquisition with what belongs to it, or a request.";

/// What a row of a table compares.
struct Pair<'a> {
    base: &'a Row,
    with: &'a Row,
}

impl<'a> Pair<'a> {
    fn of(results: &'a Results, seed: Seed, side: Side, load: Load, degree: usize) -> Option<Self> {
        let row = |turned| {
            let named = Named::Seed(SeedCase { seed, side, load, turned });
            let mut rows = results.rows.iter().filter(|row| row.metric == Metric::Seed && row.subject == named);
            rows.find(|row| row.overcommit == Some(degree))
        };
        let (base, with) = (row(Turned::Off)?, row(Turned::On)?);
        (base.value() > 0.0).then_some(Self { base, with })
    }

    fn improvement(&self) -> f64 {
        self.with.value() / self.base.value() - 1.0
    }

    /// The improvement in standard deviations, of the two the larger.
    fn deviations(&self) -> f64 {
        (self.with.value() - self.base.value()) / self.with.stdev.max(self.base.stdev).max(f64::MIN_POSITIVE)
    }

    fn is_disturbed(&self) -> bool {
        self.with.is_disturbed() || self.base.is_disturbed()
    }
}

/// The tables.
pub fn sheets(results: &Results) -> Vec<Sheet> {
    core::iter::once(s1(results))
        .chain(NOTES.iter().map(|&(seed, title, note)| sheet(results, seed, title, note)))
        .collect()
}

/// The cost of the question itself. No host and no overcommitment come into it.
fn s1(results: &Results) -> Sheet {
    let mut sheet = Sheet::new("S1: vcpu_is_preempted without register spills", &HEADER).note(
        "Calls per second of one CPU: a C function behind a thunk that saves registers, and the library's routine. Its authors (2017): fio \
         +4.4, +0.9, +1.6, +1.1 % for four kinds of access.",
    );
    // The rows of a run that is not about this have their own table.
    if !results.rows.iter().any(|row| row.metric == Metric::Seed) {
        return sheet;
    }
    for (metric, load) in [
        (Metric::S1Dependent, "guest, one call after the other"),
        (Metric::S1LiveRegisters, "guest, ten live registers"),
    ] {
        let (Some(base), Some(with)) = (results.row(metric, Form::Thunk), results.row(metric, Form::Routine)) else {
            continue;
        };
        // Rows are in cycles; a call of `c` cycles with deviation `d` is a rate with the same relative deviation.
        let rate = |row: &Row| row.ns().map(|ns| 1e9 / ns);
        let (Some(base_rate), Some(with_rate)) = (rate(base), rate(with)) else { continue };
        let cells = vec![
            load.to_owned(),
            "1".to_owned(),
            quantity(base_rate),
            quantity(base_rate * base.stdev / base.value()),
            marked(with, quantity(with_rate)),
            quantity(with_rate * with.stdev / with.value()),
            percent(with_rate / base_rate - 1.0),
            with.runs.to_string(),
        ];
        sheet.add(Kind::Ours, cells);
    }
    sheet
}

fn sheet(results: &Results, seed: Seed, title: &'static str, note: &str) -> Sheet {
    // Once, where the loads come up first.
    let note = if seed == Seed::S2 { format!("{note}\n{LOADS}") } else { note.to_owned() };
    let mut sheet = Sheet::new(title, &HEADER).note(note);
    let all = Side::ALL.iter().flat_map(|&side| Load::ALL.iter().map(move |&load| (side, load)));
    for (side, load) in all {
        for degree in results.degrees(Metric::Seed) {
            let Some(pair) = Pair::of(results, seed, side, load, degree) else { continue };
            let cells = vec![
                format!("{side}, {load}"),
                degree.to_string(),
                marked(pair.base, quantity(pair.base.value())),
                quantity(pair.base.stdev),
                marked(pair.with, quantity(pair.with.value())),
                quantity(pair.with.stdev),
                percent(pair.improvement()),
                pair.base.runs.min(pair.with.runs).to_string(),
            ];
            sheet.add(if side == Side::Guest { Kind::Ours } else { Kind::Peer }, cells);
        }
    }
    sheet
}

fn percent(part: f64) -> String {
    format!("{:+.1} %", part * 100.0)
}

/// What must hold: better by more than two standard deviations where the authors found it better, no difference where they found none.
pub fn figures(results: &Results) -> Vec<Figure> {
    if !results.rows.iter().any(|row| row.metric == Metric::Seed) {
        return vec![];
    }
    let mut figures = Vec::new();
    let helps = [
        (Seed::S2, Load::Locks, Load::Locks, &OVERCOMMITTED[..]),
        (Seed::S3, Load::Locks, Load::Locks, &OVERCOMMITTED),
        (Seed::S4, Load::Locks, Load::Sleepers, &[1]),
        (Seed::S5, Load::Interrupts, Load::Interrupts, &OVERCOMMITTED),
    ];
    for (seed, in_host, in_guest, degrees) in helps {
        for (side, load) in [(Side::Host, in_host), (Side::Guest, in_guest)] {
            for &degree in degrees {
                let pair = Pair::of(results, seed, side, load, degree);
                let value = pair.map(|pair| Value { value: pair.deviations(), disturbed: pair.is_disturbed() });
                let name = format!("{seed} in the {side}, {load}, {degree}x: better by deviations");
                figures.push(figure(name, value, Unit::Ratio, Bound::AtLeast(2.0), ""));
            }
        }
    }
    for (seed, load, degrees) in [(Seed::S4, Load::Locks, &[2, 3][..]), (Seed::S5, Load::Locks, &[1, 2, 3, 4])] {
        for &degree in degrees {
            let pair = Pair::of(results, seed, Side::Host, load, degree);
            let value = pair.map(|pair| Value { value: pair.improvement().abs(), disturbed: pair.is_disturbed() });
            let name = format!("{seed} in the host, {load}, {degree}x: no difference");
            figures.push(figure(name, value, Unit::Percent, Bound::AtMost(0.02), ""));
        }
    }
    figures
}
