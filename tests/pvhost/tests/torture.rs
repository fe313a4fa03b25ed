//! pvlock's spinlock while its vCPUs are stopped at random instructions, for random times.
//!
//! `PVLOCK_TORTURE_SECONDS` says for how long (default 4), `PVLOCK_SEED` repeats the choices of a run that failed.

use core::mem::size_of;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};
use core::time::Duration;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Instant;

use pvhost::contend::{Torn, work};
use pvhost::{
    Abilities, Config, Counts, Kick, Policies, PreemptedFlag, PvCpu, Slices, Step, Torture, run, send_interrupt, step,
};
use pvlock::lock::RawSpinLock;
use pvlock::{CpuId, IrqSave, SpinMutex};

static OUTSIDE: Step = Step("outside");
static WAITS: Step = Step("waits");
static HOLDS: Step = Step("holds");
static HOLDS_TWO: Step = Step("holds two");
static INTERRUPTED: Step = Step("in its interrupt handler");

/// How long one guest runs. Many short ones meet more kinds of hosts than one long one.
const ROUND: Duration = Duration::from_millis(250);

/// One lock with what it guards.
#[derive(Default)]
struct Guarded {
    lock: RawSpinLock<PvCpu>,
    data: Torn,
    entries: AtomicU64,
}

impl Guarded {
    fn enter(&self, inside: impl FnOnce()) {
        self.lock.lock();
        self.enter_locked(inside);
    }

    /// With the lock held, which it releases.
    fn enter_locked(&self, inside: impl FnOnce()) {
        // SAFETY: the lock is held.
        unsafe { self.data.enter(inside) };
        self.entries.fetch_add(1, Relaxed);
        // SAFETY: the lock is held, by this vCPU.
        unsafe { self.lock.unlock() };
    }
}

/// What all vCPUs of a round share.
#[derive(Default)]
struct Round {
    locks: [Guarded; 3],
    finished: AtomicUsize,
}

/// The lock that interrupt handlers take as well, so that waits nest. One for all rounds: a handler has no argument.
static OF_INTERRUPTS: SpinMutex<Torn, PvCpu, IrqSave> = SpinMutex::new(Torn::new());

fn enter_as_interrupts_do() {
    let torn = OF_INTERRUPTS.lock();
    // SAFETY: the lock is held.
    unsafe { torn.enter(|| work(30)) };
}

fn on_interrupt(_: u64) {
    step(&INTERRUPTED);
    enter_as_interrupts_do();
}

fn torment(round: &Round, me: CpuId, vcpus: usize, seed: u64, duration: Duration) {
    // The same for all vCPUs of a round: from one lock that is always wanted to three that are hardly contended.
    let (locks, longest_work) = (1 + seed as usize % 3, 10 + (seed >> 8) as u32 % 200);
    let mut rng = fastrand::Rng::with_seed(seed ^ (me.index() as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let begun = Instant::now();
    while begun.elapsed() < duration {
        let lock = &round.locks[rng.usize(0..locks)];
        let (critical, non_critical) = (rng.u32(0..longest_work), rng.u32(0..longest_work));
        step(&WAITS);
        match rng.u8(0..16) {
            0 => {
                if lock.lock.try_lock() {
                    lock.enter_locked(|| work(critical));
                }
            }
            1 => round.locks[0].enter(|| {
                step(&HOLDS);
                round.locks[2].enter(|| {
                    step(&HOLDS_TWO);
                    work(critical);
                });
            }),
            2 => enter_as_interrupts_do(),
            3 => send_interrupt(CpuId::new(rng.u32(0..vcpus as u32)).unwrap_or(me), 0),
            _ => lock.enter(|| {
                step(&HOLDS);
                work(critical);
            }),
        }
        step(&OUTSIDE);
        work(non_critical);
    }
    round.finished.fetch_add(1, Relaxed);
}

/// A host drawn from `seed`.
fn draw_config(rng: &mut fastrand::Rng, seed: u64) -> Config {
    let cpus = available_parallelism().map_or(1, usize::from).min(4);
    let torture = Torture {
        seed,
        freeze_one_in: rng.u32(10..100),
        freeze_max: Duration::from_micros(rng.u64(10..3000)),
        spurious_one_in: *rng.choice(&[0, 2, 4, 16]).unwrap_or(&0),
    };
    let kick = if rng.bool() { Kick::Wakes } else { Kick::WakesAndYields };
    let flag = if rng.bool() { PreemptedFlag::InterruptOnly } else { PreemptedFlag::AnyExit };
    Config {
        quantum: Duration::from_micros(rng.u64(30..800)),
        slices: Slices::Random(torture),
        exit_cost: Duration::from_micros(rng.u64(0..5)),
        abilities: Abilities::from_bits_truncate(rng.u8(0..8)),
        policies: Policies { kick, flag, ..Policies::KVM },
        interrupt_handler: Some(on_interrupt),
        limit: Duration::from_secs(60),
        ..Config::new(rng.usize(2..11), rng.usize(1..=cpus))
    }
}

fn one_round(seed: u64) -> (u64, Counts) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let config = draw_config(&mut rng, seed);
    let vcpus = config.vcpus;
    let described = format!("seed {seed} ({config:?})");
    let round = Arc::new(Round::default());
    let guest = {
        let round = Arc::clone(&round);
        move |me| torment(&round, me, vcpus, seed, ROUND)
    };
    let report = run(config, guest).unwrap_or_else(|failure| panic!("{described}: {failure}"));

    assert_eq!(round.finished.load(Relaxed), vcpus, "{described}");
    let mut round = Arc::into_inner(round).expect("all vCPUs have ended");
    let mut hand_offs = 0;
    for guarded in &mut round.locks {
        let entries = guarded.entries.load(Relaxed);
        assert_eq!(guarded.data.entries(), entries, "{described}: an entry was lost");
        assert_eq!(bytes_of(&guarded.lock), [0; 8], "{described}: the lock is not as it was at first");
        hand_offs += entries;
    }
    (hand_offs, report.total())
}

fn bytes_of(lock: &RawSpinLock<PvCpu>) -> [u8; 8] {
    const { assert!(size_of::<RawSpinLock<PvCpu>>() == 8) };
    // SAFETY: a lock is two 32-bit words without padding, and nobody uses it any more.
    unsafe { core::ptr::from_ref(lock).cast::<[u8; 8]>().read() }
}

#[test]
fn the_spinlock_survives_being_stopped_anywhere() {
    let from_env = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = from_env("PVLOCK_SEED");
    let seconds = from_env("PVLOCK_TORTURE_SECONDS").unwrap_or(4);
    let mut seeds = fastrand::Rng::with_seed(first.unwrap_or_else(|| fastrand::u64(..)));
    let (begun, mut rounds, mut hand_offs, mut counts) = (Instant::now(), 0, 0, Counts::default());
    while rounds == 0 || begun.elapsed() < Duration::from_secs(seconds) {
        // The seed that a failure names is the first of a run that begins with it.
        let seed = if rounds == 0 { first.unwrap_or_else(|| seeds.u64(..)) } else { seeds.u64(..) };
        let (entries, of_round) = one_round(seed);
        rounds += 1;
        hand_offs += entries;
        counts.add(&of_round);
    }
    println!("{rounds} rounds, {hand_offs} hand-offs, 0 violations");
    println!("host: {counts:?}");
    println!("lock: {:?}", pvlock::stats::total());
    assert!(counts.preemptions > 100 && counts.freezes > 0, "nobody was stopped, so nothing was tested");
}
