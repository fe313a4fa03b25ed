//! The library built for `x86_64-unknown-none`, the target that kernels really have.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Tally, show};
use crate::cargo;
use crate::setup;

const TARGET: &str = "x86_64-unknown-none";

/// Debian's second toolchain, recent and with the standard library's source: it can build `core` for any target.
const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];
const DEBIAN_SOURCE: &str = "/usr/lib/rustlib/src/rust/library/core";

/// A toolchain that can build for the target.
enum Toolchain {
    /// Ours, with the target installed.
    Installed,
    /// Debian's, which builds `core` first.
    Debian,
}

pub fn run(tally: &mut Tally) {
    let sets = match feature_sets() {
        Ok(sets) => sets,
        Err(error) => return tally.test("none", || Err(error)),
    };
    let toolchain = match toolchain() {
        Ok(toolchain) => toolchain,
        Err(error) => return tally.test("none::toolchain", || Err(error)),
    };
    for set in sets {
        let name = if set.is_empty() { "without-features".to_owned() } else { set.join("+") };
        tally.test(&format!("none::{name}"), || build(&toolchain, &set));
    }
}

/// Every subset of the library's features.
fn feature_sets() -> Result<Vec<Vec<String>>> {
    let package = cargo::metadata()?.packages.iter().find(|package| package.name.as_str() == "pvlock");
    let package = package.context("the workspace has no package pvlock")?;
    let names: Vec<&String> = package.features.keys().filter(|name| *name != "default").collect();
    Ok(subsets(&names))
}

fn subsets(names: &[&String]) -> Vec<Vec<String>> {
    let chosen = |bits: usize| names.iter().enumerate().filter(move |(i, _)| bits >> i & 1 == 1);
    (0..1 << names.len()).map(|bits| chosen(bits).map(|(_, name)| (*name).clone()).collect()).collect()
}

fn toolchain() -> Result<Toolchain> {
    let mut ask = cargo::cleaned("rustc");
    let output = ask.args(["--print", "target-libdir", "--target", TARGET]).output().context("cannot start rustc")?;
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if output.status.success() && folder.is_dir() {
        return Ok(Toolchain::Installed);
    }
    if !Path::new(DEBIAN_SOURCE).exists() {
        setup::install(&DEBIAN_PACKAGES)
            .with_context(|| format!("no toolchain builds for {TARGET}; `rustup target add {TARGET}` gives one"))?;
    }
    Ok(Toolchain::Debian)
}

fn build(toolchain: &Toolchain, features: &[String]) -> Result<()> {
    let mut command = match toolchain {
        Toolchain::Installed => cargo::cargo(),
        Toolchain::Debian => debian_cargo()?,
    };
    command
        .args(["build", "--quiet", "--package", "pvlock", "--target", TARGET, "--no-default-features"])
        .args(["--features", &features.join(",")])
        .env("CARGO_TARGET_DIR", cargo::target_dir()?.join("none"));
    if !show(command, |_| ())? {
        bail!("it does not build, see above");
    }
    Ok(())
}

/// Debian's cargo and rustc, and none of rustup's in front of them.
fn debian_cargo() -> Result<Command> {
    let mut command = cargo::cleaned("/usr/bin/cargo");
    let mut path = OsString::from("/usr/bin:");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    command
        .args(["-Z", "build-std=core"])
        // build-std is not stable yet; this is what makes a stable cargo take it.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTC", "/usr/bin/rustc")
        .env("PATH", path);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_subsets_of_the_features_are_built() {
        let (a, b) = ("a".to_owned(), "b".to_owned());
        let sets = subsets(&[&a, &b]);
        assert_eq!(sets, [vec![], vec![a.clone()], vec![b.clone()], vec![a, b]]);
        assert!(feature_sets().unwrap().len() >= 2);
    }
}
