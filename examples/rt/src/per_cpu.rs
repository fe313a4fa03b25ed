//! The per-CPU block that the GS base of each CPU points to.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use pvlock::{ApicId, CpuId};
use x2apic::lapic::LocalApic;

use crate::segments::Segments;

/// What [`PerCpu::index`] holds while the CPU has no number yet; never a valid CPU number.
const NO_NUMBER: u32 = u32::MAX;

/// Data of one CPU. Other CPUs only touch the atomics.
#[repr(C)]
pub(crate) struct PerCpu {
    /// Own address, so that one load through GS finds the block.
    this: *const PerCpu,
    /// Number of this CPU, or [`NO_NUMBER`].
    index: AtomicU32,
    apic_id: AtomicU32,
    /// First stack of the CPU: its highest address, 16-byte aligned. The boot CPU has another one.
    pub stack_top: u64,
    /// HLT instructions that the runtime executed here.
    pub halts: AtomicU64,
    /// Timer interrupts taken here.
    pub ticks: AtomicU64,
    /// How often preemption was forbidden here.
    pub preempt_count: AtomicU32,
    /// Set once the CPU waits for work.
    pub online: AtomicBool,
    /// Used with interrupts off, on this CPU only: see `lapic::with`.
    pub lapic: UnsafeCell<Option<LocalApic>>,
    /// Written once by `segments::install`, on this CPU.
    pub segments: UnsafeCell<Segments>,
}

// SAFETY: `this` is never written through, the two cells are used by the owning CPU alone, the rest is atomic or
// constant.
unsafe impl Sync for PerCpu {}
// SAFETY: as above; `LocalApic` holds register addresses only, which mean the APIC of whichever CPU uses them.
unsafe impl Send for PerCpu {}

/// Where boot.s finds [`PerCpu::stack_top`].
pub(crate) const STACK_TOP: usize = offset_of!(PerCpu, stack_top);

/// Block of the boot CPU: boot.s points GS here before any Rust code runs.
pub(crate) static BOOT_CPU: PerCpu = PerCpu::new(&raw const BOOT_CPU, NO_NUMBER, 0, 0);

impl PerCpu {
    const fn new(this: *const PerCpu, index: u32, apic_id: u32, stack_top: u64) -> Self {
        Self {
            this,
            index: AtomicU32::new(index),
            apic_id: AtomicU32::new(apic_id),
            stack_top,
            halts: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            preempt_count: AtomicU32::new(0),
            online: AtomicBool::new(false),
            lapic: UnsafeCell::new(None),
            segments: UnsafeCell::new(Segments::new()),
        }
    }

    /// A block for another CPU, on the heap and never freed.
    pub fn leak(cpu: CpuId, apic_id: ApicId, stack_top: u64) -> &'static PerCpu {
        let block = alloc::boxed::Box::leak(alloc::boxed::Box::new_uninit());
        let this = block.as_ptr();
        block.write(PerCpu::new(this, cpu.index() as u32, apic_id.0, stack_top))
    }

    /// Gives the boot CPU its number; until then [`current`] answers `None`.
    pub fn set_identity(&self, cpu: CpuId, apic_id: ApicId) {
        // ORDERING: Relaxed, only read on this CPU or after the release that starts another one.
        self.apic_id.store(apic_id.0, Relaxed);
        self.index.store(cpu.index() as u32, Relaxed);
    }

    /// Number of the CPU; `None` for the boot CPU before it has one.
    pub fn cpu(&self) -> Option<CpuId> {
        // ORDERING: Relaxed, see `set_identity`.
        CpuId::new(self.index.load(Relaxed))
    }

    /// Local APIC id of the CPU.
    pub fn apic_id(&self) -> ApicId {
        // ORDERING: Relaxed, see `set_identity`.
        ApicId(self.apic_id.load(Relaxed))
    }
}

/// The CPU that runs this code, or `None` before it has a number.
#[inline(always)]
pub fn current() -> Option<CpuId> {
    let index: u32;
    // SAFETY: boot.s points the GS base at a `PerCpu` that lives for ever before it calls any Rust code.
    unsafe {
        asm!("mov {:e}, gs:[{offset}]", out(reg) index, offset = const offset_of!(PerCpu, index),
            options(pure, readonly, nostack, preserves_flags));
    }
    CpuId::new(index)
}

/// The block of the CPU that runs this code.
pub(crate) fn this_cpu() -> &'static PerCpu {
    let this: *const PerCpu;
    // SAFETY: as in `current`; the field holds the block's own address.
    unsafe {
        asm!("mov {}, gs:[{offset}]", out(reg) this, offset = const offset_of!(PerCpu, this),
            options(pure, readonly, nostack, preserves_flags));
    }
    // SAFETY: blocks are statics or leaked, so they live for ever, and are shared only as `&`.
    unsafe { &*this }
}

/// Forbids preemption: in one instruction, so that the count is that of the CPU which the caller is on.
#[inline]
pub(crate) fn preempt_disable() {
    // SAFETY: as in `current`; the field is an atomic that other CPUs only read.
    unsafe { asm!("inc dword ptr gs:[{offset}]", offset = const offset_of!(PerCpu, preempt_count), options(nostack)) };
}

/// How often preemption was disabled here: in one instruction, so that it is zero on the CPU that the caller is on, or was when it was zero.
#[inline]
pub(crate) fn preempt_count() -> u32 {
    let count: u32;
    // SAFETY: as above.
    unsafe {
        asm!("mov {:e}, gs:[{offset}]", out(reg) count, offset = const offset_of!(PerCpu, preempt_count),
            options(readonly, nostack, preserves_flags));
    }
    count
}

/// Undoes one [`preempt_disable`]. `true`: preemption is allowed again.
#[inline]
pub(crate) fn preempt_enable() -> bool {
    let is_zero: u8;
    // SAFETY: as above.
    unsafe {
        asm!("dec dword ptr gs:[{offset}]", "setz {}", out(reg_byte) is_zero,
            offset = const offset_of!(PerCpu, preempt_count), options(nostack));
    }
    is_zero != 0
}
