//! A toolchain for `x86_64-unknown-none`, the target that kernels really have.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo;
use crate::progress;
use crate::setup;

pub const TARGET: &str = "x86_64-unknown-none";

/// Debian's second toolchain, recent and with the standard library's source: it can build `core` for any target.
const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];
const DEBIAN_SOURCE: &str = "/usr/lib/rustlib/src/rust/library/core";

/// A toolchain that can build for the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toolchain {
    /// Ours, with the target installed.
    Installed,
    /// Debian's, which builds `core` first.
    Debian,
}

impl Toolchain {
    /// Finds one, or installs it: the target for ours where rustup can, else Debian's.
    pub fn ensure() -> Result<Self> {
        if is_installed()? {
            return Ok(Self::Installed);
        }
        if Path::new(DEBIAN_SOURCE).exists() {
            return Ok(Self::Debian);
        }
        if let Ok(rustup) = which::which("rustup") {
            let mut command = cargo::cleaned(rustup);
            command.args(["target", "add", TARGET]);
            let added = progress::step(format!("installing the target {TARGET}"), || command.output());
            if added.is_ok_and(|output| output.status.success()) && is_installed()? {
                return Ok(Self::Installed);
            }
        }
        setup::install(&DEBIAN_PACKAGES)
            .with_context(|| format!("no toolchain builds for {TARGET}; `rustup target add {TARGET}` gives one"))?;
        Ok(Self::Debian)
    }

    /// Its cargo, to be run in the workspace's folder.
    pub fn cargo(self) -> Command {
        match self {
            Self::Installed => cargo::cargo(),
            Self::Debian => debian_cargo(),
        }
    }
}

fn is_installed() -> Result<bool> {
    let mut ask = cargo::cleaned("rustc");
    let output = ask.args(["--print", "target-libdir", "--target", TARGET]).output().context("cannot start rustc")?;
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    Ok(output.status.success() && folder.is_dir())
}

/// Debian's cargo and rustc, and none of rustup's in front of them.
fn debian_cargo() -> Command {
    let mut command = cargo::cleaned("/usr/bin/cargo");
    let mut path = OsString::from("/usr/bin:");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    command
        .args(["-Z", "build-std=core"])
        // build-std is not stable yet; this is what makes a stable cargo take it.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTC", "/usr/bin/rustc")
        .env("PATH", path);
    command
}
