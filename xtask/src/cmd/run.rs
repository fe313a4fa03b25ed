//! `cargo xtask run EXAMPLE`: boots one example guest and checks how it ends.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args as ClapArgs;
use serde::Serialize;

use super::options::{self, Machine};
use crate::backend::{Guest, Kind, KvmCounters};
use crate::boot::{self, Outcome};
use crate::hal_client;
use crate::image;
use crate::line::{self, Record};
use crate::output::Output;
use crate::setup;

/// Boot one example guest, show what it says and check how it ends.
///
/// The example hal-client is a kernel on a hardware abstraction layer from crates.io: it is booted by turns with the locks that it came with and
/// with pvlock's in their place, and the two are compared.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Name of the example, such as steal-time, handoff, overcommit, probe or hal-client.
    example: String,

    /// The guest's CPUs.
    #[arg(long, default_value_t = 4, value_parser = options::vcpus())]
    vcpus: usize,

    #[command(flatten)]
    machine: Machine,

    /// Seconds after which the run is killed, the first-level machine's boot included.
    #[arg(long, default_value = "120", value_parser = options::seconds)]
    timeout: Duration,

    /// Write every machine line, KVM's counters and the back end to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Show the guest's machine lines too.
    #[arg(long, short)]
    verbose: bool,

    /// Parameters for the guest, after `--`.
    #[arg(last = true, value_name = "KEY=VALUE", value_parser = parameter)]
    parameters: Vec<String>,
}

/// A guest's command line is split at spaces, so no parameter may have one.
fn parameter(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() && !text.contains(char::is_whitespace) => {
            Ok(text.to_owned())
        }
        _ => Err("guest parameters are words of the form key=value".to_owned()),
    }
}

/// The contents of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    backend: Kind,
    example: &'a str,
    vcpus: usize,
    cpus: usize,
    /// `ok`, or why the run failed.
    status: String,
    kvm: Option<KvmCounters>,
    lines: Vec<StampedRecord>,
}

#[derive(Debug, Serialize)]
struct StampedRecord {
    /// Seconds since the guest's first line, by this machine's clock.
    host_s: f64,
    #[serde(flatten)]
    record: Record,
}

impl Args {
    pub fn run(self) -> Result<()> {
        image::require(&self.example)?;
        self.machine.check()?;
        let json = self.json.as_deref().map(Output::check).transpose()?;
        setup::ensure_qemu()?;
        if self.example == hal_client::NAME {
            return self.compare(json);
        }
        let image = image::build(&self.example)?;
        let backend = self.machine.backend()?;
        let guest = Guest {
            image: &image,
            vcpus: self.vcpus,
            cpus: self.machine.cpus,
            cpu_flags: &self.machine.cpu_flags,
            command_line: self.parameters.join(" "),
            thread: self.machine.thread,
            limit: self.timeout,
            silence: None,
        };
        let outcome = boot::run(&backend, &guest, &mut |line| {
            match line::for_people(&line.text) {
                Some(text) => println!("{text}"),
                None if self.verbose => println!("{}", line.text),
                None => {}
            }
            Ok(())
        })?;
        if let Some(kvm) = &outcome.kvm {
            println!("KVM counted: {kvm}");
        }
        let verdict = outcome.verdict();
        if let Some(json) = json {
            json.write(&serde_json::to_string_pretty(&self.report(backend.kind, &outcome))?)?;
        }
        let Err(failure) = verdict else { return Ok(()) };
        if !failure.last_lines.is_empty() {
            eprintln!("its last lines:");
        }
        for line in &failure.last_lines {
            eprintln!("  {line}");
        }
        bail!("{failure}");
    }

    /// The guest that there is in two forms.
    fn compare(&self, json: Option<Output>) -> Result<()> {
        let backend = self.machine.backend()?;
        let comparison = hal_client::compare(
            &backend,
            &hal_client::Plan {
                vcpus: self.vcpus,
                cpus: self.machine.cpus,
                cpu_flags: &self.machine.cpu_flags,
                thread: self.machine.thread,
                limit: self.timeout,
                parameters: self.parameters.join(" "),
            },
        )?;
        println!("{}", comparison.text());
        if let Some(json) = json {
            json.write(&serde_json::to_string_pretty(&comparison)?)?;
        }
        Ok(())
    }

    fn report(&self, backend: Kind, outcome: &Outcome) -> Report<'_> {
        let start = outcome.lines.first().map(|line| line.at);
        let seconds = |at: std::time::Instant| start.map_or(0.0, |start| at.duration_since(start).as_secs_f64());
        Report {
            backend,
            example: &self.example,
            vcpus: self.vcpus,
            cpus: self.machine.cpus,
            status: outcome.verdict().err().map_or_else(|| "ok".to_owned(), |failure| failure.sentence),
            kvm: outcome.kvm.clone(),
            lines: outcome
                .stamped_records()
                .map(|(at, record)| StampedRecord { host_s: seconds(at), record })
                .collect(),
        }
    }
}
