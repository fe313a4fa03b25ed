//! `cargo xtask demo`: four locks in one guest at 1x, 2x and 4x overcommit, as tables, chart and JSON.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args as ClapArgs;

use super::options::{self, Machine};
use crate::agreement::{self, ALLOWANCE, TOLERANCE};
use crate::backend::{Backend, Guest, Kind, KvmCounters};
use crate::cargo;
use crate::chart;
use crate::image;
use crate::output::Output;
use crate::overcommit::{self, FOREIGN_LIMIT, Sample};
use crate::report::{self, BASES, BootCounters, OURS, Report, Row};
use crate::setup;

/// vCPUs per physical CPU.
const DEGREES: [usize; 3] = [1, 2, 4];

/// Length of one round of one lock: many time slices, yet all rounds of all locks fit into a few minutes.
const ROUND_MS: u32 = 350;

/// How long a guest stays after its last line, so that KVM's counters can be read once more.
const LINGER_MS: u32 = 600;

/// Boots for one degree of overcommit, when too many samples have to be set aside or a machine hangs.
const BOOTS: usize = 3;

/// How long a guest may say nothing: many rounds.
const SILENCE: Duration = Duration::from_secs(20);

/// Compare pvlock with the locks that Rust kernels use, with more vCPUs than CPUs.
///
/// Boots a guest whose vCPUs all contend for one lock, at 1x, 2x and 4x overcommit, and reports throughput, fairness
/// and longest wait of each lock. Takes about two minutes.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(flatten)]
    machine: Machine,

    /// Runs of each lock at each degree of overcommit, interleaved.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,

    /// Seconds after which a single guest is killed [default: 60, and 10 for each run].
    #[arg(long, value_parser = options::seconds)]
    timeout: Option<Duration>,

    /// Write the results to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write the chart to this file [default: overcommit.svg in the target folder].
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// What the boots at one degree of overcommit brought.
#[derive(Default)]
struct Measured {
    samples: Vec<Sample>,
    boots: Vec<BootCounters>,
}

impl Args {
    /// Whether the measurement is valid; an error if there is none.
    pub fn run(self) -> Result<bool> {
        let most = DEGREES.into_iter().max().unwrap_or(1) * self.machine.cpus;
        ensure!(
            most <= pvlock::MAX_CPUS,
            "--cpus {} takes {most} vCPUs, more than {}",
            self.machine.cpus,
            pvlock::MAX_CPUS
        );
        self.machine.check()?;
        let json = self.json.as_deref().map(Output::check).transpose()?;
        let chart_path =
            self.svg.clone().map_or_else(|| Ok(cargo::target_dir()?.join("overcommit.svg")), anyhow::Ok)?;
        let chart = Output::check(&chart_path)?;
        setup::ensure_qemu()?;
        let image = image::build("overcommit")?;
        let backend = self.machine.backend()?;

        let mut report = Report {
            backend: backend.kind,
            valid: true,
            objections: vec![],
            rows: vec![],
            kvm: KvmCounters::default(),
            boots: vec![],
        };
        for degree in DEGREES {
            let vcpus = degree * self.machine.cpus;
            let measured = self.measure(&backend, &image, vcpus)?;
            for lock in [OURS].into_iter().chain(BASES) {
                let row = Row::new(lock, vcpus, self.machine.cpus, &measured.samples);
                report.rows.push(row.with_context(|| format!("the guest measured nothing for lock {lock}"))?);
            }
            report.boots.extend(measured.boots);
        }
        conclude(&mut report);
        show(&report);
        chart.write(&chart::svg(&report)?)?;
        println!("chart: {}", chart.path().display());
        if let Some(json) = json {
            json.write(&serde_json::to_string_pretty(&report)?)?;
        }
        Ok(report.valid)
    }

    /// Boots the guest with `vcpus`, again while too many samples come from a busy machine.
    fn measure(&self, backend: &Backend, image: &Path, vcpus: usize) -> Result<Measured> {
        let mut measured = Measured::default();
        for boot in 1..=BOOTS {
            self.boot(backend, image, vcpus, &mut measured)?;
            let all = measured.samples.len();
            let clean = measured.samples.iter().filter(|sample| sample.is_clean()).count();
            // A boot that was cut short brings fewer samples than planned.
            let planned = self.runs as usize * (1 + BASES.len());
            if report::enough(clean, all.max(planned)) {
                break;
            }
            if clean < all {
                eprintln!("{} of {all} samples had other work on this machine (boot {boot} of {BOOTS})", all - clean);
            }
        }
        Ok(measured)
    }

    fn boot(&self, backend: &Backend, image: &Path, vcpus: usize, measured: &mut Measured) -> Result<()> {
        let guest = Guest {
            image,
            vcpus,
            cpus: self.machine.cpus,
            cpu_flags: &self.machine.cpu_flags,
            command_line: format!("rounds={} ms={ROUND_MS} verbose=1 linger_ms={LINGER_MS}", self.runs),
            thread: self.machine.thread,
            limit: self.timeout.unwrap_or(Duration::from_secs(60 + 10 * u64::from(self.runs))),
            silence: Some(SILENCE),
        };
        let what = format!("{vcpus} vCPUs on {} CPUs", self.machine.cpus);
        let boot = overcommit::boot(backend, &guest, &what, self.runs)?;
        measured.samples.extend(boot.samples);
        let outcome = boot.outcome;
        if outcome.was_cut_short() {
            return Ok(());
        }
        let total = outcome.records("total").last().context("the guest printed no `total` line")?;
        let agreement =
            outcome.kvm.as_ref().map(|kvm| agreement::compare(&total, kvm)).transpose()?.unwrap_or_default();
        measured.boots.push(BootCounters { vcpus, kvm: outcome.kvm, agreement });
        Ok(())
    }
}

/// Adds up KVM's counters and finds what speaks against the measurement.
fn conclude(report: &mut Report) {
    for kvm in report.boots.iter().filter_map(|boot| boot.kvm.as_ref()) {
        report.kvm.add(kvm);
    }
    if report.backend == Kind::Tcg {
        report
            .objections
            .push("without KVM nobody tells a guest about preemption, so this is no test of it".to_owned());
    } else if !report::mechanism_fired(&report.rows) {
        report.objections.push("no waiter of pvlock ever met a preempted owner and yielded or halted".to_owned());
    }
    let differing = report.boots.iter().flat_map(|boot| &boot.agreement).filter(|agreement| !agreement.agree);
    report
        .objections
        .extend(differing.map(|agreement| format!("KVM's counters differ from ours: {agreement}")).collect::<Vec<_>>());
    report.valid = report.objections.is_empty();
}

fn show(report: &Report) {
    println!("Back end {}: {}.", report.backend, report.backend.meaning());
    println!("Acquisitions per second of one lock by all vCPUs; medians, timed by the host's clock.\n");
    println!("{}\n", report.throughput_table());
    println!("Fairness is the least served vCPU over the best served one.\n");
    println!("{}\n", report.fairness_table());
    let set_aside: usize = report.rows.iter().map(|row| row.set_aside).sum();
    let runs: usize = report.rows.iter().map(|row| row.runs).sum();
    println!("{runs} samples; {set_aside} more set aside (other work above {FOREIGN_LIMIT} CPU).");
    let foreign = report.foreign_cpus();
    if foreign > FOREIGN_LIMIT {
        println!(
            "NOISY: other work took up to {foreign:.2} CPU during the samples used, since there were no better ones."
        );
    }
    for boot in &report.boots {
        let verdicts: Vec<String> = boot.agreement.iter().map(ToString::to_string).collect();
        println!("{} vCPUs: {}", boot.vcpus, verdicts.join("; "));
    }
    println!("Agreement is within {} % and {ALLOWANCE} events.", TOLERANCE * 100.0);
    match report.objections.as_slice() {
        [] => println!("The mechanism fired: waiters met preempted owners and yielded or halted."),
        objections => objections.iter().for_each(|objection| println!("INVALID: {objection}")),
    }
}
