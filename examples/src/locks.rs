//! The locks that are compared: one trait, and who implements it.

use core::fmt;
use core::ops::DerefMut;

use pvlock::hypervisor::Native;
use pvlock::{Cpu, CpuId, NoGuard};
use pvlock_policies::{Policy, Waits};
use pvlock_rt::RtCpu;

use crate::contention::Section;

/// A lock around a [`Section`].
pub trait Lock: Sync {
    /// Access to the section while the lock is held.
    type Guard<'a>: DerefMut<Target = Section>
    where
        Self: 'a;

    /// An unlocked lock.
    fn new(section: Section) -> Self;
    /// Takes the lock, waiting as long as it takes.
    fn lock(&self) -> Self::Guard<'_>;
    /// Takes the lock if it is free.
    fn try_lock(&self) -> Option<Self::Guard<'_>>;
}

/// Forwards to the inherent methods, which all of these locks call alike.
macro_rules! implement_lock {
    ($($lock:ty => $guard:ty;)*) => {$(
        impl Lock for $lock {
            type Guard<'a> = $guard;
            #[inline(always)]
            fn new(section: Section) -> Self {
                <$lock>::new(section)
            }
            #[inline(always)]
            fn lock(&self) -> Self::Guard<'_> {
                <$lock>::lock(self)
            }
            #[inline(always)]
            fn try_lock(&self) -> Option<Self::Guard<'_>> {
                <$lock>::try_lock(self)
            }
        }
    )*};
}

implement_lock! {
    pvlock::SpinMutex<Section, RtCpu> => pvlock::SpinMutexGuard<'a, Section, RtCpu, NoGuard>;
    pvlock::SpinMutex<Section, UnawareCpu> => pvlock::SpinMutexGuard<'a, Section, UnawareCpu, NoGuard>;
    spin::mutex::SpinMutex<Section> => spin::mutex::SpinMutexGuard<'a, Section>;
    spin::mutex::SpinMutex<Section, pvlock::Relax<RtCpu>> => spin::mutex::SpinMutexGuard<'a, Section, pvlock::Relax<RtCpu>>;
    spin::mutex::SpinMutex<Section, NoPause> => spin::mutex::SpinMutexGuard<'a, Section, NoPause>;
    spin::mutex::TicketMutex<Section> => spin::mutex::TicketMutexGuard<'a, Section>;
    hermit_sync::TicketMutex<Section> => hermit_sync::TicketMutexGuard<'a, Section>;
}

impl<P: Policy> Lock for pvlock::SpinMutex<Section, Waits<RtCpu, P>> {
    type Guard<'a> = pvlock::SpinMutexGuard<'a, Section, Waits<RtCpu, P>, NoGuard>;

    #[inline(always)]
    fn new(section: Section) -> Self {
        Self::new(section)
    }

    #[inline(always)]
    fn lock(&self) -> Self::Guard<'_> {
        self.lock()
    }

    #[inline(always)]
    fn try_lock(&self) -> Option<Self::Guard<'_>> {
        self.try_lock()
    }
}

/// [`RtCpu`] without its hypervisor: pvlock's queue alone, for comparison.
#[derive(Debug)]
pub enum UnawareCpu {}

impl Cpu for UnawareCpu {
    type Hypervisor = Native;

    #[inline(always)]
    fn current() -> Option<CpuId> {
        RtCpu::current()
    }
}

/// A spin loop without a pause, as old code has it: no processor and no host notices that it waits.
#[derive(Debug)]
pub struct NoPause;

impl spin::RelaxStrategy for NoPause {
    #[inline(always)]
    fn relax() {}
}

/// A lock by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockName {
    /// `pvlock::SpinMutex`.
    Pvlock,
    /// `spin::mutex::SpinMutex`: test-and-set.
    Spin,
    /// The same that boosts somebody when it waits for long, by `pvlock::Relax`.
    SpinRelax,
    /// The same that does not even pause.
    SpinNoPause,
    /// `spin::mutex::TicketMutex`: first come, first served.
    Ticket,
    /// `hermit_sync::TicketMutex`: a ticket lock with back-off.
    Hermit,
    /// pvlock whose waiters wait in the way with this name.
    Waits(&'static str),
}

impl LockName {
    /// Those that are compared unless others are asked for, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Pvlock, Self::Spin, Self::Ticket, Self::Hermit];

    /// Those that are compared when they are asked for.
    const FOREIGN: [Self; 2] = [Self::SpinRelax, Self::SpinNoPause];

    /// The lock with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let policy = || pvlock_policies::ALL.iter().find(|policy| policy.name == name);
        Self::ALL
            .into_iter()
            .chain(Self::FOREIGN)
            .find(|lock| lock.name() == name)
            .or_else(|| policy().map(|policy| Self::Waits(policy.name)))
    }

    /// Whether it is pvlock or uses it, so that events are counted.
    pub const fn is_ours(self) -> bool {
        matches!(self, Self::Pvlock | Self::SpinRelax | Self::Waits(_))
    }

    /// Its name on command lines and in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pvlock => "pvlock",
            Self::Spin => "spin",
            Self::SpinRelax => "spin-relax",
            Self::SpinNoPause => "spin-no-pause",
            Self::Ticket => "ticket",
            Self::Hermit => "hermit",
            Self::Waits(policy) => policy,
        }
    }

    /// Does `work` with the type that the name stands for.
    pub fn with<W: WithLock>(self, awareness: Awareness, work: W) -> W::Output {
        match (self, awareness) {
            (Self::Pvlock, Awareness::On) => work.run::<pvlock::SpinMutex<Section, RtCpu>>(),
            (Self::Pvlock, Awareness::Off) => work.run::<pvlock::SpinMutex<Section, UnawareCpu>>(),
            (Self::Spin, _) => work.run::<spin::mutex::SpinMutex<Section>>(),
            (Self::SpinRelax, _) => work.run::<spin::mutex::SpinMutex<Section, pvlock::Relax<RtCpu>>>(),
            (Self::SpinNoPause, _) => work.run::<spin::mutex::SpinMutex<Section, NoPause>>(),
            (Self::Ticket, _) => work.run::<spin::mutex::TicketMutex<Section>>(),
            (Self::Hermit, _) => work.run::<hermit_sync::TicketMutex<Section>>(),
            (Self::Waits(policy), _) => with_policy(policy, work),
        }
    }
}

/// Does `work` with pvlock whose waiters wait as `policy` says.
fn with_policy<W: WithLock>(policy: &str, work: W) -> W::Output {
    macro_rules! run {
        ($($type:ident = $name:literal;)*) => {
            match policy {
                $($name => work.run::<pvlock::SpinMutex<Section, Waits<RtCpu, pvlock_policies::$type>>>(),)*
                _ => work.run::<pvlock::SpinMutex<Section, RtCpu>>(),
            }
        };
    }
    pvlock_policies::for_each_policy!(run)
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether pvlock asks the hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awareness {
    /// It does: the normal case.
    On,
    /// It only queues and spins.
    Off,
}

/// Something to do with a lock of any type.
pub trait WithLock {
    /// What comes of it.
    type Output;
    /// Does it.
    fn run<L: Lock>(self) -> Self::Output;
}
