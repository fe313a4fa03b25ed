//! pvlock
#![cfg_attr(not(test), no_std)]

mod sync;

pub mod cpu;
pub mod guard;
pub mod hypervisor;
pub mod lock;
pub mod stats;
mod wait;

pub use cpu::{ApicId, Cpu, CpuId, MAX_CPUS};
pub use guard::{Guard, IrqSave, NoGuard, NoPreempt};
pub use lock::{SpinMutex, SpinMutexGuard};
