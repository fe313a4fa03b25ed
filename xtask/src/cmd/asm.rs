//! `cargo xtask asm`: the assembly routine as built, and whether it keeps its contract.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;
use clap::Args as ClapArgs;
use disasm::{Facts, Routine};
use pvlock::preempted::CLOBBERED;
use serde::Serialize;

use crate::cargo;
use crate::output::Output;
use crate::progress;

const SYMBOL: &str = "pvlock_vcpu_is_preempted";

/// Show the disassembly of vcpu_is_preempted as built for release, and judge it.
///
/// Fails if it touches the stack, calls, writes memory, reads more than one byte, or writes a register that its wrapper does
/// not declare.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Write the result to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The contents of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    symbol: &'static str,
    bytes: u64,
    instructions: usize,
    memory_operands: Vec<Access>,
    registers_written: Vec<String>,
    registers_declared: [&'static str; CLOBBERED.len()],
    verdict: &'static str,
    faults: Vec<String>,
    disassembly: Vec<String>,
}

/// A memory operand that is accessed.
#[derive(Debug, Serialize)]
struct Access {
    bytes: usize,
    instruction: String,
}

impl Args {
    pub fn run(self) -> Result<()> {
        let output = self.json.as_deref().map(Output::check).transpose()?;
        let library = build()?;
        let file = fs::read(&library).with_context(|| format!("cannot read {}", library.display()))?;
        let routine = Routine::read(&file, SYMBOL).with_context(|| format!("in {}", library.display()))?;
        let report = Report::new(&routine, disasm::facts(&routine, &CLOBBERED));
        print!("{}", report.text());
        if let Some(output) = output {
            output.write(&serde_json::to_string_pretty(&report)?)?;
        }
        if !report.faults.is_empty() {
            bail!("{SYMBOL} breaks its contract: see above");
        }
        Ok(())
    }
}

/// Builds the library for release and returns the path of its archive.
fn build() -> Result<PathBuf> {
    let mut command = cargo::cargo();
    command
        .args(["build", "--quiet", "--release", "--package", "pvlock", "--lib"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit());
    let output = progress::step("building the library", || command.output())
        .context("cannot start cargo to build the library")?;
    if !output.status.success() {
        bail!("the library does not build: see cargo's messages above");
    }
    Message::parse_stream(output.stdout.as_slice())
        .filter_map(|message| match message.ok()? {
            Message::CompilerArtifact(artifact) if artifact.target.name == "pvlock" => Some(artifact.filenames),
            _ => None,
        })
        .flatten()
        .find(|file| file.extension() == Some("rlib"))
        .map(PathBuf::from)
        .context("cargo built no library archive")
}

impl Report {
    fn new(routine: &Routine, facts: Facts) -> Self {
        Self {
            symbol: SYMBOL,
            bytes: routine.size,
            instructions: facts.instructions,
            memory_operands: facts
                .reads
                .into_iter()
                .map(|(bytes, instruction)| Access { bytes, instruction })
                .collect(),
            registers_written: facts.written.into_iter().collect(),
            registers_declared: CLOBBERED,
            verdict: if facts.faults.is_empty() { "ok" } else { "broken" },
            faults: facts.faults,
            disassembly: routine.lines.iter().map(line).collect(),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{}:\n", self.symbol);
        for line in &self.disassembly {
            let _ = writeln!(text, "  {line}");
        }
        let _ = writeln!(text, "\nsize                {} bytes, {} instructions", self.bytes, self.instructions);
        for access in &self.memory_operands {
            let _ = writeln!(text, "memory read         {} byte: {}", access.bytes, access.instruction);
        }
        let _ = writeln!(text, "registers written   {}", self.registers_written.join(", "));
        let _ = writeln!(text, "registers declared  {}", self.registers_declared.join(", "));
        let _ = writeln!(text, "verdict             {}", self.verdict);
        for fault in &self.faults {
            let _ = writeln!(text, "                    {fault}");
        }
        text
    }
}

/// Offset, machine code, instruction, and what it refers to.
fn line(line: &disasm::Line) -> String {
    let code: Vec<_> = line.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let refers_to = line.refers_to.as_ref().map(|name| format!("  # {name}")).unwrap_or_default();
    format!("{:3x}  {:<24} {}{refers_to}", line.offset, code.join(" "), line.text)
}
