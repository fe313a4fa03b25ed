//! The scheduler by itself: slices, yields, wake-ups, freezes, and its invariants under random events.

use super::*;
use crate::config::Slices;

const QUANTUM_NS: u64 = 1000;

fn scheduler(vcpus: usize, slots: usize) -> Scheduler {
    let clock = SliceClock::new(Slices::FreeRunning, QUANTUM_NS);
    let mut sched = Scheduler::new(vcpus, slots, QUANTUM_NS, clock);
    for slot in 0..slots {
        let _ = sched.fill(slot, 0);
    }
    check(&sched);
    sched
}

fn check(sched: &Scheduler) {
    for (s, slot) in sched.slots.iter().enumerate() {
        if let Some(id) = slot.current {
            assert_eq!((sched.tasks[id].state, sched.tasks[id].slot), (State::Running, s), "INVARIANT 1");
        } else {
            assert!(!(0..sched.tasks.len()).any(|id| sched.is_eligible(id)), "INVARIANT 2");
        }
    }
    let running = sched.tasks.iter().filter(|t| t.state == State::Running).count();
    assert_eq!(running, sched.running().count(), "INVARIANT 1");
    for (id, task) in sched.tasks.iter().enumerate() {
        assert_eq!(sched.waiting.next_at_or_after(id) == Some(id), task.state == State::Runnable);
    }
}

fn switched_to(next: Next) -> Option<usize> {
    match next {
        Next::Switch(elected) => elected.map(|e| e.vcpu),
        Next::Stay { .. } => panic!("no switch"),
    }
}

#[test]
fn a_slice_ends_with_the_vcpu_that_has_run_least() {
    let mut sched = scheduler(3, 1);
    assert!(matches!(sched.tick(0, 999), Next::Stay { slice_end_ns: 1000 }));
    assert_eq!(switched_to(sched.tick(0, 1000)), Some(1));
    assert_eq!(switched_to(sched.tick(1, 2000)), Some(2));
    assert_eq!(switched_to(sched.tick(2, 3000)), Some(0));
    assert_eq!((sched.tasks[0].run_ns, sched.tasks[0].steal_ns), (1000, 2000));
}

#[test]
fn a_crowded_slot_gives_to_one_that_is_ahead() {
    // 0 and 2 share slot 0, 1 has slot 1 for itself: in the long run all get the same.
    let mut sched = scheduler(3, 2);
    for tick in 1..=300 {
        for id in sched.running().collect::<Vec<_>>() {
            let _ = sched.tick(id, tick * QUANTUM_NS);
            check(&sched);
        }
    }
    let run_ns: Vec<u64> = (0..3).map(|id| sched.tasks[id].run_ns).collect();
    assert!(run_ns.iter().all(|&ns| ns.abs_diff(200 * QUANTUM_NS) < 5 * QUANTUM_NS), "{run_ns:?}");
}

#[test]
fn a_yield_needs_a_target_that_waits() {
    let mut sched = scheduler(4, 2);
    assert_eq!(sched.yield_to(0, 0, 10), None, "itself");
    assert_eq!(sched.yield_to(0, 1, 10), None, "running");
    assert_eq!(switched_to(sched.deschedule(0, State::Halted, 20)), Some(2));
    assert_eq!(sched.yield_to(2, 0, 30), None, "halted");
}

#[test]
fn a_yield_on_the_own_slot_moves_at_once() {
    let mut sched = scheduler(6, 2);
    let (next, poke) = sched.yield_to(0, 4, 10).expect("4 waits");
    assert_eq!((switched_to(next), poke), (Some(4), Poke::Nobody));
    assert_eq!(sched.tasks[0].state, State::Runnable);
}

#[test]
fn a_yield_to_another_slot_interrupts_it_and_moves_only_if_somebody_waits_here() {
    let mut sched = scheduler(4, 2);
    let (next, poke) = sched.yield_to(0, 3, 10).expect("3 waits");
    assert_eq!((switched_to(next), poke), (Some(2), Poke::Interrupt(1)));
    assert_eq!(switched_to(sched.tick(1, 20)), Some(3), "the slice was not over, but 3 was named");

    let mut sched = scheduler(3, 2);
    let (next, poke) = sched.yield_to(1, 2, 10).expect("2 waits");
    assert!(matches!(next, Next::Stay { .. }), "nobody else waits for slot 1");
    assert_eq!(poke, Poke::Interrupt(0));
}

#[test]
fn a_yield_does_not_let_a_vcpu_run_far_ahead_of_the_others() {
    let mut sched = scheduler(3, 1);
    sched.tasks[1].vruntime_ns = 2 * QUANTUM_NS;
    let (next, _) = sched.yield_to(0, 1, 10).expect("1 waits");
    assert_eq!(switched_to(next), Some(2));
}

#[test]
fn a_woken_vcpu_starts_on_an_idle_slot_or_preempts_one_that_ran_more() {
    let mut sched = scheduler(2, 2);
    assert_eq!(switched_to(sched.deschedule(1, State::Halted, 10)), None);
    assert!(matches!(sched.wake(1, 20), Poke::Start(Elected { vcpu: 1, slot: 1, migrated: false, .. })));
    assert_eq!(sched.tasks[1].halted_ns, 10);

    let mut sched = scheduler(2, 1);
    assert_eq!(switched_to(sched.deschedule(0, State::Halted, 10)), Some(1));
    assert_eq!(sched.wake(0, 100), Poke::Nobody, "1 has run hardly more");
    assert!(matches!(sched.tick(1, 200), Next::Stay { .. }));
    assert_eq!(switched_to(sched.deschedule(1, State::Halted, 900)), Some(0));
    assert_eq!(switched_to(sched.deschedule(0, State::Halted, 910)), None);
    assert!(matches!(sched.wake(1, 1000), Poke::Start(_)));
    assert_eq!(sched.wake(0, 1400), Poke::Interrupt(1));
    assert_eq!(switched_to(sched.tick(1, 1401)), Some(0));
}

#[test]
fn a_kick_is_spent_by_the_wake_up() {
    let mut sched = scheduler(1, 1);
    assert_eq!(switched_to(sched.deschedule(0, State::Halted, 10)), None);
    sched.tasks[0].kicked = true;
    let _ = sched.wake(0, 20);
    assert!(!sched.tasks[0].kicked);
}

#[test]
fn a_frozen_vcpu_is_stopped_and_not_chosen_until_thawed() {
    let mut sched = scheduler(2, 1);
    assert_eq!(sched.freeze(0, 5000), Poke::Interrupt(0));
    assert_eq!(switched_to(sched.tick(0, 10)), Some(1));
    assert!(matches!(sched.tick(1, 1010), Next::Stay { .. }), "0 is frozen");
    assert_eq!(sched.yield_to(1, 0, 1020), None);
    assert_eq!((sched.next_thaw_ns(), sched.thaw_due(4999), sched.thaw_due(5000)), (5000, None, Some(0)));
    assert_eq!(sched.thaw(0, 5000), Poke::Interrupt(1), "it has run less than 1");
    assert_eq!(sched.tasks[0].steal_ns, 0, "counted when it runs");
    assert_eq!(switched_to(sched.tick(1, 5001)), Some(0));
    assert_eq!(sched.tasks[0].steal_ns, 4991);
}

#[test]
fn the_invariants_hold_under_random_events() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (vcpus, slots) = (rng.usize(1..9), rng.usize(1..4));
        let mut sched = scheduler(vcpus, slots);
        let mut now_ns = 0;
        for _ in 0..500 {
            now_ns += rng.u64(0..QUANTUM_NS);
            let any = rng.usize(0..vcpus);
            let running: Vec<usize> = sched.running().collect();
            match (rng.u8(0..6), running.get(rng.usize(0..4))) {
                (0, Some(&me)) => drop(sched.yield_to(me, any, now_ns)),
                (1, Some(&me)) => drop(sched.deschedule(me, State::Halted, now_ns)),
                (2, _) => drop(sched.wake(any, now_ns)),
                (3, _) => drop(sched.freeze(any, now_ns + 1)),
                (4, _) => drop(sched.thaw(any, now_ns)),
                (_, Some(&me)) => drop(sched.tick(me, now_ns)),
                (_, None) => {}
            }
            check(&sched);
        }
        let total_ns: u64 = (0..vcpus)
            .map(|id| {
                let task = &sched.tasks[id];
                task.run_ns + task.steal_ns + task.halted_ns + sched.in_state_ns(id, now_ns)
            })
            .sum();
        assert_eq!(total_ns, now_ns * vcpus as u64, "every nanosecond of every vCPU is accounted for, seed {seed}");
    }
}
