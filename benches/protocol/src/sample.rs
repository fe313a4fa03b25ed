//! What comes back: samples, one event per line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Form, Subject};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// One lock and unlock, nobody else about.
    Uncontended,
    /// A lock between two CPUs, or one way of a cache line.
    Handoff,
    /// Contention at one degree of overcommit.
    Overcommit,
    /// The same for longer.
    Fairness,
    /// The same with other sections.
    Sections,
    /// CPU time that the waiters of a frozen owner burn.
    FrozenOwner,
    /// Contention without overcommit, of pvlock with and without knowing who is preempted; many samples for a small difference.
    Awareness,
    /// Contention for a lock that sleeps.
    Mutex,
    /// Contention for a reader-writer lock: every tenth acquisition writes.
    RwLock,
    /// Two CPUs read.
    ReadRead,
    /// One vCPU writes, all others read, all the time.
    LoneWriter,
    /// One vCPU reads, all others write, all the time.
    LoneReader,
    /// Contention with one way to wait, on one kind of host.
    Policy,
    /// One of the five systems, off or on.
    Seed,
    /// `vcpu_is_preempted`, each call waiting for the answer of the one before.
    S1Dependent,
    /// `vcpu_is_preempted` in a spin loop that has ten values in registers.
    S1LiveRegisters,
}

/// What a host is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Host {
    /// When slices end.
    pub slices: Slices,
    /// Length of a slice in µs.
    pub quantum_us: u64,
    /// CPU time that an exit costs in µs.
    pub exit_us: u64,
}

/// When slices end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slices {
    /// Each CPU counts its own.
    Free,
    /// All CPUs switch at once.
    LockStep,
}

/// What samples must have in common to be summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// What is measured.
    pub metric: Metric,
    /// Of whom.
    pub subject: Subject,
    /// vCPUs, or threads.
    pub vcpus: usize,
    /// Physical CPUs that they share.
    pub cpus: usize,
    /// Critical section, in steps of about 4 cycles.
    pub cs: u32,
    /// Non-critical section, in the same steps.
    pub ncs: u32,
    /// On what host, if not on the usual one.
    pub host: Option<Host>,
}

impl Cell {
    /// vCPUs per CPU.
    pub fn overcommit(&self) -> f64 {
        self.vcpus as f64 / self.cpus as f64
    }
}

/// What one sample read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// Time of one operation; the median of many batches within the sample.
    Cost {
        /// In cycles of the time-stamp counter.
        cycles: f64,
        /// In ns.
        ns: f64,
    },
    /// Two CPUs and one lock.
    Handoff {
        /// Acquisitions per second by both together.
        ops_per_s: f64,
        /// Acquisitions per second that followed one by the other CPU.
        handoffs_per_s: f64,
    },
    /// Many contend for one lock.
    Contended {
        /// Acquisitions of each.
        per_vcpu: Vec<u64>,
        /// Length of the sample in s.
        seconds: f64,
        /// `[i]` counts waits of 2^i to 2^(i+1) ns.
        wait_buckets: Vec<u64>,
        /// Longest wait in µs.
        longest_wait_us: f64,
        /// Longest wait of the first vCPU, the lone reader or writer, in µs.
        first_wait_us: f64,
        /// CPU time used over CPU time there was.
        cpu_used: f64,
        /// The lock's own event counters, if it has any, and the host's.
        counters: BTreeMap<String, u64>,
    },
    /// All vCPUs do work of some kind.
    Work {
        /// Units of work done.
        units: u64,
        /// Length of the sample in s, by the host's clock.
        seconds: f64,
        /// Events that the library and the host counted.
        counters: BTreeMap<String, u64>,
    },
    /// The owner was frozen.
    FrozenOwner {
        /// CPU time that all waiters burned over the time for which they waited: 1 is one whole CPU.
        burned: f64,
    },
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// What it belongs to.
    pub cell: Cell,
    /// In which round. A sample that is repeated shares its round with those that replace it.
    pub round: u32,
    /// CPUs used by everything else on this machine meanwhile.
    pub foreign_cpus: f64,
    /// What it read.
    pub reading: Reading,
}

/// What one round of a measured loop is made of, as built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Code {
    /// Which loop.
    pub metric: Metric,
    /// With which form in it.
    pub form: Form,
    /// Instructions of one round, the called routines' included.
    pub instructions: u64,
    /// Accesses to the stack, besides those of calls and returns themselves.
    pub stack_accesses: u64,
}

/// One line of the measuring program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// First of all: what is to come.
    Plan {
        /// Samples, unless some must be repeated.
        samples: usize,
        /// How long they take in s.
        seconds: f64,
    },
    /// A sample begins.
    Begin {
        /// What it belongs to.
        cell: Cell,
        /// How much of the plan it is, in s: nothing when it is repeated.
        seconds: f64,
    },
    /// A sample has been taken; one that is to be repeated counts too.
    Sample(Sample),
    /// What a loop is made of.
    Code(Code),
}
