//! Guest images: which there are, and building one. The recipe is the one in the docs of `examples/rt`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::{Message, TargetKind};

use crate::cargo;
use crate::hal_client;
use crate::machine;
use crate::progress;

const PACKAGE: &str = "pvlock-examples";
const PROFILE: &str = "guest";

/// The host's own target, so that no other needs to be installed. Named all the same: without `--target` the flags
/// below would also reach build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// An image is linked to a fixed address and nobody relocates it. Interrupts use the stack below the code that they interrupt.
const FLAGS: &str = "-C relocation-model=static -C no-redzone=yes";

/// The examples of our own runtime, sorted by name.
pub fn examples() -> Result<Vec<String>> {
    let packages = &cargo::metadata()?.packages;
    let package = packages.iter().find(|package| package.name.as_str() == PACKAGE);
    let package = package.with_context(|| format!("the workspace has no package {PACKAGE}"))?;
    let bins = package.targets.iter().filter(|target| target.kind.contains(&TargetKind::Bin));
    let mut names: Vec<String> = bins.map(|target| shown(&target.name)).collect();
    names.sort();
    Ok(names)
}

/// Names on the command line have `-` where file names have `_`.
fn shown(bin: &str) -> String {
    bin.replace('_', "-")
}

/// Fails with the list of examples unless `example` is one of them.
pub fn require(example: &str) -> Result<()> {
    let mut names = examples()?;
    names.push(hal_client::NAME.to_owned());
    ensure!(
        names.iter().any(|name| name == example),
        "there is no example `{example}`: choose one of {}",
        names.join(", ")
    );
    Ok(())
}

/// Builds `example` and returns the path of its image.
pub fn build(example: &str) -> Result<PathBuf> {
    machine::require_x86_64_linux()?;
    let packages = &cargo::metadata()?.packages;
    let targets =
        packages.iter().filter(|package| package.name.as_str() == PACKAGE).flat_map(|package| &package.targets);
    let bin = targets.map(|target| target.name.as_str()).find(|name| shown(name) == example);
    let bin = bin.with_context(|| format!("there is no example `{example}`"))?;
    let mut command = cargo::cargo();
    command
        .args(["build", "--quiet", "--package", PACKAGE, "--bin", bin, "--profile", PROFILE, "--target", TARGET])
        .arg("--message-format=json-render-diagnostics")
        .env("RUSTFLAGS", FLAGS)
        .stderr(Stdio::inherit());
    finish(command, example, bin)
}

/// Builds the package in `folder`, which is none of the workspace and gives the linker no arguments itself.
pub fn build_kernel(folder: &Path, bin: &str) -> Result<PathBuf> {
    machine::require_x86_64_linux()?;
    let script = cargo::workspace_root().join("examples/rt/link.ld");
    let link = ["-nostdlib", "-nostartfiles", "-static", "-no-pie", "-Wl,--build-id=none", "-Wl,--no-eh-frame-hdr"];
    let link: String = link.iter().map(|arg| format!(" -C link-arg={arg}")).collect();
    let mut command = cargo::cargo();
    command
        .current_dir(folder)
        .args(["build", "--quiet", "--release", "--target", TARGET, "--message-format=json-render-diagnostics"])
        .env("RUSTFLAGS", format!("{FLAGS}{link} -C link-arg=-Wl,-T,{}", script.display()))
        .stderr(Stdio::inherit());
    finish(command, bin, bin)
}

/// Runs cargo's `command`, which builds the image `bin` of `example`.
fn finish(mut command: Command, example: &str, bin: &str) -> Result<PathBuf> {
    let output = progress::step(format!("building the guest {example}"), || command.output())
        .context("cannot start cargo to build the guest")?;
    if !output.status.success() {
        bail!("the guest `{example}` does not build: see cargo's messages above");
    }
    let image = Message::parse_stream(output.stdout.as_slice())
        .filter_map(|message| match message.ok()? {
            Message::CompilerArtifact(artifact) if artifact.target.name == bin => artifact.executable,
            _ => None,
        })
        .last()
        .map(PathBuf::from)
        .with_context(|| format!("cargo built no image for `{example}`"))?;
    require_no_red_zone(&image)?;
    Ok(image)
}

/// The compiler's own library comes built with red zones. Fails if code of it that uses one got into the image: an interrupt would
/// overwrite its data.
fn require_no_red_zone(image: &Path) -> Result<()> {
    let file = std::fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
    let found = disasm::red_zone_accesses(&file)?;
    ensure!(
        found.is_empty(),
        "the image {} uses the red zone at {:#x}: interrupts would overwrite it; another version of the compiler may not",
        image.display(),
        found[0]
    );
    Ok(())
}
