//! What the host promises its guests, on real threads.

use core::hint::spin_loop;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use core::time::Duration;
use std::sync::Arc;
use std::thread::sleep;

use pvhost::{
    Config, Kick, Policies, PreemptedFlag, PvCpu, PvHost, State, StealRecord, freeze_me, run, send_interrupt, start,
};
use pvlock::hypervisor::{Hypervisor, Yielded};
use pvlock::{Cpu, CpuId};

fn cpu(index: u32) -> CpuId {
    CpuId::new(index).expect("below MAX_CPUS")
}

/// Waits for `flag`; preemptible, like everything in a guest.
fn spin_until(flag: &AtomicBool) {
    while !flag.load(SeqCst) {
        spin_loop();
    }
}

/// One physical CPU, so that order is under control: a vCPU runs until its slice ends, it yields or it halts.
fn on_one_cpu(vcpus: usize) -> Config {
    Config { quantum: Duration::from_millis(500), limit: Duration::from_secs(20), ..Config::new(vcpus, 1) }
}

#[test]
fn a_preempted_vcpu_makes_no_progress() {
    const VCPUS: usize = 6;
    let progress: Arc<[AtomicU64; VCPUS]> = Arc::new([const { AtomicU64::new(0) }; VCPUS]);
    let stop = Arc::new(AtomicBool::new(false));
    let seen_preempted = Arc::new(AtomicU64::new(0));
    let guest = {
        let (progress, stop, seen_preempted) = (progress.clone(), stop.clone(), seen_preempted.clone());
        move |me: CpuId| {
            while !stop.load(SeqCst) {
                progress[me.index()].fetch_add(1, SeqCst);
                let other = cpu(((me.index() + 1) % VCPUS) as u32);
                let record = StealRecord::of(other);
                let before = (record.version(), record.is_preempted(), progress[other.index()].load(SeqCst));
                for _ in 0..20 {
                    spin_loop();
                }
                let count = progress[other.index()].load(SeqCst);
                let after = (record.version(), record.is_preempted(), count);
                if before.1 && after.1 && before.0 == after.0 {
                    assert_eq!(before.2, after.2, "it ran while its record said that it did not");
                    seen_preempted.fetch_add(1, SeqCst);
                }
            }
        }
    };
    let config = Config { quantum: Duration::from_micros(200), ..Config::new(VCPUS, 2) };
    let running = start(config, guest).expect("two CPUs");
    for _ in 0..30 {
        sleep(Duration::from_millis(10));
        let report = running.report();
        let on_cpu = report.vcpus.iter().filter(|v| v.state == State::Running).count();
        assert!(on_cpu <= 2, "{report}");
    }
    stop.store(true, SeqCst);
    let report = running.wait().expect("a run without failure");
    assert!(seen_preempted.load(SeqCst) > 1000);
    assert!(report.vcpus.iter().all(|v| v.counts.preemptions > 10), "{report}");
}

#[test]
fn times_add_up() {
    let stop = Arc::new(AtomicBool::new(false));
    let guest = {
        let stop = stop.clone();
        move |me: CpuId| {
            let mut last_ns = 0;
            while !stop.load(SeqCst) {
                let steal_ns = StealRecord::of(me).steal_ns();
                assert!(steal_ns >= last_ns, "stolen time went back");
                last_ns = steal_ns;
            }
        }
    };
    let config = Config { quantum: Duration::from_millis(1), ..Config::new(4, 1) };
    let running = start(config, guest).expect("one CPU");
    sleep(Duration::from_millis(400));
    let report = running.report();
    stop.store(true, SeqCst);
    running.wait().expect("a run without failure");
    let run: Duration = report.vcpus.iter().map(|v| v.run).sum();
    let slack = Duration::from_millis(5);
    assert!(run <= report.elapsed && run + slack > report.elapsed, "one CPU's time is shared out: {report}");
    for vcpu in &report.vcpus {
        assert!((vcpu.run + vcpu.steal).abs_diff(report.elapsed) < slack, "{report}");
        assert!(vcpu.run.abs_diff(report.elapsed / 4) < report.elapsed / 10, "equal shares: {report}");
        assert!(vcpu.cpu_time <= vcpu.run + slack, "{report}");
    }
}

#[test]
fn a_yield_moves_only_to_a_vcpu_that_waits() {
    let arrived = Arc::new(AtomicU32::new(0));
    let guest = move |me: CpuId| {
        if me.index() == 0 {
            // 1 waits for the CPU; it runs, sets its mark and ends before 0 goes on.
            assert!(StealRecord::of(cpu(1)).is_preempted());
            assert_eq!(PvHost::yield_to(me, cpu(1)), Yielded::Moved);
            assert_eq!(arrived.load(SeqCst), 1);
            assert_eq!(PvHost::yield_to(me, cpu(1)), Yielded::Nothing, "it has ended");
            assert_eq!(PvHost::yield_to(me, me), Yielded::Nothing);
            assert_eq!(PvHost::yield_to(me, cpu(7)), Yielded::Nothing, "there is no such vCPU");
        } else {
            arrived.fetch_add(1, SeqCst);
        }
    };
    let report = run(on_one_cpu(2), guest).expect("a run without failure");
    assert_eq!((report.total().yields, report.total().yields_moved), (4, 1));
}

#[test]
fn a_kick_sticks_until_the_halt_that_it_ends() {
    for flag in [PreemptedFlag::InterruptOnly, PreemptedFlag::AnyExit] {
        let halted = Arc::new(AtomicBool::new(false));
        let guest = move |me: CpuId| {
            if me.index() == 0 {
                PvHost::kick(cpu(1));
                PvHost::kick(cpu(1));
                // Let 1 run: it finds the kick, and halts again for good.
                while !halted.load(SeqCst) {
                    let _ = PvHost::yield_to(me, cpu(1));
                }
                while PvHost::yield_to(me, cpu(1)) == Yielded::Moved {}
                let reads_as_preempted = StealRecord::of(cpu(1)).is_preempted();
                assert_eq!(reads_as_preempted, flag == PreemptedFlag::AnyExit, "{flag:?}");
                PvHost::kick(cpu(1));
            } else {
                PvHost::halt(false);
                halted.store(true, SeqCst);
                PvHost::halt(false);
            }
        };
        let policies = Policies { kick: Kick::Wakes, flag, ..Policies::KVM };
        let report = run(Config { policies, ..on_one_cpu(2) }, guest).expect("a run without failure");
        let counts = report.vcpus[1].counts;
        assert_eq!((counts.halts, counts.sticky_kicks), (2, 1), "two kicks before the halt are one");
        assert!(report.vcpus[1].halted > Duration::ZERO);
    }
}

static TAKEN: AtomicU64 = AtomicU64::new(0);

fn take(vectors: u64) {
    assert!(!PvCpu::irqs_enabled(), "handlers run with interrupts off");
    TAKEN.fetch_or(vectors, SeqCst);
}

#[test]
fn interrupts_wait_while_they_are_off_and_end_halts_only_while_they_are_on() {
    TAKEN.store(0, SeqCst);
    let ready = Arc::new(AtomicBool::new(false));
    let guest = move |me: CpuId| {
        if me.index() == 0 {
            PvCpu::irqs_disable();
            ready.store(true, SeqCst);
            let end_ns = StealRecord::of(me).version() + 4;
            while StealRecord::of(me).version() < end_ns {
                spin_loop();
            }
            assert_eq!(TAKEN.load(SeqCst), 0, "they are off");
            PvCpu::irqs_enable();
            assert_eq!(TAKEN.load(SeqCst), 1 << 3);

            PvCpu::irqs_disable();
            PvHost::halt(true);
            assert!(PvCpu::irqs_enabled());
            assert_eq!(TAKEN.load(SeqCst), 1 << 3 | 1 << 63, "the halt ended for it");
        } else {
            spin_until(&ready);
            send_interrupt(cpu(0), 3);
            while TAKEN.load(SeqCst) == 0 {
                spin_loop();
            }
            send_interrupt(cpu(0), 63);
        }
    };
    let config = Config { quantum: Duration::from_millis(2), interrupt_handler: Some(take), ..on_one_cpu(2) };
    let report = run(config, guest).expect("a run without failure");
    assert_eq!(report.vcpus[0].counts.irqs_taken, 2);
}

#[test]
fn a_flush_mark_is_consumed_on_switching_in() {
    let guest = |me: CpuId| {
        if me.index() == 0 {
            assert!(StealRecord::of(cpu(1)).ask_for_flush(), "1 has not run yet");
            assert!(!StealRecord::of(me).ask_for_flush(), "0 is running");
            assert_eq!(PvHost::yield_to(me, cpu(1)), Yielded::Moved);
        }
    };
    let report = run(on_one_cpu(2), guest).expect("a run without failure");
    assert_eq!((report.vcpus[0].counts.tlb_flushes, report.vcpus[1].counts.tlb_flushes), (0, 1));
}

#[test]
fn a_frozen_vcpu_stops_and_goes_on() {
    let count = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let guest = {
        let (count, stop) = (count.clone(), stop.clone());
        move |_| {
            while !stop.load(SeqCst) {
                count.fetch_add(1, SeqCst);
            }
        }
    };
    let running = start(on_one_cpu(1), guest).expect("one CPU");
    sleep(Duration::from_millis(20));
    running.freeze(cpu(0), Duration::from_millis(300));
    sleep(Duration::from_millis(50));
    let frozen = count.load(SeqCst);
    assert!(frozen > 0 && StealRecord::of(cpu(0)).is_preempted());
    sleep(Duration::from_millis(50));
    assert_eq!(count.load(SeqCst), frozen);
    sleep(Duration::from_millis(400));
    assert!(count.load(SeqCst) > frozen);
    stop.store(true, SeqCst);
    let report = running.wait().expect("a run without failure");
    assert!(report.vcpus[0].steal >= Duration::from_millis(290), "{report}");
}

#[test]
fn freezing_oneself_takes_its_time_and_lets_the_others_run() {
    let frozen = Arc::new(AtomicBool::new(true));
    let guest = move |me: CpuId| {
        if me.index() == 0 {
            freeze_me(Duration::from_millis(100));
            frozen.store(false, SeqCst);
        } else {
            while frozen.load(SeqCst) {
                spin_loop();
            }
        }
    };
    let report = run(on_one_cpu(2), guest).expect("a run without failure");
    assert!(report.vcpus[0].steal >= Duration::from_millis(99), "{report}");
    assert!(report.vcpus[1].run >= Duration::from_millis(90), "{report}");
}
