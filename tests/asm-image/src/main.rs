//! Asks the routine about every CPU and some numbers that are none, with every value of the low bits; exit code 0 when all
//! answers are right.

use pvlock::kvm::record_address;
use pvlock::preempted::{vcpu_is_preempted, vcpu_is_preempted_inline, vcpu_is_preempted_raw};
use pvlock::{CpuId, MAX_CPUS};

// Where a kernel that compiles with return thunks has its own.
#[cfg(pvlock_return_thunk)]
core::arch::global_asm!(".globl __x86_return_thunk", "__x86_return_thunk:", "ret", "int3");

fn main() {
    for index in 0..MAX_CPUS as u32 {
        let cpu = CpuId::new(index).expect("below MAX_CPUS");
        for byte in [1, 2, 3, 0] {
            // SAFETY: the preempted byte of a record that no host writes, since nothing registered.
            unsafe { record_address(cpu).cast_mut().cast::<u8>().wrapping_add(16).write_volatile(byte) };
            let expected = byte & 1 != 0;
            assert_eq!(vcpu_is_preempted(cpu), expected, "{cpu}, byte {byte}");
            assert_eq!(vcpu_is_preempted_inline(cpu), expected, "{cpu}, byte {byte}");
        }
    }
    for index in [MAX_CPUS as u32, MAX_CPUS as u32 + 1, u32::MAX] {
        assert!(!vcpu_is_preempted_raw(index));
    }
}
