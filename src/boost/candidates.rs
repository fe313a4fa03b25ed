//! Whom to boost when it is not known who is waited for: preempted CPUs only, round robin from the last one boosted.
//!
//! The search goes through the kernel's set of CPUs that are not idle ([`idle_begin`](super::idle_begin)), 64 per load, and looks at the
//! steal-time record of each of those: one cache line per CPU, which the host writes at every switch. The other form, the records alone,
//! is what a guest has without that set; a guest cannot keep a set of the preempted CPUs, as a host can.
//!
//! Measured, a search that finds nobody, in ns (`PVLOCK_MAX_CPUS=4096 cargo bench -p pvlock-bench --bench candidates`); before the second
//! figure of each pair another CPU has written all records:
//!
//! | CPUs | records alone | idle set, nobody idle | 1 in 8 idle | half idle | 7 in 8 idle |
//! |---|---|---|---|---|---|
//! | 2 | 11, 290 | 33, 670 | | | |
//! | 8 | 20, 550 | 41, 840 | 27, 950 | 35, 580 | 22, 330 |
//! | 64 | 110, 880 | 110, 800 | 150, 1080 | 74, 1150 | 49, 280 |
//! | 512 | 750, 5200 | 1090, 5300 | 710, 4400 | 530, 3000 | 130, 2300 |
//! | 4096 | 6800, 20000 | 8400, 31000 | 8400, 11000 | 3800, 21000 | 1300, 8400 |
//!
//! The set costs a few ns where nobody is idle, up to 40 % with hundreds of CPUs in the cache; it breaks even with one CPU in eight to one
//! in four idle, whatever their number, and wins in proportion from there. It alone knows whom *not* to boost, and a hypercall for nothing
//! costs more than any of this. So there is one form for all, and no search looks at more than `SEARCH` CPUs: the next goes on where it
//! ended.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::cpu_set::{CpuSet, WORD};
use super::idle::IDLE;
use crate::cpu::{Cpu, CpuId, MAX_CPUS};
use crate::hypervisor::{Hypervisor, Yielded};
use crate::stats::{Counter, count};
use crate::wait::drive::{may_yield, yield_to};

/// What came of an attempt to boost somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Boost {
    /// The host was asked to run `target` in place of the caller.
    Yielded {
        /// The CPU that was boosted.
        target: CpuId,
        /// Whether the caller was scheduled out for it. If not, the target may have been started on another physical CPU.
        outcome: Yielded,
    },
    /// No other CPU is preempted, but for those that the kernel knows to be idle. No hypercall was made. With more than 256 CPUs this is
    /// said of the 256 whose turn it was.
    NobodyPreempted,
    /// The last three yields of this CPU did nothing, and nothing has changed since. No hypercall was made.
    GivenUp,
    /// The host does not tell who is preempted or has no directed yield, or the kernel does not know which CPU this is.
    Unable,
}

/// Gives the caller's time slice to a preempted CPU, the next after the last one boosted; the caller stays runnable.
///
/// For code that has waited too long and does not know for whom: see the [module](super) for ready uses. Call it at most once per some
/// 100 rounds of spinning, since it reads other CPUs' steal-time records, and a yield needs a few µs to have its effect.
///
/// Interrupts may be on or off, and an interrupt or NMI handler may call it.
pub fn boost_any<C: Cpu>() -> Boost {
    let Some(me) = C::current().filter(|_| able::<C>()) else { return Boost::Unable };
    // The search comes first: while nobody is preempted, a look must not count as one refused.
    let last = LAST.load(Relaxed);
    let target = match next_preempted::<C::Hypervisor>(me, &IDLE, last) {
        Ok(target) => target,
        Err(last_looked_at) => {
            // Stays as it is with up to `SEARCH` CPUs: no write to a line that all read.
            if last_looked_at != last {
                LAST.store(last_looked_at, Relaxed);
            }
            return Boost::NobodyPreempted;
        }
    };
    if !may_yield::<C>(me) {
        return Boost::GivenUp;
    }
    // ORDERING: Relaxed, as for all of `LAST`: a hint. Before the yield, so that who runs instead goes on with the next one.
    LAST.store(target.index() as u32, Relaxed);
    count(Some(me), Counter::Boost);
    let outcome = yield_to::<C>(me, target);
    Boost::Yielded { target, outcome }
}

/// Whether the host can do anything for a foreign wait. Loads of constants, no look at other CPUs.
#[inline(always)]
pub(super) fn able<C: Cpu>() -> bool {
    C::Hypervisor::can_yield() && C::Hypervisor::sees_preempted()
}

/// Index of the CPU that was boosted last, by whomever: two CPUs that spin for the same lock do not both try the same sibling first, and
/// a boosted CPU that cannot go on either passes the slice on instead of back. Or where the last search ended.
static LAST: AtomicU32 = AtomicU32::new(0);

/// The most CPUs that one search looks at: about 2 µs when all their records have just been written.
const SEARCH: usize = 256;

/// The first of the next [`SEARCH`] CPUs after `last`, wrapping round, that is preempted, not `me`, and not in `idle`; or the last of them.
fn next_preempted<H: Hypervisor>(me: CpuId, idle: &CpuSet, last: u32) -> Result<CpuId, u32> {
    let limit = H::cpu_limit().clamp(1, MAX_CPUS);
    let last = last as usize % limit;
    let (start, end) = (last + 1, last + 1 + limit.min(SEARCH));
    first_preempted::<H>(me, idle, start, end.min(limit))
        .or_else(|| first_preempted::<H>(me, idle, 0, end.saturating_sub(limit)))
        .ok_or(((end - 1) % limit) as u32)
}

/// The first CPU of `from..to` that is preempted, not `me`, and not in `idle`.
fn first_preempted<H: Hypervisor>(me: CpuId, idle: &CpuSet, from: usize, to: usize) -> Option<CpuId> {
    for word in from / WORD..to.div_ceil(WORD) {
        let mut busy = !idle.word(word) & bits_from(from, word) & !bits_from(to, word);
        while busy != 0 {
            let index = word * WORD + busy.trailing_zeros() as usize;
            busy &= busy - 1;
            if let Some(cpu) = CpuId::new(index as u32).filter(|&cpu| cpu != me && H::is_preempted(cpu)) {
                return Some(cpu);
            }
        }
    }
    None
}

/// The bits of word `word` that stand for CPUs of `from` and above.
fn bits_from(from: usize, word: usize) -> u64 {
    match from.saturating_sub(word * WORD) {
        passed if passed < WORD => u64::MAX << passed,
        _ => 0,
    }
}

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// A host with the preempted CPUs and the limit that the test sets; it notes whom it was asked for.
    enum Host {}

    thread_local! {
        static PREEMPTED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
        static LIMIT: Cell<usize> = const { Cell::new(MAX_CPUS) };
        static ASKED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    /// CPU 0 of a guest on that host.
    enum Kernel {}

    impl Cpu for Kernel {
        type Hypervisor = Host;
        fn current() -> Option<CpuId> {
            CpuId::new(0)
        }
    }

    impl Hypervisor for Host {
        fn sees_preempted() -> bool {
            true
        }
        fn is_preempted(cpu: CpuId) -> bool {
            ASKED.with_borrow_mut(|asked| asked.push(cpu.index()));
            PREEMPTED.with_borrow(|preempted| preempted.contains(&cpu.index()))
        }
        fn cpu_limit() -> usize {
            LIMIT.get()
        }
        fn can_yield() -> bool {
            true
        }
        fn yield_to(_: CpuId, _: CpuId) -> Yielded {
            Yielded::Nothing
        }
        fn can_halt() -> bool {
            false
        }
        fn may_halt(_: CpuId) -> bool {
            false
        }
        fn halt(_: bool) {}
        fn kick(_: CpuId) {}
    }

    fn cpu(index: usize) -> CpuId {
        CpuId::new(index as u32).unwrap()
    }

    /// Who is found after `last`, by CPU `me`, when `preempted` are.
    fn find(preempted: &[usize], idle: &CpuSet, me: usize, last: u32) -> Option<usize> {
        PREEMPTED.set(preempted.to_vec());
        ASKED.take();
        next_preempted::<Host>(cpu(me), idle, last).ok().map(CpuId::index)
    }

    #[test]
    fn goes_round_from_the_last_one() {
        let nobody_idle = CpuSet::new();
        LIMIT.set(SEARCH);
        let preempted = [1, 63, 64, 65, 200, SEARCH - 1];
        let mut last = 0;
        for &expected in preempted.iter().chain(&preempted) {
            last = find(&preempted, &nobody_idle, 0, last).unwrap() as u32;
            assert_eq!(last as usize, expected);
        }
    }

    #[test]
    fn looks_at_each_other_cpu_once_and_never_at_itself() {
        const ALL: usize = SEARCH - 1;
        LIMIT.set(ALL);
        assert_eq!(find(&[], &CpuSet::new(), 70, 100), None);
        let mut asked = ASKED.take();
        assert_eq!(asked[0], 101);
        asked.sort_unstable();
        assert_eq!(asked, (0..ALL).filter(|&index| index != 70).collect::<Vec<_>>());
        assert_eq!(find(&[70], &CpuSet::new(), 70, 100), None);
    }

    #[test]
    fn a_search_ends_after_so_many_and_the_next_goes_on_there() {
        let nobody_idle = CpuSet::new();
        let (mut last, mut asked) = (MAX_CPUS as u32 - 10, Vec::new());
        for _ in 0..MAX_CPUS.div_ceil(SEARCH) {
            last = next_preempted::<Host>(cpu(0), &nobody_idle, last).unwrap_err();
            let batch = ASKED.take();
            assert!(batch.len() <= SEARCH);
            asked.extend(batch);
        }
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked, (1..MAX_CPUS).collect::<Vec<_>>());
    }

    #[test]
    fn boosts_go_on_where_the_last_search_in_vain_has_ended() {
        LIMIT.set(MAX_CPUS);
        PREEMPTED.take();
        ASKED.take();
        for _ in 0..MAX_CPUS.div_ceil(SEARCH) {
            assert_eq!(boost_any::<Kernel>(), Boost::NobodyPreempted);
        }
        let mut asked = ASKED.take();
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked, (1..MAX_CPUS).collect::<Vec<_>>(), "each search looks at the same CPUs");
    }

    #[test]
    fn with_few_cpus_a_vain_search_leaves_the_turn_as_it_is() {
        LIMIT.set(SEARCH);
        for last in [0, 1, 100, SEARCH as u32 - 1] {
            assert_eq!(next_preempted::<Host>(cpu(0), &CpuSet::new(), last), Err(last));
        }
    }

    #[test]
    fn idle_cpus_are_not_even_looked_at() {
        let idle = CpuSet::new();
        for index in (0..MAX_CPUS).filter(|index| index % 10 != 3) {
            idle.insert(cpu(index));
        }
        assert_eq!(find(&[4, 5, 33], &idle, 0, 0), Some(33));
        assert_eq!(ASKED.take(), [3, 13, 23, 33]);
        idle.remove(cpu(4));
        assert_eq!(find(&[4, 5, 33], &idle, 0, 0), Some(4));
    }

    #[test]
    fn ends_at_the_highest_cpu_that_there_is() {
        for limit in [0, 1, 2, 63, 64, 65, 130] {
            LIMIT.set(limit);
            for last in [0, 1, 62, 63, 64, 129, MAX_CPUS as u32 - 1, u32::MAX - 1] {
                assert_eq!(find(&[], &CpuSet::new(), 0, last), None);
                let mut asked = ASKED.take();
                asked.sort_unstable();
                assert_eq!(asked, (1..limit).collect::<Vec<_>>(), "limit {limit}, last {last}");
            }
        }
    }
}
