//! The kernel side of `pvlock`: the [`Cpu`] implementation of the example guests, and what each CPU does to register.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pvlock::hypervisor::{Hypervisor, Kvm};
use pvlock::kvm::{self, RegisterError};
use pvlock::{ApicId, Cpu, CpuId};
use raw_cpuid::cpuid;
use x86_64::instructions::interrupts;

use crate::boot::pvlock_rt_own_bring_up;
use crate::error::BootError;
use crate::per_cpu::{self, PerCpu};
use crate::{println, task};

/// The CPUs of an example guest: numbers from the GS block, KVM as hypervisor where there is one.
#[derive(Debug)]
pub enum RtCpu {}

impl Cpu for RtCpu {
    type Hypervisor = Kvm;

    #[inline(always)]
    fn current() -> Option<CpuId> {
        per_cpu::current()
    }

    fn need_resched() -> bool {
        task::need_resched()
    }

    fn may_sleep() -> bool {
        interrupts::are_enabled() && per_cpu::preempt_count() == 0
    }

    fn relax_same_cpu() {
        task::yield_if_task();
    }

    #[inline]
    fn preempt_disable() {
        per_cpu::preempt_disable();
    }

    #[inline]
    fn preempt_enable() {
        if per_cpu::preempt_enable() {
            task::preempt_enabled();
        }
    }
}

/// Whether the processor has x2APIC mode (CPUID leaf 1, ECX bit 21).
pub(crate) fn has_x2apic() -> bool {
    cpuid!(1).ecx & 1 << 21 != 0
}

/// Whether CPUID shows a hypervisor of any kind (leaf 1, ECX bit 31).
pub fn hypervisor_present() -> bool {
    cpuid!(1).ecx & 1 << 31 != 0
}

/// APIC id of the running CPU: CPUID leaf 0xb, EDX; without x2APIC leaf 1, EBX bits 24 to 31.
pub(crate) fn own_apic_id() -> ApicId {
    if has_x2apic() { ApicId(cpuid!(0xb).edx) } else { ApicId(cpuid!(1).ebx >> 24) }
}

/// Registers the steal-time record of the running CPU, or lets the guest do it. Needs nothing but its number: no heap, no other CPU.
///
/// # Errors
/// When the host offers steal time and the registration still fails. A host without it is none.
pub(crate) fn register(block: &PerCpu) -> Result<(), BootError> {
    let cpu = block.cpu().expect("a CPU has its number before it registers");
    if let Some(guest) = pvlock_rt_own_bring_up() {
        (guest.up)(cpu.index() as u32, block.apic_id().0);
        return Ok(());
    }
    // Memory is identity-mapped: the physical address is the virtual one.
    let physical = kvm::record_address(cpu) as u64;
    // SAFETY: the running CPU has the number `cpu`, and the record lies in the image, which is never given away.
    match unsafe { kvm::register_this_cpu(cpu, block.apic_id(), physical) } {
        Ok(()) | Err(RegisterError::NoKvm | RegisterError::NoStealTime) => Ok(()),
        Err(error) => Err(BootError::Register(error)),
    }
}

/// See [`runtime_kicks`].
static KICKS: AtomicU64 = AtomicU64::new(0);

/// Hypercalls that the runtime caused itself: where waiters may halt, one trial kick per CPU, and those that wake idle CPUs.
pub fn runtime_kicks() -> u64 {
    // ORDERING: Relaxed, a statistic.
    KICKS.load(Relaxed)
}

/// Whether `cpu` idles until it is kicked, and not until an interrupt. Does not change once the CPU is up.
pub(crate) fn idles_until_kicked(cpu: CpuId) -> bool {
    Kvm::can_halt() && Kvm::may_halt(cpu)
}

/// Ends the halt of an idle CPU, or its next one if it does not halt now.
pub(crate) fn kick(cpu: CpuId) {
    // ORDERING: Relaxed, as above.
    KICKS.fetch_add(1, Relaxed);
    Kvm::kick(cpu);
}

/// From here on the CPU's local APIC is on, so that a kick can end its halts.
pub(crate) fn ready(block: &PerCpu) {
    let cpu = block.cpu().expect("a CPU has its number before it is ready");
    if let Some(guest) = pvlock_rt_own_bring_up() {
        return (guest.ready)(cpu.index() as u32);
    }
    if Kvm::can_halt() {
        // ORDERING: Relaxed, as above.
        KICKS.fetch_add(1, Relaxed);
    }
    if let Err(error) = Kvm::ready_to_be_kicked(cpu) {
        // Not the end: the locks then spin and yield.
        println!("# {cpu}: {error}");
    }
}
