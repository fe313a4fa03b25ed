//! The reader-writer lock while its vCPUs are stopped at random instructions, for random times; frozen writers; lone readers and writers;
//! locks whose memory goes away.
//!
//! `PVLOCK_TORTURE_SECONDS` says for how long it is tortured (default 4), `PVLOCK_SEED` repeats the choices of a run that failed.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use core::time::Duration;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Instant;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use pvhost::contend::{Mix, Sections, Torn, contend, work};
use pvhost::locks::PvlockRwLock;
use pvhost::{
    Abilities, Config, Counts, PvCpu, PvHost, Slices, Step, Torture, freeze_me, pause_loop_exit, run, send_interrupt,
    step,
};
use pvlock::hypervisor::Hypervisor;
use pvlock::lock::RawRwLock;
use pvlock::{CpuId, IrqSave, NoGuard, RwLock};

static OUTSIDE: Step = Step("outside");
static WAITS: Step = Step("waits");
static READS: Step = Step("reads");
static WRITES: Step = Step("writes");
static UPGRADES: Step = Step("upgrades");

/// How long one guest runs.
const ROUND: Duration = Duration::from_millis(250);

fn cpus() -> usize {
    available_parallelism().map_or(1, usize::from).min(2)
}

/// One lock with what it guards.
#[derive(Default)]
struct Guarded {
    lock: RawRwLock<PvCpu>,
    data: Torn,
    writes: AtomicU64,
}

impl Guarded {
    fn read_locked(&self, length: u32) {
        step(&READS);
        // SAFETY: a share is held.
        unsafe { self.data.look(|| work(length)) };
    }

    fn write_locked(&self, length: u32) {
        step(&WRITES);
        // SAFETY: the lock is held for writing.
        unsafe { self.data.enter(|| work(length)) };
        self.writes.fetch_add(1, Relaxed);
    }

    fn read(&self, length: u32) {
        self.lock.read();
        self.read_locked(length);
        // SAFETY: a share is held.
        unsafe { self.lock.unlock_read() };
    }

    fn write(&self, length: u32) {
        self.lock.write();
        self.write_locked(length);
        // SAFETY: held for writing.
        unsafe { self.lock.unlock_write() };
    }

    /// Every way from one hold to another.
    fn change_holds(&self, length: u32, way: u8) {
        self.lock.upgradable_read();
        self.read_locked(length);
        step(&UPGRADES);
        // SAFETY: the upgradable share is held, and no other by this vCPU.
        if way & 1 == 0 && !unsafe { self.lock.try_upgrade() } {
            // SAFETY: it still is.
            return unsafe { self.lock.unlock_upgradable() };
        }
        if way & 1 == 1 {
            // SAFETY: as above.
            unsafe { self.lock.upgrade() };
        }
        self.write_locked(length);
        if way & 2 == 0 {
            // SAFETY: held for writing.
            unsafe { self.lock.downgrade() };
        } else {
            // SAFETY: held for writing.
            unsafe { self.lock.downgrade_to_upgradable() };
            self.read_locked(length);
            // SAFETY: the upgradable share is held.
            unsafe { self.lock.downgrade_upgradable() };
        }
        self.read_locked(length);
        // SAFETY: a share is held.
        unsafe { self.lock.unlock_read() };
    }
}

#[derive(Default)]
struct Round {
    locks: [Guarded; 2],
    reads: AtomicU64,
    finished: AtomicUsize,
}

/// Read by interrupt handlers, written with interrupts off.
static OF_INTERRUPTS: RwLock<Torn, PvCpu, NoGuard, IrqSave> = RwLock::new(Torn::new());

fn on_interrupt(_: u64) {
    let torn = OF_INTERRUPTS.read_recursive();
    // SAFETY: the lock is held for reading.
    unsafe { torn.look(|| work(20)) };
}

fn torment(round: &Round, me: CpuId, vcpus: usize, seed: u64) {
    let (locks, longest, writes) = (1 + seed as usize % 2, 10 + (seed >> 8) as u32 % 200, 1 + (seed >> 16) as u8 % 12);
    let mut rng = fastrand::Rng::with_seed(seed ^ (me.index() as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let begun = Instant::now();
    while begun.elapsed() < ROUND {
        let guarded = &round.locks[rng.usize(0..locks)];
        let length = rng.u32(0..longest);
        step(&WAITS);
        match rng.u8(0..20) {
            0 => guarded.change_holds(length, rng.u8(0..4)),
            1 => {
                if guarded.lock.try_write() {
                    guarded.write_locked(length);
                    // SAFETY: held for writing.
                    unsafe { guarded.lock.unlock_write() };
                }
            }
            2 => {
                guarded.lock.read();
                guarded.lock.read_recursive();
                guarded.read_locked(length);
                // SAFETY: two shares are held.
                unsafe { guarded.lock.unlock_read() };
                // SAFETY: and one.
                unsafe { guarded.lock.unlock_read() };
            }
            3 => send_interrupt(CpuId::new(rng.u32(0..vcpus as u32)).unwrap_or(me), 0),
            4 => {
                let torn = OF_INTERRUPTS.write();
                // SAFETY: the lock is held for writing.
                unsafe { torn.enter(|| work(20)) };
            }
            5 => drop(OF_INTERRUPTS.read()),
            n if n < 6 + writes => guarded.write(length),
            _ => {
                guarded.read(length);
                round.reads.fetch_add(1, Relaxed);
            }
        }
        step(&OUTSIDE);
        work(rng.u32(0..longest));
    }
    round.finished.fetch_add(1, Relaxed);
}

fn draw_config(rng: &mut fastrand::Rng, seed: u64) -> Config {
    let torture = Torture {
        seed,
        freeze_one_in: rng.u32(10..100),
        freeze_max: Duration::from_micros(rng.u64(10..3000)),
        spurious_one_in: *rng.choice(&[0, 2, 4, 16]).unwrap_or(&0),
    };
    Config {
        quantum: Duration::from_micros(rng.u64(30..800)),
        slices: Slices::Random(torture),
        exit_cost: Duration::from_micros(rng.u64(0..5)),
        abilities: Abilities::from_bits_truncate(rng.u8(0..8)),
        interrupt_handler: Some(on_interrupt),
        limit: Duration::from_secs(60),
        ..Config::new(rng.usize(2..11), rng.usize(1..=cpus()))
    }
}

fn one_round(seed: u64) -> (u64, u64, Counts) {
    let config = draw_config(&mut fastrand::Rng::with_seed(seed), seed);
    let vcpus = config.vcpus;
    let described = format!("seed {seed} ({config:?})");
    let round = Arc::new(Round::default());
    let guest = {
        let round = Arc::clone(&round);
        move |me| torment(&round, me, vcpus, seed)
    };
    let report = run(config, guest).unwrap_or_else(|failure| panic!("{described}: {failure}"));
    assert_eq!(round.finished.load(Relaxed), vcpus, "{described}");
    let mut round = Arc::into_inner(round).expect("all vCPUs have ended");
    let mut written = 0;
    for guarded in &mut round.locks {
        assert_eq!(guarded.data.entries(), guarded.writes.load(Relaxed), "{described}: a write was lost");
        assert_eq!(bytes_of(&guarded.lock), [0; 16], "{described}: the lock is not as it was at first");
        written += guarded.writes.load(Relaxed);
    }
    (written, round.reads.load(Relaxed), report.total())
}

fn bytes_of(lock: &RawRwLock<PvCpu>) -> [u8; 16] {
    // SAFETY: a lock is 16 bytes of atomics without padding, and nobody uses it any more.
    unsafe { core::ptr::from_ref(lock).cast::<[u8; 16]>().read() }
}

#[test]
fn the_rwlock_survives_being_stopped_anywhere() {
    let from_env = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = from_env("PVLOCK_SEED");
    let seconds = from_env("PVLOCK_TORTURE_SECONDS").unwrap_or(4);
    let mut seeds = fastrand::Rng::with_seed(first.unwrap_or_else(|| fastrand::u64(..)));
    let (begun, mut rounds, mut written, mut read, mut counts) = (Instant::now(), 0, 0, 0, Counts::default());
    while rounds == 0 || begun.elapsed() < Duration::from_secs(seconds) {
        let seed = if rounds == 0 { first.unwrap_or_else(|| seeds.u64(..)) } else { seeds.u64(..) };
        let (writes, reads, of_round) = one_round(seed);
        rounds += 1;
        written += writes;
        read += reads;
        counts.add(&of_round);
    }
    println!("{rounds} rounds, {written} writes and {read} reads, 0 violations");
    println!("host: {counts:?}");
    assert!(counts.preemptions > 100 && counts.freezes > 0, "nobody was stopped, so nothing was tested");
}

/// The bound is on what the others got meanwhile, not on time: a machine that is busy otherwise makes everybody slow.
#[test]
fn neither_a_lone_writer_nor_a_lone_reader_starves() {
    for mix in [Mix::LoneWriter, Mix::LoneReader] {
        let sections = Sections { critical: 40, non_critical: 40, mix };
        let config = Config::new(4 * cpus(), cpus());
        let run = contend::<PvlockRwLock>(config, sections, Duration::from_millis(600)).expect("a run without failure");
        let (lone, all) = (run.per_vcpu[0], run.per_vcpu.iter().sum::<u64>());
        let others = (all - lone) as f64 / (run.per_vcpu.len() - 1) as f64;
        println!(
            "{mix:?}: {lone} acquisitions against {others:.0} by each other one, its longest wait {:.1} ms, anybody's {:.1} ms",
            run.waits.first_longest_ns as f64 / 1e6,
            run.waits.longest_ns as f64 / 1e6
        );
        assert!(lone as f64 > others / 20.0, "{mix:?}: {lone} acquisitions against {others} by each other one");
    }
}

#[test]
fn those_who_wait_for_a_frozen_writer_burn_next_to_nothing() {
    const FROZEN: Duration = Duration::from_secs(1);
    let lock = Arc::new(RwLock::<u64, PvCpu>::new(0));
    let locked = Arc::new(AtomicBool::new(false));
    let guest = move |me: CpuId| {
        if me.index() == 0 {
            let mut guard = lock.write();
            locked.store(true, Release);
            freeze_me(FROZEN);
            *guard += 1;
            return;
        }
        while !locked.load(Acquire) {
            let _ = PvHost::yield_to(me, CpuId::new(0).expect("CPU 0"));
        }
        if me.index().is_multiple_of(2) { *lock.write() += 1 } else { assert!(*lock.read() > 0) }
    };
    let report = run(Config::new(9, cpus()), guest).expect("a run without failure");
    let burned: Duration = report.vcpus[1..].iter().map(|vcpu| vcpu.cpu_time).sum();
    println!("8 waiters burned {burned:.1?} of CPU time in {FROZEN:?}");
    assert!(burned <= FROZEN / 20, "{burned:?}, {report}");
}

/// What is in a page: a lock, and who has still to use it. The last one unmaps it at once.
struct Page {
    lock: RawRwLock<PvCpu>,
    left: AtomicUsize,
}

const USERS: usize = 5;

fn map() -> NonNull<Page> {
    let size = core::num::NonZeroUsize::new(4096).expect("not zero");
    // SAFETY: a new anonymous mapping, at an address of the kernel's choice.
    let page =
        unsafe { mmap_anonymous(None, size, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE) };
    let page = page.expect("a page").cast();
    // SAFETY: fresh memory, larger than the value and aligned to pages.
    unsafe { page.write(Page { lock: RawRwLock::new(), left: AtomicUsize::new(USERS) }) };
    page
}

/// Uses the lock in the page; whether this was the last use. Only a writer can be the last, since readers leave together.
fn take_part(page: NonNull<Page>, me: usize, rng: &mut fastrand::Rng) -> bool {
    // SAFETY: the page is there until the last of its users unmaps it, and this one has not been counted yet.
    let page = unsafe { page.as_ref() };
    if me % 2 == 1 {
        page.lock.read();
        work(rng.u32(0..100));
        // SAFETY: a share is held.
        unsafe { page.lock.unlock_read() };
    }
    page.lock.write();
    if rng.u8(0..10) == 0 {
        freeze_me(Duration::from_micros(rng.u64(1..200)));
    }
    let is_last = page.left.fetch_sub(1, Relaxed) == 1;
    // SAFETY: held for writing. Who is not the last does not touch the page after this, and neither may the lock.
    unsafe { page.lock.unlock_write() };
    is_last
}

#[test]
fn a_rwlock_is_not_touched_after_its_release() {
    let current = Arc::new(AtomicPtr::new(map().as_ptr()));
    let rounds = Arc::new(AtomicU64::new(0));
    let guest = {
        let (current, rounds) = (Arc::clone(&current), Arc::clone(&rounds));
        move |me: CpuId| {
            let mut rng = fastrand::Rng::with_seed(me.index() as u64);
            let begun = Instant::now();
            let mut done = null_mut();
            loop {
                // ORDERING: Acquire, pair RW-PAGE-READY (below): the lock in the page is seen.
                let Some(page) = NonNull::new(current.load(Acquire)) else { return };
                if page.as_ptr() == done {
                    pause_loop_exit();
                    continue;
                }
                done = page.as_ptr();
                if take_part(page, me.index(), &mut rng) {
                    rounds.fetch_add(1, Relaxed);
                    let next = if begun.elapsed() < Duration::from_secs(2) { map().as_ptr() } else { null_mut() };
                    // SAFETY: the page comes from `map`, and its last user gives it up.
                    unsafe { munmap(page.cast(), 4096) }.expect("a mapped page");
                    // ORDERING: the release half is of pair RW-PAGE-READY (above).
                    current.swap(next, AcqRel);
                }
            }
        }
    };
    let torture = Torture { seed: 1, freeze_one_in: 50, freeze_max: Duration::from_micros(500), spurious_one_in: 10 };
    let config =
        Config { quantum: Duration::from_micros(100), slices: Slices::Random(torture), ..Config::new(USERS, cpus()) };
    let report = run(config, guest).expect("a run without failure");
    let rounds = rounds.load(Relaxed);
    println!("{rounds} locks unmapped after use, {:?}", report.total());
    assert!(rounds > 100 && report.total().kicks_sent > 50, "{report}");
}
