//! The guest's side: what a kernel and its locks see of this host.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicUsize, compiler_fence};
use core::time::Duration;
use std::panic::catch_unwind;

use pvlock::hypervisor::{Hypervisor, Yielded};
use pvlock::kvm::hypercall::Ipi;
use pvlock::{Cpu, CpuId};

use crate::clock::now_ns;
use crate::config::Abilities;
use crate::counters::bump;
use crate::report::panic_message;
use crate::steal::StealRecord;
use crate::vcpu::{CONTEXT, Context};
use crate::{exits, host};

/// The abilities of the current host, apart and static: asking for one is a load.
static SEES_PREEMPTED: AtomicBool = AtomicBool::new(false);
static CAN_YIELD: AtomicBool = AtomicBool::new(false);
static CAN_HALT: AtomicBool = AtomicBool::new(false);
static SENDS_IPIS: AtomicBool = AtomicBool::new(false);
static MARKS_FLUSHES: AtomicBool = AtomicBool::new(false);
/// Its number of vCPUs.
static VCPUS: AtomicUsize = AtomicUsize::new(0);

/// [`Cpu`] of a guest of this host: vCPU numbers, and interrupts that are on or off per vCPU.
///
/// In a thread that is no vCPU, the current CPU is unknown.
#[derive(Debug)]
pub enum PvCpu {}

/// [`Hypervisor`] of a guest of this host.
#[derive(Debug)]
pub enum PvHost {}

/// The vCPU that the calling thread is.
#[inline]
pub fn current() -> Option<CpuId> {
    CONTEXT.with(|context| context.cpu.get())
}

/// A pause-loop exit: the processor has caught the calling vCPU in a loop of pauses. The host boosts somebody, by its policy.
///
/// User space cannot have real ones; a spin loop calls this every few thousand pauses.
pub fn pause_loop_exit() {
    exits::pause_loop();
}

/// Sends the interrupt `vector` (0..64) to `target`.
pub fn send_interrupt(target: CpuId, vector: u32) {
    exits::send_irq(target, vector);
}

/// How often the host has flushed the TLB of the calling vCPU, since somebody had left it a flush mark. 0 in a thread that is no vCPU.
///
/// There is no TLB to flush in user space: a test that models one compares this with what it was.
pub fn host_flushes() -> u64 {
    CONTEXT.with(|context| context.place.get().map_or(0, |place| place.vcpu.counters.tlb_flushes.load(Relaxed)))
}

/// The instruction at which the calling vCPU was last interrupted; 0 if it never was. For its interrupt handler.
pub fn interrupted_ip() -> u64 {
    CONTEXT.with(|context| context.place.get().map_or(0, |place| place.vcpu.last_rip.load(Relaxed) as u64))
}

/// Stops the calling vCPU for `duration`, as if the host had something better to do.
pub fn freeze_me(duration: Duration) {
    exits::freeze_me(duration);
}

/// Runs `f` with the calling vCPU in user mode: it is then no candidate for undirected yields.
pub fn in_user_mode<R>(f: impl FnOnce() -> R) -> R {
    let set = |mode| {
        CONTEXT.with(|context| {
            if let Some(place) = context.place.get() {
                place.vcpu.user_mode.store(mode, Relaxed);
            }
        });
    };
    set(true);
    let result = f();
    set(false);
    result
}

/// Lets a guest of `vcpus` vCPUs use what `abilities` names.
pub(crate) fn offer(vcpus: usize, abilities: Abilities) {
    VCPUS.store(vcpus, Relaxed);
    // ORDERING: Relaxed, before the vCPUs' threads exist.
    SEES_PREEMPTED.store(abilities.contains(Abilities::PREEMPTED), Relaxed);
    CAN_YIELD.store(abilities.contains(Abilities::YIELD), Relaxed);
    CAN_HALT.store(abilities.contains(Abilities::HALT), Relaxed);
    SENDS_IPIS.store(abilities.contains(Abilities::SEND_IPI), Relaxed);
    MARKS_FLUSHES.store(abilities.contains(Abilities::PREEMPTED | Abilities::FLUSH), Relaxed);
}

/// Runs the guest's handler for pending interrupts while they are on.
pub(crate) fn take_interrupts(context: &Context) {
    while context.irqs_on.load(Relaxed) {
        let Some(place) = context.place.get() else { return };
        if place.vcpu.pending_irqs.load(Relaxed) == 0 {
            return;
        }
        context.irqs_on.store(false, Relaxed);
        compiler_fence(AcqRel);
        // ORDERING: AcqRel, pair PVHOST-IRQ (in `send_irq`).
        let vectors = place.vcpu.pending_irqs.swap(0, AcqRel);
        bump(&place.vcpu.counters.irqs_taken);
        if let Some(handler) = place.host.config.interrupt_handler {
            // An unwinding panic could not leave the signal handler that this may run in.
            if let Err(payload) = catch_unwind(|| handler(vectors)) {
                place.die_in_handler(panic_message(payload));
            }
        }
        compiler_fence(AcqRel);
        context.irqs_on.store(true, Relaxed);
    }
}

impl Cpu for PvCpu {
    type Hypervisor = PvHost;

    #[inline]
    fn current() -> Option<CpuId> {
        current()
    }

    #[inline]
    fn irqs_enabled() -> bool {
        CONTEXT.with(|context| context.irqs_on.load(Relaxed))
    }

    #[inline]
    fn irqs_disable() {
        CONTEXT.with(|context| context.irqs_on.store(false, Relaxed));
        // ORDERING: the handler runs on this very thread, so only the compiler must keep the order.
        compiler_fence(AcqRel);
    }

    #[inline]
    fn irqs_enable() {
        compiler_fence(AcqRel);
        CONTEXT.with(|context| {
            context.irqs_on.store(true, Relaxed);
            compiler_fence(AcqRel);
            take_interrupts(context);
        });
    }
}

impl Hypervisor for PvHost {
    #[inline]
    fn sees_preempted() -> bool {
        SEES_PREEMPTED.load(Relaxed)
    }

    #[inline]
    fn is_preempted(cpu: CpuId) -> bool {
        SEES_PREEMPTED.load(Relaxed) && StealRecord::of(cpu).is_preempted()
    }

    #[inline]
    fn cpu_limit() -> usize {
        VCPUS.load(Relaxed)
    }

    #[inline]
    fn schedule_ins(cpu: CpuId) -> u32 {
        StealRecord::of(cpu).version()
    }

    #[inline]
    fn stolen_ns(cpu: CpuId) -> u64 {
        StealRecord::of(cpu).steal_ns()
    }

    #[inline]
    fn can_yield() -> bool {
        CAN_YIELD.load(Relaxed)
    }

    fn yield_to(me: CpuId, target: CpuId) -> Yielded {
        let before = StealRecord::of(me).version();
        exits::yield_to(target);
        if StealRecord::of(me).version() == before { Yielded::Nothing } else { Yielded::Moved }
    }

    #[inline]
    fn can_halt() -> bool {
        CAN_HALT.load(Relaxed)
    }

    #[inline]
    fn may_halt(_: CpuId) -> bool {
        CAN_HALT.load(Relaxed)
    }

    fn halt(irqs_on: bool) {
        exits::halt(irqs_on);
    }

    fn kick(cpu: CpuId) {
        if current().is_some() {
            return exits::kick(cpu);
        }
        // A thread that is no vCPU takes locks as a CPU that is not known yet does.
        if let Some(host) = host::current()
            && cpu.index() < host.vcpus.len()
        {
            let mut state = host.lock();
            let poke = host.kick_locked(&mut state, cpu.index(), now_ns());
            drop(state);
            host.poke(poke);
        }
    }

    fn mark_flush(cpu: CpuId) -> bool {
        MARKS_FLUSHES.load(Relaxed) && StealRecord::of(cpu).ask_for_flush()
    }

    unsafe fn send_ipis(targets: impl Iterator<Item = CpuId> + Clone, ipi: Ipi) -> bool {
        let Ipi::Vector(vector) = ipi else { return false };
        let sends = SENDS_IPIS.load(Relaxed);
        if sends {
            exits::send_irqs(targets, vector.into());
        }
        sends
    }
}
