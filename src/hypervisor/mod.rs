//! How waiters reach the hypervisor: the [`Hypervisor`] trait and its implementations.
//!
//! Independent abilities (knowing who is preempted, yielding, halting and kicking, flush marks, interrupts to many), since hosts offer
//! any subset of them.

use crate::cpu::{CpuId, MAX_CPUS};
use crate::kvm::hypercall::Ipi;

mod kvm;
mod native;

pub use kvm::{KickError, Kvm, Report};
pub use native::Native;

/// What a directed yield did, as far as the caller can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Yielded {
    /// The caller's vCPU was really scheduled out in between (its own steal-time `version` moved).
    Moved,
    /// Nothing happened: there was nobody to yield to.
    Nothing,
}

/// What a virtual machine's host can do for a waiter. Static methods on a zero-sized type.
///
/// Whatever it answers, a lock stays a lock: each ability may be absent, late, or without effect.
pub trait Hypervisor: 'static {
    /// Directed yields to one preempted vCPU before the waiter halts instead, where it can.
    ///
    /// One boosts the owner where the host's scheduler lets it. More seldom help: a vCPU that has just used up its slice is behind the others
    /// in fairness, and the scheduler then disregards the yield (and its effect lasts for one pick only: sched/kvm "Semantics-aware vCPU
    /// scheduling", 2025). A halted waiter leaves the run queue, so the owner's turn comes. `cargo xtask bench --policies` measures 0, 1 and 3
    /// against each other, on hosts of many kinds.
    const YIELDS_BEFORE_HALT: u32 = 1;

    /// Whether the head of a lock's queue may close the lock to passers. Without it waiters starve; it is here to measure what it costs
    /// (`cargo xtask bench --policies`).
    #[doc(hidden)]
    const RESERVES: bool = true;

    /// Whether a CPU whose yields did nothing stops making them for a while. It is here to measure what it brings
    /// (`cargo xtask bench --seeds`).
    #[doc(hidden)]
    const BAILS_OUT: bool = true;

    /// Whether [`is_preempted`](Self::is_preempted) can ever answer yes. `false` means *unknown*, not "running": waiters
    /// then trust no owner to be running for longer than a finite spin budget.
    fn sees_preempted() -> bool;

    /// Whether the host has `cpu` off a physical CPU right now and says so: see [`preempted`](crate::preempted).
    ///
    /// A hint that may be old by the time it is read. `false` for a CPU that nothing is known of. No memory ordering.
    fn is_preempted(cpu: CpuId) -> bool;

    /// CPUs with this index and above do not read as preempted: searches end here. At most [`MAX_CPUS`].
    #[inline]
    fn cpu_limit() -> usize {
        MAX_CPUS
    }

    /// A number that changes whenever the host schedules `cpu` in again; it may wrap. Constant where the host does not tell.
    #[inline]
    fn schedule_ins(cpu: CpuId) -> u32 {
        let _ = cpu;
        0
    }

    /// Nanoseconds for which `cpu` was ready to run and the host ran something else, as of when it was last scheduled in. 0 where the
    /// host does not tell.
    #[inline]
    fn stolen_ns(cpu: CpuId) -> u64 {
        let _ = cpu;
        0
    }

    /// Whether [`yield_to`](Self::yield_to) can have an effect.
    fn can_yield() -> bool;

    /// Gives the rest of the time slice of `me`, the calling CPU, to `target`, which reads as preempted.
    ///
    /// The caller stays runnable. Costs a VM exit (1 µs on silicon, 100 µs when nested), also when it moves nothing: so
    /// confirm right before that `target` still is the CPU to wait for and still reads as preempted. `me == target` does
    /// nothing.
    fn yield_to(me: CpuId, target: CpuId) -> Yielded;

    /// Whether any CPU may ever be in [`halt`](Self::halt). While `false`, unlocking is a plain store.
    ///
    /// Must not change from `false` to `true` once a second CPU runs: an unlocker that read `false` would wake nobody.
    fn can_halt() -> bool;

    /// Whether `cpu` may halt now: it has said that it can be kicked. Only asked when [`can_halt`](Self::can_halt).
    fn may_halt(cpu: CpuId) -> bool;

    /// Stops the calling vCPU until it is kicked or, with `irqs_on`, until an interrupt arrives. May return for no reason.
    ///
    /// Called with interrupts off. With `irqs_on` they are turned on in one step with halting (`sti; hlt`) and are on when it
    /// returns; otherwise they stay off. A kick that came before the halt ends it at once (kicks are sticky).
    fn halt(irqs_on: bool);

    /// Wakes `cpu` from [`halt`](Self::halt), or makes its next one return at once.
    ///
    /// One kick is remembered, for whoever halts on `cpu` next: a wait for a lock may take it. A kernel that halts by the same means looks at
    /// its own condition between its last lock and its halt.
    ///
    /// Everything written before the call is seen by the woken CPU once it has also read the lock's own word.
    fn kick(cpu: CpuId);

    /// Asks the host to flush the whole TLB of `cpu`, which is preempted, before it runs again. `false` where the host cannot, and where
    /// `cpu` is not preempted (any more): it then needs an interrupt.
    ///
    /// Where it answers `true`, what the caller wrote before is seen by all that `cpu` does from then on, and what `cpu` did before it was
    /// preempted is seen by the caller.
    #[inline]
    fn mark_flush(cpu: CpuId) -> bool {
        let _ = cpu;
        false
    }

    /// Sends `ipi` to all of `targets` at little more than the cost of one. `false` where the host cannot, or knows some target not; then
    /// some of the targets may have been sent it, and all need it by other means.
    ///
    /// `targets` may be iterated several times, and may become fewer in between.
    ///
    /// # Safety
    /// The handlers of all targets expect this interrupt at any time that it can arrive, also once too often.
    #[inline]
    unsafe fn send_ipis(targets: impl Iterator<Item = CpuId> + Clone, ipi: Ipi) -> bool {
        let (_, _) = (targets, ipi);
        false
    }
}
