//! Everything in the crate `spin` that takes a relax strategy, with [`Relax`], on a fake host.
#![cfg(all(feature = "spin", not(pvlock_loom)))]

mod fake;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use fake::{Fake, PREEMPTED, on_cpu};
use pvlock::Relax;

type Mutex<T> = spin::mutex::Mutex<T, Relax<Fake>>;
type RwLock<T> = spin::rwlock::RwLock<T, Relax<Fake>>;
type Once<T> = spin::once::Once<T, Relax<Fake>>;
type Barrier = spin::barrier::Barrier<Relax<Fake>>;
type Lazy<T> = spin::lazylock::LazyLock<T, fn() -> T, Relax<Fake>>;

/// Four CPUs run `each`.
fn on_four(each: impl Fn(u32) + Sync) {
    thread::scope(|scope| {
        for me in 0..4 {
            let each = &each;
            scope.spawn(move || on_cpu(me, || each(me)));
        }
    });
}

#[test]
fn locks_lock_and_cells_initialise_once() {
    static MUTEX: Mutex<u32> = Mutex::new(0);
    static RW_LOCK: RwLock<u32> = RwLock::new(0);
    static ONCE: Once<u32> = Once::new();
    static BARRIER: Barrier = Barrier::new(4);
    static LAZY: Lazy<u32> = Lazy::new(|| RUNS.fetch_add(1, Ordering::Relaxed));
    static RUNS: AtomicU32 = AtomicU32::new(0);
    on_four(|_| {
        for _ in 0..1000 {
            *MUTEX.lock() += 1;
            *RW_LOCK.write() += 1;
            let _ = *RW_LOCK.read();
        }
        ONCE.call_once(|| RUNS.fetch_add(1, Ordering::Relaxed));
        let _ = *LAZY;
        BARRIER.wait();
    });
    assert_eq!((*MUTEX.lock(), *RW_LOCK.read(), RUNS.load(Ordering::Relaxed)), (4000, 4000, 2));
}

#[test]
fn a_long_wait_boosts_and_goes_on_waiting() {
    static MUTEX: Mutex<()> = Mutex::new(());
    static HELD: AtomicBool = AtomicBool::new(false);
    PREEMPTED.store(1 << 50, Ordering::Relaxed);
    let before = boosts();
    thread::scope(|scope| {
        scope.spawn(|| {
            on_cpu(5, || {
                let _guard = MUTEX.lock();
                HELD.store(true, Ordering::Release);
                thread::sleep(Duration::from_millis(50));
            });
        });
        scope.spawn(|| {
            while !HELD.load(Ordering::Acquire) {
                thread::yield_now();
            }
            on_cpu(6, || drop(MUTEX.lock()));
        });
    });
    assert!(boosts() > before || cfg!(not(feature = "stats")), "50 ms of spinning boosted nobody");
    PREEMPTED.store(0, Ordering::Relaxed);
}

fn boosts() -> u64 {
    #[cfg(feature = "stats")]
    return pvlock::stats::snapshot(fake::cpu(6)).boosts;
    #[cfg(not(feature = "stats"))]
    return 0;
}

/// Kernels on `spin` 0.9, or on another crate with such a trait, need these lines and no feature.
mod older_spin {
    use super::*;

    struct Relaxed;

    impl spin09::RelaxStrategy for Relaxed {
        fn relax() {
            Relax::<Fake>::relax();
        }
    }

    static MUTEX: spin09::mutex::Mutex<u32, Relaxed> = spin09::mutex::Mutex::new(0);

    #[test]
    fn works_the_same() {
        on_four(|_| (0..1000).for_each(|_| *MUTEX.lock() += 1));
        assert_eq!(*MUTEX.lock(), 4000);
    }
}
