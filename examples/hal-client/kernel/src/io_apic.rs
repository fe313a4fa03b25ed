//! A lock inside the HAL: all CPUs mask and unmask pins of the IO-APIC. Its registers are reached by an index and a data window, so what one CPU
//! has read of its pin is written to another's if the lock lets two in.

use core::sync::atomic::Ordering::Relaxed;

use axplat::mem::{PhysAddr, phys_to_virt};
use axplat::time::current_ticks;

use crate::contention::Interval;
use crate::cpus::run_on_all;
use crate::params::Params;

const BASE: usize = 0xfec0_0000;
/// Register of the first pin; each has two.
const FIRST_REGISTER: u32 = 0x10;
const MASKED: u32 = 1 << 16;
/// Pins that QEMU's has.
const PINS: usize = 24;
/// Vector of the first pin, which the HAL leaves as it is: by it a pin is known again.
const FIRST_VECTOR: u32 = 0x40;

pub fn measure(round: u64, params: &Params) -> Result<(), &'static str> {
    for pin in 0..PINS {
        // SAFETY: masked, so the vector means nothing yet; only this CPU runs.
        unsafe { write(pin, MASKED | vector(pin)) };
    }
    let interval = Interval::begin("io-apic", round, params.ms);
    run_on_all(params.vcpus, &|cpu| {
        let (mut acquisitions, mut max_wait) = (0u64, 0);
        while !interval.is_over() {
            let asked = current_ticks();
            axplat::irq::set_enable(cpu % PINS, acquisitions.is_multiple_of(2));
            max_wait = max_wait.max(interval.until_end(current_ticks()).saturating_sub(asked));
            acquisitions += 1;
            interval.end_if_due();
        }
        // ORDERING: Relaxed, `run_on_all` publishes them to the boot CPU.
        interval.tallies[cpu].acquisitions.store(acquisitions, Relaxed);
        interval.tallies[cpu].max_wait.store(max_wait, Relaxed);
    });
    // No later access gives a pin its vector back, so one that went to the wrong pin shows.
    let all_right = (0..PINS).all(|pin| read(pin) & 0xff == vector(pin));
    (0..PINS).for_each(|pin| axplat::irq::set_enable(pin, false));
    interval.report(params.vcpus, |_| all_right)
}

fn vector(pin: usize) -> u32 {
    FIRST_VECTOR + pin as u32
}

/// The index register with `pin` chosen, and the data window.
fn window(pin: usize) -> *mut u32 {
    let registers = phys_to_virt(PhysAddr::from(BASE)).as_mut_ptr().cast::<u32>();
    // SAFETY: the HAL maps the IO-APIC there; the index is its first register, the window is 16 bytes on. Nobody else uses it meanwhile.
    unsafe {
        registers.write_volatile(FIRST_REGISTER + 2 * pin as u32);
        registers.add(4)
    }
}

/// Only while nobody else uses the IO-APIC.
fn read(pin: usize) -> u32 {
    // SAFETY: see `window`.
    unsafe { window(pin).read_volatile() }
}

/// # Safety
/// Nobody else uses the IO-APIC meanwhile, and what is written makes no interrupt that the kernel does not expect.
unsafe fn write(pin: usize, value: u32) {
    // SAFETY: see `window`.
    unsafe { window(pin).write_volatile(value) };
}
