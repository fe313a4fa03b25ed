//! The time-stamp counter, as a cheap clock of one CPU: only differences within a few µs are taken.

/// The counter. Not ordered against other instructions.
#[inline(always)]
pub(super) fn rdtsc() -> u64 {
    // SAFETY: every x86-64 processor has it, and ring 0 may always read it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
