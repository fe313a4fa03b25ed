//! The locks: their adapters, and on which host each is measured.

use core::marker::PhantomData;

use mcslock::raw::MutexNode;
use pvhost::locks::{Lock, Pvlock, PvlockMutex, PvlockRwLock, Spin, SpinRwLock, Ticket};
use pvhost::{Abilities, PvCpu};
use pvlock::SpinMutex;
use pvlock_bench_protocol::{LockName, Policy};
use pvlock_policies::Waits;

use crate::crew::Host;
use crate::harness::{Harness, Of};

/// Locks whose `lock` returns a guard.
macro_rules! guarded {
    ($($(#[$doc:meta])* $name:ident($mutex:ty) = $text:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name($mutex);

        impl Lock for $name {
            const NAME: &'static str = $text;

            #[inline]
            fn with<R>(&self, f: impl FnOnce() -> R) -> R {
                let _guard = self.0.lock();
                f()
            }
        }
    )*};
}

guarded! {
    /// `hermit_sync::TicketMutex`.
    Hermit(hermit_sync::TicketMutex<()>) = "hermit";
    /// `parking_lot::Mutex`.
    ParkingLot(parking_lot::Mutex<()>) = "parking_lot";
    /// `std::sync::Mutex`. Its guard comes in a `Result`, which is kept all the same; nobody panics in these sections.
    Std(std::sync::Mutex<()>) = "std";
}

pvhost::reader_writer! {
    /// `parking_lot::RwLock`.
    ParkingLotRwLock(parking_lot::RwLock<()>) = "parking_lot-rwlock";
    /// `std::sync::RwLock`.
    StdRwLock(std::sync::RwLock<()>) = "std-rwlock";
}

/// `mcslock::raw::spins::Mutex`, with the queue node on the stack.
#[derive(Debug, Default)]
pub struct Mcs(mcslock::raw::spins::Mutex<()>);

impl Lock for Mcs {
    const NAME: &'static str = "mcs";

    #[inline]
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        self.0.lock_with_then(&mut MutexNode::new(), |()| f())
    }
}

/// pvlock whose waiters wait as `P` says.
#[derive(Debug)]
pub struct Waiting<P: pvlock_policies::Policy>(SpinMutex<(), Waits<PvCpu, P>>);

impl<P: pvlock_policies::Policy> Default for Waiting<P> {
    fn default() -> Self {
        Self(SpinMutex::new(()))
    }
}

impl<P: pvlock_policies::Policy> Lock for Waiting<P> {
    const NAME: &'static str = "pvlock with a policy";

    #[inline]
    fn with<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.0.lock();
        f()
    }
}

/// The lock whose waiters wait by this policy.
pub(crate) fn policy(policy: Policy) -> &'static dyn Harness {
    macro_rules! harness_of {
        ($($type:ident = $name:literal;)*) => {
            match policy {
                $(Policy::$type => const { &Of::<Waiting<pvlock_policies::$type>>(PhantomData) },)*
            }
        };
    }
    pvlock_policies::for_each_policy!(harness_of)
}

/// A lock with the host it runs on.
pub(crate) struct Candidate {
    pub(crate) harness: &'static dyn Harness,
    pub(crate) host: Host,
}

/// The lock with this name. Every lock has one line here.
pub(crate) fn candidate(name: LockName) -> Candidate {
    let unaware = Abilities::HALT;
    match name {
        LockName::Pvlock => on_pvhost::<Pvlock>(Abilities::all()),
        LockName::PvlockNoHalt => on_pvhost::<Pvlock>(Abilities::PREEMPTED | Abilities::YIELD),
        LockName::PvlockUnaware => on_pvhost::<Pvlock>(unaware),
        LockName::PvlockPlain => on_pvhost::<Pvlock>(Abilities::empty()),
        LockName::Spin => on_pvhost::<Spin>(unaware),
        LockName::Ticket => on_pvhost::<Ticket>(unaware),
        LockName::Hermit => on_pvhost::<Hermit>(unaware),
        LockName::Mcs => on_pvhost::<Mcs>(unaware),
        LockName::SpinThreads => on_threads::<Spin>(),
        LockName::ParkingLot => on_threads::<ParkingLot>(),
        LockName::Std => on_threads::<Std>(),
        LockName::PvlockMutex => on_pvhost::<PvlockMutex>(Abilities::all()),
        LockName::PvlockRwLock => on_pvhost::<PvlockRwLock>(Abilities::all()),
        LockName::SpinRwLock => on_pvhost::<SpinRwLock>(unaware),
        LockName::ParkingLotRwLock => on_threads::<ParkingLotRwLock>(),
        LockName::StdRwLock => on_threads::<StdRwLock>(),
    }
}

fn on_pvhost<L: Lock>(abilities: Abilities) -> Candidate {
    Candidate { harness: const { &Of::<L>(PhantomData) }, host: Host::Pvhost(abilities) }
}

fn on_threads<L: Lock>() -> Candidate {
    Candidate { harness: const { &Of::<L>(PhantomData) }, host: Host::Threads }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_that_sleep_in_the_kernel_are_not_put_on_pvhost() {
        for &name in LockName::ALL {
            assert_eq!(matches!(candidate(name).host, Host::Threads), name.on_plain_threads(), "{name}");
        }
    }

    #[test]
    fn policies_have_the_same_names_everywhere() {
        let ours: Vec<&str> = Policy::ALL.iter().map(|policy| policy.name()).collect();
        let theirs: Vec<&str> = pvlock_policies::ALL.iter().map(|policy| policy.name).collect();
        assert_eq!(ours, theirs);
    }
}
