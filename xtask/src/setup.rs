//! Debian and Ubuntu packages: installed when we may, named in one line to type when we may not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::geteuid;

use crate::progress;
use crate::qemu;

/// What running a guest takes. The second is a dependency of the first on Debian, but not everywhere.
const QEMU_PACKAGES: [&str; 2] = ["qemu-system-x86", "seabios"];

/// The line that puts QEMU onto this system.
pub fn qemu_install_line() -> String {
    install_line(&QEMU_PACKAGES)
}

fn install_line(packages: &[&str]) -> String {
    format!("sudo apt-get install --no-install-recommends {}", packages.join(" "))
}

/// QEMU's path; installs it first where it is missing and that is possible.
pub fn ensure_qemu() -> Result<PathBuf> {
    if let Ok(path) = which::which(qemu::BINARY) {
        return Ok(path);
    }
    install(&QEMU_PACKAGES).with_context(|| format!("{} is not installed", qemu::BINARY))?;
    which::which(qemu::BINARY)
        .with_context(|| format!("{} is still not there after `{}`", qemu::BINARY, qemu_install_line()))
}

/// Installs `packages` when we are root and there is `apt-get`; else an error that says what to type.
pub fn install(packages: &[&str]) -> Result<()> {
    ensure!(
        which::which("apt-get").is_ok(),
        "there is no apt-get to install {} with: install the like by your system's own means",
        packages.join(" ")
    );
    ensure!(geteuid().is_root(), "type `{}` and try again", install_line(packages));
    eprintln!("installing {}", packages.join(" "));
    progress::step(format!("installing {}", packages.join(" ")), || {
        let mut arguments = vec!["install", "-y", "--no-install-recommends"];
        arguments.extend(packages);
        apt_get_with_update(Path::new("/"), &arguments)
    })
}

/// The system's own busybox, or one unpacked below `folder`.
pub fn ensure_busybox(folder: &Path) -> Result<PathBuf> {
    let unpacked = folder.join("busybox");
    let places = [unpacked.join("bin/busybox"), unpacked.join("usr/bin/busybox")];
    let there = || which::which("busybox").ok().or_else(|| places.iter().find(|path| path.exists()).cloned());
    if let Some(path) = there() {
        return Ok(path);
    }
    fetch(&["busybox-static".to_owned()], &unpacked)?;
    there().context("the package busybox-static holds no busybox")
}

/// Downloads `packages` and unpacks them into `folder`, without installing them.
pub fn fetch(packages: &[String], folder: &Path) -> Result<()> {
    let download = tempfile::tempdir().context("cannot make a temporary folder")?;
    let mut arguments = vec!["-o", "APT::Sandbox::User=root", "download"];
    arguments.extend(packages.iter().map(String::as_str));
    progress::step(format!("downloading {}", packages.join(" ")), || apt_get_with_update(download.path(), &arguments))?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for entry in fs::read_dir(download.path())? {
        let mut unpack = Command::new("dpkg");
        unpack.arg("-x").arg(entry?.path()).arg(folder);
        checked(unpack.output().context("cannot start dpkg")?, "dpkg -x")?;
    }
    Ok(())
}

/// The kernel packages that `meta` stands for: image and modules, whatever the distribution splits them into.
pub fn kernel_packages(meta: &str) -> Result<Vec<String>> {
    let mut found: Vec<String> = Vec::new();
    let mut next = vec![meta.to_owned()];
    while let Some(package) = next.pop() {
        for dependency in dependencies(&package)? {
            if names_a_kernel(&dependency) && !found.contains(&dependency) {
                found.push(dependency.clone());
                next.push(dependency);
            }
        }
    }
    ensure!(!found.is_empty(), "the package {meta} depends on no kernel");
    Ok(found)
}

/// `linux-image-6.1.0-57-cloud-amd64` and the like, but not `linux-image-generic`.
fn names_a_kernel(package: &str) -> bool {
    ["linux-image-", "linux-image-unsigned-", "linux-modules-"]
        .iter()
        .filter_map(|prefix| package.strip_prefix(prefix))
        .any(|version| version.starts_with(|c: char| c.is_ascii_digit()))
}

fn dependencies(package: &str) -> Result<Vec<String>> {
    let ask = || {
        let mut command = Command::new("apt-cache");
        command.args(["depends", package]).env("LC_ALL", "C");
        let output = command.output().context("there is no apt-cache to ask for a kernel package")?;
        checked(output, "apt-cache depends")
    };
    let listing = match ask() {
        Ok(listing) if !listing.is_empty() => listing,
        _ => {
            update_lists()?;
            ask()?
        }
    };
    Ok(listing.lines().filter_map(|line| line.trim().strip_prefix("Depends: ")).map(str::to_owned).collect())
}

/// Runs `apt-get`, and once more after `apt-get update` when it fails: fresh systems come without package lists.
fn apt_get_with_update(folder: &Path, arguments: &[&str]) -> Result<()> {
    if apt_get(folder, arguments).is_ok() {
        return Ok(());
    }
    update_lists()?;
    apt_get(folder, arguments)
}

fn update_lists() -> Result<()> {
    ensure!(geteuid().is_root(), "the package lists are missing or too old: type `sudo apt-get update` and try again");
    progress::step("apt-get update", || apt_get(Path::new("/"), &["update"]))
}

fn apt_get(folder: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command
        .args(["-q", "-o", "DPkg::Lock::Timeout=120"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("LC_ALL", "C")
        .stdin(std::process::Stdio::null())
        .current_dir(folder);
    let output = command.output().context("there is no apt-get to fetch packages with")?;
    checked(output, &format!("apt-get {}", arguments.join(" "))).map(drop)
}

/// Standard output of a command that succeeded, or one sentence with the last thing it complained about.
fn checked(output: Output, what: &str) -> Result<String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it did not say why");
    bail!("`{what}` failed: {}", last.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_from_meta_packages() {
        for kernel in [
            "linux-image-6.1.0-57-cloud-amd64",
            "linux-image-unsigned-6.8.0-1-generic",
            "linux-modules-6.8.0-1-generic",
        ] {
            assert!(names_a_kernel(kernel), "{kernel}");
        }
        for other in ["linux-image-generic", "linux-firmware", "linux-modules-extra-6.8.0-1-generic", "kmod"] {
            assert!(!names_a_kernel(other), "{other}");
        }
    }
}
