//! KVM as the locks use it: what the host offers, decided once at the first registration, per CPU only after it said so.

use super::{Hypervisor, Yielded};
use crate::cpu::CpuId;
use crate::kvm::hypercall::Ipi;
use crate::kvm::{
    CPUS, ConfigureError, Cpus, Decisions, Detected, HypercallError, NotRegistered, Options, SETUP, Setup, decide,
    detect, steal_ns, version,
};
use crate::preempted::vcpu_is_preempted_inline;
use core::arch::asm;
use core::fmt;

/// A KVM host, or none: whatever CPUID shows when the boot CPU registers ([`register_this_cpu`](crate::kvm::register_this_cpu)).
///
/// Before that, and where there is no KVM, it behaves as [`Native`](super::Native) does, at the cost of one load and branch
/// per unlock.
#[derive(Debug)]
pub enum Kvm {}

/// Why a CPU cannot be kicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KickError {
    /// The CPU's APIC id is not known.
    NotRegistered(NotRegistered),
    /// The host refuses the kick, though CPUID offers it.
    Refused(HypercallError),
}

impl fmt::Display for KickError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRegistered(error) => error.fmt(f),
            Self::Refused(error) => write!(f, "a trial kick failed, so this CPU never halts for a lock: {error}"),
        }
    }
}

impl core::error::Error for KickError {}

impl Kvm {
    /// Sets [`Options`], in place of earlier ones. On the boot CPU, before it registers.
    ///
    /// # Errors
    /// [`ConfigureError::TooLate`] once a CPU has registered.
    pub fn configure(options: Options) -> Result<(), ConfigureError> {
        SETUP.configure(options)
    }

    /// Says that from now on kicks reach `cpu`, the calling CPU, so that it may halt while it waits for a lock. Before, it
    /// spins and yields.
    ///
    /// Call it when the CPU is fully up. Where halting is used this makes one kick as a trial: the CPU's next HLT may end at
    /// once.
    ///
    /// # Errors
    /// See [`KickError`]; the CPU then never halts.
    pub fn ready_to_be_kicked(cpu: CpuId) -> Result<(), KickError> {
        ready_to_be_kicked(&SETUP, &CPUS, cpu)
    }

    /// What was found and what is used of it, to be printed. Before the first registration: what would be.
    pub fn report() -> Report {
        let host = if SETUP.decided() { SETUP.found() } else { detect() };
        Report {
            host,
            decisions: decide(host.as_ref(), &SETUP.options()),
            records: CPUS.count_records(),
            ever_preempted: SETUP.ever_preempted(),
        }
    }
}

impl Hypervisor for Kvm {
    #[inline(always)]
    fn sees_preempted() -> bool {
        SETUP.sees_preempted()
    }

    #[inline(always)]
    fn is_preempted(cpu: CpuId) -> bool {
        let preempted = vcpu_is_preempted_inline(cpu);
        if preempted {
            SETUP.note_preempted();
        }
        preempted
    }

    #[inline]
    fn cpu_limit() -> usize {
        CPUS.limit()
    }

    #[inline]
    fn schedule_ins(cpu: CpuId) -> u32 {
        version(cpu)
    }

    #[inline]
    fn stolen_ns(cpu: CpuId) -> u64 {
        steal_ns(cpu).unwrap_or(0)
    }

    #[inline(always)]
    fn can_yield() -> bool {
        SETUP.yields()
    }

    fn yield_to(me: CpuId, target: CpuId) -> Yielded {
        yield_to(&SETUP, &CPUS, || version(me), me, target)
    }

    #[inline(always)]
    fn can_halt() -> bool {
        SETUP.halts()
    }

    #[inline]
    fn may_halt(cpu: CpuId) -> bool {
        CPUS.is_kickable(cpu)
    }

    #[inline]
    fn halt(irqs_on: bool) {
        // Neither block is `nomem`: what the kicker wrote must be read anew after it.
        if irqs_on {
            // SAFETY: halting touches no memory. The caller is about to let interrupts in anyway; STI takes effect after the
            //   next instruction, so none arrives before HLT.
            unsafe { asm!("sti", "hlt", options(nostack)) }
        } else {
            // SAFETY: halting touches no memory.
            unsafe { asm!("hlt", options(nostack, preserves_flags)) }
        }
    }

    fn kick(cpu: CpuId) {
        // A CPU that is not known never halts, and that kicks work was tried before any CPU could halt.
        let _ = kick(&SETUP, &CPUS, cpu);
    }

    #[inline]
    fn mark_flush(cpu: CpuId) -> bool {
        mark_flush(&SETUP, cpu)
    }

    #[inline]
    unsafe fn send_ipis(targets: impl Iterator<Item = CpuId> + Clone, ipi: Ipi) -> bool {
        send_ipis(&SETUP, &CPUS, targets, ipi)
    }
}

fn mark_flush(setup: &Setup, cpu: CpuId) -> bool {
    setup.marks_flushes() && crate::kvm::mark_flush(cpu)
}

fn send_ipis(setup: &Setup, cpus: &Cpus, targets: impl Iterator<Item = CpuId> + Clone, ipi: Ipi) -> bool {
    setup.sends_ipis()
        && targets.clone().all(|cpu| cpus.apic_id(cpu).is_some())
        && setup
            .send_ipi(targets.filter_map(|cpu| cpus.apic_id(cpu)), ipi)
            .is_ok_and(|(delivered, wanted)| delivered >= wanted)
}

fn kick(setup: &Setup, cpus: &Cpus, cpu: CpuId) -> Result<(), KickError> {
    let apic = cpus.apic_id(cpu).ok_or(KickError::NotRegistered(NotRegistered { cpu }))?;
    setup.kick_cpu(apic).map_err(KickError::Refused)
}

fn ready_to_be_kicked(setup: &Setup, cpus: &Cpus, cpu: CpuId) -> Result<(), KickError> {
    if setup.halts() {
        kick(setup, cpus, cpu)?;
    }
    cpus.set_kickable(cpu).map_err(KickError::NotRegistered)
}

/// Yields to `target`; `own_version` reads the caller's record, which moves when the host schedules the caller in again.
fn yield_to(setup: &Setup, cpus: &Cpus, own_version: impl Fn() -> u32, me: CpuId, target: CpuId) -> Yielded {
    if me == target {
        return Yielded::Nothing;
    }
    let Some(apic) = cpus.apic_id(target) else {
        return Yielded::Nothing;
    };
    let before = own_version();
    match setup.sched_yield(apic) {
        Ok(()) if own_version() != before => Yielded::Moved,
        // An error is as good as nobody to yield to: waiters stop yielding after a few.
        _ => Yielded::Nothing,
    }
}

/// What was found and what is used. `Display` prints it over several lines.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The host. `None` without KVM.
    pub host: Option<Detected>,
    /// What is used of it, and why not.
    pub decisions: Decisions,
    /// CPUs for which the host keeps a steal-time record.
    pub records: usize,
    /// Whether any vCPU has read as preempted yet. On some hosts the flag is offered and never set.
    pub ever_preempted: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            None => writeln!(f, "no KVM found")?,
            Some(host) => {
                writeln!(f, "KVM at leaf {:#x} (last {:#x}), CPU {:?}", host.base, host.max_leaf, host.vendor)?;
                writeln!(f, "features {:#x}: {}", host.features.bits(), host.features)?;
                writeln!(f, "hints {:#x}: {}", host.hints.bits(), host.hints)?;
            }
        }
        writeln!(f, "preempted flag: {}", self.decisions.preempted)?;
        writeln!(f, "directed yield: {}", self.decisions.directed_yield)?;
        writeln!(f, "halt and kick: {}", self.decisions.halt)?;
        writeln!(f, "flush mark: {}", self.decisions.flush_mark)?;
        writeln!(f, "interrupts to many: {}", self.decisions.send_ipi)?;
        let ever = if self.ever_preempted { "has been seen" } else { "has not been seen" };
        write!(f, "{} CPUs with a steal-time record; a preempted vCPU {ever}", self.records)
    }
}

#[cfg(test)]
mod tests;
