//! Help for waits that are not for one of our locks: the guest gives its time slice to a sibling that the host has preempted, or does not
//! wait for it at all.
//!
//! | wait | whom it helps | here |
//! |---|---|---|
//! | a foreign spin loop with a relax hook (`spin::Mutex<T, Relax<C>>`) | any preempted CPU, in turn | [`Relax`] |
//! | a foreign spin loop that calls nothing | any preempted CPU, in turn | [`SpinDetector`], fed by the timer interrupt |
//! | a loop of the kernel's own that cannot name whom it waits for | any preempted CPU, in turn | [`boost_any`] |
//! | answers of other CPUs to an interrupt | those that are preempted and have not answered, in turn | [`wait_acks`] |
//! | other CPUs' TLB flushes | preempted CPUs are not waited for: the host flushes them | [`Shootdown`] |
//! | a deadlock check that counts rounds or time | nobody; it does not count what the host took away | [`SpinBudget`], [`TimeBudget`] |
//!
//! [`boost_any`] is what the first three end in. It makes no hypercall while nobody is preempted, none to a CPU that the kernel has
//! called idle ([`idle_begin`]), and none for a while after three in a row that did nothing ([`Boost::GivenUp`]).
//!
//! [`wait_acks`] does the same for the CPUs that it waits for; [`send_ipis`] is the way to send them their interrupt.
//!
//! Boosts are advice to the host: nothing needs them to be correct. Only [`wait_acks`] and [`Shootdown`] wait, for others as their callers
//! would; nothing here takes a lock or allocates.

mod acks;
mod budget;
mod busy_spin;
mod candidates;
mod cpu_set;
mod idle;
mod ipi;
mod relax;
mod shootdown;
mod tsc;

pub use acks::{SlowTarget, wait_acks, wait_acks_reporting};
pub use budget::{Overdue, SpinBudget, TimeBudget};
pub use busy_spin::{SpinDetector, Verdict};
pub use candidates::{Boost, boost_any};
pub use cpu_set::{CpuSet, Iter};
pub use idle::{idle_begin, idle_end, is_idle};
pub use ipi::send_ipis;
pub use relax::Relax;
pub use shootdown::{Flushed, Shootdown};
