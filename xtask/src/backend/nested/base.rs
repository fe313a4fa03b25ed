//! The part of the first-level machine's file system that does not change: QEMU, busybox, KVM's modules, firmware.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::archive::Archive;
use super::kernel::Kernel;
use crate::progress;
use crate::setup;

/// Firmware a guest's QEMU may load. The first must be there; the others depend on QEMU's version.
const FIRMWARE: [&str; 7] = [
    "bios-256k.bin",
    "kvmvapic.bin",
    "pvh.bin",
    "linuxboot.bin",
    "linuxboot_dma.bin",
    "multiboot.bin",
    "multiboot_dma.bin",
];

/// Where distributions keep firmware, and where a QEMU built by hand does, relative to its program.
const FIRMWARE_FOLDERS: [&str; 4] = ["/usr/share/seabios", "/usr/share/qemu", "../share/qemu", "../share/seabios"];

/// Empty folders that process 1 needs.
const FOLDERS: [&str; 5] = ["proc", "sys", "dev", "run", "tmp"];

/// The archive for this kernel and this QEMU: an earlier one, or one made now.
pub fn ensure(folder: &Path, kernel: &Kernel, qemu: &Path) -> Result<PathBuf> {
    let busybox = setup::ensure_busybox(folder)?;
    let path = folder.join(format!("base-{}-{}.cpio", kernel.version, fingerprint(&[qemu, &busybox])?));
    if !path.exists() {
        progress::step("packing the first-level file system", || {
            // Under another name first: an interrupted run must not leave half an archive to be found.
            let unfinished = path.with_extension(format!("{}.part", std::process::id()));
            write(&unfinished, kernel, qemu, &busybox).with_context(|| format!("cannot make {}", path.display()))?;
            fs::rename(&unfinished, &path).with_context(|| format!("cannot make {}", path.display()))
        })?;
    }
    Ok(path)
}

/// Changes when one of these programs does.
fn fingerprint(programs: &[&Path]) -> Result<String> {
    let mut mark = String::new();
    for program in programs {
        let metadata = fs::metadata(program).with_context(|| format!("cannot read {}", program.display()))?;
        let changed = metadata.modified()?.duration_since(std::time::UNIX_EPOCH)?;
        mark.push_str(&format!("{:x}{:x}", metadata.len(), changed.as_secs()));
    }
    Ok(mark)
}

fn write(path: &Path, kernel: &Kernel, qemu: &Path, busybox: &Path) -> Result<()> {
    let mut archive = Archive::new(BufWriter::new(File::create(path)?));
    for folder in FOLDERS {
        archive.folder(folder)?;
    }
    let mut libraries = Vec::new();
    for (target, program) in [("bin/busybox", busybox), ("usr/bin/qemu-system-x86_64", qemu)] {
        archive.program(target, &fs::read(program)?)?;
        libraries.extend(libraries_of(program)?);
    }
    libraries.sort();
    libraries.dedup();
    for library in &libraries {
        archive.program(library, &fs::read(library)?)?;
    }
    for (name, path) in FIRMWARE.iter().filter_map(|name| Some((name, firmware(name, qemu)?))) {
        archive.file(&format!("firmware/{name}"), &fs::read(path)?)?;
    }
    let mut order = String::new();
    for module in kernel.kvm_modules()? {
        let file = format!("{}.ko", module.name);
        archive.file(&format!("modules/{file}"), &module.content)?;
        order.push_str(&file);
        order.push('\n');
    }
    archive.file("modules/order", order.as_bytes())?;
    archive.finish()?;
    Ok(())
}

fn firmware(name: &str, qemu: &Path) -> Option<PathBuf> {
    let beside = qemu.parent().unwrap_or(Path::new("/"));
    FIRMWARE_FOLDERS.iter().map(|folder| beside.join(folder).join(name)).find(|path| path.exists())
}

/// The shared libraries that `program` is loaded with, dynamic loader included, by absolute path.
fn libraries_of(program: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd").arg(program).env("LC_ALL", "C").output().context("cannot start ldd")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        // ldd's way to say that there is nothing to list.
        let said = text + &String::from_utf8_lossy(&output.stderr);
        if said.contains("not a dynamic executable") {
            return Ok(Vec::new());
        }
        bail!("ldd cannot read {}: {}", program.display(), said.trim());
    }
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    Ok(text.lines().filter_map(path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_libraries_are_found_and_exist() {
        let libraries = libraries_of(&std::env::current_exe().unwrap()).unwrap();
        assert!(libraries.iter().any(|path| path.contains("libc.so")));
        assert!(libraries.iter().all(|path| Path::new(path).exists()));
    }
}
