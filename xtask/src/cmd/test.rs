//! `cargo xtask test`: all tests there are, in groups.

use anyhow::Result;
use clap::{Args as ClapArgs, ValueEnum};

use crate::groups::{self, Tally};

/// A group of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// Unit, property, disassembly, torture and command-line tests, on this machine.
    Host,
    /// Models of the lock protocols, every interleaving.
    Loom,
    /// The library built for x86_64-unknown-none, and what its locks cost there.
    None,
    /// The package as it is published, the adapters in the place of the crates whose names they have, the public API.
    Package,
    /// Licences, sources and versions of all dependencies, and the oldest Rust that builds the packages.
    Supply,
    /// Guests under plain emulation.
    Tcg,
    /// Guests under real KVM in an emulated machine.
    Nested,
}

/// Run all tests, or some groups of them.
///
/// The last line is `N passed, N failed`, over everything that ran.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Run only these groups; may be repeated.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Group>,
}

impl Args {
    /// Whether every test passed.
    pub fn run(self) -> Result<bool> {
        let mut total = Tally::default();
        for &group in Group::value_variants() {
            if !self.only.is_empty() && !self.only.contains(&group) {
                continue;
            }
            println!("\n== {group:?}");
            let mut tally = Tally::default();
            match group {
                Group::Host => groups::host(&mut tally),
                Group::Loom => groups::loom::run(&mut tally),
                Group::None => groups::none::run(&mut tally),
                Group::Package => groups::package::run(&mut tally),
                Group::Supply => groups::supply::run(&mut tally),
                Group::Tcg => groups::tcg::run(&mut tally),
                Group::Nested => groups::nested::run(&mut tally),
            }
            println!("== {group:?}: {} passed, {} failed", tally.passed, tally.failed);
            total.add(tally);
        }
        println!("\n{} passed, {} failed", total.passed, total.failed);
        Ok(total.failed == 0)
    }
}
