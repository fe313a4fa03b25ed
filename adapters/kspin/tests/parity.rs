//! The same code on the published crate and on this one.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pvlock::{Cpu, CpuId};

enum Platform {}

thread_local! {
    static IRQS: Cell<bool> = const { Cell::new(true) };
}

impl Cpu for Platform {
    type Hypervisor = pvlock::hypervisor::Kvm;
    fn current() -> Option<CpuId> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static ME: usize = NEXT.fetch_add(1, Relaxed);
        }
        CpuId::new(ME.with(|&me| me) as u32)
    }
    fn irqs_enabled() -> bool {
        IRQS.get()
    }
    fn irqs_disable() {
        IRQS.set(false);
    }
    fn irqs_enable() {
        IRQS.set(true);
    }
}

pvlock::platform!(Platform);

/// Everything that the published crate offers, used as its documentation uses it.
macro_rules! parity {
    ($name:ident, $crate_name:ident) => {
        mod $name {
            use std::sync::Arc;
            use std::thread;

            use kernel_guard::{BaseGuard, NoOp};
            use $crate_name::{
                BaseSpinLock, BaseSpinLockGuard, SpinNoIrq, SpinNoIrqGuard, SpinNoPreempt, SpinNoPreemptGuard, SpinRaw,
                SpinRawGuard,
            };

            static CONSOLE: SpinNoIrq<Vec<u8>> = SpinNoIrq::new(Vec::new());

            /// A kernel's own guard, counted.
            struct Counted;
            static ENTERED: super::AtomicUsize = super::AtomicUsize::new(0);

            impl BaseGuard for Counted {
                type State = u8;
                fn acquire() -> u8 {
                    ENTERED.fetch_add(1, super::Relaxed);
                    7
                }
                fn release(state: u8) {
                    assert_eq!(state, 7, "the state that `acquire` returned");
                    ENTERED.fetch_sub(1, super::Relaxed);
                }
            }

            fn print(mut console: SpinNoIrqGuard<'_, Vec<u8>>, text: &str) {
                console.extend_from_slice(text.as_bytes());
            }

            fn sum<G: BaseGuard>(numbers: &BaseSpinLockGuard<'_, G, [u32]>) -> u32 {
                numbers.iter().sum()
            }

            #[test]
            fn the_three_kinds_lock_and_release() {
                let raw = SpinRaw::new(1);
                let guard: SpinRawGuard<'_, i32> = raw.lock();
                assert!(raw.is_locked() && raw.try_lock().is_none());
                drop(guard);
                assert!(!raw.is_locked());
                let tasks = SpinNoPreempt::new(vec![1]);
                let mut guard: SpinNoPreemptGuard<'_, Vec<i32>> = tasks.lock();
                guard.push(2);
                assert_eq!(format!("{guard:?}"), "[1, 2]");
                drop(guard);
                assert_eq!(tasks.into_inner(), [1, 2]);
                print(CONSOLE.lock(), "booting");
                assert_eq!(CONSOLE.lock().len(), 7);
            }

            #[test]
            fn the_rest_of_the_api_is_there() {
                let mut lock: BaseSpinLock<NoOp, u32> = BaseSpinLock::default();
                *lock.get_mut() += 3;
                assert!(format!("{lock:?}").contains('3'));
                core::mem::forget(lock.lock());
                assert!(!format!("{lock:?}").contains('3'), "a held lock shows no data");
                // SAFETY: the holder is forgotten.
                unsafe { lock.force_unlock() };
                assert_eq!(*lock.try_lock().unwrap(), 3);
                let unsized_lock: &BaseSpinLock<NoOp, [u32]> = &BaseSpinLock::<NoOp, _>::new([1, 2, 3]);
                assert_eq!(sum(&unsized_lock.lock()), 6);
            }

            #[test]
            fn guards_of_the_kernel_are_entered_first_and_left_last() {
                let lock: BaseSpinLock<Counted, ()> = BaseSpinLock::new(());
                let guard = lock.lock();
                assert_eq!(ENTERED.load(super::Relaxed), 1);
                assert!(lock.try_lock().is_none());
                assert_eq!(ENTERED.load(super::Relaxed), 1, "an attempt that fails leaves it again");
                drop(guard);
                assert_eq!(ENTERED.load(super::Relaxed), 0);
            }

            #[test]
            fn one_holder_at_a_time() {
                let shared = Arc::new(SpinNoIrq::new(0));
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        let shared = shared.clone();
                        thread::spawn(move || (0..10_000).for_each(|_| *shared.lock() += 1))
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                assert_eq!(*shared.lock(), 40_000);
            }
        }
    };
}

parity!(on_the_published_crate, published);
parity!(on_this_one, kspin);
