//! What the benchmarks are asked and what they answer: shared by the measuring program, which is built for release, and
//! `cargo xtask bench`, which starts it and reports.
//!
//! The question is one argument, [`Options`] as JSON. The answer is one [`Event`] per line, as JSON, as it happens: whoever
//! stops the program in between keeps what was measured.

#[macro_use]
mod names;
mod options;
mod sample;
mod seed;
mod subject;

pub use options::{Kind, Options};
pub use sample::{Cell, Code, Event, Host, Metric, Reading, Sample, Slices};
pub use seed::{Load, Seed, SeedCase, Side, Turned};
pub use subject::{Form, Limit, LockName, MUTEXES, Policy, RWLOCKS, SPINLOCKS, Subject};

/// CPUs' worth of other work on this machine above which a sample is repeated, and set aside in the end. With one of two CPUs
/// taken away, a fair lock with as many threads as CPUs measures as if overcommitted.
pub const FOREIGN_LIMIT: f64 = 0.12;

/// vCPUs per CPU in the overcommit sweep.
pub const DEGREES: [usize; 5] = [1, 2, 4, 8, 16];
