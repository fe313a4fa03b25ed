//! The locks that are compared, under one trait.

use core::hint::spin_loop;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use pvlock::lock::HaltParker;

use crate::guest::PvCpu;

/// A lock to measure or torture.
pub trait Lock: Default + Send + Sync + 'static {
    /// Its name in tables.
    const NAME: &'static str;

    /// Runs `f` with the lock held.
    fn with<R>(&self, f: impl FnOnce() -> R) -> R;

    /// Runs `f`, which only reads, with the lock held; together with other readers, where the lock has that.
    #[inline]
    fn read_with<R>(&self, f: impl FnOnce() -> R) -> R {
        self.with(f)
    }
}

/// Test and test-and-set: the plainest lock, as a base line.
#[derive(Debug, Default)]
pub struct TestAndSet(AtomicBool);

impl Lock for TestAndSet {
    const NAME: &'static str = "tas";

    #[inline]
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        // ORDERING: Acquire, pair PVHOST-TAS (below).
        while self.0.swap(true, Acquire) {
            while self.0.load(Relaxed) {
                spin_loop();
            }
        }
        let result = f();
        // ORDERING: Release, pair PVHOST-TAS (above): the next owner sees this critical section.
        self.0.store(false, Release);
        result
    }
}

/// pvlock's spinlock.
#[derive(Debug, Default)]
pub struct Pvlock(pvlock::SpinMutex<(), PvCpu>);

impl Lock for Pvlock {
    const NAME: &'static str = "pvlock";

    #[inline]
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.lock();
        f()
    }
}

/// `spin::mutex::SpinMutex`: test and test-and-set.
#[derive(Debug, Default)]
pub struct Spin(spin::mutex::SpinMutex<()>);

impl Lock for Spin {
    const NAME: &'static str = "spin";

    #[inline]
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.lock();
        f()
    }
}

/// `spin::mutex::SpinMutex` with pvlock's relax strategy.
#[derive(Debug, Default)]
pub struct SpinRelax(spin::mutex::SpinMutex<(), pvlock::Relax<PvCpu>>);

impl Lock for SpinRelax {
    const NAME: &'static str = "spin-relax";

    #[inline]
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.lock();
        f()
    }
}

/// `spin::mutex::TicketMutex`: first come, first served.
#[derive(Debug, Default)]
pub struct Ticket(spin::mutex::TicketMutex<()>);

impl Lock for Ticket {
    const NAME: &'static str = "ticket";

    #[inline]
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.lock();
        f()
    }
}

/// pvlock's sleeping mutex, in a kernel without tasks: a vCPU sleeps by halting.
#[derive(Debug)]
pub struct PvlockMutex(pvlock::Mutex<(), HaltParker<PvCpu>>);

impl Default for PvlockMutex {
    fn default() -> Self {
        Self(pvlock::Mutex::new(()))
    }
}

impl Lock for PvlockMutex {
    const NAME: &'static str = "pvlock-mutex";

    #[inline]
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.lock();
        f()
    }
}

/// Adapters of reader-writer locks whose `read` and `write` return guards: `Name(lock) = "name in tables";`.
#[macro_export]
macro_rules! reader_writer {
    ($($(#[$doc:meta])* $name:ident($lock:ty) = $text:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name($lock);

        impl $crate::locks::Lock for $name {
            const NAME: &'static str = $text;

            #[inline]
            fn with<R>(&self, f: impl FnOnce() -> R) -> R {
                let _guard = self.0.write();
                f()
            }

            #[inline]
            fn read_with<R>(&self, f: impl FnOnce() -> R) -> R {
                let _guard = self.0.read();
                f()
            }
        }
    )*};
}

reader_writer! {
    /// pvlock's reader-writer lock.
    PvlockRwLock(pvlock::RwLock<(), PvCpu>) = "pvlock-rwlock";
    /// `spin::RwLock`.
    SpinRwLock(spin::RwLock<()>) = "spin-rwlock";
}
