//! QEMU's command lines, and nothing else about it.

use std::path::Path;

/// Name of the program.
pub const BINARY: &str = "qemu-system-x86_64";

/// A guest's memory in MiB: image, and stacks for as many CPUs as the library has room for.
const GUEST_MEMORY_MIB: u32 = 128;

/// Memory of the first-level machine in MiB: its file system twice (archive and unpacked), and the guest's.
const FIRST_LEVEL_MEMORY_MIB: u32 = 1024;

/// How TCG spreads a machine's CPUs over threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Thread {
    /// One thread runs all CPUs in turn: the reliable choice.
    Single,
    /// One thread per CPU: real parallelism, but it fails by itself in about one of ten nested runs.
    Multi,
}

impl Thread {
    /// The value for `-accel`.
    fn accelerator(self) -> &'static str {
        match self {
            Self::Single => "tcg,thread=single",
            Self::Multi => "tcg,thread=multi",
        }
    }
}

/// What a guest's QEMU accelerates with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    Kvm,
    Tcg(Thread),
}

impl Accelerator {
    fn argument(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg(thread) => thread.accelerator(),
        }
    }

    /// The most complete CPU model of each.
    fn cpu_model(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            Self::Tcg(_) => "max",
        }
    }
}

/// Arguments that start one guest: serial line on standard output, exit code by `isa-debug-exit`.
pub fn guest(
    accelerator: Accelerator,
    image: &Path,
    vcpus: usize,
    cpu_flags: &[String],
    command_line: &str,
) -> Vec<String> {
    let cpu = std::iter::once(accelerator.cpu_model()).chain(cpu_flags.iter().map(String::as_str));
    let mut arguments: Vec<String> = ["-M", "q35", "-accel", accelerator.argument()].map(str::to_owned).into();
    arguments.extend(["-cpu".to_owned(), cpu.collect::<Vec<_>>().join(",")]);
    arguments.extend(["-smp".to_owned(), vcpus.to_string(), "-m".to_owned(), GUEST_MEMORY_MIB.to_string()]);
    arguments.extend(["-kernel".to_owned(), image.display().to_string()]);
    if !command_line.is_empty() {
        arguments.extend(["-append".to_owned(), command_line.to_owned()]);
    }
    arguments.extend(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"].map(str::to_owned));
    arguments.extend(headless());
    arguments
}

/// Arguments that start a first-level Linux with SVM, in which KVM runs the guest.
pub fn first_level(thread: Thread, cpus: usize, kernel: &Path, initramfs: &Path) -> Vec<String> {
    // The clock: under TCG Linux would distrust the TSC and take the slow HPET. Huge pages and mitigations only cost.
    let command_line = "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off tsc=reliable clocksource=tsc \
                        transparent_hugepage=never";
    let mut arguments: Vec<String> =
        ["-M", "q35", "-accel", thread.accelerator(), "-cpu", "max"].map(str::to_owned).into();
    arguments.extend(["-smp".to_owned(), cpus.to_string(), "-m".to_owned(), FIRST_LEVEL_MEMORY_MIB.to_string()]);
    arguments.extend(["-kernel".to_owned(), kernel.display().to_string()]);
    arguments.extend(["-initrd".to_owned(), initramfs.display().to_string()]);
    arguments.extend(["-append".to_owned(), command_line.to_owned()]);
    arguments.extend(headless());
    arguments
}

/// No devices but the serial line, no window, and an end instead of a reboot.
fn headless() -> impl Iterator<Item = String> {
    ["-nodefaults", "-no-reboot", "-serial", "stdio", "-monitor", "none", "-display", "none"]
        .map(str::to_owned)
        .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_flags_follow_the_model() {
        let flags = ["-kvm-steal-time".to_owned(), "hv-relaxed,hv-vapic".to_owned()];
        let arguments = guest(Accelerator::Kvm, Path::new("/guest"), 4, &flags, "");
        let cpu = arguments.iter().position(|a| a == "-cpu").unwrap();
        assert_eq!(arguments[cpu + 1], "host,-kvm-steal-time,hv-relaxed,hv-vapic");
        assert!(!arguments.contains(&"-append".to_owned()));
    }
}
