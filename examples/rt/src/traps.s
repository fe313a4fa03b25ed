# Common part of the exception and interrupt entries; the entries themselves (push vector, jump here) are in traps.rs.
# Exceptions run on a stack of their own. Interrupts run on the stack that they interrupt, below rsp: images are built without red zones
# (`-C no-redzone`), which `cargo xtask` checks.

.section .text.traps, "ax"

# Stack: vector, error code, rip, cs, rflags, rsp, ss. Does not return.
.global exception_common
exception_common:
    cld
    mov rdi, rsp                    # &ExceptionFrame
    and rsp, -16
    call {EXCEPTION_REPORT}
    ud2

# Stack: vector, rip, cs, rflags, rsp, ss. Saves what a C function may change, SSE state included.
.global interrupt_common
interrupt_common:
    push rbp
    mov rbp, rsp
    push rax
    push rcx
    push rdx
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    sub rsp, 512
    and rsp, -16                    # fxsave area and call want 16
    fxsave64 [rsp]
    cld
    mov rdi, [rbp + 8]              # vector
    mov rsi, [rbp + 16]             # rip
    call {INTERRUPT_DISPATCH}
    fxrstor64 [rsp]
    lea rsp, [rbp - 72]             # the nine registers above
    pop r11
    pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rax
    pop rbp
    add rsp, 8                      # vector
    iretq
.text
