//! Budgets in place of the panic caps of real kernels: each module is a kernel's wait as that kernel would write it.
//!
//! Compiled and run, on a fake host. Only the lines with `budget` differ from the kernels' own loops.
#![cfg(not(pvlock_loom))]

mod fake;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fake::{Fake, PREEMPTED, cpu, on_cpu};
use pvlock::CpuId;
use pvlock::boost::{Overdue, SpinBudget, TimeBudget, idle_begin, idle_end};

/// Motor OS: `util::SpinLock` panics with the line that locked it, after so many spins.
mod motor {
    use super::*;
    use std::cell::UnsafeCell;

    /// 10^10 in the kernel; the tests have less time.
    const MAX_SPINS: u64 = 100_000;

    pub struct SpinLock<T> {
        locked: AtomicBool,
        /// The line that locked it, and the CPU, which is new: a budget has to know whom it waits for.
        line: AtomicU64,
        owner: AtomicU64,
        data: UnsafeCell<T>,
    }

    // SAFETY: the data is reached under the lock only.
    unsafe impl<T: Send> Sync for SpinLock<T> {}

    impl<T> SpinLock<T> {
        pub const fn new(data: T) -> Self {
            Self {
                locked: AtomicBool::new(false),
                line: AtomicU64::new(0),
                owner: AtomicU64::new(u64::MAX),
                data: UnsafeCell::new(data),
            }
        }

        pub fn lock<R>(&self, line: u32, f: impl FnOnce(&mut T) -> R) -> R {
            let mut budget = SpinBudget::new(MAX_SPINS);
            while self.locked.swap(true, Ordering::Acquire) {
                if let Err(overdue) = budget.spend::<Fake>(self.owner()) {
                    panic!("deadlock at line {line}, held at line {}: {overdue}", self.line.load(Ordering::Relaxed));
                }
                core::hint::spin_loop();
            }
            self.line.store(line.into(), Ordering::Relaxed);
            self.owner.store(fake::ME.get().map_or(u64::MAX, |me| me.index() as u64), Ordering::Relaxed);
            // SAFETY: the lock is held.
            let result = f(unsafe { &mut *self.data.get() });
            self.owner.store(u64::MAX, Ordering::Relaxed);
            self.locked.store(false, Ordering::Release);
            result
        }

        fn owner(&self) -> Option<CpuId> {
            u32::try_from(self.owner.load(Ordering::Relaxed)).ok().and_then(CpuId::new)
        }
    }

    static LOCK: SpinLock<u32> = SpinLock::new(0);

    #[test]
    fn a_preempted_owner_is_no_deadlock_and_a_running_one_is() {
        let before = PREEMPTED.fetch_or(1 << 30, Ordering::Relaxed);
        on_cpu(30, || {
            LOCK.lock(line!(), |_| {
                let waits = |spins: u64, preempted: bool| {
                    PREEMPTED.fetch_and(!(1 << 30), Ordering::Relaxed);
                    PREEMPTED.fetch_or(u64::from(preempted) << 30, Ordering::Relaxed);
                    let mut budget = SpinBudget::new(MAX_SPINS);
                    (0..spins).try_for_each(|_| budget.spend::<Fake>(LOCK.owner()))
                };
                assert_eq!(waits(10 * MAX_SPINS, true), Ok(()));
                assert_eq!(waits(MAX_SPINS, false), Ok(()));
                assert_eq!(waits(MAX_SPINS + 1, false).map_err(|overdue| overdue.spent), Err(MAX_SPINS + 1));
            });
            assert_eq!(LOCK.lock(line!(), |data| *data), 0);
        });
        PREEMPTED.store(before, Ordering::Relaxed);
    }
}

/// tgoskits: `run_on_cpu_sync` waits five seconds for another CPU's answer, then panics.
mod tgoskits {
    use super::*;

    const LIMIT_NS: u64 = 5_000_000_000;

    /// The kernel's monotonic clock.
    #[derive(Default)]
    struct Clock(AtomicU64);

    impl Clock {
        fn now_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
        fn pass_ns(&self, ns: u64) {
            self.0.fetch_add(ns, Ordering::Relaxed);
        }
    }

    fn wait_for_sync_call(clock: &Clock, target: CpuId, done: impl Fn() -> bool) -> Result<(), Overdue> {
        let mut budget = TimeBudget::new::<Fake>(clock.now_ns(), LIMIT_NS);
        while !done() {
            budget.spend::<Fake>(clock.now_ns(), [target])?;
            core::hint::spin_loop();
        }
        Ok(())
    }

    /// Waits for an answer that comes after 100 s, during which the clock is read every ms.
    fn wait_long(target: CpuId) -> Result<(), Overdue> {
        let clock = Clock::default();
        wait_for_sync_call(&clock, target, || {
            clock.pass_ns(1_000_000);
            clock.now_ns() > 100_000_000_000
        })
    }

    #[test]
    fn five_seconds_do_not_pass_while_the_target_is_preempted() {
        PREEMPTED.fetch_or(1 << 31, Ordering::Relaxed);
        on_cpu(32, || {
            assert_eq!(wait_long(cpu(31)), Ok(()));
            // One that sleeps in its idle loop is not preempted: it should have answered.
            idle_begin(cpu(31));
            let overdue = wait_long(cpu(31)).expect_err("an idle CPU answers");
            assert!((LIMIT_NS..LIMIT_NS + 10_000_000).contains(&overdue.spent), "{overdue}");
            idle_end(cpu(31));
        });
        PREEMPTED.fetch_and(!(1 << 31), Ordering::Relaxed);
        on_cpu(32, || assert!(wait_long(cpu(31)).is_err()));
    }
}

#[test]
fn waits_for_nobody_known_are_counted_in_full() {
    let mut budget = SpinBudget::new(100);
    assert!((0..100).all(|_| budget.spend::<Fake>(None).is_ok()));
    let overdue = budget.spend::<Fake>(None).expect_err("used up");
    assert_eq!((overdue.spent, overdue.excused), (101, 0));
    assert!(overdue.to_string().starts_with("waited 101 "), "{overdue}");
}
