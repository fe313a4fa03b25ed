//! All CPUs contend for one lock, for both kinds that the HAL's crates use, until the time is up.

use core::hint::black_box;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use axplat::console_println as println;
use axplat::time::{current_ticks, nanos_to_ticks};
use kspin::{SpinNoIrq, SpinRaw};

use crate::cpus::{MAX_CPUS, run_on_all};
use crate::params::Params;

/// One CPU's counts.
#[derive(Debug)]
#[repr(align(128))]
pub struct Tally {
    pub acquisitions: AtomicU64,
    pub max_wait: AtomicU64,
}

impl Tally {
    pub const NEW: Self = Self { acquisitions: AtomicU64::new(0), max_wait: AtomicU64::new(0) };
}

/// An interval in progress.
pub struct Interval {
    lock: &'static str,
    round: u64,
    deadline: u64,
    /// When it ended, 0 while it lasts.
    ended: AtomicU64,
    pub tallies: [Tally; MAX_CPUS],
}

impl Interval {
    pub fn begin(lock: &'static str, round: u64, ms: u64) -> Self {
        let now = current_ticks();
        println!("mark start round={round} lock={lock} tsc={now}");
        let deadline = now + nanos_to_ticks(ms * 1_000_000);
        Self { lock, round, deadline, ended: AtomicU64::new(0), tallies: [Tally::NEW; MAX_CPUS] }
    }

    /// Whether it is over.
    #[inline(always)]
    pub fn is_over(&self) -> bool {
        // ORDERING: Relaxed, a signal that may come late.
        self.ended.load(Relaxed) != 0
    }

    /// The earlier of `now` and the end: a wait that outlives the interval counts up to its end.
    pub fn until_end(&self, now: u64) -> u64 {
        match self.ended.load(Relaxed) {
            0 => now,
            end => now.min(end),
        }
    }

    /// Ends it if the time is up. Any CPU that runs does it, since the boot CPU may be waiting.
    pub fn end_if_due(&self) {
        let now = current_ticks();
        if now >= self.deadline {
            self.end(now);
        }
    }

    /// Ends it, once.
    pub fn end(&self, now: u64) {
        let Self { round, lock, .. } = self;
        if self.ended.compare_exchange(0, now, Relaxed, Relaxed).is_ok() {
            println!("mark stop round={round} lock={lock} tsc={now}");
        }
    }

    /// Prints the result; `right`: the lock's data counted as many entries, or bears witness in another way.
    pub fn report(&self, vcpus: usize, right: impl FnOnce(u64) -> bool) -> Result<(), &'static str> {
        let Self { round, lock, .. } = self;
        let tallies = &self.tallies[..vcpus];
        let acquisitions: u64 = tallies.iter().map(|tally| tally.acquisitions.load(Relaxed)).sum();
        let max_wait = tallies.iter().map(|tally| tally.max_wait.load(Relaxed)).max().unwrap_or(0);
        let sum = if right(acquisitions) { "ok" } else { "wrong" };
        println!(
            "result round={round} lock={lock} vcpus={vcpus} acquisitions={acquisitions} max_wait_cycles={max_wait} sum={sum}"
        );
        for (cpu, tally) in tallies.iter().enumerate() {
            println!("cpu round={round} lock={lock} cpu={cpu} acquisitions={}", tally.acquisitions.load(Relaxed));
        }
        if sum == "ok" { Ok(()) } else { Err("a lock lost counts") }
    }
}

/// Sections between two looks at the clock.
const CLOCK_EVERY: u64 = 64;

/// Some arithmetic in which each step needs the one before.
#[inline(always)]
fn work(iterations: u64) {
    let mut x = iterations;
    for _ in 0..iterations {
        x = (x ^ (x >> 7)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    black_box(x);
}

/// On lines of its own.
#[repr(align(128))]
struct Alone<T>(T);

macro_rules! contend {
    ($kind:ident, $name:literal, $round:expr, $params:expr) => {{
        let params: &Params = $params;
        // A plain number: a lock that lets two CPUs in at once loses counts.
        let lock = Alone($kind::new(0u64));
        let interval = Interval::begin($name, $round, params.ms);
        run_on_all(params.vcpus, &|cpu| {
            let (mut acquisitions, mut max_wait) = (0, 0);
            loop {
                // Only waits are timed, so that the uncontended path is that of the lock alone.
                let mut entered = lock.0.try_lock().unwrap_or_else(|| {
                    let asked = current_ticks();
                    let entered = lock.0.lock();
                    max_wait = max_wait.max(interval.until_end(current_ticks()).saturating_sub(asked));
                    entered
                });
                if interval.is_over() {
                    break;
                }
                *entered += 1;
                work(params.cs);
                drop(entered);
                acquisitions += 1;
                if acquisitions % CLOCK_EVERY == 0 {
                    interval.end_if_due();
                }
                work(params.ncs);
            }
            // ORDERING: Relaxed, `run_on_all` publishes them to the boot CPU.
            interval.tallies[cpu].acquisitions.store(acquisitions, Relaxed);
            interval.tallies[cpu].max_wait.store(max_wait, Relaxed);
        });
        let entered = *lock.0.lock();
        interval.report(params.vcpus, |acquisitions| entered == acquisitions)
    }};
}

/// Both kinds, one after the other.
pub fn measure(round: u64, params: &Params) -> Result<(), &'static str> {
    contend!(SpinRaw, "SpinRaw", round, params)?;
    contend!(SpinNoIrq, "SpinNoIrq", round, params)
}
