//! What the kernel tells the library about CPUs: [`CpuId`], [`ApicId`], [`MAX_CPUS`] and the [`Cpu`] trait.

use core::fmt;
use core::num::{NonZeroU32, NonZeroU64};

use crate::hypervisor::Hypervisor;

/// How many CPUs the library has room for; CPU numbers are `0..MAX_CPUS`.
///
/// Chosen at build time: 512, or the value of the environment variable `PVLOCK_MAX_CPUS` (`1..=4096`) while
/// this crate is compiled. Each CPU costs 64 bytes of steal-time record and 320 bytes of queue nodes.
pub const MAX_CPUS: usize = match option_env!("PVLOCK_MAX_CPUS") {
    // Models have few threads, and every modelled atomic costs time in each of thousands of executions.
    _ if cfg!(pvlock_loom) => 4,
    None => 512,
    Some(text) => parse_max_cpus(text),
};

const fn parse_max_cpus(text: &str) -> usize {
    let digits = text.as_bytes();
    let mut value = 0usize;
    let mut i = 0;
    while i < digits.len() {
        assert!(digits[i].is_ascii_digit() && value <= 4096, "PVLOCK_MAX_CPUS must be a number from 1 to 4096");
        value = value * 10 + (digits[i] - b'0') as usize;
        i += 1;
    }
    assert!(value >= 1 && value <= 4096, "PVLOCK_MAX_CPUS must be a number from 1 to 4096");
    value
}

/// Number of one CPU of this guest, `0..MAX_CPUS`.
///
/// It is an index, not an APIC id: the two differ and neither is dense in every kernel ([`ApicId`]). A kernel
/// whose own numbers are sparse may use them here as long as they stay below [`MAX_CPUS`].
///
/// `Option<CpuId>` is as small as `CpuId`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
// INVARIANT: holds the index plus one, 1..=MAX_CPUS.
pub struct CpuId(NonZeroU32);

impl CpuId {
    /// The CPU with this index, or `None` when `index >= MAX_CPUS`.
    #[inline]
    pub const fn new(index: u32) -> Option<Self> {
        if (index as usize) < MAX_CPUS {
            // INVARIANT: index < MAX_CPUS, so index + 1 is 1..=MAX_CPUS and does not wrap.
            match NonZeroU32::new(index + 1) {
                Some(n) => Some(Self(n)),
                None => None,
            }
        } else {
            None
        }
    }

    /// The index, `0..MAX_CPUS`.
    #[inline]
    pub const fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    /// The index plus one: how the lock words write a CPU, with 0 for "none".
    #[inline]
    pub(crate) const fn plus_one(self) -> u16 {
        self.0.get() as u16
    }

    /// The inverse of [`Self::plus_one`]; 0 and anything above `MAX_CPUS` is `None`.
    #[inline]
    pub(crate) const fn from_plus_one(n: u16) -> Option<Self> {
        if n as usize > MAX_CPUS {
            return None;
        }
        match NonZeroU32::new(n as u32) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }
}

impl fmt::Debug for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuId({})", self.index())
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPU {}", self.index())
    }
}

/// Local APIC id of a CPU, as the hypercalls want it. May be sparse, and above 255 with x2APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApicId(pub u32);

/// What a kernel tells the locks about the CPU they run on. Implement it once, on a zero-sized type.
///
/// All methods are static so that a lock stays 8 bytes and `const`-constructible. They are called on lock slow
/// paths (and [`current`](Self::current) on the fast path): keep them inlinable, free of allocation and of locks.
///
/// The trait is safe to implement: a wrong answer can make a waiter wait for ever, but never lets two CPUs into
/// one critical section, since exclusion rests on one compare-exchange alone.
///
/// The interrupt methods default to the x86-64 instructions and need ring 0; override them all together where
/// that is wrong (user space, or a kernel with its own lazy masking).
pub trait Cpu: 'static {
    /// How this kernel reaches its hypervisor: [`Kvm`](crate::hypervisor::Kvm) in a guest,
    /// [`Native`](crate::hypervisor::Native) to compile all of it away.
    type Hypervisor: Hypervisor;

    /// The CPU that runs this code, or `None` while that is not known yet.
    ///
    /// Kernels take locks before their per-CPU data exists. A locker without a number takes the lock as "owner
    /// unknown" and waits without a queue node. If the caller may migrate, the answer is a hint; the locks
    /// stay correct.
    fn current() -> Option<CpuId>;

    /// Whether maskable interrupts are on.
    #[inline]
    fn irqs_enabled() -> bool {
        x86_64::instructions::interrupts::are_enabled()
    }

    /// Turns maskable interrupts off. Only called while they are on.
    #[inline]
    fn irqs_disable() {
        x86_64::instructions::interrupts::disable();
    }

    /// Turns maskable interrupts on. Only called where a matching [`irqs_disable`](Self::irqs_disable) turned them off.
    #[inline]
    fn irqs_enable() {
        x86_64::instructions::interrupts::enable();
    }

    /// Whether this code runs in an NMI or machine-check handler. There a waiter spins and never halts.
    #[inline]
    fn in_nmi() -> bool {
        false
    }

    /// Whether the kernel wants to run another task here. Optimistic spinners of sleeping locks give up then.
    #[inline]
    fn need_resched() -> bool {
        false
    }

    /// Called at least once per spin batch by every waiter, and before and after every halt.
    ///
    /// The place to answer requests that others wait for, such as TLB shootdowns: without it a lock holder that
    /// waits for this CPU's answer and this CPU, waiting for the lock with interrupts off, wait for each other.
    /// It must not take a lock that may be held by its callers.
    #[inline]
    fn relax() {}

    /// Whether a waiter that entered with interrupts off may halt.
    ///
    /// Say `false` where [`relax`](Self::relax) must keep running (its requests come by a maskable interrupt, which
    /// does not end such a halt): the waiter then yields and spins instead.
    #[inline]
    fn may_halt_with_irqs_off() -> bool {
        true
    }

    /// Called by a waiter that finds the lock owned by its own CPU under a guard that allows preemption: the owner is
    /// then a task that was descheduled here. A kernel may run another task.
    #[inline]
    fn relax_same_cpu() {}

    /// Forbids the kernel's scheduler to take this CPU away, nesting. Used by [`NoPreempt`](crate::guard::NoPreempt).
    #[inline]
    fn preempt_disable() {}

    /// Undoes one [`preempt_disable`](Self::preempt_disable).
    #[inline]
    fn preempt_enable() {}

    /// Number of the task that runs here, for the messages of debug builds about misuse; `None` where there is none or it is not known.
    #[inline]
    fn task() -> Option<NonZeroU64> {
        None
    }

    /// Whether the code that runs here may sleep: no spinlock is held, it is no interrupt handler, interrupts are on.
    ///
    /// A kernel that counts how often preemption was disabled looks at that count too. Sleeping locks ask it.
    #[inline]
    fn may_sleep() -> bool {
        Self::irqs_enabled()
    }
}
