//! `cargo xtask doctor`: what this machine offers, and which back end will be used.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args as ClapArgs;

use crate::backend::{Accel, Backend, Guest};
use crate::boot;
use crate::features;
use crate::image;
use crate::line::Record;
use crate::machine;
use crate::qemu;
use crate::setup;

/// The probe guest does next to nothing: this is for the first-level machine's boot on a slow day.
const LIMIT: Duration = Duration::from_secs(60);

/// Say what this machine offers, and which back end will be used and why.
///
/// Installs QEMU if it is missing and that is possible: without it nothing can be tried.
#[derive(Debug, ClapArgs)]
pub struct Args {}

impl Args {
    pub fn run(self) -> Result<()> {
        let user = if nix::unistd::geteuid().is_root() { "root" } else { "not root" };
        say(
            "system",
            &format!("{}, {}, {} CPUs, {user}", distribution(), std::env::consts::ARCH, machine::cpu_count()?),
        );
        machine::require_x86_64_linux()?;
        if which::which(qemu::BINARY).is_err() {
            say("packages", &format!("missing: `{}`", setup::qemu_install_line()));
        }
        setup::ensure_qemu()?;
        say("QEMU", &qemu_version()?);
        say("/dev/kvm", if Path::new("/dev/kvm").exists() { "exists" } else { "does not exist" });

        let backend = Backend::choose(Accel::Auto)?;
        say("auto", &format!("takes the back end {}", backend.kind));
        for reason in &backend.reasons {
            say("", reason);
        }
        say("meaning", backend.kind.meaning());
        say("guest", &features::describe(&host_line(&backend)?)?);
        Ok(())
    }
}

fn say(what: &str, fact: &str) {
    println!("{what:<9} {fact}");
}

fn distribution() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "unknown system".to_owned(), |name| name.trim_matches('"').to_owned())
}

fn qemu_version() -> Result<String> {
    let output = Command::new(qemu::BINARY).arg("--version").output().context("cannot start QEMU")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(str::to_owned).context("QEMU does not tell its version")
}

/// Boots the probe guest and returns its `host` line.
fn host_line(backend: &Backend) -> Result<Record> {
    let image = image::build("probe")?;
    let command_line = String::new();
    let guest = Guest {
        image: &image,
        vcpus: 1,
        cpus: 1,
        cpu_flags: &[],
        command_line,
        thread: None,
        limit: LIMIT,
        silence: None,
    };
    let outcome = boot::run(backend, &guest, &mut |_| Ok(()))?;
    outcome.verdict().map_err(|failure| anyhow!("{failure}"))?;
    outcome.records("host").next().context("the probe guest printed no `host` line")
}
