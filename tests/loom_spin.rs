//! Loom models of the spinlock: exclusion, queue hand-over, halting, the pass bound, nesting.
#![cfg(pvlock_loom)]

mod model;

use std::sync::atomic::{AtomicU32, Ordering};

use loom::sync::Arc;
use loom::thread;
use model::{
    Halts, Host, Model, OneNotReady, Protected, Spins, Spurious, Unknown, halts_in, model, on_cpu, on_cpu_with_irqs,
};
use pvlock::CpuId;
use pvlock::hypervisor::Hypervisor;
use pvlock::lock::RawSpinLock;

type Shared<H> = Arc<(RawSpinLock<Model<H>>, Protected)>;

fn section<H: Host>(shared: &Shared<H>) {
    shared.0.lock();
    shared.1.add_one();
    // SAFETY: locked above.
    unsafe { shared.0.unlock() };
}

/// `cpus` model threads run `each` once; then the count is right and the lock is as new.
fn contend<H: Host>(cpus: &[Option<u32>], each: impl Fn(&Shared<H>) + Copy + Send + Sync + 'static, total: u32) {
    let shared: Shared<H> = Arc::new((RawSpinLock::new(), Protected::new()));
    let threads: Vec<_> = cpus[1..]
        .iter()
        .map(|&cpu| {
            let shared = shared.clone();
            thread::spawn(move || on_cpu(cpu, || each(&shared)))
        })
        .collect();
    on_cpu(cpus[0], || each(&shared));
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(shared.1.get(), total);
    assert!(shared.0.is_quiet(), "the word is not back to zero: {:?}", shared.0);
}

#[test]
fn two_cpus_exclude_each_other_and_hand_over() {
    model(4, || contend::<Spins>(&[Some(0), Some(1)], section, 2));
}

#[test]
fn three_cpus_exclude_each_other() {
    model(2, || contend::<Spins>(&[Some(0), Some(1), Some(2)], section, 3));
}

#[test]
fn two_cpus_take_turns_and_leave_the_queue_clean() {
    model(3, || {
        contend::<Spins>(
            &[Some(0), Some(1)],
            |shared| {
                section(shared);
                section(shared);
            },
            4,
        );
    });
}

#[test]
fn cpus_without_a_number_exclude_each_other() {
    model(2, || contend::<Spins>(&[None, None], section, 2));
    model(2, || contend::<Spins>(&[None, Some(0)], section, 2));
}

#[test]
fn a_halted_head_is_kicked() {
    halts_in(|| model(4, || contend::<Halts>(&[Some(0), Some(1)], section, 2)));
}

#[test]
fn halted_waiters_in_the_queue_are_kicked_in_turn() {
    halts_in(|| model(2, || contend::<Halts>(&[Some(0), Some(1), Some(2)], section, 3)));
}

/// A section in which the holder may be stopped several times: a waiter that pauses first must still find it held afterwards.
fn long_section<H: Host>(shared: &Shared<H>) {
    shared.0.lock();
    shared.1.add_one();
    for _ in 0..3 {
        assert!(shared.0.is_locked());
    }
    // SAFETY: locked above.
    unsafe { shared.0.unlock() };
}

#[test]
fn a_waiter_that_does_not_know_who_runs_halts_and_is_kicked() {
    halts_in(|| model(3, || contend::<Unknown>(&[Some(0), Some(1)], long_section, 2)));
}

#[test]
fn a_halt_that_returns_for_no_reason_is_taken_up_again() {
    halts_in(|| model(3, || contend::<Spurious>(&[Some(0), Some(1)], section, 2)));
}

#[test]
fn a_kick_from_elsewhere_and_a_double_kick_are_spurious_wakes() {
    halts_in(|| {
        model(3, || {
            let kicks = |shared: &Shared<Halts>| {
                for cpu in [0, 1, 1] {
                    Model::<Halts>::kick(CpuId::new(cpu).unwrap());
                }
                section(shared);
            };
            contend::<Halts>(&[Some(0), Some(1)], kicks, 2);
        });
    });
}

#[test]
fn a_cpu_that_is_not_ready_spins_while_the_other_halts() {
    halts_in(|| model(3, || contend::<OneNotReady>(&[Some(0), Some(1)], section, 2)));
}

#[test]
fn a_waiter_with_interrupts_on_halts_and_has_them_on_again() {
    halts_in(|| {
        model(3, || {
            let with_irqs = |shared: &Shared<Halts>| on_cpu_with_irqs(Some(2), true, || section(shared));
            let lock: Shared<Halts> = Arc::new((RawSpinLock::new(), Protected::new()));
            let peer = {
                let lock = lock.clone();
                thread::spawn(move || on_cpu(Some(1), || section(&lock)))
            };
            with_irqs(&lock);
            peer.join().unwrap();
            assert_eq!(lock.1.get(), 2);
            assert!(lock.0.is_quiet());
        });
    });
}

/// A host whose waiters yield at the first look; the yield notes that the reservation is made.
struct Yields;

loom::lazy_static! {
    static ref RESERVED: loom::sync::atomic::AtomicBool = loom::sync::atomic::AtomicBool::new(false);
}

impl Host for Yields {
    const YIELDS: bool = true;
    fn yielded(me: CpuId) {
        if me.index() == 1 {
            // Release: who sees this sees the reservation that came before it.
            RESERVED.store(true, loom::sync::atomic::Ordering::Release);
        }
    }
}

#[test]
fn nobody_passes_a_head_that_has_yielded() {
    static REFUSED: AtomicU32 = AtomicU32::new(0);
    model(3, || {
        let shared: Shared<Yields> = Arc::new((RawSpinLock::new(), Protected::new()));
        let head = {
            let shared = shared.clone();
            thread::spawn(move || on_cpu(Some(1), || section(&shared)))
        };
        on_cpu(Some(0), || {
            for _ in 0..3 {
                let promised = RESERVED.load(loom::sync::atomic::Ordering::Acquire);
                if shared.0.try_lock() {
                    // Once the reservation is known, the lock is only to be had after its holder: the head has been in.
                    assert!(!promised || shared.1.get() == 100 || head_was_in(&shared), "passed a reservation");
                    // SAFETY: locked above.
                    unsafe { shared.0.unlock() };
                } else if promised {
                    REFUSED.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        head.join().unwrap();
        assert_eq!(shared.1.get(), 1);
        assert!(shared.0.is_quiet());
    });
    assert!(REFUSED.load(Ordering::Relaxed) > 0, "nobody was ever refused: the model shows nothing");

    fn head_was_in(shared: &Shared<Yields>) -> bool {
        shared.1.get() == 1
    }
}

/// An interrupt arrives while CPU 0 waits, once, and takes the lock its CPU waits for, or another one.
///
/// It comes in the second round: in the first (the only one of the newcomers' phase here) the waiter has no node yet. That the
/// interrupt in turn gets as far as the queue is tested in `tests/nesting.rs`: here its first pause lets the owner finish.
struct Interrupts;

loom::thread_local! {
    static PENDING: std::cell::RefCell<Option<Shared<Interrupts>>> = std::cell::RefCell::new(None);
    static ROUNDS: std::cell::Cell<u32> = std::cell::Cell::new(0);
}

impl Host for Interrupts {
    fn relax() {
        if ROUNDS.with(|r| r.replace(r.get() + 1)) >= 1 {
            PENDING.with(|p| p.borrow_mut().take()).inspect(section);
        }
    }
}

#[test]
fn an_interrupt_takes_another_lock_of_the_class_while_queued() {
    model(2, || {
        let other: Shared<Interrupts> = Arc::new((RawSpinLock::new(), Protected::new()));
        let lock: Shared<Interrupts> = Arc::new((RawSpinLock::new(), Protected::new()));
        let peer = {
            let (lock, other) = (lock.clone(), other.clone());
            thread::spawn(move || {
                on_cpu(Some(1), || {
                    section(&lock);
                    section(&other);
                });
            })
        };
        on_cpu(Some(0), || {
            PENDING.with(|p| *p.borrow_mut() = Some(other.clone()));
            section(&lock);
            PENDING.with(|p| p.borrow_mut().take()).inspect(section);
        });
        peer.join().unwrap();
        assert_eq!((lock.1.get(), other.1.get()), (2, 2));
        assert!(lock.0.is_quiet() && other.0.is_quiet());
    });
}

#[test]
fn an_interrupt_takes_the_very_lock_its_cpu_is_queued_for() {
    model(3, || {
        let lock: Shared<Interrupts> = Arc::new((RawSpinLock::new(), Protected::new()));
        let peer = {
            let lock = lock.clone();
            thread::spawn(move || on_cpu(Some(1), || section(&lock)))
        };
        on_cpu(Some(0), || {
            PENDING.with(|p| *p.borrow_mut() = Some(lock.clone()));
            section(&lock);
            PENDING.with(|p| p.borrow_mut().take()).inspect(section);
        });
        peer.join().unwrap();
        assert_eq!(lock.1.get(), 3);
        assert!(lock.0.is_quiet());
    });
}
