//! The `nested` back end: an emulated machine with SVM, a stock Linux in it, and its KVM running the guest.
//!
//! Everything the guest sees of KVM comes from the real code, on any machine that can run QEMU at all. The price
//! is speed: the emulator is some fifty times slower than silicon, and exits are dearer still.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Guest, Running};
use crate::cargo;
use crate::process::Child;
use crate::qemu::{self, Accelerator, Thread};
use crate::setup;

mod archive;
mod base;
mod kernel;

use archive::Archive;

/// Process 1 of the first-level machine.
const INIT: &str = include_str!("init.sh");

/// Where the guest's image lies in the first-level machine.
const GUEST_PATH: &str = "/guest";

/// A first-level system that is ready to boot: kernel, and file system without the guest. Both are cached below the
/// target folder, since they take a download and some seconds to make.
#[derive(Debug)]
pub struct System {
    folder: PathBuf,
    kernel: kernel::Kernel,
    base: PathBuf,
}

impl System {
    /// Finds or makes kernel and file system.
    pub fn prepare() -> Result<Self> {
        let folder = cargo::target_dir()?.join("nested");
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let kernel = kernel::ensure(&folder)?;
        let qemu = setup::ensure_qemu()?;
        let base = base::ensure(&folder, &kernel, &qemu)?;
        Ok(Self { folder, kernel, base })
    }

    /// Starts a first-level machine with `cpus` CPUs that runs `guest`, then ends.
    pub fn start(&self, guest: &Guest) -> Result<Running> {
        let arguments =
            qemu::guest(Accelerator::Kvm, Path::new(GUEST_PATH), guest.vcpus, guest.cpu_flags, &guest.command_line);
        // Linux unpacks archives that follow each other in one file, so the big one need not be made anew.
        // A file without a name, which needs no cleaning up however this ends; QEMU opens it through our own /proc.
        let mut initramfs = tempfile::tempfile_in(&self.folder)
            .with_context(|| format!("cannot create a file in {}", self.folder.display()))?;
        io::copy(&mut File::open(&self.base)?, &mut initramfs)
            .and_then(|_| initramfs.write_all(&own_files(guest.image, &arguments)?))
            .context("cannot write the first-level machine's file system")?;
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), initramfs.as_raw_fd()));

        let mut command = Command::new(qemu::BINARY);
        let thread = guest.thread.unwrap_or(Thread::Single);
        command.args(qemu::first_level(thread, guest.cpus, &self.kernel.image, &path));
        let child = Child::spawn(command, None)?;
        Ok(Running { child, sampler: None, first_level: true, file: Some(initramfs) })
    }
}

/// The archive that changes from run to run: the guest, its QEMU's arguments, and the program that runs it.
fn own_files(image: &Path, arguments: &[String]) -> io::Result<Vec<u8>> {
    let mut archive = Archive::new(Vec::new());
    archive.program("init", INIT.as_bytes())?;
    archive.program(GUEST_PATH, &fs::read(image)?)?;
    archive.file("args", arguments.join("\n").as_bytes())?;
    archive.finish()
}
