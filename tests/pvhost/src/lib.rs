//! A virtual machine's host in user space, to test and measure locks under real preemption at native speed.
//!
//! vCPUs are threads. The host lets as many of them run as it has physical CPUs, each bound to its CPU, and takes the CPU
//! away by signal, at any instruction. It keeps KVM's steal-time record for each, and serves directed yields, halts, kicks
//! and interrupts. Locks run on it unchanged, through [`PvCpu`] and [`PvHost`].
//!
//! There is no scheduler thread: whoever exits to the host (by a call, or by the tick of its own timer) decides under the
//! host's lock who is next, opens that vCPU's gate and waits at its own. So a switch costs about what a thread switch costs,
//! and nothing has to get CPU time before it can preempt a vCPU that uses it.
//!
//! ```
//! use core::time::Duration;
//! use pvhost::{Config, PvCpu};
//! use pvlock::Cpu;
//!
//! let report = pvhost::run(Config { quantum: Duration::from_millis(1), ..Config::new(4, 1) }, |cpu| {
//!     assert_eq!(PvCpu::current(), Some(cpu));
//! })?;
//! assert_eq!(report.vcpus.len(), 4);
//! # Ok::<(), Box<dyn core::error::Error + Send + Sync>>(())
//! ```

mod boost;
mod clock;
mod config;
pub mod contend;
mod counters;
mod exits;
mod guest;
mod host;
pub mod locks;
pub mod machine;
mod policy;
mod report;
mod run;
mod sched;
mod signal;
mod slice;
mod steal;
mod step;
mod vcpu;

pub use config::{Abilities, Config, ConfigError, MIN_QUANTUM, Slices, Torture};
pub use counters::Counts;
pub use guest::{
    PvCpu, PvHost, current, freeze_me, host_flushes, in_user_mode, interrupted_ip, pause_loop_exit, send_interrupt,
};
pub use policy::{
    BailOut, BusySpinDetector, Kick, Policies, PreemptedFlag, ReceiverBoost, TICKS_PER_SLICE, YieldCandidates,
};
pub use report::{Failure, Report, VcpuReport};
pub use run::{Running, run, start};
pub use sched::State;
pub use steal::StealRecord;
pub use step::{Step, Trap, step};
