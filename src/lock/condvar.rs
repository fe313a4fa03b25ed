//! [`Condvar`]: sleeping until somebody says that something has changed.

use core::fmt;
use core::mem::ManuallyDrop;

use super::mutex::RawMutex;
use super::mutex::data::MutexGuard;
use super::parker::Parker;
use super::wait_list::{Place, WaitList};
use crate::cpu::Cpu;
use crate::stats::{Counter, count};
use crate::sync::const_fn;

/// A condition variable on the same [`Parker`] as [`Mutex`](super::Mutex); 24 bytes.
///
/// A waiter is in the list of waiters before it releases its mutex. So a notification by somebody who changed the data under the mutex
/// finds it there: none is lost. `wait` returns only when it was notified, but by then the condition may be false again, so it is asked
/// again: [`wait_while`](Self::wait_while) does that.
///
/// Waiters with different mutexes may share one: each gets its own mutex back.
///
/// What the notifier wrote before it notified is seen after `wait`.
pub struct Condvar<P: Parker> {
    list: WaitList<P::Cpu>,
}

impl<P: Parker> Condvar<P> {
    const_fn! {
        /// A condition that nobody waits for.
        #[must_use]
        pub const fn new() -> Self {
            Self { list: WaitList::new() }
        }
    }

    /// Releases the mutex, sleeps until notified, and acquires the mutex again.
    ///
    /// Code without a task ([`Parker::current`] is `None`), or that may not sleep, does not: it releases the mutex, relaxes, acquires it again
    /// and returns, as if notified.
    ///
    /// # Panics
    /// In debug builds, when the mutex is not held by the calling task. Should the kernel's `park` panic, the mutex is not held any more when that
    /// arrives here, and the guard is gone.
    #[track_caller]
    pub fn wait<'a, T: ?Sized>(&self, guard: MutexGuard<'a, T, P>) -> MutexGuard<'a, T, P> {
        let mutex = MutexGuard::mutex(&guard).raw();
        // Should the kernel's `park` panic, the mutex is not held by us: the guard must not release it.
        let guard = ManuallyDrop::new(guard);
        // SAFETY: the guard, which is kept, says that the mutex is held by the caller.
        unsafe { self.release_and_sleep(mutex) };
        // Whether it may be locked here was asked when it was locked before; a panic now would be no better.
        mutex.lock_unasked(P::current());
        ManuallyDrop::into_inner(guard)
    }

    /// As [`wait`](Self::wait), for a mutex without data. Should the kernel's `park` panic, the mutex is held again when that arrives here, unless
    /// waiting for it panics too.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    ///
    /// # Safety
    /// The caller holds `mutex`, and does not touch what it protects meanwhile.
    #[track_caller]
    pub unsafe fn wait_raw(&self, mutex: &RawMutex<P>) {
        // Whoever held the mutex believes so when a panic comes by.
        let held_again = HeldAgain(mutex);
        // SAFETY: held, as the caller says.
        unsafe { self.release_and_sleep(mutex) };
        drop(held_again);
    }

    /// # Safety
    /// The caller holds `mutex`; it does not any more when this returns or panics.
    #[track_caller]
    unsafe fn release_and_sleep(&self, mutex: &RawMutex<P>) {
        match P::current() {
            Some(task) if P::may_sleep() => self.list.queue(task, |queued| {
                // SAFETY: held, as the caller says.
                unsafe { mutex.unlock() };
                while queued.with(|_, place| place != Place::Out) {
                    count(P::Cpu::current(), Counter::Sleep);
                    P::park();
                }
            }),
            _ => {
                // SAFETY: held, as the caller says.
                unsafe { mutex.unlock() };
                P::Cpu::relax();
            }
        }
    }

    /// Waits as long as `condition` is true of the data.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    #[track_caller]
    pub fn wait_while<'a, T: ?Sized>(
        &self,
        mut guard: MutexGuard<'a, T, P>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T, P> {
        while condition(&mut guard) {
            guard = self.wait(guard);
        }
        guard
    }

    /// Wakes the task that has waited longest. Returns whether there was one. May be called from an interrupt handler.
    pub fn notify_one(&self) -> bool {
        // Who is out of the list is to be awake soon: nobody else is woken in its place.
        P::Cpu::preempt_disable();
        let woken = self.list.with(|list| list.take_first());
        if let Some(task) = woken {
            P::unpark(task);
        }
        P::Cpu::preempt_enable();
        woken.is_some()
    }

    /// Wakes all tasks that wait when it is called. Returns how many. May be called from an interrupt handler.
    ///
    /// With others that notify at the same time, some of those woken may have come later.
    pub fn notify_all(&self) -> usize {
        // As many as wait now: those who wait again while this goes on come after them.
        let waiting = self.list.with(|list| list.len());
        (0..waiting).take_while(|_| self.notify_one()).count()
    }

    /// Whether nobody waits and the memory is as in a new one.
    #[cfg(any(test, pvlock_loom))]
    #[doc(hidden)]
    pub fn is_quiet(&self) -> bool {
        self.list.is_quiet()
    }
}

/// Acquires the mutex when it is dropped.
struct HeldAgain<'a, P: Parker>(&'a RawMutex<P>);

impl<P: Parker> Drop for HeldAgain<'_, P> {
    fn drop(&mut self) {
        // Whether it may be locked here was asked when it was locked before; a panic now would leave its holder without it.
        self.0.lock_unasked(P::current());
    }
}

impl<P: Parker> Default for Condvar<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Parker> fmt::Debug for Condvar<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condvar")
    }
}
