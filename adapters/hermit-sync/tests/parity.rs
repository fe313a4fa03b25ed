//! The same code on the published crate and on this one.

use pvlock::{Cpu, CpuId};

enum Platform {}

impl Cpu for Platform {
    type Hypervisor = pvlock::hypervisor::Kvm;
    /// Threads have no number: they wait without a place in the queue.
    fn current() -> Option<CpuId> {
        None
    }
}

pvlock::platform!(Platform);

/// Everything that the published crate offers. What touches the interrupt flag is only compiled: that takes ring 0.
macro_rules! parity {
    ($name:ident, $crate_name:ident) => {
        mod $name {
            use std::sync::Arc;
            use std::thread;

            use $crate_name::{
                CallOnce, ExclusiveCell, InterruptLazy, InterruptOnceCell, InterruptOneShotMutex, InterruptSpinMutex,
                InterruptSpinMutexGuard, InterruptTicketMutex, InterruptTicketMutexGuard, Lazy, OnceCell, OneShotMutex,
                RawInterruptSpinMutex, RawInterruptTicketMutex, RawRwSpinLock, RawSpinMutex, RawTicketMutex,
                RwSpinLock, RwSpinLockReadGuard, RwSpinLockUpgradableReadGuard, RwSpinLockWriteGuard, SpinMutex,
                SpinMutexGuard, TicketMutex, TicketMutexGuard, without_interrupts,
            };

            static TABLE: OnceCell<[u8; 2]> = OnceCell::new();
            static LAZY: Lazy<String> = Lazy::new(|| "made".to_owned());
            static INTERRUPTED: InterruptOnceCell<u8> = InterruptOnceCell::new();
            static INTERRUPT_LAZY: InterruptLazy<u8> = InterruptLazy::new(|| 7);
            static DEVICE: InterruptTicketMutex<u32> = InterruptTicketMutex::new(0);
            static QUEUE: InterruptSpinMutex<u32> = InterruptSpinMutex::new(0);
            static HERE: InterruptOneShotMutex<u32> = InterruptOneShotMutex::new(0);

            /// Compiled, not called.
            #[allow(dead_code, reason = "it needs ring 0")]
            fn in_a_kernel() -> u32 {
                let device: InterruptTicketMutexGuard<'_, u32> = DEVICE.lock();
                let queue: InterruptSpinMutexGuard<'_, u32> = QUEUE.lock();
                let once = INTERRUPTED.get_or_init(|| 3);
                without_interrupts(|| *device + *queue + *HERE.lock() + u32::from(*once + *INTERRUPT_LAZY))
            }

            /// The raw types are types of their own.
            trait Named {
                const NAME: &'static str;
            }
            impl Named for RawSpinMutex {
                const NAME: &'static str = "spin";
            }
            impl Named for RawTicketMutex {
                const NAME: &'static str = "ticket";
            }
            impl Named for RawRwSpinLock {
                const NAME: &'static str = "rw";
            }
            impl Named for RawInterruptSpinMutex {
                const NAME: &'static str = "interrupt spin";
            }
            impl Named for RawInterruptTicketMutex {
                const NAME: &'static str = "interrupt ticket";
            }

            #[test]
            fn mutexes_exclude() {
                let shared = Arc::new((SpinMutex::new(0), TicketMutex::new(0)));
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        let shared = shared.clone();
                        thread::spawn(move || {
                            for _ in 0..5000 {
                                let mut spin: SpinMutexGuard<'_, i32> = shared.0.lock();
                                *spin += 1;
                                drop(spin);
                                let mut ticket: TicketMutexGuard<'_, i32> = shared.1.lock();
                                *ticket += 1;
                                TicketMutexGuard::unlock_fair(ticket);
                            }
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                assert_eq!((*shared.0.lock(), *shared.1.lock()), (20_000, 20_000));
                let held = shared.0.lock();
                assert!(shared.0.is_locked() && shared.0.try_lock().is_none());
                drop(held);
            }

            #[test]
            fn readers_share_and_may_become_writers() {
                let lock = RwSpinLock::new(1);
                let (one, two): (RwSpinLockReadGuard<'_, i32>, _) = (lock.read(), lock.read());
                assert!(*one + *two == 2 && lock.try_write().is_none());
                drop((one, two));
                let reader: RwSpinLockUpgradableReadGuard<'_, i32> = lock.upgradable_read();
                let mut writer: RwSpinLockWriteGuard<'_, i32> = RwSpinLockUpgradableReadGuard::upgrade(reader);
                *writer = 5;
                assert!(lock.try_read().is_none());
                let reader = RwSpinLockWriteGuard::downgrade(writer);
                assert_eq!(*reader + *lock.read(), 10);
            }

            #[test]
            fn cells_are_made_once() {
                assert_eq!(TABLE.get_or_init(|| [1, 2]), &[1, 2]);
                assert!(TABLE.set([3, 4]).is_err());
                assert_eq!(&**LAZY, "made");
                let cell = ExclusiveCell::new(7);
                assert_eq!(cell.take(), Some(&mut 7));
                assert_eq!(cell.take(), None);
                let once = CallOnce::new();
                assert!(once.call_once().is_ok() && once.call_once().is_err());
                assert_eq!(*OneShotMutex::new(3).lock(), 3);
                assert_eq!(RawSpinMutex::NAME.len() + RawTicketMutex::NAME.len() + RawRwSpinLock::NAME.len(), 12);
            }
        }
    };
}

parity!(on_the_published_crate, published);
parity!(on_this_one, hermit_sync);
