//! Symbols that code compiled for the host target expects from the C library and the unwinder, which a guest has not.
//!
//! The memory functions are in assembly, since the compiler may turn a loop written in Rust back into a call of the
//! very function.

use core::arch::naked_asm;

#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    naked_asm!("mov rax, rdi", "mov rcx, rdx", "rep movsb", "ret")
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, n: usize) -> *mut u8 {
    naked_asm!("mov r8, rdi", "mov eax, esi", "mov rcx, rdx", "rep stosb", "mov rax, r8", "ret")
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "mov rcx, rdx",
        "mov rdx, rdi",
        "sub rdx, rsi",
        "cmp rdx, rcx", // unsigned: below only if `to` lies inside [from, from + n)
        "jb 2f",
        "rep movsb",
        "ret",
        "2:",
        "lea rdi, [rdi + rcx - 1]",
        "lea rsi, [rsi + rcx - 1]",
        "std",
        "rep movsb",
        "cld",
        "ret",
    )
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    naked_asm!(
        "mov rcx, rdx",
        "xor eax, eax", // also sets ZF, for n == 0
        "repe cmpsb",
        "je 2f",
        "movzx eax, byte ptr [rdi - 1]",
        "movzx ecx, byte ptr [rsi - 1]",
        "sub eax, ecx",
        "2:",
        "ret",
    )
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    naked_asm!("jmp {}", sym memcmp)
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    naked_asm!(
        "xor eax, eax", // the byte to find
        "mov rcx, -1",
        "repne scasb", // rcx = -1 - (length + 1)
        "not rcx",
        "lea rax, [rcx - 1]",
        "ret",
    )
}

/// Named by the unwind tables of `core` and `alloc`. Nothing unwinds in a guest: a panic ends the run.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() -> ! {
    panic!("nothing unwinds in a guest")
}

/// Named by the clean-up code in `alloc`; as above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    panic!("nothing unwinds in a guest")
}
