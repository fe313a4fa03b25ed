//! The steal-time record: 64 bytes that the host writes for one vCPU, and how they are read.
//!
//! Layout and meaning: Linux `Documentation/virt/kvm/x86/msr.rst`, `MSR_KVM_STEAL_TIME`. Every access is volatile, through
//! the crate `volatile`: the host may write at any instruction.

use crate::sync::{AtomicU8, Ordering::AcqRel, Ordering::Relaxed};
use core::sync::atomic::{Ordering::Acquire, fence};
use memoffset::offset_of;
use static_assertions::const_assert_eq;
use volatile::access::ReadOnly;
use volatile::{VolatilePtr, map_field};

/// Bit 0 of [`StealTime::preempted`]: the vCPU is off its physical CPU. The other bits mean other things.
pub(crate) const PREEMPTED: u8 = 1 << 0;
/// Bit 1: the host flushes the vCPU's TLB before it runs again. Only a guest sets it, and only beside [`PREEMPTED`].
const FLUSH_TLB: u8 = 1 << 1;

/// The record of one vCPU, written by the host.
///
/// Reached as raw memory only ([`record_address`](super::record_address)); a test host may keep records of its own.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct StealTime {
    /// Nanoseconds for which the vCPU was ready to run and did not. Time idle in HLT is not counted.
    pub steal: u64,
    /// Odd while the host changes the record. Moves each time the vCPU is scheduled in.
    pub version: u32,
    /// Always 0 so far.
    pub flags: u32,
    /// Bit 0: the vCPU is off a physical CPU, see [`preempted`](crate::preempted). Bit 1: it flushes its TLB before it runs again.
    pub preempted: u8,
    reserved: [u8; 47],
}

const_assert_eq!(size_of::<StealTime>(), 64);
const_assert_eq!(align_of::<StealTime>(), 64);
const_assert_eq!(offset_of!(StealTime, steal), 0);
const_assert_eq!(offset_of!(StealTime, version), 8);
const_assert_eq!(offset_of!(StealTime, flags), 12);
const_assert_eq!(offset_of!(StealTime, preempted), 16);
// `span_of!` is not a constant expression; that the next field starts at 17 says the same: `preempted` is one byte.
const_assert_eq!(offset_of!(StealTime, reserved), 17);

impl StealTime {
    /// A record before the host has written to it: not preempted, nothing stolen.
    pub const ZERO: Self = Self { steal: 0, version: 0, flags: 0, preempted: 0, reserved: [0; 47] };

    /// Byte offset of [`preempted`](Self::preempted) in the record.
    pub const PREEMPTED_OFFSET: usize = offset_of!(StealTime, preempted);
}

/// A record for volatile reads.
pub(crate) type Record<'a> = VolatilePtr<'a, StealTime, ReadOnly>;

/// How often a record is read again while the host changes it. The host needs a few instructions for that, so the bound is
/// reached only where the record is not what it should be, or the host died half-way.
const MAX_TRIES: usize = 1000;

/// One consistent reading of `steal`, in ns, by the version protocol; `None` when [`MAX_TRIES`] did not give one.
pub(crate) fn read_steal(record: Record<'_>) -> Option<u64> {
    consistent(|| map_field!(record.version).read(), || map_field!(record.steal).read())
}

/// [`read_steal`] with the two fields' reads passed in.
pub(crate) fn consistent(version: impl Fn() -> u32, steal: impl Fn() -> u64) -> Option<u64> {
    for _ in 0..MAX_TRIES {
        let before = version();
        // ORDERING: Acquire, pair HOST-VERSION (the host's write barriers around its update): `steal` is read after the
        //   first and before the second reading of `version`.
        fence(Acquire);
        let stolen = steal();
        fence(Acquire);
        if before == version() && before.is_multiple_of(2) {
            return Some(stolen);
        }
        core::hint::spin_loop();
    }
    None
}

/// Asks the host, by the flush mark in a record's `preempted` byte, to flush the TLB of that vCPU before it runs again. `false`: the vCPU
/// is not preempted, or not any more, and needs an interrupt instead.
///
/// | byte | here | then the host, before the vCPU runs |
/// |---|---|---|
/// | 0: runs | no mark | |
/// | PREEMPTED | compare-exchange to PREEMPTED and FLUSH | exchanges with 0, sees FLUSH, flushes |
/// | PREEMPTED and FLUSH | compare-exchange to the same | as above, once for all who asked |
/// | any, and the host exchanges it with 0 first | compare-exchange fails, sees 0: no mark | |
///
/// Never a plain store and never without PREEMPTED: a mark on a vCPU that is being scheduled in would stay there unseen, which is
/// CVE-2019-3016 from the guest's side.
///
/// What the caller wrote before the call is seen by all that the vCPU does after the flush, and what the vCPU did before it was preempted
/// is seen by the caller, where the answer is `true`.
///
/// For test hosts that keep records of their own; in a guest, `Hypervisor::mark_flush` does it.
pub fn ask_for_flush(preempted: &AtomicU8) -> bool {
    // ORDERING: Relaxed, the compare-exchange confirms it.
    let mut byte = preempted.load(Relaxed);
    while byte & PREEMPTED != 0 {
        // ORDERING: AcqRel, pair HOST-FLUSH (the host's exchange of the byte with 0 when it schedules the vCPU in; its store of PREEMPTED when
        //   it has scheduled it out). A write also where the mark is there already: a mere read would order nothing.
        match preempted.compare_exchange(byte, byte | FLUSH_TLB, AcqRel, Relaxed) {
            Ok(_) => return true,
            // Somebody else's mark, or the host.
            Err(now) => byte = now,
        }
    }
    false
}

/// The record's `version`.
pub(crate) fn read_version(record: Record<'_>) -> u32 {
    map_field!(record.version).read()
}

/// The record's `preempted` byte, all bits.
#[inline(always)]
pub(crate) fn read_preempted(record: Record<'_>) -> u8 {
    map_field!(record.preempted).read()
}
