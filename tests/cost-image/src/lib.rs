//! The probes: each takes and releases one lock, as code below the kernel has it inlined.
//!
//! They are in a library, apart from the kernel that names its platform, so that without link-time optimisation the link-time symbols stay
//! symbols, as in the crates that `pvlock::platform::Linked` is for.
#![no_std]

use core::arch::asm;

pub mod kernel;
mod limits;
mod probes;
pub mod table;

pub use probes::PROBES;

/// A lock alone in its cache lines.
#[repr(align(128))]
struct OwnLine<L>(L);

/// Where `lock` is, as far as the compiler knows anywhere: as of a lock inside of a structure.
#[inline(always)]
fn anywhere<L>(lock: &L) -> &L {
    let mut lock: *const L = lock;
    // SAFETY: no instruction at all.
    unsafe { asm!("/* {} */", inout(reg) lock, options(nostack, preserves_flags)) };
    // SAFETY: nothing has changed it.
    unsafe { &*lock }
}

/// Does `round` with `lock` so many times.
#[inline(always)]
fn repeat<L>(lock: &L, mut rounds: u64, round: impl Fn(&L)) {
    while rounds != 0 {
        round(anywhere(lock));
        rounds -= 1;
        // SAFETY: no instruction at all. Who cannot see how many rounds are left does not unroll the loop.
        unsafe { asm!("/* {} */", inout(reg) rounds, options(nomem, nostack, preserves_flags)) };
    }
}

/// The marker before a lock is taken.
#[inline(always)]
fn begin() {
    // SAFETY: a no-operation. As far as the compiler knows, it may change what memory holds; so here and below.
    unsafe { asm!("nop dword ptr [rax + {}]", const table::BEGIN, options(nostack, preserves_flags)) };
}

/// The section and its marker: nothing that takes time, and nothing that the compiler can look across.
#[inline(always)]
fn held() {
    // SAFETY: a no-operation.
    unsafe { asm!("nop dword ptr [rax + {}]", const table::HELD, options(nostack, preserves_flags)) };
}

/// The marker after a lock was released.
#[inline(always)]
fn end() {
    // SAFETY: a no-operation.
    unsafe { asm!("nop dword ptr [rax + {}]", const table::END, options(nostack, preserves_flags)) };
}
