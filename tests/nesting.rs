//! Waits nested in waits on one CPU, of a task, a soft interrupt, an interrupt, an NMI and a machine check: four have a queue node each, the fifth and more wait without one.
#![cfg(not(pvlock_loom))]

mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use fake::{Fake, IN_NMI, IRQS_ON, interrupt_after, on_cpu};
use pvlock::SpinMutex;

type Locks = Arc<Vec<SpinMutex<u64, Fake>>>;

/// Waits for `locks[level]`; while it waits, an interrupt waits for the next one, and so on. `waiting` counts the depth reached.
fn wait_nested(locks: &Locks, level: usize, waiting: &Arc<AtomicU32>) {
    if level < locks.len() {
        let (locks, waiting) = (locks.clone(), waiting.clone());
        let inner = locks.clone();
        // Long enough for the waiter to have left the newcomers' phase (128 rounds) and taken a node.
        interrupt_after(1000, move || {
            waiting.fetch_add(1, Ordering::Relaxed);
            in_context(level + 1, || wait_nested(&locks, level + 1, &waiting));
        });
        *inner[level].lock() += 1;
    }
}

/// Runs `f` as what interrupts at this depth: 1 a soft interrupt, 2 the timer's interrupt, 3 an NMI, from 4 on a machine check, which strikes
/// in NMIs too. Afterwards all is as before, as the processor's return from an interrupt leaves it.
fn in_context(depth: usize, f: impl FnOnce()) {
    let before = (IRQS_ON.get(), IN_NMI.get());
    IRQS_ON.set(depth < 2);
    IN_NMI.set(depth >= 3);
    f();
    assert_eq!((IRQS_ON.get(), IN_NMI.get()), (depth < 2, depth >= 3), "a wait changed the state of its context");
    IRQS_ON.set(before.0);
    IN_NMI.set(before.1);
}

/// CPU 0 nests waits for `depth` locks that CPU 1 holds and then gives back in `order`.
fn nest(depth: usize, last_first: impl Fn(usize) -> usize + Send + 'static) {
    let locks: Locks = Arc::new((0..depth).map(|_| SpinMutex::new(0)).collect());
    let waiting = Arc::new(AtomicU32::new(0));
    let holder = {
        let (locks, waiting) = (locks.clone(), waiting.clone());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let holder = thread::spawn(move || {
            on_cpu(1, || {
                let mut guards: Vec<_> = locks.iter().map(|lock| Some(lock.lock())).collect();
                ready.send(()).unwrap();
                while waiting.load(Ordering::Relaxed) < depth as u32 {
                    thread::yield_now();
                }
                for i in 0..depth {
                    let which = last_first(i);
                    **guards[which].as_mut().unwrap() += 1;
                    guards[which] = None;
                }
            })
        });
        is_ready.recv().unwrap();
        holder
    };
    on_cpu(0, || wait_nested(&locks, 0, &waiting));
    holder.join().unwrap();
    for lock in locks.iter() {
        assert_eq!(*lock.lock(), 2);
        assert!(!lock.is_locked());
    }
}

#[cfg(feature = "stats")]
fn no_node() -> u64 {
    pvlock::stats::snapshot(fake::cpu(0)).no_node
}

#[test]
fn task_soft_interrupt_interrupt_and_nmi_wait_nested_and_so_does_a_fifth() {
    for depth in [1, 4, 5, 8] {
        #[cfg(feature = "stats")]
        let before = no_node();
        nest(depth, move |i| i);
        nest(depth, move |i| depth - 1 - i);
        #[cfg(feature = "stats")]
        assert_eq!(no_node() > before, depth > 4, "waits without a node at depth {depth}");
    }
}

#[test]
fn an_interrupt_waits_for_the_very_lock_that_its_cpu_is_queued_for() {
    let locks: Locks = Arc::new(vec![SpinMutex::new(0)]);
    let same: Locks = locks.clone();
    let waiting = Arc::new(AtomicU32::new(0));
    let guard = on_cpu(2, || locks[0].lock());
    thread::scope(|s| {
        let inner_waiting = waiting.clone();
        s.spawn(move || {
            on_cpu(3, || {
                let lock = same.clone();
                interrupt_after(1000, move || {
                    inner_waiting.fetch_add(1, Ordering::Relaxed);
                    *lock[0].lock() += 1;
                });
                *same[0].lock() += 1;
            })
        });
        while waiting.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        // Long enough for the interrupt to leave the newcomers' phase as well: behind its own CPU's node it would wait for ever.
        thread::sleep(std::time::Duration::from_millis(20));
        drop(guard);
    });
    assert_eq!(*locks[0].lock(), 2);
}
