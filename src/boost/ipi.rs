//! [`send_ipis`]: one interrupt to many CPUs, by few hypercalls where the host takes them, else one by one.

use crate::cpu::{Cpu, CpuId};
use crate::hypervisor::Hypervisor;
use crate::kvm::hypercall::Ipi;

/// Sends `ipi` to `targets`, of which it leaves out the calling CPU; returns to how many, one that is named twice counted twice.
///
/// Two or more go by hypercall, one for each window of 128 APIC ids that holds any. Where the host has no such call or refuses it, where a
/// target has not registered, and for a single target (to which the local APIC is no dearer), `send_one` is called for each: the kernel's
/// own way, by the interrupt command register. When a host refuses half-way, some targets get the interrupt twice.
///
/// `targets` is iterated several times and may become fewer meanwhile, as a [`&CpuSet`](super::CpuSet) does from which CPUs remove
/// themselves. An empty one sends nothing. No memory is allocated and none is used per target.
///
/// A caller whose CPU is not known yet ([`Cpu::current`]) must not be among the targets: it would interrupt itself.
///
/// What was written before the call is seen by the handlers, if `send_one` keeps the order: with x2APIC, a kernel puts `mfence; lfence` before
/// its write to the command register.
///
/// # Safety
/// The handlers of all targets expect this interrupt at any time that it can arrive, also once too often.
pub unsafe fn send_ipis<C: Cpu>(
    targets: impl IntoIterator<Item = CpuId, IntoIter: Clone>,
    ipi: Ipi,
    send_one: impl FnMut(CpuId),
) -> usize {
    let me = C::current();
    let others = targets.into_iter().filter(move |&cpu| Some(cpu) != me);
    let count = others.clone().count();
    // SAFETY: the caller's promise.
    if count < 2 || !unsafe { C::Hypervisor::send_ipis(others.clone(), ipi) } {
        others.for_each(send_one);
    }
    count
}
