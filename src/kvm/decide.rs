//! Which of the host's abilities are used, and why not: independent decisions, each a function of what CPUID says.

use super::detect::{Detected, Features, Hints};
use super::setup::Options;
use core::fmt;

/// Why an ability of the host is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// CPUID shows no KVM: bare metal or another hypervisor.
    NoKvm,
    /// The host does not offer it.
    NotOffered,
    /// The host offers no steal-time record. Directed yield needs it to see whether a yield moved anything, flush marks lie in it.
    NoStealTime,
    /// The host promises dedicated CPUs ([`Hints::REALTIME`]): spinning is cheaper.
    DedicatedCpus,
    /// MWAIT is exposed, which hosts do only for vCPUs with CPUs of their own; HLT may then not be intercepted.
    MwaitExposed,
    /// Switched off by [`Options`].
    SwitchedOff,
    /// A TDX guest has to pass a hypercall function in [`Options::hypercall`].
    NoHypercall,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoKvm => "CPUID shows no KVM",
            Self::NotOffered => "the host does not offer it",
            Self::NoStealTime => "the host offers no steal time",
            Self::DedicatedCpus => "the host promises dedicated CPUs",
            Self::MwaitExposed => "MWAIT is exposed, so CPUs are dedicated",
            Self::SwitchedOff => "switched off by the kernel",
            Self::NoHypercall => "a TDX guest needs a hypercall function of its own",
        })
    }
}

/// One decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The ability is used.
    Used,
    /// It is not, for this reason (the first that applies).
    NotUsed(Reason),
}

impl Decision {
    /// Whether the ability is used.
    pub const fn is_used(self) -> bool {
        matches!(self, Self::Used)
    }

    /// Used unless one of `reasons`, looked at in order, applies.
    fn unless<const N: usize>(reasons: [(bool, Reason); N]) -> Self {
        match reasons.into_iter().find(|&(applies, _)| applies) {
            Some((_, reason)) => Self::NotUsed(reason),
            None => Self::Used,
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Used => f.write_str("used"),
            Self::NotUsed(reason) => write!(f, "not used: {reason}"),
        }
    }
}

/// The decisions. None follows from another: a host may offer any subset, and a guest with dedicated CPUs still wants
/// to read steal time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decisions {
    /// Reading steal time and the preempted flag.
    pub preempted: Decision,
    /// Halting waiters, woken by a kick.
    pub halt: Decision,
    /// Directed yield to a preempted vCPU.
    pub directed_yield: Decision,
    /// Flush marks: the host flushes the TLB of a preempted vCPU, and nobody sends it an interrupt for that.
    pub flush_mark: Decision,
    /// Interrupts to many vCPUs by one hypercall.
    pub send_ipi: Decision,
}

/// Decides. `None`: no KVM.
pub(crate) fn decide(found: Option<&Detected>, options: &Options) -> Decisions {
    let Some(host) = found else {
        let no = Decision::NotUsed(Reason::NoKvm);
        return Decisions { preempted: no, halt: no, directed_yield: no, flush_mark: no, send_ipi: no };
    };
    let lacks = |feature| !host.features.contains(feature);
    let dedicated = (host.hints.contains(Hints::REALTIME), Reason::DedicatedCpus);
    let mwait = (host.mwait, Reason::MwaitExposed);
    let no_hypercall = (host.tdx && options.hypercall.is_none(), Reason::NoHypercall);
    Decisions {
        preempted: Decision::unless([(lacks(Features::STEAL_TIME), Reason::NotOffered)]),
        halt: Decision::unless([
            (options.never_halt, Reason::SwitchedOff),
            dedicated,
            mwait,
            (lacks(Features::PV_UNHALT), Reason::NotOffered),
            no_hypercall,
        ]),
        directed_yield: Decision::unless([
            (options.never_yield, Reason::SwitchedOff),
            dedicated,
            mwait,
            (lacks(Features::PV_SCHED_YIELD), Reason::NotOffered),
            (lacks(Features::STEAL_TIME), Reason::NoStealTime),
            no_hypercall,
        ]),
        // As Linux decides (`pv_tlb_flush_supported`): where vCPUs have CPUs of their own, the look at each mark is pure cost.
        flush_mark: Decision::unless([
            (options.never_mark_flushes, Reason::SwitchedOff),
            dedicated,
            mwait,
            (lacks(Features::PV_TLB_FLUSH), Reason::NotOffered),
            (lacks(Features::STEAL_TIME), Reason::NoStealTime),
        ]),
        // One exit instead of many pays on dedicated CPUs too.
        send_ipi: Decision::unless([
            (options.never_send_ipis, Reason::SwitchedOff),
            (lacks(Features::PV_SEND_IPI), Reason::NotOffered),
            no_hypercall,
        ]),
    }
}

#[cfg(test)]
mod tests;
