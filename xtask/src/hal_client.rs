//! The guest `hal-client`: one kernel on a hardware abstraction layer from crates.io, built with the locks that it came with and with ours.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::backend::{Backend, Guest, Kind, KvmCounters};
use crate::bare::{TARGET, Toolchain};
use crate::boot::Outcome;
use crate::cargo;
use crate::line;
use crate::machine;
use crate::overcommit::{self, Sample};
use crate::progress;
use crate::qemu::Thread;
use crate::report::{self, Row};
use crate::summary::Summary;

/// Name on the command line.
pub const NAME: &str = "hal-client";

/// As `MAX_CPUS` in its linker script.
const MAX_VCPUS: usize = 64;

/// Boots of each form, by turns.
const BOOTS: u32 = 3;

/// Rounds of each boot; words that the user gives come after and win.
const ROUNDS: u32 = 3;
const PARAMETERS: &str = "ms=350 stop_ms=400";

/// How long it may say nothing: many intervals.
const SILENCE: Duration = Duration::from_secs(30);

/// How the intervals' names begin in which the owner of a lock is stopped.
const STOPPED: &str = "stopped-";

/// Parameters that are not the user's to give: the guest must agree with the comparison about them.
const OURS: [&str; 2] = ["vcpus", "rounds"];

/// With whose locks it is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Those that it came with.
    Stock,
    /// Ours.
    Pvlock,
}

impl Form {
    pub const ALL: [Self; 2] = [Self::Stock, Self::Pvlock];

    /// Name of its folder in `examples/hal-client`, and in the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Pvlock => "pvlock",
        }
    }
}

/// Builds the image with the locks of `form` and returns its path.
pub fn build(form: Form) -> Result<PathBuf> {
    machine::require_x86_64_linux()?;
    let toolchain = Toolchain::find()?;
    let name = format!("{NAME}-{}", form.name());
    let target_dir = cargo::target_dir()?.join(NAME);
    let mut command = toolchain.cargo("build");
    // It finds its flags there, in `.cargo/config.toml`.
    command
        .current_dir(cargo::workspace_root().join("examples").join(NAME).join(form.name()))
        .args(["--quiet", "--release"])
        .env("CARGO_TARGET_DIR", &target_dir)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    let status = progress::step(format!("building the guest {name}"), || command.status());
    if !status.context("cannot start cargo to build the guest")?.success() {
        bail!(
            "the guest `{name}` does not build: see cargo's messages above (its HAL takes unstable parts of the standard library by way of x86_64 \
             0.15.4, which fit Rust 1.88 to 1.98)"
        );
    }
    Ok(target_dir.join(TARGET).join("release").join(name))
}

/// The guest's command line.
pub fn command_line(vcpus: usize, rounds: u32, parameters: &str) -> Result<String> {
    ensure!(vcpus <= MAX_VCPUS, "--vcpus {vcpus} is more than the {MAX_VCPUS} that {NAME} has room for");
    for key in parameters.split(' ').filter_map(|word| Some(word.split_once('=')?.0)) {
        ensure!(
            !OURS.contains(&key),
            "{NAME} takes no parameter {key} here: --vcpus says how many, and the rounds are fixed"
        );
    }
    Ok(format!("vcpus={vcpus} rounds={rounds} {PARAMETERS} {parameters}").trim_end().to_owned())
}

/// How it is to run.
#[derive(Debug)]
pub struct Plan<'a> {
    pub vcpus: usize,
    pub cpus: usize,
    pub cpu_flags: &'a [String],
    pub thread: Option<Thread>,
    /// For one boot.
    pub limit: Duration,
    /// Words for the guest.
    pub parameters: String,
}

/// Both forms of the guest, compared: the contents of `--json`.
#[derive(Debug, Serialize)]
pub struct Comparison {
    backend: Kind,
    example: &'static str,
    vcpus: usize,
    cpus: usize,
    status: &'static str,
    locks: Vec<Pair>,
    /// CPUs that the machine used while a lock's owner had halted and all others waited for it. Nothing with one vCPU.
    stopped_owner: Vec<Burned>,
    /// The most that the machine can use.
    most_cpus: usize,
    /// KVM's counters of all boots of each form.
    kvm: BTreeMap<&'static str, KvmCounters>,
}

/// A lock in both forms.
#[derive(Debug, Serialize)]
struct Pair {
    stock: Row,
    pvlock: Row,
    improvement: f64,
}

#[derive(Debug, Serialize)]
struct Burned {
    lock: String,
    stock: Summary,
    pvlock: Summary,
}

/// Boots both forms by turns and compares them. An error unless every boot ended well, with right sums.
pub fn compare(backend: &Backend, plan: &Plan) -> Result<Comparison> {
    let command_line = command_line(plan.vcpus, ROUNDS, &plan.parameters)?;
    let images = [build(Form::Stock)?, build(Form::Pvlock)?];
    let mut samples = [vec![], vec![]];
    let mut kvm = BTreeMap::new();
    for boot in 1..=BOOTS {
        for (index, (form, image)) in Form::ALL.into_iter().zip(&images).enumerate() {
            let what = format!("{} locks, boot {boot} of {BOOTS}", form.name());
            let brought = overcommit::boot(backend, &guest(plan, image, &command_line), &what, ROUNDS)?;
            if form == Form::Pvlock {
                require_registered(&brought.outcome, backend.kind, plan)?;
            }
            if boot == 1 {
                for text in brought.outcome.lines.iter().filter_map(|line| line::for_people(&line.text)) {
                    println!("{}: {text}", form.name());
                }
            }
            if let Some(counters) = &brought.outcome.kvm {
                kvm.entry(form.name()).or_insert_with(KvmCounters::default).add(counters);
            }
            samples[index].extend(brought.samples);
        }
    }
    let [stock, pvlock] = &samples;
    Ok(Comparison {
        backend: backend.kind,
        example: NAME,
        vcpus: plan.vcpus,
        cpus: plan.cpus,
        status: "ok",
        locks: pairs(stock, pvlock, plan)?,
        stopped_owner: locks(stock)
            .into_iter()
            .filter(|lock| lock.starts_with(STOPPED))
            .filter_map(|lock| {
                Some(Burned { lock: lock.to_owned(), stock: burned(lock, stock)?, pvlock: burned(lock, pvlock)? })
            })
            .collect(),
        most_cpus: most_cpus(backend.kind, plan)?,
        kvm,
    })
}

fn guest<'a>(plan: &'a Plan, image: &'a Path, command_line: &str) -> Guest<'a> {
    Guest {
        image,
        vcpus: plan.vcpus,
        cpus: plan.cpus,
        cpu_flags: plan.cpu_flags,
        command_line: command_line.to_owned(),
        thread: plan.thread,
        limit: plan.limit,
        silence: Some(SILENCE),
    }
}

/// Fails where KVM offers all and the kernel did not register all of its CPUs: it would be compared without what it is for.
fn require_registered(outcome: &Outcome, kind: Kind, plan: &Plan) -> Result<()> {
    let known =
        outcome.records("registered").last().context("the guest printed no `registered` line")?.number("cpus")?;
    ensure!(
        kind == Kind::Tcg || !plan.cpu_flags.is_empty() || known == plan.vcpus as u64,
        "only {known} of the guest's {} CPUs are registered with KVM: see its lines",
        plan.vcpus
    );
    Ok(())
}

/// CPUs that the guest's machine can use at most: with a single thread it is one, however many are emulated.
fn most_cpus(kind: Kind, plan: &Plan) -> Result<usize> {
    let threads = match (kind, plan.thread) {
        (Kind::Nested, None) | (_, Some(Thread::Single)) if kind != Kind::Kvm => 1,
        (Kind::Kvm | Kind::Tcg, _) => plan.cpus.min(plan.vcpus),
        (Kind::Nested, _) => plan.cpus,
    };
    Ok(threads.min(machine::cpu_count()?))
}

/// The names of what was measured, in order.
fn locks(samples: &[Sample]) -> Vec<&str> {
    let mut locks: Vec<&str> = vec![];
    for sample in samples {
        if !locks.contains(&sample.lock.as_str()) {
            locks.push(&sample.lock);
        }
    }
    locks
}

fn pairs(stock: &[Sample], pvlock: &[Sample], plan: &Plan) -> Result<Vec<Pair>> {
    let row = |lock: &str, form: Form, samples| {
        let row = Row::new(lock, plan.vcpus, plan.cpus, samples);
        row.with_context(|| format!("the guest measured nothing for {} lock {lock}", form.name()))
    };
    locks(stock)
        .into_iter()
        .filter(|lock| !lock.starts_with(STOPPED))
        .map(|lock| {
            let (stock, pvlock) = (row(lock, Form::Stock, stock)?, row(lock, Form::Pvlock, pvlock)?);
            Ok(Pair { improvement: pvlock.ops_per_s / stock.ops_per_s - 1.0, stock, pvlock })
        })
        .collect()
}

/// What was burned while the owner was stopped; from disturbed samples only where the others are fewer than half.
fn burned(lock: &str, samples: &[Sample]) -> Option<Summary> {
    let all: Vec<&Sample> = samples.iter().filter(|sample| sample.lock == lock).collect();
    let clean: Vec<f64> = all.iter().filter(|sample| sample.is_clean()).map(|sample| sample.own).collect();
    let used =
        if report::enough(clean.len(), all.len()) { clean } else { all.iter().map(|sample| sample.own).collect() };
    Summary::of(&used)
}

impl Comparison {
    /// The tables, for people.
    pub fn text(&self) -> String {
        let mut table = report::plain_table();
        table.set_header([
            "lock of the HAL",
            "stock",
            "stdev",
            "pvlock",
            "stdev",
            "improvement",
            "fairness",
            "",
            "longest call",
            "",
            "runs",
        ]);
        for Pair { stock, pvlock, improvement } in &self.locks {
            table.add_row([
                stock.lock.clone(),
                report::quantity(stock.ops_per_s),
                report::quantity(stock.stdev),
                report::quantity(pvlock.ops_per_s),
                report::quantity(pvlock.stdev),
                format!("{:+.1} %", improvement * 100.0),
                format!("{:.2}", stock.fairness),
                format!("{:.2}", pvlock.fairness),
                report::duration(stock.max_wait_us),
                report::duration(pvlock.max_wait_us),
                stock.runs.min(pvlock.runs).to_string(),
            ]);
        }
        report::align_right(&mut table);
        let mut text = format!(
            "Back end {}: {}.\n{} vCPUs on {} CPUs; acquisitions per second, medians, timed by the host's clock; fairness and longest call of the lock: stock, \
             then pvlock.\n\n{table}\n",
            self.backend,
            self.backend.meaning(),
            self.vcpus,
            self.cpus
        );
        if !self.stopped_owner.is_empty() {
            let mut table = report::plain_table();
            table.set_header(["owner halts with the lock held", "stock", "stdev", "pvlock", "stdev", "runs"]);
            for Burned { lock, stock, pvlock } in &self.stopped_owner {
                let cpus = |value: f64| format!("{value:.2}");
                table.add_row([
                    lock.trim_start_matches(STOPPED).to_owned(),
                    cpus(stock.median),
                    cpus(stock.stdev),
                    cpus(pvlock.median),
                    cpus(pvlock.stdev),
                    stock.runs.min(pvlock.runs).to_string(),
                ]);
            }
            report::align_right(&mut table);
            text += &format!(
                "\nCPUs that are used while the owner of a lock has halted, as if the host did not run it, and {} vCPUs wait: {:.2} at most. By the \
                 host's clock for all that was started for the guest, in steps of 10 ms.\n\n{table}\n",
                self.vcpus - 1,
                self.most_cpus as f64
            );
        }
        if self.backend == Kind::Tcg {
            text += "\nWithout KVM nobody tells a guest about preemption: this shows that the kernel works, and nothing about preemption.\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(lock: &str, ops_per_s: f64, own: f64, foreign: f64) -> Sample {
        Sample {
            lock: lock.to_owned(),
            ops_per_s,
            per_vcpu: vec![10, 5],
            max_wait_us: 1.0,
            counters: BTreeMap::new(),
            foreign,
            own,
        }
    }

    #[test]
    fn disturbed_samples_of_a_stopped_owner_are_set_aside_unless_they_are_the_most() {
        let stopped = |own, foreign| sample("stopped-SpinRaw", 1.0, own, foreign);
        let median = |samples: &[Sample]| burned("stopped-SpinRaw", samples).map(|summary| summary.median);
        assert_eq!(median(&[stopped(0.1, 0.0), stopped(0.3, 0.0), stopped(9.0, 1.0)]), Some(0.2));
        assert_eq!(median(&[stopped(0.1, 0.0), stopped(3.0, 1.0), stopped(9.0, 1.0)]), Some(3.0));
        assert_eq!(median(&[sample("SpinRaw", 1.0, 1.0, 0.0)]), None);
    }

    #[test]
    fn every_lock_is_compared_and_a_missing_one_is_named() {
        let plan =
            Plan { vcpus: 2, cpus: 1, cpu_flags: &[], thread: None, limit: Duration::ZERO, parameters: String::new() };
        let stock = [
            sample("SpinRaw", 100.0, 1.0, 0.0),
            sample("stopped-SpinRaw", 1.0, 1.0, 0.0),
            sample("io-apic", 8.0, 1.0, 0.0),
        ];
        let pvlock = [sample("SpinRaw", 150.0, 1.0, 0.0), sample("io-apic", 8.0, 1.0, 0.0)];
        let pairs = pairs(&stock, &pvlock, &plan).unwrap();
        assert_eq!(pairs.iter().map(|pair| pair.improvement).collect::<Vec<_>>(), [0.5, 0.0]);
        let error = super::pairs(&stock, &pvlock[..1], &plan).unwrap_err();
        assert_eq!(error.to_string(), "the guest measured nothing for pvlock lock io-apic");
    }

    #[test]
    fn more_vcpus_than_there_is_room_for_are_refused() {
        assert!(command_line(64, 1, "").is_ok());
        assert!(command_line(65, 1, "").unwrap_err().to_string().contains("64"));
        assert!(command_line(4, 1, "ms=9 vcpus=2").unwrap_err().to_string().contains("vcpus"));
        assert_eq!(command_line(4, 2, "ms=9").unwrap(), "vcpus=4 rounds=2 ms=350 stop_ms=400 ms=9");
    }
}
