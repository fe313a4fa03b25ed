//! Arguments that several commands have, with their checks.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, builder::RangedU64ValueParser};

use crate::backend::{Accel, Backend, Kind};
use crate::machine;
use crate::qemu::Thread;

/// More than any machine has; what a back end can really use is checked when it is known.
const MOST_CPUS: u64 = 1024;

/// The most CPUs that the nested back end makes up.
const MOST_NESTED_CPUS: usize = 8;

/// Where and how guests run.
#[derive(Debug, Args)]
pub struct Machine {
    /// Physical CPUs that the vCPUs share.
    #[arg(long, default_value_t = 2, value_parser = RangedU64ValueParser::<usize>::new().range(1..=MOST_CPUS))]
    pub cpus: usize,

    /// Back end that runs the guests.
    #[arg(long, value_enum, default_value_t = Accel::Auto)]
    pub accel: Accel,

    /// How emulated CPUs are spread over threads [default: single for nested, multi for tcg].
    #[arg(long, value_enum)]
    pub thread: Option<Thread>,

    /// CPU flags for the guest's QEMU, such as -kvm-steal-time or kvm-hint-dedicated=on; may be repeated.
    #[arg(long = "cpu", value_name = "FLAGS", allow_hyphen_values = true, value_parser = cpu_flags)]
    pub cpu_flags: Vec<String>,
}

fn cpu_flags(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err("CPU flags are words joined by commas, without spaces".to_owned());
    }
    Ok(text.trim_matches(',').to_owned())
}

impl Machine {
    /// Refuses what no installed package can make right, so that nothing is installed or built for it.
    pub fn check(&self) -> Result<()> {
        match self.accel {
            Accel::Kvm | Accel::Tcg => machine::first_cpus(self.cpus).map(drop),
            Accel::Nested => self.check_nested_cpus(),
            Accel::Auto => machine::first_cpus(self.cpus).map(drop).or_else(|_| self.check_nested_cpus()),
        }
    }

    /// Finds the back end and says which it is and why.
    pub fn backend(&self) -> Result<Backend> {
        let backend = Backend::choose(self.accel)?;
        for reason in &backend.reasons {
            eprintln!("{reason}");
        }
        self.check_cpus(backend.kind)?;
        eprintln!("back end {}: {}", backend.kind, backend.kind.meaning());
        Ok(backend)
    }

    fn check_cpus(&self, kind: Kind) -> Result<()> {
        let here = machine::cpu_count()?;
        if kind != Kind::Nested {
            return machine::first_cpus(self.cpus).map(drop);
        }
        self.check_nested_cpus()?;
        if self.cpus > here {
            eprintln!("--cpus {} is more than the {here} CPUs of this machine: they are emulated in turn", self.cpus);
        }
        Ok(())
    }

    fn check_nested_cpus(&self) -> Result<()> {
        anyhow::ensure!(
            self.cpus <= MOST_NESTED_CPUS,
            "--cpus {} is more than the nested back end's {MOST_NESTED_CPUS}",
            self.cpus
        );
        Ok(())
    }
}

/// Reads the number of vCPUs; the library has room for `MAX_CPUS`.
pub fn vcpus() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=pvlock::MAX_CPUS as u64)
}

/// Reads a time limit in whole seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err("a time limit is a number of seconds from 1 to 86400".to_owned()),
    }
}
