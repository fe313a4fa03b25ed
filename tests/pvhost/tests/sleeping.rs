//! The sleeping mutex and the condition variable where each vCPU is a task that sleeps by halting: stopped anywhere, with a frozen owner,
//! in memory that goes with the last user, and with an owner that takes the mutex again at once.
//!
//! `PVLOCK_TORTURE_SECONDS` and `PVLOCK_SEED` as in `torture.rs`.

use core::hint::spin_loop;
use core::num::NonZeroUsize;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use core::time::Duration;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Instant;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use pvhost::contend::{Mix, Sections, Torn, contend, work};
use pvhost::locks::PvlockMutex;
use pvhost::{
    Abilities, Config, Counts, PvCpu, PvHost, Slices, Step, Torture, freeze_me, pause_loop_exit, run, send_interrupt,
    step,
};
use pvlock::hypervisor::Hypervisor;
use pvlock::lock::HaltParker;
use pvlock::{Condvar, CpuId, Mutex, MutexGuard};

type Parker = HaltParker<PvCpu>;

static OUTSIDE: Step = Step("outside");
static WAITS: Step = Step("waits for a mutex");
static HOLDS: Step = Step("holds a mutex");
static HOLDS_TWO: Step = Step("holds two mutexes");
static TURN: Step = Step("waits for its turn");

/// Acquisitions of one vCPU, and how often it has its turn, in one round.
const ENTRIES: u32 = 600;
const TURNS: u32 = 40;

fn cpus() -> usize {
    available_parallelism().map_or(1, usize::from).min(2)
}

/// What all vCPUs of a round share.
struct Round {
    guarded: [Mutex<Torn, Parker>; 2],
    entries: AtomicU64,
    /// Whose turn it is, all together.
    turns: Mutex<usize, Parker>,
    finished: AtomicUsize,
}

/// The condition "the turn has gone on". One for all rounds: interrupt handlers, which notify it for no reason, have no argument.
static NEXT_TURN: Condvar<Parker> = Condvar::new();

fn on_interrupt(_: u64) {
    NEXT_TURN.notify_one();
}

fn enter(round: &Round, guard: &MutexGuard<'_, Torn, Parker>, inside: impl FnOnce()) {
    // SAFETY: the mutex is held.
    unsafe { guard.enter(inside) };
    round.entries.fetch_add(1, Relaxed);
}

fn torment(round: &Round, me: CpuId, vcpus: usize, seed: u64) {
    let longest_work = 10 + (seed >> 8) as u32 % 200;
    let mut rng = fastrand::Rng::with_seed(seed ^ (me.index() as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    for _ in 0..ENTRIES {
        let inside = || work(longest_work);
        step(&WAITS);
        match rng.u8(0..16) {
            0 => {
                if let Some(guard) = round.guarded[0].try_lock() {
                    enter(round, &guard, inside);
                }
            }
            1 => {
                let outer = round.guarded[0].lock();
                step(&HOLDS);
                let inner = round.guarded[1].lock();
                step(&HOLDS_TWO);
                enter(round, &inner, || enter(round, &outer, inside));
            }
            2 => {
                let guard = round.guarded[0].lock();
                enter(round, &guard, inside);
                MutexGuard::unlock_fair(guard);
            }
            3 => send_interrupt(CpuId::new(rng.u32(0..vcpus as u32)).unwrap_or(me), 0),
            other => {
                let guard = round.guarded[usize::from(other & 1)].lock();
                step(&HOLDS);
                enter(round, &guard, inside);
            }
        }
        step(&OUTSIDE);
        work(rng.u32(0..longest_work));
    }
    step(&TURN);
    for _ in 0..TURNS {
        let mut turn = NEXT_TURN.wait_while(round.turns.lock(), |turn| *turn % vcpus != me.index());
        *turn += 1;
        drop(turn);
        NEXT_TURN.notify_all();
    }
    round.finished.fetch_add(1, Relaxed);
}

/// A host drawn from `seed`. Where it cannot halt, sleepers spin, so turns take slices: then there are few vCPUs.
fn draw_config(rng: &mut fastrand::Rng, seed: u64) -> Config {
    let torture = Torture {
        seed,
        freeze_one_in: rng.u32(10..100),
        freeze_max: Duration::from_micros(rng.u64(10..2000)),
        spurious_one_in: *rng.choice(&[0, 2, 4, 16]).unwrap_or(&0),
    };
    let abilities = Abilities::from_bits_truncate(rng.u8(0..8));
    let most = if abilities.contains(Abilities::HALT) { 11 } else { 4 };
    Config {
        quantum: Duration::from_micros(rng.u64(30..400)),
        slices: Slices::Random(torture),
        exit_cost: Duration::from_micros(rng.u64(0..5)),
        abilities,
        interrupt_handler: Some(on_interrupt),
        limit: Duration::from_secs(60),
        ..Config::new(rng.usize(2..most), rng.usize(1..=cpus()))
    }
}

fn one_round(seed: u64) -> Counts {
    let config = draw_config(&mut fastrand::Rng::with_seed(seed), seed);
    let vcpus = config.vcpus;
    let described = format!("seed {seed} ({config:?})");
    let round = Arc::new(Round {
        guarded: [const { Mutex::new(Torn::new()) }; 2],
        entries: AtomicU64::new(0),
        turns: Mutex::new(0),
        finished: AtomicUsize::new(0),
    });
    let guest = {
        let round = Arc::clone(&round);
        move |me| torment(&round, me, vcpus, seed)
    };
    let report = run(config, guest).unwrap_or_else(|failure| panic!("{described}: {failure}"));

    let round = Arc::into_inner(round).expect("all vCPUs have ended");
    assert_eq!(round.finished.into_inner(), vcpus, "{described}");
    assert_eq!(round.turns.into_inner(), vcpus * TURNS as usize, "{described}: a turn was lost");
    let mut entries = 0;
    for guarded in round.guarded {
        assert_eq!((guarded.is_locked(), guarded.owner()), (false, None), "{described}");
        entries += guarded.into_inner().entries();
    }
    assert_eq!(entries, round.entries.into_inner(), "{described}: an entry was lost");
    assert!(!NEXT_TURN.notify_one(), "{described}: somebody is left in the list");
    report.total()
}

#[test]
fn mutex_and_condition_survive_being_stopped_anywhere() {
    let from_env = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = from_env("PVLOCK_SEED");
    let seconds = from_env("PVLOCK_TORTURE_SECONDS").unwrap_or(4);
    let mut seeds = fastrand::Rng::with_seed(first.unwrap_or_else(|| fastrand::u64(..)));
    let (begun, mut rounds, mut counts) = (Instant::now(), 0, Counts::default());
    while rounds == 0 || begun.elapsed() < Duration::from_secs(seconds) {
        let seed = if rounds == 0 { first.unwrap_or_else(|| seeds.u64(..)) } else { seeds.u64(..) };
        counts.add(&one_round(seed));
        rounds += 1;
    }
    println!("{rounds} rounds, 0 violations\nhost: {counts:?}\nlock: {:?}", pvlock::stats::total());
    assert!(counts.preemptions > 100 && counts.freezes > 0, "nobody was stopped, so nothing was tested");
}

#[test]
fn those_who_wait_for_a_frozen_owner_sleep() {
    const FROZEN: Duration = Duration::from_secs(1);
    const WAITERS: usize = 8;
    let mutex = Arc::new(Mutex::<u64, Parker>::new(0));
    let locked = Arc::new(AtomicBool::new(false));
    let guest = {
        let mutex = Arc::clone(&mutex);
        move |me: CpuId| {
            if me.index() == 0 {
                let mut guard = mutex.lock();
                locked.store(true, Release);
                freeze_me(FROZEN);
                *guard += 1;
            } else {
                // Until the owner has the mutex: without burning what is measured afterwards.
                while !locked.load(Acquire) {
                    let _ = PvHost::yield_to(me, CpuId::new(0).expect("CPU 0"));
                }
                *mutex.lock() += 1;
            }
        }
    };
    let config = Config { limit: Duration::from_secs(60), ..Config::new(WAITERS + 1, cpus()) };
    let before = pvlock::stats::total();
    let report = run(config, guest).expect("a run without failure");
    let after = pvlock::stats::total();
    assert!(after.sleeps - before.sleeps >= WAITERS as u64, "{after:?}");
    assert!(after.spins_preempted > before.spins_preempted, "the owner was not seen preempted: {after:?}");
    let burned: Duration = report.vcpus[1..].iter().map(|vcpu| vcpu.cpu_time).sum();
    println!("{WAITERS} waiters burned {burned:.1?} of CPU time in {FROZEN:?}");
    assert_eq!(*mutex.lock(), WAITERS as u64 + 1);
    assert!(burned <= FROZEN / 20, "{burned:?}, {report}");
}

#[test]
fn an_owner_that_takes_the_mutex_again_at_once_starves_nobody() {
    const QUANTUM: Duration = Duration::from_millis(1);
    /// CPUs' worth of other programs above which the host itself stops our CPUs for many slices, so that waits say nothing.
    const MOST_FOREIGN: f64 = 0.12;
    // Held about 60 % of each vCPU's time, and all CPUs switch at once: many are stopped while they hold it.
    let sections = Sections { critical: 600, non_critical: 400, mix: Mix::Writes };
    let config = Config { quantum: QUANTUM, slices: Slices::LockStep, ..Config::new(8, cpus()) };
    for _ in 0..4 {
        let run = contend::<PvlockMutex>(config.clone(), sections, Duration::from_millis(500));
        let contended = run.expect("a run without failure");
        let longest = Duration::from_nanos(contended.waits.longest_ns);
        println!("{:?}, longest wait {longest:.1?}, foreign {:.2}", contended.per_vcpu, contended.foreign_cpus);
        assert!(contended.per_vcpu.iter().all(|&entries| entries > 0), "{:?}", contended.per_vcpu);
        if contended.foreign_cpus <= MOST_FOREIGN {
            assert!(contended.fairness() > 0.3, "{:?}", contended.per_vcpu);
            // Each of eight vCPUs is first among the sleepers in turn, and then waits for a slice three times at most.
            assert!(longest < 50 * QUANTUM, "{longest:?}");
            return;
        }
    }
    println!("the machine is never quiet: only progress was tested");
}

const PAGE: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");
const USERS: usize = 5;

/// What is in the page: a mutex around the number of vCPUs that have still to take it.
type Countdown = Mutex<usize, Parker>;

fn map() -> NonNull<Countdown> {
    // SAFETY: a new anonymous mapping, at an address of the kernel's choice.
    let page =
        unsafe { mmap_anonymous(None, PAGE, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE) };
    let page = page.expect("a page").cast();
    // SAFETY: fresh memory, larger than the value and aligned to pages.
    unsafe { page.write(Countdown::new(USERS)) };
    page
}

/// Takes part in one page; returns whether this vCPU was the last. One owner in ten is frozen, so that the others sleep.
fn take_part(page: NonNull<Countdown>, rng: &mut fastrand::Rng) -> bool {
    // SAFETY: the page is there until the vCPU that counts down to 0 unmaps it, and this vCPU has not been counted yet.
    let countdown = unsafe { page.as_ref() };
    let mut left = countdown.lock();
    *left -= 1;
    if rng.u8(0..10) == 0 {
        freeze_me(Duration::from_micros(rng.u64(1..200)));
    }
    let last = *left == 0;
    if rng.bool() {
        MutexGuard::unlock_fair(left);
    }
    last
}

/// The mutex is in a page that its last user unmaps right after releasing it. Whoever touched it later, its list or a sleeper's node
/// would die of a segmentation fault.
#[test]
fn a_mutex_is_not_touched_after_its_release() {
    let current = Arc::new(AtomicPtr::new(map().as_ptr()));
    let rounds = Arc::new(AtomicU64::new(0));
    let guest = {
        let (current, rounds) = (Arc::clone(&current), Arc::clone(&rounds));
        move |me: CpuId| {
            let mut rng = fastrand::Rng::with_seed(me.index() as u64);
            let begun = Instant::now();
            let mut done = null_mut();
            loop {
                // ORDERING: Acquire, pair MUTEX-PAGE (below): the mutex in the page is seen.
                let Some(page) = NonNull::new(current.load(Acquire)) else { return };
                if page.as_ptr() == done {
                    (0..100).for_each(|_| spin_loop());
                    pause_loop_exit();
                    continue;
                }
                done = page.as_ptr();
                if take_part(page, &mut rng) {
                    rounds.fetch_add(1, Relaxed);
                    // The next page is mapped before this one is unmapped, so that it is another one.
                    let next = if begun.elapsed() < Duration::from_secs(2) { map().as_ptr() } else { null_mut() };
                    // SAFETY: the page comes from `map`, and its last user gives it up.
                    unsafe { munmap(page.cast(), PAGE.get()) }.expect("a mapped page");
                    // ORDERING: the release half is of pair MUTEX-PAGE (above).
                    current.swap(next, AcqRel);
                }
            }
        }
    };
    let torture = Torture { seed: 1, freeze_one_in: 50, freeze_max: Duration::from_micros(500), spurious_one_in: 10 };
    let quantum = Duration::from_micros(100);
    let config = Config { quantum, slices: Slices::Random(torture), ..Config::new(USERS, cpus()) };
    let report = run(config, guest).expect("a run without failure");
    let rounds = rounds.load(Relaxed);
    println!("{rounds} mutexes unmapped after use, {:?}", report.total());
    assert!(rounds > 100 && report.total().kicks_sent > 100, "{report}");
}
