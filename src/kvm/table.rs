//! The table of steal-time records, one per CPU, and how one is reached.

#[cfg(not(pvlock_loom))]
use super::steal_time::ask_for_flush;
use super::steal_time::{Record, StealTime, read_preempted};
use crate::cpu::{CpuId, MAX_CPUS};
use core::cell::UnsafeCell;
use core::ptr::NonNull;
#[cfg(not(pvlock_loom))]
use core::sync::atomic::AtomicU8;
use static_assertions::const_assert_eq;
use volatile::VolatilePtr;

/// Page size of x86-64.
const PAGE: usize = 4096;

/// All records, in pages of their own: an encrypted guest shares exactly these pages with the host and nothing else.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(crate) struct Table([UnsafeCell<StealTime>; MAX_CPUS]);

const_assert_eq!(align_of::<Table>(), PAGE);
const_assert_eq!(size_of::<Table>() % PAGE, 0);
const_assert_eq!(size_of::<StealTime>(), 1 << TABLE_SHIFT);

// SAFETY: no reference to a record is ever made. The host writes them; we read them volatile, and write them (zero) only on
//   the CPU whose record it is, while the host does not.
unsafe impl Sync for Table {}

/// The records. Zero until the host writes: an unregistered CPU reads as not preempted.
pub(crate) static TABLE: Table = Table([const { UnsafeCell::new(StealTime::ZERO) }; MAX_CPUS]);

/// Binary logarithm of the distance of two records in [`TABLE`], in bytes.
pub(crate) const TABLE_SHIFT: u32 = 6;

/// Where the record of `cpu` lies, as a virtual address. 64-byte aligned, never moves, crosses no page.
pub fn record_address(cpu: CpuId) -> *const StealTime {
    slot(cpu).as_ptr()
}

/// Start and length in bytes of all records together, in whole pages that hold nothing else.
///
/// An encrypted guest makes these pages shared with the host, all of them, before the first CPU registers, and zeroes them
/// after that if sharing scrambles what they held.
pub fn record_region() -> (*const u8, usize) {
    ((&raw const TABLE).cast(), size_of::<Table>())
}

/// Where the record of `cpu` lies, without the bounds check that the compiler cannot see to be idle.
#[inline(always)]
fn slot(cpu: CpuId) -> NonNull<StealTime> {
    // SAFETY: the index of a CpuId is below MAX_CPUS, the length of the table.
    let cell = unsafe { TABLE.0.get_unchecked(cpu.index()) };
    NonNull::from(cell).cast()
}

/// The record of `cpu` for volatile reads.
#[inline(always)]
pub(super) fn record(cpu: CpuId) -> Record<'static> {
    // SAFETY: a record of TABLE, so valid for 'static and aligned. That the host writes meanwhile is what volatile access is
    //   for.
    unsafe { VolatilePtr::new_read_only(slot(cpu)) }
}

/// The `preempted` byte of `cpu`.
#[inline(always)]
pub(crate) fn preempted_byte(cpu: CpuId) -> u8 {
    read_preempted(record(cpu))
}

/// Asks the host to flush the TLB of `cpu` before it runs again: see [`ask_for_flush`].
#[cfg(not(pvlock_loom))]
pub(crate) fn mark_flush(cpu: CpuId) -> bool {
    // SAFETY: a field of a record of TABLE.
    let byte = unsafe { slot(cpu).byte_add(StealTime::PREEMPTED_OFFSET) };
    // SAFETY: one byte of a static, valid and aligned. Whoever else writes it, the host, does so by atomic instructions; volatile reads and
    //   the assembly routine read it meanwhile, as the host itself might.
    let byte = unsafe { AtomicU8::from_ptr(byte.cast().as_ptr()) };
    ask_for_flush(byte)
}

/// Models have no host that writes records.
#[cfg(pvlock_loom)]
pub(crate) fn mark_flush(_: CpuId) -> bool {
    false
}

/// Makes the record of `cpu` as it was before the host wrote to it.
///
/// # Safety
/// The host does not write to it now.
pub(super) unsafe fn zero_record(cpu: CpuId) {
    // SAFETY: a record of TABLE, valid and aligned. Others may read it meanwhile, volatile or by the assembly routine.
    unsafe { VolatilePtr::new(slot(cpu)) }.write(StealTime::ZERO);
}
