//! What reaches the host: numbers, registers' contents, instructions.

use super::*;
use crate::kvm::detect::{Hints, Vendor};
use crate::kvm::setup::Options;
use iced_x86::{Code, Decoder, DecoderOptions};
use std::cell::{Cell, RefCell};

thread_local! {
    /// Hypercalls made by this test.
    static CALLS: RefCell<Vec<(u64, [u64; 4])>> = const { RefCell::new(Vec::new()) };
    /// What the host answers in this test.
    static ANSWER: Cell<i64> = const { Cell::new(0) };
}

unsafe fn record(number: u64, arguments: [u64; 4]) -> i64 {
    CALLS.with_borrow_mut(|calls| calls.push((number, arguments)));
    ANSWER.get()
}

fn calls() -> Vec<(u64, [u64; 4])> {
    CALLS.take()
}

const ALL: Features = Features::from_bits_retain(0x0100_7afb);

fn host(vendor: Vendor, features: Features) -> Detected {
    Detected {
        base: 0x4000_0000,
        max_leaf: 0x4000_0001,
        features,
        hints: Hints::empty(),
        vendor,
        mwait: false,
        tdx: false,
    }
}

/// A guest whose hypercalls are recorded.
fn recorded(features: Features) -> Setup {
    let setup = Setup::new();
    // SAFETY: `record` takes any call; no host is behind it.
    setup.configure(unsafe { Options::new().hypercall(record) }).unwrap();
    setup.decide_once(|| Some(host(Vendor::Intel, features)));
    setup
}

fn ids<const N: usize>(ids: [u32; N]) -> impl Iterator<Item = ApicId> + Clone {
    ids.into_iter().map(ApicId)
}

#[test]
fn numbers_and_arguments() {
    let setup = recorded(ALL);
    setup.kick_cpu(ApicId(300)).unwrap();
    setup.sched_yield(ApicId(u32::MAX - 1)).unwrap();
    assert_eq!(calls(), [(5, [0, 300, 0, 0]), (11, [0xffff_fffe, 0, 0, 0])]);
}

#[test]
fn an_ipi_goes_out_in_windows_of_128_in_any_order() {
    let setup = recorded(ALL);
    ANSWER.set(2);
    let delivered = setup.send_ipi(ids([300, 2, 256, 0, 254, 4, 2]), Ipi::Vector(0x40)).unwrap();
    assert_eq!(
        calls(),
        [
            (10, [0b1_0101, 0, 0, 0x40]),
            // 254, 256, 300: one window that starts at the lowest.
            (10, [1 | 1 << 2 | 1 << 46, 0, 254, 0x40]),
        ]
    );
    assert_eq!(delivered, (4, 6));
}

#[test]
fn the_window_is_full_at_128() {
    let setup = recorded(ALL);
    setup.send_ipi((0..=128).map(ApicId), Ipi::Nmi).unwrap();
    assert_eq!(calls(), [(10, [u64::MAX, u64::MAX, 0, 0x400]), (10, [1, 0, 128, 0x400])]);
}

#[test]
fn the_highest_ids_work() {
    let setup = recorded(ALL);
    setup.send_ipi(ids([u32::MAX - 1, u32::MAX - 129]), Ipi::Vector(0xff)).unwrap();
    let base = u64::from(u32::MAX - 129);
    assert_eq!(calls(), [(10, [1, 0, base, 0xff]), (10, [1, 0, base + 128, 0xff])]);
}

#[test]
fn nobody_to_interrupt_is_no_call() {
    assert_eq!(recorded(ALL).send_ipi(ids([]), Ipi::Nmi), Ok((0, 0)));
    assert_eq!(calls(), []);
}

#[test]
fn what_is_not_offered_is_not_called() {
    let setup = recorded(Features::STEAL_TIME);
    assert_eq!(setup.kick_cpu(ApicId(1)), Err(HypercallError::NotOffered(Features::PV_UNHALT)));
    assert_eq!(setup.sched_yield(ApicId(1)), Err(HypercallError::NotOffered(Features::PV_SCHED_YIELD)));
    assert_eq!(setup.send_ipi(ids([1]), Ipi::Nmi), Err(HypercallError::NotOffered(Features::PV_SEND_IPI)));
    assert_eq!(calls(), []);
}

#[test]
fn no_call_before_set_up_or_without_kvm() {
    let setup = Setup::new();
    assert_eq!(setup.kick_cpu(ApicId(1)), Err(HypercallError::NotSetUp));
    setup.decide_once(|| None);
    assert_eq!(setup.kick_cpu(ApicId(1)), Err(HypercallError::NoHypercalls));
}

#[test]
fn a_tdx_guest_never_executes_the_instruction() {
    let setup = Setup::new();
    setup.decide_once(|| Some(Detected { tdx: true, ..host(Vendor::Intel, ALL) }));
    assert_eq!(setup.kick_cpu(ApicId(1)), Err(HypercallError::NoHypercalls));
}

#[test]
fn the_hosts_errors_have_names() {
    let setup = recorded(ALL);
    for (code, error) in [
        (-1000, HypercallError::UnknownCall),
        (-22, HypercallError::InvalidArgument),
        (-7, HypercallError::TooBig),
        (-1, HypercallError::NotPermitted),
        (-14, HypercallError::Other(-14)),
    ] {
        ANSWER.set(code);
        assert_eq!(setup.sched_yield(ApicId(1)), Err(error));
    }
}

/// The bytes of the one hypercall instruction in the code of `call`.
fn instruction(call: HypercallFn) -> [u8; 3] {
    let start = call as *const u8;
    // SAFETY: the code of a function and of what follows it in this program.
    let code = unsafe { std::slice::from_raw_parts(start, 256) };
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut found = Vec::new();
    loop {
        let at = decoder.position();
        match decoder.decode().code() {
            Code::Retnq => break,
            Code::Vmcall | Code::Vmmcall => found.push(code[at..at + 3].try_into().unwrap()),
            _ => {}
        }
    }
    let [only] = found[..] else { panic!("{} hypercall instructions", found.len()) };
    only
}

#[test]
fn the_instruction_follows_the_vendor() {
    let setup = Setup::new();
    for vendor in [Vendor::Intel, Vendor::Amd, Vendor::Hygon, Vendor::Other] {
        let call = setup.entry(&host(vendor, ALL)).unwrap();
        let expected = match vendor {
            Vendor::Amd | Vendor::Hygon => [0x0f, 0x01, 0xd9],
            Vendor::Intel | Vendor::Other => [0x0f, 0x01, 0xc1],
        };
        assert_eq!(instruction(call), expected);
    }
}

#[test]
fn targets_that_answer_between_the_passes_cost_no_call() {
    let setup = recorded(ALL);
    // Each pass asks twice for each target; the lowest has answered by its third.
    let asked = Cell::new(0);
    let targets = ids([3, 4]).filter(|id| {
        asked.set(asked.get() + u32::from(id.0 == 3));
        id.0 == 4 || asked.get() <= 1
    });
    setup.send_ipi(targets, Ipi::Vector(0x40)).unwrap();
    let only_window = calls();
    assert_eq!(only_window, [(10, [0b10, 0, 3, 0x40])]);
    asked.set(0);
    let gone = ids([3]).filter(|_| {
        asked.set(asked.get() + 1);
        asked.get() <= 1
    });
    assert_eq!(setup.send_ipi(gone, Ipi::Vector(0x40)), Ok((0, 0)));
    assert_eq!(calls(), []);
}
