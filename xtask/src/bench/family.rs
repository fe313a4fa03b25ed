//! The sleeping mutex and the reader-writer lock beside their peers: tables and figures.

use pvlock_bench_protocol::{LockName, Metric};

use super::figures::{Bound, Figure, Unit, figure, ratio, value};
use super::results::Results;
use super::row::Row;
use super::sheets::{Kind, Sheet, by_degree, marked};
use crate::report::{duration, quantity};

/// The degree at which the mutex is compared, and at which one is set against all others.
const DEGREE: usize = 4;

/// The tables.
pub fn sheets(results: &Results) -> [Sheet; 4] {
    [
        contended(
            results,
            Metric::Mutex,
            "Locks that sleep",
            "All vCPUs want one lock. pvlock's vCPUs sleep by halting; the others' threads by the kernel.",
        ),
        contended(
            results,
            Metric::RwLock,
            "Reader-writer locks",
            "All vCPUs want one lock, every tenth time to write.",
        ),
        two_readers(results),
        lone(results),
    ]
}

fn contended(results: &Results, metric: Metric, title: &'static str, note: &str) -> Sheet {
    let sheet = Sheet::new(title, &["lock"]).note(note);
    by_degree(results, metric, sheet, &["", "fair ", "wait "], |row, contended| {
        vec![
            marked(row, quantity(contended.ops_per_s)),
            format!("{:.2}", contended.fairness),
            duration(contended.max_wait_us),
        ]
    })
}

fn two_readers(results: &Results) -> Sheet {
    let mut sheet = Sheet::new("Two CPUs read", &["lock", "acquisitions/s", "runs"])
        .note("Nobody writes. Limit: the reader count's cache line goes to and fro.");
    for lock in results.locks(Metric::ReadRead) {
        let Some(row) = results.row(Metric::ReadRead, lock) else { continue };
        sheet.add(kind(lock), vec![marked(row, lock), quantity(row.value()), row.runs.to_string()]);
    }
    sheet
}

fn lone(results: &Results) -> Sheet {
    let header =
        ["lock", "against all others", "its longest wait", "the others' longest wait", "its acquisitions/s", "runs"];
    let mut sheet = Sheet::new("One against all others", &header)
        .note(format!("{DEGREE} vCPUs for each CPU. The lone one must not starve, however many the others are."));
    for (metric, name) in [(Metric::LoneWriter, "writes"), (Metric::LoneReader, "reads")] {
        for lock in results.locks(metric) {
            let Some((row, contended)) = results.at(metric, lock, DEGREE).and_then(|row| Some((row, row.contended()?)))
            else {
                continue;
            };
            let cells = vec![
                marked(row, lock),
                name.to_owned(),
                duration(contended.first_max_wait_us),
                duration(contended.max_wait_us),
                quantity(contended.first_ops_per_s),
                row.runs.to_string(),
            ];
            sheet.add(kind(lock), cells);
        }
    }
    sheet
}

fn kind(lock: LockName) -> Kind {
    if lock.is_ours() { Kind::Ours } else { Kind::Peer }
}

/// What must hold.
pub fn figures(results: &Results) -> Vec<Figure> {
    let alone = |lock| results.row(Metric::Uncontended, lock);
    let best = [LockName::ParkingLot, LockName::Std]
        .into_iter()
        .filter_map(alone)
        .min_by(|a, b| a.value().total_cmp(&b.value()));
    let at = |metric, lock, degree| results.at(metric, lock, degree);
    let mut figures = vec![
        figure(
            "mutex uncontended, over the better of std's and parking_lot's",
            ratio(alone(LockName::PvlockMutex), best),
            Unit::Ratio,
            Bound::AtMost(1.1),
            "1.00: two cmpxchg",
        ),
        figure(
            format!("mutex at {DEGREE}x over parking_lot's"),
            ratio(at(Metric::Mutex, LockName::PvlockMutex, DEGREE), at(Metric::Mutex, LockName::ParkingLot, DEGREE)),
            Unit::Ratio,
            Bound::AtLeast(0.9),
            "",
        ),
        figure(
            "two readers, over spin's RwLock",
            ratio(
                results.row(Metric::ReadRead, LockName::PvlockRwLock),
                results.row(Metric::ReadRead, LockName::SpinRwLock),
            ),
            Unit::Ratio,
            Bound::AtLeast(1.0),
            "1.00: one line to and fro",
        ),
    ];
    for (metric, lock, name) in
        [(Metric::Mutex, LockName::PvlockMutex, "mutex"), (Metric::RwLock, LockName::PvlockRwLock, "rwlock")]
    {
        for degree in [2, 4, 8] {
            let flat = ratio(at(metric, lock, degree), at(metric, lock, 1));
            let name = format!("{name} at {degree}x over own 1x");
            figures.push(figure(name, flat, Unit::Ratio, Bound::AtLeast(0.9), "1.00: the same CPUs, shared"));
        }
        for degree in [2, 4, 8] {
            let fair = value(at(metric, lock, degree), |row: &Row| Some(row.contended()?.fairness));
            let name = format!("fairness of the {name} at {degree}x");
            figures.push(figure(name, fair, Unit::Ratio, Bound::AtLeast(0.6), "1.00: all alike"));
        }
    }
    let bound = DEGREE as f64 * results.options.quantum_us as f64 * 4.0;
    for (metric, name) in
        [(Metric::LoneWriter, "writer against readers"), (Metric::LoneReader, "reader against writers")]
    {
        let wait =
            value(at(metric, LockName::PvlockRwLock, DEGREE), |row: &Row| Some(row.contended()?.first_max_wait_us));
        figures.push(figure(
            format!("longest wait of a lone {name}"),
            wait,
            Unit::Us,
            Bound::AtMost(bound),
            format!("{}: the slices of those it shares its CPU with", duration(bound / 16.0 * 3.0)),
        ));
    }
    figures
}
