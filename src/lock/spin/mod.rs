//! [`RawSpinLock`]: the queued paravirtual spinlock without data. Inline fast paths; the rest is in `queue`.

pub(crate) mod mutex;
mod queue;
mod word;

use core::fmt;
use core::marker::PhantomData;

use super::misuse;
use crate::cpu::{Cpu, CpuId};
use crate::hypervisor::Hypervisor;
use crate::stats::{Counter, count};
use crate::sync::{const_fn, spin_loop};
use word::{OwnerId, Snapshot, Word};

/// A queued spinlock of 8 bytes that stops spinning on preempted owners. It holds no data: see [`SpinMutex`](super::SpinMutex).
///
/// - Uncontended, `lock` is one compare-exchange and `unlock` one plain store (one swap where waiters may be halted).
/// - Waiters queue, on per-CPU nodes. A waiter whose owner or predecessor is preempted yields to it, at last halts until it is kicked.
/// - A lock that is free may be taken past the queue while its head does not run; the head is passed for about 1000 rounds of its own
///   spinning at most, and not at all once it has given its CPU away (one stale pass per other CPU excepted).
/// - The owner's CPU is in the lock, as a hint: [`owner`](Self::owner).
/// - Nothing is allocated or set up: the lock works before the heap, inside the allocator, and on a CPU that does not know its number.
///
/// `lock` is Acquire and `unlock` is Release: what one holder wrote before unlocking, the next one sees.
///
/// It may be unlocked by another CPU or task than locked it. Waiting does not change the interrupt flag, except that a waiter which
/// came with interrupts on may halt with them on.
#[repr(transparent)]
pub struct RawSpinLock<C> {
    word: Word,
    // `fn() -> C`: no `C` is held, so `Send`, `Sync` and the layout do not depend on it.
    _cpu: PhantomData<fn() -> C>,
}

impl<C: Cpu> RawSpinLock<C> {
    const_fn! {
        /// A free lock.
        #[must_use]
        pub const fn new() -> Self {
            Self { word: Word::new(), _cpu: PhantomData }
        }
    }

    /// Acquires the lock, waiting as long as it takes.
    #[inline]
    pub fn lock(&self) {
        let me = C::current();
        if !self.attempt(me) {
            queue::lock_slow::<C>(&self.word, me, None);
        }
    }

    /// Acquires the lock and calls `poll` at least once per round of waiting, besides [`Cpu::relax`].
    ///
    /// For a kernel whose waiters must answer requests (TLB shootdowns) that need the caller's context. Such a waiter spins and yields
    /// but never halts. `poll` must not take a lock whose holder may wait for this one.
    #[inline]
    pub fn lock_polling(&self, mut poll: impl FnMut()) {
        let me = C::current();
        if !self.attempt(me) {
            queue::lock_slow::<C>(&self.word, me, Some(&mut poll));
        }
    }

    /// Acquires the lock if it is neither held nor promised to a waiter; never fails for another reason.
    #[inline]
    #[must_use]
    pub fn try_lock(&self) -> bool {
        self.attempt(C::current())
    }

    /// As [`try_lock`](Self::try_lock), and may also fail for no reason: for callers that loop.
    #[inline]
    #[must_use]
    pub fn try_lock_weak(&self) -> bool {
        !self.word.is_reserved() && self.word.claim_weak_acquire(OwnerId::new(C::current()))
    }

    /// Tries for `rounds` looks at the lock, a pause (40 to 140 cycles on silicon) and [`Cpu::relax`] between them.
    ///
    /// It never queues, yields or halts, so it takes about `rounds * 0.05` µs of *this vCPU's running* time.
    #[must_use]
    pub fn try_lock_for(&self, rounds: u32) -> bool {
        let me = C::current();
        for _ in 0..rounds {
            if self.attempt(me) {
                return true;
            }
            C::relax();
            spin_loop();
        }
        false
    }

    #[inline(always)]
    fn attempt(&self, me: Option<CpuId>) -> bool {
        !self.word.is_reserved() && self.word.claim_acquire(OwnerId::new(me))
    }

    /// Releases the lock, and wakes the first waiter if it is halted. The lock is not touched after the release: its memory may be gone.
    ///
    /// # Panics
    /// In debug builds, when the lock is free or its word is none that a held lock has: it was unlocked twice, initialised again while
    /// held, or its memory was overwritten.
    ///
    /// # Safety
    /// The lock is held, and the caller is entitled to end that hold.
    #[inline]
    pub unsafe fn unlock(&self) {
        if cfg!(debug_assertions) && !self.word.snapshot().is_sound() {
            misuse::report::<C>("unlocks", "spinlock", self as *const Self as usize, format_args!("{NOT_HELD}"));
        }
        if C::Hypervisor::can_halt() {
            let released = self.word.release_halted();
            if released.has_halted() {
                kick::<C>(released);
            }
        } else {
            self.word.release();
        }
    }

    /// Releases the lock on behalf of a holder that will not: for a panic handler that needs the console.
    ///
    /// # Safety
    /// The lock is held, and its holder never again touches what it protects, nor unlocks it.
    pub unsafe fn force_unlock(&self) {
        // SAFETY: the caller ends the hold on the holder's behalf.
        unsafe { self.unlock() }
    }

    /// Whether somebody holds the lock. A hint, and without ordering.
    #[inline]
    #[must_use]
    pub fn is_locked(&self) -> bool {
        !self.word.snapshot().is_free()
    }

    /// Whether the CPU that runs this took the lock and holds it. `false` when the CPU is not known.
    ///
    /// Under a guard that allows preemption the answer may concern another task of this CPU.
    #[inline]
    #[must_use]
    pub fn is_locked_by_me(&self) -> bool {
        self.word.snapshot().owner().is_some_and(|owner| C::current() == Some(owner))
    }

    /// The CPU on which the lock was taken; `None` when it is free or was taken by a CPU that did not know its number. A hint.
    #[inline]
    #[must_use]
    pub fn owner(&self) -> Option<CpuId> {
        self.word.snapshot().owner()
    }

    /// Whether the lock's memory is as in a new lock: free, no waiters, promised to nobody.
    #[cfg(any(test, pvlock_loom))]
    #[doc(hidden)]
    pub fn is_quiet(&self) -> bool {
        self.word.is_quiet()
    }
}

/// Wakes the head that the released word named. Takes no lock: the lock's memory may be gone.
#[cold]
#[inline(never)]
fn kick<C: Cpu>(released: Snapshot) {
    if let Some(halted) = released.halted() {
        count(C::current(), Counter::Kick);
        C::Hypervisor::kick(halted);
    }
}

/// What a lock is that is unlocked and not held.
pub(crate) const NOT_HELD: &str = "is not held: unlocked twice, initialised again while held, or overwritten";

impl<C: Cpu> Default for RawSpinLock<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Cpu> fmt::Debug for RawSpinLock<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawSpinLock").field("locked", &self.is_locked()).field("owner", &self.owner()).finish()
    }
}
