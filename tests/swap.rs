//! One `use` line: the same kernel code on `spin`, `hermit-sync` or bare `lock_api`, and on pvlock in their place.
#![cfg(not(pvlock_loom))]

mod fake;

use fake::Fake;
use pvlock::hypervisor::Kvm;
use pvlock::{Cpu, CpuId};

/// The platform that the kernel names once. In user space the interrupt flag is a fake.
enum Platform {}

impl Cpu for Platform {
    type Hypervisor = Kvm;
    fn current() -> Option<CpuId> {
        Fake::current()
    }
    fn irqs_enabled() -> bool {
        Fake::irqs_enabled()
    }
    fn irqs_disable() {
        Fake::irqs_disable();
    }
    fn irqs_enable() {
        Fake::irqs_enable();
    }
}

pvlock::platform!(Platform);

/// A kernel on `spin`'s names.
macro_rules! kernel_on_spin {
    ($name:ident, $lock_use:item) => {
        mod $name {
            $lock_use

            static CONSOLE: Mutex<Vec<u8>> = Mutex::new(Vec::new());
            static MOUNTS: RwLock<Option<&'static str>> = RwLock::new(None);

            struct Device {
                queue: Mutex<[u32; 4]>,
            }

            fn print(guard: &mut MutexGuard<'_, Vec<u8>>, text: &str) {
                guard.extend_from_slice(text.as_bytes());
            }

            #[test]
            fn runs() {
                crate::fake::on_cpu(5, || {
                    let device = Device { queue: Mutex::new([0; 4]) };
                    device.queue.lock()[2] = 7;
                    assert!(device.queue.try_lock().is_some_and(|queue| queue[2] == 7));
                    print(&mut CONSOLE.lock(), "booting");
                    let held = CONSOLE.lock();
                    assert!(CONSOLE.is_locked() && CONSOLE.try_lock().is_none());
                    core::mem::forget(held);
                    // SAFETY: the holder is forgotten: a panic handler that takes the console by force.
                    unsafe { CONSOLE.force_unlock() };
                    assert_eq!(CONSOLE.lock().len(), 7);

                    *MOUNTS.write() = Some("root");
                    let readers = (MOUNTS.read(), MOUNTS.read());
                    assert_eq!(*readers.0, *readers.1);
                    assert!(MOUNTS.try_write().is_none() && MOUNTS.reader_count() == 2);
                    drop(readers);
                    assert_eq!(Mutex::new(3).into_inner() + *Mutex::new(4).get_mut(), 7);
                });
            }
        }
    };
}

kernel_on_spin!(on_spin, use spin::{Mutex, MutexGuard, RwLock};);
kernel_on_spin!(on_pvlock_for_spin, use pvlock::linked::{Mutex, MutexGuard, RwLock};);

/// A kernel that is generic over `lock_api`, as Hermit's and its dependencies' locks are.
macro_rules! kernel_on_lock_api {
    ($name:ident, $lock_use:item) => {
        mod $name {
            $lock_use
            use lock_api::{Mutex, RwLock, RwLockUpgradableReadGuard, RwLockWriteGuard};

            static TASKS: Mutex<RawMutex, u32> = Mutex::new(1);
            static TABLE: RwLock<RawRwLock, u32> = RwLock::new(1);
            static ONCE: generic_once_cell::OnceCell<RawMutex, u32> = generic_once_cell::OnceCell::new();
            static LAZY: generic_once_cell::Lazy<RawMutex, u32> = generic_once_cell::Lazy::new(|| 9);

            /// A heap, as the kernel's global allocator has it.
            static HEAP: talc::TalcLock<RawMutex, talc::source::Manual> =
                talc::TalcLock::new(talc::source::Manual);

            #[test]
            fn runs() {
                crate::fake::on_cpu(6, || {
                    *TASKS.lock() += 1;
                    assert_eq!(*TASKS.lock(), 2);
                    assert!(TASKS.try_lock().is_some());
                    let upgradable = TABLE.upgradable_read();
                    assert_eq!(*TABLE.read(), *upgradable);
                    let mut writer = RwLockUpgradableReadGuard::upgrade(upgradable);
                    *writer += 1;
                    assert_eq!(*RwLockWriteGuard::downgrade(writer), 2);
                    assert_eq!((*ONCE.get_or_init(|| 8), *LAZY), (8, 9));
                    drop(HEAP.lock());
                });
            }
        }
    };
}

kernel_on_lock_api!(on_hermit_sync, use hermit_sync::{RawRwSpinLock as RawRwLock, RawSpinMutex as RawMutex};);
kernel_on_lock_api!(on_pvlock_for_hermit_sync, use pvlock::linked::{RawMutex, RawRwLock};);

/// `interrupt-mutex`, which Hermit wraps its locks in, takes ours. (Its `lock` needs ring 0, so it is only named here.)
#[allow(dead_code)]
static INTERRUPT_MUTEX: interrupt_mutex::InterruptMutex<pvlock::linked::RawMutex, u32> =
    interrupt_mutex::InterruptMutex::new(0);
