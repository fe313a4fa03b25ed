//! The five systems that this library's mechanisms descend from, each as one mechanism that can be turned off and on.

use core::fmt;

use serde::{Deserialize, Serialize};

names! {
    /// One of the five.
    Seed {
        /// "Better yield candidates" (2013): boost preempted vCPUs only.
        S2 = "S2",
        /// The busy-spin detector (2010).
        S3 = "S3",
        /// The undercommit bail-out (2013).
        S4 = "S4",
        /// Boosting the receivers of interrupts (2021).
        S5 = "S5",
    }
}

names! {
    /// Where the mechanism is.
    Side {
        /// In the host, as its authors built it.
        Host = "host",
        /// In the guest: the library's.
        Guest = "guest",
    }
}

names! {
    /// What the guest does.
    Load {
        /// All vCPUs take one lock all the time, as ebizzy's threads do.
        Locks = "locks",
        /// The same, beside vCPUs that sleep, which the kernel has not said.
        Sleepers = "locks beside sleepers",
        /// Mostly computes, and takes one of four locks in between, as a kernel build does.
        Mixed = "mixed",
        /// Computes in user mode, then interrupts all others and waits for their answers, as pbzip2 does when it gives memory back.
        Interrupts = "interrupts",
    }
}

names! {
    /// Whether the mechanism is used.
    Turned {
        /// It is not: the base.
        Off = "off",
        /// It is.
        On = "on",
    }
}

/// A mechanism under a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SeedCase {
    /// Of which system.
    pub seed: Seed,
    /// Where.
    pub side: Side,
    /// Under which load.
    pub load: Load,
    /// Whether it is used.
    pub turned: Turned,
}

impl fmt::Display for SeedCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in the {}, {}, {}", self.seed, self.side, self.load, self.turned)
    }
}
