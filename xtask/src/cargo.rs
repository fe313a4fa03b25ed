//! Inner cargo calls, with an environment that the outer one does not leak into.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use cargo_metadata::{Metadata, MetadataCommand, Package};
use semver::Version;

/// Variables that say where things are or how to reach a registry; everything else that begins with `CARGO` or
/// `RUST` was set by the outer cargo (or for it) and would change what the inner one builds.
const KEPT: [&str; 8] = [
    "CARGO_HOME",
    "CARGO_TARGET_DIR",
    "CARGO_HTTP_",
    "CARGO_NET_",
    "CARGO_REGISTR",
    "CARGO_SOURCE_",
    "RUSTUP_",
    "RUST_BACKTRACE",
];

/// The workspace's folder.
pub fn workspace_root() -> PathBuf {
    // At run time when cargo says it, so that a moved checkout works; else where this was built.
    let xtask = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    xtask.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// The cargo that called us, to be run in the workspace's folder.
pub fn cargo() -> Command {
    cleaned(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// `program`, to be run in the workspace's folder without the outer cargo's variables.
pub fn cleaned(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(workspace_root()).stdin(Stdio::null());
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let cargos = text.starts_with("CARGO") || text.starts_with("RUST");
        if cargos && !KEPT.iter().any(|kept| text.starts_with(kept)) {
            command.env_remove(&name);
        }
    }
    command
}

/// What cargo says about the workspace, without its dependencies.
pub fn metadata() -> Result<&'static Metadata> {
    static METADATA: OnceLock<Metadata> = OnceLock::new();
    if let Some(known) = METADATA.get() {
        return Ok(known);
    }
    let mut command = MetadataCommand::new();
    command.manifest_path(workspace_root().join("Cargo.toml")).no_deps();
    if let Some(cargo) = env::var_os("CARGO") {
        command.cargo_path(cargo);
    }
    let metadata = command.exec().context("cargo cannot read this workspace")?;
    Ok(METADATA.get_or_init(|| metadata))
}

/// The workspace's target folder.
pub fn target_dir() -> Result<PathBuf> {
    Ok(metadata()?.target_directory.clone().into())
}

/// What everything is built for, but the library itself.
const HOST: &str = "x86_64-unknown-linux-gnu";

/// What cargo says about the workspace and all packages that it uses in any way, the models' too.
pub fn whole_metadata() -> Result<&'static Metadata> {
    static METADATA: OnceLock<Metadata> = OnceLock::new();
    if let Some(known) = METADATA.get() {
        return Ok(known);
    }
    let mut command = cargo();
    // Those for other systems are never downloaded, let alone built.
    command
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", HOST])
        .env("RUSTFLAGS", "--cfg pvlock_loom");
    let output = command.output().context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo cannot say what is used: {}", String::from_utf8_lossy(&output.stderr));
    let metadata =
        MetadataCommand::parse(String::from_utf8_lossy(&output.stdout)).context("cargo's answer is not its format")?;
    Ok(METADATA.get_or_init(|| metadata))
}

/// The version of the compiler that inner calls use.
pub fn rustc_version() -> Result<Version> {
    let output = cleaned("rustc").arg("-V").output().context("cannot start rustc")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let version = said.split_whitespace().nth(1).and_then(|version| Version::parse(version).ok());
    let version = version.with_context(|| format!("rustc says of its version: {said:?}"))?;
    // Betas and nightlies take what their release will.
    Ok(Version::new(version.major, version.minor, version.patch))
}

/// Why this compiler cannot build the library with these features, if so.
pub fn too_old_for(package: &Package, features: &[impl AsRef<str>]) -> Result<Option<String>> {
    let compiler = rustc_version()?;
    for feature in features {
        let feature = feature.as_ref();
        if let Some(needed) = feature_needs(package, feature)?.filter(|needed| *needed > compiler) {
            return Ok(Some(format!("{feature} needs Rust {needed}, this is {compiler}")));
        }
    }
    Ok(None)
}

/// A package of the workspace.
pub fn member(name: &str) -> Result<&'static Package> {
    let package = metadata()?.packages.iter().find(|package| package.name.as_str() == name);
    package.with_context(|| format!("the workspace has no package {name}"))
}

/// The Rust version that the optional dependencies of a feature need.
pub fn feature_needs(package: &Package, feature: &str) -> Result<Option<Version>> {
    let enables = package.features.get(feature).map(Vec::as_slice).unwrap_or_default();
    let mut needed = None;
    for name in enables.iter().filter_map(|enabled| enabled.strip_prefix("dep:")) {
        let dependency = package
            .dependencies
            .iter()
            .find(|dependency| dependency.rename.as_deref().unwrap_or(&dependency.name) == name);
        let dependency = dependency.with_context(|| format!("{} has no dependency {name}", package.name))?;
        let all = &whole_metadata()?.packages;
        let used = all.iter().find(|p| p.name.as_str() == dependency.name && dependency.req.matches(&p.version));
        let used = used.with_context(|| format!("cargo does not say which {name} is used"))?;
        needed = needed.max(used.rust_version.clone());
    }
    Ok(needed)
}
