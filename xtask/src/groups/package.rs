//! What users get: the package that is published, and the adapters by way of a kernel's two lines.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{Tally, Verdict, show};
use crate::{api, cargo};

/// Beginnings of the names of all files that belong into the package.
const EXPECTED: [&str; 9] = [
    "src/",
    "asm/",
    "README.md",
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "Cargo.toml",
    "Cargo.lock",
    ".cargo_vcs_info.json",
];

/// Compressed size that the package may have, in bytes.
const MOST_BYTES: u64 = 200 * 1024;

/// A kernel that takes its locks from other crates, in whose place it gets ours.
const KERNEL: &str = r#"//! Locks of two crates, patched.
struct Platform;

impl pvlock::Cpu for Platform {
    type Hypervisor = pvlock::hypervisor::Kvm;
    fn current() -> Option<pvlock::CpuId> {
        pvlock::CpuId::new(0)
    }
}

pvlock::platform!(Platform);

static TASKS: kspin::SpinRaw<u64> = kspin::SpinRaw::new(1);
static CONSOLE: hermit_sync::TicketMutex<u64> = hermit_sync::TicketMutex::new(2);

fn main() {
    *TASKS.lock() += 1;
    assert_eq!(*TASKS.lock() + *CONSOLE.lock(), 4);
    // 8 and 16 bytes in the crates of these names that are published.
    assert_eq!(size_of::<kspin::SpinRaw<u32>>(), 16);
    assert_eq!(size_of::<hermit_sync::RawTicketMutex>(), 8);
}
"#;

pub fn run(tally: &mut Tally) {
    tally.test("package::files", files);
    tally.test("package::builds-alone", builds_alone);
    tally.test("package::patched-kernel", patched_kernel);
    tally.test("package::only-the-library-is-published", only_the_library_is_published);
    for name in ["kspin", "hermit-sync"] {
        tally.test(&format!("package::files-{name}"), || adapter_files(name));
    }
    // The published kspin is but a dev-dependency, which cargo cannot build by itself; its few names are in the adapter's own test.
    tally.verdict("package::names-hermit-sync", || published_names("hermit-sync"));
    for name in api::PACKAGES {
        tally.verdict(&format!("package::api-{name}"), || public_api(name));
    }
}

/// The adapters bear the names of crates that others publish; everything else is of use here only.
fn only_the_library_is_published() -> Result<()> {
    let published = cargo::metadata()?.packages.iter().filter(|package| package.publish.as_deref() != Some(&[]));
    let published: Vec<&str> = published.map(|package| package.name.as_str()).collect();
    ensure!(published == ["pvlock"], "packages without `publish = false`: {}", published.join(", "));
    Ok(())
}

/// Adapters are taken from the repository by `[patch]`, whole; still each is a package that cargo can make.
fn adapter_files(name: &str) -> Result<()> {
    let id = &cargo::member(name)?.id.repr;
    let output = cargo::cargo().args(["package", "--list", "--allow-dirty", "--package", id]).output();
    let output = output.context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo cannot list the package: {}", String::from_utf8_lossy(&output.stderr));
    let list = String::from_utf8_lossy(&output.stdout);
    ensure!(list.lines().any(|file| file == "src/lib.rs"), "the package has no src/lib.rs");
    Ok(())
}

/// A kernel that uses the published crate finds all of it in the adapter.
fn published_names(name: &str) -> Result<Verdict> {
    let (needed, compiler) = (cargo::member(name)?.rust_version.clone(), cargo::rustc_version()?);
    if let Some(needed) = needed.filter(|needed| *needed > compiler) {
        return Ok(Verdict::Ignored(format!("{name} needs Rust {needed}, this is {compiler}")));
    }
    let missing = api::missing_names(name)?;
    ensure!(missing.is_empty(), "the published {name} has what the adapter has not: {}", missing.join(", "));
    Ok(Verdict::Passed)
}

fn public_api(name: &'static str) -> Result<Verdict> {
    let api = match api::read(name)? {
        Ok(api) => api,
        Err(reason) => return Ok(Verdict::Ignored(reason)),
    };
    api.check()?;
    // A dependant that enables a feature must not take anything from another.
    if name == "pvlock" {
        api.features_only_add()?;
    }
    if let Some(what) = api.skipped() {
        println!("{name}: compared {what}");
    }
    Ok(Verdict::Passed)
}

fn files() -> Result<()> {
    let output = cargo::cargo()
        .args(["package", "--list", "--allow-dirty", "--package", "pvlock"])
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo cannot list the package: {}", String::from_utf8_lossy(&output.stderr));
    let list = String::from_utf8_lossy(&output.stdout);
    ensure!(list.lines().any(|file| file == "src/lib.rs"), "the package has no src/lib.rs");
    let stray: Vec<&str> =
        list.lines().filter(|file| !EXPECTED.iter().any(|expected| file.starts_with(expected))).collect();
    ensure!(stray.is_empty(), "these files do not belong into the package: {}", stray.join(", "));
    Ok(())
}

/// From the packed files alone, as users' machines build it.
fn builds_alone() -> Result<()> {
    let mut command = cargo::cargo();
    command.args(["package", "--quiet", "--allow-dirty", "--package", "pvlock"]);
    ensure!(show(command, |_| ())?, "the package does not build from its own files");
    let version = cargo::metadata()?.packages.iter().find(|package| package.name.as_str() == "pvlock");
    let version = &version.context("the workspace has no package pvlock")?.version;
    let packed = cargo::target_dir()?.join("package").join(format!("pvlock-{version}.crate"));
    let size = fs::metadata(&packed).with_context(|| format!("cargo packed no {}", packed.display()))?.len();
    ensure!(size <= MOST_BYTES, "the package takes {size} bytes, more than {MOST_BYTES}");
    Ok(())
}

/// Two lines in a kernel's `Cargo.toml`, and the published crates' names lead to ours.
fn patched_kernel() -> Result<()> {
    let folder = cargo::target_dir()?.join("patched-kernel");
    fs::create_dir_all(folder.join("src")).context("cannot make a folder for the kernel")?;
    let root = cargo::workspace_root();
    let path = |below: &str| root.join(below).display().to_string();
    let manifest = format!(
        "[package]\nname = \"patched-kernel\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
         kspin = {{ version = \"0.2\", features = [\"smp\"] }}\nhermit-sync = \"0.2\"\npvlock = {{ path = {:?} }}\n\n\
         [patch.crates-io]\nkspin = {{ path = {:?} }}\nhermit-sync = {{ path = {:?} }}\n\n[workspace]\n",
        path("."),
        path("adapters/kspin"),
        path("adapters/hermit-sync")
    );
    write(&folder.join("Cargo.toml"), &manifest)?;
    write(&folder.join("src/main.rs"), KERNEL)?;
    let mut command = cargo::cargo();
    command.arg("run").arg("--quiet").arg("--manifest-path").arg(folder.join("Cargo.toml"));
    ensure!(show(command, |_| ())?, "the kernel does not build or run");
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
