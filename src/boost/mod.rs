//! Help for waits that are not for one of our locks: the guest gives its time slice to a sibling that the host has preempted.
//!
//! | wait | whom it helps | here |
//! |---|---|---|
//! | a foreign spin loop with a relax hook (`spin::Mutex<T, Relax<C>>`) | any preempted CPU, in turn | [`Relax`] |
//! | a foreign spin loop that calls nothing | any preempted CPU, in turn | [`SpinDetector`], fed by the timer interrupt |
//! | a loop of the kernel's own that cannot name whom it waits for | any preempted CPU, in turn | [`boost_any`] |
//! | a deadlock check that counts rounds or time | nobody; it does not count what the host took away | [`SpinBudget`], [`TimeBudget`] |
//!
//! [`boost_any`] is what the first three end in. It makes no hypercall while nobody is preempted, none to a CPU that the kernel has
//! called idle ([`idle_begin`]), and none for a while after three in a row that did nothing ([`Boost::GivenUp`]).
//!
//! All of it is advice to the host. Nothing here waits, takes a lock, allocates, or is needed for anything to be correct.

mod budget;
mod busy_spin;
mod candidates;
mod idle;
mod relax;
mod tsc;

pub use budget::{Overdue, SpinBudget, TimeBudget};
pub use busy_spin::{SpinDetector, Verdict};
pub use candidates::{Boost, boost_any};
pub use idle::{idle_begin, idle_end, is_idle};
pub use relax::Relax;
