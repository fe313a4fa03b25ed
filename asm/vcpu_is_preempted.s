// pvlock_vcpu_is_preempted(cpu: edi) -> al: 1 while the host has this vCPU off a physical CPU, else 0
//
// in:       edi, any value (the upper half of rdi is ignored); 0 for MAX_CPUS and above, and for CPUs without a record
// reads:    one byte, TABLE[cpu].preempted, which the host writes at any time; of it bit 0
// clobbers: rax, rdi, flags; no stack, no call
// position: RIP-relative, any load address within 2 GiB of TABLE
// operands: TABLE, SHIFT, PREEMPTED, MASK, MAX_CPUS from src/preempted.rs; layout asserted in src/kvm
// asserted: tests/asm_bytes.rs disassembles it as built, tests/asm_contract.rs runs it
//
// The range check is a branch that is never taken in practice: predicted, it adds nothing to the way from the index to the
// byte, where a clamp by cmov would add two cycles.

    .pushsection .text.pvlock_vcpu_is_preempted, "ax", @progbits
    .p2align 4
    .globl  pvlock_vcpu_is_preempted
    .hidden pvlock_vcpu_is_preempted
    .type   pvlock_vcpu_is_preempted, @function
pvlock_vcpu_is_preempted:
    endbr64                                 // may be called through a pointer where CET is on
    cmp     edi, {MAX_CPUS}
    jae     2f
    shl     edi, {SHIFT}                    // also clears the upper half
    lea     rax, [rip + {TABLE}]
    movzx   eax, byte ptr [rax + rdi + {PREEMPTED}]
    and     eax, {MASK}
    PVLOCK_RETURN
2:  xor     eax, eax
    PVLOCK_RETURN
    .size   pvlock_vcpu_is_preempted, . - pvlock_vcpu_is_preempted
    .popsection
