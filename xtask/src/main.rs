//! `cargo xtask`: everything one does with this repository, one command each.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod agreement;
mod backend;
mod boot;
mod cargo;
mod chart;
mod cmd;
mod features;
mod groups;
mod image;
mod line;
mod machine;
mod output;
mod overcommit;
mod process;
mod progress;
mod qemu;
mod report;
mod setup;
mod summary;

/// Exit code of a measurement that came to its end but proves nothing.
const INVALID: u8 = 3;

/// Build, run and test pvlock and its example guests.
///
/// Exit codes: 0 success, 1 failure, 2 wrong usage, 3 measured but not valid (the mechanism never fired),
/// 130 interrupted.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(cmd::demo::Args),
    Run(cmd::run::Args),
    Test(cmd::test::Args),
    Doctor(cmd::doctor::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = process::kill_children_on_interrupt().and_then(|()| match cli.command {
        Command::Demo(args) => args.run().map(|valid| if valid { ExitCode::SUCCESS } else { ExitCode::from(INVALID) }),
        Command::Run(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Test(args) => args.run().map(|passed| if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        Command::Doctor(args) => args.run().map(|()| ExitCode::SUCCESS),
    });
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
