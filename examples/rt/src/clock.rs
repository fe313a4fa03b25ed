//! Time: the TSC, its frequency, and sleeping.

use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pvlock::hypervisor::{Hypervisor, Kvm};
use raw_cpuid::cpuid;
use x86_64::instructions::{interrupts, port::Port};

use crate::error::BootError;
use crate::lapic;
use crate::per_cpu::this_cpu;

/// Cycles of the TSC per millisecond, set by [`init`].
static TSC_KHZ: AtomicU64 = AtomicU64::new(0);

/// The time stamp counter of this CPU, in cycles.
#[inline(always)]
pub fn tsc() -> u64 {
    // SAFETY: the instruction exists on every 64-bit processor and reads a counter.
    unsafe { _rdtsc() }
}

/// TSC cycles per millisecond.
pub fn tsc_khz() -> u64 {
    // ORDERING: Relaxed, written before other CPUs start.
    TSC_KHZ.load(Relaxed)
}

/// Learns the TSC frequency: from KVM where it says it, else by measurement. Called once, by the boot CPU.
///
/// # Errors
/// When there is neither.
pub(crate) fn init() -> Result<(), BootError> {
    let khz = khz_from_kvm().or_else(khz_from_pit).ok_or(BootError::NoTscFrequency)?;
    // ORDERING: Relaxed, before other CPUs start.
    TSC_KHZ.store(khz, Relaxed);
    Ok(())
}

/// KVM's timing leaf: 0x10 above its base, EAX is the TSC frequency in kHz. QEMU offers it with `-cpu ...,+invtsc`.
fn khz_from_kvm() -> Option<u64> {
    let kvm = Kvm::report().host?;
    let leaf = kvm.base + 0x10;
    (kvm.max_leaf >= leaf).then(|| cpuid!(leaf).eax.into()).filter(|&khz| khz != 0)
}

/// Measures the TSC against channel 2 of the PIT, which counts at 1193182 Hz.
fn khz_from_pit() -> Option<u64> {
    // Being preempted only lengthens a measurement: the shortest is the true one.
    let khz = (0..5).map(|_| pit_interval_cycles()).min()? / PIT_MS;
    // A missing PIT reads as all ones and ends at once.
    (10_000..100_000_000).contains(&khz).then_some(khz)
}

const PIT_MS: u64 = 20;

/// TSC cycles in [`PIT_MS`] milliseconds.
fn pit_interval_cycles() -> u64 {
    const COUNT: u16 = (1_193_182 * PIT_MS / 1000) as u16;
    let mut gate = Port::<u8>::new(0x61);
    let mut command = Port::<u8>::new(0x43);
    let mut counter = Port::<u8>::new(0x42);
    // SAFETY: port 0x61, bit 0 opens the gate of channel 2, bit 1 is the speaker; reading has no effect.
    let speaker_off = unsafe { gate.read() } & !2 | 1;
    // SAFETY: see above.
    unsafe { gate.write(speaker_off) };
    // SAFETY: channel 2, low then high byte, mode 0 (output rises when the count ends).
    unsafe { command.write(0b1011_0000) };
    // SAFETY: the low byte of the count.
    unsafe { counter.write(COUNT as u8) };
    // SAFETY: the high byte, which starts the count.
    unsafe { counter.write((COUNT >> 8) as u8) };
    let start = tsc();
    // SAFETY: reading has no effect; bit 5 is the output of channel 2.
    while unsafe { gate.read() } & 0x20 == 0 && tsc() - start < 10_000_000_000 {}
    tsc() - start
}

/// Spins for `us` microseconds.
pub(crate) fn spin_us(us: u64) {
    let start = tsc();
    while tsc().wrapping_sub(start) < us * tsc_khz() / 1000 {
        core::hint::spin_loop();
    }
}

/// Halts this CPU until the next interrupt. Called with interrupts off; they are on when it returns.
pub(crate) fn halt() {
    // ORDERING: Relaxed, a statistic.
    this_cpu().halts.fetch_add(1, Relaxed);
    interrupts::enable_and_hlt();
}

/// Halts this CPU until it is kicked. Called with interrupts off, which they stay.
pub(crate) fn halt_until_kicked() {
    // ORDERING: Relaxed, a statistic.
    this_cpu().halts.fetch_add(1, Relaxed);
    Kvm::halt(false);
}

/// Halts this CPU for `ms` milliseconds; takes over its timer.
pub fn sleep_ms(ms: u64) {
    let until = tsc() + ms * tsc_khz();
    loop {
        interrupts::disable();
        let left = until.saturating_sub(tsc());
        if left == 0 {
            break;
        }
        // At most a second at once: the timer has 32 bits.
        lapic::start_timer((left * 1000 / tsc_khz()).clamp(10, 1_000_000));
        halt();
    }
    lapic::stop_timer();
    interrupts::enable();
}
