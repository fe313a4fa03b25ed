//! The measuring program: built for release, started, and listened to.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;
use indicatif::{ProgressBar, ProgressStyle};
use pvlock_bench_protocol::{Cell, Code, Event, FOREIGN_LIMIT, Options, Sample};

use crate::cargo;
use crate::process::{self, Child};
use crate::progress;

const PACKAGE: &str = "pvlock-bench";

/// The program is given up when it says nothing for so long. A sample takes seconds; pvhost ends a guest that hangs after a
/// minute.
const SILENCE: Duration = Duration::from_secs(180);

/// How the measurement ended.
#[derive(Debug)]
pub enum Ended {
    /// All was measured.
    Complete,
    /// Ctrl-C came before the end.
    Interrupted,
    /// The program failed, for this reason.
    Failed(String),
}

/// What the program brought.
#[derive(Debug)]
pub struct Measured {
    pub samples: Vec<Sample>,
    pub codes: Vec<Code>,
    pub ended: Ended,
}

/// Builds the measuring program and returns its path.
pub fn build() -> Result<PathBuf> {
    let mut command = cargo::cargo();
    command
        .args(["build", "--quiet", "--release", "--package", PACKAGE, "--bin", PACKAGE])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit());
    let output = progress::step("building the measuring program", || command.output())
        .context("cannot start cargo to build the measuring program")?;
    if !output.status.success() {
        bail!("the measuring program does not build: see cargo's messages above");
    }
    Message::parse_stream(output.stdout.as_slice())
        .filter_map(|message| match message.ok()? {
            Message::CompilerArtifact(artifact) if artifact.target.name == PACKAGE => artifact.executable,
            _ => None,
        })
        .last()
        .map(PathBuf::from)
        .context("cargo built no measuring program")
}

/// Runs `program`. Whatever it brought before it ended, for whatever reason, is kept.
pub fn measure(program: &Path, options: &Options) -> Result<Measured> {
    let mut command = Command::new(program);
    command.arg(serde_json::to_string(options)?);
    process::keep_results_on_interrupt();
    let mut child = Child::spawn(command, None)?;
    let mut measured = Measured { samples: vec![], codes: vec![], ended: Ended::Complete };
    let mut progress = Progress::new();
    let mut complaints = Vec::new();
    loop {
        match child.next(Instant::now() + SILENCE) {
            process::Event::Line(line) => {
                let event: Event = serde_json::from_str(&line.text)
                    .with_context(|| format!("the measuring program says {:?}", line.text))?;
                progress.show(&event);
                match event {
                    Event::Sample(sample) => measured.samples.push(sample),
                    Event::Code(code) => measured.codes.push(code),
                    Event::Plan { .. } | Event::Begin { .. } => {}
                }
            }
            process::Event::Complaint(text) => complaints.push(text),
            process::Event::Closed => break,
            process::Event::Deadline => {
                measured.ended = Ended::Failed(format!("it said nothing for {} s", SILENCE.as_secs()));
                return Ok(measured);
            }
        }
    }
    let status = child.wait(Instant::now() + SILENCE)?;
    if process::was_interrupted() {
        measured.ended = Ended::Interrupted;
    } else if !status.is_some_and(|status| status.success()) {
        let silent = || status.map_or_else(|| "it does not end".to_owned(), |status| format!("it ended by {status}"));
        measured.ended = Ended::Failed(if complaints.is_empty() { silent() } else { complaints.join("\n") });
    }
    Ok(measured)
}

/// The bar that shows how far it is and how long it will take. On a terminal only.
struct Progress {
    bar: ProgressBar,
    /// Of the sample that is being taken, in ms of the plan.
    length_ms: u64,
    repeats: usize,
}

impl Progress {
    fn new() -> Self {
        Self { bar: ProgressBar::hidden(), length_ms: 0, repeats: 0 }
    }

    fn show(&mut self, event: &Event) {
        match event {
            Event::Plan { samples, seconds } => {
                let minutes = seconds / 60.0;
                eprintln!("{samples} samples, about {minutes:.1} minutes; more if other work disturbs them");
                self.bar = ProgressBar::new((seconds * 1e3) as u64);
                if let Ok(style) =
                    ProgressStyle::with_template("{bar:30} {percent:>3} %  {elapsed} gone, {eta} to go  {wide_msg}")
                {
                    self.bar.set_style(style);
                }
                self.bar.enable_steady_tick(Duration::from_millis(200));
            }
            Event::Begin { cell, seconds } => {
                self.length_ms = (seconds * 1e3) as u64;
                self.bar.set_message(self.describe(cell));
            }
            Event::Sample(sample) => {
                self.bar.inc(self.length_ms);
                self.repeats += usize::from(sample.foreign_cpus > FOREIGN_LIMIT);
            }
            Event::Code(_) => {}
        }
    }

    fn describe(&self, cell: &Cell) -> String {
        let what = super::row::metric_name(cell.metric);
        let mut text = format!("{what}: {}", cell.subject);
        if cell.vcpus > cell.cpus {
            text += &format!(", {} vCPUs on {} CPUs", cell.vcpus, cell.cpus);
        }
        if self.repeats > 0 {
            text += &format!(" ({} disturbed)", self.repeats);
        }
        text
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
