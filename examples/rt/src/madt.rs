//! The list of CPUs, from the ACPI table MADT.

use core::ptr::NonNull;

use acpi::madt::{Madt, MadtEntry};
use acpi::{AcpiHandler, AcpiTables, PhysicalMapping};
use alloc::vec::Vec;
use pvlock::ApicId;

use crate::error::BootError;

/// Bit 0 of an entry's flags: the CPU is there. Others are empty sockets.
const ENABLED: u32 = 1 << 0;

/// APIC ids of all CPUs that are present, in table order.
///
/// # Errors
/// When the tables cannot be read.
pub(crate) fn apic_ids(rsdp: u64) -> Result<Vec<ApicId>, BootError> {
    // SAFETY: the address comes from the loader's start info, and tables below 4 GiB are identity-mapped.
    let tables = unsafe { AcpiTables::from_rsdp(IdentityMap, rsdp as usize) };
    let tables = tables.map_err(|_| BootError::NoAcpi)?;
    let madt = tables.find_table::<Madt>().map_err(|_| BootError::NoMadt)?;
    let ids = madt.get().entries().filter_map(|entry| match entry {
        MadtEntry::LocalApic(cpu) if cpu.flags & ENABLED != 0 => Some(ApicId(cpu.apic_id.into())),
        MadtEntry::LocalX2Apic(cpu) if cpu.flags & ENABLED != 0 => Some(ApicId(cpu.x2apic_id)),
        _ => None,
    });
    Ok(ids.collect())
}

/// Physical memory is where its address says.
#[derive(Clone)]
struct IdentityMap;

impl AcpiHandler for IdentityMap {
    unsafe fn map_physical_region<T>(&self, physical_address: usize, size: usize) -> PhysicalMapping<Self, T> {
        let address = NonNull::new(physical_address as *mut T).expect("no ACPI table is at address 0");
        // SAFETY: all memory below 4 GiB is mapped, for ever.
        unsafe { PhysicalMapping::new(physical_address, address, size, size, IdentityMap) }
    }

    fn unmap_physical_region<T>(_: &PhysicalMapping<Self, T>) {}
}
