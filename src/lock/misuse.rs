//! What debug builds say about misuse that can be seen: who does what with which lock.

use core::fmt;

use crate::cpu::{Cpu, CpuId};

/// Who: the CPU, and the task where the kernel says it.
struct Who {
    cpu: Option<CpuId>,
    task: Option<u64>,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cpu {
            Some(cpu) => cpu.fmt(f)?,
            None => f.write_str("a CPU without a number")?,
        }
        match self.task {
            Some(task) => write!(f, ", task {task},"),
            None => Ok(()),
        }
    }
}

/// Panics with a sentence: "CPU 3, task 7, locks the spinlock at 0xffff8000 that it already holds".
#[cold]
#[inline(never)]
#[track_caller]
pub(crate) fn report<C: Cpu>(does: &str, kind: &str, address: usize, that: fmt::Arguments<'_>) -> ! {
    let who = Who { cpu: C::current(), task: C::task().map(core::num::NonZeroU64::get) };
    panic!("{who} {does} the {kind} at {address:#x} that {that}");
}
