//! A shootdown by the holder of a lock, while others wait for that lock with interrupts off, halted even: they answer all the same.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};
use core::time::Duration;
use std::sync::Arc;

use pvhost::{Abilities, Config, PvCpu, PvHost, freeze_me, run, send_interrupt};
use pvlock::boost::{Flushed, Shootdown};
use pvlock::guard::IrqSave;
use pvlock::hypervisor::Hypervisor;
use pvlock::kvm::hypercall::Ipi;
use pvlock::{Cpu, CpuId, SpinMutex};

const VECTOR: u8 = 5;

// SAFETY: `on_interrupt` is the handler of all vCPUs.
static SHOOTDOWN: Shootdown = unsafe { Shootdown::new(Ipi::Vector(VECTOR)) };

/// A kernel whose waiters answer shootdowns.
struct Kernel;

impl Cpu for Kernel {
    type Hypervisor = PvHost;
    fn current() -> Option<CpuId> {
        PvCpu::current()
    }
    fn irqs_enabled() -> bool {
        PvCpu::irqs_enabled()
    }
    fn irqs_disable() {
        PvCpu::irqs_disable();
    }
    fn irqs_enable() {
        PvCpu::irqs_enable();
    }
    fn relax() {
        if let Some(me) = Self::current() {
            SHOOTDOWN.serve(me, || ());
        }
    }
}

fn on_interrupt(_: u64) {
    Kernel::relax();
}

/// vCPU 0 stops with the lock held, until all others have halted for it; then it wants their answer.
fn shoot_at_waiters(vcpus: u32, abilities: Abilities) -> Flushed {
    let config = Config {
        abilities,
        interrupt_handler: Some(on_interrupt),
        limit: Duration::from_secs(20),
        ..Config::new(vcpus as usize, 1)
    };
    let lock = Arc::new(SpinMutex::<Flushed, Kernel, IrqSave>::new(Flushed::default()));
    let locked = Arc::new(AtomicBool::new(false));
    let guest = {
        let lock = Arc::clone(&lock);
        move |me: CpuId| {
            if me.index() == 0 {
                let mut guard = lock.lock();
                locked.store(true, Release);
                freeze_me(Duration::from_millis(200));
                let others = (1..vcpus).filter_map(CpuId::new);
                *guard = SHOOTDOWN.flush_others::<Kernel>(others, |target| send_interrupt(target, VECTOR.into()));
            } else {
                while !locked.load(Acquire) {
                    let _ = PvHost::yield_to(me, CpuId::new(0).expect("CPU 0"));
                }
                drop(lock.lock());
            }
        }
    };
    let report = run(config, guest).expect("a run without failure");
    assert!(report.vcpus[1..].iter().any(|vcpu| vcpu.counts.halts > 0), "nobody halted: {report}");
    *lock.lock()
}

#[test]
fn halted_waiters_answer_the_holder_of_their_lock() {
    for vcpus in [2, 5] {
        let done = shoot_at_waiters(vcpus, Abilities::all() - Abilities::FLUSH);
        assert_eq!((done.asked, done.marked), (vcpus - 1, 0));
        let done = shoot_at_waiters(vcpus, Abilities::all());
        assert_eq!(done.asked + done.marked, vcpus - 1);
    }
}
