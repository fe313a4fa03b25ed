//! [`SpinDetector`]: finds out from the timer interrupt alone that a CPU spins, and boosts a preempted sibling.
//!
//! For spin loops that nothing else catches: of foreign code, without a pause, without a relax hook. Two ticks in a row that interrupt the
//! same small piece of code, with no sign of progress between, are taken for spinning.
//!
//! | tick finds | before it | verdict |
//! |---|---|---|
//! | any instruction | a progress mark, or no tick yet | [`Verdict::Progress`] |
//! | an instruction more than `LOOP_BYTES` away from the last tick's | a tick | [`Verdict::Progress`] |
//! | one no further away | a tick | [`Verdict::Spins`]: somebody preempted is boosted, if anybody is |
//!
//! A tight loop that does work (copying, zeroing, a checksum) looks the same. Then a time slice is given away for nothing, but only where
//! some sibling reads as preempted and is not called idle: seldom on a host that has a physical CPU for each vCPU. How often depends on the marks: of a workload
//! of nothing but such loops, with a tick each ms, a third to a half of the ticks are mistaken when no progress is marked, and none when it
//! is marked once per loop and a loop takes 256 to 65536 bytes. A single loop that takes longer than a tick cannot be told
//! from spinning at all (`cargo test --release -p pvhost --test boost -- --nocapture honest`).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::candidates::{Boost, boost_any};
use super::idle::is_idle;
use crate::cpu::{Cpu, CpuId, MAX_CPUS};
use crate::stats::{Counter, count};

/// The farthest that two instructions of one spin loop are taken to be apart, in bytes.
///
/// A spin loop is a load, a test, a pause and a jump: 8 to 40 bytes, with a counter or a deadline up to 60. One cache line.
const LOOP_BYTES: u64 = 64;

/// What a tick found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The CPU got on since the last tick, or this is the first one.
    Progress,
    /// The CPU was in the same small loop at the last tick and has made no progress since; and what came of helping it.
    ///
    /// After [`Boost::Yielded`] the caller may have been off the CPU meanwhile; it returns from the interrupt as always.
    Spins(Boost),
}

/// Busy-spin detectors, one per CPU, in one static of the kernel.
///
/// ```
/// # struct MyCpu;
/// # impl pvlock::Cpu for MyCpu {
/// #     type Hypervisor = pvlock::hypervisor::Kvm;
/// #     fn current() -> Option<pvlock::CpuId> { pvlock::CpuId::new(0) }
/// # }
/// use pvlock::boost::SpinDetector;
///
/// static DETECTOR: SpinDetector = SpinDetector::new();
///
/// fn on_timer_interrupt(cpu: pvlock::CpuId, interrupted_ip: u64, in_user_mode: bool) {
///     // ... acknowledge the interrupt first ...
///     if in_user_mode {
///         DETECTOR.progress(cpu);
///     } else {
///         DETECTOR.tick::<MyCpu>(cpu, interrupted_ip);
///     }
/// }
/// # on_timer_interrupt(pvlock::CpuId::new(0).unwrap(), 0x1000, false);
/// ```
#[derive(Debug)]
pub struct SpinDetector([Slot; MAX_CPUS]);

/// The interrupted instruction at the last tick; 0 after a mark of progress. A line of its own: progress marks may be frequent.
#[derive(Debug)]
#[repr(align(64))]
struct Slot(AtomicU64);

impl SpinDetector {
    /// No tick has come yet.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { Slot(AtomicU64::new(0)) }; MAX_CPUS])
    }

    /// `cpu`, the calling CPU, gets on: its next tick is no repetition. One store to a line of its own.
    ///
    /// Call it where something happens that a spinning CPU does not do: at a task switch, in system calls and faults, when going idle. More
    /// marks mean fewer wrong verdicts. Ticks in user mode are marks too: user code holds no kernel lock.
    #[inline]
    pub fn progress(&self, cpu: CpuId) {
        // ORDERING: Relaxed, as in `tick`: the slot belongs to this CPU and its interrupts.
        self.0[cpu.index()].0.store(0, Relaxed);
    }

    /// The timer interrupt of `cpu`, the calling CPU, has come at the instruction `ip` in kernel mode.
    ///
    /// Call it after the interrupt is acknowledged, since the CPU may be off for a time slice in here. A tick every 1 to 10 ms is right:
    /// the interval is the shortest spin that is found, and the longest copy that is not mistaken.
    pub fn tick<C: Cpu>(&self, cpu: CpuId, ip: u64) -> Verdict {
        if is_idle(cpu) {
            // Halted at the same instruction again and again.
            self.progress(cpu);
            return Verdict::Progress;
        }
        let slot = &self.0[cpu.index()].0;
        let last = slot.load(Relaxed);
        slot.store(ip, Relaxed);
        if last == 0 || last.abs_diff(ip) > LOOP_BYTES {
            return Verdict::Progress;
        }
        count(Some(cpu), Counter::BusySpin);
        let boost = boost_any::<C>();
        if matches!(boost, Boost::Yielded { .. }) {
            // Being off the CPU is progress of a kind: whoever ran meanwhile may have ended the wait.
            self.progress(cpu);
        }
        Verdict::Spins(boost)
    }
}

impl Default for SpinDetector {
    fn default() -> Self {
        Self::new()
    }
}
