# From PVH entry (boot CPU) and from start-up IPI (all others) to 64-bit Rust.
#
#   pvh_start32 ----------------------> enable_long_mode -> boot_cpu_start64 -> boot_cpu_main(start_info)
#   ap_trampoline -> ap_start32 --------^               `-> ap_start64 -------> ap_main(per_cpu)
#
# Registers kept on the way: ebx = physical address of the PVH start info, ebp = where 64-bit mode goes on.
# Operands from Rust (boot.rs): BOOT_CPU, BOOT_CPU_MAIN, AP_MAIN, STACK_TOP, TRAMPOLINE.

.section .text.boot, "ax"

# PVH: 32-bit flat segments, paging and interrupts off, ebx = start info.
.code32
.global pvh_start32
pvh_start32:
    cld
    mov ebp, offset boot_cpu_start64
    jmp enable_long_mode

ap_start32:
    mov ax, 0x10                    # flat data
    mov ds, ax
    mov ebp, offset ap_start64

enable_long_mode:
    mov eax, cr4
    or eax, 1 << 5                  # PAE: required by long mode
    or eax, 1 << 9                  # OSFXSR: SSE instructions, fxsave
    or eax, 1 << 10                 # OSXMMEXCPT: SIMD errors raise #XM
    mov cr4, eax
    mov eax, offset boot_pml4
    mov cr3, eax
    mov ecx, 0xc0000080             # IA32_EFER
    rdmsr
    or eax, 1 << 8                  # LME
    wrmsr
    mov eax, cr0
    and eax, ~(1 << 2)              # EM off: no emulation of floating point
    and eax, ~(1 << 29 | 1 << 30)   # NW, CD off: INIT turns caches off
    or eax, 1 << 0 | 1 << 1         # PE, MP
    or eax, 1 << 31                 # PG: with LME set this activates long mode
    mov cr0, eax
    lgdt [boot_gdt_pointer]
    ljmp 0x08, offset long_mode

.code64
long_mode:
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    xor eax, eax
    mov fs, ax
    mov gs, ax
    mov eax, ebp                    # zero-extended
    jmp rax

boot_cpu_start64:
    mov ecx, 0xc0000101             # IA32_GS_BASE
    mov eax, offset {BOOT_CPU}
    xor edx, edx
    wrmsr
    mov esp, offset boot_stack_top
    mov edi, ebx
    call {BOOT_CPU_MAIN}            # aligned stack, as after any call
    ud2

# One CPU is started at a time; who finds the mailbox empty came too late and stays out.
ap_start64:
    xor edi, edi
    xchg rdi, [ap_mailbox]          # ORDERING: a full barrier, pair AP-START (smp.rs)
    test rdi, rdi
    jz 2f
    mov ecx, 0xc0000101             # IA32_GS_BASE
    mov eax, edi
    mov rdx, rdi
    shr rdx, 32
    wrmsr
    mov rsp, [rdi + {STACK_TOP}]
    call {AP_MAIN}
    ud2
2:  hlt
    jmp 2b

# Copied to TRAMPOLINE. Real mode, cs = TRAMPOLINE / 16, interrupts off.
.code16
.global ap_trampoline, ap_trampoline_end
ap_trampoline:
    cli
    cld
    xor ax, ax
    mov ds, ax
    .set ap_gdt_pointer_copy, {TRAMPOLINE} + ap_gdt_pointer - ap_trampoline
    lgdt [ap_gdt_pointer_copy]
    mov eax, cr0
    or eax, 1                       # PE
    mov cr0, eax
    .byte 0x66, 0xea                # ljmp 0x18:ap_start32, 32-bit form
    .long ap_start32
    .word 0x18
ap_gdt_pointer:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt
ap_trampoline_end:

.code64
.section .data.boot, "aw"
.balign 16
.global boot_gdt
boot_gdt:
    .quad 0
    .quad 0x00af9a000000ffff        # 0x08 code, 64-bit
    .quad 0x00cf92000000ffff        # 0x10 data
    .quad 0x00cf9a000000ffff        # 0x18 code, 32-bit
boot_gdt_end:
boot_gdt_pointer:
    .word boot_gdt_end - boot_gdt - 1
    .quad boot_gdt

# Per-CPU block of the CPU that is being started, 0 when taken.
.balign 8
.global ap_mailbox
ap_mailbox: .quad 0

# Identity map of the first 4 GiB in 2 MiB pages: present, writable (3), page size (0x80).
.balign 4096
boot_pml4:
    .quad boot_pdpt + 3
    .fill 511, 8, 0
boot_pdpt:
    .quad boot_pd + 0x0003
    .quad boot_pd + 0x1003
    .quad boot_pd + 0x2003
    .quad boot_pd + 0x3003
    .fill 508, 8, 0
boot_pd:
    .set page, 0
    .rept 2048
    .quad page << 21 | 0x83
    .set page, page + 1
    .endr

.section .bss.boot, "aw", @nobits
.balign 16384
    .skip 65536 + 4096                  # its busy page is a multiple of four: see leak_stack
boot_stack_top:
.text
