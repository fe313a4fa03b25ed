//! Yields and kicks as the host sees them.

use super::*;
use crate::cpu::ApicId;
use crate::kvm::{Features, Hints, Vendor};
use std::cell::{Cell, RefCell};

thread_local! {
    /// Hypercalls made by this test: number, first two arguments.
    static CALLS: RefCell<Vec<(u64, u64, u64)>> = const { RefCell::new(Vec::new()) };
    /// What the host answers in this test.
    static ANSWER: Cell<i64> = const { Cell::new(0) };
    /// The caller's `version`, and by how much the next hypercall moves it.
    static VERSION: Cell<u32> = const { Cell::new(4) };
    static MOVES: Cell<u32> = const { Cell::new(0) };
}

unsafe fn record(number: u64, [a0, a1, ..]: [u64; 4]) -> i64 {
    CALLS.with_borrow_mut(|calls| calls.push((number, a0, a1)));
    VERSION.set(VERSION.get() + MOVES.get());
    ANSWER.get()
}

fn calls() -> Vec<(u64, u64, u64)> {
    CALLS.take()
}

fn id(cpu: u32) -> CpuId {
    CpuId::new(cpu).unwrap()
}

/// A guest whose CPUs have sparse APIC ids and whose hypercalls are recorded.
struct Guest {
    setup: Setup,
    cpus: Box<Cpus>,
}

const APIC_IDS: [u32; 6] = [0, 2, 4, 254, 256, 300];

impl Guest {
    fn new(features: Features, options: Options) -> Self {
        let setup = Setup::new();
        // SAFETY: `record` takes any call; no host is behind it.
        setup.configure(unsafe { options.hypercall(record) }).unwrap();
        setup.decide_once(|| {
            Some(Detected {
                base: 0x4000_0000,
                max_leaf: 0x4000_0001,
                features,
                hints: Hints::empty(),
                vendor: Vendor::Amd,
                mwait: false,
                tdx: false,
            })
        });
        let cpus = Box::new(Cpus::new());
        for (cpu, apic) in (0..).zip(APIC_IDS) {
            cpus.claim_apic_id(id(cpu), ApicId(apic)).unwrap();
        }
        Self { setup, cpus }
    }

    fn all() -> Self {
        Self::new(Features::from_bits_retain(0x0100_7afb), Options::new())
    }

    fn yield_to(&self, me: u32, target: u32) -> Yielded {
        yield_to(&self.setup, &self.cpus, || VERSION.get(), id(me), id(target))
    }
}

#[test]
fn a_yield_names_the_apic_id_not_the_index() {
    let guest = Guest::all();
    for target in 1..6 {
        let _ = guest.yield_to(0, target);
    }
    assert_eq!(calls(), [(11, 2, 0), (11, 4, 0), (11, 254, 0), (11, 256, 0), (11, 300, 0)]);
}

#[test]
fn a_yield_moved_if_the_callers_own_version_did() {
    let guest = Guest::all();
    assert_eq!(guest.yield_to(0, 1), Yielded::Nothing);
    MOVES.set(2);
    assert_eq!(guest.yield_to(0, 1), Yielded::Moved);
    ANSWER.set(-1000);
    assert_eq!(guest.yield_to(0, 1), Yielded::Nothing);
}

#[test]
fn nobody_yields_to_himself_or_to_an_unknown_cpu() {
    let guest = Guest::all();
    assert_eq!(guest.yield_to(3, 3), Yielded::Nothing);
    assert_eq!(guest.yield_to(3, 6), Yielded::Nothing);
    assert_eq!(calls(), []);
}

#[test]
fn a_kick_names_the_apic_id() {
    let guest = Guest::all();
    kick(&guest.setup, &guest.cpus, id(5)).unwrap();
    assert_eq!(calls(), [(5, 0, 300)]);
    assert_eq!(kick(&guest.setup, &guest.cpus, id(6)), Err(KickError::NotRegistered(NotRegistered { cpu: id(6) })));
}

#[test]
fn a_cpu_may_halt_once_a_trial_kick_reached_it() {
    let guest = Guest::all();
    ANSWER.set(-1000);
    assert_eq!(
        ready_to_be_kicked(&guest.setup, &guest.cpus, id(4)),
        Err(KickError::Refused(HypercallError::UnknownCall))
    );
    assert!(!guest.cpus.is_kickable(id(4)));
    ANSWER.set(0);
    calls();
    ready_to_be_kicked(&guest.setup, &guest.cpus, id(4)).unwrap();
    assert_eq!(calls(), [(5, 0, 256)]);
    assert!(guest.cpus.is_kickable(id(4)));
}

#[test]
fn no_trial_where_nobody_halts() {
    let guest = Guest::new(Features::PV_UNHALT, Options::new().never_halt());
    ready_to_be_kicked(&guest.setup, &guest.cpus, id(1)).unwrap();
    assert_eq!(calls(), []);
}

#[test]
fn the_report_names_each_decision() {
    let guest = Guest::new(Features::STEAL_TIME | Features::PV_UNHALT, Options::new().never_halt());
    let host = guest.setup.found();
    let decisions = decide(host.as_ref(), &guest.setup.options());
    let report = Report { host, decisions, records: 3, ever_preempted: false };
    assert_eq!(
        report.to_string(),
        "KVM at leaf 0x40000000 (last 0x40000001), CPU Amd\n\
         features 0xa0: STEAL_TIME | PV_UNHALT\n\
         hints 0x0: none\n\
         preempted flag: used\n\
         directed yield: not used: the host does not offer it\n\
         halt and kick: not used: switched off by the kernel\n\
         flush mark: not used: the host does not offer it\n\
         interrupts to many: not used: the host does not offer it\n\
         3 CPUs with a steal-time record; a preempted vCPU has not been seen"
    );
}

fn send(guest: &Guest, targets: &[u32]) -> bool {
    send_ipis(&guest.setup, &guest.cpus, targets.iter().map(|&cpu| id(cpu)), Ipi::Vector(0xf0))
}

#[test]
fn an_interrupt_to_many_names_apic_ids_in_windows() {
    let guest = Guest::all();
    // What the host says of each window.
    ANSWER.set(3);
    assert!(send(&guest, &[5, 0, 3, 1, 3, 4]));
    // Bitmap low and high; the windows begin at the APIC ids 0 and 254.
    assert_eq!(calls(), [(10, 0b101, 0), (10, 1 | 1 << 2 | 1 << 46, 0)]);
    ANSWER.set(0);
    assert!(send(&guest, &[]));
    assert_eq!(calls(), []);
}

#[test]
fn an_interrupt_that_did_not_reach_all_is_the_kernels_to_send() {
    let guest = Guest::all();
    for (answer, sent) in [(0, false), (1, false), (2, true)] {
        ANSWER.set(answer);
        assert_eq!(send(&guest, &[0, 1, 1]), sent, "{answer} of 2 delivered");
    }
    ANSWER.set(0);
    calls();
}

#[test]
fn an_interrupt_to_an_unknown_cpu_or_to_a_host_that_refuses_is_the_kernels_to_send() {
    let guest = Guest::all();
    assert!(!send(&guest, &[0, 1, 6]));
    assert_eq!(calls(), []);
    ANSWER.set(-1000);
    assert!(!send(&guest, &[0, 1]));
    ANSWER.set(0);
    calls();
    for guest in [
        Guest::new(Features::from_bits_retain(0x0100_7afb) - Features::PV_SEND_IPI, Options::new()),
        Guest::new(Features::from_bits_retain(0x0100_7afb), Options::new().never_send_ipis()),
    ] {
        assert!(!send(&guest, &[0, 1]));
        assert_eq!(calls(), []);
    }
}

#[test]
fn a_flush_mark_is_left_beside_the_preempted_bit_alone_and_only_where_the_host_heeds_it() {
    use crate::kvm::record_address;
    // A record that no other test uses.
    let cpu = id(62);
    let byte = record_address(cpu).cast::<u8>().cast_mut().wrapping_add(16);
    let mark = |guest: &Guest, before: u8| {
        // SAFETY: in the record of a CPU of this test's own.
        unsafe { byte.write_volatile(before) };
        let marked = mark_flush(&guest.setup, cpu);
        // SAFETY: as above.
        (marked, unsafe { byte.read_volatile() })
    };
    let guest = Guest::all();
    assert_eq!([0, 1, 2, 3].map(|before| mark(&guest, before)), [(false, 0), (true, 3), (false, 2), (true, 3)]);
    let all = Features::from_bits_retain(0x0100_7afb);
    for guest in [
        Guest::new(all - Features::PV_TLB_FLUSH, Options::new()),
        Guest::new(all - Features::STEAL_TIME, Options::new()),
        Guest::new(all, Options::new().never_mark_flushes()),
    ] {
        assert_eq!(mark(&guest, 1), (false, 1));
    }
    // SAFETY: as above.
    unsafe { byte.write_volatile(0) };
}
