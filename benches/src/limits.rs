//! What the processor allows at best: the atomic instructions of a lock with nothing around them, and a cache line's way.

use core::hint::spin_loop;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};

use pvhost::locks::Lock;
use pvlock_bench_protocol::Reading;

use crate::Error;
use crate::cost::{Batches, Clock};
use crate::crew::{Crew, Host};

/// `lock cmpxchg` to take, a plain store to release: the least that a lock can be. For one CPU, as it knows no waiting.
#[derive(Debug, Default)]
pub struct CmpxchgStore(AtomicU32);

impl Lock for CmpxchgStore {
    const NAME: &'static str = "cmpxchg+store";

    #[inline]
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        // ORDERING: Acquire, pair BENCH-LIMIT (below).
        while self.0.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            spin_loop();
        }
        let result = f();
        // ORDERING: Release, pair BENCH-LIMIT (above).
        self.0.store(0, Release);
        result
    }
}

/// `lock cmpxchg` to take and to release: the least where the release must learn something (whom to wake).
#[derive(Debug, Default)]
pub struct TwoCmpxchg(AtomicU32);

impl Lock for TwoCmpxchg {
    const NAME: &'static str = "two cmpxchg";

    #[inline]
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        // ORDERING: Acquire, pair BENCH-LIMIT (below).
        while self.0.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            spin_loop();
        }
        let result = f();
        // ORDERING: Release, pair BENCH-LIMIT (above). It is held, so it cannot fail.
        let _ = self.0.compare_exchange(1, 0, AcqRel, Relaxed);
        result
    }
}

/// A number that two CPUs raise in turn: the one makes it odd, the other even again. Alone in its cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PingPong(AtomicU64);

impl PingPong {
    /// Ends the game.
    const OVER: u64 = u64::MAX - 1;

    /// Raises the number and waits for the other's answer, `rounds` times. Without pauses, which would be most of the time.
    // ORDERING: none needed here and below, the number is all there is.
    fn serve(&self, rounds: u64) {
        for _ in 0..rounds {
            let served = self.0.load(Relaxed) + 1;
            self.0.store(served, Relaxed);
            while self.0.load(Relaxed) == served {}
        }
    }

    /// Answers until the game is over.
    fn answer(&self) {
        loop {
            match self.0.load(Relaxed) {
                Self::OVER => return,
                served if served % 2 == 1 => self.0.store(served + 1, Relaxed),
                _ => {}
            }
        }
    }
}

/// One way of a cache line from CPU to CPU, by plain threads on two CPUs.
pub(crate) fn line_transfer(length: Duration) -> Result<Reading, Error> {
    /// Round trips in one batch: about 0.1 ms.
    const ROUNDS: u64 = 1_000;
    let crew = Crew::calm(Host::Threads, 2);
    let found = Arc::new(Mutex::new(None));
    let game = {
        let (line, found) = (PingPong::default(), Arc::clone(&found));
        move |player: usize| {
            if player == 1 {
                return line.answer();
            }
            let (clock, mut batches) = (Clock::start(), Batches::new());
            while clock.elapsed() < length {
                batches.time(2 * ROUNDS, || line.serve(ROUNDS));
            }
            line.0.store(PingPong::OVER, Relaxed);
            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(batches.reading(&clock));
        }
    };
    crew.run(game, || ())?;
    let reading = found.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(reading.ok_or("the threads of the cache line measured nothing")?)
}
