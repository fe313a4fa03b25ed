//! `cargo xtask bench`: the locks at native speed, as tables, JSON and page, and the figures that must hold.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args as ClapArgs;
use pvlock_bench_protocol::{Kind, Options};

use crate::bench::{self, Ended, Results};
use crate::cargo;
use crate::machine;
use crate::output::Output;
use crate::process;

/// Runs of each way to wait in a nested guest.
const NESTED_ROUNDS: u32 = 10;

/// Measure pvlock and its peers at native speed on this machine.
///
/// Alone, between two CPUs, and with up to 16 vCPUs per CPU on a host in user space that preempts them; and
/// `vcpu_is_preempted` against the forms that it replaces. Takes about 13 minutes, or one with --quick. Ctrl-C keeps
/// what was measured.
///
/// Figures that must hold stand at the end with their verdicts; a missed one is an exit code only with --check.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(flatten)]
    options: Options,

    /// Measure ways to wait against each other instead: the matrix that the default is chosen from, on the test host and in guests
    /// of a nested KVM. Takes about eight minutes.
    #[arg(long, conflicts_with_all = ["only", "locks"])]
    policies: bool,

    /// Measure the five systems that the library descends from instead: each mechanism off and on, in the test host and in the guest, 1 to 4
    /// vCPUs per CPU. Takes about ten minutes.
    #[arg(long, conflicts_with_all = ["only", "locks", "policies"])]
    seeds: bool,

    /// Fail when a figure that was measured misses its bound.
    #[arg(long)]
    check: bool,

    /// Write the results to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write the report, a single page with charts, to this file [default: bench.html in the target folder].
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Args {
    /// The exit code: of success, of a missed figure if that was to be checked, or of an interrupt.
    pub fn run(mut self) -> Result<ExitCode> {
        if self.policies {
            self.options.only = vec![Kind::Policies];
        }
        if self.seeds {
            self.options.only = vec![Kind::Seeds];
        }
        machine::require_x86_64_linux()?;
        self.check_cpus()?;
        let json = self.json.as_deref().map(Output::check).transpose()?;
        let page = self.html.clone().map_or_else(|| Ok(cargo::target_dir()?.join("bench.html")), anyhow::Ok)?;
        let page = Output::check(&page)?;

        let program = bench::build()?;
        let measured = bench::measure(&program, &self.options)?;
        if let Ended::Failed(reason) = &measured.ended {
            ensure!(!measured.samples.is_empty(), "{reason}");
            eprintln!("xtask: the measurement ended early: {reason}");
        }

        let mut results = Results::new(&measured, &self.options)?;
        if self.options.wants(Kind::Policies) && matches!(measured.ended, Ended::Complete) {
            let rounds = self.options.runs.unwrap_or(if self.options.quick { 2 } else { NESTED_ROUNDS });
            match bench::policies_nested(rounds) {
                Ok(rows) => results.nested = rows,
                Err(error) => eprintln!("xtask: nothing is known of guests: {error:#}"),
            }
        }
        println!("{}", results.text());
        page.write(&bench::html(&results)?)?;
        println!("report: {}", page.path().display());
        if let Some(json) = json {
            json.write(&serde_json::to_string_pretty(&results)?)?;
        }
        Ok(match measured.ended {
            Ended::Interrupted => ExitCode::from(process::INTERRUPTED),
            Ended::Failed(_) => ExitCode::FAILURE,
            Ended::Complete if self.check && !results.all_held() => ExitCode::FAILURE,
            Ended::Complete => ExitCode::SUCCESS,
        })
    }

    /// Each vCPU is a thread here, and what a CPU is, this machine decides.
    fn check_cpus(&self) -> Result<()> {
        let (asked, here) = (self.options.cpus, machine::cpu_count()?);
        ensure!(asked <= here, "--cpus {asked} is more than the {here} CPUs that this process may run on");
        let most = pvlock_bench_protocol::DEGREES.into_iter().max().unwrap_or(1) * asked;
        ensure!(most <= pvlock::MAX_CPUS, "--cpus {asked} takes {most} vCPUs, more than {}", pvlock::MAX_CPUS);
        Ok(())
    }
}
