//! Boosting by the library's own memory, on a fake host: whom, when, and when not; the busy-spin detector's verdicts; bad input.
#![cfg(not(pvlock_loom))]

mod fake;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fake::{Fake, ME, PREEMPTED, cpu, on_cpu};
use pvlock::boost::{Boost, SpinDetector, Verdict, boost_any, idle_begin, idle_end, is_idle};
use pvlock::hypervisor::{Native, Yielded};
use pvlock::{Cpu, CpuId, MAX_CPUS};

/// The set of preempted CPUs and the turn are shared by all tests.
fn with_preempted(cpus: &[u32]) -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    PREEMPTED.store(cpus.iter().fold(0, |set, cpu| set | 1 << cpu), Relaxed);
    only
}

/// Whom a boost went to.
fn target(boost: Boost) -> Option<u32> {
    match boost {
        Boost::Yielded { target, .. } => Some(target.index() as u32),
        _ => None,
    }
}

#[test]
fn takes_the_preempted_cpus_in_turn() {
    let _only = with_preempted(&[3, 9, 40]);
    // Each of another CPU, so that nobody's memory of fruitless yields matters.
    let mut found: Vec<_> = (10..16).filter_map(|me| target(on_cpu(me, boost_any::<Fake>))).collect();
    assert_eq!(found[..3], found[3..]);
    found.truncate(3);
    found.sort_unstable();
    assert_eq!(found, [3, 9, 40]);
}

#[test]
fn never_boosts_itself_nor_a_cpu_that_runs() {
    let _only = with_preempted(&[20]);
    assert_eq!(on_cpu(20, boost_any::<Fake>), Boost::NobodyPreempted);
    PREEMPTED.store(0, Relaxed);
    assert_eq!(on_cpu(20, boost_any::<Fake>), Boost::NobodyPreempted);
}

#[test]
fn never_boosts_a_cpu_that_the_kernel_calls_idle() {
    let _only = with_preempted(&[21]);
    idle_begin(cpu(21));
    assert!(is_idle(cpu(21)));
    assert_eq!(on_cpu(22, boost_any::<Fake>), Boost::NobodyPreempted);
    idle_end(cpu(21));
    assert!(!is_idle(cpu(21)));
    assert_eq!(target(on_cpu(22, boost_any::<Fake>)), Some(21));
}

#[test]
fn gives_up_after_three_that_did_nothing() {
    let _only = with_preempted(&[1, 2, 3, 4, 5]);
    on_cpu(23, || {
        for _ in 0..3 {
            assert!(matches!(boost_any::<Fake>(), Boost::Yielded { outcome: Yielded::Nothing, .. }));
        }
        assert_eq!(boost_any::<Fake>(), Boost::GivenUp);
    });
    // Another CPU has a memory of its own.
    assert!(target(on_cpu(24, boost_any::<Fake>)).is_some());
}

#[test]
fn looks_while_nobody_is_preempted_are_not_refusals() {
    let _only = with_preempted(&[1, 2]);
    on_cpu(25, || {
        (0..3).for_each(|_| assert!(target(boost_any::<Fake>()).is_some()));
        PREEMPTED.store(0, Relaxed);
        (0..1000).for_each(|_| assert_eq!(boost_any::<Fake>(), Boost::NobodyPreempted));
        PREEMPTED.store(1 << 1, Relaxed);
        assert_eq!(boost_any::<Fake>(), Boost::GivenUp);
    });
}

#[test]
fn an_unknown_cpu_and_a_host_without_abilities_boost_nobody() {
    struct Bare;
    impl Cpu for Bare {
        type Hypervisor = Native;
        fn current() -> Option<CpuId> {
            CpuId::new(0)
        }
    }
    let _only = with_preempted(&[1]);
    ME.set(None);
    assert_eq!(boost_any::<Fake>(), Boost::Unable);
    assert_eq!(boost_any::<Bare>(), Boost::Unable);
}

#[test]
fn two_ticks_in_one_loop_are_spinning() {
    let _only = with_preempted(&[7]);
    let detector = SpinDetector::new();
    on_cpu(26, || {
        assert_eq!(detector.tick::<Fake>(cpu(26), 0x1000), Verdict::Progress);
        let verdict = detector.tick::<Fake>(cpu(26), 0x1010);
        assert_eq!(verdict, Verdict::Spins(Boost::Yielded { target: cpu(7), outcome: Yielded::Nothing }));
        // After a boost it begins anew.
        assert_eq!(detector.tick::<Fake>(cpu(26), 0x1010), Verdict::Progress);
    });
}

#[test]
fn the_detector_boosts_nobody_while_nobody_is_preempted() {
    let _only = with_preempted(&[]);
    let detector = SpinDetector::new();
    on_cpu(27, || {
        detector.tick::<Fake>(cpu(27), 0x1000);
        for _ in 0..10 {
            assert_eq!(detector.tick::<Fake>(cpu(27), 0x1000), Verdict::Spins(Boost::NobodyPreempted));
        }
        // The two ends of a loop that is just small enough.
        assert_eq!(detector.tick::<Fake>(cpu(27), 0x1040), Verdict::Spins(Boost::NobodyPreempted));
    });
}

#[test]
fn a_cpu_that_has_halted_in_the_idle_loop_does_not_spin() {
    let _only = with_preempted(&[7]);
    let detector = SpinDetector::new();
    on_cpu(25, || {
        idle_begin(cpu(25));
        for _ in 0..10 {
            assert_eq!(detector.tick::<Fake>(cpu(25), 0x1000), Verdict::Progress);
        }
        idle_end(cpu(25));
        assert_eq!(detector.tick::<Fake>(cpu(25), 0x1000), Verdict::Progress);
    });
}

#[test]
fn other_code_and_progress_marks_are_not_spinning() {
    let _only = with_preempted(&[7]);
    let detector = SpinDetector::new();
    on_cpu(28, || {
        for round in 0..10 {
            assert_eq!(detector.tick::<Fake>(cpu(28), 0x1000 + 0x41 * round), Verdict::Progress);
        }
        for _ in 0..10 {
            detector.progress(cpu(28));
            assert_eq!(detector.tick::<Fake>(cpu(28), 0x1000), Verdict::Progress);
        }
    });
}

#[test]
fn every_cpu_number_has_a_detector_and_no_other_exists() {
    let _only = with_preempted(&[]);
    let detector = SpinDetector::default();
    for index in 0..MAX_CPUS as u32 {
        let cpu = CpuId::new(index).expect("in range");
        for (ip, verdict) in [(u64::MAX, Verdict::Progress), (0, Verdict::Progress), (1, Verdict::Progress)] {
            assert_eq!(detector.tick::<Fake>(cpu, ip), verdict, "an instruction at 0 is as good as none");
        }
        detector.progress(cpu);
    }
    // A number out of range does not become a `CpuId`, so the detector cannot be fed with one.
    assert_eq!(CpuId::new(MAX_CPUS as u32), None);
}
