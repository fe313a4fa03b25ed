//! Ways to wait, as types: any kernel's [`Cpu`] with less of its hypervisor, to measure what each ability is worth.
#![no_std]

use core::fmt;
use core::marker::PhantomData;

use pvlock::hypervisor::{Hypervisor, Yielded};
use pvlock::{Cpu, CpuId};

/// What a waiter may do.
pub trait Policy: 'static {
    /// Directed yields to one preempted owner before halting, or at all; 0: it never yields.
    const YIELDS: u32;
    /// Whether it halts.
    const HALTS: bool;
    /// Whether the head of the queue closes the lock to passers before it gives its CPU away.
    const MARKS: bool;
    /// Whether a CPU whose yields did nothing stops making them for a while.
    const BAILS_OUT: bool = true;
}

/// `C` with waiters that wait as `P` says.
pub struct Waits<C, P>(PhantomData<fn() -> (C, P)>);

impl<C, P> fmt::Debug for Waits<C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waits")
    }
}

impl<C: Cpu, P: Policy> Cpu for Waits<C, P> {
    type Hypervisor = Self;

    #[inline(always)]
    fn current() -> Option<CpuId> {
        C::current()
    }

    #[inline(always)]
    fn irqs_enabled() -> bool {
        C::irqs_enabled()
    }

    #[inline(always)]
    fn irqs_disable() {
        C::irqs_disable();
    }

    #[inline(always)]
    fn irqs_enable() {
        C::irqs_enable();
    }

    #[inline(always)]
    fn relax() {
        C::relax();
    }
}

impl<C: Cpu, P: Policy> Hypervisor for Waits<C, P> {
    const YIELDS_BEFORE_HALT: u32 = P::YIELDS;
    const RESERVES: bool = P::MARKS;
    const BAILS_OUT: bool = P::BAILS_OUT;

    #[inline(always)]
    fn sees_preempted() -> bool {
        C::Hypervisor::sees_preempted()
    }

    #[inline(always)]
    fn is_preempted(cpu: CpuId) -> bool {
        C::Hypervisor::is_preempted(cpu)
    }

    #[inline(always)]
    fn cpu_limit() -> usize {
        C::Hypervisor::cpu_limit()
    }

    #[inline(always)]
    fn schedule_ins(cpu: CpuId) -> u32 {
        C::Hypervisor::schedule_ins(cpu)
    }

    #[inline(always)]
    fn stolen_ns(cpu: CpuId) -> u64 {
        C::Hypervisor::stolen_ns(cpu)
    }

    #[inline(always)]
    fn can_yield() -> bool {
        P::YIELDS > 0 && C::Hypervisor::can_yield()
    }

    fn yield_to(me: CpuId, target: CpuId) -> Yielded {
        C::Hypervisor::yield_to(me, target)
    }

    #[inline(always)]
    fn can_halt() -> bool {
        P::HALTS && C::Hypervisor::can_halt()
    }

    #[inline(always)]
    fn may_halt(cpu: CpuId) -> bool {
        C::Hypervisor::may_halt(cpu)
    }

    fn halt(irqs_on: bool) {
        C::Hypervisor::halt(irqs_on);
    }

    fn kick(cpu: CpuId) {
        C::Hypervisor::kick(cpu);
    }
}

/// A policy as a value, for tables and command lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Described {
    /// Its name.
    pub name: &'static str,
    /// See [`Policy::YIELDS`].
    pub yields: u32,
    /// See [`Policy::HALTS`].
    pub halts: bool,
    /// See [`Policy::MARKS`].
    pub marks: bool,
}

/// Defines the policies; whoever has something to do with each of them gets them by [`for_each_policy`].
macro_rules! policies {
    ($($(#[$doc:meta])* $type:ident = $name:literal, $yields:literal, $halts:literal, $marks:literal;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub enum $type {}

            impl Policy for $type {
                const YIELDS: u32 = $yields;
                const HALTS: bool = $halts;
                const MARKS: bool = $marks;
            }
        )*

        /// All policies.
        pub const ALL: &[Described] =
            &[$(Described { name: $name, yields: $yields, halts: $halts, marks: $marks }),*];

        /// Calls `$then! { Type = "name"; ... }` with all policies.
        #[macro_export]
        macro_rules! for_each_policy {
            ($then:ident) => { $then! { $($type = $name;)* } };
        }
    };
}

policies! {
    /// Spins, whatever it sees.
    SpinOnly = "spin-only", 0, false, true;
    /// Halts as soon as the owner is preempted.
    HaltOnly = "halt-only", 0, true, true;
    /// Yields once to a preempted owner, then halts.
    YieldOnce = "yield-1-halt", 1, true, true;
    /// Yields up to three times to a preempted owner, then halts.
    YieldThrice = "yield-3-halt", 3, true, true;
    /// Yields to a preempted owner, with growing gaps; never halts.
    YieldOnly = "yield-only", 3, false, true;
    /// [`SpinOnly`], never closing the lock to passers.
    SpinOnlyOpen = "spin-only-open", 0, false, false;
    /// [`HaltOnly`], never closing the lock to passers.
    HaltOnlyOpen = "halt-only-open", 0, true, false;
    /// [`YieldOnce`], never closing the lock to passers.
    YieldOnceOpen = "yield-1-halt-open", 1, true, false;
    /// [`YieldThrice`], never closing the lock to passers.
    YieldThriceOpen = "yield-3-halt-open", 3, true, false;
    /// [`YieldOnly`], never closing the lock to passers.
    YieldOnlyOpen = "yield-only-open", 3, false, false;
}
