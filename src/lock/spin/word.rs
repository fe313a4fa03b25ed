//! The spinlock's 8 bytes: three atomics that are each written at one size only, and every transition they have.
//!
//! | field | bits | meaning |
//! |---|---|---|
//! | `owner` | 0..16 | 0 free · CPU index + 1 · 0xffff held by a CPU without a number |
//! | `owner` | 16..32 | 0 · CPU index + 1 of the *halted head*, which the unlocker must kick |
//! | `tail` | 0..16 | 0 no queue · number of the last waiter's node ([`NodeId`]) |
//! | `reserved` | 0..16 | 0 open · CPU index + 1 of the head: nobody else may take the lock |
//!
//! Written `(owner, halted, reserved)`; the tail moves apart from these.
//!
//! ```text
//!             fast                    head of the queue (h)                    unlock
//! (0,0,0) ── claim ──▶ (o,0,0)
//!                      (o,0,0) ──── reserve ─────▶ (o,0,h)
//!                      (o,0,h) ── publish_halt ──▶ (o,h,h)
//!                      (o,*,*) ────────────────────────────── release ──▶ (0,0,*)  and kick what was in *
//! (0,0,h)            ◀─────────────────────────────────────────────────── (o,h,h)
//! (0,0,h) ── claim by h ──▶ (h,0,h) ── open ──▶ (h,0,0), then the queue's next waiter becomes head
//! ```
//!
//! Invariants:
//! 1. `owner` alone decides who holds the lock: it changes from 0 only by one compare-exchange.
//! 2. `halted` is nonzero only while the lock is held: it is set by a compare-exchange from a held word, and a release clears both.
//! 3. Only the head of the queue writes `reserved` and `halted` (or the owner on behalf of a head that halted while still in the queue).
//! 4. A release is the releaser's last access to the lock. The halted CPU is in the value it got back, so a kick needs no more.
//! 5. A newcomer reads `reserved` before it claims. One that read 0 before the head's store may pass once more: after a reservation
//!    each CPU passes at most once.

use super::super::node::NodeId;
use crate::cpu::CpuId;
use crate::sync::{AtomicU16, AtomicU32, Ordering, const_fn};

/// Who takes the lock, as `owner` writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnerId(u16);

/// The owner field of a CPU that does not know its number.
const UNKNOWN_OWNER: u16 = u16::MAX;

impl OwnerId {
    #[inline]
    pub(crate) fn new(cpu: Option<CpuId>) -> Self {
        Self(cpu.map_or(UNKNOWN_OWNER, CpuId::plus_one))
    }
}

/// A value of `owner` as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot(u32);

impl Snapshot {
    #[inline]
    pub(crate) fn is_free(self) -> bool {
        // Invariant 2: a free word has no halted CPU.
        self.0 == 0
    }

    /// Whether it is the word of a held lock: a CPU that exists or none with a number owns it, and the halted head is a CPU that exists.
    #[inline]
    pub(crate) fn is_sound(self) -> bool {
        let (owner, halted) = (self.0 as u16, (self.0 >> 16) as u16);
        (self.owner().is_some() || owner == UNKNOWN_OWNER) && (halted == 0 || self.halted().is_some())
    }

    /// The owner's CPU; `None` when free or held by a CPU without a number.
    #[inline]
    pub(crate) fn owner(self) -> Option<CpuId> {
        CpuId::from_plus_one(self.0 as u16)
    }

    /// Whether there is a halted head: one comparison, for the unlocking fast path.
    #[inline]
    pub(crate) fn has_halted(self) -> bool {
        self.0 > 0xffff
    }

    /// The halted head that waits for a kick.
    #[inline]
    pub(crate) fn halted(self) -> Option<CpuId> {
        CpuId::from_plus_one((self.0 >> 16) as u16)
    }

    /// The same with `cpu` as the halted head.
    fn with_halted(self, cpu: CpuId) -> Self {
        Self(self.0 & 0xffff | (cpu.plus_one() as u32) << 16)
    }
}

/// The lock's state.
#[derive(Debug)]
#[repr(C, align(8))]
pub(crate) struct Word {
    owner: AtomicU32,
    tail: AtomicU16,
    reserved: AtomicU16,
}

#[cfg(not(pvlock_loom))]
static_assertions::assert_eq_size!(Word, u64);

impl Word {
    const_fn! {
        pub(crate) const fn new() -> Self {
            Self { owner: AtomicU32::new(0), tail: AtomicU16::new(0), reserved: AtomicU16::new(0) }
        }
    }

    /// `(0,0,*) -> (me,0,*)`. Fails when held.
    #[inline]
    pub(crate) fn claim_acquire(&self, me: OwnerId) -> bool {
        // ORDERING: Acquire, pair SPIN-HANDOVER (Release in `release` and `release_halted`): we see the last critical section.
        self.owner.compare_exchange(0, me.0 as u32, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// As [`claim_acquire`](Self::claim_acquire), and may fail for no reason.
    #[inline]
    pub(crate) fn claim_weak_acquire(&self, me: OwnerId) -> bool {
        // ORDERING: Acquire, pair SPIN-HANDOVER (Release in `release` and `release_halted`).
        self.owner.compare_exchange_weak(0, me.0 as u32, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// `(o,0,*) -> (0,0,*)` where nobody can be halted: a plain store.
    #[inline]
    pub(crate) fn release(&self) {
        // ORDERING: Release, pair SPIN-HANDOVER (Acquire in `claim_acquire`): the next owner sees our critical section.
        self.owner.store(0, Ordering::Release);
    }

    /// `(o,h,*) -> (0,0,*)`, returns what was there: the caller kicks `h`.
    #[inline]
    pub(crate) fn release_halted(&self) -> Snapshot {
        // ORDERING: Release, pair SPIN-HANDOVER (Acquire in `claim_acquire`). The halted field needs no more: see `publish_halt`.
        Snapshot(self.owner.swap(0, Ordering::Release))
    }

    /// The owner word, to look at only.
    #[inline]
    pub(crate) fn snapshot(&self) -> Snapshot {
        // ORDERING: Relaxed, a hint; whoever acts on it acts by compare-exchange.
        Snapshot(self.owner.load(Ordering::Relaxed))
    }

    /// `(o,*,*) -> (o,me,*)` with `o != 0`. `false` when free, and then the caller need not wait.
    ///
    /// Called by the head that is about to halt, and by an owner for the head it has just made. Idempotent.
    pub(crate) fn publish_halt(&self, me: CpuId) -> bool {
        let mut seen = self.snapshot();
        loop {
            if seen.is_free() {
                return false;
            }
            if seen.halted() == Some(me) {
                return true;
            }
            // ORDERING: Relaxed. Publication and release are read-modify-writes of one word, so one of them comes second and sees the
            // first; the kick itself goes through the hypervisor.
            match self.owner.compare_exchange(seen.0, seen.with_halted(me).0, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = Snapshot(now),
            }
        }
    }

    /// Who the lock is promised to.
    #[inline]
    pub(crate) fn reserved_for(&self) -> Option<CpuId> {
        // ORDERING: Relaxed, advice to newcomers (invariant 5); exclusion does not rest on it.
        CpuId::from_plus_one(self.reserved.load(Ordering::Relaxed))
    }

    /// Whether the lock is promised to a head.
    #[inline]
    pub(crate) fn is_reserved(&self) -> bool {
        // ORDERING: Relaxed, as in `reserved_for`.
        self.reserved.load(Ordering::Relaxed) != 0
    }

    /// `(*,*,0) -> (*,*,me)`. Only the head calls this.
    pub(crate) fn reserve(&self, me: CpuId) {
        // ORDERING: Relaxed, one writer at a time: headship passes by pair HEAD-PASS, which orders the heads' stores.
        self.reserved.store(me.plus_one(), Ordering::Relaxed);
    }

    /// `(h,*,h) -> (h,*,0)`. Only the head calls this, once it holds the lock and before it passes headship on.
    pub(crate) fn open(&self) {
        // ORDERING: Relaxed, as in `reserve`.
        self.reserved.store(0, Ordering::Relaxed);
    }

    /// The last waiter.
    #[inline]
    pub(crate) fn tail(&self) -> Option<NodeId> {
        // ORDERING: Relaxed, a hint.
        NodeId::from_raw(self.tail.load(Ordering::Relaxed))
    }

    /// Makes `id` the last waiter and returns the one before it.
    pub(crate) fn enqueue(&self, id: NodeId) -> Option<NodeId> {
        // ORDERING: AcqRel. Release, pair NODE-PUBLISH (Acquire here, in the successor): it sees our node initialised. Acquire: we see
        // the predecessor's.
        NodeId::from_raw(self.tail.swap(id.raw(), Ordering::AcqRel))
    }

    /// Empties the queue if `id` is the last waiter.
    pub(crate) fn dequeue_last(&self, id: NodeId) -> bool {
        // ORDERING: Release, pair NODE-PUBLISH (Acquire in `enqueue`): who queues next comes after all that the last head did, its
        // `open` included. Relaxed on failure: the successor's link is read by its own swap.
        self.tail.compare_exchange(id.raw(), 0, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Whether every field is zero.
    #[cfg(any(test, pvlock_loom))]
    pub(crate) fn is_quiet(&self) -> bool {
        self.snapshot().is_free() && self.tail().is_none() && !self.is_reserved()
    }
}

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::*;
    use crate::cpu::MAX_CPUS;

    fn cpus() -> impl Iterator<Item = CpuId> {
        (0..MAX_CPUS as u32).map(|i| CpuId::new(i).unwrap())
    }

    #[test]
    fn claim_and_release_for_every_cpu() {
        for cpu in cpus() {
            let word = Word::new();
            assert!(word.claim_acquire(OwnerId::new(Some(cpu))));
            assert_eq!(word.snapshot().owner(), Some(cpu));
            assert!(!word.claim_acquire(OwnerId::new(None)));
            assert_eq!(word.release_halted().halted(), None);
            assert!(word.is_quiet());
        }
    }

    #[test]
    fn an_owner_without_a_number_is_held_and_nobody() {
        let word = Word::new();
        assert!(word.claim_acquire(OwnerId::new(None)));
        assert!(!word.snapshot().is_free());
        assert_eq!(word.snapshot().owner(), None);
    }

    #[test]
    fn the_release_returns_the_halted_head_once() {
        let owner = CpuId::new(3).unwrap();
        for head in cpus() {
            let word = Word::new();
            assert!(!word.publish_halt(head), "a free lock needs no waiting");
            assert!(word.claim_acquire(OwnerId::new(Some(owner))));
            assert!(word.publish_halt(head));
            assert!(word.publish_halt(head), "again after a spurious wake-up");
            assert_eq!(word.snapshot().owner(), Some(owner));
            assert_eq!(word.release_halted().halted(), Some(head));
            assert!(word.is_quiet());
            assert!(word.claim_acquire(OwnerId::new(Some(owner))));
            assert_eq!(word.release_halted().halted(), None);
        }
    }

    #[test]
    fn a_migrated_waiter_publishes_its_new_cpu() {
        let [owner, old, new] = [1, 2, 3].map(|i| CpuId::new(i).unwrap());
        let word = Word::new();
        assert!(word.claim_acquire(OwnerId::new(Some(owner))));
        assert!(word.publish_halt(old) && word.publish_halt(new));
        assert_eq!(word.release_halted().halted(), Some(new));
    }

    #[test]
    fn plain_release_leaves_queue_and_reservation_alone() {
        let cpu = CpuId::new(5).unwrap();
        let word = Word::new();
        let id = crate::lock::node::arena().claim(cpu, 0xdead0).unwrap();
        assert!(word.claim_acquire(OwnerId::new(None)));
        assert_eq!(word.enqueue(id), None);
        word.reserve(cpu);
        word.release();
        assert_eq!((word.reserved_for(), word.tail()), (Some(cpu), Some(id)));
        word.open();
        assert!(word.dequeue_last(id));
        assert!(word.is_quiet());
        crate::lock::node::arena().free(id);
    }
}
