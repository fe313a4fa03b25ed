//! What a host is told before it starts: how many vCPUs and CPUs, slices, costs, abilities, policies.

use core::fmt;
use core::time::Duration;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use pvlock::MAX_CPUS;

use crate::policy::{BusySpinDetector, Policies, TICKS_PER_SLICE};
use crate::step::Trap;

/// The shortest slice. Switching costs about 5 µs, so below this a vCPU would do nothing but be switched.
pub const MIN_QUANTUM: Duration = Duration::from_micros(20);

/// When slices end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slices {
    /// Each physical CPU counts its own slices: a quantum from when the vCPU was switched in.
    FreeRunning,
    /// All physical CPUs switch at the same instants, the multiples of the quantum. A merciless test of starvation.
    LockStep,
    /// Slices of random length, from [`MIN_QUANTUM`] to the quantum, and random trouble: see [`Torture`].
    Random(Torture),
}

/// Random trouble for the guest. The same seed draws the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torture {
    /// Seed of all random choices.
    pub seed: u64,
    /// One slice in so many ends with the vCPU frozen; 0 for none.
    pub freeze_one_in: u32,
    /// The longest such freeze.
    pub freeze_max: Duration,
    /// One halt in so many returns at once, for no reason; 0 for none.
    pub spurious_one_in: u32,
}

bitflags::bitflags! {
    /// What the host offers its guest. Any subset works.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Abilities: u8 {
        /// The guest sees who is preempted (KVM_FEATURE_STEAL_TIME).
        const PREEMPTED = 1 << 0;
        /// Directed yields (KVM_FEATURE_PV_SCHED_YIELD).
        const YIELD = 1 << 1;
        /// Halting until kicked (KVM_FEATURE_PV_UNHALT).
        const HALT = 1 << 2;
        /// Interrupts to many vCPUs by one exit (KVM_FEATURE_PV_SEND_IPI).
        const SEND_IPI = 1 << 3;
        /// Flush marks at preempted vCPUs (KVM_FEATURE_PV_TLB_FLUSH).
        const FLUSH = 1 << 4;
    }
}

/// A host to be started. Begin with [`Config::new`] and change what matters.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of vCPUs, at least 1 and at most [`MAX_CPUS`].
    pub vcpus: usize,
    /// Number of physical CPUs that they share, at least 1 and at most what this process may run on.
    pub cpus: usize,
    /// Length of a time slice, at least [`MIN_QUANTUM`].
    pub quantum: Duration,
    /// When slices end.
    pub slices: Slices,
    /// CPU time that each hypercall and halt costs its caller, besides what the host needs anyway (about 1 µs, and 5 µs for
    /// a switch).
    pub exit_cost: Duration,
    /// What the guest may use.
    pub abilities: Abilities,
    /// How the host behaves where hosts differ.
    pub policies: Policies,
    /// CPU time that each candidate of an undirected yield costs: the host takes the locks of both run queues, two cache lines that other CPUs
    /// have just written.
    pub attempt_cost: Duration,
    /// Gives each vCPU a timer of its own, [`TICKS_PER_SLICE`] ticks per slice while it runs: the host makes this interrupt pending.
    pub timer: Option<u32>,
    /// The guest's interrupt handler; it gets the set of pending interrupts and runs with interrupts off.
    pub interrupt_handler: Option<fn(u64)>,
    /// Freezes at named steps of the guest.
    pub traps: Vec<Trap>,
    /// How long the guest may run before it counts as hung.
    pub limit: Duration,
}

impl Config {
    /// `vcpus` vCPUs on `cpus` physical CPUs: slices of 3 ms, exits of 1 µs, all abilities, the policies of today's KVM, 200 ns
    /// for each candidate, no timer, a limit of one minute.
    pub fn new(vcpus: usize, cpus: usize) -> Self {
        Self {
            vcpus,
            cpus,
            quantum: Duration::from_millis(3),
            slices: Slices::FreeRunning,
            exit_cost: Duration::from_micros(1),
            abilities: Abilities::all(),
            policies: Policies::KVM,
            attempt_cost: Duration::from_nanos(200),
            timer: None,
            interrupt_handler: None,
            traps: Vec::new(),
            limit: Duration::from_secs(60),
        }
    }

    /// How long a vCPU may run without a tick.
    pub(crate) fn tick_distance(&self) -> Duration {
        match (self.timer, self.policies.detector) {
            (None, BusySpinDetector::Off) => self.quantum,
            _ => self.quantum / TICKS_PER_SLICE,
        }
    }

    /// The numbers of the physical CPUs to use.
    ///
    /// # Errors
    /// Says what is wrong with this configuration, for this machine.
    pub(crate) fn check(&self) -> Result<Vec<usize>, ConfigError> {
        if self.vcpus == 0 {
            return Err(ConfigError::NoVcpus);
        }
        if self.vcpus > MAX_CPUS {
            return Err(ConfigError::TooManyVcpus { asked: self.vcpus });
        }
        if self.cpus == 0 {
            return Err(ConfigError::NoCpus);
        }
        if self.quantum < MIN_QUANTUM {
            return Err(ConfigError::QuantumTooShort { asked: self.quantum });
        }
        let set = sched_getaffinity(Pid::from_raw(0)).map_err(ConfigError::Affinity)?;
        let allowed: Vec<usize> = (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu) == Ok(true)).collect();
        if self.cpus > allowed.len() {
            return Err(ConfigError::TooManyCpus { asked: self.cpus, allowed: allowed.len() });
        }
        Ok(allowed[..self.cpus].to_vec())
    }
}

/// Why a host cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// No vCPUs.
    NoVcpus,
    /// More vCPUs than the library has room for.
    TooManyVcpus {
        /// How many were asked for.
        asked: usize,
    },
    /// No physical CPUs.
    NoCpus,
    /// More physical CPUs than this process may run on.
    TooManyCpus {
        /// How many were asked for.
        asked: usize,
        /// How many there are.
        allowed: usize,
    },
    /// A slice too short to do anything in.
    QuantumTooShort {
        /// What was asked for.
        asked: Duration,
    },
    /// The CPUs of this process cannot be read or set.
    Affinity(nix::Error),
    /// The signal or a timer cannot be had.
    Signals(nix::Error),
    /// Started from inside a guest.
    Nested,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoVcpus => write!(f, "a guest needs at least one vCPU; ask for 1 to {MAX_CPUS}"),
            Self::TooManyVcpus { asked } => write!(
                f,
                "{asked} vCPUs are more than the {MAX_CPUS} that pvlock was built for; ask for fewer, or build with \
                 PVLOCK_MAX_CPUS={asked}"
            ),
            Self::NoCpus => write!(f, "the host needs at least one physical CPU; ask for 1 or more"),
            Self::TooManyCpus { asked, allowed } => write!(
                f,
                "{asked} physical CPUs are more than the {allowed} that this process may run on; ask for {allowed} or fewer"
            ),
            Self::QuantumTooShort { asked } => {
                write!(f, "a time slice of {asked:?} is too short to do anything in; ask for {MIN_QUANTUM:?} or more")
            }
            Self::Affinity(errno) => {
                write!(f, "vCPUs cannot be bound to CPUs here ({errno}); allow sched_setaffinity for this process")
            }
            Self::Signals(errno) => {
                write!(f, "vCPUs cannot be preempted here ({errno}); allow SIGUSR1 and POSIX timers for this process")
            }
            Self::Nested => write!(f, "a vCPU cannot start a host; start it from an ordinary thread"),
        }
    }
}

impl core::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_hosts_are_refused_with_a_sentence() {
        let refused = |config: Config| config.check().unwrap_err().to_string();
        assert!(refused(Config::new(0, 1)).contains("at least one vCPU"));
        assert!(refused(Config::new(MAX_CPUS + 1, 1)).contains("PVLOCK_MAX_CPUS"));
        assert!(refused(Config::new(1, 0)).contains("at least one physical CPU"));
        assert!(refused(Config::new(1, 4096)).contains("4096 physical CPUs are more than"));
        assert!(refused(Config { quantum: Duration::ZERO, ..Config::new(1, 1) }).contains("too short"));
        assert!(Config::new(1, 1).check().is_ok());
    }
}
