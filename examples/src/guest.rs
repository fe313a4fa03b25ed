//! What all guests do alike: parameters first, the host's description, the totals, the end.

use core::fmt;

use pvlock::stats;
use pvlock_rt::{ExitCode, Quoted, command_line, println, sleep_ms};

use crate::host;
use crate::locks::LockName;
use crate::params::{ParamError, Params};

/// Why a guest fails.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The command line is wrong.
    Param(ParamError),
    /// Two vCPUs were in one critical section at once.
    WrongSum(LockName),
    /// The guest needs more vCPUs than it has.
    TooFewCpus(usize),
    /// Tasks were together in a section, or something was lost between them.
    WrongTasks(&'static str),
    /// A vCPU used a page that was no longer mapped.
    StaleTlb(u64),
    /// A vCPU got a wrong result out of SSE instructions.
    WrongSse,
    /// KVM refused a hypercall that it advertises.
    Hypercall,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Param(error) => error.fmt(f),
            Self::WrongSum(lock) => write!(f, "the lock '{lock}' let two vCPUs in at once: its counter is wrong"),
            Self::WrongTasks(what) => write!(f, "{what}: the sum is wrong"),
            Self::TooFewCpus(least) => write!(f, "this guest needs at least {least} vCPUs: start it with -smp {least}"),
            Self::StaleTlb(count) => {
                write!(f, "old TLB entries were used {count} times after a shootdown: a flush was lost")
            }
            Self::WrongSse => {
                f.write_str("SSE arithmetic gave a wrong result: the host does not run guests faithfully")
            }
            Self::Hypercall => f.write_str("a hypercall that the host advertises failed"),
        }
    }
}

impl core::error::Error for Failure {}

impl From<ParamError> for Failure {
    fn from(error: ParamError) -> Self {
        Self::Param(error)
    }
}

/// Runs a guest: `body` gets the parameters, of which it knows `keys`.
pub fn run(keys: &'static [&'static str], body: impl FnOnce(&Params) -> Result<(), Failure>) -> ExitCode {
    match checked(keys, body) {
        Ok(linger_ms) => {
            println!("end status=ok");
            // For a host that wants to read its counters while the guest is still there.
            sleep_ms(linger_ms);
            ExitCode::Success
        }
        Err(failure) => {
            println!("error message={}", Quoted(&failure));
            println!("end status=fail");
            ExitCode::Failure
        }
    }
}

fn checked(keys: &'static [&'static str], body: impl FnOnce(&Params) -> Result<(), Failure>) -> Result<u64, Failure> {
    let params = Params::parse(command_line(), keys)?;
    let linger_ms = params.number("linger_ms", 0, 0..=60_000)?;
    host::print();
    body(&params)?;
    print_totals();
    Ok(linger_ms)
}

/// All hypercalls and halts that the guest caused, for comparison with the host's own counters.
fn print_totals() {
    let sum = stats::total();
    println!(
        "total yields={} kicks={} halts={} fruitless={} rt_halts={} rt_kicks={}",
        sum.yields,
        sum.kicks,
        sum.halts,
        sum.fruitless_yields,
        pvlock_rt::halts(),
        pvlock_rt::runtime_kicks()
    );
}
