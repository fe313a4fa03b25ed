//! The `tcg` back end: the guest straight under QEMU's emulation.

use std::process::Command;

use anyhow::Result;

use super::{Guest, Running};
use crate::machine;
use crate::process::Child;
use crate::qemu::{self, Accelerator, Thread};

/// Starts `guest`, its threads restricted to the first `cpus` CPUs.
pub fn start(guest: &Guest) -> Result<Running> {
    let accelerator = Accelerator::Tcg(guest.thread.unwrap_or(Thread::Multi));
    let mut command = Command::new(qemu::BINARY);
    command.args(qemu::guest(accelerator, guest.image, guest.vcpus, guest.cpu_flags, &guest.command_line));
    let child = Child::spawn(command, Some(machine::first_cpus(guest.cpus)?))?;
    Ok(Running { child, sampler: None, first_level: false, file: None })
}
