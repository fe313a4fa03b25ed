// pvlock_bench_two_loads(cpu: rdi) -> al: 1 while the host has this vCPU off a physical CPU, else 0
//
// The form with the records in per-CPU data: the base of the CPU's data first, then the byte.
//
// in:       rdi < CPUS, all 64 bits
// reads:    BASES[cpu], then one byte at BASES[cpu] + PREEMPTED
// clobbers: rax, flags; no stack, no call
// asserted: benches/src/s1/mod.rs runs it against the library's own
//
// A kernel at a fixed address folds the table's address into the first load and the record's into the second. Code that runs
// anywhere cannot, so there is a `lea`, which waits for nothing, and BASES holds the sums.

    .pushsection .text.pvlock_bench_two_loads, "ax", @progbits
    .p2align 4
    .globl  pvlock_bench_two_loads
    .hidden pvlock_bench_two_loads
    .type   pvlock_bench_two_loads, @function
pvlock_bench_two_loads:
    endbr64
    lea     rax, [rip + {BASES}]
    mov     rax, [rax + rdi * 8]
    cmp     byte ptr [rax + {PREEMPTED}], 0
    setne   al
    ret
    int3
    .size   pvlock_bench_two_loads, . - pvlock_bench_two_loads
    .popsection
