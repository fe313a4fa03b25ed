//! All vCPUs contend for one lock: how often each gets it, and how long it waits.

use core::cell::UnsafeCell;
use core::hint::black_box;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;

use crate::config::Config;
use crate::locks::Lock;
use crate::machine::{ForeignLoad, rdtsc};
use crate::report::Report;
use crate::{clock, run};
use pvlock::CpuId;

/// How a vCPU passes its time. Both lengths in iterations of a dependent multiplication, 4 cycles each or little more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sections {
    /// With the lock held.
    pub critical: u32,
    /// Between release and the next attempt.
    pub non_critical: u32,
    /// Who reads and who writes.
    pub mix: Mix,
}

/// Who reads and who writes. Locks that know no readers are taken alike for both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mix {
    /// Everybody writes.
    #[default]
    Writes,
    /// Everybody writes every tenth time.
    TenthWrites,
    /// Everybody reads.
    Reads,
    /// Contender 0 writes, all others read.
    LoneWriter,
    /// Contender 0 reads, all others write.
    LoneReader,
}

impl Mix {
    fn writes(self, contender: usize, op: u64) -> bool {
        match self {
            Self::Writes => true,
            Self::Reads => false,
            // Not all in step.
            Self::TenthWrites => (op + contender as u64).is_multiple_of(10),
            Self::LoneWriter => contender == 0,
            Self::LoneReader => contender != 0,
        }
    }
}

/// Wait times of a run: `buckets[i]` counts waits of 2^i up to 2^(i+1) ns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// The histogram.
    pub buckets: [u64; 40],
    /// The longest wait in ns.
    pub longest_ns: u64,
    /// The longest wait of contender 0, who may be the lone writer or reader.
    pub first_longest_ns: u64,
}

/// What one run gave.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Contended {
    /// Acquisitions per vCPU.
    pub per_vcpu: Vec<u64>,
    /// From the start to the signal to stop, by the host's clock.
    pub elapsed: Duration,
    /// Waits of all vCPUs. One whole acquisition each, descheduled time included.
    pub waits: Waits,
    /// CPU time burned over CPU time there was.
    pub cpu_burned: f64,
    /// CPUs' worth of load from outside this process: above about 0.1 the other figures are worthless.
    pub foreign_cpus: f64,
    /// The host's report.
    pub report: Report,
}

impl Contended {
    /// Acquisitions per second.
    pub fn ops_per_s(&self) -> f64 {
        self.per_vcpu.iter().sum::<u64>() as f64 / self.elapsed.as_secs_f64()
    }

    /// Acquisitions of the least served vCPU over those of the best served.
    pub fn fairness(&self) -> f64 {
        let (min, max) = (self.per_vcpu.iter().min(), self.per_vcpu.iter().max());
        match (min, max) {
            (Some(&min), Some(&max)) if max > 0 => min as f64 / max as f64,
            _ => 0.0,
        }
    }
}

/// Two words that only agree while nobody else is in the critical section.
#[derive(Debug, Default)]
pub struct Torn([UnsafeCell<u64>; 2]);

// SAFETY: accessed under the lock that the run measures; if that fails, `enter` finds out.
unsafe impl Sync for Torn {}

impl Torn {
    /// Never entered.
    pub const fn new() -> Self {
        Self([const { UnsafeCell::new(0) }; 2])
    }

    /// Counts one entry; `inside` runs between the two halves.
    ///
    /// # Panics
    /// When the halves disagree: somebody else is inside too.
    ///
    /// # Safety
    /// The caller holds the lock that guards this value.
    pub unsafe fn enter<R>(&self, inside: impl FnOnce() -> R) -> R {
        let (first, second) = (self.0[0].get(), self.0[1].get());
        // SAFETY: exclusive by the lock. Volatile, so that both halves are really written, in this order.
        let count = unsafe { first.read_volatile() } + 1;
        // SAFETY: as above.
        unsafe { first.write_volatile(count) };
        let result = inside();
        // SAFETY: as above.
        let seen = unsafe { second.read_volatile() } + 1;
        // SAFETY: as above.
        unsafe { second.write_volatile(seen) };
        // SAFETY: as above.
        let again = unsafe { first.read_volatile() };
        assert!(count == seen && count == again, "mutual exclusion is broken: {count}, {seen}, {again}");
        result
    }

    /// Reads both halves; `inside` runs in between.
    ///
    /// # Panics
    /// When the halves disagree: somebody enters meanwhile.
    ///
    /// # Safety
    /// The caller holds the lock that guards this value, at least for reading.
    pub unsafe fn look<R>(&self, inside: impl FnOnce() -> R) -> R {
        // SAFETY: nobody writes, by the lock. Volatile, so that both halves are really read, in this order.
        let second = unsafe { self.0[1].get().read_volatile() };
        let result = inside();
        // SAFETY: as above.
        let first = unsafe { self.0[0].get().read_volatile() };
        assert!(first == second, "somebody writes while others read: {first}, {second}");
        result
    }

    /// How often it was entered. Only when nobody enters any more.
    pub fn entries(&mut self) -> u64 {
        *self.0[1].get_mut()
    }
}

/// Contention for one `L`, whoever contends: vCPUs of this host ([`contend`]) or plain threads.
#[derive(Debug)]
pub struct Contest<L> {
    contended: Contention<L>,
    stop: OwnLine<AtomicBool>,
    contenders: usize,
    sections: Sections,
    results: Mutex<Vec<Outcome>>,
}

/// A lock and its data side by side, as a mutex has them, with nothing else in the cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Contention<L> {
    lock: L,
    data: Torn,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct OwnLine<T>(T);

#[derive(Clone, Debug)]
struct Outcome {
    contender: usize,
    ops: u64,
    waits_tsc: [u64; 64],
    longest_tsc: u64,
}

impl<L: Lock> Contest<L> {
    /// A contest that nobody has joined yet.
    pub fn new(contenders: usize, sections: Sections) -> Self {
        Self {
            contended: Contention::default(),
            stop: OwnLine::default(),
            contenders,
            sections,
            results: Mutex::new(Vec::with_capacity(contenders)),
        }
    }

    /// Contends as number `contender`, below the number given to [`new`](Self::new), until [`stop`](Self::stop).
    ///
    /// # Panics
    /// When somebody else is in the critical section too.
    pub fn join(&self, contender: usize) {
        let mut outcome = Outcome { contender, ops: 0, waits_tsc: [0; 64], longest_tsc: 0 };
        while !self.stop.0.load(Relaxed) {
            let asked = rdtsc();
            let got = if self.sections.mix.writes(contender, outcome.ops) {
                self.contended.lock.with(|| {
                    let got = rdtsc();
                    // SAFETY: the lock is held.
                    unsafe { self.contended.data.enter(|| work(self.sections.critical)) };
                    got
                })
            } else {
                self.contended.lock.read_with(|| {
                    let got = rdtsc();
                    // SAFETY: the lock is held, at least for reading.
                    unsafe { self.contended.data.look(|| work(self.sections.critical)) };
                    got
                })
            };
            let wait = got.wrapping_sub(asked);
            outcome.waits_tsc[wait.max(1).ilog2() as usize] += 1;
            outcome.longest_tsc = outcome.longest_tsc.max(wait);
            outcome.ops += 1;
            work(self.sections.non_critical);
        }
        // Room for everybody was reserved, so this does not allocate.
        self.results.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
    }

    /// Makes the contenders return, each after its next acquisition.
    pub fn stop(&self) {
        self.stop.0.store(true, Relaxed);
    }

    /// Acquisitions by contender, and all waits, of those who have returned.
    pub fn result(&self, ns_per_tsc: f64) -> (Vec<u64>, Waits) {
        let mut ops = vec![0; self.contenders];
        let mut waits = Waits { buckets: [0; 40], longest_ns: 0, first_longest_ns: 0 };
        for outcome in self.results.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            ops[outcome.contender] = outcome.ops;
            let longest_ns = (outcome.longest_tsc as f64 * ns_per_tsc) as u64;
            waits.longest_ns = waits.longest_ns.max(longest_ns);
            if outcome.contender == 0 {
                waits.first_longest_ns = longest_ns;
            }
            for (i, &count) in outcome.waits_tsc.iter().enumerate() {
                let ns = (1u64 << i) as f64 * ns_per_tsc;
                waits.buckets[(ns.log2().max(0.0) as usize).min(39)] += count;
            }
        }
        (ops, waits)
    }
}

/// Lets all vCPUs of `config` contend for one `L` for `duration`.
///
/// # Errors
/// When the host cannot be started, the guest hangs or exclusion is broken.
pub fn contend<L: Lock>(
    config: Config,
    sections: Sections,
    duration: Duration,
) -> Result<Contended, Box<dyn core::error::Error + Send + Sync>> {
    let cpus = config.cpus;
    let contest = Arc::new(Contest::<L>::new(config.vcpus, sections));
    let guest = {
        let contest = Arc::clone(&contest);
        move |cpu: CpuId| contest.join(cpu.index())
    };

    let load = ForeignLoad::begin();
    let running = run::start(config, guest)?;
    let (tsc, start_ns) = (rdtsc(), clock::now_ns());
    sleep(duration);
    let cpu_burned = running.report().cpu_time();
    contest.stop();
    let (tsc, elapsed_ns) = (rdtsc() - tsc, clock::now_ns() - start_ns);
    let foreign_cpus = load.end();
    let report = running.wait()?;

    let elapsed = Duration::from_nanos(elapsed_ns);
    let (per_vcpu, waits) = contest.result(elapsed_ns as f64 / tsc as f64);
    let available = elapsed.as_secs_f64() * cpus as f64;
    Ok(Contended { per_vcpu, elapsed, waits, cpu_burned: cpu_burned.as_secs_f64() / available, foreign_cpus, report })
}

/// Burns CPU without touching memory.
#[inline]
pub fn work(iterations: u32) {
    // Of what the compiler knew it would fold many steps into one multiplication.
    let iterations = black_box(iterations);
    let mut x = black_box(u64::from(iterations) | 1);
    for _ in 0..iterations {
        x = x.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    }
    black_box(x);
}
