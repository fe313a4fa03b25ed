//! [`Relax`]: what a foreign spin loop calls in each round, so that a long wait boosts somebody and a short one costs nothing.
//!
//! A relax hook is told nothing: not the lock, not whether this round goes on with the last one's wait. Yet only a long wait may give the
//! time slice away; a CPU that takes a busy lock again and again, each time after a few rounds, must not. The time-stamp counter tells them
//! apart. Rounds of one wait for a stopped owner find the lock's line in the cache, so they take a pause each and little more; between
//! rounds of different waits lie critical sections and cache misses. So a *window* of rounds is taken for one wait if it took hardly longer
//! than that many rounds take by themselves, and some windows in a row for a long wait:
//!
//! | window | windows in a row so far | next | |
//! |---|---|---|---|
//! | took longer | any | 0 | short waits, or this vCPU itself was off its CPU |
//! | rounds only | fewer than `LONG_WAIT - 1` | one more | |
//! | rounds only | `LONG_WAIT - 1` | 0 | boost somebody ([`boost_any`]) |
//!
//! How long a round takes (a pause alone is 40 to 140 cycles on silicon) is measured at the end of each window.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::candidates::{able, boost_any};
use super::tsc::rdtsc;
use crate::cpu::{Cpu, CpuId, MAX_CPUS};
use crate::sync::spin_loop;

/// Rounds per window, a power of two. Many against the two readings of the counter at its end, few against what a wait may cost.
const WINDOW: u32 = 64;

/// Windows of nothing but rounds that make a wait a long one: 128 rounds, 3 to 8 µs.
///
/// Measured on the test host, 8 vCPUs on 2 CPUs, one `spin` mutex, million acquisitions per second with empty sections and longest wait in
/// ms: 1 window 3.3 and 7, two 3.0 and 9, four 2.8 and 20, eight 2.3 and 53, sixteen 1.9 and 88; plain spinning 0.9 and 240. With sections
/// of 2 and 10 µs, longer than the wait, and with exits of 50 µs instead of 1, it hardly matters. One is too quick a verdict: it rests on a
/// single reading of the counter.
const LONG_WAIT: u32 = 2;

/// What spinning code does in each round while it waits, for locks that take a strategy by type. `C` names the kernel's [`Cpu`].
///
/// With the feature `spin` it is a `spin::RelaxStrategy` (of `spin` 0.12), and everything in that crate takes it:
///
/// ```
/// # #[cfg(feature = "spin")] {
/// # struct MyCpu;
/// # impl pvlock::Cpu for MyCpu {
/// #     type Hypervisor = pvlock::hypervisor::Kvm;
/// #     fn current() -> Option<pvlock::CpuId> { pvlock::CpuId::new(0) }
/// # }
/// type Mutex<T> = spin::mutex::Mutex<T, pvlock::Relax<MyCpu>>;
/// type RwLock<T> = spin::rwlock::RwLock<T, pvlock::Relax<MyCpu>>;
///
/// static LIST: Mutex<u32> = Mutex::new(0);
/// *LIST.lock() += 1;
/// # }
/// ```
///
/// For another version of `spin`, or another crate with such a trait, implement the trait for a type of your own by [`Relax::relax`].
///
/// While nobody is preempted it makes no hypercall; a round costs a pause and a few cycles. Where the host offers nothing it is a pause.
/// These locks do not know their owner, so it helps *somebody* who is preempted, in turn: a [`SpinMutex`](crate::SpinMutex), which does
/// know, helps more.
pub struct Relax<C>(PhantomData<fn() -> C>);

impl<C> fmt::Debug for Relax<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Relax")
    }
}

impl<C: Cpu> Relax<C> {
    /// One round of waiting: [`Cpu::relax`], a pause, and now and then a look whether the wait is a long one.
    #[inline]
    pub fn relax() {
        if let Some(spell) = round::<C>() {
            end_window::<C>(spell);
        }
    }
}

/// A round; the memory of this CPU when a window ends with it.
#[inline(always)]
fn round<C: Cpu>() -> Option<&'static Spell> {
    C::relax();
    spin_loop();
    if !able::<C>() {
        return None;
    }
    let spell = Spell::of(C::current()?);
    spell.is_window_over().then_some(spell)
}

#[cfg(feature = "spin")]
impl<C: Cpu> spin::RelaxStrategy for Relax<C> {
    #[inline]
    fn relax() {
        Self::relax();
    }
}

#[cold]
#[inline(never)]
fn end_window<C: Cpu>(spell: &Spell) {
    let now = rdtsc();
    // The yardstick: a round, with all that the kernel's own functions cost in this build. It counts as the next window's first.
    let _ = round::<C>();
    let one_round = rdtsc().wrapping_sub(now);
    if spell.end_window(now, one_round) {
        // Whatever comes of it, the next attempt is a long wait away: the memory of the CPU counts the useless ones.
        let _ = boost_any::<C>();
    }
}

/// The rounds that one CPU has spun lately. Only that CPU writes it; an interrupt handler that spins as well, in between, makes a wait look
/// a little longer or shorter than it was.
#[derive(Debug)]
#[repr(align(64))]
struct Spell {
    rounds: AtomicU32,
    /// Windows of nothing but rounds, in a row.
    windows: AtomicU32,
    /// The counter at the end of the last window.
    began_tsc: AtomicU64,
    /// Cycles of one round between two readings of the counter, by recent measurement.
    round_tsc: AtomicU64,
}

static SPELLS: [Spell; MAX_CPUS] = [const { Spell::new() }; MAX_CPUS];

impl Spell {
    const fn new() -> Self {
        Self {
            rounds: AtomicU32::new(0),
            windows: AtomicU32::new(0),
            began_tsc: AtomicU64::new(0),
            round_tsc: AtomicU64::new(0),
        }
    }

    #[inline(always)]
    fn of(cpu: CpuId) -> &'static Self {
        &SPELLS[cpu.index()]
    }

    // ORDERING (of all): Relaxed, one CPU's own memory.

    /// Counts a round. Whether it is the last of a window.
    #[inline(always)]
    fn is_window_over(&self) -> bool {
        let rounds = self.rounds.load(Relaxed).wrapping_add(1);
        self.rounds.store(rounds, Relaxed);
        rounds.is_multiple_of(WINDOW)
    }

    /// A window has ended at `now`, and a round takes `one_round`, both in cycles. Whether this makes the wait a long one.
    fn end_window(&self, now: u64, one_round: u64) -> bool {
        // Slowly upwards: one measurement that an interrupt fell into must not make all windows look short.
        let before = self.round_tsc.load(Relaxed);
        let one_round = if before == 0 { one_round } else { one_round.min(before.saturating_add(before / 8 + 1)) };
        self.round_tsc.store(one_round, Relaxed);
        let took = now.wrapping_sub(self.began_tsc.load(Relaxed));
        self.began_tsc.store(now, Relaxed);
        let windows = if took <= longest_window(one_round) { self.windows.load(Relaxed) + 1 } else { 0 };
        let is_long = windows >= LONG_WAIT;
        self.windows.store(if is_long { 0 } else { windows }, Relaxed);
        is_long
    }
}

/// The longest that a window of one wait takes, in cycles. A quarter more than its rounds as measured; besides, a measured round includes
/// reading the counter, which is about what the waiting loop itself takes.
fn longest_window(one_round: u64) -> u64 {
    // A counter that stepped back, since the task moved to another CPU, makes a round of any length.
    u64::from(WINDOW).saturating_mul(one_round.saturating_add(one_round / 4))
}

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::*;

    const ROUND: u64 = 100;

    /// Ends `count` windows that took `cycles` each; returns how many made the wait a long one.
    fn windows(spell: &Spell, count: u32, cycles: u64) -> u32 {
        (0..count)
            .filter(|_| {
                let now = spell.began_tsc.load(Relaxed) + cycles;
                spell.end_window(now, ROUND)
            })
            .count() as u32
    }

    #[test]
    fn windows_of_nothing_but_rounds_make_a_long_wait() {
        let spell = Spell::new();
        assert_eq!(windows(&spell, LONG_WAIT - 1, 64 * ROUND), 0);
        assert_eq!(windows(&spell, 1, 64 * ROUND), 1);
        assert_eq!(windows(&spell, 10 * LONG_WAIT, 64 * ROUND), 10);
    }

    #[test]
    fn rounds_of_many_short_waits_never_do() {
        let spell = Spell::new();
        // Eight rounds each, and between the waits as much again.
        assert_eq!(windows(&spell, 10_000, 64 * ROUND * 2), 0);
    }

    #[test]
    fn a_long_window_starts_the_count_anew() {
        let spell = Spell::new();
        for _ in 0..100 {
            assert_eq!(windows(&spell, LONG_WAIT - 1, 64 * ROUND), 0);
            assert_eq!(windows(&spell, 1, 1_000_000), 0);
        }
    }

    #[test]
    fn one_disturbed_measurement_of_a_round_hardly_counts() {
        let spell = Spell::new();
        spell.end_window(0, ROUND);
        spell.end_window(0, 1_000_000);
        assert!(spell.round_tsc.load(Relaxed) < ROUND * 5 / 4);
        spell.end_window(0, ROUND);
        assert_eq!(spell.round_tsc.load(Relaxed), ROUND);
    }

    #[test]
    fn a_window_ends_every_so_many_rounds() {
        let spell = Spell::new();
        assert_eq!((0..10 * WINDOW).filter(|_| spell.is_window_over()).count(), 10);
    }

    #[test]
    fn a_counter_that_stepped_back_makes_no_long_wait_for_ever() {
        let spell = Spell::new();
        spell.end_window(0, 0_u64.wrapping_sub(1000));
        for _ in 0..1000 {
            spell.end_window(spell.began_tsc.load(Relaxed) + 64 * ROUND, ROUND);
        }
        assert_eq!(spell.round_tsc.load(Relaxed), ROUND);
    }
}
