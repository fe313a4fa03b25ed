//! The `kvm` back end: this machine's own KVM, believed only after a guest has run under it.
//!
//! A device node proves nothing: there are software KVMs that answer every request and then interpret the guest
//! one instruction at a time, without SSE and without hypercalls.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::{Backend, Guest, Kind, Running, Sampler};
use crate::boot::{self, Outcome};
use crate::image;
use crate::machine;
use crate::process::Child;
use crate::qemu::{self, Accelerator};

const DEVICE: &str = "/dev/kvm";

/// More than ten times what the probe guest takes on any machine that is worth calling one.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// A loop iteration of the probe guest is two or three instructions; interpreters need hundreds of cycles for it.
const SANE_CYCLES_PER_ITERATION: u64 = 50;
const PROBE_ITERATIONS: u64 = 10_000_000;

/// QEMU's words when a CPU's feature MSR cannot be set as `-cpu host` wants it, and the flag that avoids it.
const FEATURE_MSR_ERROR: &str = "failed to set MSR 0x10a";
const WITHOUT_FEATURE_MSR: &str = "-arch-capabilities";

/// Boots the probe guest under KVM. Says what it saw, or why no guest runs.
pub fn probe() -> Result<String> {
    OpenOptions::new().read(true).write(true).open(DEVICE).map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow!("{DEVICE} does not exist"),
        ErrorKind::PermissionDenied => anyhow!("this user may not open {DEVICE} (the group kvm may)"),
        _ => anyhow!("{DEVICE} cannot be opened: {error}"),
    })?;
    let image = image::build("probe")?;
    let guest = Guest {
        image: &image,
        vcpus: 1,
        cpus: 1,
        cpu_flags: &[],
        command_line: String::new(),
        thread: None,
        limit: PROBE_LIMIT,
        silence: None,
    };
    let backend = Backend { kind: Kind::Kvm, reasons: vec![], nested: None };
    let outcome = boot::once(&backend, &guest, &mut |_| Ok(())).context("the probe guest does not start")?;
    if let Err(failure) = outcome.verdict() {
        bail!("{DEVICE} exists but does not run a small guest: {failure}");
    }
    judge(&outcome)
}

fn judge(outcome: &Outcome) -> Result<String> {
    let record = outcome.records("probe").next().context("the probe guest printed no `probe` line")?;
    let cycles = record.number("loop_cycles")? / PROBE_ITERATIONS;
    ensure!(record.text("sse")? == "ok", "{DEVICE} runs a guest, but its SSE arithmetic is wrong");
    ensure!(record.text("hypercall_ok")? == "yes", "{DEVICE} runs a guest, but hypercalls do not work in it");
    ensure!(cycles <= SANE_CYCLES_PER_ITERATION, "{DEVICE} interprets its guests ({cycles} cycles for one loop)");
    Ok(format!("{DEVICE} ran a small guest: SSE, a hypercall, and {cycles} cycles for one loop"))
}

/// Starts `guest` on the first `cpus` CPUs.
pub fn start(guest: &Guest) -> Result<Running> {
    let mut command = Command::new(qemu::BINARY);
    command.args(qemu::guest(Accelerator::Kvm, guest.image, guest.vcpus, guest.cpu_flags, &guest.command_line));
    let child = Child::spawn(command, Some(machine::first_cpus(guest.cpus)?))?;
    let sampler = Some(Sampler::start(child.id()));
    Ok(Running { child, sampler, first_level: false, file: None })
}

/// The CPU flag that helps against what QEMU complained about, if one is known.
pub fn remedy(complaint: &str) -> Option<&'static str> {
    complaint.contains(FEATURE_MSR_ERROR).then_some(WITHOUT_FEATURE_MSR)
}
