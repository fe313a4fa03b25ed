//! Finding KVM by CPUID: base leaf, [`Features`], [`Hints`] and what else decides how the host is used.
//!
//! Leaves and bits: Linux `Documentation/virt/kvm/x86/cpuid.rst`; x86 bits: Intel SDM volume 2, CPUID.

use bitflags::bitflags;
use core::fmt;

/// One answer of CPUID.
pub(crate) use core::arch::x86_64::CpuidResult;

/// The KVM signature in EBX, ECX, EDX of the base leaf: `KVMKVMKVM\0\0\0`.
const SIGNATURE: [u32; 3] = [0x4b4d_564b, 0x564b_4d56, 0x0000_004d];

/// Where hypervisors announce themselves. Another interface may come first (Hyper-V enlightenments move KVM's to
/// 0x4000_0100), so all places are looked at.
const FIRST_BASE: u32 = 0x4000_0000;
const LAST_BASE: u32 = 0x4001_0000;
const BASE_STEP: usize = 0x100;

bitflags! {
    /// What the host offers: EAX of leaf base+1.
    ///
    /// A bit says "works", not "pays". Nothing may be used whose bit is clear, even if it would work on this host: after a
    /// live migration it may not.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Features: u32 {
        /// Paravirtual clock at the old MSRs 0x11 and 0x12. Use [`CLOCKSOURCE2`](Self::CLOCKSOURCE2) if there.
        const CLOCKSOURCE = 1 << 0;
        /// Port I/O needs no delays.
        const NOP_IO_DELAY = 1 << 1;
        /// Page-table hypercalls. Withdrawn; never use.
        const MMU_OP = 1 << 2;
        /// Paravirtual clock at the MSRs 0x4b564d00 and 0x4b564d01.
        const CLOCKSOURCE2 = 1 << 3;
        /// Asynchronous page faults, MSR 0x4b564d02.
        const ASYNC_PF = 1 << 4;
        /// Steal-time records with the preempted flag, MSR 0x4b564d03. All that `vcpu_is_preempted` needs.
        const STEAL_TIME = 1 << 5;
        /// End of interrupt without an exit, MSR 0x4b564d04.
        const PV_EOI = 1 << 6;
        /// A halted vCPU can be woken by the hypercall KICK_CPU, also with interrupts off. Trusted only while MWAIT is not
        /// exposed, since a host that does not intercept HLT cannot end it by a kick.
        const PV_UNHALT = 1 << 7;
        /// A preempted vCPU takes a flush mark in its record in place of a shootdown IPI. Needs `STEAL_TIME` too.
        const PV_TLB_FLUSH = 1 << 9;
        /// Asynchronous page faults are delivered as page-fault exits. For nested hypervisors.
        const ASYNC_PF_VMEXIT = 1 << 10;
        /// The hypercall SEND_IPI: up to 128 targets in one exit.
        const PV_SEND_IPI = 1 << 11;
        /// The guest may switch the host's polling on HLT off, MSR 0x4b564d05.
        const POLL_CONTROL = 1 << 12;
        /// The hypercall SCHED_YIELD: hand the time slice to a named vCPU. Pays only where CPUs are shared.
        const PV_SCHED_YIELD = 1 << 13;
        /// Asynchronous page faults announce a ready page by interrupt, MSRs 0x4b564d06 and 0x4b564d07.
        const ASYNC_PF_INT = 1 << 14;
        /// Message-signalled interrupts reach APIC ids above 255 without interrupt remapping.
        const MSI_EXT_DEST_ID = 1 << 15;
        /// The hypercall MAP_GPA_RANGE: tells the host which pages are shared.
        const HC_MAP_GPA_RANGE = 1 << 16;
        /// An encrypted guest tells when it can be migrated, MSR 0x4b564d08.
        const MIGRATION_CONTROL = 1 << 17;
        /// The paravirtual clock never steps back between CPUs.
        const CLOCKSOURCE_STABLE = 1 << 24;
        // Bits that later hosts add are kept, so that reports show them.
        const _ = !0;
    }
}

bitflags! {
    /// What the host promises about scheduling: EDX of leaf base+1.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Hints: u32 {
        /// vCPUs are never preempted for an unlimited time: they have physical CPUs of their own. Waiting tricks then only
        /// cost; the preempted flag stays readable.
        const REALTIME = 1 << 0;
        // Bits that later hosts add are kept, so that reports show them.
        const _ = !0;
    }
}

/// Names joined by ` | `, bits without a name in hexadecimal; `none` for no bits.
impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() { f.write_str("none") } else { bitflags::parser::to_writer(self, f) }
    }
}

/// As for [`Features`].
impl fmt::Display for Hints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() { f.write_str("none") } else { bitflags::parser::to_writer(self, f) }
    }
}

/// Maker of the CPU, by the string of CPUID leaf 0. It decides the hypercall instruction: the wrong one is an invalid opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// `GenuineIntel`: `vmcall`.
    Intel,
    /// `AuthenticAMD`: `vmmcall`.
    Amd,
    /// `HygonGenuine`, AMD's virtualisation: `vmmcall`.
    Hygon,
    /// Any other. Those that virtualise (Zhaoxin, Centaur) do it as Intel does: `vmcall`.
    Other,
}

impl Vendor {
    fn from_leaf_0(leaf: CpuidResult) -> Self {
        let mut name = [0; 12];
        for (part, word) in name.chunks_exact_mut(4).zip([leaf.ebx, leaf.edx, leaf.ecx]) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        match &name {
            b"GenuineIntel" => Self::Intel,
            b"AuthenticAMD" => Self::Amd,
            b"HygonGenuine" => Self::Hygon,
            _ => Self::Other,
        }
    }

    /// Whether a hypercall is `vmmcall` (AMD's virtualisation); otherwise it is `vmcall`.
    pub const fn uses_vmmcall(self) -> bool {
        matches!(self, Self::Amd | Self::Hygon)
    }
}

/// A KVM host as CPUID describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Detected {
    /// The leaf that holds KVM's signature: 0x4000_0000, or a multiple of 0x100 above it.
    pub base: u32,
    /// The last leaf of KVM's range, at least `base + 1`.
    pub max_leaf: u32,
    /// What the host offers.
    pub features: Features,
    /// What the host promises.
    pub hints: Hints,
    /// Maker of the CPU.
    pub vendor: Vendor,
    /// Whether MONITOR/MWAIT is exposed (leaf 1, ECX bit 3). A host does that only where vCPUs have CPUs of their own.
    pub mwait: bool,
    /// Whether this is an Intel TDX guest (leaf 0x21). Its hypercalls are not `vmcall`: see [`HypercallFn`](super::HypercallFn).
    pub tdx: bool,
}

/// Looks for KVM. `None` on bare metal and under any other hypervisor.
///
/// Executes CPUID, each time one VM exit: a handful where KVM is found, 257 more under a hypervisor that is not KVM.
pub fn detect() -> Option<Detected> {
    detect_by(cpuid)
}

/// Executes CPUID, sub-leaf 0.
// Its intrinsic is safe to call in newer compilers than the oldest that we build with.
#[allow(unused_unsafe)]
fn cpuid(leaf: u32) -> CpuidResult {
    // SAFETY: every x86-64 CPU has the instruction, whatever the leaf.
    unsafe { core::arch::x86_64::__cpuid_count(leaf, 0) }
}

/// [`detect`] with CPUID passed in (sub-leaf 0).
pub(crate) fn detect_by(cpuid: impl Fn(u32) -> CpuidResult) -> Option<Detected> {
    const HYPERVISOR_PRESENT: u32 = 1 << 31;
    const MONITOR: u32 = 1 << 3;

    let leaf_0 = cpuid(0);
    let leaf_1_ecx = cpuid(1).ecx;
    // Without a hypervisor the range 0x4000_0000 is not defined: Intel CPUs answer with the data of their last leaf.
    if leaf_1_ecx & HYPERVISOR_PRESENT == 0 {
        return None;
    }
    let (base, max_leaf) = (FIRST_BASE..=LAST_BASE).step_by(BASE_STEP).find_map(|base| {
        let leaf = cpuid(base);
        if [leaf.ebx, leaf.ecx, leaf.edx] != SIGNATURE {
            return None;
        }
        match leaf.eax {
            // Hosts of 2008 left it 0 and had the feature leaf.
            0 => Some((base, base + 1)),
            // More leaves than we know are fine. Fewer than one is no KVM that we know.
            max if max > base => Some((base, max)),
            _ => None,
        }
    })?;
    let capabilities = cpuid(base + 1);
    Some(Detected {
        base,
        max_leaf,
        features: Features::from_bits_retain(capabilities.eax),
        hints: Hints::from_bits_retain(capabilities.edx),
        vendor: Vendor::from_leaf_0(leaf_0),
        mwait: leaf_1_ecx & MONITOR != 0,
        tdx: is_tdx(leaf_0.eax, &cpuid),
    })
}

/// Intel TDX module specification: leaf 0x21 spells `IntelTDX    ` in EBX, EDX, ECX.
fn is_tdx(max_basic_leaf: u32, cpuid: impl Fn(u32) -> CpuidResult) -> bool {
    const LEAF_TDX: u32 = 0x21;
    if max_basic_leaf < LEAF_TDX {
        return false;
    }
    let leaf = cpuid(LEAF_TDX);
    [leaf.ebx, leaf.edx, leaf.ecx] == [0x6574_6e49, 0x5844_546c, 0x2020_2020]
}

/// Width of a physical address in bits, 36 to 52: leaf 0x8000_0008, or the architecture's limit where that is missing.
pub(crate) fn physical_address_bits() -> u32 {
    physical_address_bits_by(cpuid)
}

/// [`physical_address_bits`] with CPUID passed in.
pub(crate) fn physical_address_bits_by(cpuid: impl Fn(u32) -> CpuidResult) -> u32 {
    const ARCHITECTURAL_LIMIT: u32 = 52;
    if cpuid(0x8000_0000).eax < 0x8000_0008 {
        return ARCHITECTURAL_LIMIT;
    }
    match cpuid(0x8000_0008).eax & 0xff {
        0 => ARCHITECTURAL_LIMIT,
        bits => bits.min(ARCHITECTURAL_LIMIT),
    }
}

#[cfg(test)]
mod tests;
