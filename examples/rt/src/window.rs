//! One page of virtual memory whose frame can be changed while all CPUs use it.

use alloc::boxed::Box;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use x86_64::instructions::tlb;
use x86_64::registers::control::Cr3;
use x86_64::structures::paging::page_table::PageTableFlags;
use x86_64::structures::paging::{PageTable, PageTableIndex};
use x86_64::{PhysAddr, VirtAddr};

/// A page of memory that a window may show. Its first word is all that is used.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Frame {
    word: AtomicU64,
    rest: UnsafeCell<[u8; 4088]>,
}

// SAFETY: only the word is ever touched, and that is an atomic.
unsafe impl Sync for Frame {}

impl Frame {
    /// A frame that holds `word`.
    pub const fn new(word: u64) -> Self {
        Self { word: AtomicU64::new(word), rest: UnsafeCell::new([0; 4088]) }
    }

    /// Its word, by the frame's own address.
    pub fn word(&self) -> &AtomicU64 {
        &self.word
    }
}

/// The page: beyond the identity map, so that nothing else has entries for it.
const PAGE: u64 = 1 << 39;

/// The window at [`PAGE`]. There is one.
#[derive(Debug)]
pub struct Window {
    entry: &'static AtomicU64,
}

impl Window {
    /// Opens the window, which shows `frame`. All CPUs use the boot CPU's tables, so all see it. Called once.
    pub fn open(frame: &'static Frame) -> Self {
        let page = VirtAddr::new(PAGE);
        let present = PageTableFlags::PRESENT | PageTableFlags::WRITABLE;
        // Memory is identity-mapped: the physical address is the virtual one.
        let table = |index: PageTableIndex, to: u64| {
            let mut table = Box::new(PageTable::new());
            table[index].set_addr(PhysAddr::new(to), present);
            core::ptr::from_ref::<PageTable>(Box::leak(table)).expose_provenance() as u64
        };
        let mut leaf = Box::new(PageTable::new());
        leaf[page.p1_index()].set_addr(PhysAddr::new(core::ptr::from_ref(frame).addr() as u64), present);
        let leaf = Box::leak(leaf);
        let to = core::ptr::from_mut::<PageTable>(leaf).expose_provenance() as u64;
        let to = table(page.p3_index(), table(page.p2_index(), to));
        let (root, _) = Cr3::read();
        let root = core::ptr::with_exposed_provenance_mut::<PageTable>(root.start_address().as_u64() as usize);
        // SAFETY: the root of the tables in use, identity-mapped. Nobody else has a reference; processors only read it.
        let root = unsafe { &mut *root };
        // This entry was empty.
        root[page.p4_index()].set_addr(PhysAddr::new(to), present);
        let entry = core::ptr::from_mut(&mut leaf[page.p1_index()]).cast::<u64>();
        // SAFETY: an entry is 8 bytes and aligned, and leaked; processors read it, and this is the only way to it from now on.
        let entry = unsafe { AtomicU64::from_ptr(entry) };
        Self { entry }
    }

    /// Shows `frame` instead, to all whose TLBs do not know better.
    pub fn show(&self, frame: &'static Frame) {
        let flags = (PageTableFlags::PRESENT | PageTableFlags::WRITABLE).bits();
        // ORDERING: Release: who sees the frame by way of the new entry sees what was written to it.
        self.entry.store(core::ptr::from_ref(frame).addr() as u64 | flags, Ordering::Release);
    }

    /// The first word of what this CPU's TLB, or else the table, shows.
    pub fn look() -> u64 {
        // SAFETY: mapped since `open`, to frames, whose first word is an atomic.
        let word = unsafe { AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(PAGE as usize)) };
        word.load(Ordering::Acquire)
    }

    /// Makes this CPU forget what the window showed.
    pub fn flush() {
        tlb::flush(VirtAddr::new(PAGE));
    }
}
