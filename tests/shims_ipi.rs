//! `wait_acks` and `Shootdown` in place of real kernels' bare spins: each module is a kernel's wait as that kernel would write it.
//!
//! Compiled and run, on a fake host. Threads are CPUs that take an interrupt some time after it was sent.
#![cfg(not(pvlock_loom))]

mod fake;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use fake::{Fake, PREEMPTED, cpu, on_cpu};
use pvlock::boost::{CpuSet, Shootdown, wait_acks};
use pvlock::kvm::hypercall::Ipi;
use pvlock::{Cpu, CpuId, MAX_CPUS};

fn count(flushes: &AtomicUsize) {
    flushes.fetch_add(1, Ordering::Relaxed);
}

/// Asterinas: `inter_processor_call` returns `PendingIpis`, whose `wait` spins for each target until that one's queue has been worked off.
mod asterinas {
    use super::*;

    /// Per CPU: calls that others have queued, and those that it has worked off.
    static QUEUED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
    static HANDLED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

    pub struct PendingIpis {
        cpus: CpuSet,
    }

    impl PendingIpis {
        pub fn wait(&self) {
            assert!(Fake::irqs_enabled(), "waiting for remote calls with interrupts off");
            // was: for cpu in self.cpus.iter() { while !has_handled(cpu) { spin_loop() } }
            wait_acks::<Fake>(&self.cpus, has_handled);
        }
    }

    fn has_handled(cpu: CpuId) -> bool {
        HANDLED[cpu.index()].load(Ordering::Acquire) >= QUEUED[cpu.index()].load(Ordering::Relaxed)
    }

    fn inter_processor_call(targets: &CpuSet) -> PendingIpis {
        let cpus = CpuSet::new();
        for cpu in targets {
            QUEUED[cpu.index()].fetch_add(1, Ordering::Release);
            (&cpus).extend([cpu]);
        }
        PendingIpis { cpus }
    }

    #[test]
    fn waits_for_all_that_were_called() {
        let targets = CpuSet::new();
        (&targets).extend([1, 2].map(cpu));
        let pending = on_cpu(3, || inter_processor_call(&targets));
        // Off their CPUs, as far as can be seen, to the end.
        targets.iter().for_each(|target| {
            PREEMPTED.fetch_or(1 << target.index(), Ordering::Relaxed);
        });
        let waited = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                on_cpu(3, || pending.wait());
                waited.store(true, Ordering::Release);
            });
            for target in &targets {
                assert!(!waited.load(Ordering::Acquire), "went on before {target} had answered");
                thread::yield_now();
                HANDLED[target.index()].fetch_add(1, Ordering::Release);
            }
        });
        assert!(waited.into_inner());
    }
}

/// Redox: a flag per CPU asks for a flush, and every CPU counts itself in the address space's `tlb_ack`, for which the requester spins.
///
/// A count does not tell whose answer is missing, so it becomes a set: all targets are in before the first is asked, and each leaves.
mod redox {
    use super::*;

    struct AddrSpace {
        used_by: CpuSet,
        /// was: tlb_ack: AtomicU32
        tlb_ack: CpuSet,
    }

    static WANTS_TLB_SHOOTDOWN: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];
    static SPACE: AddrSpace = AddrSpace { used_by: CpuSet::new(), tlb_ack: CpuSet::new() };

    impl AddrSpace {
        fn shootdown(&self, me: CpuId) {
            (&self.tlb_ack).extend(self.used_by.iter().filter(|&cpu| cpu != me));
            for cpu in &self.tlb_ack {
                WANTS_TLB_SHOOTDOWN[cpu.index()].store(true, Ordering::Release);
            }
            // was: while self.tlb_ack.load(Acquire) < asked { maybe_handle_tlb_shootdown(); spin_loop() }
            wait_acks::<Fake>(&self.tlb_ack, |cpu| !self.tlb_ack.contains(cpu));
        }
    }

    /// In the interrupt's handler, and from `Cpu::relax`.
    fn maybe_handle_tlb_shootdown(me: CpuId, flush: impl FnOnce()) {
        if WANTS_TLB_SHOOTDOWN[me.index()].swap(false, Ordering::Acquire) {
            flush();
            SPACE.tlb_ack.remove(me);
        }
    }

    #[test]
    fn ends_when_the_last_one_has_left_the_set() {
        (&SPACE.used_by).extend([4, 5, 6].map(cpu));
        let (over, flushes) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            for me in [5, 6].map(cpu) {
                let (over, flushes) = (&over, &flushes);
                scope.spawn(move || {
                    while !over.load(Ordering::Acquire) {
                        maybe_handle_tlb_shootdown(me, || count(flushes));
                        thread::yield_now();
                    }
                });
            }
            on_cpu(4, || {
                for round in 1..=20 {
                    SPACE.shootdown(cpu(4));
                    assert_eq!(flushes.load(Ordering::Relaxed), 2 * round);
                }
            });
            over.store(true, Ordering::Release);
        });
    }
}

/// Theseus: one shootdown at a time, whose pages lie in a static, with a count of the CPUs that have yet to answer. All of it goes: numbers of
/// requests need no lock around the request, and preempted CPUs need no answer.
mod theseus {
    use super::*;

    const TLB_SHOOTDOWN_IPI: u8 = 0x40;

    // SAFETY: the handler of all CPUs is `tlb_shootdown_handler`.
    static SHOOTDOWN: Shootdown = unsafe { Shootdown::new(Ipi::Vector(TLB_SHOOTDOWN_IPI)) };
    static ONLINE: CpuSet = CpuSet::new();
    static INTERRUPTED: [AtomicBool; MAX_CPUS] = [const { AtomicBool::new(false) }; MAX_CPUS];

    /// What the memory subsystem calls after it has changed a mapping.
    fn broadcast_tlb_shootdown() {
        SHOOTDOWN.flush_others::<Fake>(&ONLINE, |cpu| INTERRUPTED[cpu.index()].store(true, Ordering::Release));
    }

    fn tlb_shootdown_handler(me: CpuId, flush: impl FnOnce()) {
        SHOOTDOWN.serve(me, flush);
    }

    #[test]
    fn any_number_of_requests_at_once() {
        const CPUS: [u32; 3] = [7, 8, 9];
        (&ONLINE).extend(CPUS.map(cpu));
        let (finished, flushes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let take_interrupts = |me: CpuId| {
            if INTERRUPTED[me.index()].swap(false, Ordering::Acquire) {
                tlb_shootdown_handler(me, || count(&flushes));
            }
        };
        thread::scope(|scope| {
            for me in CPUS {
                let (finished, take_interrupts) = (&finished, &take_interrupts);
                // Interrupts come at any time, as by a thread of their own.
                scope.spawn(move || {
                    while finished.load(Ordering::Acquire) < CPUS.len() {
                        take_interrupts(cpu(me));
                        thread::yield_now();
                    }
                });
                scope.spawn(move || {
                    on_cpu(me, || (0..20).for_each(|_| broadcast_tlb_shootdown()));
                    finished.fetch_add(1, Ordering::Release);
                });
            }
        });
        let flushes = flushes.into_inner();
        // Each request has two targets; a flush answers all requests before it.
        assert!((20..=2 * 20 * CPUS.len()).contains(&flushes), "{flushes}");
    }
}
