//! Stacks of tasks, and going from one to another.

use core::arch::naked_asm;

use crate::segments::leak_stack;

/// Bytes of a task's stack: its own frames, and an interrupt's on top of them.
const STACK_BYTES: usize = 32 * 1024;

/// A context that does not run: where its stack ends. What `switch` saved is there.
pub(super) type Saved = u64;

/// A stack on which `entry` begins when it is first switched to, interrupts off. `entry` never returns.
pub(super) fn prepare(entry: extern "C" fn() -> !) -> Saved {
    let top = leak_stack(STACK_BYTES);
    // Six registers, then the address that `ret` takes; after that the stack is as after a call: 8 below a multiple of 16.
    let end = top - 16 - 7 * 8;
    let mut words = [0; 7];
    words[6] = entry as usize as u64;
    // SAFETY: the words lie in the new stack, which nobody else uses.
    unsafe { (end as *mut [u64; 7]).write(words) };
    end
}

/// Saves this context in `*from` and goes on with `to`. Returns when somebody switches back.
///
/// # Safety
/// Interrupts are off. `to` was saved by this function or made by [`prepare`], and nobody else goes on with it. `from` is valid until the
/// other side has taken over.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn switch(from: *mut Saved, to: Saved) {
    // The caller keeps nothing in the other registers across a call.
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}
