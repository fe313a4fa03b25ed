//! Detection against made-up CPUIDs: every place and shape in which hosts have shown KVM.

use super::*;
use std::collections::HashMap;

const ZERO: CpuidResult = CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
const FEATURES: u32 = 0x0100_7afb;

/// A CPUID with these leaves; all others read as zero.
struct Cpuid(HashMap<u32, CpuidResult>);

impl Cpuid {
    /// An AMD guest of some hypervisor.
    fn guest() -> Self {
        Self(HashMap::new()).vendor(b"AuthenticAMD").with(1, CpuidResult { ecx: 1 << 31, ..ZERO })
    }

    fn with(mut self, leaf: u32, answer: CpuidResult) -> Self {
        self.0.insert(leaf, answer);
        self
    }

    fn vendor(self, name: &[u8; 12]) -> Self {
        let word = |at: usize| u32::from_le_bytes(name[at..at + 4].try_into().unwrap());
        self.with(0, CpuidResult { eax: 0xd, ebx: word(0), edx: word(4), ecx: word(8) })
    }

    /// A hypervisor of this name at `base`.
    fn hypervisor(self, base: u32, max_leaf: u32, name: &[u8; 12]) -> Self {
        let word = |at: usize| u32::from_le_bytes(name[at..at + 4].try_into().unwrap());
        self.with(base, CpuidResult { eax: max_leaf, ebx: word(0), ecx: word(4), edx: word(8) })
    }

    fn kvm(self, base: u32, max_leaf: u32) -> Self {
        self.hypervisor(base, max_leaf, b"KVMKVMKVM\0\0\0")
            .with(base + 1, CpuidResult { eax: FEATURES, edx: 1, ..ZERO })
    }

    fn ask(&self, leaf: u32) -> CpuidResult {
        self.0.get(&leaf).copied().unwrap_or(ZERO)
    }

    fn detect(&self) -> Option<Detected> {
        detect_by(|leaf| self.ask(leaf))
    }
}

#[track_caller]
fn assert_found(cpuid: &Cpuid, base: u32, max_leaf: u32) {
    let found = cpuid.detect().expect("KVM not found");
    assert_eq!((found.base, found.max_leaf), (base, max_leaf));
    assert_eq!(found.features.bits(), FEATURES);
    assert_eq!(found.hints, Hints::REALTIME);
}

#[test]
fn kvm_at_the_first_base() {
    assert_found(&Cpuid::guest().kvm(0x4000_0000, 0x4000_0001), 0x4000_0000, 0x4000_0001);
}

#[test]
fn kvm_behind_hyper_v() {
    let cpuid = Cpuid::guest()
        .hypervisor(0x4000_0000, 0x4000_000b, b"Microsoft Hv")
        // The interface leaf of Hyper-V, "Hv#1", where KVM's features would be at the first base.
        .with(0x4000_0001, CpuidResult { eax: 0x3123_7648, ..ZERO })
        .kvm(0x4000_0100, 0x4000_0101);
    assert_found(&cpuid, 0x4000_0100, 0x4000_0101);
}

#[test]
fn kvm_at_the_last_base() {
    assert_found(&Cpuid::guest().kvm(0x4001_0000, 0x4001_0001), 0x4001_0000, 0x4001_0001);
}

#[test]
fn an_old_host_leaves_the_last_leaf_zero() {
    assert_found(&Cpuid::guest().kvm(0x4000_0000, 0), 0x4000_0000, 0x4000_0001);
}

#[test]
fn more_leaves_than_known_are_fine() {
    assert_found(&Cpuid::guest().kvm(0x4000_0000, 0x4000_0040), 0x4000_0000, 0x4000_0040);
}

#[test]
fn other_hypervisors_are_not_kvm() {
    let xen_on_hyper_v = Cpuid::guest().hypervisor(0x4000_0000, 0x4000_0006, b"Microsoft Hv").hypervisor(
        0x4000_0100,
        0x4000_0105,
        b"XenVMMXenVMM",
    );
    assert_eq!(xen_on_hyper_v.detect(), None);
    let tcg = Cpuid::guest().hypervisor(0x4000_0000, 0x4000_0001, b"TCGTCGTCGTCG");
    assert_eq!(tcg.detect(), None);
}

#[test]
fn a_last_leaf_below_the_features_is_not_kvm() {
    assert_eq!(Cpuid::guest().kvm(0x4000_0000, 0x4000_0000).detect(), None);
}

#[test]
fn without_the_hypervisor_bit_only_the_basic_leaves_are_read() {
    let cpuid = Cpuid::guest().kvm(0x4000_0000, 0x4000_0001).with(1, ZERO);
    let found = detect_by(|leaf| {
        assert!(leaf < 0x4000_0000, "leaf {leaf:#x} means nothing on bare metal");
        cpuid.ask(leaf)
    });
    assert_eq!(found, None);
}

#[test]
fn vendor_chooses_the_instruction() {
    for (name, vendor, vmmcall) in [
        (b"GenuineIntel", Vendor::Intel, false),
        (b"AuthenticAMD", Vendor::Amd, true),
        (b"HygonGenuine", Vendor::Hygon, true),
        (b"  Shanghai  ", Vendor::Other, false),
    ] {
        let found = Cpuid::guest().vendor(name).kvm(0x4000_0000, 0).detect().unwrap();
        assert_eq!(found.vendor, vendor);
        assert_eq!(found.vendor.uses_vmmcall(), vmmcall);
    }
}

#[test]
fn mwait_and_tdx_are_noticed() {
    let plain = Cpuid::guest().kvm(0x4000_0000, 0).detect().unwrap();
    assert!(!plain.mwait && !plain.tdx);

    let mwait = Cpuid::guest().kvm(0x4000_0000, 0).with(1, CpuidResult { ecx: 1 << 31 | 1 << 3, ..ZERO });
    assert!(mwait.detect().unwrap().mwait);

    let tdx_leaf = CpuidResult {
        ebx: u32::from_le_bytes(*b"Inte"),
        edx: u32::from_le_bytes(*b"lTDX"),
        ecx: u32::from_le_bytes(*b"    "),
        eax: 0,
    };
    let intel = || Cpuid::guest().vendor(b"GenuineIntel").kvm(0x4000_0000, 0).with(0x21, tdx_leaf);
    assert!(!intel().detect().unwrap().tdx, "leaf 0x21 is beyond the last basic leaf");
    let mut leaf_0 = intel().ask(0);
    leaf_0.eax = 0x21;
    assert!(intel().with(0, leaf_0).detect().unwrap().tdx);
}

#[test]
fn physical_address_width_has_a_default() {
    let bits = |last, eax| {
        let cpuid = Cpuid::guest()
            .with(0x8000_0000, CpuidResult { eax: last, ..ZERO })
            .with(0x8000_0008, CpuidResult { eax, ..ZERO });
        physical_address_bits_by(|leaf| cpuid.ask(leaf))
    };
    assert_eq!(bits(0x8000_0008, 0x3028), 40);
    assert_eq!(bits(0x8000_0008, 0), 52);
    assert_eq!(bits(0x8000_0004, 40), 52);
}

#[test]
fn features_print_by_name() {
    assert_eq!((Features::STEAL_TIME | Features::PV_UNHALT).to_string(), "STEAL_TIME | PV_UNHALT");
    assert_eq!(Hints::from_bits_retain(1 | 1 << 7).to_string(), "REALTIME | 0x80");
}
