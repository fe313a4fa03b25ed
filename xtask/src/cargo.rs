//! Inner cargo calls, with an environment that the outer one does not leak into.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result};
use cargo_metadata::{Metadata, MetadataCommand};

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
