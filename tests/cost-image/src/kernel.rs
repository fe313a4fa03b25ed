//! The kernel as the probes see it: its per-CPU block, and the ways in which locks ask it which CPU they run on.

use core::arch::asm;

use pvlock::hypervisor::Kvm;
use pvlock::platform::{GsCpu, GsLayout};
use pvlock::{Cpu, CpuId};

/// What each CPU's gs base points to.
#[derive(Debug)]
#[repr(C)]
pub struct Block {
    /// Where this block is, so that code gets at it with one load.
    own: *const Self,
    /// The CPU's number, for [`ByOffset`].
    index: u32,
    /// The same, as the locks want it.
    cpu: Option<CpuId>,
}

// SAFETY: filled in before anybody reads it, and never written again.
unsafe impl Sync for Block {}

impl Block {
    /// Of CPU 0.
    pub const fn first(own: *const Self) -> Self {
        Self { own, index: 0, cpu: CpuId::new(0) }
    }
}

/// A kernel that finds its per-CPU block by a pointer at its start, as most do, and keeps the CPU's number there.
#[derive(Debug)]
pub enum ByBlock {}

impl Cpu for ByBlock {
    type Hypervisor = Kvm;

    #[inline]
    fn current() -> Option<CpuId> {
        let block: *const Block;
        // SAFETY: the block lies at the gs base before the first lock is taken. Not `pure`: the task may move.
        unsafe { asm!("mov {}, gs:[0]", out(reg) block, options(nostack, readonly, preserves_flags)) };
        // SAFETY: as above; nobody writes it.
        unsafe { &*block }.cpu
    }
}

/// Where [`Block`] has the CPU's number.
#[derive(Debug)]
pub enum Layout {}

// SAFETY: the block lies at the gs base before the first lock is taken.
unsafe impl GsLayout for Layout {
    const OFFSET: i32 = core::mem::offset_of!(Block, index) as i32;
}

/// The same kernel, by the ready form.
pub type ByOffset = GsCpu<Layout>;
