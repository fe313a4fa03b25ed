//! [`wait_acks`]: waiting until other CPUs have answered, and boosting those that cannot since the host has them off their CPUs.
//!
//! A CPU that has sent an interrupt (a TLB shootdown, a function call) and spins for the answers needs *all* of its targets to run. One that
//! is preempted, in user mode perhaps, will answer as soon as it runs, and not before: it is the one to give the time slice to.
//!
//! | a target | at a look | |
//! |---|---|---|
//! | has answered | | never looked at again |
//! | has not | has halted with interrupts off, in a wait of this library's | kick: no interrupt ends that |
//! | has not | runs | pause |
//! | has not | preempted, and the request knows another way (a flush mark) | counts as answered |
//! | has not | preempted, idle as the kernel says | pause: the interrupt wakes it |
//! | has not | preempted | yield to it, the next in turn of all such, unless this CPU has given up yielding (see [`boost_any`](super::boost_any)) |
//!
//! Looks are some 5 to 10 µs apart, the first one too: a target that runs has answered by then, and one that halts is on its way. Yields
//! that did nothing are further apart each time, to about 1 ms. [`Cpu::relax`] is called in every round, before the answer is looked for
//! again: two CPUs that wait for each other's answer with interrupts off answer each other there.
//!
//! Nothing is ever given up or sent again because of the time it took: interrupts do not get lost, and a preempted target is merely slow. A
//! kernel that wants to know of slow targets is told ([`wait_acks_reporting`]).

use super::candidates::able;
use super::idle::is_idle;
use crate::cpu::{Cpu, CpuId};
use crate::hypervisor::{Hypervisor, Yielded};
use crate::stats::{Counter, count};
use crate::sync::spin_loop;
use crate::wait::budget::{BACK_OFF_MAX, BACK_OFF_MIN, YIELD_SETTLES};
use crate::wait::deaf::rouse;
use crate::wait::drive::{may_yield, yield_to};

/// Waits until each of `targets` has answered, as `has_answered` tells, one after the other; boosts those that are preempted and have not.
///
/// In place of the bare spin at the end of a request to other CPUs:
///
/// ```
/// # use core::sync::atomic::{AtomicU64, Ordering::Acquire};
/// # struct MyCpu;
/// # impl pvlock::Cpu for MyCpu {
/// #     type Hypervisor = pvlock::hypervisor::Kvm;
/// #     fn current() -> Option<pvlock::CpuId> { pvlock::CpuId::new(0) }
/// # }
/// # static DONE: [AtomicU64; pvlock::MAX_CPUS] = [const { AtomicU64::new(7) }; pvlock::MAX_CPUS];
/// # let (targets, request) = (pvlock::boost::CpuSet::new(), 7);
/// # targets.insert(pvlock::CpuId::new(3).unwrap());
/// // was: for cpu in &targets { while DONE[cpu.index()].load(Acquire) < request { spin_loop() } }
/// pvlock::boost::wait_acks::<MyCpu>(&targets, |cpu| DONE[cpu.index()].load(Acquire) >= request);
/// ```
///
/// An answer stays given: `has_answered` must not say no after yes. It is called for some CPUs in each round, by this CPU; the memory ordering
/// between answer and waiter is its own. A kernel that merely counts answers does not know whose is missing; it can keep a
/// [`CpuSet`](super::CpuSet) instead.
///
/// The calling CPU is not waited for, even if it is among the targets. So the caller does not migrate, as under a guard that forbids
/// preemption. Where the CPU is not known or the host offers nothing, this is a spin. Interrupts may be on or off. The caller may hold locks that
/// its targets wait for with interrupts off if those answer in [`Cpu::relax`]: one that has halted there is kicked.
pub fn wait_acks<C: Cpu>(
    targets: impl IntoIterator<Item = CpuId, IntoIter: Clone>,
    has_answered: impl FnMut(CpuId) -> bool,
) {
    wait::<C>(targets.into_iter(), &mut Told { has_answered, rounds: 0, every: u64::MAX, report: |_| () });
}

/// A target that has not answered yet, for a [report](wait_acks_reporting).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowTarget {
    /// Which CPU.
    pub cpu: CpuId,
    /// Whether the host has it off its CPU at this moment. Then nothing is wrong in the guest, and a kernel's patience should not end.
    pub preempted: bool,
    /// Rounds of waiting so far, for this target and those before it.
    pub rounds: u64,
}

/// [`wait_acks`], which calls `report` whenever another `every` rounds (at least 1) have passed.
///
/// A round takes a pause and a few cycles more; the time in which the waiter itself is off its CPU has no rounds. The waiting goes on after
/// each report.
pub fn wait_acks_reporting<C: Cpu>(
    targets: impl IntoIterator<Item = CpuId, IntoIter: Clone>,
    has_answered: impl FnMut(CpuId) -> bool,
    every: u64,
    report: impl FnMut(SlowTarget),
) {
    wait::<C>(targets.into_iter(), &mut Told { has_answered, rounds: 0, every: every.max(1), report });
}

/// What is waited for.
pub(super) trait Answers {
    /// Whether `cpu` need not be waited for any more. Stays so.
    fn has_answered(&mut self, cpu: CpuId) -> bool;

    /// `cpu` is preempted and has not answered: whether it need not be waited for from now on, nor boosted.
    fn excuse(&mut self, cpu: CpuId) -> bool {
        let _ = cpu;
        false
    }

    /// Another round has passed without an answer of `cpu`.
    fn waited<H: Hypervisor>(&mut self, cpu: CpuId) {
        let _ = cpu;
    }
}

/// Answers that a kernel tells of.
struct Told<F, R> {
    has_answered: F,
    rounds: u64,
    every: u64,
    report: R,
}

impl<F: FnMut(CpuId) -> bool, R: FnMut(SlowTarget)> Answers for Told<F, R> {
    fn has_answered(&mut self, cpu: CpuId) -> bool {
        (self.has_answered)(cpu)
    }

    fn waited<H: Hypervisor>(&mut self, cpu: CpuId) {
        self.rounds += 1;
        if self.rounds.is_multiple_of(self.every) {
            (self.report)(SlowTarget { cpu, preempted: H::is_preempted(cpu), rounds: self.rounds });
        }
    }
}

/// Waits until each of `targets`, but the calling CPU, has answered.
pub(super) fn wait<C: Cpu>(targets: impl Iterator<Item = CpuId> + Clone, answers: &mut impl Answers) {
    let me = C::current();
    let mut rest = targets.filter(move |&cpu| Some(cpu) != me);
    let mut help = Help::new(me);
    loop {
        let unanswered = rest.clone();
        let Some(first) = rest.next() else { return };
        while !answers.has_answered(first) {
            C::relax();
            spin_loop();
            answers.waited::<C::Hypervisor>(first);
            if help.is_look_due() {
                help.look::<C>(unanswered.clone(), answers);
            }
        }
    }
}

/// What one wait does for those that it waits for.
struct Help {
    me: Option<CpuId>,
    /// Rounds until the next look.
    look_in: u32,
    /// Looks until the next yield, and from one fruitless yield to the next.
    yield_in: u32,
    back_off: u32,
    /// Index of the CPU that was boosted last, plus one.
    turn: usize,
}

/// [`BACK_OFF_MIN`] and [`BACK_OFF_MAX`], in looks.
const LOOKS_MIN: u32 = BACK_OFF_MIN.div_ceil(YIELD_SETTLES);
const LOOKS_MAX: u32 = BACK_OFF_MAX.div_ceil(YIELD_SETTLES);

impl Help {
    const fn new(me: Option<CpuId>) -> Self {
        Self { me, look_in: YIELD_SETTLES, yield_in: 0, back_off: LOOKS_MIN, turn: 0 }
    }

    /// Counts a round.
    fn is_look_due(&mut self) -> bool {
        self.look_in -= 1;
        self.look_in == 0
    }

    /// Looks at those that may not have answered yet, and helps one of them if that can help.
    fn look<C: Cpu>(&mut self, unanswered: impl Iterator<Item = CpuId>, answers: &mut impl Answers) {
        self.look_in = YIELD_SETTLES;
        self.yield_in = self.yield_in.saturating_sub(1);
        let (mut first, mut next) = (None, None);
        for cpu in unanswered {
            // It reads as preempted or not, and no interrupt reaches it.
            let _ = rouse::<C::Hypervisor>(cpu);
            if !C::Hypervisor::is_preempted(cpu) || answers.has_answered(cpu) || answers.excuse(cpu) || is_idle(cpu) {
                continue;
            }
            first = first.or(Some(cpu));
            next = next.or((cpu.index() >= self.turn).then_some(cpu));
        }
        let Some(target) = next.or(first) else {
            // Whoever was boosted last runs: the yield did something.
            (self.yield_in, self.back_off) = (0, LOOKS_MIN);
            return;
        };
        let Some(me) = self.me.filter(|_| able::<C>() && self.yield_in == 0) else { return };
        // Asked again, since the look at all the others may have taken long: a yield to one who runs is an exit for nothing, and counts as
        // one that did nothing.
        if !may_yield::<C>(me) || answers.has_answered(target) || !C::Hypervisor::is_preempted(target) {
            return;
        }
        self.turn = target.index() + 1;
        count(Some(me), Counter::Boost);
        let outcome = yield_to::<C>(me, target);
        match outcome {
            Yielded::Moved => self.back_off = LOOKS_MIN,
            Yielded::Nothing => {
                self.yield_in = self.back_off;
                self.back_off = (self.back_off * 2).min(LOOKS_MAX);
            }
        }
    }
}

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// CPU 0 waits, without a memory of its yields. The test says who is preempted and what a yield does.
    enum Kernel {}

    thread_local! {
        static PREEMPTED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
        static OUTCOME: Cell<Yielded> = const { Cell::new(Yielded::Nothing) };
        static YIELDED_TO: Cell<Option<usize>> = const { Cell::new(None) };
    }

    impl Cpu for Kernel {
        type Hypervisor = Kernel;
        fn current() -> Option<CpuId> {
            CpuId::new(0)
        }
    }

    impl Hypervisor for Kernel {
        const BAILS_OUT: bool = false;
        fn sees_preempted() -> bool {
            true
        }
        fn is_preempted(cpu: CpuId) -> bool {
            PREEMPTED.with_borrow(|preempted| preempted.contains(&cpu.index()))
        }
        fn can_yield() -> bool {
            true
        }
        fn yield_to(_: CpuId, target: CpuId) -> Yielded {
            YIELDED_TO.set(Some(target.index()));
            OUTCOME.get()
        }
        fn can_halt() -> bool {
            false
        }
        fn may_halt(_: CpuId) -> bool {
            false
        }
        fn halt(_: bool) {}
        fn kick(_: CpuId) {}
    }

    fn preempt(cpus: &[usize]) {
        PREEMPTED.set(cpus.to_vec());
    }

    fn new_help() -> Help {
        Help::new(Kernel::current())
    }

    /// Looks at CPUs 1 and 2; returns whom it yielded to.
    fn look(help: &mut Help, mut has_answered: impl FnMut(usize) -> bool) -> Option<usize> {
        let targets = [1, 2].map(|index| CpuId::new(index).unwrap());
        let has_answered = |cpu: CpuId| has_answered(cpu.index());
        let mut answers = Told { has_answered, rounds: 0, every: u64::MAX, report: |_| () };
        help.look::<Kernel>(targets.into_iter(), &mut answers);
        YIELDED_TO.take()
    }

    /// Looks up to and with the next that yields, while nobody answers.
    fn looks_until_yield(help: &mut Help) -> u32 {
        (1..10_000).find(|_| look(help, |_| false).is_some()).expect("no yield any more")
    }

    #[test]
    fn does_not_yield_to_one_who_runs_again_when_the_others_have_been_looked_at() {
        let mut help = new_help();
        preempt(&[1, 2]);
        let ends_while_2_is_looked_at = |cpu| {
            if cpu == 2 {
                preempt(&[2]);
            }
            false
        };
        assert_eq!(look(&mut help, ends_while_2_is_looked_at), None);
        // Nobody was boosted, so there is nothing to wait for.
        assert_eq!(look(&mut help, |_| false), Some(2));
    }

    #[test]
    fn does_not_yield_to_one_who_has_answered_when_the_others_have_been_looked_at() {
        let (mut help, answered) = (new_help(), Cell::new(false));
        preempt(&[1, 2]);
        let answers_while_2_is_looked_at = |cpu| {
            answered.set(answered.get() || cpu == 2);
            cpu == 1 && answered.get()
        };
        assert_eq!(look(&mut help, answers_while_2_is_looked_at), None);
        assert_eq!(look(&mut help, |cpu| cpu == 1), Some(2));
    }

    #[test]
    fn neighbours_are_boosted_in_turn() {
        let mut help = new_help();
        preempt(&[1, 2]);
        OUTCOME.set(Yielded::Moved);
        assert_eq!([(); 4].map(|()| look(&mut help, |_| false)), [1, 2, 1, 2].map(Some));
    }

    #[test]
    fn fruitless_yields_are_twice_as_far_apart_each_time_up_to_a_limit() {
        let mut help = new_help();
        preempt(&[1, 2]);
        assert_eq!(looks_until_yield(&mut help), 1);
        let mut gap = LOOKS_MIN;
        while gap < LOOKS_MAX {
            assert_eq!(looks_until_yield(&mut help), gap);
            gap *= 2;
        }
        (0..3).for_each(|_| assert_eq!(looks_until_yield(&mut help), LOOKS_MAX));
    }

    #[test]
    fn a_yield_that_moved_the_caller_ends_the_back_off() {
        let mut help = new_help();
        preempt(&[1, 2]);
        (0..3).for_each(|_| _ = looks_until_yield(&mut help));
        OUTCOME.set(Yielded::Moved);
        assert_eq!(looks_until_yield(&mut help), 4 * LOOKS_MIN);
        assert_eq!(looks_until_yield(&mut help), 1);
        OUTCOME.set(Yielded::Nothing);
        assert_eq!([(); 3].map(|()| looks_until_yield(&mut help)), [1, LOOKS_MIN, 2 * LOOKS_MIN]);
    }

    #[test]
    fn a_look_that_finds_nobody_off_a_cpu_ends_the_back_off() {
        let mut help = new_help();
        preempt(&[1, 2]);
        (0..3).for_each(|_| _ = looks_until_yield(&mut help));
        // The last yield has done its work on another CPU.
        preempt(&[]);
        assert_eq!(look(&mut help, |_| false), None);
        preempt(&[2]);
        assert_eq!([(); 3].map(|()| looks_until_yield(&mut help)), [1, LOOKS_MIN, 2 * LOOKS_MIN]);
    }
}
