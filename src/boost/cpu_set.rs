//! [`CpuSet`]: a set of CPUs that many may change at once, without memory of its own to allocate.

use core::fmt;
use core::iter::FusedIterator;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire},
};

use crate::cpu::{CpuId, MAX_CPUS};

/// CPUs per word.
pub(super) const WORD: usize = u64::BITS as usize;

const WORDS: usize = MAX_CPUS.div_ceil(WORD);

/// A set of CPUs, one bit each: 64 bytes for up to 512 CPUs ([`MAX_CPUS`]).
///
/// It is meant to lie in what it belongs to (an address space, a request, a CPU's own data) and to be borrowed from there. With thousands
/// of CPUs it is too large for the stacks of many kernels.
///
/// A kernel that only counts the answers to a request can use a set instead of the counter: all targets are inserted before the request is
/// visible, each removes itself afterwards, and nobody inserts any more; then it is also known *whose* answer is missing.
///
/// Changes are one locked instruction each. What was written before a change is seen by who finds it made.
// In whole cache lines: other data beside a set would suffer from every change.
#[repr(align(64))]
pub struct CpuSet([AtomicU64; WORDS]);

impl CpuSet {
    /// No CPU.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    // ORDERING (of all): changes AcqRel, pair BOOST-SET (Acquire in `word`): whoever sees that a CPU has left sees what it did before.

    /// Adds `cpu`.
    #[inline]
    pub fn insert(&self, cpu: CpuId) {
        self.0[cpu.index() / WORD].fetch_or(1 << (cpu.index() % WORD), AcqRel);
    }

    /// Takes `cpu` out; no harm if it is not in.
    #[inline]
    pub fn remove(&self, cpu: CpuId) {
        self.0[cpu.index() / WORD].fetch_and(!(1 << (cpu.index() % WORD)), AcqRel);
    }

    /// Whether `cpu` is in.
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.word(cpu.index() / WORD) >> (cpu.index() % WORD) & 1 != 0
    }

    /// Whether no CPU is in, word by word: a set that changes meanwhile may never have been in the state that this tells of.
    pub fn is_empty(&self) -> bool {
        (0..WORDS).all(|word| self.word(word) == 0)
    }

    /// The CPUs in it, by rising number. Of CPUs that come or go meanwhile, some are seen.
    pub fn iter(&self) -> Iter<'_> {
        Iter { set: self, word: 0, bits: self.word(0) }
    }

    /// The CPUs of one word, lowest first from bit 0.
    #[inline]
    pub(super) fn word(&self, word: usize) -> u64 {
        // ORDERING: Acquire, pair BOOST-SET (AcqRel in `insert` and `remove`).
        self.0[word].load(Acquire)
    }
}

impl Default for CpuSet {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(CpuId::index)).finish()
    }
}

impl Extend<CpuId> for &CpuSet {
    fn extend<T: IntoIterator<Item = CpuId>>(&mut self, cpus: T) {
        cpus.into_iter().for_each(|cpu| self.insert(cpu));
    }
}

impl<'a> IntoIterator for &'a CpuSet {
    type Item = CpuId;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// The CPUs of a [`CpuSet`], by rising number.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    set: &'a CpuSet,
    word: usize,
    /// What is left of that word.
    bits: u64,
}

impl Iterator for Iter<'_> {
    type Item = CpuId;

    fn next(&mut self) -> Option<CpuId> {
        while self.bits == 0 {
            if self.word + 1 >= WORDS {
                return None;
            }
            self.word += 1;
            self.bits = self.set.word(self.word);
        }
        let index = self.word * WORD + self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        CpuId::new(index as u32)
    }
}

impl FusedIterator for Iter<'_> {}

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::*;

    fn cpu(index: usize) -> CpuId {
        CpuId::new(index as u32).unwrap()
    }

    #[test]
    fn holds_what_was_put_in_once() {
        let set = CpuSet::new();
        assert!(set.is_empty());
        let members = [0, 1, 63, 64, 127, 300, MAX_CPUS - 1];
        (&set).extend(members.iter().rev().chain(&members).map(|&index| cpu(index)));
        assert_eq!(set.iter().map(CpuId::index).collect::<Vec<_>>(), members);
        assert!(members.iter().all(|&index| set.contains(cpu(index))) && !set.contains(cpu(2)));
        assert_eq!(format!("{set:?}"), format!("{{0, 1, 63, 64, 127, 300, {}}}", MAX_CPUS - 1));
    }

    #[test]
    fn removing_empties_it() {
        let set = CpuSet::default();
        (&set).extend([3, 70].map(cpu));
        set.remove(cpu(3));
        set.remove(cpu(3));
        assert_eq!(set.iter().collect::<Vec<_>>(), [cpu(70)]);
        set.remove(cpu(70));
        assert!(set.is_empty() && set.iter().next().is_none());
    }

    #[test]
    fn a_copy_of_an_iterator_goes_on_by_itself() {
        let set = CpuSet::new();
        (&set).extend([5, 6, 100].map(cpu));
        let mut rest = set.iter();
        rest.next();
        let copy = rest.clone();
        assert!(rest.eq(copy));
    }
}
