//! [`OsqLock`]: the optimistic spin queue, an MCS queue that a waiter can leave.
//!
//! It orders those who spin for the owner of a sleeping lock: one spins on the lock itself, the others each on a line of their own. Who
//! should not spin any more leaves the queue and sleeps: when its CPU has other work, or when the vCPU before it is preempted, since then
//! its turn will not come soon.
//!
//! ```text
//!            enqueue                      hand-over by the one before
//!   (out) ───────────▶ WAITING ─────────────────────────────────────▶ HEAD ── unlock ──▶ (out)
//!    ▲                    │ leave                                        ▲
//!    │                    ▼                                              │ came first
//!    │      A: cut the link from `prev` to me ────── prev handed over ───┘
//!    │      B: be the last no more (tail: me -> prev), or take my `next`
//!    └───── C: join `prev` and `next`
//! ```
//!
//! | step | acts on | who may race | how it ends |
//! |---|---|---|---|
//! | A | `prev.next`: me → none, by compare-exchange | `prev` hands over (takes its `next`) | one of the two gets the link: either I am head, or I go on leaving |
//! | A | the same | `prev` leaves too | its step B has taken the link; I wait until its step C gives me another `prev` |
//! | B | tail: me → `prev`, by compare-exchange | a newcomer takes the tail | I am not last, so it links itself to me; I wait for that and take the link |
//! | B | `me.next`: next → none, by compare-exchange | `next` leaves too (its step A) | one of the two gets the link: if `next` did, it will make me last or give me another `next` |
//! | C | `next.prev`, `prev.next` | nobody | `prev` cannot hand over or leave while it has no `next` and is not last (its step B waits), and neither can `next` while its `prev` is out of the queue (its step A waits) |
//!
//! The waits in A and B are for a neighbour to take a few instructions. It may be preempted in the middle of them: they are waits like any
//! other, with the one policy.
//!
//! Invariants:
//! 1. A node's CPU is in its number and never changes, so asking whether the one before is preempted races with nothing.
//! 2. A node is given back by its own CPU's waiter when no link and no tail names it any more: after step C, or after the hand-over.

use core::fmt;
use core::marker::PhantomData;

use super::node::{HEAD, NodeId, UNLINKED, arena};
use crate::cpu::{Cpu, CpuId};
use crate::hypervisor::Hypervisor;
use crate::stats::{Counter, count};
use crate::sync::{AtomicU16, Ordering, const_fn, spin_loop};
use crate::wait::Waiter;
use crate::wait::budget::LOOK_EVERY;
use crate::wait::drive::{self, Waited};

/// A queue of optimistic spinners, 2 bytes. It protects nothing: who has it is the one to spin.
///
/// Waiting spins and never sleeps or halts. Kernels that deschedule tasks forbid that while it is waited for and held
/// ([`Cpu::preempt_disable`]).
#[repr(transparent)]
pub struct OsqLock<C> {
    /// 0, or the number of the last node.
    tail: AtomicU16,
    _cpu: PhantomData<fn() -> C>,
}

/// That the queue's head is the caller; [`OsqLock::unlock`] takes it. Dropping it blocks the queue.
#[derive(Debug)]
#[must_use = "the queue is blocked until the token is given back"]
pub struct OsqToken(NodeId);

impl<C: Cpu> OsqLock<C> {
    const_fn! {
        /// An empty queue.
        #[must_use]
        pub const fn new() -> Self {
            Self { tail: AtomicU16::new(0), _cpu: PhantomData }
        }
    }

    /// Waits to be the head of the queue. `None`: it is not worth waiting any more, since `give_up` said so or [`Cpu::need_resched`], or
    /// because the vCPU before the caller is preempted; or the CPU does not know its number, or has no free queue node.
    ///
    /// Acquire, with the Release of [`unlock`](Self::unlock).
    pub fn lock(&self, mut give_up: impl FnMut() -> bool) -> Option<OsqToken> {
        let me = C::current();
        let id = arena().claim(me?, self as *const Self as usize).ok()?;
        // ORDERING: AcqRel. Release, pair OSQ-PUBLISH (Acquire here, in the successor): it sees our node initialised. Acquire: we see that
        // the last head has done, if there was one, and the predecessor's node initialised.
        let Some(mut prev) = NodeId::from_raw(self.tail.swap(id.raw(), Ordering::AcqRel)) else {
            return Some(OsqToken(id));
        };
        let node = arena().node(id);
        node.prev.store(prev.raw(), Ordering::Relaxed);
        // ORDERING: Release, pair OSQ-LINK (Acquire in `take_next`): who finds the link sees `prev` set, and may set it anew.
        arena().node(prev).next.store(id.raw(), Ordering::Release);
        let mut until_look = 0;
        loop {
            if is_head(id) {
                return Some(OsqToken(id));
            }
            let looks = until_look == 0;
            until_look = if looks { LOOK_EVERY - 1 } else { until_look - 1 };
            let why = if looks && prev.cpu().is_some_and(C::Hypervisor::is_preempted) {
                Some(Counter::SpinPreempted)
            } else if C::need_resched() || give_up() {
                Some(Counter::SpinResched)
            } else {
                None
            };
            if let Some(why) = why {
                count(me, why);
                return self.leave(id, prev).then_some(OsqToken(id));
            }
            C::relax();
            spin_loop();
            prev = previous(id).unwrap_or(prev);
        }
    }

    /// Makes the next in the queue its head. Release, with the Acquire of [`lock`](Self::lock).
    pub fn unlock(&self, token: OsqToken) {
        let id = token.0;
        if let Some(next) = self.take_next(id, None) {
            // ORDERING: Release, pair OSQ-HANDOVER (Acquire in `is_head`).
            arena().node(next).state.store(HEAD, Ordering::Release);
        }
        arena().free(id);
    }

    /// Whether somebody spins or waits to. A hint.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.tail.load(Ordering::Relaxed) != 0
    }

    /// Leaves the queue. `true`: the hand-over came first, the caller is head.
    fn leave(&self, id: NodeId, mut prev: NodeId) -> bool {
        // Step A.
        let mut waiter = Waiter::default();
        loop {
            // ORDERING: Acquire on success, pair OSQ-LINK: the link may come from a neighbour's step C.
            let cut =
                arena().node(prev).next.compare_exchange(id.raw(), UNLINKED, Ordering::Acquire, Ordering::Relaxed);
            if cut.is_ok() {
                break;
            }
            if is_head(id) {
                return true;
            }
            wait::<C>(&mut waiter, prev.cpu(), || is_head(id) || previous(id) != Some(prev));
            prev = previous(id).unwrap_or(prev);
        }
        // Step B.
        if let Some(next) = self.take_next(id, Some(prev)) {
            // Step C.
            // ORDERING: Release, pair OSQ-PREV (Acquire in `previous`): who finds another `prev` finds our own leaving done.
            arena().node(next).prev.store(prev.raw(), Ordering::Release);
            // ORDERING: Release, pair OSQ-LINK (Acquire in `take_next` and in step A).
            arena().node(prev).next.store(next.raw(), Ordering::Release);
        }
        arena().free(id);
        false
    }

    /// Makes `prev` the last in place of `id`, or takes the link from `id` to its successor.
    fn take_next(&self, id: NodeId, prev: Option<NodeId>) -> Option<NodeId> {
        let node = arena().node(id);
        let mut waiter = Waiter::default();
        loop {
            // ORDERING: Release, pair OSQ-PUBLISH (Acquire in `lock`'s swap): a newcomer comes after all that we did.
            let before = prev.map_or(0, NodeId::raw);
            if self.tail.load(Ordering::Relaxed) == id.raw()
                && self.tail.compare_exchange(id.raw(), before, Ordering::Release, Ordering::Relaxed).is_ok()
            {
                return None;
            }
            let next = node.next.load(Ordering::Relaxed);
            // ORDERING: Acquire, pair OSQ-LINK. It fails when the successor cuts the link to leave.
            if next != UNLINKED
                && node.next.compare_exchange(next, UNLINKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return NodeId::from_raw(next);
            }
            // Who comes next is not known yet; if it is the only one, it is the last.
            let last = || NodeId::from_raw(self.tail.load(Ordering::Relaxed));
            let target = last().filter(|&last| last != id).and_then(NodeId::cpu);
            wait::<C>(&mut waiter, target, || node.next.load(Ordering::Relaxed) != UNLINKED || last() == Some(id));
        }
    }

    /// Whether the queue is empty.
    #[cfg(any(test, pvlock_loom))]
    #[doc(hidden)]
    pub fn is_quiet(&self) -> bool {
        !self.is_locked()
    }
}

fn is_head(id: NodeId) -> bool {
    // ORDERING: Acquire, pair OSQ-HANDOVER (Release in `unlock`).
    arena().node(id).state.load(Ordering::Acquire) == HEAD
}

fn previous(id: NodeId) -> Option<NodeId> {
    // ORDERING: Acquire, pair OSQ-PREV (Release in step C).
    NodeId::from_raw(arena().node(id).prev.load(Ordering::Acquire))
}

/// One round of waiting for a neighbour on `target` to take its next step; `done` says that it has.
fn wait<C: Cpu>(waiter: &mut Waiter, target: Option<CpuId>, done: impl Fn() -> bool) {
    drive::round::<C, _>(waiter, &mut Neighbour { target, done }, C::current(), &mut None);
}

struct Neighbour<F> {
    target: Option<CpuId>,
    done: F,
}

impl<F: Fn() -> bool> Waited for Neighbour<F> {
    const HALTS: bool = false;
    const YIELDS_FIRST: bool = true;

    fn target(&self) -> Option<CpuId> {
        if (self.done)() { None } else { self.target }
    }

    /// The neighbour's step is all there is to wait for.
    fn commit(&mut self) {}

    fn publish_halt(&self, _: CpuId) -> bool {
        false
    }
}

impl<C: Cpu> Default for OsqLock<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Cpu> fmt::Debug for OsqLock<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OsqLock").field("locked", &self.is_locked()).finish()
    }
}
