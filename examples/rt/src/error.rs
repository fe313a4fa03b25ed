//! Why a guest does not come up.

use core::fmt;

use pvlock::kvm::RegisterError;
use pvlock::{ApicId, MAX_CPUS};

/// Printed as the guest's `error` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BootError {
    NoStartInfo,
    CommandLineTooLong { limit: usize },
    CommandLineNotUtf8,
    NoMemory,
    NoTscFrequency,
    Register(RegisterError),
    NoAcpi,
    NoMadt,
    TooManyCpus { found: usize },
    IdTooHigh(ApicId),
    CpuSilent { id: ApicId, limit_ms: u64 },
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStartInfo => f.write_str("the loader gave no PVH start info: use one that knows PVH"),
            Self::CommandLineTooLong { limit } => {
                write!(f, "the command line is longer than {limit} bytes: shorten it")
            }
            Self::CommandLineNotUtf8 => f.write_str("the command line is not UTF-8: use plain key=value words"),
            Self::NoMemory => f.write_str("the memory map has no RAM beyond the image: give the guest more memory"),
            Self::NoTscFrequency => {
                f.write_str("neither KVM nor a PIT tells the TSC frequency: use a machine with a PIT")
            }
            Self::Register(error) => write!(f, "steal-time registration failed: {error}"),
            Self::NoAcpi => f.write_str("the ACPI root tables cannot be read, so CPUs cannot be found"),
            Self::NoMadt => f.write_str("the ACPI tables have no valid MADT, so CPUs cannot be found"),
            Self::TooManyCpus { found } => write!(
                f,
                "the machine has {found} CPUs and pvlock was built for {MAX_CPUS}: build with PVLOCK_MAX_CPUS={found}"
            ),
            Self::IdTooHigh(ApicId(id)) => {
                write!(f, "a CPU has the APIC id {id}, which only x2APIC reaches: give the CPUs x2apic")
            }
            Self::CpuSilent { id: ApicId(id), limit_ms } => {
                write!(f, "the CPU with APIC id {id} did not start within {limit_ms} ms: the host may be overloaded")
            }
        }
    }
}

impl core::error::Error for BootError {}
