//! The matrix of `--policies`: ways to wait against kinds of hosts, on the test host and in guests of a nested KVM.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use pvlock_bench_protocol::{Host, Metric, Policy, Slices};
use serde::Serialize;

use super::results::Results;
use super::row::{Contended, Named, Row};
use super::sheets::{Kind, Sheet, marked};
use crate::backend::{Accel, Backend, Guest, Kind as BackendKind};
use crate::image;
use crate::overcommit;
use crate::qemu::Thread;
use crate::report::{self, duration, quantity};
use crate::setup;

/// What the tables mean.
const EXPLANATION: &str = "All vCPUs want one lock, 4 for each CPU. Free: each CPU counts its own slices; step: all switch at once.\n\
    Then the length of a slice, and what an exit to the host costs. Names that end in -open never close the lock to\n\
    passers before the waiter gives its CPU away. Shipped is yield-1-halt.";

/// Physical CPUs, vCPUs and length of a round in the guests.
const CPUS: usize = 2;
const VCPUS: usize = 8;
const ROUND_MS: u32 = 350;

/// Boots for one kind of machine: emulated machines hang now and then.
const BOOTS: usize = 3;

/// Longer than a round of a lock that starves.
const SILENCE: Duration = Duration::from_secs(40);

/// A way to wait in a guest of a nested KVM.
#[derive(Debug, Serialize)]
pub struct NestedRow {
    /// How the emulator spread the first-level machine's CPUs over threads.
    thread: &'static str,
    #[serde(flatten)]
    row: report::Row,
}

/// Measures all policies in guests, `rounds` times each.
pub fn nested(rounds: u32) -> Result<Vec<NestedRow>> {
    setup::ensure_qemu()?;
    let image = image::build("overcommit")?;
    let backend = Backend::choose(Accel::Nested)?;
    let mut rows = Vec::new();
    for (thread, name) in [(Thread::Single, "single"), (Thread::Multi, "multi")] {
        let mut samples = Vec::new();
        for try_ in 1..=BOOTS {
            match boot(&backend, &image, thread, name, rounds) {
                Ok(boot) => samples.extend(boot),
                Err(error) => eprintln!("xtask: boot {try_} of {BOOTS} with thread={name} brought nothing: {error:#}"),
            }
            // What a machine that hung had finished counts, but is not enough.
            if samples.len() >= Policy::ALL.len() * rounds as usize {
                break;
            }
        }
        if samples.is_empty() {
            continue;
        }
        for policy in Policy::ALL {
            let row = report::Row::new(policy.name(), VCPUS, CPUS, &samples);
            rows.push(NestedRow { thread: name, row: row.with_context(|| format!("the guest measured no {policy}"))? });
        }
    }
    Ok(rows)
}

fn boot(backend: &Backend, image: &Path, thread: Thread, name: &str, rounds: u32) -> Result<Vec<overcommit::Sample>> {
    debug_assert_eq!(backend.kind, BackendKind::Nested);
    let locks: Vec<&str> = Policy::ALL.iter().map(|policy| policy.name()).collect();
    let guest = Guest {
        image,
        vcpus: VCPUS,
        cpus: CPUS,
        cpu_flags: &[],
        command_line: format!("locks={} rounds={rounds} ms={ROUND_MS} verbose=1", locks.join(",")),
        thread: Some(thread),
        limit: Duration::from_secs(60 + 20 * u64::from(rounds)),
        silence: Some(SILENCE),
    };
    let what = format!("{VCPUS} vCPUs on {CPUS} nested CPUs, thread={name}");
    Ok(overcommit::boot(backend, &guest, &what, rounds)?.samples)
}

fn host_name(host: Host) -> String {
    let slices = match host.slices {
        Slices::Free => "free",
        Slices::LockStep => "step",
    };
    format!("{slices} {} ms {} µs", host.quantum_us / 1000, host.exit_us)
}

/// One table for each thing that is asked: policies down, hosts across.
pub fn sheets(results: &Results) -> Vec<Sheet> {
    type Show = fn(&Row, &Contended) -> String;
    let tables: [(&str, Show); 4] = [
        ("Ways to wait: acquisitions/s, and their standard deviation", |row, contended| {
            let deviation = if row.runs > 1 {
                format!(" ±{:.0}%", 100.0 * row.stdev / contended.ops_per_s)
            } else {
                String::new()
            };
            marked(row, quantity(contended.ops_per_s) + &deviation)
        }),
        ("Ways to wait: fairness, the least served vCPU over the best served", |row, contended| {
            marked(row, format!("{:.2}", contended.fairness))
        }),
        ("Ways to wait: longest wait", |row, contended| marked(row, duration(contended.max_wait_us))),
        ("Ways to wait: CPU time used over CPU time there was", |row, contended| {
            marked(row, format!("{:.2}", contended.cpu_used))
        }),
    ];
    let mut hosts: Vec<Host> = results.rows.iter().filter_map(|row| row.host).collect();
    hosts.sort();
    hosts.dedup();
    let mut sheets: Vec<Sheet> = tables.into_iter().map(|(title, show)| matrix(results, &hosts, title, show)).collect();
    sheets[0].note = EXPLANATION.to_owned();
    sheets.push(nested_sheet(results));
    sheets
}

fn matrix(results: &Results, hosts: &[Host], title: &'static str, show: fn(&Row, &Contended) -> String) -> Sheet {
    let names: Vec<String> = hosts.iter().copied().map(host_name).collect();
    let header: Vec<&str> = ["policy"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut sheet = Sheet::new(title, &header);
    for &policy in Policy::ALL {
        let row_at = |host: &Host| {
            let mut rows = results.rows.iter().filter(|row| row.metric == Metric::Policy);
            rows.find(|row| row.host == Some(*host) && row.subject == Named::Policy(policy))
        };
        let rows: Vec<Option<&Row>> = hosts.iter().map(row_at).collect();
        if rows.iter().all(Option::is_none) {
            continue;
        }
        let cell = |row: Option<&Row>| row.and_then(|row| Some(show(row, row.contended()?))).unwrap_or_default();
        let cells = [policy.to_string()].into_iter().chain(rows.into_iter().map(cell)).collect();
        sheet.add(kind(policy.name()), cells);
    }
    sheet
}

fn nested_sheet(results: &Results) -> Sheet {
    let header = [
        "policy",
        "thread",
        "acquisitions/s",
        "stdev",
        "fairness",
        "longest wait",
        "yields",
        "halts",
        "runs",
        "set aside",
    ];
    let mut sheet = Sheet::new("Ways to wait: guests of a nested KVM", &header)
        .note(format!("{VCPUS} vCPUs on {CPUS} emulated CPUs, timed from outside the guest; exits are dear there."));
    for NestedRow { thread, row } in &results.nested {
        let counter = |name: &str| row.counters.get(name).copied().unwrap_or(0).to_string();
        let cells = vec![
            row.lock.clone(),
            (*thread).to_owned(),
            quantity(row.ops_per_s),
            quantity(row.stdev),
            format!("{:.2}", row.fairness),
            duration(row.max_wait_us),
            counter("yields"),
            counter("halts"),
            row.runs.to_string(),
            row.set_aside.to_string(),
        ];
        sheet.add(kind(&row.lock), cells);
    }
    sheet
}

/// What is shipped stands out.
fn kind(policy: &str) -> Kind {
    if policy == Policy::YieldOnce.name() { Kind::Ours } else { Kind::Peer }
}
