//! Putting CPUs into the table and out of it: register, unregister, and what is known of each CPU.

use super::detect::Features;
use super::msr::{ENABLE, Machine, ThisCpu};
use super::setup::{SETUP, Setup};
use super::steal_time::StealTime;
use super::table::zero_record;
use crate::cpu::{ApicId, CpuId, MAX_CPUS};
use core::fmt;
use core::sync::atomic::{
    AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};

/// Why a CPU has no steal-time record now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// CPUID shows no KVM. The CPU's APIC id has been noted; the locks work, spinning.
    NoKvm,
    /// The host offers no steal time. The CPU's APIC id has been noted, so that it can be kicked.
    NoStealTime,
    /// The physical address is 0.
    NullAddress,
    /// The physical address is not a multiple of 64.
    Unaligned {
        /// What was passed.
        phys: u64,
    },
    /// The physical address needs more bits than the CPU has.
    TooHigh {
        /// What was passed.
        phys: u64,
        /// Width of a physical address in bits.
        bits: u32,
    },
    /// The CPU is registered. That registration stands and nothing has changed.
    AlreadyRegistered {
        /// Which CPU.
        cpu: CpuId,
    },
    /// Another CPU is registered with this APIC id.
    ApicIdTaken {
        /// What was passed.
        apic: ApicId,
        /// The CPU that has it.
        by: CpuId,
    },
    /// The APIC id is 0xffff_ffff, which means all CPUs.
    BroadcastApicId,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKvm => f.write_str("no KVM found in CPUID: nothing to do, locks spin without a hypervisor's help"),
            Self::NoStealTime => {
                f.write_str("the host offers no steal time: start it with the CPU flag kvm-steal-time=on")
            }
            Self::NullAddress => f.write_str("physical address 0: pass the physical address of record_address(cpu)"),
            Self::Unaligned { phys } => write!(
                f,
                "physical address {phys:#x} is not a multiple of 64: pass the physical address of record_address(cpu)"
            ),
            Self::TooHigh { phys, bits } => write!(
                f,
                "physical address {phys:#x} has more than {bits} bits: pass a physical address, not the virtual one"
            ),
            Self::AlreadyRegistered { cpu } => {
                write!(f, "{cpu} is registered: unregister it on that CPU before registering it anew")
            }
            Self::ApicIdTaken { apic, by } => {
                write!(f, "APIC id {} belongs to {by}: pass each CPU's own APIC id", apic.0)
            }
            Self::BroadcastApicId => f.write_str("APIC id 0xffffffff means all CPUs: pass this CPU's own APIC id"),
        }
    }
}

impl core::error::Error for RegisterError {}

/// The CPU has not registered, or no longer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotRegistered {
    /// Which CPU.
    pub cpu: CpuId,
}

impl fmt::Display for NotRegistered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not registered: call register_this_cpu on it first", self.cpu)
    }
}

impl core::error::Error for NotRegistered {}

/// Registers the calling CPU: notes its APIC id and, where the host offers steal time, has the host keep its record.
///
/// Call it on each CPU as soon as the CPU has its number; it needs no heap and takes no lock. **The boot CPU calls it before
/// a second CPU runs**: the first call decides for all CPUs what of the host is used. After live migration or a restored
/// snapshot the host keeps the registration; after suspend, unregister before and register again.
///
/// Calling it twice is harmless: the first registration stands.
///
/// # Errors
/// See [`RegisterError`]. After an error the CPU takes part in locking all the same, only less well informed.
///
/// # Safety
/// - Ring 0, on the CPU that is `cpu`, whose local APIC id is `apic`, and no other call for `cpu` runs at the same time.
/// - `phys` is the physical address of [`record_address(cpu)`](super::record_address). The host writes to it until
///   [`unregister_this_cpu`] has returned, so if the record's memory gets another use (kexec), unregister first.
/// - In an encrypted guest the pages of [`record_region`](super::record_region) are shared with the host.
pub unsafe fn register_this_cpu(cpu: CpuId, apic: ApicId, phys: u64) -> Result<(), RegisterError> {
    // SAFETY: the same contract.
    unsafe { CPUS.register(&ThisCpu, &SETUP, cpu, apic, phys) }
}

/// Ends the registration of the calling CPU. From then on nobody kicks it or yields to it, and it reads as not preempted.
///
/// For taking a CPU offline, for suspend, kexec and the panic path: on every CPU, the boot CPU too, before its memory gets
/// another use. Takes no lock.
///
/// A flush mark (see [`Shootdown`](crate::boost::Shootdown)) that another CPU leaves meanwhile may be lost: if page tables can still change that
/// this CPU uses, it flushes its TLB afterwards.
///
/// # Errors
/// [`NotRegistered`]; nothing has changed then.
///
/// # Safety
/// Ring 0, on the CPU that is `cpu`, which waits for no lock, and no other call for `cpu` runs at the same time.
pub unsafe fn unregister_this_cpu(cpu: CpuId) -> Result<(), NotRegistered> {
    // SAFETY: the same contract.
    unsafe { CPUS.unregister(&ThisCpu, cpu) }
}

/// Whether the host keeps a steal-time record for `cpu`.
pub fn registered(cpu: CpuId) -> bool {
    CPUS.entry(cpu) & RECORD != 0
}

/// The APIC id that `cpu` gave when it registered.
pub fn apic_id(cpu: CpuId) -> Option<ApicId> {
    CPUS.apic_id(cpu)
}

/// What is known of each CPU: its APIC id in the low 32 bits, and the bits below. 0: nothing.
/// Beside them, the highest index that ever registered, plus one.
#[derive(Debug)]
pub(crate) struct Cpus([AtomicU64; MAX_CPUS], AtomicUsize);

/// The APIC id is valid.
const KNOWN: u64 = 1 << 32;
/// The host writes the record.
const RECORD: u64 = 1 << 33;
/// The CPU has said that it can be kicked.
const KICKABLE: u64 = 1 << 34;

/// The CPUs of this guest.
pub(crate) static CPUS: Cpus = Cpus::new();

impl Cpus {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MAX_CPUS], AtomicUsize::new(0))
    }

    /// CPUs with this index and above have never registered.
    pub(crate) fn limit(&self) -> usize {
        // ORDERING: Relaxed, for searches that may miss a CPU which registers just now.
        self.1.load(Relaxed)
    }

    fn entry(&self, cpu: CpuId) -> u64 {
        // ORDERING: Acquire, pair KVM-RECORD (Release in `register`): with RECORD the record has been zeroed.
        self.0[cpu.index()].load(Acquire)
    }

    pub(crate) fn apic_id(&self, cpu: CpuId) -> Option<ApicId> {
        let entry = self.entry(cpu);
        (entry & KNOWN != 0).then_some(ApicId(entry as u32))
    }

    /// Whether `cpu` may halt: it has said that it can be kicked.
    pub(crate) fn is_kickable(&self, cpu: CpuId) -> bool {
        self.entry(cpu) & KICKABLE != 0
    }

    /// Notes that `cpu` can be kicked from now on.
    pub(crate) fn set_kickable(&self, cpu: CpuId) -> Result<(), NotRegistered> {
        if self.entry(cpu) & KNOWN == 0 {
            return Err(NotRegistered { cpu });
        }
        // ORDERING: Relaxed. Only `cpu` itself acts on the bit.
        self.0[cpu.index()].fetch_or(KICKABLE, Relaxed);
        Ok(())
    }

    /// How many CPUs the host keeps a record for.
    pub(crate) fn count_records(&self) -> usize {
        // ORDERING: Relaxed, a statistic.
        self.0.iter().filter(|entry| entry.load(Relaxed) & RECORD != 0).count()
    }

    /// [`register_this_cpu`].
    ///
    /// # Safety
    /// As there, with `machine` the calling CPU.
    unsafe fn register(
        &self,
        machine: &impl Machine,
        setup: &Setup,
        cpu: CpuId,
        apic: ApicId,
        phys: u64,
    ) -> Result<(), RegisterError> {
        check_address(phys, machine.physical_address_bits())?;
        if apic == ApicId(u32::MAX) {
            return Err(RegisterError::BroadcastApicId);
        }
        let known = self.entry(cpu);
        if known & RECORD != 0 || known & KNOWN != 0 && known as u32 != apic.0 {
            return Err(RegisterError::AlreadyRegistered { cpu });
        }
        self.claim_apic_id(cpu, apic)?;
        let host = setup.decide_once(|| machine.detect()).ok_or(RegisterError::NoKvm)?;
        if !host.features.contains(Features::STEAL_TIME) {
            return Err(RegisterError::NoStealTime);
        }
        // SAFETY: RECORD is clear, so the host does not write to the record.
        unsafe { zero_record(cpu) };
        // SAFETY: ring 0 by contract, the host offers steal time, and `phys` is the address of the record, which only the
        //   host writes from here to `unregister`.
        unsafe { machine.write_steal_time_msr(phys | ENABLE) };
        // ORDERING: Release, pair KVM-RECORD (Acquire in `entry`): who sees RECORD sees the record zeroed or later.
        self.0[cpu.index()].fetch_or(RECORD, Release);
        Ok(())
    }

    /// Notes that `cpu` has `apic`, unless another CPU has.
    pub(crate) fn claim_apic_id(&self, cpu: CpuId, apic: ApicId) -> Result<(), RegisterError> {
        let own = &self.0[cpu.index()];
        let before = own.fetch_or(KNOWN | u64::from(apic.0), Relaxed);
        // ORDERING: SeqCst, pair KVM-APIC-CLAIM (with itself, on a CPU that claims the same id): each publishes its claim
        //   before it looks for others, so at least one of the two sees the other.
        fence(SeqCst);
        let taken_by = (0..).zip(&self.0).find_map(|(index, entry)| {
            // ORDERING: Relaxed, after the fence above.
            let entry = entry.load(Relaxed);
            let other = CpuId::new(index).filter(|&other| other != cpu)?;
            (entry & KNOWN != 0 && entry as u32 == apic.0).then_some(other)
        });
        match taken_by {
            None => {
                self.1.fetch_max(cpu.index() + 1, Relaxed);
                Ok(())
            }
            Some(by) => {
                own.store(before, Relaxed);
                Err(RegisterError::ApicIdTaken { apic, by })
            }
        }
    }

    /// [`unregister_this_cpu`].
    ///
    /// # Safety
    /// As there, with `machine` the calling CPU.
    unsafe fn unregister(&self, machine: &impl Machine, cpu: CpuId) -> Result<(), NotRegistered> {
        let known = self.entry(cpu);
        if known & KNOWN == 0 {
            return Err(NotRegistered { cpu });
        }
        if known & RECORD != 0 {
            // SAFETY: ring 0 by contract; the CPU registered, so the MSR exists. 0 ends the host's writing.
            unsafe { machine.write_steal_time_msr(0) };
            // SAFETY: the host has just been told to stop.
            unsafe { zero_record(cpu) };
        }
        // ORDERING: Release, pair KVM-RECORD: who sees the CPU unknown sees its record zeroed.
        self.0[cpu.index()].store(0, Release);
        Ok(())
    }
}

/// What can be seen to be wrong with a record's physical address.
fn check_address(phys: u64, bits: u32) -> Result<(), RegisterError> {
    if phys == 0 {
        Err(RegisterError::NullAddress)
    } else if !phys.is_multiple_of(align_of::<StealTime>() as u64) {
        Err(RegisterError::Unaligned { phys })
    } else if phys >> bits != 0 {
        Err(RegisterError::TooHigh { phys, bits })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
