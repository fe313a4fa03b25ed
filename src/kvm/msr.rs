//! The model-specific registers of KVM, and the seam through which registration touches the machine.
//!
//! Source of the number: Linux `Documentation/virt/kvm/x86/msr.rst`.

use super::detect::{Detected, detect, physical_address_bits};
use x86_64::registers::model_specific::Msr;

/// Physical address of this CPU's steal-time record, 64-byte aligned, with bit 0 set to enable it; 0 ends it. Bits 1 to 5
/// are reserved and must be 0.
pub const MSR_KVM_STEAL_TIME: u32 = 0x4b56_4d03;

/// Bit 0 of [`MSR_KVM_STEAL_TIME`].
pub(super) const ENABLE: u64 = 1;

/// What registration asks of the CPU it runs on. Tests put a recorder here; there is no other implementation.
pub(super) trait Machine {
    /// Looks for KVM.
    fn detect(&self) -> Option<Detected>;

    /// Width of a physical address, in bits.
    fn physical_address_bits(&self) -> u32;

    /// Writes [`MSR_KVM_STEAL_TIME`] of this CPU.
    ///
    /// # Safety
    /// Ring 0, on a KVM host that offers steal time. `value` is 0, or [`ENABLE`] plus the physical address of memory that the
    /// host may write from now until 0 is written on this CPU.
    unsafe fn write_steal_time_msr(&self, value: u64);
}

/// The CPU that runs this code.
pub(super) struct ThisCpu;

impl Machine for ThisCpu {
    fn detect(&self) -> Option<Detected> {
        detect()
    }

    fn physical_address_bits(&self) -> u32 {
        physical_address_bits()
    }

    unsafe fn write_steal_time_msr(&self, value: u64) {
        // SAFETY: the contract of this method: the MSR exists and `value` names memory that is the host's to write. The
        //   instruction is a compiler barrier, so what was written to the record before stays before.
        unsafe { Msr::new(MSR_KVM_STEAL_TIME).write(value) }
    }
}
