//! How the guest ends: exit codes for the host, and the panic handler.

use core::panic::PanicInfo;

use axplat::console_println as println;
use x86_64::instructions::{hlt, interrupts, port::Port};

/// Port of QEMU's `isa-debug-exit` device.
const DEBUG_EXIT_PORT: u16 = 0xf4;

/// What the guest tells the host. QEMU exits with `(code << 1) | 1`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Code {
    /// All went well.
    Success = 0x10,
    /// Something is wrong, and was said.
    Failure = 0x11,
    /// A bug.
    Panic = 0x12,
}

/// Ends the machine.
pub fn exit(code: Code) -> ! {
    // SAFETY: a write to this port ends QEMU; without the device nobody listens.
    unsafe { Port::new(DEBUG_EXIT_PORT).write(code as u32) };
    loop {
        interrupts::disable();
        hlt();
    }
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    println!("# {info}");
    exit(Code::Panic)
}
