//! TLB shootdowns among more vCPUs than CPUs: by interrupts to all and a bare wait for all answers, and by `pvlock`, which leaves preempted
//! vCPUs a flush mark for the host, or boosts them.
//!
//! One vCPU changes the frame behind a page again and again; all others look at the page all the time. After each shootdown the old frame gets
//! another content, so whoever still reaches it has used an old TLB entry: the guest then fails.
//!
//! Expect, with more vCPUs than CPUs under KVM with PV_TLB_FLUSH: most targets `marked`, and many times as many shootdowns per second. Without
//! it `boosted`.
//!
//! Parameters: `ms` per interval (500), `rounds` (2), `pause_us`: time between two shootdowns (200), `linger_ms` (0).
#![no_std]
#![no_main]

use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use pvlock::boost::{CpuSet, Shootdown};
use pvlock::kvm::hypercall::Ipi;
use pvlock::{CpuId, MAX_CPUS, stats};
use pvlock_examples::guest::{self, Failure};
use pvlock_examples::params::Params;
use pvlock_rt::{
    ExitCode, Frame, REQUEST_VECTOR, RtCpu, Window, cpu_count, on_request, println, request, run_on_all, tsc, tsc_khz,
};

pvlock_rt::entry!(main);

fn main() -> ExitCode {
    guest::run(&["ms", "rounds", "pause_us"], shootdown)
}

/// In a frame that nothing shows.
const POISON: u64 = u64::MAX;

static FRAMES: [Frame; 2] = [const { Frame::new(POISON) }; 2];

// SAFETY: `answer` is the handler of all vCPUs.
static SHOOTDOWN: Shootdown = unsafe { Shootdown::new(Ipi::Vector(REQUEST_VECTOR)) };

/// The plain way: requests to each vCPU so far, and those that it has answered.
static ASKED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
static ANSWERED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// The vCPUs that look at the page.
static LOOKING: CpuSet = CpuSet::new();

fn answer(me: CpuId) {
    // ORDERING: Acquire, pair PLAIN-ASK (Release in `plain`).
    let asked = ASKED[me.index()].load(Ordering::Acquire);
    if ANSWERED[me.index()].load(Ordering::Relaxed) < asked {
        Window::flush();
        // ORDERING: Release, pair PLAIN-ANSWER (Acquire in `plain`): what was done with the old entry happened before.
        ANSWERED[me.index()].store(asked, Ordering::Release);
    }
    SHOOTDOWN.serve(me, Window::flush);
}

/// A shootdown as kernels do it.
fn plain(me: CpuId) {
    for target in LOOKING.iter().filter(|&target| target != me) {
        // ORDERING: Release, pair PLAIN-ASK.
        ASKED[target.index()].fetch_add(1, Ordering::Release);
        request(target);
    }
    for target in LOOKING.iter().filter(|&target| target != me) {
        let asked = ASKED[target.index()].load(Ordering::Relaxed);
        // ORDERING: Acquire, pair PLAIN-ANSWER.
        while ANSWERED[target.index()].load(Ordering::Acquire) < asked {
            spin_loop();
        }
    }
}

/// How many targets met which end.
#[derive(Default)]
struct Ends {
    shootdowns: u64,
    marked: u64,
    asked: u64,
    marked_later: u64,
}

/// One interval, as all vCPUs see it.
#[derive(Default)]
struct Interval {
    over: AtomicBool,
    looking: AtomicUsize,
    looks: AtomicU64,
    stale: AtomicU64,
}

impl Interval {
    /// Looks until it is over.
    fn look(&self, me: CpuId) {
        LOOKING.insert(me);
        // What was loaded before was not flushed by requests.
        Window::flush();
        self.looking.fetch_add(1, Ordering::Release);
        let (mut looks, mut stale) = (0, 0);
        while !self.over.load(Ordering::Relaxed) {
            looks += 1;
            stale += u64::from(Window::look() == POISON);
        }
        LOOKING.remove(me);
        self.looks.fetch_add(looks, Ordering::Relaxed);
        self.stale.fetch_add(stale, Ordering::Relaxed);
    }

    /// Changes the frame until `deadline`.
    fn change(&self, window: &Window, deadline: u64, pause: u64, shoot: impl Fn(&mut Ends)) -> Ends {
        let mut ends = Ends::default();
        // ORDERING: Acquire, pair with the Release in `look`: all are targets.
        while self.looking.load(Ordering::Acquire) + 1 < cpu_count() {
            spin_loop();
        }
        let mut shown = usize::from(FRAMES[0].word().load(Ordering::Relaxed) == POISON);
        while tsc() < deadline {
            let (old, new) = (&FRAMES[shown], &FRAMES[1 - shown]);
            shown = 1 - shown;
            new.word().store(ends.shootdowns, Ordering::Relaxed);
            window.show(new);
            Window::flush();
            shoot(&mut ends);
            old.word().store(POISON, Ordering::Relaxed);
            ends.shootdowns += 1;
            let until = tsc() + pause;
            while tsc() < until {
                spin_loop();
            }
        }
        self.over.store(true, Ordering::Release);
        ends
    }
}

fn shootdown(params: &Params) -> Result<(), Failure> {
    let ms = params.number("ms", 500, 1..=60_000)?;
    let rounds = params.number("rounds", 2, 1..=10_000)?;
    let pause_us = params.number("pause_us", 200, 0..=1_000_000)?;
    if cpu_count() < 2 {
        return Err(Failure::TooFewCpus(2));
    }
    on_request(answer);
    FRAMES[0].word().store(0, Ordering::Relaxed);
    let window = Window::open(&FRAMES[0]);
    for round in 0..rounds {
        measure("plain", round, &window, ms, pause_us, |me, _| plain(me))?;
        measure("pvlock", round, &window, ms, pause_us, |_, ends| {
            let done = SHOOTDOWN.flush_others::<RtCpu>(&LOOKING, request);
            ends.marked += u64::from(done.marked);
            ends.asked += u64::from(done.asked);
            ends.marked_later += u64::from(done.marked_later);
        })?;
    }
    Ok(())
}

fn measure(
    way: &'static str,
    round: u64,
    window: &Window,
    ms: u64,
    pause_us: u64,
    shoot: impl Fn(CpuId, &mut Ends) + Sync,
) -> Result<(), Failure> {
    let (interval, before) = (Interval::default(), stats::total());
    println!("mark start round={round} lock={way} tsc={}", tsc());
    let ends = spin::Once::new();
    let begun = tsc();
    let deadline = begun + ms * tsc_khz();
    run_on_all(&|me| {
        if me.index() > 0 {
            return interval.look(me);
        }
        ends.call_once(|| interval.change(window, deadline, pause_us * tsc_khz() / 1000, |ends| shoot(me, ends)));
    });
    let cycles = (tsc() - begun).max(1);
    println!("mark stop round={round} lock={way} tsc={}", tsc());
    let (stale, after) = (interval.stale.load(Ordering::Relaxed), stats::total());
    let Some(Ends { shootdowns, marked, asked, marked_later }) = ends.get() else { return Ok(()) };
    let boosts = after.boosts - before.boosts;
    println!(
        "result round={round} lock={way} vcpus={} shootdowns={shootdowns} cycles={cycles} marked={marked} asked={asked} \
         marked_later={marked_later} boosts={boosts} looks={} stale={stale} sum={}",
        cpu_count(),
        interval.looks.load(Ordering::Relaxed),
        if stale == 0 { "ok" } else { "wrong" }
    );
    println!(
        "# {way:<7} {:>6} shootdowns/s among {} vCPUs; targets: {marked} marked, {asked} asked ({marked_later} marked later), {boosts} boosts",
        shootdowns * tsc_khz() * 1000 / cycles,
        cpu_count()
    );
    if stale == 0 { Ok(()) } else { Err(Failure::StaleTlb(stale)) }
}
