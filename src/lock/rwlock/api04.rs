//! The adapter of [`RawRwLock`] to `lock_api` 0.4.

use lock_api::{
    GuardSend, RawRwLock as Api, RawRwLockDowngrade, RawRwLockRecursive, RawRwLockUpgrade, RawRwLockUpgradeDowngrade,
};

use super::RawRwLock;
use crate::cpu::Cpu;

// SAFETY: invariant 1 of the lock word: a writer is alone, and it and readers stay until they unlock.
unsafe impl<C: Cpu> Api for RawRwLock<C> {
    const INIT: Self = Self::new();

    // Any CPU may unlock.
    type GuardMarker = GuardSend;

    #[inline]
    fn lock_shared(&self) {
        self.read();
    }

    #[inline]
    fn try_lock_shared(&self) -> bool {
        self.try_read()
    }

    #[inline]
    unsafe fn unlock_shared(&self) {
        // SAFETY: the caller holds a share, as the trait demands.
        unsafe { self.unlock_read() }
    }

    #[inline]
    fn lock_exclusive(&self) {
        self.write();
    }

    #[inline]
    fn try_lock_exclusive(&self) -> bool {
        self.try_write()
    }

    #[inline]
    unsafe fn unlock_exclusive(&self) {
        // SAFETY: the caller writes, as the trait demands.
        unsafe { self.unlock_write() }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.is_locked()
    }

    #[inline]
    fn is_locked_exclusive(&self) -> bool {
        self.is_locked_exclusive()
    }
}

// SAFETY: there is no writer in between: one atomic change takes the writer's hold and gives a share.
unsafe impl<C: Cpu> RawRwLockDowngrade for RawRwLock<C> {
    #[inline]
    unsafe fn downgrade(&self) {
        // SAFETY: the caller writes, as the trait demands.
        unsafe { self.downgrade() }
    }
}

// SAFETY: the upgradable share excludes writers and other upgradable readers, and an upgrade waits until no reader is left.
unsafe impl<C: Cpu> RawRwLockUpgrade for RawRwLock<C> {
    #[inline]
    fn lock_upgradable(&self) {
        self.upgradable_read();
    }

    #[inline]
    fn try_lock_upgradable(&self) -> bool {
        self.try_upgradable_read()
    }

    #[inline]
    unsafe fn unlock_upgradable(&self) {
        // SAFETY: the caller holds the upgradable share, as the trait demands.
        unsafe { self.unlock_upgradable() }
    }

    #[inline]
    unsafe fn upgrade(&self) {
        // SAFETY: as above.
        unsafe { self.upgrade() }
    }

    #[inline]
    unsafe fn try_upgrade(&self) -> bool {
        // SAFETY: as above.
        unsafe { self.try_upgrade() }
    }
}

// SAFETY: both are one atomic change that gives up a part of the access.
unsafe impl<C: Cpu> RawRwLockUpgradeDowngrade for RawRwLock<C> {
    #[inline]
    unsafe fn downgrade_upgradable(&self) {
        // SAFETY: the caller holds the upgradable share, as the trait demands.
        unsafe { self.downgrade_upgradable() }
    }

    #[inline]
    unsafe fn downgrade_to_upgradable(&self) {
        // SAFETY: the caller writes, as the trait demands.
        unsafe { self.downgrade_to_upgradable() }
    }
}

// SAFETY: a recursive reader waits for a writer only, and there is none while the caller holds a share.
unsafe impl<C: Cpu> RawRwLockRecursive for RawRwLock<C> {
    #[inline]
    fn lock_shared_recursive(&self) {
        self.read_recursive();
    }

    #[inline]
    fn try_lock_shared_recursive(&self) -> bool {
        self.try_read_recursive()
    }
}
