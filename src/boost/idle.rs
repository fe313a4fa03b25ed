//! Which CPUs the kernel knows to be idle: one bit each, kept by the kernel's idle loop, so that nobody boosts them.
//!
//! On hosts before Linux 5.18 an idle CPU (halted until an interrupt) reads as preempted, as one does that the host took away. Only the guest
//! can tell the two apart.

use super::cpu_set::CpuSet;
use crate::cpu::CpuId;

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

/// The idle CPUs.
pub(super) static IDLE: CpuSet = CpuSet::new();
