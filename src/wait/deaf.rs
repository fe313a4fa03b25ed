//! CPUs that have halted with interrupts off, in a wait of ours: no interrupt ends that halt, only a kick does.
//!
//! A CPU that holds the lock such a waiter wants, and waits for the waiter's answer to an interrupt, would wait for ever. So the waiter says that
//! it is deaf, and who wants its answer kicks it; awake, it answers in [`Cpu::relax`](crate::Cpu::relax).
//!
//! | deaf waiter | who waits for its answer |
//! |---|---|
//! | says it is deaf | requests |
//! | halts (a kick that came before ends that at once) | looks again and again: deaf? then no more, and a kick |
//! | wakes up, answers | |
//!
//! The looks go on until the answer is there, so it does not matter when the one sees what the other wrote.

use crate::cpu::{Cpu, CpuId, MAX_CPUS};
use crate::hypervisor::Hypervisor;
use crate::sync::{AtomicU8, Ordering::Relaxed, const_fn};

/// 1: deaf, and not kicked for it yet.
#[derive(Debug)]
#[repr(align(64))]
struct Ears(AtomicU8);

impl Ears {
    const_fn! {
        const fn new() -> Self {
            Self(AtomicU8::new(0))
        }
    }
}

#[cfg(not(pvlock_loom))]
static EARS: [Ears; MAX_CPUS] = [const { Ears::new() }; MAX_CPUS];
#[cfg(pvlock_loom)]
loom::lazy_static! {
    static ref EARS: [Ears; MAX_CPUS] = core::array::from_fn(|_| Ears::new());
}

// ORDERING (of all): Relaxed. The flag carries nothing: see above.

/// Halts `me`, the calling CPU, which may.
pub(crate) fn halt<C: Cpu>(me: CpuId, irqs_on: bool) {
    if irqs_on {
        return C::Hypervisor::halt(true);
    }
    EARS[me.index()].0.store(1, Relaxed);
    C::Hypervisor::halt(false);
    EARS[me.index()].0.store(0, Relaxed);
}

/// Kicks `cpu` if it is deaf, once for each of its halts. Whether it did.
pub(crate) fn rouse<H: Hypervisor>(cpu: CpuId) -> bool {
    let ears = &EARS[cpu.index()].0;
    let is_deaf = ears.load(Relaxed) != 0 && ears.swap(0, Relaxed) != 0;
    if is_deaf {
        H::kick(cpu);
    }
    is_deaf
}
