//! The interrupt descriptor table. Exceptions are reported and end the run; interrupts belong to lapic.rs.

use core::arch::{global_asm, naked_asm};

use spin::Once;
use x86_64::VirtAddr;
use x86_64::registers::control::Cr2;
use x86_64::structures::idt::InterruptDescriptorTable;

use crate::exit::{ExitCode, exit};
use crate::lapic;
use crate::segments::{IST_ABORT, IST_EXCEPTION};
use crate::{console, per_cpu};

global_asm!(
    include_str!("traps.s"),
    EXCEPTION_REPORT = sym exception_report,
    INTERRUPT_DISPATCH = sym interrupt_dispatch,
);

unsafe extern "C" {
    // Labels in traps.s, reached by jumps from the entries below; they are no C functions.
    fn exception_common();
    fn interrupt_common();
}

/// What is on the stack when `exception_report` runs: pushed by the entry, then by the processor.
#[repr(C)]
struct ExceptionFrame {
    vector: u64,
    error_code: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// Entry of an exception without error code: pushes 0 in its place.
#[unsafe(naked)]
extern "C" fn plain<const VECTOR: u8>() {
    naked_asm!("push 0", "push {vector}", "jmp {common}", vector = const VECTOR, common = sym exception_common)
}

/// Entry of an exception for which the processor pushes an error code.
#[unsafe(naked)]
extern "C" fn coded<const VECTOR: u8>() {
    naked_asm!("push {vector}", "jmp {common}", vector = const VECTOR, common = sym exception_common)
}

/// Entry of an interrupt.
#[unsafe(naked)]
extern "C" fn interrupt<const VECTOR: u8>() {
    naked_asm!("push {vector}", "jmp {common}", vector = const VECTOR, common = sym interrupt_common)
}

/// Entry point of one IDT gate; only its address is used, nobody calls it.
type Gate = extern "C" fn();

/// Loads the descriptor table that all CPUs share; the first caller builds it.
///
/// The CPU's own segments and interrupt stacks must be loaded before.
pub(crate) fn load() {
    static IDT: Once<InterruptDescriptorTable> = Once::new();
    IDT.call_once(build).load();
}

/// Sets named entries to their gate, vector number and interrupt stack.
macro_rules! gates {
    ($idt:ident: $($field:ident $gate:ident $vector:literal $stack:ident;)*) => {
        $(
            let gate: Gate = $gate::<$vector>;
            // SAFETY: the gate pushes what its common part expects for this vector, error code included.
            let options = unsafe { $idt.$field.set_handler_addr(VirtAddr::from_ptr(gate as *const ())) };
            // SAFETY: `segments::install` gave each CPU a stack for this index; gates that can nest use different ones.
            unsafe { options.set_stack_index($stack) };
        )*
    };
}

fn build() -> InterruptDescriptorTable {
    let mut idt = InterruptDescriptorTable::new();
    gates! { idt:
        divide_error plain 0 IST_EXCEPTION;
        debug plain 1 IST_EXCEPTION;
        non_maskable_interrupt plain 2 IST_ABORT;
        breakpoint plain 3 IST_EXCEPTION;
        overflow plain 4 IST_EXCEPTION;
        bound_range_exceeded plain 5 IST_EXCEPTION;
        invalid_opcode plain 6 IST_EXCEPTION;
        device_not_available plain 7 IST_EXCEPTION;
        double_fault coded 8 IST_ABORT;
        invalid_tss coded 10 IST_EXCEPTION;
        segment_not_present coded 11 IST_EXCEPTION;
        stack_segment_fault coded 12 IST_EXCEPTION;
        general_protection_fault coded 13 IST_EXCEPTION;
        page_fault coded 14 IST_EXCEPTION;
        x87_floating_point plain 16 IST_EXCEPTION;
        alignment_check coded 17 IST_EXCEPTION;
        machine_check plain 18 IST_ABORT;
        simd_floating_point plain 19 IST_EXCEPTION;
        virtualization plain 20 IST_EXCEPTION;
        cp_protection_exception coded 21 IST_EXCEPTION;
        hv_injection_exception plain 28 IST_EXCEPTION;
        vmm_communication_exception coded 29 IST_EXCEPTION;
        security_exception coded 30 IST_EXCEPTION;
    }
    let interrupts: [(u8, Gate); 5] = [
        (lapic::TIMER_VECTOR, interrupt::<{ lapic::TIMER_VECTOR }>),
        (lapic::WAKE_VECTOR, interrupt::<{ lapic::WAKE_VECTOR }>),
        (lapic::ERROR_VECTOR, interrupt::<{ lapic::ERROR_VECTOR }>),
        (lapic::REQUEST_VECTOR, interrupt::<{ lapic::REQUEST_VECTOR }>),
        (lapic::SPURIOUS_VECTOR, interrupt::<{ lapic::SPURIOUS_VECTOR }>),
    ];
    for (vector, gate) in interrupts {
        // SAFETY: the gate saves and restores everything that it changes and ends in iretq. It runs on the interrupted stack: code is built
        // without red zones, and a task that is preempted there takes its handler's frame with it.
        unsafe { idt[vector].set_handler_addr(VirtAddr::from_ptr(gate as *const ())) };
    }
    idt
}

/// Called by traps.s on the interrupted stack, interrupts off. It may return on another CPU: the interrupted task moves.
extern "C" fn interrupt_dispatch(vector: u64, ip: u64) {
    lapic::on_interrupt(vector as u8, ip);
}

/// Called by traps.s for every exception: none is expected in a guest that works.
extern "C" fn exception_report(frame: &ExceptionFrame) -> ! {
    let ExceptionFrame { vector, error_code, rip, cs, rflags, rsp, .. } = frame;
    let cpu = per_cpu::this_cpu().cpu().map_or(-1, |cpu| cpu.index() as i64);
    console::emergency(format_args!(
        "exception vector={vector} error_code={error_code:#x} rip={rip:#x} cpu={cpu} cs={cs:#x} rsp={rsp:#x} \
         rflags={rflags:#x} cr2={:#x}\nend status=fail\n",
        Cr2::read_raw()
    ));
    exit(ExitCode::Panic)
}
