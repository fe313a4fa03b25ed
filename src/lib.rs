#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), no_std)]

mod sync;

pub mod boost;
pub mod cpu;
pub mod guard;
#[cfg(any(doc, doctest))]
#[doc = include_str!("guide.md")]
pub mod guide {
    #[doc = include_str!("questions.md")]
    pub mod questions {}
}
pub mod hypervisor;
pub mod kvm;
#[cfg(not(pvlock_loom))]
pub mod linked;
pub mod lock;
pub mod platform;
pub mod preempted;
pub mod stats;
mod wait;

pub use boost::Relax;
pub use cpu::{ApicId, Cpu, CpuId, MAX_CPUS};
pub use guard::{Guard, IrqSave, NoGuard, NoPreempt};
pub use lock::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockUpgradableGuard, RwLockWriteGuard, SpinMutex,
    SpinMutexGuard,
};
pub use preempted::vcpu_is_preempted;
