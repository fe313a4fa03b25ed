//! The reader-writer lock's state: one 64-bit word, and every transition it has.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0..16 | `writer` | 0 none · CPU index + 1 · 0xffff a CPU without a number |
//! | 16..32 | `halted` | 0 · CPU index + 1 of the *head of the queue*, which halts and must be kicked |
//! | 32..48 | `upgrader` | 0 · CPU index + 1 of the upgradable reader that *halts* until the readers are gone · 0xffff it waits, not halted |
//! | 48..62 | `readers` | shared holders, and newcomers that are about to find out that they may not enter |
//! | 62 | `closed` | the head of the queue waits for its turn: newcomers stay out |
//! | 63 | `upgradable` | an upgradable reader holds the lock, besides any readers |
//!
//! Written `(writer, readers, upgradable)`; `closed`, `halted` and `upgrader` belong to waiters.
//!
//! ```text
//! (0,0,0) ── write ──▶ (w,0,0) ── release ──▶ (0,0,0)          (w,0,0) ── downgrade ──▶ (0,1,0) or (0,0,1)
//! (0,n,u) ── read ───▶ (0,n+1,u) ── release ──▶ (0,n,u)
//! (0,n,0) ── upgradable ──▶ (0,n,1) ── release ──▶ (0,n,0)     (0,0,1) ── upgrade ──▶ (w,0,0)
//!                                                              (0,n,1) ── to read ──▶ (0,n+1,0)
//! ```
//!
//! Invariants:
//! 1. `writer` becomes nonzero only by a compare-exchange from a word without writer, readers and (but for its own) upgradable reader.
//!    A newcomer's reader count beside a writer gives no access and is taken back.
//! 2. A release takes back its own share, never the whole word: shares of newcomers may be in it (mycelium 560).
//! 3. `closed` and `halted` are set and cleared by the head of the queue only, `upgrader` by the upgradable holder only.
//! 4. A release is the releaser's last access to the lock. Whom to kick is in the value it got back.
//! 5. Whoever halts has published that in this word by a read-modify-write which found that it still had to wait; what ends the wait is a
//!    read-modify-write of the same word, so it comes later and sees the publication.

use crate::cpu::CpuId;
use crate::sync::{AtomicU64, Ordering, const_fn};

const WRITER: u64 = 0xffff;
const HALTED_SHIFT: u32 = 16;
const HALTED: u64 = 0xffff << HALTED_SHIFT;
const UPGRADER_SHIFT: u32 = 32;
const UPGRADER: u64 = 0xffff << UPGRADER_SHIFT;
const READER: u64 = 1 << 48;
const READERS: u64 = 0x3fff * READER;
const CLOSED: u64 = 1 << 62;
const UPGRADABLE: u64 = 1 << 63;

/// The CPU fields of somebody without a number, or who does not halt.
const UNKNOWN: u16 = u16::MAX;

/// Readers at most. The count has room for as many again, since it also counts the newcomers that are about to find out that they may not enter:
/// on each CPU one, and those that interrupted it.
pub(crate) const MOST_READERS: u64 = 0x1fff;

static_assertions::const_assert!(crate::cpu::MAX_CPUS as u64 + MOST_READERS + 1 < READERS / READER);

/// A value of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot(u64);

impl Snapshot {
    pub(crate) fn has_writer(self) -> bool {
        self.0 & WRITER != 0
    }

    /// The writer's CPU; `None` when there is none or it has no number.
    pub(crate) fn writer(self) -> Option<CpuId> {
        CpuId::from_plus_one(self.0 as u16)
    }

    pub(crate) fn readers(self) -> u64 {
        (self.0 & READERS) / READER
    }

    pub(crate) fn is_upgradable(self) -> bool {
        self.0 & UPGRADABLE != 0
    }

    /// Whether anybody holds it.
    pub(crate) fn is_held(self) -> bool {
        self.0 & (WRITER | READERS | UPGRADABLE) != 0
    }

    /// Whether newcomers must stay out.
    pub(crate) fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    /// Whether `want` has to wait now, as the head of the queue or as the upgrader.
    pub(crate) fn blocks(self, want: Want) -> bool {
        match want {
            Want::Read => self.0 & (WRITER | UPGRADER) != 0 || self.readers() >= MOST_READERS,
            Want::ReadAgain => self.has_writer() || self.readers() >= MOST_READERS,
            Want::Upgradable => self.0 & (WRITER | UPGRADER | UPGRADABLE) != 0 || self.readers() >= MOST_READERS,
            Want::Write => self.is_held(),
            Want::Upgrade => self.readers() > 0,
        }
    }

    /// Who sleeps until the release that returned this word, if that was what it waits for.
    pub(crate) fn to_kick(self) -> Option<CpuId> {
        // An upgrader holds a share itself, so the head cannot have its turn before it.
        match (self.0 >> UPGRADER_SHIFT) as u16 {
            UNKNOWN => None,
            0 => CpuId::from_plus_one((self.0 >> HALTED_SHIFT) as u16),
            upgrader => CpuId::from_plus_one(upgrader),
        }
    }

    fn with(self, field: u64, shift: u32, value: u16) -> Self {
        Self(self.0 & !field | u64::from(value) << shift)
    }
}

/// What a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// To read, in its turn.
    Read,
    /// To read though others wait: the caller may be a reader already.
    ReadAgain,
    /// To be the upgradable reader.
    Upgradable,
    /// To write.
    Write,
    /// To write, being the upgradable reader.
    Upgrade,
}

/// The lock's state.
#[derive(Debug)]
pub(crate) struct Word(AtomicU64);

impl Word {
    const_fn! {
        pub(crate) const fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    /// The word, to look at only.
    #[inline]
    pub(crate) fn snapshot(&self) -> Snapshot {
        // ORDERING: Relaxed, a hint; whoever acts on it acts by read-modify-write.
        Snapshot(self.0.load(Ordering::Relaxed))
    }

    /// `(0,0,0) -> (me,0,0)` with nobody waiting for its turn.
    #[inline]
    pub(crate) fn write(&self, me: Option<CpuId>) -> bool {
        // ORDERING: Acquire, pair RW-HANDOVER (Release in all `release_*` and `downgrade*`).
        self.0.compare_exchange(0, writer(me), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// `(0,n,u) -> (0,n+1,u)` where newcomers may. `Err`: not so, the share is taken back, and the caller kicks whom that names.
    #[inline]
    pub(crate) fn read(&self) -> Result<(), Option<CpuId>> {
        self.enter(WRITER | UPGRADER | CLOSED)
    }

    /// As [`read`](Self::read), past those who wait.
    #[inline]
    pub(crate) fn read_again(&self) -> Result<(), Option<CpuId>> {
        self.enter(WRITER)
    }

    /// Whether [`read`](Self::read) would let the caller in. A hint.
    #[inline]
    pub(crate) fn may_read(&self) -> bool {
        let now = self.snapshot();
        now.0 & (WRITER | UPGRADER | CLOSED) == 0 && now.readers() < MOST_READERS
    }

    #[inline]
    fn enter(&self, barred_by: u64) -> Result<(), Option<CpuId>> {
        // ORDERING: Acquire, pair RW-HANDOVER: what the last writer wrote.
        let before = Snapshot(self.0.fetch_add(READER, Ordering::Acquire));
        if before.0 & barred_by == 0 && before.readers() < MOST_READERS {
            return Ok(());
        }
        Err(self.release_read())
    }

    /// The head's turn: takes what `want` wants and lets newcomers in again. `false`: it has to wait on.
    pub(crate) fn take_turn(&self, want: Want, me: Option<CpuId>) -> bool {
        self.change(|now| {
            let open = now.0 & !(CLOSED | HALTED);
            (!now.blocks(want)).then_some(match want {
                Want::Read | Want::ReadAgain => open + READER,
                Want::Upgradable => open | UPGRADABLE,
                Want::Write => open | writer(me),
                Want::Upgrade => now.0 & !(UPGRADER | UPGRADABLE) | writer(me),
            })
        })
    }

    /// `(0,n,0) -> (0,n,1)` where newcomers may.
    pub(crate) fn upgradable(&self) -> bool {
        self.change(|now| (!now.is_closed() && !now.blocks(Want::Upgradable)).then_some(now.0 | UPGRADABLE))
    }

    /// `(0,0,1) -> (me,0,0)`, by the upgradable reader, before it has announced that it waits.
    pub(crate) fn upgrade(&self, me: Option<CpuId>) -> bool {
        self.change(|now| (!now.blocks(Want::Upgrade)).then_some(now.0 & !UPGRADABLE | writer(me)))
    }

    /// The upgradable reader waits to write: no more readers.
    pub(crate) fn announce_upgrade(&self) {
        // ORDERING: Relaxed, it gives no access; readers that came first are waited for.
        self.0.fetch_or(UPGRADER, Ordering::Relaxed);
    }

    /// The head of the queue waits no longer behind newcomers.
    pub(crate) fn close(&self) {
        // ORDERING: Relaxed, as above.
        self.0.fetch_or(CLOSED, Ordering::Relaxed);
    }

    /// Publishes that the head, or the upgrader, halts on CPU `me`. `false`: it need not wait any more.
    pub(crate) fn publish_halt(&self, want: Want, me: CpuId) -> bool {
        let (field, shift) = match want {
            Want::Upgrade => (UPGRADER, UPGRADER_SHIFT),
            _ => (HALTED, HALTED_SHIFT),
        };
        self.change(|now| now.blocks(want).then_some(now.with(field, shift, me.plus_one()).0))
    }

    /// `(w,0,0) -> (0,0,0)`, where `me` is likely to be who took it. Returns whom to kick.
    #[inline]
    pub(crate) fn release_write(&self, me: Option<CpuId>) -> Option<CpuId> {
        // Most likely nobody waits, and the holder has not moved: one instruction, where an AND that returns what was there is a load and a loop.
        // ORDERING: Release, pair RW-HANDOVER, as below.
        if self.0.compare_exchange(writer(me), 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            return None;
        }
        // ORDERING: Release, pair RW-HANDOVER (Acquire in `write`, `enter` and `change`): the next holder sees what we wrote.
        Snapshot(self.0.fetch_and(!WRITER, Ordering::Release)).to_kick()
    }

    /// `(0,n,u) -> (0,n-1,u)`. Returns whom to kick: only the last reader's leaving ends a wait.
    #[inline]
    pub(crate) fn release_read(&self) -> Option<CpuId> {
        // ORDERING: Release, pair RW-HANDOVER: the next writer comes after our reads.
        let before = Snapshot(self.0.fetch_sub(READER, Ordering::Release));
        // Readers and nothing else: nobody waits.
        if before.0 & !READERS == 0 && before.readers() != MOST_READERS {
            return None;
        }
        // Beside a writer it was a newcomer's share; the writer's release will kick. While the upgradable reader does not wait, only its own
        // release ends a wait for all readers.
        let last = before.readers() == 1 && (!before.is_upgradable() || before.0 & UPGRADER != 0);
        let ends_a_wait = last || before.readers() == MOST_READERS;
        if ends_a_wait && !before.has_writer() { before.to_kick() } else { None }
    }

    /// `(0,n,1) -> (0,n,0)`. Returns whom to kick.
    pub(crate) fn release_upgradable(&self) -> Option<CpuId> {
        // ORDERING: Release, pair RW-HANDOVER.
        Snapshot(self.0.fetch_and(!UPGRADABLE, Ordering::Release)).to_kick()
    }

    /// `(w,0,0) -> (0,1,0)`. Returns whom to kick.
    pub(crate) fn downgrade(&self) -> Option<CpuId> {
        self.exchange(|now| (now & !WRITER) + READER)
    }

    /// `(w,0,0) -> (0,0,1)`. Returns whom to kick.
    pub(crate) fn downgrade_to_upgradable(&self) -> Option<CpuId> {
        self.exchange(|now| now & !WRITER | UPGRADABLE)
    }

    /// `(0,n,1) -> (0,n+1,0)`. Returns whom to kick.
    pub(crate) fn downgrade_upgradable(&self) -> Option<CpuId> {
        self.exchange(|now| (now & !UPGRADABLE) + READER)
    }

    /// Changes the word to what `to` makes of it, if it makes anything of it.
    fn change(&self, to: impl Fn(Snapshot) -> Option<u64>) -> bool {
        // ORDERING: Acquire, pair RW-HANDOVER, for those changes that give access.
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, |now| to(Snapshot(now))).is_ok()
    }

    /// Gives up a part of the access that the caller has.
    fn exchange(&self, to: impl Fn(u64) -> u64) -> Option<CpuId> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            // ORDERING: Release, pair RW-HANDOVER: who enters now sees what we wrote. We keep access, so there is nothing to acquire.
            match self.0.compare_exchange_weak(now, to(now), Ordering::Release, Ordering::Relaxed) {
                Ok(before) => return Snapshot(before).to_kick(),
                Err(other) => now = other,
            }
        }
    }

    /// Whether every field is zero.
    #[cfg(any(test, pvlock_loom))]
    pub(crate) fn is_quiet(&self) -> bool {
        self.snapshot().0 == 0
    }
}

/// The word of a writer on `me`.
fn writer(me: Option<CpuId>) -> u64 {
    u64::from(me.map_or(UNKNOWN, CpuId::plus_one))
}

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::*;
    use crate::cpu::MAX_CPUS;

    fn cpu(index: u32) -> CpuId {
        CpuId::new(index).unwrap()
    }

    #[test]
    fn a_writer_of_every_cpu_is_alone_and_named() {
        for me in (0..MAX_CPUS as u32).map(cpu).map(Some).chain([None]) {
            let word = Word::new();
            assert!(word.write(me));
            assert_eq!((word.snapshot().writer(), word.snapshot().has_writer()), (me, true));
            assert!(!word.write(me) && word.read().is_err() && word.read_again().is_err() && !word.upgradable());
            assert_eq!(word.release_write(None), None);
            assert!(word.is_quiet());
        }
    }

    #[test]
    fn readers_share_and_the_last_one_kicks() {
        let (word, head) = (Word::new(), cpu(7));
        assert!(word.read().is_ok() && word.read().is_ok());
        word.close();
        assert!(word.publish_halt(Want::Write, head));
        assert_eq!(word.read(), Err(None), "the lock is closed, and others read");
        assert!(word.read_again().is_ok(), "who reads already may read again");
        assert_eq!((word.release_read(), word.release_read(), word.release_read()), (None, None, Some(head)));
        assert!(word.take_turn(Want::Write, Some(head)));
        assert_eq!(word.release_write(None), None, "the head has taken back its wish to be kicked");
        assert!(word.is_quiet());
    }

    #[test]
    fn a_newcomer_beside_a_writer_is_no_reader_and_kicks_nobody() {
        let (word, head) = (Word::new(), cpu(3));
        assert!(word.write(None));
        assert!(word.publish_halt(Want::Read, head));
        assert_eq!(word.read(), Err(None), "the writer's release will kick");
        assert_eq!(word.release_write(None), Some(head));
        assert!(word.take_turn(Want::Read, Some(head)));
        assert_eq!((word.snapshot().readers(), word.release_read()), (1, None));
        assert!(word.is_quiet());
    }

    #[test]
    fn readers_beside_an_upgradable_one_do_not_kick_the_head() {
        let (word, head) = (Word::new(), cpu(3));
        assert!(word.upgradable() && word.read().is_ok());
        word.close();
        assert!(word.publish_halt(Want::Write, head));
        assert!(!word.may_read());
        assert_eq!(word.release_read(), None);
        assert_eq!(word.read(), Err(None), "nor do refused newcomers");
        assert_eq!(word.release_upgradable(), Some(head));
        assert!(word.take_turn(Want::Write, Some(head)));
        word.release_write(None);
        assert!(word.is_quiet());
    }

    #[test]
    fn a_release_leaves_the_shares_of_newcomers_alone() {
        let word = Word::new();
        assert!(word.write(Some(cpu(1))));
        // A newcomer has come as far as its share.
        word.0.fetch_add(READER, Ordering::Relaxed);
        word.release_write(None);
        assert_eq!(word.snapshot().readers(), 1);
        word.release_read();
        assert!(word.is_quiet());
    }

    #[test]
    fn nobody_halts_for_what_is_over() {
        let word = Word::new();
        for want in [Want::Read, Want::ReadAgain, Want::Upgradable, Want::Write, Want::Upgrade] {
            assert!(!word.publish_halt(want, cpu(1)), "{want:?}");
        }
        assert!(word.is_quiet());
    }

    #[test]
    fn an_upgrade_waits_for_readers_and_comes_before_the_head() {
        let (word, head, upgrader) = (Word::new(), cpu(0), cpu(511.min(MAX_CPUS as u32 - 1)));
        assert!(word.read().is_ok() && word.upgradable() && !word.upgradable());
        assert!(!word.upgrade(Some(upgrader)));
        word.announce_upgrade();
        assert!(word.read().is_err(), "an upgrade is on its way");
        word.close();
        assert!(word.publish_halt(Want::Write, head) && word.publish_halt(Want::Upgrade, upgrader));
        assert_eq!(word.release_read(), Some(upgrader));
        assert!(!word.take_turn(Want::Write, Some(head)) && word.take_turn(Want::Upgrade, Some(upgrader)));
        assert_eq!(word.snapshot().writer(), Some(upgrader));
        assert_eq!(word.release_write(None), Some(head));
        assert!(word.take_turn(Want::Write, Some(head)));
        word.release_write(None);
        assert!(word.is_quiet());
    }

    #[test]
    fn downgrades_let_in_whom_they_may() {
        let word = Word::new();
        assert!(word.write(None));
        word.downgrade_to_upgradable();
        assert!(word.read().is_ok() && !word.upgradable() && !word.write(None));
        word.downgrade_upgradable();
        assert!(word.upgradable());
        assert_eq!((word.snapshot().readers(), word.snapshot().is_upgradable()), (2, true));
        word.release_upgradable();
        word.release_read();
        word.release_read();
        assert!(word.write(None));
        word.downgrade();
        assert_eq!(word.snapshot().readers(), 1);
        word.release_read();
        assert!(word.is_quiet());
    }

    #[test]
    fn readers_beyond_the_limit_are_refused() {
        let (word, head) = (Word::new(), cpu(2));
        for _ in 0..MOST_READERS {
            assert!(word.read().is_ok());
        }
        assert!(word.read().is_err() && word.read_again().is_err() && !word.take_turn(Want::Read, None));
        assert!(word.publish_halt(Want::Read, head));
        assert_eq!(word.release_read(), Some(head), "there is room again");
        assert!(word.take_turn(Want::Read, None));
        for _ in 0..MOST_READERS {
            word.release_read();
        }
        assert!(word.is_quiet());
    }
}
