//! `lock_api` 0.5: the state of a guard behaviour lives in `lock_api`'s guards.
#![cfg(all(feature = "lock-api-05", not(pvlock_loom)))]

mod fake;

use fake::{Fake, IRQS_ON, on_cpu};
use lock_api_05::{Condvar, Mutex, MutexGuard, RwLock, RwLockUpgradableReadGuard, RwLockWriteGuard};
use pvlock::lock::{HaltParker, RawGuarded, RawMutex, RawRwLock, RawSpinLock};
use pvlock::{IrqSave, NoGuard};
use static_assertions::{assert_impl_all, assert_not_impl_any};

type Irq = RawGuarded<RawSpinLock<Fake>, IrqSave>;
type Plain = RawGuarded<RawSpinLock<Fake>, NoGuard>;
type RawRw = RawGuarded<RawRwLock<Fake>, (IrqSave, IrqSave)>;
type Sleeping = RawMutex<HaltParker<Fake>>;

assert_not_impl_any!(MutexGuard<'static, Irq, u8>: Send);
assert_impl_all!(MutexGuard<'static, Plain, u8>: Send);
assert_not_impl_any!(MutexGuard<'static, Sleeping, u8>: Send);

#[test]
fn interrupts_are_off_while_a_guard_lives_and_after_a_failed_attempt_as_before() {
    static LOCK: Mutex<Irq, u32> = Mutex::new(1);
    on_cpu(1, || {
        let guard = LOCK.lock();
        assert!(!IRQS_ON.get() && LOCK.is_locked());
        drop(guard);
        assert!(IRQS_ON.get());
        let guard = LOCK.try_lock().expect("free");
        core::mem::forget(guard);
        IRQS_ON.set(true);
        assert!(LOCK.try_lock().is_none() && IRQS_ON.get());
    });
}

#[test]
fn readers_and_writers_keep_their_states_apart() {
    static LOCK: RwLock<RawRw, u32> = RwLock::new(1);
    on_cpu(2, || {
        let upgradable = LOCK.upgradable_read();
        assert_eq!(*LOCK.read(), 1);
        assert!(!IRQS_ON.get(), "the upgradable reader is still there");
        let upgradable = match RwLockUpgradableReadGuard::try_upgrade(upgradable) {
            Ok(writer) => RwLockWriteGuard::downgrade_to_upgradable(writer),
            Err(upgradable) => upgradable,
        };
        let mut writer = RwLockUpgradableReadGuard::upgrade(upgradable);
        *writer += 1;
        let reader = RwLockWriteGuard::downgrade(writer);
        assert_eq!((*reader, LOCK.try_write().is_none()), (2, true));
        drop(reader);
        assert!(IRQS_ON.get());
        *LOCK.write() += 1;
        assert_eq!(LOCK.try_read().map(|guard| *guard), Some(3));
    });
}

#[test]
fn a_condition_wakes_who_waits_with_its_mutex() {
    static MUTEX: Mutex<Sleeping, bool> = Mutex::new(false);
    static CONDITION: Condvar<pvlock::Condvar<HaltParker<Fake>>> = Condvar::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            on_cpu(3, || {
                let mut ready = MUTEX.lock();
                while !*ready {
                    CONDITION.wait(&mut ready);
                }
            });
        });
        on_cpu(4, || {
            *MUTEX.lock() = true;
            CONDITION.notify_all();
        });
    });
    assert!(!MUTEX.is_locked());
}

/// `interrupt-mutex` from 0.3 on wraps locks of `lock_api` 0.5; ours too. (Its `lock` needs ring 0, so it is only named here.)
#[allow(dead_code)]
static INTERRUPT_MUTEX: interrupt_mutex_05::InterruptMutex<Plain, u32> = interrupt_mutex_05::InterruptMutex::new(0);
