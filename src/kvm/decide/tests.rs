//! The decisions over feature sets, hints and options.

use super::*;
use crate::kvm::detect::Vendor;

const ALL: Features = Features::from_bits_retain(0x0100_7afb);
const USED: Decision = Decision::Used;

const fn not(reason: Reason) -> Decision {
    Decision::NotUsed(reason)
}

fn host(features: Features) -> Detected {
    Detected {
        base: 0x4000_0000,
        max_leaf: 0x4000_0001,
        features,
        hints: Hints::empty(),
        vendor: Vendor::Amd,
        mwait: false,
        tdx: false,
    }
}

/// Asserts what is decided on (preempted flag, halt, directed yield).
#[track_caller]
fn assert_decided(host: Detected, options: Options, expected: [Decision; 3]) {
    let decisions = decide(Some(&host), &options);
    assert_eq!([decisions.preempted, decisions.halt, decisions.directed_yield], expected, "{host:?}");
}

#[test]
fn all_is_used_where_all_is_offered() {
    assert_decided(host(ALL), Options::new(), [USED, USED, USED]);
}

#[test]
fn nothing_is_used_without_kvm() {
    let decisions = decide(None, &Options::new());
    let no = not(Reason::NoKvm);
    assert_eq!([decisions.preempted, decisions.halt, decisions.directed_yield], [no, no, no]);
}

#[test]
fn each_ability_falls_with_its_own_feature() {
    let none = not(Reason::NotOffered);
    assert_decided(host(ALL - Features::PV_UNHALT), Options::new(), [USED, none, USED]);
    assert_decided(host(ALL - Features::PV_SCHED_YIELD), Options::new(), [USED, USED, none]);
    assert_decided(host(ALL - Features::STEAL_TIME), Options::new(), [none, USED, not(Reason::NoStealTime)]);
    assert_decided(host(Features::empty()), Options::new(), [none, none, none]);
}

#[test]
fn dedicated_cpus_leave_the_preempted_flag() {
    let no = not(Reason::DedicatedCpus);
    let dedicated = Detected { hints: Hints::REALTIME, ..host(ALL) };
    assert_decided(dedicated, Options::new(), [USED, no, no]);

    let no = not(Reason::MwaitExposed);
    assert_decided(Detected { mwait: true, ..host(ALL) }, Options::new(), [USED, no, no]);
}

#[test]
fn the_hint_is_the_reason_even_where_the_feature_is_missing_too() {
    let dedicated = Detected { hints: Hints::REALTIME, ..host(Features::STEAL_TIME) };
    let no = not(Reason::DedicatedCpus);
    assert_decided(dedicated, Options::new(), [USED, no, no]);
}

/// Asserts what is decided on (flush mark, interrupts to many).
#[track_caller]
fn assert_for_interrupts(host: Detected, options: Options, expected: [Decision; 2]) {
    let decisions = decide(Some(&host), &options);
    assert_eq!([decisions.flush_mark, decisions.send_ipi], expected, "{host:?}");
}

#[test]
fn flush_marks_and_interrupts_to_many_fall_with_their_own_features() {
    let none = not(Reason::NotOffered);
    assert_for_interrupts(host(ALL), Options::new(), [USED, USED]);
    assert_for_interrupts(host(ALL - Features::PV_TLB_FLUSH), Options::new(), [none, USED]);
    assert_for_interrupts(host(ALL - Features::PV_SEND_IPI), Options::new(), [USED, none]);
    assert_for_interrupts(host(ALL - Features::STEAL_TIME), Options::new(), [not(Reason::NoStealTime), USED]);
    // Neither needs the features of the waits.
    assert_for_interrupts(host(ALL - Features::PV_SCHED_YIELD - Features::PV_UNHALT), Options::new(), [USED, USED]);
    let decisions = decide(None, &Options::new());
    assert_eq!([decisions.flush_mark, decisions.send_ipi], [not(Reason::NoKvm); 2]);
}

#[test]
fn dedicated_cpus_get_no_flush_marks_but_interrupts_to_many() {
    let dedicated = Detected { hints: Hints::REALTIME, ..host(ALL) };
    assert_for_interrupts(dedicated, Options::new(), [not(Reason::DedicatedCpus), USED]);
    let mwait = Detected { mwait: true, ..host(ALL) };
    assert_for_interrupts(mwait, Options::new(), [not(Reason::MwaitExposed), USED]);
}

#[test]
fn flush_marks_and_interrupts_to_many_are_switched_off_apart() {
    let off = not(Reason::SwitchedOff);
    assert_for_interrupts(host(ALL), Options::new().never_mark_flushes(), [off, USED]);
    assert_for_interrupts(host(ALL), Options::new().never_send_ipis(), [USED, off]);
    assert_decided(host(ALL), Options::new().never_mark_flushes().never_send_ipis(), [USED, USED, USED]);
}

#[test]
fn a_flush_mark_is_no_hypercall() {
    let tdx = Detected { tdx: true, ..host(ALL) };
    assert_for_interrupts(tdx, Options::new(), [USED, not(Reason::NoHypercall)]);
}

#[test]
fn options_switch_off_one_ability_each() {
    let off = not(Reason::SwitchedOff);
    assert_decided(host(ALL), Options::new().never_halt(), [USED, off, USED]);
    assert_decided(host(ALL), Options::new().never_yield(), [USED, USED, off]);
}

#[test]
fn a_tdx_guest_needs_its_own_hypercall() {
    unsafe fn call(_: u64, _: [u64; 4]) -> i64 {
        0
    }
    let tdx = Detected { tdx: true, ..host(ALL) };
    let no = not(Reason::NoHypercall);
    assert_decided(tdx, Options::new(), [USED, no, no]);
    // SAFETY: it has no effect at all.
    let options = unsafe { Options::new().hypercall(call) };
    assert_decided(tdx, options, [USED, USED, USED]);
}
