//! The assembly as it runs: which registers change, what it answers, that it reads nothing beyond the table.

use pvlock::kvm::{record_address, record_region};
use pvlock::preempted::{CLOBBERED, vcpu_is_preempted, vcpu_is_preempted_inline, vcpu_is_preempted_raw};
use pvlock::{CpuId, MAX_CPUS};
use std::arch::global_asm;
use std::sync::{Mutex, MutexGuard};

/// The tests share the table.
static TABLE: Mutex<()> = Mutex::new(());

fn table() -> MutexGuard<'static, ()> {
    TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn set_preempted_byte(index: u32, byte: u8) {
    let record = record_address(CpuId::new(index).unwrap());
    // SAFETY: the preempted byte of a record that no host writes, as nothing registers in this program; the table is locked.
    unsafe { record.cast_mut().cast::<u8>().wrapping_add(16).write_volatile(byte) }
}

const LAST: u32 = MAX_CPUS as u32 - 1;

#[test]
fn every_byte_on_every_cpu_answers_as_plain_rust() {
    let _table = table();
    for index in 0..=LAST {
        let cpu = CpuId::new(index).unwrap();
        for byte in 0..=u8::MAX {
            set_preempted_byte(index, byte);
            let expected = byte & 1 == 1;
            assert_eq!(vcpu_is_preempted(cpu), expected, "{cpu}, byte {byte:#x}");
            assert_eq!(vcpu_is_preempted_raw(index), expected, "{cpu}, byte {byte:#x}");
            assert_eq!(vcpu_is_preempted_inline(cpu), expected, "{cpu}, byte {byte:#x}");
        }
        set_preempted_byte(index, 0);
    }
}

#[test]
fn each_cpu_answers_from_its_own_record() {
    let _table = table();
    for set in [0, 1, LAST / 2, LAST] {
        set_preempted_byte(set, 1);
        for index in 0..=LAST {
            assert_eq!(vcpu_is_preempted_raw(index), index == set);
        }
        set_preempted_byte(set, 0);
    }
}

// What stands in the registers before and after a call, in this order.
const GENERAL: [&str; 15] =
    ["rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];

/// Registers, in the order of the assembly below.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Registers {
    general: [u64; 15],
    unused: u64,
    vector: [u128; 16],
}

unsafe extern "C" {
    /// Loads all registers from `registers`, calls the routine, and stores them all there.
    fn call_with_registers(registers: *mut Registers);
}

global_asm!(
    // The 15 general registers by their place in `Registers`.
    ".macro EACH_GENERAL operation",
    "\\operation rax, 0",
    "\\operation rbx, 8",
    "\\operation rcx, 16",
    "\\operation rdx, 24",
    "\\operation rsi, 32",
    "\\operation rbp, 48",
    "\\operation r8, 56",
    "\\operation r9, 64",
    "\\operation r10, 72",
    "\\operation r11, 80",
    "\\operation r12, 88",
    "\\operation r13, 96",
    "\\operation r14, 104",
    "\\operation r15, 112",
    ".endm",
    ".macro LOAD register, at",
    "mov \\register, [rdi + \\at]",
    ".endm",
    // Behind the call the address of `Registers` is on top of the stack, and in no register.
    ".macro STORE register, at",
    "xchg rdi, [rsp]",
    "mov [rdi + \\at], \\register",
    "xchg rdi, [rsp]",
    ".endm",
    ".globl call_with_registers",
    "call_with_registers:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push rdi",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movdqa xmm\\n, [rdi + 128 + 16 * \\n]",
    ".endr",
    "EACH_GENERAL LOAD",
    "mov rdi, [rdi + 40]",
    "call {routine}",
    "EACH_GENERAL STORE",
    "xchg rdi, [rsp]",
    "pop [rdi + 40]",
    ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movdqa [rdi + 128 + 16 * \\n], xmm\\n",
    ".endr",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    routine = sym pvlock_vcpu_is_preempted,
);

unsafe extern "C" {
    fn pvlock_vcpu_is_preempted();
}

#[test]
fn only_the_declared_registers_change() {
    let _table = table();
    set_preempted_byte(3, 1);
    for (index, expected) in [(3, 1), (2, 0), (LAST, 0), (LAST + 1, 0), (u32::MAX, 0)] {
        let mut before =
            Registers { general: [0; 15], unused: 0, vector: std::array::from_fn(|n| 0x0123_4567_89ab_cdef_u128 << n) };
        before.general = std::array::from_fn(|n| 0xdead_beef_0000_0000 + n as u64);
        // The upper half of the argument is not the routine's to look at.
        before.general[5] = 0xa5a5_a5a5_0000_0000 | u64::from(index);
        let mut after = before;
        // SAFETY: saves what the C calling convention wants saved, and calls the routine with any index.
        unsafe { call_with_registers(&mut after) };
        assert_eq!(after.general[0] as u8, expected, "index {index:#x}");
        assert_eq!(after.vector, before.vector);
        for (name, (before, after)) in GENERAL.iter().zip(before.general.iter().zip(&after.general)) {
            assert!(before == after || CLOBBERED.contains(name), "{name} changed: {before:#x} to {after:#x}");
        }
    }
    set_preempted_byte(3, 0);
}

#[test]
fn nothing_is_read_outside_of_the_table() {
    let _table = table();
    let (start, length) = record_region();
    // In a child, whose memory is its own: the pages before and behind the table may hold anything of this program.
    // SAFETY: the child only makes system calls and runs the routine until it ends; it takes no lock.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for page in [start.wrapping_sub(4096), start.wrapping_add(length)] {
            // SAFETY: from here on the child touches neither page. One that is not mapped protects itself.
            unsafe { libc::mprotect(page.cast_mut().cast(), 4096, libc::PROT_NONE) };
        }
        let mut wrong = 0;
        for index in (0..=LAST).chain([LAST + 1, LAST + 2, LAST + 64, i32::MAX as u32, i32::MAX as u32 + 1, u32::MAX]) {
            wrong += i32::from(vcpu_is_preempted_raw(index));
        }
        // SAFETY: ends the child without running what the parent set up to run at exit.
        unsafe { libc::_exit(wrong.min(100)) };
    }
    assert!(child > 0, "fork failed");
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child died of signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "answers of all-zero records");
}
