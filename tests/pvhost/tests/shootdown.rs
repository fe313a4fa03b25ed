//! TLB shootdowns while vCPUs are stopped at random instructions: nobody uses a page that has got another use.
//!
//! Each vCPU has a TLB of its own making: an entry is good as long as neither the guest nor the host has flushed since it was loaded.
//! `PVLOCK_TORTURE_SECONDS` says for how long (default 4), `PVLOCK_SEED` repeats the choices of a run that failed.

use core::hint::spin_loop;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::Instant;

use pvhost::contend::work;
use pvhost::{
    Abilities, Config, Counts, PvCpu, PvHost, Slices, Step, Torture, host_flushes, run, send_interrupt, step,
};
use pvlock::boost::{CpuSet, Flushed, Shootdown};
use pvlock::kvm::hypercall::Ipi;
use pvlock::{Cpu, CpuId, stats};

const VECTOR: u8 = 5;
const MOST_VCPUS: usize = 12;
/// How long one guest runs.
const ROUND: Duration = Duration::from_millis(200);

static USES: Step = Step("uses a page");
static UNMAPS: Step = Step("has changed the page table");
static FLUSHES: Step = Step("flushes its TLB");

// SAFETY: `on_interrupt` is the handler of all vCPUs.
static SHOOTDOWN: Shootdown = unsafe { Shootdown::new(Ipi::Vector(VECTOR)) };
/// The vCPUs that may use the mappings.
static ACTIVE: CpuSet = CpuSet::new();
/// One for each vCPU, which changes it; all use it.
static MAPPINGS: [Mapping; MOST_VCPUS] =
    [const { Mapping { page: AtomicU64::new(1), reused: AtomicU64::new(0) } }; MOST_VCPUS];
static TLBS: [Tlb; MOST_VCPUS] = [const { Tlb::new() }; MOST_VCPUS];

/// Pages have rising numbers.
struct Mapping {
    /// The page table.
    page: AtomicU64,
    /// The highest page that has got another use.
    reused: AtomicU64,
}

/// Of one vCPU, and of its interrupt handler.
struct Tlb {
    /// The guest's own flushes.
    flushes: AtomicU64,
    entries: [Entry; MOST_VCPUS],
}

struct Entry {
    /// What [`Tlb::age`] was, plus one.
    loaded_at: AtomicU64,
    page: AtomicU64,
}

impl Tlb {
    const fn new() -> Self {
        let entries = [const { Entry { loaded_at: AtomicU64::new(0), page: AtomicU64::new(0) } }; MOST_VCPUS];
        Self { flushes: AtomicU64::new(0), entries }
    }

    /// Flushes so far, of the calling vCPU, whose TLB this is.
    fn age(&self) -> u64 {
        self.flushes.load(Relaxed) + host_flushes()
    }

    fn flush(&self) {
        step(&FLUSHES);
        self.flushes.fetch_add(1, Relaxed);
    }

    /// Uses the page of `mapping`. It is one instruction in a real machine: a use with a flush in its middle does not count.
    fn access(&self, mapping: usize) {
        let (entry, mapping) = (&self.entries[mapping], &MAPPINGS[mapping]);
        let age = self.age();
        if entry.loaded_at.load(Relaxed) != age + 1 {
            entry.page.store(mapping.page.load(Acquire), Relaxed);
            entry.loaded_at.store(age + 1, Relaxed);
        }
        let page = entry.page.load(Relaxed);
        step(&USES);
        let reused = mapping.reused.load(Acquire);
        if self.age() == age {
            assert!(page > reused, "page {page} is used by an old TLB entry, {reused} has got another use");
        }
    }
}

/// The kernel: as `PvCpu`, but it answers requests while it waits.
enum Kernel {}

impl Cpu for Kernel {
    type Hypervisor = PvHost;
    fn current() -> Option<CpuId> {
        PvCpu::current()
    }
    fn irqs_enabled() -> bool {
        PvCpu::irqs_enabled()
    }
    fn irqs_disable() {
        PvCpu::irqs_disable();
    }
    fn irqs_enable() {
        PvCpu::irqs_enable();
    }
    fn relax() {
        if let Some(me) = Self::current() {
            SHOOTDOWN.serve(me, || TLBS[me.index()].flush());
        }
    }
}

fn on_interrupt(_: u64) {
    Kernel::relax();
}

/// Gives the mapping of `me` another page, and the old page another use.
fn remap(me: CpuId) -> Flushed {
    let mapping = &MAPPINGS[me.index()];
    let old = mapping.page.fetch_add(1, Release);
    step(&UNMAPS);
    TLBS[me.index()].flush();
    let flushed = SHOOTDOWN.flush_others::<Kernel>(&ACTIVE, |target| send_interrupt(target, VECTOR.into()));
    mapping.reused.store(old, Release);
    flushed
}

/// What all vCPUs of a round did.
#[derive(Default)]
struct Round {
    finished: AtomicUsize,
    marked: AtomicU64,
    asked: AtomicU64,
    marked_later: AtomicU64,
}

impl Round {
    fn add(&self, flushed: Flushed) {
        self.marked.fetch_add(flushed.marked.into(), Relaxed);
        self.asked.fetch_add(flushed.asked.into(), Relaxed);
        self.marked_later.fetch_add(flushed.marked_later.into(), Relaxed);
    }

    /// Ends when all vCPUs are here: until then one may be asked.
    fn finish(&self, vcpus: usize) {
        self.finished.fetch_add(1, Release);
        while self.finished.load(Acquire) < vcpus {
            Kernel::relax();
            spin_loop();
        }
    }
}

fn torment(round: &Round, me: CpuId, vcpus: usize, seed: u64) {
    let longest_work = 10 + (seed >> 8) as u32 % 300;
    let mut rng = fastrand::Rng::with_seed(seed ^ (me.index() as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let tlb = &TLBS[me.index()];
    let enter = || {
        ACTIVE.insert(me);
        // What was loaded before is old.
        tlb.flush();
    };
    enter();
    let begun = Instant::now();
    while begun.elapsed() < ROUND {
        match rng.u8(0..32) {
            0 | 1 => round.add(remap(me)),
            2 => {
                Kernel::irqs_disable();
                round.add(remap(me));
                Kernel::irqs_enable();
            }
            3 => {
                // Another address space for a while.
                ACTIVE.remove(me);
                work(rng.u32(0..longest_work));
                enter();
            }
            _ => (0..vcpus).for_each(|mapping| tlb.access(mapping)),
        }
        work(rng.u32(0..longest_work));
    }
    ACTIVE.remove(me);
    round.finish(vcpus);
}

/// A host drawn from `seed`.
fn draw_config(rng: &mut fastrand::Rng, seed: u64) -> Config {
    let cpus = available_parallelism().map_or(1, usize::from).min(4);
    let torture = Torture {
        seed,
        freeze_one_in: rng.u32(10..100),
        freeze_max: Duration::from_micros(rng.u64(10..3000)),
        spurious_one_in: 0,
    };
    // Half of the hosts have flush marks; any of the rest.
    let marks = if rng.bool() { Abilities::PREEMPTED | Abilities::FLUSH } else { Abilities::empty() };
    Config {
        quantum: Duration::from_micros(rng.u64(30..800)),
        slices: Slices::Random(torture),
        exit_cost: Duration::from_micros(rng.u64(0..5)),
        abilities: marks | Abilities::from_bits_truncate(rng.u8(0..32)),
        interrupt_handler: Some(on_interrupt),
        limit: Duration::from_secs(60),
        ..Config::new(rng.usize(2..MOST_VCPUS), rng.usize(1..=cpus))
    }
}

/// Requests, mappings and TLBs are shared by all tests.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a guest of `config` and returns what it did.
fn guest(config: Config, body: impl Fn(&Round, CpuId) + Send + Sync + 'static) -> (Round, Counts) {
    let described = format!("{config:?}");
    let round = std::sync::Arc::new(Round::default());
    let shared = round.clone();
    let report = run(config, move |me| body(&shared, me)).unwrap_or_else(|failure| panic!("{described}: {failure}"));
    (std::sync::Arc::into_inner(round).expect("all vCPUs have ended"), report.total())
}

#[test]
fn no_old_tlb_entry_is_used_wherever_vcpus_are_stopped() {
    let _alone = alone();
    let from_env = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = from_env("PVLOCK_SEED");
    let seconds = from_env("PVLOCK_TORTURE_SECONDS").unwrap_or(4);
    let mut seeds = fastrand::Rng::with_seed(first.unwrap_or_else(|| fastrand::u64(..)));
    let (begun, mut rounds, mut counts, total) = (Instant::now(), 0, Counts::default(), Round::default());
    while rounds == 0 || begun.elapsed() < Duration::from_secs(seconds) {
        // The seed that a failure names is the first of a run that begins with it.
        let seed = if rounds == 0 { first.unwrap_or_else(|| seeds.u64(..)) } else { seeds.u64(..) };
        println!("seed {seed}");
        let config = draw_config(&mut fastrand::Rng::with_seed(seed), seed);
        let (vcpus, abilities) = (config.vcpus, config.abilities);
        let (round, of_round) = guest(config, move |round, me| torment(round, me, vcpus, seed));
        if !abilities.contains(Abilities::PREEMPTED | Abilities::FLUSH) {
            assert_eq!(
                (round.marked.load(Relaxed), of_round.tlb_flushes),
                (0, 0),
                "seed {seed}: marks that are not offered"
            );
        }
        rounds += 1;
        for (sum, of_round) in
            [(&total.marked, round.marked), (&total.asked, round.asked), (&total.marked_later, round.marked_later)]
        {
            sum.fetch_add(of_round.into_inner(), Relaxed);
        }
        counts.add(&of_round);
    }
    let (marked, asked, later) = (total.marked.into_inner(), total.asked.into_inner(), total.marked_later.into_inner());
    println!("{rounds} rounds, 0 violations: {marked} targets marked, {asked} asked, {later} of them marked later");
    println!("host: {counts:?}");
    assert!(counts.preemptions > 100 && counts.freezes > 0, "nobody was stopped, so nothing was tested");
    assert!(marked > 0 && asked > 0 && counts.tlb_flushes > 0, "a way was not met");
    assert!(counts.tlb_flushes <= marked + later, "the host flushes only for a mark");
}

#[test]
fn no_boosts_and_no_marks_on_a_host_that_is_not_overcommitted() {
    let _alone = alone();
    stats::reset();
    let cpus = available_parallelism().map_or(1, usize::from).min(2);
    let config = Config { interrupt_handler: Some(on_interrupt), ..Config::new(cpus, cpus) };
    let (round, counts) = guest(config, move |round, me| {
        ACTIVE.insert(me);
        while ACTIVE.iter().count() < cpus {
            spin_loop();
        }
        (0..2000).for_each(|_| round.add(remap(me)));
        round.finish(cpus);
        ACTIVE.remove(me);
    });
    println!("{} asked, {} marked, {} yields", round.asked.load(Relaxed), round.marked.load(Relaxed), counts.yields);
    // Other programs of this machine do not count: the host does not know of them.
    assert_eq!((counts.yields, counts.tlb_flushes), (0, 0));
}
