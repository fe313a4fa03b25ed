//! What the guest groups share: boot a guest and look at what it says.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::backend::{Backend, Guest};
use crate::boot::{self, Outcome};
use crate::hal_client::{self, Form};
use crate::image;

/// Physical CPUs of all guest tests.
pub const CPUS: usize = 2;

/// For one boot, on a machine that may be busy otherwise.
const LIMIT: Duration = Duration::from_secs(120);

/// One guest run of a test.
#[derive(Debug, Default)]
pub struct Boot<'a> {
    pub example: &'a str,
    pub vcpus: usize,
    /// For QEMU's `-cpu`; empty for none.
    pub cpu_flags: &'a str,
    pub parameters: &'a str,
}

impl Boot<'_> {
    /// Runs the guest; an error unless it ended well and all its counts were right.
    pub fn run(&self, backend: &Backend) -> Result<Outcome> {
        self.run_image(backend, &image::build(self.example)?)
    }

    /// The same with an image that is no example.
    pub fn run_image(&self, backend: &Backend, image: &Path) -> Result<Outcome> {
        let cpu_flags: Vec<String> =
            Some(self.cpu_flags.to_owned()).filter(|flags| !flags.is_empty()).into_iter().collect();
        let guest = Guest {
            image,
            vcpus: self.vcpus,
            cpus: CPUS,
            cpu_flags: &cpu_flags,
            command_line: self.parameters.to_owned(),
            thread: None,
            limit: LIMIT,
            silence: None,
        };
        let outcome = boot::run(backend, &guest, &mut |_| Ok(()))?;
        outcome.verdict().map_err(|failure| anyhow!("{failure}; last lines: {}", failure.last_lines.join(" | ")))?;
        Ok(outcome)
    }
}

/// The client on somebody else's HAL, with the locks of `form`: boots all its CPUs, and every lock counts right.
pub fn hal_client(backend: &Backend, form: Form, vcpus: usize) -> Result<Outcome> {
    let parameters = hal_client::command_line(vcpus, 1, "ms=100 stop_ms=100")?;
    let boot = Boot { example: hal_client::NAME, vcpus, parameters: &parameters, ..Boot::default() };
    let outcome = boot.run_image(backend, &hal_client::build(form)?)?;
    let locks = outcome.records("host").last().and_then(|host| host.get("locks").map(str::to_owned));
    ensure!(locks.as_deref() == Some(form.name()), "the guest has {locks:?} locks, not {}", form.name());
    every_lock_reported(&outcome, &["SpinRaw", "SpinNoIrq", "io-apic"], vcpus)?;
    Ok(outcome)
}

/// An error unless every lock of `locks` reported at least one round, on all `vcpus`.
pub fn every_lock_reported(outcome: &Outcome, locks: &[&str], vcpus: usize) -> Result<()> {
    for lock in locks {
        let result = outcome.records("result").find(|result| result.get("lock") == Some(lock));
        let result = result.with_context(|| format!("no result for lock {lock}"))?;
        ensure!(result.number("vcpus")? == vcpus as u64, "lock {lock} ran on {} vCPUs", result.text("vcpus")?);
    }
    Ok(())
}
