//! The host as the guest sees it.

use core::fmt;

use pvlock::hypervisor::Kvm;
use pvlock::kvm::hypercall::{kick_cpu, sched_yield};
use pvlock::kvm::{Decision, Decisions, Features};
use pvlock_rt::{Quoted, cpu_count, current, hypervisor_present, println, tsc_khz};

/// Prints the `host` line.
pub fn print() {
    let report = Kvm::report();
    let hypervisor = match report.host {
        Some(_) => "kvm",
        None if hypervisor_present() => "other",
        None => "none",
    };
    let (base, features, hints) =
        report.host.map_or((0, 0, 0), |host| (host.base, host.features.bits(), host.hints.bits()));
    let decisions = report.decisions;
    println!(
        "host hypervisor={hypervisor} base={base:#x} features={features:#x} hints={hints:#x} steal_time={} preempted={} \
         yield={} halt={} flush_mark={} send_ipi={} tsc_khz={} vcpus={} reason={}",
        yes_or_no(report.host.is_some_and(|host| host.features.contains(Features::STEAL_TIME))),
        yes_or_no(decisions.preempted.is_used()),
        yes_or_no(decisions.directed_yield.is_used()),
        yes_or_no(decisions.halt.is_used()),
        yes_or_no(decisions.flush_mark.is_used()),
        yes_or_no(decisions.send_ipi.is_used()),
        tsc_khz(),
        cpu_count(),
        Quoted(Reasons(decisions))
    );
}

const fn yes_or_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// Why abilities are not used, in one line.
struct Reasons(Decisions);

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decisions { preempted, directed_yield, halt, flush_mark, send_ipi, .. } = self.0;
        let mut separator = "";
        for (name, decision) in [
            ("preempted", preempted),
            ("yield", directed_yield),
            ("halt", halt),
            ("flush_mark", flush_mark),
            ("send_ipi", send_ipi),
        ] {
            if let Decision::NotUsed(reason) = decision {
                write!(f, "{separator}{name}: {reason}")?;
                separator = "; ";
            }
        }
        if separator.is_empty() { f.write_str("all used") } else { Ok(()) }
    }
}

/// Whether preempted vCPUs can be told from running ones.
pub fn offers_steal_time() -> bool {
    Kvm::report().decisions.preempted.is_used()
}

/// Makes a harmless hypercall: `None` where the host offers none, else whether it went well.
pub fn try_hypercall() -> Option<bool> {
    let features = Kvm::report().host?.features;
    let own_id = pvlock::kvm::apic_id(current()?)?;
    if features.contains(Features::PV_UNHALT) {
        // Ends this CPU's next halt early, if at all.
        Some(kick_cpu(own_id).is_ok())
    } else if features.contains(Features::PV_SCHED_YIELD) {
        // To oneself: KVM finds nothing to do.
        Some(sched_yield(own_id).is_ok())
    } else {
        None
    }
}

/// Time in ns for which the host had vCPUs off a CPU though they had work, all vCPUs together; 0 where it does not tell.
pub fn steal_ns() -> u64 {
    let cpus = (0..cpu_count() as u32).filter_map(pvlock::CpuId::new);
    cpus.filter_map(|cpu| pvlock::kvm::steal_ns(cpu).ok()).sum()
}
