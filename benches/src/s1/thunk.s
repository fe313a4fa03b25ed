// pvlock_bench_thunk(cpu: edi) -> al: calls FUNCTION, and saves for its caller what a C function may change
//
// clobbers: rax, flags, vector registers; eight registers go through the stack
//
// The C convention wants the stack aligned to 16 at a call, so there is a ninth step, which touches no memory.

    .pushsection .text.pvlock_bench_thunk, "ax", @progbits
    .p2align 4
    .globl  pvlock_bench_thunk
    .hidden pvlock_bench_thunk
    .type   pvlock_bench_thunk, @function
pvlock_bench_thunk:
    endbr64
    push    rcx
    push    rdx
    push    rsi
    push    rdi
    push    r8
    push    r9
    push    r10
    push    r11
    sub     rsp, 8
    call    {FUNCTION}
    add     rsp, 8
    pop     r11
    pop     r10
    pop     r9
    pop     r8
    pop     rdi
    pop     rsi
    pop     rdx
    pop     rcx
    ret
    int3
    .size   pvlock_bench_thunk, . - pvlock_bench_thunk
    .popsection
