//! Two CPUs take one lock in turn, with next to nothing inside: acquisitions, and how many of them changed hands.

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Instant;

use pvhost::locks::Lock;
use pvlock_bench_protocol::Reading;

use crate::Error;
use crate::crew::{Crew, Host};

/// A lock and its data side by side, as a mutex has them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Arena<L> {
    lock: L,
    data: UnsafeCell<Data>,
    stop: OwnLine,
}

#[derive(Debug, Default)]
struct Data {
    owner: usize,
    acquisitions: u64,
    handoffs: u64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct OwnLine(AtomicBool);

// SAFETY: `data` is accessed under the lock only.
unsafe impl<L: Sync> Sync for Arena<L> {}

impl<L: Lock> Arena<L> {
    fn compete(&self, me: usize) {
        while !self.stop.0.load(Relaxed) {
            self.lock.with(|| {
                // SAFETY: the lock is held, so this is the one reference.
                let data = unsafe { &mut *self.data.get() };
                data.acquisitions += 1;
                data.handoffs += u64::from(data.owner != me);
                data.owner = me;
            });
        }
    }

    /// Acquisitions and hand-overs so far.
    fn counts(&self) -> (u64, u64) {
        self.lock.with(|| {
            // SAFETY: the lock is held, so nobody writes.
            let data = unsafe { &*self.data.get() };
            (data.acquisitions, data.handoffs)
        })
    }
}

/// Lets two CPUs compete for one `L` for `length`.
pub(crate) fn measure<L: Lock>(host: Host, length: Duration) -> Result<Reading, Error> {
    let crew = Crew::calm(host, 2);
    let arena = Arc::new(Arena::<L>::default());
    let work = {
        let arena = Arc::clone(&arena);
        move |me| arena.compete(me)
    };
    let (seconds, _) = crew.run(work, || {
        let begun = Instant::now();
        sleep(length);
        arena.stop.0.store(true, Relaxed);
        begun.elapsed().as_secs_f64()
    })?;
    let (acquisitions, handoffs) = arena.counts();
    Ok(Reading::Handoff { ops_per_s: acquisitions as f64 / seconds, handoffs_per_s: handoffs as f64 / seconds })
}
