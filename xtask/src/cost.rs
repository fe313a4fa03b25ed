//! The images of `cargo xtask cost`, and its tables.

use std::fmt::Write;
use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;
use cost_host::{Built, Cost, Costs};
use pvlock_bench_protocol::FOREIGN_LIMIT;
use serde::Serialize;

use crate::bare::{TARGET, Toolchain};
use crate::cargo;
use crate::progress;
use crate::report::{align_right, plain_table};
use crate::summary::Summary;

const PACKAGE: &str = "cost-image";

/// Built for release with fat link-time optimisation, and as cargo does it by default.
pub const LTO: &str = "with fat LTO";
const NO_LTO: &str = "without LTO";

/// The linker of the system, which is there wherever Rust is: rustup's toolchains bring one of their own, Debian's do not.
const FLAGS: &str = "-C linker=ld -C linker-flavor=ld";

/// What stands before the names of the link-time symbols.
const SYMBOLS: &str = "__pvlock_platform_";

/// Builds both images.
pub fn images(toolchain: &Toolchain) -> Result<Vec<Built>> {
    [(LTO, "'fat'"), (NO_LTO, "false")].into_iter().map(|(build, lto)| image(toolchain, build, lto)).collect()
}

fn image(toolchain: &Toolchain, build: &str, lto: &str) -> Result<Built> {
    let mut command = toolchain.cargo("build");
    command
        .args(["--quiet", "--release", "--package", PACKAGE, "--config", &format!("profile.release.lto={lto}")])
        .arg("--message-format=json-render-diagnostics")
        .env("RUSTFLAGS", FLAGS)
        // A folder of its own: other flags would make the ordinary builds start over each time.
        .env("CARGO_TARGET_DIR", cargo::target_dir()?.join("cost"))
        .stderr(Stdio::inherit());
    let output = progress::step(format!("building the locks {build}"), || command.output())
        .context("cannot start cargo to build the locks")?;
    if !output.status.success() {
        bail!("the package {PACKAGE} does not build for {TARGET}: see cargo's messages above");
    }
    let image = Message::parse_stream(output.stdout.as_slice())
        .filter_map(|message| match message.ok()? {
            Message::CompilerArtifact(artifact) if artifact.target.name == PACKAGE => artifact.executable,
            _ => None,
        })
        .last()
        .context("cargo built no image of the locks")?;
    // The other build overwrites it.
    let file = fs::read(&image).with_context(|| format!("cannot read {image}"))?;
    Ok(Built { build: build.to_owned(), file })
}

/// Everything that was found.
#[derive(Debug, Serialize)]
pub struct Report {
    target: &'static str,
    compiler: String,
    runs: usize,
    /// Frequency of the time-stamp counter, whose cycles are counted.
    tsc_mhz: f64,
    /// CPUs that other work used meanwhile.
    foreign_cpus: f64,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    cost: Cost,
    /// Cycles for both parts; `None` where user space may not execute all of it.
    cycles: Option<Summary>,
}

impl Report {
    pub fn new(costs: Costs, compiler: String, runs: usize, foreign_cpus: f64) -> Self {
        let row = |cost: Cost| Row { cycles: Summary::of(&cost.cycles), cost };
        Self {
            target: TARGET,
            compiler,
            runs,
            tsc_mhz: 1e3 / costs.ns_per_cycle,
            foreign_cpus,
            rows: costs.rows.into_iter().map(row).collect(),
        }
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "Uncontended cost, built for {} by {}.\n\n\
             bytes         around () / around u64\n\
             instructions  executed to take + to release the lock, inlined into straight-line code, calls included; of them locked\n\
             off, on       waiters never halt; the kernel has decided that they may (`pvlock` only)\n\
             cycles        of the time-stamp counter ({:.0} MHz), {} runs in turn on one CPU, both parts inlined into a loop: median \u{b1} stdev;\n\
             \u{20}             - where cli and sti are executed, which user space may not: those are counted, and nothing is timed\n\
             calls         of what is not inlined, named without `{SYMBOLS}`\n",
            self.target, self.compiler, self.tsc_mhz, self.runs
        );
        if self.foreign_cpus > FOREIGN_LIMIT {
            let _ = writeln!(
                text,
                "\nOther work used {:.2} CPUs meanwhile: repeat this when the machine is idle.",
                self.foreign_cpus
            );
        }
        for build in [LTO, NO_LTO] {
            let _ = writeln!(text, "\nBuilt for release {build}:\n{}", self.table(build));
        }
        text
    }

    fn table(&self, build: &str) -> String {
        let mut table = plain_table();
        table.set_header([
            "lock",
            "bytes",
            "take",
            "release off",
            "on",
            "locked off",
            "on",
            "cycles off",
            "on",
            "calls",
        ]);
        let rows = || self.rows.iter().filter(|row| row.cost.build == build);
        for off in rows().filter(|row| row.cost.halting != Some(true)) {
            let name = row_name(&off.cost);
            let on = rows().find(|row| row.cost.halting == Some(true) && row_name(&row.cost) == name);
            let release = |row: &Row| row.cost.round.release.instructions.to_string();
            let locked = |row: &Row| format!("{} + {}", row.cost.round.take.locked, row.cost.round.release.locked);
            let only_on = |show: &dyn Fn(&Row) -> String| on.map(show).unwrap_or_default();
            table.add_row([
                name.clone(),
                format!("{} / {}", off.cost.bytes, off.cost.bytes_around_u64),
                off.cost.round.take.instructions.to_string(),
                release(off),
                only_on(&release),
                locked(off),
                only_on(&locked),
                cycles(off),
                only_on(&cycles),
                calls(&off.cost),
            ]);
        }
        align_right(&mut table);
        table.to_string()
    }
}

/// The crate, the lock, what is done with it, the guard and the form, as far as they tell it from others.
pub fn row_name(cost: &Cost) -> String {
    let lock = format!("{} `{}`", cost.from, cost.lock);
    let lock = if cost.from == "limit" { format!("limit: {}", cost.lock) } else { lock };
    let lock = if cost.operation == "lock" { lock } else { format!("{lock} {}", cost.operation) };
    [lock.as_str(), cost.form.as_str(), cost.guard.as_str()]
        .into_iter()
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(", ")
}

fn cycles(row: &Row) -> String {
    row.cycles.map_or_else(|| "-".to_owned(), |cycles| format!("{:.1} \u{b1} {:.1}", cycles.median, cycles.stdev))
}

fn calls(cost: &Cost) -> String {
    let calls: Vec<&str> = cost
        .round
        .take
        .calls
        .iter()
        .chain(&cost.round.release.calls)
        .map(|call| call.strip_prefix(SYMBOLS).unwrap_or(call))
        .collect();
    calls.join(" ")
}
