//! Measures locks at native speed: alone, between two CPUs, and on a host that preempts their vCPUs.
//!
//! There is one harness per kind of measurement; a lock joins all of them by an adapter and a line in [`locks`].
//! `cargo xtask bench` builds and starts this as a program and makes the report; `cargo bench -p pvlock-bench` runs the part
//! that needs one vCPU under Criterion.

mod contended;
pub mod cost;
mod crew;
mod frozen;
mod handoff;
mod harness;
pub mod limits;
pub mod locks;
mod plan;
pub mod s1;
mod seeds;
mod session;

pub use plan::{Block, Job, plan};
pub use session::run;

/// An error of any kind, to be printed.
pub type Error = Box<dyn core::error::Error + Send + Sync>;
