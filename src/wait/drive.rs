//! Carries out what a [`Waiter`] decides: pauses, yields to a confirmed target, halts without losing a wake-up.

use super::budget::TRUSTED_ROUNDS;
use super::undercommit::Undercommit;
use super::{Abilities, Seen, Step, Waiter, deaf};
use crate::cpu::{Cpu, CpuId};
use crate::hypervisor::{Hypervisor, Yielded};
use crate::stats::{Counter, count};
use crate::sync::spin_loop;

/// The thing that is waited for.
pub(crate) trait Waited {
    /// The CPU that must run for the wait to end, read anew on each call. `None`: not known, or the wait is over.
    fn target(&self) -> Option<CpuId>;

    /// Called before this CPU is given away for the first time and after: make sure that the wait is bounded.
    fn commit(&mut self);

    /// Publishes that this CPU halts, so that whoever ends the wait kicks it. `false`: the wait is over or nobody would kick.
    ///
    /// The publication and the end of the wait are read-modify-writes of one word, so one of the two sees the other.
    fn publish_halt(&self, me: CpuId) -> bool;

    /// Whether the one waited for is known to have halted, from its own record and not from the host, which need not tell. A hint.
    fn has_halted(&self) -> bool {
        false
    }

    /// Rounds for which somebody is trusted to run who does not read as preempted; then the waiter halts, where it can.
    const TRUST: u32 = TRUSTED_ROUNDS;

    /// Whether [`publish_halt`](Self::publish_halt) can ever succeed.
    const HALTS: bool;

    /// Whether a yield to the target is worth an exit before halting. Where halting is impossible yields are made all the same.
    const YIELDS_FIRST: bool;
}

/// One round of waiting by `me` for `waited`. `poll` is the caller's own hook; a waiter that has one never halts.
pub(crate) fn round<C: Cpu, W: Waited>(
    waiter: &mut Waiter,
    waited: &mut W,
    me: Option<CpuId>,
    poll: &mut Option<&mut dyn FnMut()>,
) {
    C::relax();
    if let Some(poll) = poll {
        poll();
    }
    let polls = poll.is_some();
    let (mut target, mut seen) = (None, Seen::Unknown);
    let step = waiter.next(|| {
        target = waited.target();
        seen = see::<C, W>(me, target, waited);
        (seen, abilities::<C, W>(me, polls))
    });
    if step != Step::Pause && seen == Seen::Preempted {
        count(me, Counter::PreemptedSeen);
    }
    match (step, me, target) {
        (Step::Yield, Some(me), Some(target)) => {
            waited.commit();
            // The owner may have changed since the look (a stale target once caused lock-ups: powerpc f9bc9bbe8afd).
            let confirmed = waited.target() == Some(target) && C::Hypervisor::is_preempted(target);
            if confirmed {
                waiter.yielded(may_yield::<C>(me).then(|| yield_to::<C>(me, target)));
            }
        }
        (Step::Halt, Some(_), _) => {
            waited.commit();
            halt::<C, W>(waited);
        }
        _ => spin_loop(),
    }
}

/// Whether a yield by `me` may do something, as far as its last ones tell. Ask before each.
pub(crate) fn may_yield<C: Cpu>(me: CpuId) -> bool {
    Undercommit::of(me).may_yield::<C::Hypervisor>(me)
}

/// Yields to `target`, counted and remembered.
pub(crate) fn yield_to<C: Cpu>(me: CpuId, target: CpuId) -> Yielded {
    let outcome = C::Hypervisor::yield_to(me, target);
    count(Some(me), Counter::Yield);
    if outcome == Yielded::Nothing {
        count(Some(me), Counter::FruitlessYield);
    }
    if Undercommit::of(me).yielded::<C::Hypervisor>(me, target, outcome) {
        count(Some(me), Counter::BailOut);
    }
    outcome
}

fn see<C: Cpu, W: Waited>(me: Option<CpuId>, target: Option<CpuId>, waited: &W) -> Seen {
    match target {
        // A task of this very CPU holds it and was descheduled: the host's flag says nothing about that.
        Some(_) if target == me => {
            C::relax_same_cpu();
            Seen::Running
        }
        Some(_) if C::Hypervisor::can_halt() && waited.has_halted() => Seen::Preempted,
        Some(target) if C::Hypervisor::sees_preempted() => {
            if C::Hypervisor::is_preempted(target) {
                Seen::Preempted
            } else {
                Seen::Running
            }
        }
        _ => Seen::Unknown,
    }
}

fn abilities<C: Cpu, W: Waited>(me: Option<CpuId>, polls: bool) -> Abilities {
    let trust = W::TRUST;
    let Some(me) = me else { return Abilities { yields: false, yields_first: 0, halts: false, trust } };
    let halts = W::HALTS
        && !polls
        && C::Hypervisor::can_halt()
        && C::Hypervisor::may_halt(me)
        && !C::in_nmi()
        && (C::may_halt_with_irqs_off() || C::irqs_enabled());
    Abilities {
        yields: C::Hypervisor::can_yield() && (W::YIELDS_FIRST || !halts),
        yields_first: C::Hypervisor::YIELDS_BEFORE_HALT,
        halts,
        trust,
    }
}

/// Halts this vCPU until it is kicked, an interrupt arrives, or for no reason; leaves the interrupt flag as it was.
///
/// ```text
/// waiter (here)                          releaser
///   irqs off
///   [RmW] publish: word.halted = me        [RmW] word = free, returns halted
///         fails when free                        halted != none:
///   hlt   (kicks are sticky)                     kick(halted)
/// ```
/// Both sides read-modify-write the same word: a publication before the release is seen by it and kicked, one after it
/// fails. The kick may come before `hlt`; it then ends that `hlt` at once. Interrupts are off from publication to `hlt`, so the CPU
/// that was published is the CPU that halts, and no interrupt's own wait can eat the kick in between.
fn halt<C: Cpu, W: Waited>(waited: &W) {
    C::relax();
    let irqs_on = C::irqs_enabled();
    if irqs_on {
        C::irqs_disable();
    } else if !C::may_halt_with_irqs_off() {
        return;
    }
    // Asked again: with interrupts on the task may have moved to another CPU since.
    let here = C::current().filter(|&cpu| C::Hypervisor::may_halt(cpu));
    match here {
        Some(cpu) if waited.publish_halt(cpu) => {
            count(here, Counter::Halt);
            deaf::halt::<C>(cpu, irqs_on);
            Undercommit::of(cpu).halted::<C::Hypervisor>(cpu);
            if waited.target().is_some() {
                count(here, Counter::SpuriousWake);
            }
        }
        _ if irqs_on => C::irqs_enable(),
        _ => {}
    }
    C::relax();
}

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::super::budget::FRUITLESS_YIELDS;
    use super::*;
    use crate::sync::{AtomicU32, Ordering::Relaxed};
    use core::cell::Cell;

    /// One CPU waits, another in each test, since a CPU has a memory. Every CPU but it reads as preempted, as long as `FLAG` says so.
    /// Yields are recorded.
    struct Kernel;

    static NEXT: AtomicU32 = AtomicU32::new(100);

    thread_local! {
        static FLAG: Cell<bool> = const { Cell::new(true) };
        static ME: CpuId = cpu(NEXT.fetch_add(1, Relaxed));
        static OUTCOME: Cell<Yielded> = const { Cell::new(Yielded::Moved) };
        static SCHEDULE_INS: Cell<u32> = const { Cell::new(0) };
        static YIELDS: Cell<usize> = const { Cell::new(0) };
        static IRQS: Cell<bool> = const { Cell::new(false) };
    }

    fn cpu(index: u32) -> CpuId {
        CpuId::new(index).unwrap()
    }

    impl Cpu for Kernel {
        type Hypervisor = Kernel;
        fn current() -> Option<CpuId> {
            Some(ME.with(|&me| me))
        }
        fn irqs_enabled() -> bool {
            IRQS.get()
        }
        fn may_halt_with_irqs_off() -> bool {
            false
        }
    }

    impl Hypervisor for Kernel {
        fn sees_preempted() -> bool {
            true
        }
        fn is_preempted(_: CpuId) -> bool {
            FLAG.get()
        }
        fn schedule_ins(_: CpuId) -> u32 {
            SCHEDULE_INS.get()
        }
        fn can_yield() -> bool {
            true
        }
        fn yield_to(me: CpuId, target: CpuId) -> Yielded {
            assert_ne!(me, target);
            YIELDS.set(YIELDS.get() + 1);
            OUTCOME.get()
        }
        fn can_halt() -> bool {
            true
        }
        fn may_halt(_: CpuId) -> bool {
            true
        }
        fn halt(_: bool) {
            panic!("halted with interrupts off where nothing can end that");
        }
        fn kick(_: CpuId) {}
    }

    /// Names its targets one after the other, the last one for ever.
    struct Targets<'a> {
        targets: &'a [u32],
        asked: Cell<usize>,
        at_commit: fn(),
    }

    impl Waited for Targets<'_> {
        const HALTS: bool = true;
        const YIELDS_FIRST: bool = true;
        fn target(&self) -> Option<CpuId> {
            let asked = self.asked.replace(self.asked.get() + 1);
            Some(cpu(self.targets[asked.min(self.targets.len() - 1)]))
        }
        fn commit(&mut self) {
            (self.at_commit)();
        }
        fn publish_halt(&self, _: CpuId) -> bool {
            true
        }
    }

    fn yields_in(rounds: usize, targets: &[u32], at_commit: fn()) -> usize {
        let mut waited = Targets { targets, asked: Cell::new(0), at_commit };
        let mut waiter = Waiter::default();
        YIELDS.set(0);
        FLAG.set(true);
        for _ in 0..rounds {
            round::<Kernel, _>(&mut waiter, &mut waited, Kernel::current(), &mut None);
        }
        YIELDS.get()
    }

    #[test]
    fn yields_to_an_owner_that_is_still_the_owner_and_still_preempted() {
        assert_eq!(yields_in(1, &[7], || ()), 1);
    }

    #[test]
    fn does_not_yield_to_an_owner_that_changed_since_the_look() {
        assert_eq!(yields_in(1, &[7, 8], || ()), 0);
    }

    #[test]
    fn does_not_yield_to_an_owner_that_runs_again() {
        assert_eq!(yields_in(1, &[7], || FLAG.set(false)), 0);
    }

    #[test]
    fn never_yields_to_itself() {
        let me = Kernel::current().unwrap().index() as u32;
        assert_eq!(yields_in(1000, &[me], || ()), 0);
    }

    #[test]
    fn never_halts_with_interrupts_off_where_the_kernel_forbids_it() {
        // `halt` panics. Three yields at once, then some with growing gaps instead.
        assert!(yields_in(1000, &[7], || ()) > 3);
    }

    #[test]
    fn a_cpu_whose_yields_do_nothing_makes_no_more_of_them_in_any_wait() {
        OUTCOME.set(Yielded::Nothing);
        let given_up = FRUITLESS_YIELDS as usize;
        assert_eq!(yields_in(20_000, &[7], || ()), given_up);
        for _ in 0..10 {
            assert_eq!(yields_in(100, &[7], || ()), 0);
        }
        // Nor for a foreign lock or an answer: those ask the same memory.
        assert!(!may_yield::<Kernel>(Kernel::current().unwrap()));
        // Scheduled out and in again: the CPU is shared after all.
        SCHEDULE_INS.set(2);
        assert_eq!(yields_in(1, &[7], || ()), 1);
    }
}
