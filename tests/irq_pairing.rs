//! The interrupt flag is after every operation what it was before, and is never turned on while on.
#![cfg(not(pvlock_loom))]

mod fake;

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;

use fake::{ENABLES, Fake, HALTS, HALTS_IRQS_ON, IN_NMI, IRQS_ON, PREEMPTED, on_cpu};
use pvlock::{Cpu, IrqSave, NoPreempt, SpinMutex};

type IrqMutex = SpinMutex<u32, Fake, IrqSave>;

#[test]
fn lock_turns_interrupts_off_and_drop_restores_them() {
    on_cpu(1, || {
        let lock = IrqMutex::new(0);
        let guard = lock.lock();
        assert!(!IRQS_ON.get());
        drop(guard);
        assert!(IRQS_ON.get());
    });
}

#[test]
fn an_outer_off_stays_off() {
    on_cpu(1, || {
        let (outer, inner) = (IrqMutex::new(0), IrqMutex::new(0));
        let guard = outer.lock();
        drop(inner.lock());
        assert!(!IRQS_ON.get());
        drop(guard);
        assert_eq!(ENABLES.get(), 1);
    });
}

#[test]
fn a_failed_try_lock_restores_the_flag_both_ways() {
    on_cpu(1, || {
        let lock = IrqMutex::new(0);
        assert!(lock.raw().try_lock());
        assert!(lock.try_lock().is_none() && lock.try_lock_weak().is_none() && lock.try_lock_for(10).is_none());
        assert!(IRQS_ON.get());
        Fake::irqs_disable();
        assert!(lock.try_lock().is_none());
        assert!(!IRQS_ON.get());
        Fake::irqs_enable();
        // SAFETY: locked above.
        unsafe { lock.raw().unlock() };
    });
}

#[test]
fn guards_dropped_out_of_order_restore_in_that_order() {
    on_cpu(1, || {
        let (first, second) = (IrqMutex::new(0), IrqMutex::new(0));
        let (a, b) = (first.lock(), second.lock());
        drop(a);
        assert!(IRQS_ON.get(), "the first lock's state goes with its guard, as documented");
        drop(b);
        assert!(IRQS_ON.get());
        assert_eq!(ENABLES.get(), 1);
    });
}

/// `wait` waits as CPU 3 for a lock whose owner, CPU 2, reads as preempted, until it has halted; then the owner unlocks.
fn wait_until_halted<G: pvlock::Guard<Fake>>(wait: impl FnOnce(&SpinMutex<u32, Fake, G>) + Send) {
    let lock = SpinMutex::<u32, Fake, G>::new(0);
    let (locked, is_locked) = mpsc::channel();
    PREEMPTED.fetch_or(1 << 2, Ordering::Relaxed);
    thread::scope(|s| {
        s.spawn(|| {
            on_cpu(2, || {
                let before = HALTS.load(Ordering::Relaxed);
                assert!(lock.raw().try_lock());
                locked.send(()).unwrap();
                while HALTS.load(Ordering::Relaxed) == before {
                    thread::yield_now();
                }
                // SAFETY: locked above.
                unsafe { lock.raw().unlock() };
            })
        });
        is_locked.recv().unwrap();
        s.spawn(|| on_cpu(3, || wait(&lock))).join().unwrap();
    });
}

#[test]
fn a_waiter_halts_with_the_flag_that_it_came_with() {
    let on_before = HALTS_IRQS_ON.load(Ordering::Relaxed);
    wait_until_halted::<IrqSave>(|lock| {
        drop(lock.lock());
        assert!(IRQS_ON.get());
    });
    assert_eq!(HALTS_IRQS_ON.load(Ordering::Relaxed), on_before, "came with interrupts off");
    wait_until_halted::<pvlock::NoGuard>(|lock| {
        drop(lock.lock());
        assert!(IRQS_ON.get());
    });
    assert!(HALTS_IRQS_ON.load(Ordering::Relaxed) > on_before, "came with interrupts on");
}

#[test]
fn an_nmi_never_halts() {
    on_cpu(4, || {
        let lock = SpinMutex::<u32, Fake>::new(0);
        PREEMPTED.fetch_or(1 << 5, Ordering::Relaxed);
        thread::scope(|s| {
            let (locked, is_locked) = mpsc::channel();
            let lock = &lock;
            s.spawn(move || {
                on_cpu(5, || {
                    assert!(lock.raw().try_lock());
                    locked.send(()).unwrap();
                    thread::sleep(std::time::Duration::from_millis(30));
                    // SAFETY: locked above.
                    unsafe { lock.raw().unlock() };
                })
            });
            is_locked.recv().unwrap();
            // `Fake`'s halt panics in an NMI.
            IN_NMI.set(true);
            drop(lock.lock());
            IN_NMI.set(false);
        });
    });
}

#[test]
fn two_guards_in_one_are_entered_in_order_and_left_in_the_opposite_one() {
    on_cpu(1, || {
        let lock = SpinMutex::<u32, Fake, (NoPreempt, IrqSave)>::new(0);
        let guard = lock.lock();
        assert!(!IRQS_ON.get());
        assert!(lock.try_lock().is_none() && !IRQS_ON.get());
        drop(guard);
        assert!(IRQS_ON.get());
    });
}
