//! What hosts do differently, each switchable by itself, and the choice of whom an undirected yield boosts.

/// Whom the host considers when a vCPU is caught spinning and it is not known for whom (a pause-loop exit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YieldCandidates {
    /// Every sibling, round robin from the last one boosted. Tries in vain those that run.
    All,
    /// Siblings whose preempted flag is set, found by looking at each.
    Flag,
    /// The same siblings, found in a bitmap.
    Bitmap,
}

/// When an undirected yield gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BailOut {
    /// Never: it tries every candidate.
    Off,
    /// After three candidates in a row for whom there was nothing to do, which mostly means that nobody waits for a CPU.
    /// Three, since giving up wrongly then has a chance of 1/16 at 1.5 vCPUs per CPU.
    AfterThree,
}

/// Whether ticks look for busy-spinning vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusySpinDetector {
    /// They do not. One tick per slice.
    Off,
    /// A vCPU that is at the same instruction at two ticks in a row, with no other exit in between, is taken for one that
    /// spins, and yields, if a sibling is preempted. [`TICKS_PER_SLICE`] ticks per slice.
    TwoTicks,
}

/// Ticks per slice while the busy-spin detector is on: with one only, each tick would end the slice anyway.
pub const TICKS_PER_SLICE: u32 = 4;

/// Whether a preempted vCPU in user mode, which holds no kernel lock, may be boosted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverBoost {
    /// Never.
    Off,
    /// If it has an interrupt to take: somebody may be waiting for its answer.
    On,
}

/// What a kick does besides waking its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// Nothing.
    Wakes,
    /// The kicker also yields to the target, as KVM's KICK_CPU does.
    WakesAndYields,
}

/// What makes a vCPU that leaves its CPU read as preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreemptedFlag {
    /// Whatever makes it leave, as KVM did before Linux 5.18.
    AnyExit,
    /// An interrupt of the host, at the end of a slice above all, and not a halt or another exit of its own: since Linux 5.18 (commit
    /// 6cd88243c7e0), since only then the vCPU is known to be between two instructions.
    InterruptOnly,
}

/// All policies together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policies {
    /// Candidates of undirected yields.
    pub candidates: YieldCandidates,
    /// When undirected yields give up.
    pub bail_out: BailOut,
    /// Busy-spin detector.
    pub detector: BusySpinDetector,
    /// Boost of interrupt receivers.
    pub receiver_boost: ReceiverBoost,
    /// Effect of a kick.
    pub kick: Kick,
    /// Who reads as preempted.
    pub flag: PreemptedFlag,
}

impl Policies {
    /// What KVM does today.
    pub const KVM: Self = Self {
        candidates: YieldCandidates::Flag,
        bail_out: BailOut::AfterThree,
        detector: BusySpinDetector::Off,
        receiver_boost: ReceiverBoost::On,
        kick: Kick::WakesAndYields,
        flag: PreemptedFlag::InterruptOnly,
    };
}

/// A set of vCPUs, iterated from any point on with find-next-bit.
#[derive(Debug)]
pub(crate) struct VcpuSet(Vec<u64>);

impl VcpuSet {
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    pub(crate) fn insert(&mut self, vcpu: usize) {
        self.0[vcpu / 64] |= 1 << (vcpu % 64);
    }

    pub(crate) fn remove(&mut self, vcpu: usize) {
        self.0[vcpu / 64] &= !(1 << (vcpu % 64));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// The first member at or after `from`, not wrapping round.
    pub(crate) fn next_at_or_after(&self, from: usize) -> Option<usize> {
        let first = from / 64;
        let masked = self.0.get(first)? & (u64::MAX << (from % 64));
        let rest = self.0[first + 1..].iter().copied();
        core::iter::once(masked)
            .chain(rest)
            .enumerate()
            .find(|&(_, word)| word != 0)
            .map(|(i, word)| (first + i) * 64 + word.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_finds_the_next_member_across_words() {
        let mut set = VcpuSet::new(130);
        assert!(set.is_empty());
        for vcpu in [0, 63, 64, 129] {
            set.insert(vcpu);
        }
        assert_eq!(set.next_at_or_after(0), Some(0));
        assert_eq!(set.next_at_or_after(1), Some(63));
        assert_eq!(set.next_at_or_after(65), Some(129));
        assert_eq!(set.next_at_or_after(130), None);
        assert_eq!(set.next_at_or_after(1000), None);
        set.remove(129);
        assert_eq!(set.next_at_or_after(65), None);
    }
}
