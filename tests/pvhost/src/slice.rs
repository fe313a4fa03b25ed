//! When slices end, and the random choices of torture.

use core::time::Duration;

use crate::config::{MIN_QUANTUM, Slices, Torture};

/// Ends of slices, and what else is drawn at random.
#[derive(Debug)]
pub(crate) struct SliceClock {
    slices: Slices,
    quantum_ns: u64,
    rng: fastrand::Rng,
}

impl SliceClock {
    pub(crate) fn new(slices: Slices, quantum_ns: u64) -> Self {
        let seed = match slices {
            Slices::Random(torture) => torture.seed,
            Slices::FreeRunning | Slices::LockStep => 0,
        };
        Self { slices, quantum_ns, rng: fastrand::Rng::with_seed(seed) }
    }

    /// When a slice that begins at `now_ns` ends.
    pub(crate) fn end_of_slice_ns(&mut self, now_ns: u64) -> u64 {
        match self.slices {
            Slices::FreeRunning => now_ns + self.quantum_ns,
            Slices::LockStep => (now_ns / self.quantum_ns + 1) * self.quantum_ns,
            Slices::Random(_) => now_ns + self.rng.u64(MIN_QUANTUM.as_nanos() as u64..=self.quantum_ns),
        }
    }

    /// Whether the slice that ends now is followed by a freeze, and how long a one.
    pub(crate) fn draw_freeze(&mut self) -> Option<Duration> {
        let Slices::Random(Torture { freeze_one_in, freeze_max, .. }) = self.slices else { return None };
        self.one_in(freeze_one_in).then(|| Duration::from_nanos(self.rng.u64(0..=freeze_max.as_nanos() as u64)))
    }

    /// Whether the halt that begins now ends at once, for no reason.
    pub(crate) fn draw_spurious_wake(&mut self) -> bool {
        let Slices::Random(Torture { spurious_one_in, .. }) = self.slices else { return false };
        self.one_in(spurious_one_in)
    }

    fn one_in(&mut self, n: u32) -> bool {
        n != 0 && self.rng.u32(0..n) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_step_slices_end_together_and_free_running_ones_do_not() {
        let mut lock_step = SliceClock::new(Slices::LockStep, 1000);
        assert_eq!((lock_step.end_of_slice_ns(1), lock_step.end_of_slice_ns(999)), (1000, 1000));
        assert_eq!(lock_step.end_of_slice_ns(1000), 2000);
        let mut free = SliceClock::new(Slices::FreeRunning, 1000);
        assert_eq!((free.end_of_slice_ns(1), free.end_of_slice_ns(999)), (1001, 1999));
    }

    #[test]
    fn one_seed_draws_one_sequence() {
        let draw = |seed| {
            let torture = Torture { seed, freeze_one_in: 3, freeze_max: Duration::from_millis(1), spurious_one_in: 2 };
            let mut clock = SliceClock::new(Slices::Random(torture), 1_000_000);
            let draws: Vec<_> =
                (0..50).map(|_| (clock.end_of_slice_ns(0), clock.draw_freeze(), clock.draw_spurious_wake())).collect();
            draws
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(draw(1).iter().all(|&(end_ns, ..)| (20_000..=1_000_000).contains(&end_ns)));
    }
}
