//! `cargo xtask`: everything one does with this repository, one command each.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod backend;
mod boot;
mod cargo;
mod cmd;
mod features;
mod image;
mod line;
mod machine;
mod output;
mod process;
mod progress;
mod qemu;
mod setup;
mod summary;

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
    Run(cmd::run::Args),
    Doctor(cmd::doctor::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = process::kill_children_on_interrupt().and_then(|()| match cli.command {
        Command::Run(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Doctor(args) => args.run().map(|()| ExitCode::SUCCESS),
    });
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
