//! The reader-writer lock among threads: torn data, upgrades, guards, and misuse that debug builds report.
#![cfg(not(pvlock_loom))]

mod fake;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use fake::{Fake, IRQS_ON, cpu, on_cpu};
use pvlock::lock::RawRwLock;
use pvlock::{IrqSave, RwLock, RwLockReadGuard, RwLockUpgradableGuard, RwLockWriteGuard};
use static_assertions::{assert_impl_all, assert_not_impl_any};

type Plain = RwLock<u32, Fake>;

static_assertions::assert_eq_size!(RawRwLock<Fake>, [u64; 2]);
assert_impl_all!(RwLock<std::cell::Cell<u8>, Fake>: Send);
assert_not_impl_any!(RwLock<std::cell::Cell<u8>, Fake>: Sync);
assert_not_impl_any!(RwLock<std::rc::Rc<u8>, Fake>: Send, Sync);
assert_impl_all!(RwLockReadGuard<'static, u32, Fake, pvlock::NoGuard, pvlock::NoGuard>: Send, Sync);
assert_not_impl_any!(RwLockReadGuard<'static, u32, Fake, IrqSave, IrqSave>: Send);
assert_not_impl_any!(RwLockWriteGuard<'static, u32, Fake, pvlock::NoGuard, IrqSave>: Send);

#[test]
fn readers_never_see_half_a_write() {
    const CPUS: u32 = 4;
    const ROUNDS: u32 = 20_000;
    static LOCK: RwLock<[u64; 2], Fake> = RwLock::new([0; 2]);
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let work = |me: u32| {
        on_cpu(me, || {
            for i in 0..ROUNDS {
                match (i + me) % 8 {
                    0 => {
                        let mut data = LOCK.write();
                        data[0] += 1;
                        data[1] += 1;
                        let data = RwLockWriteGuard::downgrade(data);
                        assert_eq!(data[0], data[1]);
                        WRITES.fetch_add(1, Relaxed);
                    }
                    1 => {
                        let data = LOCK.upgradable_read();
                        let before = data[0];
                        let mut data = RwLockUpgradableGuard::upgrade(data);
                        assert_eq!(data[0], before, "a writer came in between");
                        data[0] += 1;
                        data[1] += 1;
                        WRITES.fetch_add(1, Relaxed);
                    }
                    _ => {
                        let data = LOCK.read();
                        assert_eq!(data[0], data[1]);
                        let again = LOCK.read_recursive();
                        assert_eq!(again[0], data[1]);
                    }
                }
            }
        });
    };
    thread::scope(|scope| {
        for me in 0..CPUS {
            scope.spawn(move || work(me));
        }
    });
    assert_eq!(*LOCK.read(), [WRITES.load(Relaxed); 2]);
    assert!(!LOCK.is_locked());
}

#[test]
fn try_forms_say_no_and_leave_everything_as_it_was() {
    let lock: RwLock<u32, Fake, IrqSave> = RwLock::new(1);
    on_cpu(1, || {
        let reader = lock.try_read().expect("free");
        assert!(lock.try_write().is_none() && !IRQS_ON.get());
        let other = lock.try_read().expect("shared");
        assert_eq!(lock.reader_count(), 2);
        drop(reader);
        drop(other);
        // Out of order: the first guard's state wins when it goes first.
        assert!(IRQS_ON.get());
        let writer = lock.try_write().expect("free");
        assert!(lock.try_read().is_none() && lock.try_upgradable_read().is_none());
        assert_eq!(lock.writer(), Some(cpu(1)));
        drop(writer);
        let upgradable = lock.try_upgradable_read().expect("free");
        assert!(lock.try_upgradable_read().is_none() && lock.try_write().is_none());
        let reader = lock.try_read().expect("shared");
        let upgradable = RwLockUpgradableGuard::try_upgrade(upgradable).expect_err("there is a reader");
        drop(reader);
        let mut writer = RwLockUpgradableGuard::try_upgrade(upgradable).expect("alone");
        *writer += 1;
        let reader = RwLockUpgradableGuard::downgrade(RwLockWriteGuard::downgrade_to_upgradable(writer));
        assert_eq!(*reader, 2);
    });
    assert!(!lock.is_locked());
    assert_eq!(lock.into_inner(), 2);
}

#[test]
fn the_state_of_a_failed_attempt_is_left() {
    let lock: RwLock<u32, Fake, pvlock::NoGuard, IrqSave> = RwLock::new(1);
    on_cpu(2, || {
        let reader = lock.read();
        assert!(IRQS_ON.get() && lock.try_write().is_none() && IRQS_ON.get());
        drop(reader);
        let writer = lock.write();
        assert!(!IRQS_ON.get());
        drop(writer);
    });
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "CPU 3 locks the rwlock at 0x")]
fn a_writer_that_locks_again_is_reported() {
    let lock: RwLock<u32, Fake, IrqSave> = RwLock::new(1);
    on_cpu(3, || {
        let _writer = lock.write();
        let _reader = lock.read();
    });
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "ends the hold of the rwlock at 0x")]
fn unlocking_what_nobody_writes_is_reported() {
    let lock: RawRwLock<Fake> = RawRwLock::new();
    on_cpu(3, || {
        lock.read();
        // SAFETY: wrong, there is no writer: that is what is tested.
        unsafe { lock.unlock_write() };
    });
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "that nobody has for reading")]
fn unlocking_what_nobody_reads_is_reported() {
    let lock: RawRwLock<Fake> = RawRwLock::new();
    // SAFETY: wrong, there is no reader: that is what is tested.
    on_cpu(3, || unsafe { lock.unlock_read() });
}

#[test]
fn the_plain_forms_work_and_say_what_is_in_them() {
    let mut lock = Plain::from(7);
    *lock.get_mut() += 1;
    on_cpu(0, || {
        assert_eq!(format!("{lock:?}"), "RwLock { data: 8 }");
        let writer = lock.write();
        assert_eq!(format!("{lock:?}"), "RwLock { data: <locked>, writer: Some(CpuId(0)) }");
        assert_eq!(format!("{writer} {writer:?}"), "8 8");
    });
}

#[test]
fn lock_api_takes_it() {
    type Api = lock_api::RwLock<RawRwLock<Fake>, u32>;
    static LOCK: Api = Api::new(3);
    on_cpu(0, || {
        let upgradable = LOCK.upgradable_read();
        assert_eq!(*LOCK.read() + *LOCK.read_recursive(), 6);
        let writer = lock_api::RwLockUpgradableReadGuard::upgrade(upgradable);
        assert!(LOCK.is_locked_exclusive());
        let reader = lock_api::RwLockWriteGuard::downgrade(writer);
        assert_eq!(*reader, 3);
    });
}
