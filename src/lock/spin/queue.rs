//! The slow path: try for a while, then queue, then take the lock as head of the queue.
//!
//! ```text
//!            newcomer ───────── claims ─────────▶ owner
//!               │ the round budget is spent, the owner is preempted, or others queue and run
//!               ▼
//!  enqueue: tail = me; was there a tail?
//!     no │            │ yes: link behind it
//!        ▼            ▼        predecessor preempted: halt (or yield to it)
//!       head ◀─── waiting      (head passed on, or the predecessor is gone)
//!        │  owner preempted: reserve, yield to it, then halt; passed too often: reserve
//!        ▼ claims
//!      owner: open the lock, pass headship to the next waiter, free the node
//! ```
//!
//! Leaving the queue never waits, since the leaver holds the lock: a head whose successor has taken the tail and not linked
//! itself yet (its vCPU may be stopped in between) marks its node [`GONE`], and the successor finds that when it links.
//!
//! | leaver: `next.swap(GONE)` | successor: `prev.next.swap(me)` | head is now | who frees the leaver's node |
//! |---|---|---|---|
//! | second, finds the successor | first, finds `UNLINKED` | promoted by the leaver | leaver |
//! | first, finds `UNLINKED` | second, finds `GONE` | the successor by itself | successor |
//!
//! Bound: a head that runs is passed for at most `HEAD_ROUNDS` rounds of its own, and not at all (but for one stale pass per other CPU)
//! after it gave up its CPU to anybody. Every waiter in the queue becomes head after those before it.

use super::super::node::{GONE, HEAD, NodeId, UNLINKED, WAITING, arena};
use super::word::{OwnerId, Word};
use crate::cpu::{Cpu, CpuId};
use crate::hypervisor::Hypervisor;
use crate::stats::{Counter, count};
use crate::sync::{Ordering, spin_loop};
use crate::wait::Waiter;
use crate::wait::budget::{FIRST_PAUSES, HEAD_ROUNDS, LOOK_EVERY, NEWCOMER_ROUNDS};
use crate::wait::drive::{self, Waited};

/// The caller's own hook, called in every round of waiting.
pub(crate) type Poll<'a> = Option<&'a mut dyn FnMut()>;

/// Acquires the lock after a failed first attempt by `me`.
#[cold]
#[inline(never)]
pub(crate) fn lock_slow<C: Cpu>(word: &Word, me: Option<CpuId>, mut poll: Poll<'_>) {
    count(me, Counter::SlowPath);
    let owner = OwnerId::new(me);
    if newcomer::<C>(word, me, owner, &mut poll) {
        return;
    }
    let address = word as *const Word as usize;
    match me.map(|cpu| arena().claim(cpu, address)) {
        Some(Ok(id)) => {
            count(me, Counter::Queued);
            queue::<C>(word, me, owner, id, &mut poll);
        }
        no_node => {
            if no_node.is_some() {
                count(me, Counter::NoNode);
            }
            without_node::<C>(word, me, owner, &mut poll);
        }
    }
}

/// Takes the lock if it is free and `me` may: it is open, or promised to this very CPU.
///
/// The last matters when an interrupt waits for a lock that the code it interrupted has reserved.
fn claim(word: &Word, me: Option<CpuId>, owner: OwnerId) -> bool {
    let reserved = word.reserved_for();
    if !word.snapshot().is_free() || (reserved.is_some() && reserved != me) || !word.claim_acquire(owner) {
        return false;
    }
    if word.tail().is_some() {
        count(me, Counter::Pass);
    }
    true
}

/// Tries without a place in the queue. `true`: the lock is ours. `false`: time to queue.
fn newcomer<C: Cpu>(word: &Word, me: Option<CpuId>, owner: OwnerId, poll: &mut Poll<'_>) -> bool {
    let Some(cpu) = me else { return false };
    let preempted = |who: Option<CpuId>| who.filter(|&who| who != cpu && C::Hypervisor::is_preempted(who));
    let mut yields_left = 1;
    for _ in 0..FIRST_PAUSES {
        spin_loop();
    }
    for round in 0..NEWCOMER_ROUNDS {
        if claim(word, me, owner) {
            return true;
        }
        if round % LOOK_EVERY == 0 {
            let snapshot = word.snapshot();
            // Only a head may yield to the owner, since only a head may reserve: queue.
            if preempted(snapshot.owner()).is_some() {
                return false;
            }
            // Free, but promised to a head that does not run: it gets our slice, so that the lock does not lie idle.
            if snapshot.is_free()
                && let Some(head) = preempted(word.reserved_for())
            {
                if yields_left == 0 || !C::Hypervisor::can_yield() || !drive::may_yield::<C>(cpu) {
                    return false;
                }
                yields_left -= 1;
                count(me, Counter::PreemptedSeen);
                let _ = drive::yield_to::<C>(cpu, head);
            }
            // Others wait in order: so do we, unless we would wait behind somebody who does not run. Who has halted runs as soon as it is kicked:
            // passing those too gave 16 vCPUs on two CPUs up to a tenth more, and the least of them a sixth less.
            if let Some(last) = word.tail()
                && preempted(last.cpu()).is_none()
            {
                return false;
            }
        }
        C::relax();
        if let Some(poll) = poll {
            poll();
        }
        spin_loop();
    }
    false
}

/// Waits in the queue with node `id`, takes the lock, leaves the queue.
fn queue<C: Cpu>(word: &Word, me: Option<CpuId>, owner: OwnerId, id: NodeId, poll: &mut Poll<'_>) {
    if let Some(prev) = word.enqueue(id) {
        // ORDERING: AcqRel, pair NODE-LINK (the same swap in `leave`). Release: the leaver sees our node before it promotes it. Acquire: if
        // it is gone we see its `open` and its claim, as if it had promoted us, and may free its node.
        if arena().node(prev).next.swap(id.raw(), Ordering::AcqRel) == GONE {
            arena().free(prev);
        } else {
            let mut waiter = Waiter::default();
            let mut waited = Predecessor { word, id, prev };
            while waited.target().is_some() {
                drive::round::<C, _>(&mut waiter, &mut waited, me, poll);
            }
        }
    }
    let mut waiter = Waiter::default();
    let mut waited = Owner { word, me, may_reserve: C::Hypervisor::RESERVES, reserved: false };
    loop {
        if word.snapshot().is_free() && word.claim_acquire(owner) {
            break;
        }
        if waiter.rounds() >= HEAD_ROUNDS {
            waited.commit();
        }
        drive::round::<C, _>(&mut waiter, &mut waited, me, poll);
    }
    if waited.reserved {
        word.open();
    }
    leave::<C>(word, id);
}

/// Passes headship on and gives the node back. The caller holds the lock and is head.
fn leave<C: Cpu>(word: &Word, id: NodeId) {
    if word.dequeue_last(id) {
        arena().free(id);
        return;
    }
    // ORDERING: AcqRel, pair NODE-LINK (the successor's swap in `queue`).
    let next = arena().node(id).next.swap(GONE, Ordering::AcqRel);
    debug_assert!(next != GONE, "left twice");
    if next == UNLINKED {
        // The successor finds GONE, is head, and frees our node: not a word of it is ours any more.
        return;
    }
    if let Some(next) = NodeId::from_raw(next) {
        // ORDERING: Release, pair HEAD-PASS (Acquire in `Predecessor::target`): the new head comes after our `open`.
        let state = arena().node(next).state.swap(HEAD, Ordering::Release);
        if let Some(halted) = CpuId::from_plus_one(state)
            && !word.publish_halt(halted)
        {
            // Only a lock freed by force under its owner is free here. The new head must not sleep on.
            C::Hypervisor::kick(halted);
        }
        // A new head that is halted stays so until we unlock: waking it now would only make it wait for us.
    }
    arena().free(id);
}

/// Waits without a node: no place in the queue and no halting, since nobody would know whom to kick.
///
/// For CPUs without a number, for a fifth nested wait, and for a wait that interrupted a wait for the same lock.
fn without_node<C: Cpu>(word: &Word, me: Option<CpuId>, owner: OwnerId, poll: &mut Poll<'_>) {
    let mut waiter = Waiter::default();
    let mut waited = Nodeless { word };
    while !claim(word, me, owner) {
        drive::round::<C, _>(&mut waiter, &mut waited, me, poll);
    }
}

/// A queued waiter waits for its predecessor to pass headship on.
struct Predecessor<'a> {
    word: &'a Word,
    id: NodeId,
    prev: NodeId,
}

impl Waited for Predecessor<'_> {
    const HALTS: bool = true;
    // It may well be halted itself, and it can do nothing for us but wait in turn.
    const YIELDS_FIRST: bool = false;

    fn target(&self) -> Option<CpuId> {
        // ORDERING: Acquire, pair HEAD-PASS (Release in `leave`).
        if arena().node(self.id).state.load(Ordering::Acquire) == HEAD { None } else { self.prev.cpu() }
    }

    /// It says so in its node while it is queued, and in the lock's word when it is head. It may have woken up since, and have the lock; then we
    /// halt for a section that we might have spun.
    fn has_halted(&self) -> bool {
        // ORDERING: Relaxed, a hint. The node may even be another wait's by now: then our own is head.
        let state = arena().node(self.prev).state.load(Ordering::Relaxed);
        CpuId::from_plus_one(state).is_some() || self.word.snapshot().halted() == self.prev.cpu()
    }

    /// Only a head may reserve. The predecessor does so before it yields in turn.
    fn commit(&mut self) {}

    fn publish_halt(&self, me: CpuId) -> bool {
        let state = &arena().node(self.id).state;
        let mut seen = state.load(Ordering::Relaxed);
        debug_assert!(seen == WAITING || seen == HEAD || CpuId::from_plus_one(seen).is_some());
        while seen != HEAD {
            // ORDERING: Relaxed. This and `leave`'s swap are read-modify-writes of one word, so one sees the other.
            match state.compare_exchange(seen, me.plus_one(), Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }
}

/// The head waits for the owner to release the lock.
struct Owner<'a> {
    word: &'a Word,
    me: Option<CpuId>,
    may_reserve: bool,
    reserved: bool,
}

impl Waited for Owner<'_> {
    const HALTS: bool = true;
    const YIELDS_FIRST: bool = true;

    fn target(&self) -> Option<CpuId> {
        self.word.snapshot().owner()
    }

    fn commit(&mut self) {
        if let Some(me) = self.me
            && !self.reserved
            && self.may_reserve
        {
            self.reserved = true;
            self.word.reserve(me);
            count(Some(me), Counter::Reserve);
        }
    }

    fn publish_halt(&self, me: CpuId) -> bool {
        self.word.publish_halt(me)
    }
}

/// A waiter outside the queue waits for the owner.
struct Nodeless<'a> {
    word: &'a Word,
}

impl Waited for Nodeless<'_> {
    const HALTS: bool = false;
    const YIELDS_FIRST: bool = true;

    fn target(&self) -> Option<CpuId> {
        self.word.snapshot().owner()
    }

    /// It has no right to reserve; its yields are bounded by the waiting policy's back-off.
    fn commit(&mut self) {}

    fn publish_halt(&self, _: CpuId) -> bool {
        false
    }
}

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_learns_that_the_one_before_it_has_halted() {
        let cpu = |index| CpuId::new(index).unwrap();
        let word = Word::new();
        assert!(word.claim_acquire(OwnerId::new(Some(cpu(40)))));
        let [first, second, third] = [41, 42, 43].map(|index| arena().claim(cpu(index), 0x1000).unwrap());
        for id in [first, second, third] {
            let prev = word.enqueue(id);
            prev.inspect(|&prev| arena().node(prev).next.store(id.raw(), Ordering::Relaxed));
        }
        let behind_first = Predecessor { word: &word, id: second, prev: first };
        let behind_second = Predecessor { word: &word, id: third, prev: second };
        assert!(!behind_first.has_halted() && !behind_second.has_halted());
        // A head says it in the lock's word, ...
        assert!(word.publish_halt(cpu(41)));
        assert!(behind_first.has_halted() && !behind_second.has_halted());
        // ... who comes after it in its node.
        assert!(behind_first.publish_halt(cpu(42)));
        assert!(behind_second.has_halted());
        for id in [first, second, third] {
            arena().free(id);
        }
    }
}
