//! The kernel of the image: names its platform, and hands out the table of probes. It is loaded by `tests/cost-host`, never booted.
#![no_std]
#![no_main]

use core::panic::PanicInfo;

use cost_image::PROBES;
use cost_image::kernel::{Block, ByBlock};
use cost_image::table::Image;
use pvlock::{ApicId, CpuId, kvm};

pvlock::platform!(ByBlock);

static BLOCK: Block = Block::first(&raw const BLOCK);

static IMAGE: Image = Image { probes: PROBES, block: (&raw const BLOCK).cast(), register };

/// The entry point.
// SAFETY (of `no_mangle`): no other symbol in this image has this name.
#[unsafe(no_mangle)]
extern "C" fn _start() -> &'static Image {
    &IMAGE
}

extern "C" fn register() {
    let cpu = CpuId::new(0).expect("there is a CPU 0");
    let phys = kvm::record_address(cpu).addr() as u64;
    // SAFETY: what lies below this image answers for the hypervisor, and writes no record.
    let _ = unsafe { kvm::register_this_cpu(cpu, ApicId(0), phys) };
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
