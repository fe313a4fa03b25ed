//! `cargo xtask`: everything one does with this repository, one command each.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod agreement;
mod api;
mod backend;
mod bare;
mod bench;
mod boot;
mod cargo;
mod chart;
mod cmd;
mod cost;
mod features;
mod groups;
mod guide;
mod hal_client;
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
    Asm(cmd::asm::Args),
    Cost(cmd::cost::Args),
    Api(cmd::api::Args),
    Bench(cmd::bench::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    execute(cli.command).unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

fn execute(command: Command) -> Result<ExitCode> {
    process::kill_children_on_interrupt()?;
    process::end_with_reader_of_output()?;
    match command {
        Command::Demo(args) => Ok(if args.run()? { ExitCode::SUCCESS } else { ExitCode::from(INVALID) }),
        Command::Test(args) => Ok(if args.run()? { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        Command::Run(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Doctor(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Asm(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Cost(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Api(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Bench(args) => args.run(),
    }
}
