//! Timing a probe at full speed.

use std::time::Instant;

/// Rounds between two readings of the counter: some 30 µs, much beside the reading.
const BATCH: u64 = 2048;
/// Batches in a sample, of which the median counts, so that a tick or a switch inside of one does not.
const BATCHES: usize = 25;

/// The time-stamp counter.
fn rdtsc() -> u64 {
    // SAFETY: every x86-64 processor has it, and user space may read it unless the system forbids it on purpose.
    unsafe { core::arch::x86_64::_rdtsc() }
}

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

    /// Length of a cycle of the time-stamp counter in ns. The longer the stretch, the better.
    pub fn ns_per_cycle(&self) -> f64 {
        self.begun.elapsed().as_nanos() as f64 / (rdtsc() - self.tsc).max(1) as f64
    }
}

/// Cycles per round.
#[derive(Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Takes one sample of `many`, a probe that user space may execute, in the image that was entered last.
    pub(crate) fn take(&mut self, many: extern "C" fn(u64)) {
        let mut batches: Vec<f64> = Vec::with_capacity(BATCHES);
        for _ in 0..BATCHES {
            let begun = rdtsc();
            many(BATCH);
            batches.push((rdtsc() - begun) as f64 / BATCH as f64);
        }
        batches.sort_by(f64::total_cmp);
        self.0.push(batches[BATCHES / 2]);
    }

    /// All that were taken.
    pub fn all(self) -> Vec<f64> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::hint::black_box;
    use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use core::time::Duration;

    /// The first batch is disturbed for longer than all others take together.
    extern "C" fn many(rounds: u64) {
        static DISTURBED: AtomicBool = AtomicBool::new(false);
        if !DISTURBED.swap(true, Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
        }
        for round in 0..rounds {
            black_box(round);
        }
    }

    #[test]
    fn a_disturbed_batch_does_not_count() {
        let clock = Clock::start();
        let mut samples = Samples::default();
        samples.take(many);
        let samples = samples.all();
        assert!(samples.len() == 1 && (0.01..2000.0).contains(&samples[0]), "{samples:?}");
        // No processor's time-stamp counter is slower than 0.5 GHz or faster than 10 GHz.
        let ns = clock.ns_per_cycle();
        assert!((0.1..2.0).contains(&ns), "{ns}");
    }
}
