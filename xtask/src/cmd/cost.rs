//! `cargo xtask cost`: what an uncontended lock costs, as built for kernels.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args as ClapArgs;
use clap::builder::RangedU64ValueParser;

use crate::bare::Toolchain;
use crate::cost;
use crate::machine::{self, CpuTime};
use crate::output::Output;
use crate::progress;

/// Size, instructions and cycles of locking and unlocking without contention, for each lock and platform form and for spin,
/// hermit-sync and kspin, as built for x86_64-unknown-none with fat LTO and without.
///
/// The images are loaded into this process. Instructions are those that are executed, counted one by one; cycles are those of the
/// time-stamp counter, measured in turn on one CPU. Takes seconds, besides building.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Runs per lock, of which median and standard deviation are shown.
    #[arg(long, default_value_t = 41, value_parser = RangedU64ValueParser::<usize>::new().range(2..=10_000))]
    runs: usize,

    /// Write the result to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Args {
    pub fn run(self) -> Result<()> {
        machine::require_x86_64_linux()?;
        let output = self.json.as_deref().map(Output::check).transpose()?;
        let toolchain = Toolchain::find()?;
        let images = cost::images(&toolchain)?;
        let before = CpuTime::now()?;
        let costs = progress::step("measuring", || cost_host::measure(&images, self.runs))?;
        let foreign_cpus = CpuTime::now()?.foreign_since(&before);
        let report = cost::Report::new(costs, toolchain.version()?, self.runs, foreign_cpus);
        print!("{}", report.text());
        if let Some(output) = output {
            output.write(&serde_json::to_string_pretty(&report)?)?;
        }
        Ok(())
    }
}
