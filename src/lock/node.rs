//! The queue nodes: four per CPU in one static arena, found by number, so that queues need no pointers and no `unsafe`.
//!
//! A node is claimed and given back with one atomic bit, not counted: a waiter that its kernel deschedules or migrates may give
//! back its node from another CPU and in any order.

use crate::cpu::{CpuId, MAX_CPUS};
use crate::sync::{AtomicU16, AtomicU32, AtomicUsize, Ordering, const_fn};

/// Nested waits of one CPU that get a node: task, soft interrupt, interrupt, NMI.
pub(crate) const LEVELS: u16 = 4;

/// A node's number: `(CPU index + 1) * 4 + level`, so never 0, which means "none".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct NodeId(u16);

// A CPU index plus one in 14 bits, and neither `HEAD` nor `GONE` is a node or a CPU.
static_assertions::const_assert!(MAX_CPUS < (u16::MAX >> 2) as usize);

impl NodeId {
    fn new(cpu: CpuId, level: u16) -> Self {
        Self(cpu.plus_one() << 2 | level)
    }

    /// `None` for 0.
    pub(crate) fn from_raw(raw: u16) -> Option<Self> {
        (raw != 0).then_some(Self(raw))
    }

    pub(crate) fn raw(self) -> u16 {
        self.0
    }

    /// The CPU that claimed the node. Constant while the node is in use, so a successor may read it at any time.
    pub(crate) fn cpu(self) -> Option<CpuId> {
        CpuId::from_plus_one(self.0 >> 2)
    }

    fn bit(self) -> u32 {
        1 << (self.0 & 3)
    }
}

/// `Node::state`: in the queue, not yet its head. Any other value than this and [`HEAD`] is a halted CPU's index plus one.
pub(crate) const WAITING: u16 = 0;
/// `Node::state`: head of the queue.
pub(crate) const HEAD: u16 = u16::MAX;
/// `Node::next`: nobody has linked himself yet.
pub(crate) const UNLINKED: u16 = 0;
/// `Node::next`: the head has left before its successor linked itself; the successor is head, and frees this node.
pub(crate) const GONE: u16 = u16::MAX;

/// One waiter in one queue. A cache line of its own: the waiter spins on it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Node {
    /// [`WAITING`], a halted CPU's index plus one, or [`HEAD`].
    pub(crate) state: AtomicU16,
    /// [`UNLINKED`], the successor's number, or [`GONE`].
    pub(crate) next: AtomicU16,
    /// The predecessor's number, in queues that can be left ([`OsqLock`](super::osq::OsqLock)).
    pub(crate) prev: AtomicU16,
    /// Address of the lock that is waited for; 0 in a free node. Only ever compared, by the same CPU.
    lock: AtomicUsize,
}

impl Node {
    const_fn! {
        const fn new() -> Self {
            Self { state: AtomicU16::new(WAITING), next: AtomicU16::new(UNLINKED), prev: AtomicU16::new(0), lock: AtomicUsize::new(0) }
        }
    }
}

/// The nodes of one CPU.
#[derive(Debug)]
#[repr(align(64))]
struct PerCpu {
    /// One bit per node in use.
    used: AtomicU32,
    nodes: [Node; LEVELS as usize],
}

impl PerCpu {
    const_fn! {
        const fn new() -> Self {
            Self { used: AtomicU32::new(0), nodes: [Node::new(), Node::new(), Node::new(), Node::new()] }
        }
    }
}

/// All nodes of all CPUs.
#[derive(Debug)]
pub(crate) struct Arena([PerCpu; MAX_CPUS]);

#[cfg(not(pvlock_loom))]
static ARENA: Arena = Arena([const { PerCpu::new() }; MAX_CPUS]);
#[cfg(pvlock_loom)]
loom::lazy_static! {
    static ref ARENA: Arena = Arena(core::array::from_fn(|_| PerCpu::new()));
}

/// The arena.
#[inline]
pub(crate) fn arena() -> &'static Arena {
    &ARENA
}

/// Why a waiter gets no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoNode;

impl Arena {
    /// Claims a free node of `cpu` for waiting for the lock at address `lock`, initialised and invisible to others.
    ///
    /// Fails when all four are in use, and when an interrupted or descheduled waiter of the same CPU waits for the *same* lock: queueing
    /// behind it would be waiting for oneself.
    pub(crate) fn claim(&self, cpu: CpuId, lock: usize) -> Result<NodeId, NoNode> {
        let slots = &self.0[cpu.index()];
        let ids = || (0..LEVELS).map(|level| NodeId::new(cpu, level));
        // ORDERING: Relaxed. An interrupt that comes between this read and the claim gives back all that it claimed.
        let used = slots.used.load(Ordering::Relaxed);
        let same = |id: NodeId| used & id.bit() != 0 && self.node(id).lock.load(Ordering::Relaxed) == lock;
        if ids().any(same) {
            return Err(NoNode);
        }
        for id in ids().filter(|id| used & id.bit() == 0) {
            // ORDERING: Acquire, pair NODE-FREE (Release in `free`): whoever freed the node has done with it.
            if slots.used.fetch_or(id.bit(), Ordering::Acquire) & id.bit() == 0 {
                let node = self.node(id);
                // ORDERING: Relaxed, the node is ours alone until the tail publishes it (pair NODE-PUBLISH).
                node.state.store(WAITING, Ordering::Relaxed);
                node.next.store(UNLINKED, Ordering::Relaxed);
                node.lock.store(lock, Ordering::Relaxed);
                return Ok(id);
            }
        }
        Err(NoNode)
    }

    /// Gives a node back. The caller is the last who touches it: nobody can find its number any more.
    pub(crate) fn free(&self, id: NodeId) {
        let Some(cpu) = id.cpu() else { return };
        self.node(id).lock.store(0, Ordering::Relaxed);
        // ORDERING: Release, pair NODE-FREE (Acquire in `claim`).
        self.0[cpu.index()].used.fetch_and(!id.bit(), Ordering::Release);
    }

    /// The node with this number.
    #[inline]
    pub(crate) fn node(&self, id: NodeId) -> &Node {
        // `id` was made by `claim` from a checked CPU; its index is in range.
        let index = (id.0 >> 2) as usize - 1;
        &self.0[index].nodes[(id.0 & 3) as usize]
    }

    /// How many nodes of `cpu` are in use.
    #[cfg(all(test, not(pvlock_loom)))]
    fn in_use(&self, cpu: CpuId) -> u32 {
        self.0[cpu.index()].used.load(Ordering::Relaxed).count_ones()
    }
}

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::*;

    #[test]
    fn four_levels_and_no_fifth() {
        let cpu = CpuId::new(7).unwrap();
        let ids: Vec<_> = (1..=4).map(|lock| arena().claim(cpu, lock).unwrap()).collect();
        assert_eq!(arena().claim(cpu, 5), Err(NoNode));
        assert!(ids.iter().all(|id| id.cpu() == Some(cpu)));
        // Given back in another order than claimed, as migrating tasks do.
        arena().free(ids[2]);
        assert_eq!(arena().claim(cpu, 6), Ok(ids[2]));
        for id in ids {
            arena().free(id);
        }
        assert_eq!(arena().in_use(cpu), 0);
    }

    #[test]
    fn a_second_wait_for_the_same_lock_gets_no_node() {
        let cpu = CpuId::new(8).unwrap();
        let outer = arena().claim(cpu, 0x1000).unwrap();
        assert_eq!(arena().claim(cpu, 0x1000), Err(NoNode));
        let inner = arena().claim(cpu, 0x2000).unwrap();
        arena().free(inner);
        arena().free(outer);
        assert_eq!(arena().in_use(cpu), 0);
    }

    /// An interrupt arrives after the interrupted waiter took its slot and before it initialised it (powerpc 734ad0af3609).
    #[test]
    fn an_interrupt_in_the_claim_window_leaves_the_slot_alone() {
        let cpu = CpuId::new(9).unwrap();
        let stale = arena().claim(cpu, 0x1000).unwrap();
        arena().node(stale).next.store(77, Ordering::Relaxed);
        arena().free(stale);
        // The interrupted claim has come as far as its bit.
        arena().0[cpu.index()].used.fetch_or(stale.bit(), Ordering::Relaxed);
        // The interrupt waits for the very lock whose address the slot held last: the stale address must not match.
        let inner = arena().claim(cpu, 0x1000).expect("a stale address matched");
        assert_ne!(inner, stale);
        arena().node(inner).next.store(88, Ordering::Relaxed);
        arena().free(inner);
        assert_eq!(arena().node(stale).next.load(Ordering::Relaxed), 77, "a foreign node was written");
        arena().free(stale);
        assert_eq!(arena().in_use(cpu), 0);
    }

    #[test]
    fn node_numbers_round_trip_for_every_cpu() {
        for cpu in (0..MAX_CPUS as u32).map(|i| CpuId::new(i).unwrap()) {
            for level in 0..LEVELS {
                let id = NodeId::new(cpu, level);
                assert_eq!(NodeId::from_raw(id.raw()), Some(id));
                assert_eq!(id.cpu(), Some(cpu));
                assert!(id.raw() != HEAD && id.raw() != GONE && cpu.plus_one() != HEAD);
            }
        }
        assert_eq!(NodeId::from_raw(0), None);
    }

    #[test]
    fn one_cache_line_each() {
        assert_eq!(core::mem::size_of::<Node>(), 64);
        assert_eq!(core::mem::size_of::<PerCpu>(), 320);
    }
}
