//! Loom models of the optimistic spin queue: handing over, and leaving it in every place, also while neighbours do.
#![cfg(pvlock_loom)]

mod model;

use std::sync::atomic::{AtomicU32, Ordering};

use loom::sync::Arc;
use loom::thread;
use model::{Halts, Host, Model, Protected, Spins, model, on_cpu};
use pvlock::lock::OsqLock;

type Shared<H> = Arc<(OsqLock<Model<H>>, Protected)>;

static STAYED: AtomicU32 = AtomicU32::new(0);
static LEFT: AtomicU32 = AtomicU32::new(0);

fn try_section<H: Host>(shared: &Shared<H>, give_up: impl FnMut() -> bool) {
    match shared.0.lock(give_up) {
        Some(token) => {
            shared.1.add_one();
            assert!(shared.0.is_locked());
            shared.0.unlock(token);
            STAYED.fetch_add(1, Ordering::Relaxed);
        }
        None => {
            LEFT.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn stay<H: Host>(shared: &Shared<H>) {
    try_section(shared, || false);
}

/// Is head for long: the others come and go meanwhile.
fn hold<H: Host>(shared: &Shared<H>) {
    if let Some(token) = shared.0.lock(|| false) {
        for _ in 0..4 {
            thread::yield_now();
        }
        shared.0.unlock(token);
    }
}

fn leave<H: Host>(shared: &Shared<H>) {
    try_section(shared, || true);
}

/// Waits a round before it leaves, so that neighbours come and go meanwhile.
fn leave_late<H: Host>(shared: &Shared<H>) {
    let mut rounds = 0;
    try_section(shared, || {
        rounds += 1;
        rounds > 1
    });
}

fn all<H: Host>(works: &[fn(&Shared<H>)]) {
    let shared: Shared<H> = Arc::new((OsqLock::new(), Protected::new()));
    let threads: Vec<_> = (1..works.len())
        .map(|i| {
            let (shared, work) = (shared.clone(), works[i]);
            thread::spawn(move || on_cpu(Some(i as u32), || work(&shared)))
        })
        .collect();
    on_cpu(Some(0), || works[0](&shared));
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(shared.0.is_quiet(), "the queue is not empty");
}

/// Every test of leaving must have met both ends of the race.
fn both_ways(f: impl FnOnce()) {
    let (stayed, left) = (STAYED.load(Ordering::Relaxed), LEFT.load(Ordering::Relaxed));
    f();
    assert!(STAYED.load(Ordering::Relaxed) > stayed && LEFT.load(Ordering::Relaxed) > left);
}

#[test]
fn the_queue_hands_over_in_turn() {
    model(3, || all::<Spins>(&[stay, stay]));
    model(2, || all::<Spins>(&[stay, stay, stay]));
}

#[test]
fn a_waiter_leaves_at_the_tail_or_gets_the_hand_over() {
    both_ways(|| model(4, || all::<Spins>(&[stay, leave])));
}

#[test]
fn a_waiter_leaves_at_the_tail_while_a_newcomer_comes() {
    both_ways(|| model(2, || all::<Spins>(&[leave, leave, stay])));
}

#[test]
fn a_waiter_leaves_in_the_middle() {
    both_ways(|| model(2, || all::<Spins>(&[stay, leave, stay])));
}

#[test]
fn two_neighbours_leave_at_once() {
    both_ways(|| model(2, || all::<Spins>(&[stay, leave, leave])));
    both_ways(|| model(1, || all::<Spins>(&[stay, leave_late, leave_late])));
    // With a head that stays, one of them has left for good when the other one begins to.
    model(1, || all::<Spins>(&[hold, leave_late, leave_late]));
}

#[test]
fn who_waits_behind_a_preempted_vcpu_leaves() {
    both_ways(|| model(3, || all::<Halts>(&[stay, stay])));
    both_ways(|| model(2, || all::<Halts>(&[stay, stay, stay])));
}

#[test]
fn who_has_left_may_come_back() {
    fn again<H: Host>(shared: &Shared<H>) {
        leave(shared);
        stay(shared);
    }
    both_ways(|| model(3, || all::<Spins>(&[again, again])));
}
