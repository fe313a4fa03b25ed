//! The report: a single page with charts and tables, nothing loaded from anywhere.

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use pvlock_bench_protocol::LockName;

use super::results::Results;
use super::sheets::{self, Kind, Line, Sheet};
use super::{charts, family, figures, policies, seeds};
use crate::report::quantity;

/// The degree whose waits are shown.
const WAITS_AT: usize = 4;

/// The page as HTML.
pub fn html(results: &Results) -> Result<String> {
    let chart = |chart: Option<Result<String>>| {
        chart.transpose().map(|svg| html! { @if let Some(svg) = svg { figure { (PreEscaped(svg)) } } })
    };
    let (throughput, fairness) = (chart(charts::throughput(results))?, chart(charts::fairness(results))?);
    let waits = chart(charts::waits(results, WAITS_AT))?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "pvlock benchmarks" }
                style { (PreEscaped(include_str!("page.css"))) }
            }
            body {
                header {
                    h1 { "pvlock benchmarks" }
                    p.lead { (lead(results)) }
                    (machine(results))
                }
                (verdicts(results))
                section {
                    h2 { "More vCPUs than CPUs" }
                    p {
                        "All vCPUs want one lock. The host gives each of its CPUs to one vCPU after the other, a slice at a time, \
                         and may take it away in the middle of a critical section: then everybody waits for somebody who cannot \
                         run. Locks that sleep in the kernel ("
                        code { "parking_lot" } ", " code { "std" } ") and " code { "spin-threads" }
                        " run as plain threads under this machine's own scheduler, all others as vCPUs of the test host."
                    }
                    (throughput)
                    (table(&sheets::throughput(results)))
                    details {
                        summary { "pvlock against each other lock, with standard deviations" }
                        (table(&sheets::against(results)))
                    }
                    h3 { "Who gets it" }
                    p { "A lock may be fast because it serves one vCPU only. 1 is: all alike." }
                    (fairness)
                    (table(&sheets::waits(results)))
                    (table(&sheets::long_run(results)))
                    h3 { "How long they wait, at " (WAITS_AT) "x" }
                    p {
                        "Both axes are logarithmic: a line that ends further left has the shorter longest wait. Each wait is one \
                         acquisition, the time counted in which its vCPU could not run."
                    }
                    (waits)
                    (table(&sheets::sections(results)))
                    (table(&sheets::frozen(results)))
                }
                section {
                    h2 { "Locks that sleep, and reader-writer locks" }
                    @for sheet in &family::sheets(results) { (table(sheet)) }
                }
                @let policies = policies::sheets(results);
                @if policies.iter().any(|sheet| !sheet.lines.is_empty()) {
                    section {
                        h2 { "Ways to wait" }
                        @for sheet in &policies { (table(sheet)) }
                    }
                }
                @let seeds = seeds::sheets(results);
                @if seeds.iter().any(|sheet| !sheet.lines.is_empty()) {
                    section {
                        h2 { "Five systems, off and on" }
                        @for sheet in &seeds { (table(sheet)) }
                    }
                }
                section {
                    h2 { "A CPU for each vCPU" }
                    (table(&sheets::uncontended(results)))
                    (table(&sheets::handoff(results)))
                    (table(&sheets::s1(results)))
                }
                footer {
                    h2 { "How it was measured" }
                    p {
                        "Rounds take each lock once, in an order that is turned from round to round. Values are medians of the \
                         rounds. During each sample the use of CPU by everything else on the machine was watched. "
                        (results.samples_in_words())
                    }
                    p { "Made by " code { "cargo xtask bench" } "." }
                }
            }
        }
    };
    Ok(page.into_string())
}

/// The result in a sentence or two.
fn lead(results: &Results) -> String {
    let rate = |lock, degree| results.swept(lock, degree).map(|contended| contended.ops_per_s);
    match (rate(LockName::Pvlock, 1), rate(LockName::Pvlock, WAITS_AT), rate(LockName::Ticket, WAITS_AT)) {
        (Some(alone), Some(crowded), Some(ticket)) if alone > 0.0 && ticket > 0.0 => format!(
            "With {WAITS_AT} vCPUs per CPU, pvlock keeps {:.0} % of the rate that it has with one: {} acquisitions per second. A \
             ticket lock is left with {}.",
            crowded / alone * 100.0,
            quantity(crowded),
            quantity(ticket)
        ),
        _ => "Spinlocks of a guest whose vCPUs the host preempts.".to_owned(),
    }
}

fn machine(results: &Results) -> Markup {
    let (machine, options) = (&results.machine, &results.options);
    html! {
        dl {
            dt { "Machine" } dd { (machine.processor) ", " (machine.cpus) " CPUs, Linux " (machine.kernel) }
            dt { "Measured" } dd { (machine.at) @if options.quick { ", quick" } @if !results.complete { ", not to its end" } }
            dt { "CPUs used" } dd { (options.cpus) }
            dt { "Time slice" } dd { (options.quantum_us) " µs" }
            dt { "Sections" } dd { (options.cs) " steps of 4 cycles with the lock, " (options.ncs) " without" }
        }
    }
}

fn verdicts(results: &Results) -> Markup {
    let count = |held| results.figures.iter().filter(|figure| figure.held() == held).count();
    html! {
        section {
            h2 { "What must hold" }
            p {
                strong { (count(Some(true))) " held" } ", "
                strong { (count(Some(false))) " missed" }
                @if count(None) > 0 { ", " (count(None)) " not measured" }
                ". Beside each figure stands what the machine itself allows."
            }
            (table(&Sheet { title: "", ..figures::sheet(&results.figures) }))
        }
    }
}

fn table(sheet: &Sheet) -> Markup {
    if sheet.lines.is_empty() {
        return html! {};
    }
    html! {
        div.sheet {
            @if !sheet.title.is_empty() { h3 { (sheet.title) } }
            @if !sheet.note.is_empty() { p.note { (sheet.note) } }
            div.scroll {
                table {
                    thead { tr { @for (i, name) in sheet.header.iter().enumerate() { th.text[is_text(sheet, i)] { (name) } } } }
                    tbody { @for line in &sheet.lines { (row(sheet, line)) } }
                }
            }
        }
    }
}

fn row(sheet: &Sheet, line: &Line) -> Markup {
    let class = match line.kind {
        Kind::Ours => "ours",
        Kind::Peer => "peer",
        Kind::Limit => "limit",
        Kind::Held => "held",
        Kind::Missed => "missed",
    };
    html! {
        tr class=(class) {
            @for (i, cell) in line.cells.iter().enumerate() {
                td.text[is_text(sheet, i)] {
                    (cell)
                    @if let (0, Some(bar)) = (i, line.bar) {
                        span.bar style=(format!("width:{:.1}%", bar * 100.0)) {}
                    }
                }
            }
        }
    }
}

fn is_text(sheet: &Sheet, column: usize) -> bool {
    column == 0 || column >= sheet.left_from
}
