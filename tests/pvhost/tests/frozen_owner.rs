//! The host freezes the lock's owner for a second: what its waiters burn meanwhile.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};
use core::time::Duration;
use std::sync::Arc;

use pvhost::{Abilities, Config, Policies, PreemptedFlag, PvCpu, PvHost, Report, freeze_me, run};
use pvlock::hypervisor::Hypervisor;
use pvlock::{CpuId, SpinMutex};

const FROZEN: Duration = Duration::from_secs(1);
/// Of one core, for all waiters together.
const MAY_BURN: f64 = 0.05;

/// vCPU 0 is frozen with the lock held; `waiters` others want it.
fn freeze_owner(waiters: usize, abilities: Abilities, flag: PreemptedFlag) -> Report {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(2);
    let policies = Policies { flag, ..Policies::KVM };
    let config = Config { abilities, policies, limit: Duration::from_secs(60), ..Config::new(waiters + 1, cpus) };
    let lock = Arc::new(SpinMutex::<u64, PvCpu>::new(0));
    let locked = Arc::new(AtomicBool::new(false));
    let guest = move |me: CpuId| {
        if me.index() == 0 {
            let mut guard = lock.lock();
            locked.store(true, Release);
            freeze_me(FROZEN);
            *guard += 1;
        } else {
            // Until the owner has the lock: without burning what is measured afterwards.
            while !locked.load(Acquire) {
                let _ = PvHost::yield_to(me, CpuId::new(0).expect("CPU 0"));
            }
            *lock.lock() += 1;
        }
    };
    run(config, guest).expect("a run without failure")
}

fn burned_by_waiters(report: &Report) -> Duration {
    report.vcpus[1..].iter().map(|vcpu| vcpu.cpu_time).sum()
}

#[test]
fn waiters_of_a_frozen_owner_burn_next_to_nothing() {
    // Where a halted vCPU does not read as preempted, the waiters behind it must learn of it from itself.
    let flags = [PreemptedFlag::InterruptOnly, PreemptedFlag::AnyExit];
    for (waiters, flag) in [2, 8, 32].into_iter().flat_map(|waiters| flags.map(|flag| (waiters, flag))) {
        let report = freeze_owner(waiters, Abilities::all(), flag);
        let burned = burned_by_waiters(&report);
        println!("{waiters} waiters burned {burned:.1?} of CPU time in {FROZEN:?}");
        assert!(
            burned.as_secs_f64() <= MAY_BURN * FROZEN.as_secs_f64(),
            "{waiters} waiters, {flag:?}: {burned:?}, {report}"
        );
    }
}

#[test]
fn without_halting_they_burn_what_there_is() {
    // The other side of the coin, and the proof that the measurement measures.
    let report = freeze_owner(8, Abilities::PREEMPTED | Abilities::YIELD, PreemptedFlag::InterruptOnly);
    let burned = burned_by_waiters(&report);
    println!("8 waiters that cannot halt burned {burned:.1?}");
    // Half of two cores was seen; a tenth of one is enough on a busy machine.
    assert!(burned > FROZEN / 10, "{burned:?}");
}
