//! Guests that go wrong end in a report, and a host after them works.

use core::hint::spin_loop;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use pvhost::contend::{Mix, Sections, contend};
use pvhost::locks::Lock;
use pvhost::{Config, ConfigError, Failure, PvHost, State, Step, Trap, run, send_interrupt, start, step};
use pvlock::CpuId;
use pvlock::hypervisor::Hypervisor;

static WAITS: Step = Step("waits");
static HOLDS: Step = Step("holds");

fn hangs(limit: Duration, guest: impl Fn(CpuId) + Send + Sync + 'static) -> Failure {
    let running = start(Config { limit, ..Config::new(3, 1) }, guest).expect("one CPU");
    let failure = running.wait().expect_err("a failure");
    // Whatever went wrong, the next guest runs.
    run(Config::new(2, 1), |_| {}).expect("a run without failure");
    failure
}

#[test]
fn a_hang_is_reported_with_the_step_of_each_vcpu() {
    let free = Arc::new(AtomicBool::new(false));
    let failure = hangs(Duration::from_millis(300), move |cpu| {
        if cpu.index() == 1 {
            step(&HOLDS);
            PvHost::halt(false);
        }
        step(&WAITS);
        while !free.load(Relaxed) {
            spin_loop();
        }
    });
    assert!(matches!(failure, Failure::Hung(_)));
    let vcpus = &failure.report().vcpus;
    assert_eq!((vcpus[0].step, vcpus[1].step), ("waits", "holds"));
    assert_eq!(vcpus[1].state, State::Halted);
    let text = failure.to_string();
    assert!(text.contains("CPU 1: Halted") && text.contains("last step \"holds\""), "{text}");
}

#[test]
fn a_lost_wake_up_is_noticed_without_waiting_for_the_limit() {
    let begun = Instant::now();
    let failure = hangs(Duration::from_secs(60), |_| PvHost::halt(false));
    assert!(matches!(failure, Failure::AllHalted(_)), "{failure}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_panic_ends_the_run_with_its_message() {
    let failure = hangs(Duration::from_secs(60), |cpu| {
        assert!(cpu.index() != 2, "vCPU {} has had enough", cpu.index());
        loop {
            spin_loop();
        }
    });
    let Failure::Died { cpu, message, report } = failure else { panic!("{failure}") };
    assert_eq!((cpu.index(), message.as_str()), (2, "vCPU 2 has had enough"));
    assert_eq!(report.vcpus[2].state, State::Finished);
}

#[test]
fn a_panic_in_an_interrupt_handler_ends_the_run_too() {
    let config = Config { interrupt_handler: Some(|_| panic!("not this vector")), ..Config::new(2, 1) };
    let running = start(config, |me| {
        send_interrupt(me, 5);
        loop {
            spin_loop();
        }
    });
    let failure = running.expect("one CPU").wait().expect_err("a failure");
    let Failure::Died { message, .. } = failure else { panic!("{failure}") };
    assert_eq!(message, "not this vector");
}

/// Lets everybody in.
#[derive(Default)]
struct NoLock;

impl Lock for NoLock {
    const NAME: &'static str = "none";

    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }
}

#[test]
fn a_lock_that_does_not_exclude_is_found_out() {
    // On one CPU even: the tick stops a vCPU inside.
    let config = Config { quantum: Duration::from_micros(100), ..Config::new(3, 1) };
    let sections = Sections { critical: 1000, non_critical: 10, mix: Mix::Writes };
    let error = contend::<NoLock>(config, sections, Duration::from_millis(500)).expect_err("no exclusion");
    assert!(error.to_string().contains("mutual exclusion is broken"), "{error}");
}

#[test]
fn a_vcpu_is_frozen_at_the_step_that_a_test_names() {
    let trap = Trap { step: "holds", cpu: CpuId::new(1), frozen_for: Duration::from_millis(200) };
    let report =
        run(Config { traps: vec![trap], ..Config::new(2, 1) }, |_| step(&HOLDS)).expect("a run without failure");
    assert!(report.vcpus[1].steal >= Duration::from_millis(199), "{report}");
    assert!(report.vcpus[0].steal < Duration::from_millis(199), "only CPU 1 was to be frozen: {report}");
}

#[test]
fn hosts_do_not_nest() {
    let report = run(Config::new(1, 1), |_| {
        assert_eq!(start(Config::new(1, 1), |_| {}).err(), Some(ConfigError::Nested));
    });
    report.expect("a run without failure");
}

#[test]
fn impossible_hosts_are_refused() {
    assert_eq!(start(Config::new(1, 0), |_| {}).err(), Some(ConfigError::NoCpus));
    assert_eq!(start(Config::new(0, 1), |_| {}).err(), Some(ConfigError::NoVcpus));
}
