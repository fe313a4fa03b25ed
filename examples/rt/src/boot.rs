//! The way into Rust: from boot.s to the guest's own main function.

use core::arch::global_asm;
use core::ffi::CStr;
use core::ops::Range;

use pvh::start_info::MemmapType;
use pvh::start_info::reader::StartInfoReader;
use pvlock::CpuId;
use spin::Once;
use x86_64::instructions::interrupts;

use crate::console::Quoted;
use crate::error::BootError;
use crate::exit::{ExitCode, exit};
use crate::per_cpu::{BOOT_CPU, PerCpu, STACK_TOP};
use crate::segments::{self, InterruptStacks};
use crate::{clock, console, cpu, heap, lapic, println, smp, traps, work};

global_asm!(
    include_str!("boot.s"),
    BOOT_CPU = sym BOOT_CPU,
    BOOT_CPU_MAIN = sym boot_cpu_main,
    AP_MAIN = sym ap_main,
    STACK_TOP = const STACK_TOP,
    TRAMPOLINE = const smp::TRAMPOLINE,
);

unsafe extern "C" {
    /// PVH entry point, in boot.s.
    fn pvh_start32() -> !;
    /// First byte after the image, from link.ld.
    static image_end: u8;
}

pvh::xen_elfnote_phys32_entry!(pvh_start32);

unsafe extern "Rust" {
    /// Defined by [`entry!`](crate::entry) in the guest's binary.
    safe fn pvlock_rt_guest_main() -> ExitCode;
    /// Likewise.
    pub(crate) safe fn pvlock_rt_own_bring_up() -> Option<BringUp>;
}

/// What a guest does itself on each CPU where otherwise the runtime registers the CPU with KVM.
#[derive(Clone, Copy, Debug)]
pub struct BringUp {
    /// Gets the CPU's number and APIC id, as soon as [`current`](crate::current) knows the number; interrupts are off.
    pub up: fn(u32, u32),
    /// Gets the CPU's number once its local APIC is on.
    pub ready: fn(u32),
}

/// Names the function that a guest starts with, `fn() -> ExitCode`. It runs on the boot CPU once all others wait for
/// work, interrupts on.
///
/// With `up` and `ready` the runtime leaves registration to the guest: see [`BringUp`].
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        $crate::entry!(@with $main, None);
    };
    ($main:path, up = $up:path, ready = $ready:path) => {
        $crate::entry!(@with $main, Some($crate::BringUp { up: $up, ready: $ready }));
    };
    (@with $main:path, $bring_up:expr) => {
        #[unsafe(no_mangle)]
        fn pvlock_rt_guest_main() -> $crate::ExitCode {
            $main()
        }

        #[unsafe(no_mangle)]
        fn pvlock_rt_own_bring_up() -> Option<$crate::BringUp> {
            $bring_up
        }
    };
}

/// Longest command line, in bytes.
const COMMAND_LINE_MAX: usize = 1024;

static COMMAND_LINE: Once<([u8; COMMAND_LINE_MAX], usize)> = Once::new();

/// The command line of the guest (QEMU's `-append`), empty where there is none.
pub fn command_line() -> &'static str {
    COMMAND_LINE.get().and_then(|(text, len)| str::from_utf8(&text[..*len]).ok()).unwrap_or("")
}

/// Entered from boot.s: 64-bit mode, identity map, boot stack, GS base set, interrupts off.
extern "C" fn boot_cpu_main(start_info: u32) -> ! {
    let cpu = CpuId::new(0).expect("there is room for one CPU");
    BOOT_CPU.set_identity(cpu, cpu::own_apic_id());
    console::init();
    // SAFETY: the running CPU is the boot CPU, and it passes here once.
    unsafe { segments::install(&BOOT_CPU, &InterruptStacks::boot()) };
    traps::load();
    if let Err(error) = start(start_info) {
        println!("error message={}", Quoted(error));
        println!("end status=fail");
        exit(ExitCode::Failure)
    }
    interrupts::enable();
    exit(pvlock_rt_guest_main())
}

/// Everything between the first output and the guest's main function.
fn start(start_info: u32) -> Result<(), BootError> {
    cpu::register(&BOOT_CPU)?;
    let boot = BootInfo::read(start_info)?;
    // SAFETY: the range is RAM beyond the image; what the loader put there was copied by `read`, bar ACPI tables, which
    // the memory map does not count as RAM.
    unsafe { heap::init(boot.heap.start, boot.heap.end) };
    clock::init()?;
    lapic::mask_legacy_pics();
    lapic::init_this_cpu();
    lapic::calibrate_timer();
    cpu::ready(&BOOT_CPU);
    smp::start_all(boot.rsdp)
}

/// Entered from boot.s on every other CPU, as `boot_cpu_main` is: GS base and stack are the CPU's own.
extern "C" fn ap_main(block: &'static PerCpu) -> ! {
    // SAFETY: `block` was made for this CPU, which passes here once.
    unsafe { segments::install(block, &InterruptStacks::leak()) };
    traps::load();
    if let Err(error) = cpu::register(block) {
        panic!("{error}");
    }
    lapic::init_this_cpu();
    cpu::ready(block);
    work::serve(block)
}

/// What the loader tells, copied out of memory that it owns.
struct BootInfo {
    /// Physical address of the ACPI root pointer, 0 where there is none.
    rsdp: u64,
    /// Addresses of the largest piece of RAM beyond the image, below 4 GiB.
    heap: Range<u64>,
}

impl BootInfo {
    fn read(start_info: u32) -> Result<Self, BootError> {
        // SAFETY: the PVH entry contract: a valid structure, with valid addresses, all of them identity-mapped here.
        let info = unsafe { StartInfoReader::from_paddr_identity(start_info) }.ok_or(BootError::NoStartInfo)?;
        copy_command_line(info.cmdline().unwrap_or_default())?;
        let end_of_image = (&raw const image_end) as u64;
        let heap = info
            .memmap()
            .iter()
            .filter(|entry| MemmapType::from(entry.ty) == MemmapType::Ram)
            .map(|entry| entry.addr.max(end_of_image)..(entry.addr + entry.size).min(1 << 32))
            .max_by_key(|range| range.end.saturating_sub(range.start))
            .filter(|range| !range.is_empty())
            .ok_or(BootError::NoMemory)?;
        Ok(Self { rsdp: info.raw().rsdp_paddr, heap })
    }
}

fn copy_command_line(line: &CStr) -> Result<(), BootError> {
    let line = line.to_str().map_err(|_| BootError::CommandLineNotUtf8)?;
    let mut text = [0; COMMAND_LINE_MAX];
    text.get_mut(..line.len())
        .ok_or(BootError::CommandLineTooLong { limit: COMMAND_LINE_MAX })?
        .copy_from_slice(line.as_bytes());
    COMMAND_LINE.call_once(|| (text, line.len()));
    Ok(())
}
