//! The heap.

use linked_list_allocator::LockedHeap;

/// Serves stacks, per-CPU blocks and what guests collect. Its lock is not one of those under test.
#[global_allocator]
static HEAP: LockedHeap = LockedHeap::empty();

/// Hands the memory from `start` to `end` (addresses) to the heap. Called once.
///
/// # Safety
/// The range is RAM in the identity map that nobody else uses, now or later.
pub(crate) unsafe fn init(start: u64, end: u64) {
    // SAFETY: passed on to the caller.
    unsafe { HEAP.lock().init(start as *mut u8, (end - start) as usize) };
}
