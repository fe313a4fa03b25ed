//! What was found and decided at the first registration, kept for all CPUs, and what the kernel chose before it.

use super::decide::decide;
use super::detect::{Detected, Features, Hints, Vendor};
use super::hypercall::HypercallFn;
use bitflags::bitflags;
use core::fmt;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// What the kernel decides about the use of the host, before its first CPU registers. The default uses all that pays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub(crate) never_halt: bool,
    pub(crate) never_yield: bool,
    pub(crate) never_mark_flushes: bool,
    pub(crate) never_send_ipis: bool,
    pub(crate) hypercall: Option<HypercallFn>,
}

impl Options {
    /// Everything that the host offers and that pays there.
    pub const fn new() -> Self {
        Self {
            never_halt: false,
            never_yield: false,
            never_mark_flushes: false,
            never_send_ipis: false,
            hypercall: None,
        }
    }

    /// Waiters never halt and unlocking never kicks. The way out on a host that advertises PV_UNHALT wrongly.
    #[must_use]
    pub const fn never_halt(mut self) -> Self {
        self.never_halt = true;
        self
    }

    /// Waiters never yield to a preempted owner.
    #[must_use]
    pub const fn never_yield(mut self) -> Self {
        self.never_yield = true;
        self
    }

    /// The TLB of a preempted vCPU is never left to the host to flush: every target of a shootdown gets an interrupt.
    ///
    /// For guests that do not trust their host with this. Two bugs of KVM made it miss such flushes, and a guest cannot see whether its
    /// host has the fixes: CVE-2019-3016 (Linux before 5.6) and CVE-2022-39189 (Linux before 5.19).
    #[must_use]
    pub const fn never_mark_flushes(mut self) -> Self {
        self.never_mark_flushes = true;
        self
    }

    /// Interrupts to many vCPUs are sent one by one. For hosts whose hardware delivers them without an exit (APIC virtualization of
    /// IPIs), where the hypercall is the dearer way.
    #[must_use]
    pub const fn never_send_ipis(mut self) -> Self {
        self.never_send_ipis = true;
        self
    }

    /// Makes hypercalls by `call` instead of `vmcall` or `vmmcall`: for encrypted guests.
    ///
    /// # Safety
    /// `call` obeys the contract of [`HypercallFn`].
    #[must_use]
    pub const unsafe fn hypercall(mut self, call: HypercallFn) -> Self {
        self.hypercall = Some(call);
        self
    }
}

/// Why options were not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigureError {
    /// A CPU has registered already, and other CPUs may act on what was decided then.
    TooLate,
}

impl fmt::Display for ConfigureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLate => {
                f.write_str("options are fixed once a CPU has registered: set them before the boot CPU registers")
            }
        }
    }
}

impl core::error::Error for ConfigureError {}

bitflags! {
    /// All that is remembered in single bits.
    #[derive(Clone, Copy)]
    struct State: u32 {
        /// The rest of the state and the other fields are final.
        const DECIDED = 1 << 0;
        const SEES_PREEMPTED = 1 << 1;
        const HALTS = 1 << 2;
        const YIELDS = 1 << 3;
        /// Some vCPU has read as preempted. The one bit that may still change.
        const EVER_PREEMPTED = 1 << 4;
        const MARKS_FLUSHES = 1 << 5;
        const SENDS_IPIS = 1 << 6;

        const NEVER_HALT = 1 << 8;
        const NEVER_YIELD = 1 << 9;
        const NEVER_MARK_FLUSHES = 1 << 10;
        const NEVER_SEND_IPIS = 1 << 11;

        const INTEL = 1 << 16;
        const AMD = 1 << 17;
        const HYGON = 1 << 18;
        const MWAIT = 1 << 19;
        const TDX = 1 << 20;
    }
}

/// The decision and what it rests on. Written once, read by every waiter, so a cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Setup {
    /// [`State`].
    state: AtomicU32,
    /// 0: no KVM.
    base: AtomicU32,
    max_leaf: AtomicU32,
    features: AtomicU32,
    hints: AtomicU32,
    /// A [`HypercallFn`], or null.
    hypercall: AtomicPtr<()>,
}

/// The state of this guest.
pub(crate) static SETUP: Setup = Setup::new();

impl Setup {
    pub(crate) const fn new() -> Self {
        Self {
            state: AtomicU32::new(0),
            base: AtomicU32::new(0),
            max_leaf: AtomicU32::new(0),
            features: AtomicU32::new(0),
            hints: AtomicU32::new(0),
            hypercall: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    #[inline(always)]
    fn has(&self, bit: State) -> bool {
        // ORDERING: Relaxed. A bit speaks for itself, and is set before a second CPU runs.
        self.state.load(Relaxed) & bit.bits() != 0
    }

    /// Whether preempted vCPUs can be told from running ones.
    #[inline(always)]
    pub(crate) fn sees_preempted(&self) -> bool {
        self.has(State::SEES_PREEMPTED)
    }

    /// Whether waiters may halt.
    #[inline(always)]
    pub(crate) fn halts(&self) -> bool {
        self.has(State::HALTS)
    }

    /// Whether waiters may yield.
    #[inline(always)]
    pub(crate) fn yields(&self) -> bool {
        self.has(State::YIELDS)
    }

    /// Whether preempted vCPUs get flush marks.
    #[inline(always)]
    pub(crate) fn marks_flushes(&self) -> bool {
        self.has(State::MARKS_FLUSHES)
    }

    /// Whether interrupts to many vCPUs go by hypercall.
    #[inline(always)]
    pub(crate) fn sends_ipis(&self) -> bool {
        self.has(State::SENDS_IPIS)
    }

    /// Whether any vCPU was ever seen preempted.
    pub(crate) fn ever_preempted(&self) -> bool {
        self.has(State::EVER_PREEMPTED)
    }

    /// Remembers that a vCPU was seen preempted.
    #[inline(always)]
    pub(crate) fn note_preempted(&self) {
        if !self.has(State::EVER_PREEMPTED) {
            self.note_first_preempted();
        }
    }

    #[cold]
    fn note_first_preempted(&self) {
        // ORDERING: Relaxed, a statistic.
        self.state.fetch_or(State::EVER_PREEMPTED.bits(), Relaxed);
    }

    /// Takes the kernel's options, in place of earlier ones.
    pub(crate) fn configure(&self, options: Options) -> Result<(), ConfigureError> {
        if self.has(State::DECIDED) {
            return Err(ConfigureError::TooLate);
        }
        let call = options.hypercall.map_or(core::ptr::null_mut(), |call| call as *mut ());
        let mut chosen = State::empty();
        chosen.set(State::NEVER_HALT, options.never_halt);
        chosen.set(State::NEVER_YIELD, options.never_yield);
        chosen.set(State::NEVER_MARK_FLUSHES, options.never_mark_flushes);
        chosen.set(State::NEVER_SEND_IPIS, options.never_send_ipis);
        // ORDERING: Relaxed. Options are set on the boot CPU before it registers, so before anyone else looks.
        self.hypercall.store(call, Relaxed);
        self.state.store(chosen.bits(), Relaxed);
        Ok(())
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            never_halt: self.has(State::NEVER_HALT),
            never_yield: self.has(State::NEVER_YIELD),
            never_mark_flushes: self.has(State::NEVER_MARK_FLUSHES),
            never_send_ipis: self.has(State::NEVER_SEND_IPIS),
            hypercall: self.hypercall_fn(),
        }
    }

    /// The kernel's own hypercall function.
    pub(crate) fn hypercall_fn(&self) -> Option<HypercallFn> {
        // ORDERING: Relaxed, see `configure`.
        let call = self.hypercall.load(Relaxed);
        if call.is_null() {
            return None;
        }
        // SAFETY: not null, and the only non-null value ever stored is a `HypercallFn` cast to this type.
        Some(unsafe { core::mem::transmute::<*mut (), HypercallFn>(call) })
    }

    /// Decides, unless that has been done, on what `detect` finds. Returns what the decision rests on.
    ///
    /// CPUs that come here at once find the same in CPUID and store the same.
    pub(crate) fn decide_once(&self, detect: impl FnOnce() -> Option<Detected>) -> Option<Detected> {
        if !self.decided() {
            let found = detect();
            let decisions = decide(found.as_ref(), &self.options());
            let mut state = State::DECIDED;
            state.set(State::SEES_PREEMPTED, decisions.preempted.is_used());
            state.set(State::HALTS, decisions.halt.is_used());
            state.set(State::YIELDS, decisions.directed_yield.is_used());
            state.set(State::MARKS_FLUSHES, decisions.flush_mark.is_used());
            state.set(State::SENDS_IPIS, decisions.send_ipi.is_used());
            if let Some(host) = found {
                state.set(State::INTEL, host.vendor == Vendor::Intel);
                state.set(State::AMD, host.vendor == Vendor::Amd);
                state.set(State::HYGON, host.vendor == Vendor::Hygon);
                state.set(State::MWAIT, host.mwait);
                state.set(State::TDX, host.tdx);
                // ORDERING: Relaxed, published by DECIDED below.
                self.base.store(host.base, Relaxed);
                self.max_leaf.store(host.max_leaf, Relaxed);
                self.features.store(host.features.bits(), Relaxed);
                self.hints.store(host.hints.bits(), Relaxed);
            }
            // ORDERING: Release, pair KVM-DECIDED (Acquire in `decided`): who sees the bit sees the fields above.
            self.state.fetch_or(state.bits(), Release);
        }
        self.found()
    }

    /// Whether the decision has been made.
    pub(crate) fn decided(&self) -> bool {
        // ORDERING: Acquire, pair KVM-DECIDED (Release in `decide_once`).
        self.state.load(Acquire) & State::DECIDED.bits() != 0
    }

    /// The host that was found. `None` without KVM, and before the decision.
    pub(crate) fn found(&self) -> Option<Detected> {
        if !self.decided() {
            return None;
        }
        // ORDERING: Relaxed, after the Acquire in `decided`.
        let base = self.base.load(Relaxed);
        if base == 0 {
            return None;
        }
        let vendor = if self.has(State::INTEL) {
            Vendor::Intel
        } else if self.has(State::AMD) {
            Vendor::Amd
        } else if self.has(State::HYGON) {
            Vendor::Hygon
        } else {
            Vendor::Other
        };
        Some(Detected {
            base,
            max_leaf: self.max_leaf.load(Relaxed),
            features: Features::from_bits_retain(self.features.load(Relaxed)),
            hints: Hints::from_bits_retain(self.hints.load(Relaxed)),
            vendor,
            mwait: self.has(State::MWAIT),
            tdx: self.has(State::TDX),
        })
    }
}

#[cfg(test)]
mod tests;
