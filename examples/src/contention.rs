//! One measured interval: vCPUs contend for one lock until the time is up.

use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pvlock::CpuId;
use pvlock_rt::{println, run_on_all, tsc, tsc_khz};

use crate::locks::{Awareness, Lock, LockName, WithLock};

/// What the lock protects. Plain integers: a lock that lets two CPUs in at once loses counts.
#[derive(Debug, Default)]
pub struct Section {
    entered: u64,
    handoffs: u64,
    last: Option<CpuId>,
}

impl Section {
    #[inline(always)]
    fn enter(&mut self, cpu: CpuId) {
        self.entered += 1;
        if self.last != Some(cpu) {
            self.handoffs += u64::from(self.last.is_some());
            self.last = Some(cpu);
        }
    }
}

/// An interval to measure.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    /// Number of the round, for the output.
    pub round: u64,
    /// The lock to contend for.
    pub lock: LockName,
    /// Whether pvlock asks the hypervisor.
    pub awareness: Awareness,
    /// How many vCPUs contend, the boot CPU among them; the others halt.
    pub vcpus: usize,
    /// Length in milliseconds, by the TSC.
    pub ms: u64,
    /// Iterations of [`work`] inside the critical section.
    pub cs: u64,
    /// Iterations of [`work`] between two sections.
    pub ncs: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Acquisitions per vCPU.
    pub per_cpu: Vec<u64>,
    /// How often the lock went from one vCPU to another.
    pub handoffs: u64,
    /// Longest single wait in TSC cycles; a wait that outlives the interval counts up to its end.
    pub max_wait_cycles: u64,
    /// Length of the interval in TSC cycles.
    pub cycles: u64,
    /// Whether the protected counter equals the sum of the vCPUs' own counts.
    pub sum_ok: bool,
}

impl Outcome {
    /// Acquisitions of all vCPUs.
    pub fn acquisitions(&self) -> u64 {
        self.per_cpu.iter().sum()
    }
}

/// Counts of one vCPU, on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Tally {
    acquisitions: AtomicU64,
    max_wait: AtomicU64,
}

/// On cache lines of its own: what is compared are the locks, not their neighbours.
#[repr(align(128))]
struct Alone<T>(T);

/// An interval in progress, as all its vCPUs see it.
struct Contest<L> {
    lock: Alone<L>,
    /// TSC at which the interval ended, 0 while it lasts.
    ended: Alone<AtomicU64>,
    deadline: u64,
    interval: Interval,
    tallies: Vec<Tally>,
}

/// How many sections pass between two looks at the clock: often enough for an end within microseconds, rarely enough
/// not to be measured.
const CLOCK_EVERY: u64 = 64;

impl<L: Lock> Contest<L> {
    /// What every vCPU does. Whoever gets the lock after the end leaves at once, so a queue drains.
    fn contend(&self, cpu: CpuId) {
        let Some(tally) = self.tallies.get(cpu.index()) else { return };
        let mut acquisitions = 0;
        let mut max_wait = 0;
        loop {
            let mut now = 0;
            // Only waits are timed, so that the uncontended path is that of the lock alone.
            let mut guard = self.lock.0.try_lock().unwrap_or_else(|| {
                let asked = tsc();
                let guard = self.lock.0.lock();
                now = tsc();
                max_wait = max_wait.max(self.until_end(now).saturating_sub(asked));
                guard
            });
            if self.has_ended() {
                break;
            }
            guard.enter(cpu);
            work(self.interval.cs);
            drop(guard);
            acquisitions += 1;
            if acquisitions % CLOCK_EVERY == 0 {
                now = tsc();
            }
            if now >= self.deadline {
                self.end(now);
                break;
            }
            work(self.interval.ncs);
        }
        // ORDERING: Relaxed, `run_on_all` publishes them to the boot CPU.
        tally.acquisitions.store(acquisitions, Relaxed);
        tally.max_wait.store(max_wait, Relaxed);
    }

    fn has_ended(&self) -> bool {
        // ORDERING: Relaxed, a signal that may come late.
        self.ended.0.load(Relaxed) != 0
    }

    /// The earlier of `now` and the end.
    fn until_end(&self, now: u64) -> u64 {
        // ORDERING: Relaxed, as above.
        match self.ended.0.load(Relaxed) {
            0 => now,
            end => now.min(end),
        }
    }

    /// Ends the interval, once. Any vCPU that runs does it, since the boot CPU may be stuck in a queue.
    fn end(&self, now: u64) {
        // ORDERING: Relaxed, as above.
        if self.ended.0.compare_exchange(0, now, Relaxed, Relaxed).is_ok() {
            let Interval { round, lock, .. } = self.interval;
            println!("mark stop round={round} lock={lock} tsc={now}");
        }
    }
}

/// Some arithmetic in which each step needs the one before.
#[inline(always)]
pub fn work(iterations: u64) {
    let mut x = iterations;
    for _ in 0..iterations {
        x = (x ^ (x >> 7)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    black_box(x);
}

impl WithLock for Interval {
    type Output = Outcome;

    fn run<L: Lock>(self) -> Outcome {
        let tallies = (0..self.vcpus).map(|_| Tally::default()).collect();
        println!("mark start round={} lock={} tsc={}", self.round, self.lock, tsc());
        let start = tsc();
        let contest = Contest {
            lock: Alone(L::new(Section::default())),
            ended: Alone(AtomicU64::new(0)),
            deadline: start + self.ms * tsc_khz(),
            interval: self,
            tallies,
        };
        run_on_all(&|cpu| contest.contend(cpu));

        let section = contest.lock.0.lock();
        let per_cpu: Vec<u64> = contest.tallies.iter().map(|tally| tally.acquisitions.load(Relaxed)).collect();
        let outcome = Outcome {
            handoffs: section.handoffs,
            max_wait_cycles: contest.tallies.iter().map(|tally| tally.max_wait.load(Relaxed)).max().unwrap_or(0),
            cycles: contest.ended.0.load(Relaxed) - start,
            sum_ok: section.entered == per_cpu.iter().sum::<u64>(),
            per_cpu,
        };
        drop(section);
        outcome
    }
}
