//! What is to be measured: the arguments of `cargo xtask bench`.

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::LockName;

/// A kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Lock and unlock on one vCPU, against what the instructions themselves cost.
    Uncontended,
    /// Two CPUs, empty sections.
    Handoff,
    /// All vCPUs contend, 1 to 16 per CPU.
    Sweep,
    /// The same for three seconds at a time: who starves?
    Fairness,
    /// Other lengths of the critical and the non-critical section.
    Sections,
    /// The host freezes the owner: what do its waiters burn?
    Frozen,
    /// Locks that sleep: alone, and up to 8 vCPUs per CPU.
    Mutex,
    /// Reader-writer locks: two readers, a mix with up to 8 vCPUs per CPU, one against all.
    Rwlock,
    /// `vcpu_is_preempted` against the forms that it replaces.
    S1,
    /// Ways to wait, on many kinds of hosts. Only measured when asked for.
    Policies,
    /// The five systems that the library descends from, in the host and in the guest. Only measured when asked for.
    Seeds,
}

/// What is to be measured, and how.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Measure only these [default: all].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KINDS")]
    pub only: Vec<Kind>,

    /// Measure only these locks [default: all].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LOCKS")]
    pub locks: Vec<LockName>,

    /// Fewer and shorter samples: about a minute in all, and less to be trusted.
    #[arg(long)]
    pub quick: bool,

    /// Samples of each kind [default: 3 to 9, by kind].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,

    /// Time slice of a vCPU in µs.
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u64).range(20..=1_000_000))]
    pub quantum_us: u64,

    /// Physical CPUs that the vCPUs share.
    #[arg(long, default_value_t = 2, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub cpus: usize,

    /// Length of the critical section, in steps of about 4 cycles.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(0..=100_000_000))]
    pub cs: u32,

    /// Time from release to the next attempt, in steps of about 4 cycles.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(0..=100_000_000))]
    pub ncs: u32,
}

impl Options {
    /// Whether measurements of this kind are asked for.
    pub fn wants(&self, kind: Kind) -> bool {
        (self.only.is_empty() && !matches!(kind, Kind::Policies | Kind::Seeds)) || self.only.contains(&kind)
    }

    /// Whether this lock is asked for.
    pub fn wants_lock(&self, lock: LockName) -> bool {
        self.locks.is_empty() || self.locks.contains(&lock)
    }
}
