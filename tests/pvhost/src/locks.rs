//! The locks that are compared, under one trait.

use core::hint::spin_loop;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::guest::PvCpu;

/// A lock to measure or torture.
pub trait Lock: Default + Send + Sync + 'static {
    /// Its name in tables.
    const NAME: &'static str;

    /// Runs `f` with the lock held.
    fn with<R>(&self, f: impl FnOnce() -> R) -> R;
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
