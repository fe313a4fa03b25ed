//! `vcpu_is_preempted`: whether the host has a vCPU off a physical CPU right now.
//!
//! The answer is a hint, and may be old when it arrives. A CPU that is not registered or out of range reads as not preempted.
//!
//! What makes a vCPU that is off its CPU read as preempted has changed. Since Linux 5.18 (commit 6cd88243c7e0; seen with 6.1) it is an interrupt
//! of the host alone, at the end of a slice above all: one that has halted, yielded, or waits for the host to fetch a page or to emulate a device
//! reads as running. Before, all of these read as preempted. So *yes* means that it does not run its instructions, and *no* that nothing is known
//! against it.
//!
//! There are two forms that answer the same. [`vcpu_is_preempted`] calls one hand-written routine that uses no stack and two
//! registers, so a caller with much live state keeps it in registers and the code at the call is 5 bytes.
//! [`vcpu_is_preempted_inline`] is the load itself: for loops, where the address of the table is computed once.

use crate::cpu::{CpuId, MAX_CPUS};
use crate::kvm::{PREEMPTED, StealTime, TABLE, TABLE_SHIFT, preempted_byte};
use core::arch::{asm, global_asm};

/// How the routine returns: `ret`, and `int3` behind it, against straight-line speculation.
///
/// A kernel that returns through a thunk everywhere compiles this crate with `--cfg pvlock_return_thunk`; the routine then
/// jumps to the kernel's `__x86_return_thunk`, the name that `rustc -Z function-return=thunk-extern` uses too.
#[cfg(not(pvlock_return_thunk))]
macro_rules! return_sequence {
    () => {
        ".macro PVLOCK_RETURN\n ret\n int3\n .endm"
    };
}
#[cfg(pvlock_return_thunk)]
macro_rules! return_sequence {
    () => {
        ".macro PVLOCK_RETURN\n jmp __x86_return_thunk\n .endm"
    };
}

global_asm!(
    return_sequence!(),
    include_str!("../asm/vcpu_is_preempted.s"),
    ".purgem PVLOCK_RETURN",
    TABLE = sym TABLE,
    SHIFT = const TABLE_SHIFT,
    PREEMPTED = const StealTime::PREEMPTED_OFFSET,
    MASK = const PREEMPTED,
    MAX_CPUS = const MAX_CPUS,
);

/// The registers that the routine may change, besides the flags: what an `asm!` that calls it has to declare, as
/// [`vcpu_is_preempted_raw`] does.
pub const CLOBBERED: [&str; 2] = ["rax", "rdi"];

unsafe extern "C" {
    /// The routine. Not to be called from Rust: the C calling convention would save registers that it leaves alone.
    fn pvlock_vcpu_is_preempted();
}

/// Whether the host has `cpu` off a physical CPU right now.
///
/// A hint without memory ordering: one byte load. `false` for a CPU that is not registered.
#[inline(always)]
pub fn vcpu_is_preempted(cpu: CpuId) -> bool {
    vcpu_is_preempted_raw(cpu.index() as u32)
}

/// [`vcpu_is_preempted`] for any index; `false` for [`MAX_CPUS`] and above, so also for -1 as "nobody".
#[inline(always)]
pub fn vcpu_is_preempted_raw(index: u32) -> bool {
    let answer: u8;
    // SAFETY: the routine takes any index, reads one byte of TABLE or nothing, and changes RAX, RDI and flags only, which are
    //   declared (flags by default). Not `nostack`: the call pushes its return address, so the compiler keeps the red zone
    //   free.
    unsafe {
        asm!(
            "call {routine}",
            routine = sym pvlock_vcpu_is_preempted,
            inlateout("edi") index => _,
            lateout("al") answer,
            options(readonly),
        );
    }
    #[expect(clippy::transmute_int_to_bool, reason = "a comparison is two more instructions on the way to the answer")]
    // SAFETY: the routine answers with a byte ANDed with PREEMPTED, which is bit 0 alone (asserted below), or with 0.
    unsafe {
        core::mem::transmute::<u8, bool>(answer)
    }
}

const _: () = assert!(PREEMPTED == 1, "the routine's answer is taken for a bool");

/// [`vcpu_is_preempted`] without a call: for loops.
#[inline(always)]
pub fn vcpu_is_preempted_inline(cpu: CpuId) -> bool {
    preempted_byte(cpu) & PREEMPTED != 0
}
