//! Descriptor tables of one CPU: flat segments and the task state segment with its interrupt stacks.

use core::cell::UnsafeCell;

use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, SS, Segment};
use x86_64::instructions::tables::load_tss;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

use crate::per_cpu::PerCpu;

/// Interrupt stack (IST index) of exceptions.
pub(crate) const IST_EXCEPTION: u16 = 0;
/// Interrupt stack of what can strike while another one is in use: NMI, double fault, machine check.
pub(crate) const IST_ABORT: u16 = 1;

const STACKS: usize = 2;
/// Bytes per interrupt stack: the report of an exception formats text, the rest needs far less.
const STACK_BYTES: usize = 16 * 1024;

pub(crate) struct Segments {
    gdt: GlobalDescriptorTable,
    tss: TaskStateSegment,
}

impl Segments {
    pub const fn new() -> Self {
        Self { gdt: GlobalDescriptorTable::new(), tss: TaskStateSegment::new() }
    }
}

#[repr(align(16))]
struct BootStacks(UnsafeCell<[[u8; STACK_BYTES]; STACKS]>);

// SAFETY: the memory is only used by the boot CPU, as stacks.
unsafe impl Sync for BootStacks {}

static BOOT_STACKS: BootStacks = BootStacks(UnsafeCell::new([[0; STACK_BYTES]; STACKS]));

/// Tops of the interrupt stacks of one CPU.
pub(crate) struct InterruptStacks([u64; STACKS]);

impl InterruptStacks {
    /// Static ones, for the boot CPU: it needs them before there is a heap.
    pub fn boot() -> Self {
        let base = BOOT_STACKS.0.get() as u64;
        Self(core::array::from_fn(|i| base + ((i + 1) * STACK_BYTES) as u64))
    }

    /// New ones from the heap, never freed.
    pub fn leak() -> Self {
        Self(core::array::from_fn(|_| leak_stack(STACK_BYTES)))
    }
}

/// What stacks are made of: four pages.
#[derive(Clone)]
#[repr(C, align(16384))]
struct Block([u8; 16384]);

/// A stack of `bytes` (whole blocks) from the heap, never freed. Returns its top, at the end of the third page of a block.
///
/// The emulator's TLB maps pages directly, by their number modulo a power of two. A stack whose busy page falls together with the page of
/// the lock under test makes its CPU two and a half times slower than the others, which looks like a lock that is unfair. So
/// busy pages are kept apart modulo four: those of these stacks are 2, the boot stack's, which also holds what the boot CPU shares, is 0.
pub(crate) fn leak_stack(bytes: usize) -> u64 {
    let stack = alloc::vec![Block([0; 16384]); bytes / size_of::<Block>()].leak();
    stack.as_ptr_range().end as u64 - 4096
}

/// Builds and loads the descriptor tables of the running CPU.
///
/// # Safety
/// `cpu` is the block of the CPU that runs this, and this is the only call for it.
pub(crate) unsafe fn install(cpu: &'static PerCpu, stacks: &InterruptStacks) {
    // SAFETY: the only access to this cell, by the contract; afterwards only the processor reads it.
    let segments = unsafe { &mut *cpu.segments.get() };
    // Assigned whole: the structure is packed, so no reference into it can be made.
    let mut table = [VirtAddr::zero(); 7];
    for (slot, top) in table.iter_mut().zip(stacks.0) {
        *slot = VirtAddr::new(top);
    }
    segments.tss.interrupt_stack_table = table;
    let code = segments.gdt.append(Descriptor::kernel_code_segment());
    let data = segments.gdt.append(Descriptor::kernel_data_segment());
    let task = segments.gdt.append(Descriptor::tss_segment(&segments.tss));
    segments.gdt.load();
    // SAFETY: the table just loaded has a 64-bit ring 0 code segment there.
    unsafe { CS::set_reg(code) };
    // SAFETY: and a writable data segment there.
    unsafe { SS::set_reg(data) };
    // SAFETY: and an available task state segment there, whose stacks live for ever.
    unsafe { load_tss(task) };
}
