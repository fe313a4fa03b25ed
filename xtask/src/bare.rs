//! `x86_64-unknown-none`, the target that kernels really have, and a toolchain that builds for it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo;
use crate::progress;
use crate::setup;

/// The target.
pub const TARGET: &str = "x86_64-unknown-none";

/// Debian's second toolchain, recent and with the standard library's source: it can build `core` for any target.
const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];
const DEBIAN_SOURCE: &str = "/usr/lib/rustlib/src/rust/library/core";

/// A toolchain that can build for the target.
#[derive(Debug)]
pub enum Toolchain {
    /// Ours, with the target installed.
    Installed,
    /// Debian's, which builds `core` first.
    Debian,
}

impl Toolchain {
    /// Finds one. Installs what is missing, by rustup if that is there, else by apt.
    pub fn find() -> Result<Self> {
        if is_installed()? {
            return Ok(Self::Installed);
        }
        if which::which("rustup").is_ok() {
            eprintln!("installing the target {TARGET}");
            let mut add = cargo::cleaned("rustup");
            add.args(["target", "add", TARGET]);
            // Whether it worked is seen by the target being there.
            let _ = progress::step(format!("rustup target add {TARGET}"), || add.output());
            if is_installed()? {
                return Ok(Self::Installed);
            }
        }
        if !Path::new(DEBIAN_SOURCE).exists() {
            setup::install(&DEBIAN_PACKAGES)
                .with_context(|| format!("no toolchain builds for {TARGET}; `rustup target add {TARGET}` gives one"))?;
        }
        Ok(Self::Debian)
    }

    /// A call of cargo by `command`, such as `build`, for the target.
    pub fn cargo(&self, command: &str) -> Command {
        let mut cargo = match self {
            Self::Installed => cargo::cargo(),
            Self::Debian => debian_cargo(),
        };
        cargo.args([command, "--target", TARGET]);
        if matches!(self, Self::Debian) {
            cargo.args(["-Z", "build-std=core"]);
        }
        cargo
    }

    /// The compiler's name and version.
    pub fn version(&self) -> Result<String> {
        let mut rustc = match self {
            Self::Installed => cargo::cleaned("rustc"),
            Self::Debian => cargo::cleaned("/usr/bin/rustc"),
        };
        let output = rustc.arg("--version").output().context("cannot start rustc")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// Whether our own toolchain has the target.
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
        // build-std is not stable yet; this is what makes a stable cargo take it.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTC", "/usr/bin/rustc")
        .env("PATH", path);
    command
}
