//! Steal-time records, written as KVM writes them: same layout, same order of writes.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, fence};
use memoffset::offset_of;
use pvlock::kvm::{self, StealTime};
use pvlock::{CpuId, MAX_CPUS};
use static_assertions::const_assert_eq;

/// `KVM_VCPU_PREEMPTED`, bit 0 of the byte.
const PREEMPTED: u8 = 1 << 0;
/// `KVM_VCPU_FLUSH_TLB`, bit 1 of the byte: the guest asks for a TLB flush before the vCPU runs again.
const FLUSH_TLB: u8 = 1 << 1;

/// The steal-time record of one vCPU, with the layout of [`StealTime`].
///
/// Only the host writes it, but for the flush mark.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StealRecord {
    steal: AtomicU64,
    version: AtomicU32,
    flags: AtomicU32,
    preempted: AtomicU8,
}

const_assert_eq!(size_of::<StealRecord>(), size_of::<StealTime>());
const_assert_eq!(offset_of!(StealRecord, steal), offset_of!(StealTime, steal));
const_assert_eq!(offset_of!(StealRecord, version), offset_of!(StealTime, version));
const_assert_eq!(offset_of!(StealRecord, flags), offset_of!(StealTime, flags));
const_assert_eq!(offset_of!(StealRecord, preempted), offset_of!(StealTime, preempted));

/// One record per CPU, at a fixed address, so that asking for a CPU's state is a single load.
static TABLE: [StealRecord; MAX_CPUS] = [const { StealRecord::new() }; MAX_CPUS];

/// What the host found in a record when it scheduled the vCPU in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushRequest {
    None,
    Asked,
}

impl StealRecord {
    const fn new() -> Self {
        Self {
            steal: AtomicU64::new(0),
            version: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            preempted: AtomicU8::new(0),
        }
    }

    /// The record of `cpu`.
    #[inline]
    pub fn of(cpu: CpuId) -> &'static Self {
        &TABLE[cpu.index()]
    }

    /// Whether the vCPU is off its physical CPU and that shows: preempted, or, on some hosts, halted.
    #[inline]
    pub fn is_preempted(&self) -> bool {
        // ORDERING: Relaxed, a hint.
        self.preempted.load(Relaxed) & PREEMPTED != 0
    }

    /// Nanoseconds for which the vCPU was ready to run and did not, by the version protocol.
    pub fn steal_ns(&self) -> u64 {
        loop {
            // ORDERING: Acquire, pair PVHOST-VERSION (in `switch_in`).
            let before = self.version.load(Acquire);
            let steal_ns = self.steal.load(Relaxed);
            // ORDERING: the second half of pair PVHOST-VERSION: `steal` is read before `version` is read again.
            fence(Acquire);
            if before.is_multiple_of(2) && self.version.load(Relaxed) == before {
                return steal_ns;
            }
        }
    }

    /// The record's version: odd while the host changes the record, moved by every schedule-in.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version.load(Relaxed)
    }

    /// Asks the host to flush the TLB of a preempted vCPU before it runs again. `false`: it is not preempted, or not any
    /// more, and needs an interrupt instead.
    pub fn ask_for_flush(&self) -> bool {
        // The guest's own code, as in a real one.
        kvm::ask_for_flush(&self.preempted)
    }

    /// Before a vCPU runs for the first time: nothing stolen, and off its physical CPU.
    pub(crate) fn register(&self) {
        self.clear();
        self.preempted.store(PREEMPTED, Relaxed);
    }

    /// After a vCPU has ended: reads as not preempted, as a record that is not registered does.
    pub(crate) fn clear(&self) {
        self.steal.store(0, Relaxed);
        self.version.store(0, Relaxed);
        self.preempted.store(0, Relaxed);
    }

    /// The vCPU leaves its physical CPU, and that shows.
    pub(crate) fn switch_out(&self) {
        // ORDERING: Release, pair HOST-FLUSH (in `ask_for_flush`): who leaves a mark has seen all that this vCPU did.
        self.preempted.store(PREEMPTED, Release);
    }

    /// The vCPU is about to run again; `steal_ns` is its new total. KVM's order: take the byte, then `version` odd, `steal`,
    /// `version` even.
    pub(crate) fn switch_in(&self, steal_ns: u64) -> FlushRequest {
        // ORDERING: SeqCst, pair HOST-FLUSH (in `ask_for_flush`): what was written before the mark (page tables) is seen by the vCPU that runs
        //   with its TLB flushed.
        let byte = self.preempted.swap(0, SeqCst);
        let version = self.version.load(Relaxed);
        // ORDERING: pair PVHOST-VERSION (in `steal_ns`): `version` is odd before `steal` changes ...
        self.version.store(version.wrapping_add(1), Relaxed);
        fence(Release);
        self.steal.store(steal_ns, Relaxed);
        // ORDERING: ... and even only after it has changed.
        self.version.store(version.wrapping_add(2), Release);
        if byte & FLUSH_TLB != 0 { FlushRequest::Asked } else { FlushRequest::None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switching_in_moves_the_version_by_two_and_consumes_the_flush_mark() {
        let record = StealRecord::new();
        record.register();
        assert!(record.is_preempted());
        assert!(record.ask_for_flush());
        assert!(record.ask_for_flush(), "asking twice is one request");
        assert_eq!(record.switch_in(7), FlushRequest::Asked);
        assert_eq!((record.version(), record.steal_ns(), record.is_preempted()), (2, 7, false));
        assert!(!record.ask_for_flush(), "a running vCPU needs an interrupt");
        record.switch_out();
        assert_eq!(record.switch_in(9), FlushRequest::None);
        assert_eq!((record.version(), record.steal_ns()), (4, 9));
    }
}
