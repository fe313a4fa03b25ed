//! Starting all CPUs.

use core::sync::atomic::{AtomicU64, Ordering};

use alloc::vec::Vec;
use pvlock::{CpuId, MAX_CPUS};
use spin::Once;

use crate::error::BootError;
use crate::per_cpu::{BOOT_CPU, PerCpu};
use crate::segments::leak_stack;
use crate::{clock, lapic, madt, println};

/// Where started CPUs begin, in real mode: a page of conventional memory, below 1 MiB.
pub(crate) const TRAMPOLINE: u32 = 0x8000;

/// Bytes of the stack on which a CPU runs what it is given.
const STACK_BYTES: usize = 32 * 1024;

/// How long a CPU may take from its start-up IPI to waiting for work. Generous: with more vCPUs than CPUs under an
/// emulator it has to wait its turn.
const START_LIMIT_MS: u64 = 5000;

unsafe extern "C" {
    // In boot.s.
    static ap_trampoline: u8;
    static ap_trampoline_end: u8;
    static ap_mailbox: AtomicU64;
}

/// The blocks of all CPUs, by CPU number.
static CPUS: Once<Vec<&'static PerCpu>> = Once::new();

/// The blocks of all CPUs that run, by CPU number; only the boot CPU's before the others are started.
pub(crate) fn all() -> &'static [&'static PerCpu] {
    const ALONE: &[&PerCpu] = &[&BOOT_CPU];
    CPUS.get().map_or(ALONE, |cpus| cpus)
}

/// How many CPUs run; their numbers are `0..cpu_count()`.
pub fn cpu_count() -> usize {
    all().len()
}

/// HLT instructions that the runtime executed, all CPUs together.
pub fn halts() -> u64 {
    // ORDERING: Relaxed, a statistic.
    all().iter().map(|cpu| cpu.halts.load(Ordering::Relaxed)).sum()
}

/// Timer interrupts taken by one CPU, 0 for one that does not run.
pub fn ticks(cpu: CpuId) -> u64 {
    // ORDERING: Relaxed, a statistic.
    all().get(cpu.index()).map_or(0, |cpu| cpu.ticks.load(Ordering::Relaxed))
}

/// Starts every CPU that ACPI lists, one after the other; they get the numbers 1, 2, ... in table order.
///
/// # Errors
/// When a CPU cannot be numbered or addressed, or does not report in time.
pub(crate) fn start_all(rsdp: u64) -> Result<(), BootError> {
    if rsdp == 0 {
        println!("# the loader gave no ACPI tables: only the boot CPU is used");
        return Ok(());
    }
    let mut ids = madt::apic_ids(rsdp)?;
    ids.retain(|&id| id != BOOT_CPU.apic_id());
    if let Some(&id) = ids.iter().find(|&&id| id > lapic::highest_id()) {
        return Err(BootError::IdTooHigh(id));
    }
    if ids.len() >= MAX_CPUS {
        return Err(BootError::TooManyCpus { found: ids.len() + 1 });
    }
    copy_trampoline();
    ids.iter().for_each(|&id| lapic::send_init(id));
    // Intel's start-up sequence: 10 ms between INIT and the start-up IPI.
    clock::spin_us(10_000);

    let mut cpus = alloc::vec![&BOOT_CPU];
    for (id, index) in ids.into_iter().zip(1..) {
        let cpu = CpuId::new(index).expect("there are at most MAX_CPUS");
        let block = PerCpu::leak(cpu, id, leak_stack(STACK_BYTES));
        start(block)?;
        cpus.push(block);
    }
    CPUS.call_once(|| cpus);
    Ok(())
}

fn copy_trampoline() {
    let from = &raw const ap_trampoline;
    let len = (&raw const ap_trampoline_end).addr() - from.addr();
    // SAFETY: both ends are identity-mapped; the page is conventional RAM that holds nothing still needed: what the
    // loader left was copied, and the heap lies beyond the image.
    unsafe { from.copy_to(TRAMPOLINE as *mut u8, len) };
}

fn start(block: &'static PerCpu) -> Result<(), BootError> {
    // SAFETY: a static of boot.s, 8 bytes and aligned, only accessed atomically from now on (an xchg there).
    let mailbox = unsafe { &ap_mailbox };
    // ORDERING: Release, pair AP-START (the xchg in boot.s): the new CPU sees its block and the stack as written.
    mailbox.store(core::ptr::from_ref(block).expose_provenance() as u64, Ordering::Release);
    let started = clock::tsc();
    let limit = START_LIMIT_MS * clock::tsc_khz();
    let mut resend_at = 0;
    loop {
        let waited = clock::tsc() - started;
        // ORDERING: Acquire, pair AP-ONLINE: all that the CPU did to get ready has happened.
        if block.online.load(Ordering::Acquire) {
            return Ok(());
        }
        if waited > limit {
            return Err(BootError::CpuSilent { id: block.apic_id(), limit_ms: START_LIMIT_MS });
        }
        // A start-up IPI can get lost. Without effect on a CPU that runs already.
        if waited >= resend_at {
            lapic::send_startup(block.apic_id(), (TRAMPOLINE >> 12) as u8);
            resend_at = waited + 100 * clock::tsc_khz();
        }
        core::hint::spin_loop();
    }
}
