//! The sleeping mutex and the condition variable among threads as tasks, and misuse that debug builds report.
#![cfg(not(pvlock_loom))]

mod fake;

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Mutex as StdMutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, Thread};

use fake::{Fake, IRQS_ON, ME, cpu, on_cpu};
use pvlock::lock::{HaltParker, OsqLock, Parker, RawMutex, TaskId, Whereabouts};
use pvlock::{Condvar, Mutex, MutexGuard};
use static_assertions::{assert_impl_all, assert_not_impl_any};

/// Threads are tasks; each plays a CPU of its own.
enum Threads {}

thread_local! {
    static TASK: Cell<Option<TaskId>> = const { Cell::new(None) };
    static PARK_PANICS: Cell<bool> = const { Cell::new(false) };
    static WAKING_PANICS: Cell<bool> = const { Cell::new(false) };
}
/// Parks so far on each CPU.
static SLEEPS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static TASKS: StdMutex<Option<HashMap<u64, Thread>>> = StdMutex::new(None);
static NUMBERS: AtomicU64 = AtomicU64::new(1);

impl Parker for Threads {
    type Cpu = Fake;
    fn current() -> Option<TaskId> {
        TASK.get()
    }
    fn park() {
        assert!(!PARK_PANICS.get(), "as told");
        SLEEPS[ME.get().unwrap().index()].fetch_add(1, Relaxed);
        thread::park();
        assert!(!WAKING_PANICS.get(), "as told");
    }
    fn unpark(task: TaskId) {
        if let Some(thread) = TASKS.lock().unwrap().get_or_insert_default().get(&task.get()) {
            thread.unpark();
        }
    }
    fn whereabouts(task: TaskId) -> Whereabouts {
        // Every other one is said not to run, so that both ways of waiting are taken.
        if task.get().is_multiple_of(2) { Whereabouts::Off } else { Whereabouts::Unknown }
    }
}

fn as_task<R>(cpu_index: u32, f: impl FnOnce() -> R) -> R {
    let number = NUMBERS.fetch_add(1, Relaxed);
    TASKS.lock().unwrap().get_or_insert_default().insert(number, thread::current());
    TASK.set(TaskId::new(number));
    let result = on_cpu(cpu_index, f);
    TASKS.lock().unwrap().get_or_insert_default().remove(&number);
    TASK.set(None);
    result
}

assert_impl_all!(Mutex<Cell<u8>, Threads>: Send, Sync);
assert_not_impl_any!(Mutex<std::rc::Rc<u8>, Threads>: Send, Sync);
assert_impl_all!(MutexGuard<'static, u8, Threads>: Sync);
assert_not_impl_any!(MutexGuard<'static, u8, Threads>: Send);
assert_not_impl_any!(MutexGuard<'static, Cell<u8>, Threads>: Sync);
static_assertions::assert_eq_size!(OsqLock<Fake>, u16);
static_assertions::const_assert!(size_of::<RawMutex<Threads>>() <= 40 && size_of::<Condvar<Threads>>() <= 24);

fn count_together<P: Parker>(run: impl Fn(u32, &(dyn Fn() + Sync)) + Sync) {
    const TASKS: u32 = 6;
    const ROUNDS: u64 = 3000;
    let data = Mutex::<[u64; 2], P>::new([0; 2]);
    thread::scope(|scope| {
        for me in 0..TASKS {
            let (data, run) = (&data, &run);
            scope.spawn(move || {
                run(me, &|| {
                    for _ in 0..ROUNDS {
                        let mut data = data.lock();
                        data[0] += 1;
                        std::hint::spin_loop();
                        data[1] += 1;
                        assert_eq!(data[0], data[1]);
                    }
                });
            });
        }
    });
    assert!(!data.is_locked());
    assert_eq!(data.into_inner(), [u64::from(TASKS) * ROUNDS; 2]);
}

#[test]
fn tasks_exclude_each_other() {
    count_together::<Threads>(|me, work| as_task(me + 10, work));
}

#[test]
fn cpus_without_tasks_exclude_each_other() {
    count_together::<HaltParker<Fake>>(|me, work| on_cpu(me + 20, work));
}

#[test]
fn code_without_a_task_and_tasks_exclude_each_other() {
    count_together::<Threads>(|me, work| if me % 2 == 0 { as_task(me + 30, work) } else { on_cpu(me + 30, work) });
}

#[test]
fn a_bounded_queue_delivers_everything_once() {
    const ITEMS: u64 = 4000;
    struct Channel {
        items: Mutex<VecDeque<u64>, Threads>,
        not_full: Condvar<Threads>,
        not_empty: Condvar<Threads>,
    }
    let channel = Channel { items: Mutex::new(VecDeque::new()), not_full: Condvar::new(), not_empty: Condvar::new() };
    let sums: Vec<u64> = thread::scope(|scope| {
        for producer in 0..2 {
            let channel = &channel;
            scope.spawn(move || {
                as_task(40 + producer, || {
                    for item in 0..ITEMS {
                        let mut items = channel.not_full.wait_while(channel.items.lock(), |items| items.len() >= 3);
                        items.push_back(item);
                        drop(items);
                        channel.not_empty.notify_one();
                    }
                });
            });
        }
        let consumers: Vec<_> = (0..2)
            .map(|consumer| {
                let channel = &channel;
                scope.spawn(move || {
                    as_task(42 + consumer, || {
                        let mut sum = 0;
                        for _ in 0..ITEMS {
                            let mut items =
                                channel.not_empty.wait_while(channel.items.lock(), |items| items.is_empty());
                            sum += items.pop_front().unwrap();
                            drop(items);
                            channel.not_full.notify_one();
                        }
                        sum
                    })
                })
            })
            .collect();
        consumers.into_iter().map(|consumer| consumer.join().unwrap()).collect()
    });
    assert_eq!(sums.iter().sum::<u64>(), ITEMS * (ITEMS - 1));
}

#[test]
fn everybody_is_notified_and_nobody_else() {
    static MUTEX: Mutex<bool, Threads> = Mutex::new(false);
    static CONDITION: Condvar<Threads> = Condvar::new();
    assert!(!CONDITION.notify_one() && CONDITION.notify_all() == 0);
    thread::scope(|scope| {
        for waiter in 0..3 {
            scope.spawn(move || {
                as_task(50 + waiter, || {
                    let go = CONDITION.wait_while(MUTEX.lock(), |go| !*go);
                    assert!(*go);
                });
            });
        }
        as_task(53, || *MUTEX.lock() = true);
        let mut woken = 0;
        while woken < 1 {
            woken += CONDITION.notify_all();
            if !MUTEX.is_locked() && woken == 0 {
                // Those who came late saw the condition and did not wait.
                break;
            }
        }
        CONDITION.notify_all();
    });
    assert!(!MUTEX.is_locked());
}

#[test]
fn owner_and_state_can_be_asked() {
    let mut mutex: Mutex<u32, Threads> = Mutex::from(4);
    *mutex.get_mut() += 1;
    as_task(60, || {
        assert_eq!((mutex.owner(), format!("{mutex:?}")), (None, "Mutex { data: 5 }".to_owned()));
        let guard = mutex.lock();
        assert_eq!(mutex.owner(), TASK.get());
        assert!(mutex.try_lock().is_none() && mutex.is_locked());
        assert_eq!(format!("{guard}"), "5");
    });
    // Without a task the owner is not known, but it is an owner.
    ME.set(Some(cpu(61)));
    let guard = mutex.lock();
    assert_eq!((mutex.owner(), mutex.is_locked()), (None, true));
    drop(guard);
}

#[test]
fn a_fair_unlock_gives_the_mutex_to_who_has_slept_longest() {
    static MUTEX: Mutex<Vec<u32>, Threads> = Mutex::new(Vec::new());
    as_task(44, || {
        thread::scope(|scope| {
            let guard = MUTEX.lock();
            for sleeper in 45..48 {
                scope.spawn(move || {
                    as_task(sleeper, || {
                        let mut order = MUTEX.lock();
                        order.push(sleeper);
                        MutexGuard::unlock_fair(order);
                    });
                });
                while SLEEPS[sleeper as usize].load(Relaxed) == 0 {
                    thread::yield_now();
                }
            }
            MutexGuard::unlock_fair(guard);
            assert_ne!(MUTEX.owner(), TASK.get());
            assert!(!MUTEX.lock().is_empty(), "passed those who slept");
        });
        assert_eq!(*MUTEX.lock(), [45, 46, 47]);
    });
}

#[test]
fn a_panic_in_the_kernels_park_costs_the_next_sleeper_no_wake_up() {
    let sleeps = |cpu: usize| SLEEPS[cpu].load(Relaxed);
    for _ in 0..20 {
        let mutex = Mutex::<u32, Threads>::new(0);
        thread::scope(|scope| {
            as_task(58, || {
                let held = mutex.lock();
                let before = (sleeps(61), sleeps(59));
                let first = scope.spawn(|| {
                    as_task(61, || {
                        WAKING_PANICS.set(true);
                        let waits = std::panic::AssertUnwindSafe(|| drop(mutex.lock()));
                        assert!(std::panic::catch_unwind(waits).is_err());
                    });
                });
                while sleeps(61) == before.0 {
                    thread::yield_now();
                }
                scope.spawn(|| as_task(59, || *mutex.lock() += 1));
                while sleeps(59) == before.1 {
                    thread::yield_now();
                }
                // Marks the first as awake, which panics.
                drop(held);
                while !first.is_finished() {
                    thread::yield_now();
                }
                *mutex.lock() += 1;
            });
        });
        assert_eq!(mutex.into_inner(), 2);
    }
}

#[test]
fn a_panic_in_the_kernels_park_leaves_the_mutex_to_its_owner() {
    let mutex = Mutex::<u32, Threads>::new(0);
    let condition = Condvar::new();
    as_task(49, || {
        PARK_PANICS.set(true);
        let wait = std::panic::AssertUnwindSafe(|| drop(condition.wait(mutex.lock())));
        assert!(std::panic::catch_unwind(wait).is_err());
        assert!(!mutex.is_locked(), "released once, before the park");
        assert!(!condition.notify_one(), "nobody is in the list any more");
        *mutex.lock() += 1;
    });
}

#[test]
fn lock_api_takes_it() {
    static LOCK: lock_api::Mutex<RawMutex<Threads>, u32> = lock_api::Mutex::new(3);
    as_task(62, || *LOCK.lock() += 1);
    as_task(62, || assert_eq!(*LOCK.try_lock().unwrap(), 4));
}

#[cfg(debug_assertions)]
mod misuse {
    use super::*;

    #[test]
    #[should_panic(expected = "that it holds already (owner: task")]
    fn locking_again_is_reported() {
        let mutex: Mutex<u32, Threads> = Mutex::new(0);
        as_task(63, || {
            let _guard = mutex.lock();
            let _again = mutex.lock();
        });
    }

    #[test]
    #[should_panic(expected = "might make it sleep, with interrupts off or inside a spinlock")]
    fn locking_with_interrupts_off_is_reported() {
        let mutex: Mutex<u32, Threads> = Mutex::new(0);
        as_task(54, || {
            IRQS_ON.set(false);
            let _guard = mutex.lock();
        });
    }

    #[test]
    #[should_panic(expected = "that is free: unlocked twice, initialised again while held, or overwritten")]
    fn unlocking_a_free_mutex_is_reported() {
        let mutex: RawMutex<Threads> = RawMutex::new();
        // SAFETY: wrong, nobody holds it: that is what is tested.
        as_task(55, || unsafe { mutex.unlock() });
    }

    #[test]
    #[should_panic(expected = "on CPU 57 unlocks the mutex at 0x")]
    fn unlocking_what_another_task_holds_is_reported() {
        let mutex: RawMutex<Threads> = RawMutex::new();
        as_task(56, || mutex.lock());
        // SAFETY: wrong, another task holds it: that is what is tested.
        as_task(57, || unsafe { mutex.unlock() });
    }
}
