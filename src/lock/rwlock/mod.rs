//! [`RawRwLock`]: the queued reader-writer spinlock without data. Inline fast paths; the rest is in `slow`.

#[cfg(all(feature = "lock-api-04", not(pvlock_loom)))]
mod api04;
pub(crate) mod data;
pub(crate) mod guards;
mod slow;
mod word;

use core::fmt;
use core::marker::PhantomData;

use super::misuse;
use super::spin::RawSpinLock;
use crate::cpu::{Cpu, CpuId};
use crate::hypervisor::Hypervisor;
use crate::stats::{Counter, count};
use crate::sync::const_fn;
use word::{Want, Word};

/// A reader-writer spinlock of 16 bytes that stops spinning on preempted owners. It holds no data: see [`RwLock`](super::RwLock).
///
/// - Uncontended, each of `read`, `unlock_read`, `write` and `unlock_write` is one atomic instruction.
/// - Readers hold it together. At most 8191 at a time: more wait as if for a writer.
/// - Waiters queue, readers and writers alike, so neither side starves: a newcomer may pass the head of the queue for about 1000 rounds
///   of the head's own spinning at most, and not at all once the head has given its CPU away.
/// - Who waits for a preempted writer yields to it, at last halts. Who waits for readers does not know them: it spins for about
///   1000 rounds, then halts where it can.
/// - One *upgradable* reader may be among the readers, who can become the writer without letting another writer in between.
///
/// Locking is Acquire and unlocking is Release: what a writer wrote before it unlocked, later holders see.
///
/// It may be unlocked by another CPU or task than locked it.
///
/// # Reading again, and interrupts
/// A reader that reads a second time may wait for a writer that waits for its first share. Code that cannot exclude this, such as
/// an interrupt handler that may have interrupted a reader or a waiter, calls [`read_recursive`](Self::read_recursive). An interrupt
/// handler never waits for what the code that it interrupted holds as a writer: such a lock is written with interrupts off.
#[repr(C)]
pub struct RawRwLock<C> {
    word: Word,
    queue: RawSpinLock<C>,
    // `fn() -> C`: no `C` is held, so `Send`, `Sync` and the layout do not depend on it.
    _cpu: PhantomData<fn() -> C>,
}

impl<C: Cpu> RawRwLock<C> {
    const_fn! {
        /// A free lock.
        #[must_use]
        pub const fn new() -> Self {
            Self { word: Word::new(), queue: RawSpinLock::new(), _cpu: PhantomData }
        }
    }

    /// Acquires a share for reading, waiting as long as it takes.
    #[inline]
    pub fn read(&self) {
        if !shared::<C>(self.word.read()) {
            slow::lock_slow::<C>(&self.word, &self.queue, Want::Read);
        }
    }

    /// Acquires a share for reading unless there is a writer, or somebody waits for its turn.
    #[inline]
    #[must_use]
    pub fn try_read(&self) -> bool {
        // The look comes first since a share that is refused holds up a writer, for the time that it takes to give it back.
        self.word.may_read() && shared::<C>(self.word.read())
    }

    /// As [`read`](Self::read), past those who wait: for who may hold a share already, and for interrupt handlers. It waits for a writer
    /// only, and never halts. Used much, it starves writers.
    #[inline]
    pub fn read_recursive(&self) {
        if !shared::<C>(self.word.read_again()) {
            slow::read_again_slow::<C>(&self.word);
        }
    }

    /// Acquires a share for reading unless there is a writer.
    #[inline]
    #[must_use]
    pub fn try_read_recursive(&self) -> bool {
        !self.word.snapshot().has_writer() && shared::<C>(self.word.read_again())
    }

    /// Acquires the upgradable share, waiting as long as it takes: it excludes writers and other upgradable readers.
    #[inline]
    pub fn upgradable_read(&self) {
        if !self.word.upgradable() {
            slow::lock_slow::<C>(&self.word, &self.queue, Want::Upgradable);
        }
    }

    /// Acquires the upgradable share unless there is a writer or another upgradable reader, or somebody waits for its turn.
    #[inline]
    #[must_use]
    pub fn try_upgradable_read(&self) -> bool {
        self.word.upgradable()
    }

    /// Acquires the lock for writing, waiting as long as it takes.
    #[inline]
    pub fn write(&self) {
        if !self.try_write() {
            slow::lock_slow::<C>(&self.word, &self.queue, Want::Write);
        }
    }

    /// Acquires the lock for writing unless somebody holds it or waits for its turn.
    #[inline]
    #[must_use]
    pub fn try_write(&self) -> bool {
        self.word.write(C::current())
    }

    /// Gives a reader's share back.
    ///
    /// # Panics
    /// In debug builds, when nobody reads.
    ///
    /// # Safety
    /// The caller is entitled to end a hold by [`read`](Self::read) or the like.
    #[inline]
    pub unsafe fn unlock_read(&self) {
        self.expect("reading", |now| now.readers() > 0);
        kick::<C>(self.word.release_read());
    }

    /// Gives the upgradable share back.
    ///
    /// # Panics
    /// In debug builds, when there is no upgradable reader.
    ///
    /// # Safety
    /// The caller is entitled to end a hold by [`upgradable_read`](Self::upgradable_read) or the like.
    #[inline]
    pub unsafe fn unlock_upgradable(&self) {
        self.expect("upgradable reading", word::Snapshot::is_upgradable);
        kick::<C>(self.word.release_upgradable());
    }

    /// Ends writing. The lock is not touched after the release: its memory may be gone.
    ///
    /// # Panics
    /// In debug builds, when there is no writer.
    ///
    /// # Safety
    /// The lock is held for writing, and the caller is entitled to end that hold.
    #[inline]
    pub unsafe fn unlock_write(&self) {
        self.expect("writing", word::Snapshot::has_writer);
        kick::<C>(self.word.release_write(C::current()));
    }

    /// Makes the writer a reader, with no writer in between.
    ///
    /// # Safety
    /// The lock is held for writing, and the caller is entitled to end that hold.
    #[inline]
    pub unsafe fn downgrade(&self) {
        self.expect("writing", word::Snapshot::has_writer);
        kick::<C>(self.word.downgrade());
    }

    /// Makes the writer the upgradable reader.
    ///
    /// # Safety
    /// The lock is held for writing, and the caller is entitled to end that hold.
    #[inline]
    pub unsafe fn downgrade_to_upgradable(&self) {
        self.expect("writing", word::Snapshot::has_writer);
        kick::<C>(self.word.downgrade_to_upgradable());
    }

    /// Makes the upgradable reader a plain one.
    ///
    /// # Safety
    /// The upgradable share is held, and the caller is entitled to end that hold.
    #[inline]
    pub unsafe fn downgrade_upgradable(&self) {
        self.expect("upgradable reading", word::Snapshot::is_upgradable);
        kick::<C>(self.word.downgrade_upgradable());
    }

    /// Makes the upgradable reader the writer, waiting until the other readers have gone; no new ones come in meanwhile.
    ///
    /// A caller that holds another share as well waits for itself for ever.
    ///
    /// # Safety
    /// The upgradable share is held, and the caller is entitled to end that hold.
    #[inline]
    pub unsafe fn upgrade(&self) {
        self.expect("upgradable reading", word::Snapshot::is_upgradable);
        if !self.word.upgrade(C::current()) {
            slow::upgrade_slow::<C>(&self.word);
        }
    }

    /// Makes the upgradable reader the writer, unless there are other readers.
    ///
    /// # Safety
    /// As [`upgrade`](Self::upgrade).
    #[inline]
    #[must_use]
    pub unsafe fn try_upgrade(&self) -> bool {
        self.expect("upgradable reading", word::Snapshot::is_upgradable);
        self.word.upgrade(C::current())
    }

    /// Whether anybody holds the lock, in whatever way. A hint, and without ordering.
    #[inline]
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.word.snapshot().is_held()
    }

    /// Whether somebody writes. A hint.
    #[inline]
    #[must_use]
    pub fn is_locked_exclusive(&self) -> bool {
        self.word.snapshot().has_writer()
    }

    /// How many read, the upgradable reader not counted. A hint; newcomers that will be refused may be in it.
    #[must_use]
    pub fn reader_count(&self) -> usize {
        let now = self.word.snapshot();
        if now.has_writer() { 0 } else { now.readers() as usize }
    }

    /// The CPU on which the lock was taken for writing; `None` when there is no writer or it did not know its CPU. A hint.
    #[inline]
    #[must_use]
    pub fn writer(&self) -> Option<CpuId> {
        self.word.snapshot().writer()
    }

    /// Whether the CPU that runs this took the lock for writing and holds it.
    #[inline]
    #[must_use]
    pub fn is_locked_by_me(&self) -> bool {
        self.writer().is_some_and(|writer| C::current() == Some(writer))
    }

    /// Whether the lock's memory is as in a new lock.
    #[cfg(any(test, pvlock_loom))]
    #[doc(hidden)]
    pub fn is_quiet(&self) -> bool {
        self.word.is_quiet() && self.queue.is_quiet()
    }

    #[inline(always)]
    fn expect(&self, hold: &'static str, is_held: fn(word::Snapshot) -> bool) {
        if cfg!(debug_assertions) && !is_held(self.word.snapshot()) {
            misuse::report::<C>(
                "ends",
                "hold of the rwlock",
                self as *const Self as usize,
                format_args!("nobody has for {hold}: ended twice, initialised again while held, or overwritten"),
            );
        }
    }
}

#[inline]
fn shared<C: Cpu>(entered: Result<(), Option<CpuId>>) -> bool {
    match entered {
        Ok(()) => true,
        Err(halted) => {
            kick::<C>(halted);
            false
        }
    }
}

/// Wakes whom a release named. Takes no lock: the lock's memory may be gone.
#[inline]
fn kick<C: Cpu>(halted: Option<CpuId>) {
    if let Some(halted) = halted {
        kick_slow::<C>(halted);
    }
}

#[cold]
#[inline(never)]
fn kick_slow<C: Cpu>(halted: CpuId) {
    count(C::current(), Counter::Kick);
    C::Hypervisor::kick(halted);
}

impl<C: Cpu> Default for RawRwLock<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Cpu> fmt::Debug for RawRwLock<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let readers = self.reader_count();
        f.debug_struct("RawRwLock")
            .field("writing", &self.is_locked_exclusive())
            .field("writer", &self.writer())
            .field("readers", &readers)
            .finish()
    }
}
