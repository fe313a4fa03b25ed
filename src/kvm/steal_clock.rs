//! Steal time for the kernel's accounting: read one CPU's record, and turn readings into differences that never jump.

use super::register::{NotRegistered, registered};
use super::steal_time::{read_steal, read_version};
use super::table::record;
use crate::cpu::CpuId;
use core::fmt;

/// Why steal time could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StealError {
    /// The CPU has no record with the host.
    NotRegistered(NotRegistered),
    /// The record did not stand still for one reading in 1000 tries.
    Unstable {
        /// Whose record.
        cpu: CpuId,
    },
}

impl fmt::Display for StealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRegistered(error) => error.fmt(f),
            Self::Unstable { cpu } => {
                write!(
                    f,
                    "the steal-time record of {cpu} keeps changing: skip this reading, and check that only the host writes it"
                )
            }
        }
    }
}

impl core::error::Error for StealError {}

/// Nanoseconds since registration for which `cpu` was ready to run and the host ran something else.
///
/// The host adds to it when it runs the vCPU again, so a vCPU that is preempted now shows the state before. After live
/// migration it may step back: let [`StealClock`] take differences.
///
/// # Errors
/// See [`StealError`].
pub fn steal_ns(cpu: CpuId) -> Result<u64, StealError> {
    if !registered(cpu) {
        return Err(StealError::NotRegistered(NotRegistered { cpu }));
    }
    read_steal(record(cpu)).ok_or(StealError::Unstable { cpu })
}

/// The `version` of the record of `cpu`, which moves whenever the host schedules that vCPU in; 0 without a record.
#[inline]
pub fn version(cpu: CpuId) -> u32 {
    read_version(record(cpu))
}

/// Turns readings of one CPU's [`steal_ns`] into what was stolen in between.
///
/// A reading below the one before (the CPU registered again, or the guest was restored or migrated) counts as nothing
/// stolen, and the next difference starts from it. Make a new one when the CPU registers again: then nothing is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StealClock {
    last_ns: u64,
}

impl StealClock {
    /// A clock that starts at the reading `now_ns`; a CPU that registers starts at 0.
    pub const fn new(now_ns: u64) -> Self {
        Self { last_ns: now_ns }
    }

    /// Nanoseconds stolen since the last reading, given the reading `now_ns`.
    pub const fn advance(&mut self, now_ns: u64) -> u64 {
        let stolen = now_ns.saturating_sub(self.last_ns);
        self.last_ns = now_ns;
        stolen
    }
}

#[cfg(test)]
mod tests;
