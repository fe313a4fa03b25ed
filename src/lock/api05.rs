//! The adapters to `lock_api` 0.5, whose guards carry state: what a [`Guard`] has to restore goes there, not into the lock.

use core::fmt;
use core::marker::PhantomData;

use lock_api_05::{
    GuardNoSend, RawCondvar, RawMutex as Api, RawMutexFair, RawRwLock as RwApi, RawRwLockDowngrade, RawRwLockUpgrade,
    RawRwLockUpgradeDowngrade,
};

use super::parker::Parker;
use super::{Condvar, RawMutex, RawRwLock, RawSpinLock};
use crate::cpu::Cpu;
use crate::guard::Guard;

/// A raw lock `L` for `lock_api` 0.5 that enters the [`Guard`] `G` first: `lock_api::Mutex<RawGuarded<RawSpinLock<C>, IrqSave>, T>`.
///
/// For reader-writer locks `G` is a pair, what readers enter and what writers enter. The sleeping [`RawMutex`] needs none and is itself a
/// `lock_api` mutex.
#[repr(transparent)]
pub struct RawGuarded<L, G> {
    raw: L,
    _guard: PhantomData<fn() -> G>,
}

impl<L: fmt::Debug, G> fmt::Debug for RawGuarded<L, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

/// Enters `G` and attempts; on failure `G` is left again.
fn attempt<C: Cpu, G: Guard<C>>(attempt: impl FnOnce() -> bool) -> Option<G::State> {
    let state = G::enter();
    if attempt() {
        return Some(state);
    }
    // SAFETY: entered above on this CPU, given back once, and nothing is held.
    unsafe { G::leave(state) };
    None
}

// SAFETY: `lock` and a successful `try_lock` return with the lock held by the caller alone (invariant 1 of the lock word), and it
// stays so until `unlock`.
unsafe impl<C: Cpu, G: Guard<C>> Api for RawGuarded<RawSpinLock<C>, G> {
    const INIT: Self = Self { raw: RawSpinLock::new(), _guard: PhantomData };

    type Guard = G::State;

    #[inline]
    fn lock(&self) -> G::State {
        let state = G::enter();
        self.raw.lock();
        state
    }

    #[inline]
    fn try_lock(&self) -> Option<G::State> {
        attempt::<C, G>(|| self.raw.try_lock())
    }

    #[inline]
    unsafe fn unlock(&self, state: G::State) {
        // SAFETY: the caller holds the lock, as the trait demands.
        unsafe { self.raw.unlock() };
        // SAFETY: the state of this hold, given back once, after the release.
        unsafe { G::leave(state) };
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }
}

// SAFETY: invariant 1 of the lock word: a writer is alone, and it and readers stay until they unlock.
unsafe impl<C: Cpu, R: Guard<C>, W: Guard<C>> RwApi for RawGuarded<RawRwLock<C>, (R, W)> {
    const INIT: Self = Self { raw: RawRwLock::new(), _guard: PhantomData };

    type SharedGuard = R::State;
    type ExclusiveGuard = W::State;

    #[inline]
    fn lock_shared(&self) -> R::State {
        let state = R::enter();
        self.raw.read();
        state
    }

    #[inline]
    fn try_lock_shared(&self) -> Option<R::State> {
        attempt::<C, R>(|| self.raw.try_read())
    }

    #[inline]
    unsafe fn unlock_shared(&self, state: R::State) {
        // SAFETY: the caller holds a share, as the trait demands.
        unsafe { self.raw.unlock_read() };
        // SAFETY: the state of this hold, given back once, after the release.
        unsafe { R::leave(state) };
    }

    #[inline]
    fn lock_exclusive(&self) -> W::State {
        let state = W::enter();
        self.raw.write();
        state
    }

    #[inline]
    fn try_lock_exclusive(&self) -> Option<W::State> {
        attempt::<C, W>(|| self.raw.try_write())
    }

    #[inline]
    unsafe fn unlock_exclusive(&self, state: W::State) {
        // SAFETY: the caller writes, as the trait demands.
        unsafe { self.raw.unlock_write() };
        // SAFETY: the state of this hold, given back once, after the release.
        unsafe { W::leave(state) };
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }

    #[inline]
    fn is_locked_exclusive(&self) -> bool {
        self.raw.is_locked_exclusive()
    }
}

// SAFETY: there is no writer in between: one atomic change takes the writer's hold and gives a share.
unsafe impl<C: Cpu, G: Guard<C>> RawRwLockDowngrade for RawGuarded<RawRwLock<C>, (G, G)> {
    #[inline]
    unsafe fn downgrade(&self, state: G::State) -> G::State {
        // SAFETY: the caller writes, as the trait demands.
        unsafe { self.raw.downgrade() };
        state
    }
}

// SAFETY: the upgradable share excludes writers and other upgradable readers, and an upgrade waits until no reader is left.
unsafe impl<C: Cpu, R: Guard<C>, W: Guard<C>> RawRwLockUpgrade for RawGuarded<RawRwLock<C>, (R, W)> {
    type UpgradableGuard = W::State;

    #[inline]
    fn lock_upgradable(&self) -> W::State {
        let state = W::enter();
        self.raw.upgradable_read();
        state
    }

    #[inline]
    fn try_lock_upgradable(&self) -> Option<W::State> {
        attempt::<C, W>(|| self.raw.try_upgradable_read())
    }

    #[inline]
    unsafe fn unlock_upgradable(&self, state: W::State) {
        // SAFETY: the caller holds the upgradable share, as the trait demands.
        unsafe { self.raw.unlock_upgradable() };
        // SAFETY: the state of this hold, given back once, after the release.
        unsafe { W::leave(state) };
    }

    #[inline]
    unsafe fn upgrade(&self, state: W::State) -> W::State {
        // SAFETY: the caller holds the upgradable share, as the trait demands.
        unsafe { self.raw.upgrade() };
        state
    }

    #[inline]
    unsafe fn try_upgrade(&self, state: W::State) -> Result<W::State, W::State> {
        // SAFETY: as above.
        if unsafe { self.raw.try_upgrade() } { Ok(state) } else { Err(state) }
    }
}

// SAFETY: both are one atomic change that gives up a part of the access.
unsafe impl<C: Cpu, G: Guard<C>> RawRwLockUpgradeDowngrade for RawGuarded<RawRwLock<C>, (G, G)> {
    #[inline]
    unsafe fn downgrade_upgradable(&self, state: G::State) -> G::State {
        // SAFETY: the caller holds the upgradable share, as the trait demands.
        unsafe { self.raw.downgrade_upgradable() };
        state
    }

    #[inline]
    unsafe fn downgrade_to_upgradable(&self, state: G::State) -> G::State {
        // SAFETY: the caller writes, as the trait demands.
        unsafe { self.raw.downgrade_to_upgradable() };
        state
    }
}

// SAFETY: as for the spinlock, by invariant 1 of the mutex's word.
unsafe impl<P: Parker> Api for RawMutex<P> {
    const INIT: Self = Self::new();

    // The owning task is in the word, and spinners ask where it is.
    type Guard = GuardNoSend;

    #[inline]
    fn lock(&self) -> GuardNoSend {
        self.lock();
        GuardNoSend::new()
    }

    #[inline]
    fn try_lock(&self) -> Option<GuardNoSend> {
        self.try_lock().then_some(GuardNoSend::new())
    }

    #[inline]
    unsafe fn unlock(&self, _: GuardNoSend) {
        // SAFETY: the caller holds the mutex, as the trait demands.
        unsafe { self.unlock() }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.is_locked()
    }
}

// SAFETY: it ends the caller's hold; the mutex is free afterwards, or held by one sleeper alone.
unsafe impl<P: Parker> RawMutexFair for RawMutex<P> {
    #[inline]
    unsafe fn unlock_fair(&self, _: GuardNoSend) {
        // SAFETY: the caller holds the mutex, as the trait demands.
        unsafe { self.unlock_fair() }
    }
}

// SAFETY: `wait_raw` releases the mutex when the task is in the list, and has acquired it again when it returns. It returns for no
// reason only where there is no task; so nothing is promised about that.
unsafe impl<P: Parker> RawCondvar for Condvar<P> {
    const INIT: Self = Self::new();

    type RawMutex = RawMutex<P>;

    unsafe fn wait(&self, mutex: &RawMutex<P>, _: &mut GuardNoSend) {
        // SAFETY: the caller holds the mutex, as the trait demands.
        unsafe { self.wait_raw(mutex) };
    }

    fn notify_one(&self) -> bool {
        self.notify_one();
        false
    }

    fn notify_all(&self) -> usize {
        self.notify_all();
        0
    }
}
