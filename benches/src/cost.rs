//! The time of one operation: many batches, of which the median counts, so that a tick or a switch inside of one does not.

use core::time::Duration;
use std::time::Instant;

use pvhost::machine::rdtsc;
use pvlock_bench_protocol::Reading;

/// A stretch of time by the time-stamp counter and by the system's clock, to translate one into the other.
#[derive(Debug)]
pub struct Clock {
    begun: Instant,
    tsc: u64,
}

impl Clock {
    /// Begins.
    pub fn start() -> Self {
        Self { begun: Instant::now(), tsc: rdtsc() }
    }

    /// Time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Length of a cycle of the time-stamp counter in ns. The longer the stretch, the better.
    pub fn ns_per_cycle(&self) -> f64 {
        self.begun.elapsed().as_nanos() as f64 / (rdtsc() - self.tsc).max(1) as f64
    }
}

/// The times of batches.
#[derive(Debug)]
pub struct Batches(Vec<f64>);

impl Batches {
    /// None yet, with room for a sample's worth, so that little is allocated while measuring.
    pub fn new() -> Self {
        Self(Vec::with_capacity(64 * 1024))
    }

    /// Times a batch of `operations`.
    #[inline(always)]
    pub fn time(&mut self, operations: u64, batch: impl FnOnce()) {
        let begun = rdtsc();
        batch();
        self.0.push((rdtsc() - begun) as f64 / operations as f64);
    }

    /// The median batch.
    pub fn reading(mut self, clock: &Clock) -> Reading {
        self.0.sort_by(f64::total_cmp);
        let cycles = self.0.get(self.0.len() / 2).copied().unwrap_or(0.0);
        Reading::Cost { cycles, ns: cycles * clock.ns_per_cycle() }
    }
}

impl Default for Batches {
    fn default() -> Self {
        Self::new()
    }
}

/// The time of one `operation`, which is repeated for `length`.
#[inline(always)]
pub fn of(length: Duration, mut operation: impl FnMut()) -> Reading {
    /// Some 10 µs: little beside a time slice, much beside reading the counter.
    const BATCH: u64 = 2048;
    let mut batches = Batches::new();
    let clock = Clock::start();
    while clock.elapsed() < length {
        batches.time(BATCH, || (0..BATCH).for_each(|_| operation()));
    }
    batches.reading(&clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_batch_counts_and_both_clocks_agree() {
        let clock = Clock::start();
        let mut batches = Batches::new();
        batches.0.extend([7.0, 1000.0, 5.0]);
        while clock.elapsed() < Duration::from_millis(2) {}
        let Reading::Cost { cycles, ns } = batches.reading(&clock) else { panic!("no cost") };
        // No processor's time-stamp counter is slower than 0.5 GHz or faster than 10 GHz.
        assert!(cycles == 7.0 && (0.7..14.0).contains(&ns), "{cycles} {ns}");
    }
}
