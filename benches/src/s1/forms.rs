//! The forms of `vcpu_is_preempted` that are compared, each as its caller has it.

use core::arch::{asm, global_asm};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicU8};

use pvlock::CpuId;
use pvlock::kvm::StealTime;
use pvlock::preempted::{vcpu_is_preempted_inline, vcpu_is_preempted_raw};

/// CPUs that the forms other than the library's know.
pub(super) const CPUS: usize = 64;

/// A form of the question.
pub(super) trait Form {
    /// Whether CPU `index` is preempted. Without any check of its own, as the C function that some of them stand for has none.
    ///
    /// # Safety
    /// `index` is below [`CPUS`], and [`set_bases`] was called.
    unsafe fn is_preempted(index: u32) -> bool;
}

/// The library's routine.
pub(super) struct Routine;

impl Form for Routine {
    #[inline(always)]
    unsafe fn is_preempted(index: u32) -> bool {
        vcpu_is_preempted_raw(index)
    }
}

/// The library's inline form.
pub(super) struct Inline;

impl Form for Inline {
    #[inline(always)]
    unsafe fn is_preempted(index: u32) -> bool {
        // SAFETY: `index` is below CPUS, which is below MAX_CPUS. Who calls this form has a CpuId at hand.
        vcpu_is_preempted_inline(unsafe { CpuId::new(index).unwrap_unchecked() })
    }
}

/// A record among the data of its CPU. Packed here; in a kernel they lie pages apart, which costs the forms below more.
#[derive(Debug)]
#[repr(align(64))]
struct Record([AtomicU8; size_of::<StealTime>()]);

static RECORDS: [Record; CPUS] = [const { Record([const { AtomicU8::new(0) }; size_of::<StealTime>()]) }; CPUS];

/// Where each CPU's data is: what a kernel's table of per-CPU offsets comes to.
#[derive(Debug)]
#[repr(align(64))]
struct Bases([AtomicPtr<Record>; CPUS]);

static BASES: Bases = Bases([const { AtomicPtr::new(core::ptr::null_mut()) }; CPUS]);

/// Fills in the table of bases. Before any of the forms that read it.
pub(super) fn set_bases() {
    for (base, record) in BASES.0.iter().zip(&RECORDS) {
        base.store(core::ptr::from_ref(record).cast_mut(), Relaxed);
    }
}

/// Sets the `preempted` byte of a CPU for the forms with per-CPU data.
#[cfg(test)]
pub(super) fn set_preempted_byte(index: usize, byte: u8) {
    RECORDS[index].0[StealTime::PREEMPTED_OFFSET].store(byte, Relaxed);
}

global_asm!(
    include_str!("two_loads.s"),
    BASES = sym BASES,
    PREEMPTED = const StealTime::PREEMPTED_OFFSET,
);

/// An assembly routine with two loads.
pub(super) struct TwoLoads;

unsafe extern "C" {
    /// Not to be called from Rust, as the C convention would save registers that it leaves alone.
    fn pvlock_bench_two_loads();
    fn pvlock_bench_thunk();
}

impl Form for TwoLoads {
    #[inline(always)]
    unsafe fn is_preempted(index: u32) -> bool {
        let answer: u8;
        // SAFETY: `index` is below CPUS and fills all of RDI; the routine reads BASES and RECORDS and changes RAX and flags only.
        unsafe {
            asm!(
                "call {routine}",
                routine = sym pvlock_bench_two_loads,
                in("rdi") u64::from(index),
                lateout("al") answer,
                options(readonly),
            );
        }
        answer != 0
    }
}

/// A C function with the same two loads. The compiler saves what it still needs of the registers that the C convention gives
/// away.
pub(super) struct CFunction;

// SAFETY (of `no_mangle`): no other symbol in this program has this name.
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn pvlock_bench_c_function(index: u32) -> bool {
    // SAFETY: `index` is below CPUS by the contract of `Form`.
    let base = unsafe { BASES.0.get_unchecked(index as usize) }.load(Relaxed);
    // SAFETY: `set_bases` was called, so `base` is an element of RECORDS.
    let record = unsafe { &*base };
    record.0[StealTime::PREEMPTED_OFFSET].load(Relaxed) != 0
}

impl Form for CFunction {
    #[inline(always)]
    unsafe fn is_preempted(index: u32) -> bool {
        let answer: u8;
        // SAFETY: a call by the C convention, whose registers are declared; its contract is that of this function. Written out,
        //   since the compiler would make an indirect call of it.
        unsafe {
            asm!(
                "call {function}",
                function = sym pvlock_bench_c_function,
                in("edi") index,
                lateout("al") answer,
                clobber_abi("C"),
            );
        }
        answer != 0
    }
}

global_asm!(include_str!("thunk.s"), FUNCTION = sym pvlock_bench_c_function);

/// The C function behind the thunk.
pub(super) struct Thunk;

impl Form for Thunk {
    #[inline(always)]
    unsafe fn is_preempted(index: u32) -> bool {
        let answer: u8;
        // SAFETY: the thunk keeps all general registers but RAX; the vector registers that the function may use are declared,
        //   all that the baseline processor has. Not `nostack`, so the stack is aligned at the call.
        unsafe {
            asm!(
                "call {routine}",
                routine = sym pvlock_bench_thunk,
                in("edi") index,
                lateout("al") answer,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(readonly),
            );
        }
        answer != 0
    }
}
