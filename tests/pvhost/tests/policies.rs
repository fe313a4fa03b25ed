//! Each host policy by itself: on, off, and the difference that it makes.

use core::hint::spin_loop;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicU64};
use core::time::Duration;
use std::sync::Arc;

use pvhost::{
    BailOut, BusySpinDetector, Config, Counts, Kick, Policies, PvCpu, PvHost, ReceiverBoost, StealRecord,
    YieldCandidates, in_user_mode, pause_loop_exit, run, send_interrupt,
};
use pvlock::hypervisor::Hypervisor;
use pvlock::{Cpu, CpuId};

fn cpu(index: u32) -> CpuId {
    CpuId::new(index).expect("below MAX_CPUS")
}

fn config(vcpus: usize, policies: Policies) -> Config {
    Config { policies, quantum: Duration::from_millis(500), limit: Duration::from_secs(20), ..Config::new(vcpus, 1) }
}

/// vCPU 0 makes 100 pause-loop exits while its siblings (all but 1, which is preempted) are halted.
fn hundred_exits(policies: Policies) -> Counts {
    const SLEEPERS: core::ops::Range<u32> = 2..8;
    let stop = Arc::new(AtomicBool::new(false));
    let guest = move |me: CpuId| match me.index() {
        0 => {
            for sleeper in SLEEPERS {
                // They have not run yet; each halts as soon as it does.
                let _ = PvHost::yield_to(me, cpu(sleeper));
            }
            for _ in 0..100 {
                pause_loop_exit();
            }
            stop.store(true, SeqCst);
            for sleeper in SLEEPERS {
                PvHost::kick(cpu(sleeper));
            }
        }
        1 => {
            while !stop.load(SeqCst) {
                let _ = PvHost::yield_to(me, cpu(0));
            }
        }
        _ => PvHost::halt(false),
    };
    run(config(8, policies), guest).expect("a run without failure").vcpus[0].counts
}

#[test]
fn every_choice_of_candidates_finds_the_preempted_sibling() {
    for candidates in [YieldCandidates::All, YieldCandidates::Flag, YieldCandidates::Bitmap] {
        let counts = hundred_exits(Policies { candidates, bail_out: BailOut::Off, ..Policies::KVM });
        assert_eq!(counts.spin_exits, 100);
        assert!(counts.boosts >= 95, "{candidates:?}: {counts:?}");
        // The flag and the bitmap know whom to try; all siblings in turn are mostly asleep.
        match candidates {
            YieldCandidates::All => assert!(counts.candidates_tried > 3 * counts.boosts, "{counts:?}"),
            YieldCandidates::Flag | YieldCandidates::Bitmap => {
                assert!(counts.candidates_tried <= counts.boosts, "{candidates:?}: {counts:?}");
            }
        }
    }
}

#[test]
fn an_undercommitted_host_gives_up_after_three_candidates() {
    let alone = |bail_out| {
        let guest = |me: CpuId| {
            if me.index() == 0 {
                // Its siblings end; nobody waits for a CPU any more.
                while (1..8).any(|other| {
                    StealRecord::of(cpu(other)).version() != 0 || StealRecord::of(cpu(other)).is_preempted()
                }) {
                    let waiting = (1..8).map(cpu).find(|&other| StealRecord::of(other).is_preempted());
                    if let Some(other) = waiting {
                        let _ = PvHost::yield_to(me, other);
                    }
                }
                for _ in 0..100 {
                    pause_loop_exit();
                }
            }
        };
        let policies = Policies { candidates: YieldCandidates::All, bail_out, ..Policies::KVM };
        run(config(8, policies), guest).expect("a run without failure").vcpus[0].counts
    };
    let (off, on) = (alone(BailOut::Off), alone(BailOut::AfterThree));
    assert_eq!((off.boosts, off.bail_outs, off.candidates_tried), (0, 0, 700));
    assert_eq!((on.boosts, on.bail_outs, on.candidates_tried), (0, 100, 300));
}

/// vCPU 0 spins at one instruction for vCPU 1, which waits for the CPU; returns how often the host saw that.
fn spin_at_one_instruction(detector: BusySpinDetector) -> Counts {
    let flag = Arc::new(AtomicU64::new(0));
    let guest = move |me: CpuId| {
        if me.index() == 0 {
            let address = Arc::as_ptr(&flag);
            // SAFETY: one instruction that jumps to itself while the flag is zero... is not to be had; a tight loop of three,
            //   of which `pause` takes nearly all the time, is. It reads a live atomic.
            unsafe {
                core::arch::asm!(
                    "2: pause",
                    "cmp qword ptr [{flag}], 0",
                    "je 2b",
                    flag = in(reg) address,
                    options(nostack, readonly)
                );
            }
        } else {
            flag.store(1, SeqCst);
        }
    };
    let policies = Policies { detector, ..Policies::KVM };
    let config = Config { quantum: Duration::from_millis(200), ..config(2, policies) };
    run(config, guest).expect("a run without failure").vcpus[0].counts
}

#[test]
fn two_ticks_at_one_instruction_are_taken_for_spinning() {
    assert_eq!(spin_at_one_instruction(BusySpinDetector::Off).spin_exits, 0);
    // Whether two ticks really hit the same instruction of the loop is chance, so it gets several.
    let caught = (0..20).any(|_| spin_at_one_instruction(BusySpinDetector::TwoTicks).boosts > 0);
    assert!(caught);
}

#[test]
fn a_receiver_in_user_mode_is_boosted_only_for_its_interrupt() {
    let boosts = |receiver_boost, interrupt: fn(CpuId)| {
        let (inside, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let guest = move |me: CpuId| {
            if me.index() == 0 {
                while !inside.load(SeqCst) {
                    let _ = PvHost::yield_to(me, cpu(1));
                }
                interrupt(cpu(1));
                for _ in 0..10 {
                    pause_loop_exit();
                }
                stop.store(true, SeqCst);
            } else {
                // Off, so that the interrupt stays pending.
                PvCpu::irqs_disable();
                in_user_mode(|| {
                    inside.store(true, SeqCst);
                    while !stop.load(SeqCst) {
                        let _ = PvHost::yield_to(me, cpu(0));
                        spin_loop();
                    }
                });
            }
        };
        let policies = Policies { receiver_boost, kick: Kick::Wakes, ..Policies::KVM };
        run(config(2, policies), guest).expect("a run without failure").vcpus[0].counts.boosts
    };
    let send: fn(CpuId) = |to| send_interrupt(to, 0);
    assert_eq!(boosts(ReceiverBoost::Off, send), 0);
    assert_eq!(boosts(ReceiverBoost::On, |_| {}), 0);
    assert!(boosts(ReceiverBoost::On, send) >= 9);
}
