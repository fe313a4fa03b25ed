//! Back ends: ways to run a guest on this machine, chosen by trying rather than by looking.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::process::Child;
use crate::qemu::Thread;
use crate::setup;

mod counters;
mod kvm;
mod nested;
mod tcg;

pub use counters::{KvmCounters, Sampler};

/// What `--accel` may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Accel {
    /// The first of the others, in their order, that works here.
    Auto,
    /// This machine's own KVM, if a small guest really runs under it.
    Kvm,
    /// An emulated machine with a Linux whose KVM runs the guest: real KVM code, emulated speed.
    Nested,
    /// Plain emulation: no KVM features, so only the locks' native paths.
    Tcg,
}

/// The back ends proper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Kvm,
    Nested,
    Tcg,
}

impl Kind {
    /// What its numbers mean, in one line.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Kvm => "this machine's KVM: real virtualisation, real time",
            Self::Nested => {
                "real KVM code inside an emulated machine: scheduling is KVM's, speeds are the emulator's (exits dear)"
            }
            Self::Tcg => "plain emulation without KVM: shows that the native paths work, says nothing about preemption",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Nested => "nested",
            Self::Tcg => "tcg",
        })
    }
}

/// One guest to run.
#[derive(Debug, Clone)]
pub struct Guest<'a> {
    pub image: &'a Path,
    pub vcpus: usize,
    /// Physical CPUs that the vCPUs share.
    pub cpus: usize,
    /// Appended to QEMU's `-cpu MODEL`.
    pub cpu_flags: &'a [String],
    pub command_line: String,
    /// How TCG runs; `None` takes the back end's own choice.
    pub thread: Option<Thread>,
    /// After this time the run is killed.
    pub limit: Duration,
    /// How long it may say nothing once it has said something; `None`: longer than its longest interval can be.
    pub silence: Option<Duration>,
}

/// A guest that has been started.
#[derive(Debug)]
pub struct Running {
    pub child: Child,
    /// Collects KVM's counters; `None` where the first-level machine does it or there is no KVM.
    pub sampler: Option<Sampler>,
    /// Whether the child is a first-level machine that reports the guest's end in a line of its own.
    pub first_level: bool,
    /// A file the child may still have to read.
    pub file: Option<File>,
}

/// A back end that is ready to run guests.
#[derive(Debug)]
pub struct Backend {
    pub kind: Kind,
    /// Why it was taken, and why others were not: one sentence each.
    pub reasons: Vec<String>,
    nested: Option<nested::System>,
}

impl Backend {
    /// Finds or checks the back end that `accel` asks for; installs what it needs.
    pub fn choose(accel: Accel) -> Result<Self> {
        setup::ensure_qemu()?;
        match accel {
            Accel::Kvm => {
                let fact = kvm::probe().context("the kvm back end does not work here")?;
                Ok(Self { kind: Kind::Kvm, reasons: vec![fact], nested: None })
            }
            Accel::Nested => {
                let system = nested::System::prepare().context("the nested back end does not work here")?;
                Ok(Self { kind: Kind::Nested, reasons: vec![], nested: Some(system) })
            }
            Accel::Tcg => Ok(Self { kind: Kind::Tcg, reasons: vec![], nested: None }),
            Accel::Auto => Ok(Self::first_that_works()),
        }
    }

    fn first_that_works() -> Self {
        let mut reasons = Vec::new();
        match kvm::probe() {
            Ok(fact) => return Self { kind: Kind::Kvm, reasons: vec![fact], nested: None },
            Err(error) => reasons.push(format!("kvm is out: {error:#}")),
        }
        match nested::System::prepare() {
            Ok(system) => {
                reasons.push("nested works anywhere: it needs no virtualisation hardware".to_owned());
                Self { kind: Kind::Nested, reasons, nested: Some(system) }
            }
            Err(error) => {
                reasons.push(format!("nested is out: {error:#}"));
                reasons.push("tcg is what remains".to_owned());
                Self { kind: Kind::Tcg, reasons, nested: None }
            }
        }
    }

    /// A CPU flag worth a second attempt after QEMU refused to start with `complaint`.
    pub fn remedy(&self, complaint: &str) -> Option<&'static str> {
        if self.kind == Kind::Kvm { kvm::remedy(complaint) } else { None }
    }

    /// Starts `guest`.
    pub fn start(&self, guest: &Guest) -> Result<Running> {
        match (&self.nested, self.kind) {
            (Some(system), _) => system.start(guest),
            (None, Kind::Kvm) => kvm::start(guest),
            (None, _) => tcg::start(guest),
        }
    }
}
