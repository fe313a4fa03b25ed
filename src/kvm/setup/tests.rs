//! What is remembered, and from when on it is fixed.

use super::*;

fn host(vendor: Vendor) -> Detected {
    Detected {
        base: 0x4000_0100,
        max_leaf: 0x4000_0110,
        features: Features::from_bits_retain(0x8100_7afb),
        hints: Hints::from_bits_retain(0x10),
        vendor,
        mwait: false,
        tdx: false,
    }
}

#[test]
fn nothing_is_used_before_the_decision() {
    let setup = Setup::new();
    assert!(!setup.sees_preempted() && !setup.halts() && !setup.yields());
    assert_eq!(setup.found(), None);
}

#[test]
fn what_was_found_comes_back_whole() {
    for vendor in [Vendor::Intel, Vendor::Amd, Vendor::Hygon, Vendor::Other] {
        for (mwait, tdx) in [(false, false), (true, false), (false, true)] {
            let found = Detected { mwait, tdx, ..host(vendor) };
            let setup = Setup::new();
            assert_eq!(setup.decide_once(|| Some(found)), Some(found));
            assert_eq!(setup.found(), Some(found));
        }
    }
}

#[test]
fn only_the_first_decision_looks_at_the_machine() {
    let setup = Setup::new();
    assert_eq!(setup.decide_once(|| None), None);
    assert_eq!(setup.decide_once(|| unreachable!("decided before")), None);
    assert!(!setup.sees_preempted() && !setup.halts() && !setup.yields());
}

#[test]
fn the_bits_that_waiters_read_follow_the_decision() {
    let setup = Setup::new();
    setup.configure(Options::new().never_halt().never_mark_flushes()).unwrap();
    setup.decide_once(|| Some(host(Vendor::Amd)));
    assert!(setup.sees_preempted() && !setup.halts() && setup.yields());
    assert!(!setup.marks_flushes() && setup.sends_ipis());
}

#[test]
fn options_replace_earlier_ones_until_the_decision() {
    let setup = Setup::new();
    setup.configure(Options::new().never_halt().never_yield()).unwrap();
    setup.configure(Options::new()).unwrap();
    setup.decide_once(|| Some(host(Vendor::Intel)));
    assert!(setup.halts() && setup.yields());
    assert_eq!(setup.configure(Options::new().never_halt()), Err(ConfigureError::TooLate));
    assert!(setup.halts());
}

#[test]
fn a_preempted_vcpu_is_remembered() {
    let setup = Setup::new();
    assert!(!setup.ever_preempted());
    setup.note_preempted();
    setup.note_preempted();
    assert!(setup.ever_preempted());
}
