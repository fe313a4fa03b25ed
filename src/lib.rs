//! pvlock
#![cfg_attr(not(test), no_std)]

mod sync;

pub mod cpu;
pub mod guard;
pub mod hypervisor;
pub mod stats;

pub use cpu::{ApicId, Cpu, CpuId, MAX_CPUS};
pub use guard::{Guard, IrqSave, NoGuard, NoPreempt};
