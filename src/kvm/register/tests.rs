//! The life of a registration, seen from the machine: what is written to the MSR, and what the record holds then.

use super::*;
use crate::kvm::detect::{Detected, Hints, Vendor};
use crate::kvm::table::record_address;
use std::cell::RefCell;

/// One write to the MSR, with the record's bytes at that moment.
type Write = (u64, [u8; 64]);

/// A CPU whose record is that of `cpu` in the table.
struct FakeCpu {
    cpu: CpuId,
    host: Option<Detected>,
    writes: RefCell<Vec<Write>>,
}

impl Machine for FakeCpu {
    fn detect(&self) -> Option<Detected> {
        self.host
    }

    fn physical_address_bits(&self) -> u32 {
        40
    }

    unsafe fn write_steal_time_msr(&self, value: u64) {
        self.writes.borrow_mut().push((value, bytes(self.cpu)));
    }
}

fn kvm(features: Features) -> Option<Detected> {
    Some(Detected {
        base: 0x4000_0000,
        max_leaf: 0x4000_0001,
        features,
        hints: Hints::empty(),
        vendor: Vendor::Amd,
        mwait: false,
        tdx: false,
    })
}

fn bytes(cpu: CpuId) -> [u8; 64] {
    // SAFETY: the CPU is used by one test only, which does not write now.
    unsafe { record_address(cpu).cast::<[u8; 64]>().read_volatile() }
}

/// The host writes to the record.
fn fill(cpu: CpuId, byte: u8) {
    // SAFETY: the CPU is used by one test only.
    unsafe { record_address(cpu).cast_mut().cast::<[u8; 64]>().write_volatile([byte; 64]) }
}

/// A guest with one CPU of its own in the shared table; each test takes other numbers.
struct Guest {
    machine: FakeCpu,
    setup: Setup,
    cpus: Box<Cpus>,
}

impl Guest {
    fn new(cpu: u32, host: Option<Detected>) -> Self {
        Self { machine: FakeCpu { cpu: id(cpu), host, writes: RefCell::default() }, setup: Setup::new(), cpus: cpus() }
    }

    fn register(&self, apic: u32, phys: u64) -> Result<(), RegisterError> {
        // SAFETY: no host writes; the calls are one after the other.
        unsafe { self.cpus.register(&self.machine, &self.setup, self.machine.cpu, ApicId(apic), phys) }
    }

    fn unregister(&self) -> Result<(), NotRegistered> {
        // SAFETY: as in `register`.
        unsafe { self.cpus.unregister(&self.machine, self.machine.cpu) }
    }

    fn writes(&self) -> Vec<Write> {
        self.machine.writes.take()
    }

    fn has_record(&self) -> bool {
        self.cpus.count_records() == 1
    }
}

fn cpus() -> Box<Cpus> {
    Box::new(Cpus::new())
}

fn id(cpu: u32) -> CpuId {
    CpuId::new(cpu).unwrap()
}

const PHYS: u64 = 0x12_3440;

#[test]
fn the_record_is_zero_before_the_host_is_told_of_it() {
    let guest = Guest::new(10, kvm(Features::STEAL_TIME));
    fill(id(10), 0xaf);
    assert_eq!(guest.register(7, PHYS), Ok(()));
    assert_eq!(guest.writes(), [(PHYS | 1, [0; 64])]);
    assert!(guest.has_record());
    assert_eq!(guest.cpus.apic_id(id(10)), Some(ApicId(7)));
}

#[test]
fn unregistering_tells_the_host_first_and_then_forgets_what_it_wrote() {
    let guest = Guest::new(11, kvm(Features::STEAL_TIME));
    guest.register(7, PHYS).unwrap();
    guest.writes();
    fill(id(11), 0xaf);
    assert_eq!(guest.unregister(), Ok(()));
    assert_eq!(guest.writes(), [(0, [0xaf; 64])]);
    assert_eq!(bytes(id(11)), [0; 64]);
    assert!(!guest.has_record());
    assert_eq!(guest.cpus.apic_id(id(11)), None);
    assert_eq!(guest.unregister(), Err(NotRegistered { cpu: id(11) }));
    assert_eq!(guest.writes(), []);
}

#[test]
fn a_second_registration_changes_nothing() {
    let guest = Guest::new(12, kvm(Features::STEAL_TIME));
    guest.register(7, PHYS).unwrap();
    fill(id(12), 1);
    guest.writes();
    assert_eq!(guest.register(8, PHYS + 64), Err(RegisterError::AlreadyRegistered { cpu: id(12) }));
    assert_eq!(guest.writes(), []);
    assert_eq!(bytes(id(12)), [1; 64]);
    assert_eq!(guest.cpus.apic_id(id(12)), Some(ApicId(7)));
}

#[test]
fn between_two_addresses_the_host_sees_zero() {
    let guest = Guest::new(13, kvm(Features::STEAL_TIME));
    guest.register(7, PHYS).unwrap();
    guest.unregister().unwrap();
    guest.register(9, PHYS + 64).unwrap();
    let values: Vec<_> = guest.writes().into_iter().map(|(value, _)| value).collect();
    assert_eq!(values, [PHYS | 1, 0, (PHYS + 64) | 1]);
    assert_eq!(guest.cpus.apic_id(id(13)), Some(ApicId(9)));
}

#[test]
fn bad_addresses_are_refused_before_anything_is_noted() {
    let guest = Guest::new(14, kvm(Features::STEAL_TIME));
    assert_eq!(guest.register(7, 0), Err(RegisterError::NullAddress));
    assert_eq!(guest.register(7, PHYS + 32), Err(RegisterError::Unaligned { phys: PHYS + 32 }));
    assert_eq!(guest.register(7, 1 << 40), Err(RegisterError::TooHigh { phys: 1 << 40, bits: 40 }));
    assert_eq!(guest.register(7, u64::MAX << 6), Err(RegisterError::TooHigh { phys: u64::MAX << 6, bits: 40 }));
    assert_eq!(guest.register(u32::MAX, PHYS), Err(RegisterError::BroadcastApicId));
    assert_eq!(guest.writes(), []);
    assert_eq!(guest.cpus.apic_id(id(14)), None);
    assert!(!guest.setup.decided());
    assert_eq!(guest.register(7, (1 << 40) - 64), Ok(()));
}

#[test]
fn an_apic_id_belongs_to_one_cpu() {
    let guest = Guest::new(15, kvm(Features::STEAL_TIME));
    guest.register(7, PHYS).unwrap();
    let register = |apic| {
        // SAFETY: as in `Guest::register`.
        unsafe { guest.cpus.register(&guest.machine, &guest.setup, id(16), ApicId(apic), PHYS) }
    };
    assert_eq!(register(7), Err(RegisterError::ApicIdTaken { apic: ApicId(7), by: id(15) }));
    assert_eq!(guest.cpus.apic_id(id(16)), None);
    assert_eq!(register(0), Ok(()));
}

#[test]
fn without_steal_time_the_apic_id_is_still_noted() {
    let guest = Guest::new(17, kvm(Features::PV_UNHALT));
    assert_eq!(guest.register(7, PHYS), Err(RegisterError::NoStealTime));
    assert_eq!(guest.register(7, PHYS), Err(RegisterError::NoStealTime), "a second time alike");
    assert_eq!(guest.register(8, PHYS), Err(RegisterError::AlreadyRegistered { cpu: id(17) }));
    assert_eq!(guest.cpus.apic_id(id(17)), Some(ApicId(7)));
    assert!(!guest.has_record());
    assert!(guest.setup.halts(), "kicks need no steal time");
    assert_eq!(guest.unregister(), Ok(()));
    assert_eq!(guest.writes(), [], "the MSR does not exist here");
}

#[test]
fn without_kvm_nothing_is_written() {
    let guest = Guest::new(18, None);
    assert_eq!(guest.register(7, PHYS), Err(RegisterError::NoKvm));
    assert_eq!(guest.cpus.apic_id(id(18)), Some(ApicId(7)));
    assert_eq!(guest.unregister(), Ok(()));
    assert_eq!(guest.writes(), []);
}

#[test]
fn a_cpu_is_kickable_from_its_word_until_it_unregisters() {
    let guest = Guest::new(19, kvm(Features::STEAL_TIME));
    assert_eq!(guest.cpus.set_kickable(id(19)), Err(NotRegistered { cpu: id(19) }));
    guest.register(7, PHYS).unwrap();
    assert!(!guest.cpus.is_kickable(id(19)));
    guest.cpus.set_kickable(id(19)).unwrap();
    assert!(guest.cpus.is_kickable(id(19)));
    guest.unregister().unwrap();
    assert!(!guest.cpus.is_kickable(id(19)));
}

#[test]
fn every_record_keeps_to_one_page_of_the_region() {
    let (start, length) = crate::kvm::record_region();
    assert_eq!((start as usize % 4096, length % 4096), (0, 0));
    for index in 0..MAX_CPUS as u32 {
        let offset = record_address(id(index)) as usize - start as usize;
        assert_eq!(offset % 64, 0);
        assert_eq!(offset / 4096, (offset + 63) / 4096);
        assert!(offset + 64 <= length);
    }
}

#[test]
fn errors_say_what_to_do() {
    for (error, sentence) in [
        (
            RegisterError::Unaligned { phys: 0x1020 },
            "physical address 0x1020 is not a multiple of 64: pass the physical address of record_address(cpu)",
        ),
        (
            RegisterError::ApicIdTaken { apic: ApicId(3), by: id(2) },
            "APIC id 3 belongs to CPU 2: pass each CPU's own APIC id",
        ),
    ] {
        assert_eq!(error.to_string(), sentence);
    }
}
