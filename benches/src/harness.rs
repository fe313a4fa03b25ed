//! One harness per kind of measurement, for any lock.

use core::marker::PhantomData;
use core::time::Duration;

use pvhost::contend::Sections;
use pvhost::locks::Lock;
use pvlock_bench_protocol::{Limit, Reading};

use crate::crew::{Crew, Host};
use crate::{Error, contended, cost, frozen, handoff, limits};

/// What is done with a lock, whatever its type.
pub(crate) trait Harness: Sync {
    /// Lock and unlock by one vCPU, for `length`.
    fn uncontended(&self, host: Host, length: Duration) -> Result<Reading, Error>;

    /// Two CPUs and empty sections, for `length`.
    fn handoff(&self, host: Host, length: Duration) -> Result<Reading, Error>;

    /// Everybody contends, for `length`.
    fn contended(&self, crew: &Crew, sections: Sections, length: Duration) -> Result<Reading, Error>;

    /// The owner is frozen for `length`, all the others wait.
    fn frozen_owner(&self, crew: &Crew, length: Duration) -> Result<Reading, Error>;
}

/// The harnesses for one type of lock.
pub(crate) struct Of<L>(pub(crate) PhantomData<fn() -> L>);

impl<L: Lock> Harness for Of<L> {
    fn uncontended(&self, host: Host, length: Duration) -> Result<Reading, Error> {
        uncontended::<L>(host, length)
    }

    fn handoff(&self, host: Host, length: Duration) -> Result<Reading, Error> {
        handoff::measure::<L>(host, length)
    }

    fn contended(&self, crew: &Crew, sections: Sections, length: Duration) -> Result<Reading, Error> {
        contended::measure::<L>(crew, sections, length)
    }

    fn frozen_owner(&self, crew: &Crew, length: Duration) -> Result<Reading, Error> {
        frozen::measure::<L>(crew, length)
    }
}

/// The physical limit `limit`, in the harness of the locks where it is one.
pub(crate) fn limit(limit: Limit, length: Duration) -> Result<Reading, Error> {
    match limit {
        Limit::CmpxchgStore => uncontended::<limits::CmpxchgStore>(Host::Threads, length),
        Limit::TwoCmpxchg => uncontended::<limits::TwoCmpxchg>(Host::Threads, length),
        Limit::LineTransfer => limits::line_transfer(length),
    }
}

/// A lock alone in its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct OwnLine<L>(L);

fn uncontended<L: Lock>(host: Host, length: Duration) -> Result<Reading, Error> {
    let crew = Crew::calm(host, 1);
    let found = std::sync::Arc::new(std::sync::OnceLock::new());
    let work = {
        let (lock, found) = (OwnLine::<L>::default(), std::sync::Arc::clone(&found));
        // The block keeps the compiler from looking across the section, as a real one does.
        move |_| drop(found.set(cost::of(length, || lock.0.with(|| core::hint::black_box(())))))
    };
    crew.run(work, || ())?;
    Ok(found.get().cloned().ok_or("the lock was not measured")?)
}
