//! A lock inside the HAL: all CPUs mask and unmask pins of the IO-APIC, whose registers are reached by an index and a data window, so that an
//! access without the lock would change another pin.

use core::sync::atomic::Ordering::Relaxed;

use axplat::mem::{PhysAddr, phys_to_virt};
use axplat::time::current_ticks;

use crate::contention::Interval;
use crate::cpus::run_on_all;
use crate::params::Params;

const BASE: usize = 0xfec0_0000;
/// Register of the first pin; each has two.
const FIRST_PIN: u32 = 0x10;
const MASKED: u32 = 1 << 16;
/// Pins that QEMU's has.
const PINS: usize = 24;

pub fn measure(round: u64, params: &Params) -> Result<(), &'static str> {
    let interval = Interval::begin("io-apic", round, params.ms);
    run_on_all(params.vcpus, &|cpu| {
        let (mut acquisitions, mut max_wait) = (0u64, 0);
        while !interval.is_over() {
            let asked = current_ticks();
            // An odd number of times in all leaves the pin unmasked; CPUs beyond the pins share them, and only count.
            axplat::irq::set_enable(cpu % PINS, acquisitions.is_multiple_of(2));
            max_wait = max_wait.max(interval.until_end(current_ticks()).saturating_sub(asked));
            acquisitions += 1;
            interval.end_if_due();
        }
        // ORDERING: Relaxed, `run_on_all` publishes them to the boot CPU.
        interval.tallies[cpu].acquisitions.store(acquisitions, Relaxed);
        interval.tallies[cpu].max_wait.store(max_wait, Relaxed);
    });
    let acquisitions = |cpu: usize| interval.tallies[cpu].acquisitions.load(Relaxed);
    let is_right = |cpu: usize| is_masked(cpu) == acquisitions(cpu).is_multiple_of(2);
    let all_right = params.vcpus > PINS || (0..params.vcpus).all(is_right);
    for cpu in 0..params.vcpus.min(PINS) {
        axplat::irq::set_enable(cpu, false);
    }
    let entered = if all_right { (0..params.vcpus).map(acquisitions).sum() } else { 0 };
    interval.report(params.vcpus, entered, 0)
}

/// Whether a pin is masked. Nobody else uses the IO-APIC meanwhile.
fn is_masked(pin: usize) -> bool {
    let window = phys_to_virt(PhysAddr::from(BASE)).as_mut_ptr().cast::<u32>();
    // SAFETY: the HAL maps the IO-APIC there; the index register is at 0, the data window 16 bytes on. Only this CPU runs.
    unsafe {
        window.write_volatile(FIRST_PIN + 2 * pin as u32);
        window.add(4).read_volatile() & MASKED != 0
    }
}
