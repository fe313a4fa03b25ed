//! Which CPUs the kernel knows to be idle: one bit each, kept by the kernel's idle loop, so that nobody boosts them.
//!
//! An idle CPU (halted until an interrupt) reads as preempted, as one does that the host took away. Only the guest can tell the two
//! apart.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::cpu::{CpuId, MAX_CPUS};

/// The kernel's idle loop says that `cpu`, the calling CPU, has nothing to do and is about to halt.
///
/// One locked instruction on a cache line that up to 512 CPUs share. Optional: a kernel that never calls it has no CPU known as idle, and
/// a boost then may go to a sleeper, where it does nothing.
///
/// ```
/// # let cpu = pvlock::CpuId::new(3).unwrap();
/// # fn halt_until_interrupt() {}
/// pvlock::boost::idle_begin(cpu);
/// halt_until_interrupt();
/// pvlock::boost::idle_end(cpu);
/// ```
#[inline]
pub fn idle_begin(cpu: CpuId) {
    IDLE.insert(cpu);
}

/// Undoes [`idle_begin`]: `cpu` has left its idle loop.
#[inline]
pub fn idle_end(cpu: CpuId) {
    IDLE.remove(cpu);
}

/// Whether `cpu` is between [`idle_begin`] and [`idle_end`]. A hint, without ordering.
#[inline]
pub fn is_idle(cpu: CpuId) -> bool {
    IDLE.contains(cpu)
}

/// CPUs per word.
pub(super) const WORD: usize = u64::BITS as usize;

/// A set of CPUs. Bits in whole cache lines: other data beside them would suffer from every idle loop.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct CpuSet([AtomicU64; MAX_CPUS.div_ceil(WORD)]);

/// Plain atomics, also where others are modelled: nothing rests on what they hold.
pub(super) static IDLE: CpuSet = CpuSet::new();

impl CpuSet {
    pub(super) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MAX_CPUS.div_ceil(WORD)])
    }

    // ORDERING (of all): Relaxed, hints.

    pub(super) fn insert(&self, cpu: CpuId) {
        self.0[cpu.index() / WORD].fetch_or(1 << (cpu.index() % WORD), Relaxed);
    }

    pub(super) fn remove(&self, cpu: CpuId) {
        self.0[cpu.index() / WORD].fetch_and(!(1 << (cpu.index() % WORD)), Relaxed);
    }

    pub(super) fn contains(&self, cpu: CpuId) -> bool {
        self.0[cpu.index() / WORD].load(Relaxed) >> (cpu.index() % WORD) & 1 != 0
    }

    /// The CPUs of word `word` that are *not* in the set, lowest first from bit 0.
    pub(super) fn complement(&self, word: usize) -> u64 {
        !self.0[word].load(Relaxed)
    }
}
