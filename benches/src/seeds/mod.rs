//! The five systems: each mechanism off and on, in the host and in the guest, under loads that stand for those of their authors.
//!
//! | | host, off → on | guest, off → on |
//! |---|---|---|
//! | S2 | a caught spinner tries all siblings → preempted ones only | `spin`'s mutex → the same with [`pvlock::Relax`] |
//! | S3 | no detector → two ticks at one instruction | no detector → [`SpinDetector`] fed by the guest's timer; the lock does not even pause |
//! | S4 | tries all siblings → gives up after three | `Relax` that yields on and on → as it is |
//! | S5 | no boost of user mode → of receivers of interrupts | a bare spin for the answers → [`wait_acks`] |
//!
//! In the guest's column the host helps nobody by itself: spinners are not caught. In the host's column they are, by [`waits::Caught`].

mod loads;
mod waits;

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::sleep;
use std::time::Instant;

use pvhost::{
    BailOut, BusySpinDetector, Config, Kick, Policies, PreemptedFlag, PvCpu, PvHost, ReceiverBoost, YieldCandidates,
};
use pvlock::boost::SpinDetector;
use pvlock::hypervisor::Hypervisor;
use pvlock::{CpuId, Relax, stats};
use pvlock_bench_protocol::{Cell, Load, Reading, Seed, SeedCase, Side, Turned};
use pvlock_policies::{Policy, Waits};

use crate::Error;
use loads::{Interrupts, Locks, Mixed, Work};
use waits::{Caught, NoPause, Plain};

/// vCPUs that sleep, where there are any.
const SLEEPERS: usize = 6;

/// The interrupt of the guest's timer; that of [`Interrupts`] is another.
const TIMER: u32 = 1;

/// What is measured: mechanisms under loads where they are to help, and some where they must do no harm.
pub(crate) const CASES: [(Seed, Side, Load); 12] = [
    (Seed::S2, Side::Host, Load::Locks),
    (Seed::S2, Side::Host, Load::Mixed),
    (Seed::S2, Side::Guest, Load::Locks),
    (Seed::S2, Side::Guest, Load::Mixed),
    (Seed::S3, Side::Host, Load::Locks),
    (Seed::S3, Side::Guest, Load::Locks),
    (Seed::S4, Side::Host, Load::Locks),
    (Seed::S4, Side::Host, Load::Mixed),
    (Seed::S4, Side::Guest, Load::Sleepers),
    (Seed::S5, Side::Host, Load::Interrupts),
    (Seed::S5, Side::Host, Load::Locks),
    (Seed::S5, Side::Guest, Load::Interrupts),
];

/// Yields whatever came of it before.
enum Stubborn {}

impl Policy for Stubborn {
    const YIELDS: u32 = 1;
    const HALTS: bool = true;
    const MARKS: bool = true;
    const BAILS_OUT: bool = false;
}

static DETECTOR: SpinDetector = SpinDetector::new();

/// The guest's interrupts: its timer feeds the detector, the others' requests are answered.
fn on_interrupts(pending: u64) {
    let Some(me) = pvhost::current() else { return };
    if pending & 1 << TIMER != 0 {
        DETECTOR.tick::<PvCpu>(me, pvhost::interrupted_ip());
    }
    loads::answer(me);
}

/// The host of a case: as it was before the five, but for what its mechanism is about.
fn host(case: SeedCase, cell: &Cell, quantum: Duration) -> Config {
    let on = case.turned == Turned::On;
    let mut policies = Policies {
        candidates: YieldCandidates::All,
        bail_out: BailOut::Off,
        detector: BusySpinDetector::Off,
        receiver_boost: ReceiverBoost::Off,
        kick: Kick::Wakes,
        // Theirs all come from before Linux 5.18, but for S5's (5.13); sleepers then read as preempted.
        flag: PreemptedFlag::AnyExit,
    };
    let mut timer = None;
    match (case.seed, case.side) {
        (Seed::S2, Side::Host) => {
            policies.candidates = if on { YieldCandidates::Flag } else { YieldCandidates::All };
            policies.bail_out = BailOut::AfterThree;
        }
        (Seed::S3, Side::Host) if on => policies.detector = BusySpinDetector::TwoTicks,
        (Seed::S3, Side::Guest) => timer = on.then_some(TIMER),
        (Seed::S4, Side::Host) if on => policies.bail_out = BailOut::AfterThree,
        (Seed::S5, Side::Host) => {
            policies.candidates = YieldCandidates::Flag;
            policies.bail_out = BailOut::AfterThree;
            policies.receiver_boost = if on { ReceiverBoost::On } else { ReceiverBoost::Off };
        }
        _ => {}
    }
    let sleepers = if case.load == Load::Sleepers { SLEEPERS } else { 0 };
    let handler: fn(u64) = on_interrupts;
    Config {
        quantum,
        policies,
        timer,
        interrupt_handler: Some(handler),
        ..Config::new(cell.vcpus + sleepers, cell.cpus)
    }
}

/// Measures `case` for `length`.
pub(crate) fn measure(case: SeedCase, cell: &Cell, quantum: Duration, length: Duration) -> Result<Reading, Error> {
    let config = host(case, cell, quantum);
    let workers = cell.vcpus;
    let on = case.turned == Turned::On;
    match (case.seed, case.side, case.load) {
        // The two sides of S2, S4 and S5 differ in how a foreign lock waits.
        (Seed::S2, Side::Guest, Load::Locks) if on => run::<Locks<Relax<PvCpu>>>(config, workers, length),
        (Seed::S2, Side::Guest, Load::Locks) => run::<Locks<Plain>>(config, workers, length),
        (Seed::S2, Side::Guest, Load::Mixed) if on => run::<Mixed<Relax<PvCpu>>>(config, workers, length),
        (Seed::S2, Side::Guest, Load::Mixed) => run::<Mixed<Plain>>(config, workers, length),
        (Seed::S4, Side::Guest, _) if on => run::<Locks<Relax<PvCpu>>>(config, workers, length),
        (Seed::S4, Side::Guest, _) => run::<Locks<Relax<Waits<PvCpu, Stubborn>>>>(config, workers, length),
        (Seed::S5, Side::Guest, Load::Interrupts) if on => run::<Interrupts<waits::Boosting>>(config, workers, length),
        (Seed::S5, Side::Guest, Load::Interrupts) => run::<Interrupts<waits::Bare<Plain>>>(config, workers, length),
        // No pause, so that nothing but a detector notices.
        (Seed::S3, ..) => run::<Locks<NoPause>>(config, workers, length),
        (_, Side::Host, Load::Locks) => run::<Locks<Caught>>(config, workers, length),
        (_, Side::Host, Load::Mixed) => run::<Mixed<Caught>>(config, workers, length),
        (_, Side::Host, Load::Interrupts) => run::<Interrupts<waits::Bare<Caught>>>(config, workers, length),
        _ => Err(format!("{case} is not measured").into()),
    }
}

/// The first `workers` vCPUs of `config` do `W` for `length`; the others sleep meanwhile.
fn run<W: Work>(config: Config, workers: usize, length: Duration) -> Result<Reading, Error> {
    stats::reset();
    let shared = Arc::new((W::new(workers), AtomicBool::new(false), AtomicU64::new(0)));
    let vcpus = config.vcpus;
    let guest = {
        let shared = Arc::clone(&shared);
        move |me: CpuId| {
            let (work, stop, units) = &*shared;
            if me.index() >= workers {
                while !stop.load(Relaxed) {
                    PvHost::halt(false);
                }
                return;
            }
            let mut done = 0;
            while !stop.load(Relaxed) {
                work.unit(me, done);
                DETECTOR.progress(me);
                done += 1;
            }
            work.leave(me);
            // Counted at the end only: a common counter would be a lock of its own.
            units.fetch_add(done, Relaxed);
            (workers..vcpus).filter_map(|sleeper| CpuId::new(sleeper as u32)).for_each(PvHost::kick);
        }
    };
    let running = pvhost::start(config, guest)?;
    let begun = Instant::now();
    sleep(length);
    shared.1.store(true, Release);
    let seconds = begun.elapsed().as_secs_f64();
    let report = running.wait()?;
    let of_host = report.total();
    let of_host = of_host.entries().map(|(name, count)| (format!("host_{name}"), count));
    let of_guest = stats::total();
    let counters: BTreeMap<String, u64> =
        of_guest.entries().map(|(name, count)| (name.to_owned(), count)).chain(of_host).collect();
    Ok(Reading::Work {
        units: shared.2.load(Relaxed),
        seconds,
        counters: counters.into_iter().filter(|&(_, count)| count != 0).collect(),
    })
}
