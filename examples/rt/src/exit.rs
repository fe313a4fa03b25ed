//! How a guest ends: exit codes for the host, and the panic handler.

use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use x86_64::instructions::{hlt, interrupts, port::Port};

use crate::console::Quoted;
use crate::{console, per_cpu};

/// Port of QEMU's `isa-debug-exit` device, 4 bytes wide.
const DEBUG_EXIT_PORT: u16 = 0xf4;

/// What the guest tells the host at its end. QEMU exits with `(code << 1) | 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ExitCode {
    /// All went well. QEMU exits with 33.
    Success = 0x10,
    /// The guest found an error and said so. QEMU exits with 35.
    Failure = 0x11,
    /// A panic or an exception. QEMU exits with 37.
    Panic = 0x12,
}

/// Ends the virtual machine, or stops this CPU for ever where the exit device is missing.
pub fn exit(code: ExitCode) -> ! {
    // SAFETY: nothing but QEMU's exit device answers on this port of the machines that guests run on.
    unsafe { Port::<u32>::new(DEBUG_EXIT_PORT).write(code as u32) };
    console::emergency(format_args!("# no isa-debug-exit device (iobase=0xf4,iosize=4): halted\n"));
    interrupts::disable();
    loop {
        hlt();
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    interrupts::disable();
    static PANICKED: AtomicBool = AtomicBool::new(false);
    // ORDERING: Relaxed, only one CPU may pass; nothing else is published by it.
    if PANICKED.swap(true, Relaxed) {
        // Another CPU reports already, or this one panicked while it did: the first report is the useful one.
        loop {
            hlt();
        }
    }
    let cpu = per_cpu::this_cpu().cpu().map_or(-1, |cpu| cpu.index() as i64);
    let message = Quoted(info.message());
    match info.location() {
        Some(at) => console::emergency(format_args!("panic cpu={cpu} at={at} message={message}\nend status=fail\n")),
        None => console::emergency(format_args!("panic cpu={cpu} message={message}\nend status=fail\n")),
    }
    exit(ExitCode::Panic)
}
