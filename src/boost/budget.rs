//! [`SpinBudget`] and [`TimeBudget`]: how long a spin loop may go on before it is called a deadlock, without what the host took away.
//!
//! A cap on rounds or time that is sane on its own machine fires wrongly in a guest, when the owner's vCPU is off for some time slices, or
//! the waiter's own. Neither says anything about the guest's code, so neither counts here:
//!
//! | since the last look | counts for [`SpinBudget`] | counts for [`TimeBudget`] |
//! |---|---|---|
//! | somebody who is waited for reads as preempted at the look | no | no |
//! | the waiter's own vCPU was off | nothing to count: it made no rounds | what remains without the stolen time |
//! | else | all rounds | all time |
//!
//! Idle CPUs read as preempted on hosts before Linux 5.18. One that the kernel has called idle ([`idle_begin`](super::idle_begin)) excuses nothing: to own a lock and be
//! idle is the very bug that such a cap is there to find.

use core::fmt;

use super::idle::is_idle;
use crate::cpu::{Cpu, CpuId};
use crate::hypervisor::Hypervisor;
use crate::wait::budget::LOOK_EVERY;

/// The budget of a wait is used up, though those who are waited for were running: most likely a deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overdue {
    /// What was used up: rounds or ns, as the budget was given.
    pub spent: u64,
    /// What was not counted, because somebody who is waited for was preempted.
    pub excused: u64,
    /// What was not counted, because the waiter itself was off its CPU, in ns. 0 in a [`SpinBudget`].
    pub stolen_ns: u64,
}

impl fmt::Display for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "waited {} (and {} more while a vCPU that is waited for was preempted, {} ns while this one was): look for a deadlock, \
             beginning with where the owner is",
            self.spent, self.excused, self.stolen_ns
        )
    }
}

impl core::error::Error for Overdue {}

/// A cap on the rounds of one wait, for spin loops that count.
///
/// ```
/// # struct MyCpu;
/// # impl pvlock::Cpu for MyCpu {
/// #     type Hypervisor = pvlock::hypervisor::Kvm;
/// #     fn current() -> Option<pvlock::CpuId> { pvlock::CpuId::new(0) }
/// # }
/// # fn owner() -> Option<pvlock::CpuId> { None }
/// # let mut tries = 0;
/// # let mut try_lock = || { tries += 1; tries > 100 };
/// let mut budget = pvlock::boost::SpinBudget::new(10_000_000);
/// while !try_lock() {
///     budget.spend::<MyCpu>(owner()).expect("no deadlock");
///     core::hint::spin_loop();
/// }
/// ```
#[derive(Clone, Debug)]
pub struct SpinBudget {
    limit: u64,
    spent: u64,
    excused: u64,
}

impl SpinBudget {
    /// A wait of at most `rounds` rounds that count.
    #[must_use]
    pub const fn new(rounds: u64) -> Self {
        Self { limit: rounds, spent: 0, excused: 0 }
    }

    /// Counts one round of waiting for `targets`: the owner's CPU (an `Option<CpuId>` will do; `None` excuses nothing), or all CPUs whose
    /// answer is missing. It looks at them in every 16th round, and that look stands for the rounds since the last.
    ///
    /// # Errors
    /// [`Overdue`] when the rounds that count exceed the budget; again with every further round that counts.
    #[inline]
    pub fn spend<C: Cpu>(&mut self, targets: impl IntoIterator<Item = CpuId>) -> Result<(), Overdue> {
        self.spent += 1;
        if self.spent.is_multiple_of(u64::from(LOOK_EVERY)) || self.spent > self.limit {
            return self.look::<C>(targets);
        }
        Ok(())
    }

    fn look<C: Cpu>(&mut self, targets: impl IntoIterator<Item = CpuId>) -> Result<(), Overdue> {
        if is_any_preempted::<C>(targets) {
            // Down to the last look, so that the next comes as many rounds later.
            let since = (self.spent - 1) % u64::from(LOOK_EVERY) + 1;
            self.spent -= since;
            self.excused += since;
        }
        if self.spent <= self.limit {
            return Ok(());
        }
        Err(Overdue { spent: self.spent, excused: self.excused, stolen_ns: 0 })
    }
}

/// A cap on the time of one wait, for spin loops with a deadline.
#[derive(Clone, Debug)]
pub struct TimeBudget {
    limit_ns: u64,
    last_ns: u64,
    last_stolen_ns: u64,
    spent_ns: u64,
    excused_ns: u64,
    stolen_ns: u64,
}

impl TimeBudget {
    /// A wait that begins at `now_ns` on the kernel's monotonic clock and takes at most `limit_ns` that count.
    #[must_use]
    pub fn new<C: Cpu>(now_ns: u64, limit_ns: u64) -> Self {
        Self { limit_ns, last_ns: now_ns, last_stolen_ns: stolen_ns::<C>(), spent_ns: 0, excused_ns: 0, stolen_ns: 0 }
    }

    /// Counts the time from the last call to `now_ns`, waiting for `targets` as in [`SpinBudget::spend`]. A waiter whose task moved to
    /// another CPU since gets the difference of two CPUs' stolen time, at most the whole interval.
    ///
    /// The targets are looked at once per call: call it every few rounds, not after the whole time.
    ///
    /// # Errors
    /// [`Overdue`] when the time that counts exceeds the budget; again with every further call.
    pub fn spend<C: Cpu>(&mut self, now_ns: u64, targets: impl IntoIterator<Item = CpuId>) -> Result<(), Overdue> {
        let now_stolen_ns = stolen_ns::<C>();
        let passed = now_ns.saturating_sub(self.last_ns);
        let stolen = now_stolen_ns.saturating_sub(self.last_stolen_ns).min(passed);
        // What was stolen in an interval that the clock has not seen yet counts in the next. Steps back, of another CPU's account, count nothing.
        let seen_stolen_ns =
            if now_stolen_ns > self.last_stolen_ns { self.last_stolen_ns + stolen } else { now_stolen_ns };
        // After a step back no interval counts twice.
        (self.last_ns, self.last_stolen_ns) = (self.last_ns.max(now_ns), seen_stolen_ns);
        self.stolen_ns = self.stolen_ns.saturating_add(stolen);
        let counts = if is_any_preempted::<C>(targets) { &mut self.excused_ns } else { &mut self.spent_ns };
        *counts = counts.saturating_add(passed - stolen);
        if self.spent_ns <= self.limit_ns {
            return Ok(());
        }
        Err(Overdue { spent: self.spent_ns, excused: self.excused_ns, stolen_ns: self.stolen_ns })
    }
}

/// Whether one of `targets` is off its CPU without being idle, as far as is known. The waiter's own CPU runs, whatever its record says.
fn is_any_preempted<C: Cpu>(targets: impl IntoIterator<Item = CpuId>) -> bool {
    targets.into_iter().any(|cpu| C::Hypervisor::is_preempted(cpu) && !is_idle(cpu))
}

fn stolen_ns<C: Cpu>() -> u64 {
    C::current().map_or(0, C::Hypervisor::stolen_ns)
}

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::*;
    use crate::hypervisor::Yielded;
    use std::cell::Cell;

    /// CPU 0 waits for CPU 1; the test says what the host does to both.
    enum Kernel {}

    thread_local! {
        static STOLEN_NS: Cell<u64> = const { Cell::new(0) };
        static PREEMPTED: Cell<bool> = const { Cell::new(false) };
        static LOOKS: Cell<u32> = const { Cell::new(0) };
    }

    const OWNER: CpuId = CpuId::new(1).unwrap();

    impl Cpu for Kernel {
        type Hypervisor = Kernel;
        fn current() -> Option<CpuId> {
            CpuId::new(0)
        }
    }

    impl Hypervisor for Kernel {
        fn sees_preempted() -> bool {
            true
        }
        fn is_preempted(cpu: CpuId) -> bool {
            LOOKS.set(LOOKS.get() + 1);
            cpu == OWNER && PREEMPTED.get()
        }
        fn stolen_ns(cpu: CpuId) -> u64 {
            if cpu.index() == 0 { STOLEN_NS.get() } else { 0 }
        }
        fn can_yield() -> bool {
            false
        }
        fn yield_to(_: CpuId, _: CpuId) -> Yielded {
            Yielded::Nothing
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

    #[test]
    fn time_that_was_stolen_from_the_waiter_does_not_count() {
        let mut budget = TimeBudget::new::<Kernel>(1000, 100);
        STOLEN_NS.set(900);
        assert_eq!(budget.spend::<Kernel>(2000, Some(OWNER)), Ok(()), "100 of 1000 ns were its own");
        let overdue = budget.spend::<Kernel>(2001, Some(OWNER)).unwrap_err();
        assert_eq!((overdue.spent, overdue.excused, overdue.stolen_ns), (101, 0, 900));
    }

    #[test]
    fn a_clock_or_a_record_that_steps_back_counts_nothing() {
        STOLEN_NS.set(500);
        let mut budget = TimeBudget::new::<Kernel>(1000, 0);
        STOLEN_NS.set(0);
        for now in [900, 1000, 900, 1000] {
            assert_eq!(budget.spend::<Kernel>(now, None), Ok(()));
        }
        STOLEN_NS.set(u64::MAX);
        assert_eq!(budget.spend::<Kernel>(u64::MAX, None), Ok(()), "more stolen than time passed");
    }

    #[test]
    fn rounds_count_again_once_the_owner_runs() {
        let mut budget = SpinBudget::new(100);
        for _ in 0..10 {
            PREEMPTED.set(true);
            assert!((0..1000).all(|_| budget.spend::<Kernel>(Some(OWNER)).is_ok()));
        }
        PREEMPTED.set(false);
        let overdue = (0..).find_map(|_| budget.spend::<Kernel>(Some(OWNER)).err()).unwrap();
        assert_eq!(overdue.spent, 101);
        assert!((9900..=10_100).contains(&overdue.excused), "{overdue}");
    }

    #[test]
    fn looks_are_rare_until_the_budget_is_used_up() {
        LOOKS.set(0);
        let mut budget = SpinBudget::new(10_000);
        assert!((0..10_000).all(|_| budget.spend::<Kernel>(Some(OWNER)).is_ok()));
        assert_eq!(LOOKS.get(), 10_000 / LOOK_EVERY);
    }

    #[test]
    fn what_a_coarse_clock_has_not_seen_is_still_stolen_when_it_has() {
        STOLEN_NS.set(0);
        PREEMPTED.set(false);
        let mut budget = TimeBudget::new::<Kernel>(0, 50);
        STOLEN_NS.set(100);
        assert!(budget.spend::<Kernel>(0, Some(OWNER)).is_ok());
        assert!(budget.spend::<Kernel>(100, Some(OWNER)).is_ok(), "all of it was stolen");
        let late = budget.spend::<Kernel>(151, Some(OWNER)).unwrap_err();
        assert_eq!((late.spent, late.stolen_ns), (51, 100));
    }

    #[test]
    fn a_clock_that_jumps_to_and_fro_does_not_overflow() {
        STOLEN_NS.set(0);
        PREEMPTED.set(true);
        let mut budget = TimeBudget::new::<Kernel>(0, 100);
        for now in [u64::MAX, 0, u64::MAX] {
            assert!(budget.spend::<Kernel>(now, Some(OWNER)).is_ok());
        }
    }
}
