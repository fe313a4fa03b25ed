//! Whom a sample is about: a lock, a physical limit, or a form of `vcpu_is_preempted`.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::seed::SeedCase;

names! {
    /// A lock that is measured.
    LockName {
        /// pvlock with all that the host offers.
        Pvlock = "pvlock",
        /// pvlock where waiters never halt, so that unlocking is a plain store.
        PvlockNoHalt = "pvlock-no-halt",
        /// pvlock that is not told who is preempted, and so never yields.
        PvlockUnaware = "pvlock-unaware",
        /// pvlock without any of it: a queue that may be passed.
        PvlockPlain = "pvlock-plain",
        /// `spin::mutex::SpinMutex`: test and test-and-set.
        Spin = "spin",
        /// `spin::mutex::TicketMutex`: first come, first served.
        Ticket = "ticket",
        /// `hermit_sync::TicketMutex`: a ticket lock with back-off.
        Hermit = "hermit",
        /// `mcslock::raw::spins::Mutex`: a queue lock.
        Mcs = "mcs",
        /// `spin::mutex::SpinMutex` by plain threads of this machine's scheduler, to compare hosts by.
        SpinThreads = "spin-threads",
        /// `parking_lot::Mutex`, sleeping in the kernel; by plain threads.
        ParkingLot = "parking_lot",
        /// `std::sync::Mutex`, sleeping in the kernel; by plain threads.
        Std = "std",
        /// pvlock's sleeping mutex, whose vCPUs sleep by halting.
        PvlockMutex = "pvlock-mutex",
        /// pvlock's reader-writer lock.
        PvlockRwLock = "pvlock-rwlock",
        /// `spin::RwLock`.
        SpinRwLock = "spin-rwlock",
        /// `parking_lot::RwLock`; by plain threads.
        ParkingLotRwLock = "parking_lot-rwlock",
        /// `std::sync::RwLock`; by plain threads.
        StdRwLock = "std-rwlock",
    }
}

/// The spinlock and what it is compared with.
pub const SPINLOCKS: [LockName; 11] = [
    LockName::Pvlock,
    LockName::PvlockNoHalt,
    LockName::PvlockUnaware,
    LockName::PvlockPlain,
    LockName::Spin,
    LockName::Ticket,
    LockName::Hermit,
    LockName::Mcs,
    LockName::SpinThreads,
    LockName::ParkingLot,
    LockName::Std,
];

/// The sleeping mutex and what it is compared with.
pub const MUTEXES: [LockName; 3] = [LockName::PvlockMutex, LockName::ParkingLot, LockName::Std];

/// The reader-writer lock and what it is compared with.
pub const RWLOCKS: [LockName; 4] =
    [LockName::PvlockRwLock, LockName::SpinRwLock, LockName::ParkingLotRwLock, LockName::StdRwLock];

impl LockName {
    /// Whether it is pvlock, in whatever variant.
    pub const fn is_ours(self) -> bool {
        matches!(
            self,
            Self::Pvlock
                | Self::PvlockNoHalt
                | Self::PvlockUnaware
                | Self::PvlockPlain
                | Self::PvlockMutex
                | Self::PvlockRwLock
        )
    }

    /// Whether its contenders are threads of this machine's scheduler. A lock that sleeps in the kernel would keep a vCPU's
    /// CPU idle on pvhost, which cannot know that the vCPU's thread sleeps.
    pub const fn on_plain_threads(self) -> bool {
        matches!(self, Self::SpinThreads | Self::ParkingLot | Self::Std | Self::ParkingLotRwLock | Self::StdRwLock)
    }
}

names! {
    /// What the processor allows at best, measured in the same run.
    Limit {
        /// The least that taking and releasing a lock can be.
        CmpxchgStore = "cmpxchg+store",
        /// The least where releasing must be one atomic instruction too.
        TwoCmpxchg = "two cmpxchg",
        /// A cache line on its way from one CPU to another.
        LineTransfer = "line transfer",
    }
}

names! {
    /// A form of "is this vCPU preempted?".
    Form {
        /// The library's assembly routine, called.
        Routine = "routine",
        /// The library's inline form.
        Inline = "inline",
        /// A routine that first loads the base of the CPU's own data: two loads, the second waiting for the first.
        TwoLoads = "two loads",
        /// A C function that the compiler calls, saving for itself what it still needs.
        CFunction = "C function",
        /// The C function behind a thunk that saves and restores eight registers.
        Thunk = "C function, thunk",
    }
}

names! {
    /// A way to wait, by its name in the crate `pvlock-policies`.
    Policy {
        /// Spins, whatever it sees.
        SpinOnly = "spin-only",
        /// Halts as soon as the owner is preempted.
        HaltOnly = "halt-only",
        /// Yields once to a preempted owner, then halts: what is shipped.
        YieldOnce = "yield-1-halt",
        /// Yields up to three times, then halts.
        YieldThrice = "yield-3-halt",
        /// Yields, with growing gaps; never halts.
        YieldOnly = "yield-only",
        /// As above, never closing the lock to passers.
        SpinOnlyOpen = "spin-only-open",
        /// As above, never closing the lock to passers.
        HaltOnlyOpen = "halt-only-open",
        /// As above, never closing the lock to passers.
        YieldOnceOpen = "yield-1-halt-open",
        /// As above, never closing the lock to passers.
        YieldThriceOpen = "yield-3-halt-open",
        /// As above, never closing the lock to passers.
        YieldOnlyOpen = "yield-only-open",
    }
}

/// Whom a sample is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Subject {
    /// A lock.
    Lock(LockName),
    /// A physical limit.
    Limit(Limit),
    /// A form of `vcpu_is_preempted`.
    Form(Form),
    /// A way to wait.
    Policy(Policy),
    /// A mechanism of one of the five systems, off or on.
    Seed(SeedCase),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(lock) => lock.fmt(f),
            Self::Limit(limit) => limit.fmt(f),
            Self::Form(form) => form.fmt(f),
            Self::Policy(policy) => policy.fmt(f),
            Self::Seed(case) => case.fmt(f),
        }
    }
}

impl From<LockName> for Subject {
    fn from(lock: LockName) -> Self {
        Self::Lock(lock)
    }
}

impl From<Limit> for Subject {
    fn from(limit: Limit) -> Self {
        Self::Limit(limit)
    }
}

impl From<Form> for Subject {
    fn from(form: Form) -> Self {
        Self::Form(form)
    }
}

impl From<Policy> for Subject {
    fn from(policy: Policy) -> Self {
        Self::Policy(policy)
    }
}

impl From<SeedCase> for Subject {
    fn from(case: SeedCase) -> Self {
        Self::Seed(case)
    }
}
