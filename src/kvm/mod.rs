//! The KVM interface of a guest: what the host offers, the steal-time records, the hypercalls. Nothing about locks.
//!
//! Set-up is one call per CPU, [`register_this_cpu`], as soon as the CPU has a number; it needs no heap and no lock. The
//! first call, on the boot CPU before a second CPU runs, also decides once and for all which of the host's abilities are
//! used ([`Decisions`]).

mod decide;
mod detect;
pub mod hypercall;
mod msr;
mod register;
mod setup;
mod steal_clock;
mod steal_time;
mod table;

pub use decide::{Decision, Decisions, Reason};
pub use detect::{Detected, Features, Hints, Vendor, detect};
pub use hypercall::{HypercallError, HypercallFn};
pub use msr::MSR_KVM_STEAL_TIME;
pub use register::{NotRegistered, RegisterError, apic_id, register_this_cpu, registered, unregister_this_cpu};
pub use setup::{ConfigureError, Options};
pub use steal_clock::{StealClock, StealError, steal_ns, version};
pub use steal_time::{StealTime, ask_for_flush};
pub use table::{record_address, record_region};

pub(crate) use decide::decide;
pub(crate) use register::{CPUS, Cpus};
pub(crate) use setup::{SETUP, Setup};
pub(crate) use steal_time::PREEMPTED;
pub(crate) use table::{TABLE, TABLE_SHIFT, mark_flush, preempted_byte};
