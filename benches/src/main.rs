//! The measuring program: one argument, the options as JSON; one line of JSON per event. `cargo xtask bench` starts it.

use std::io::{Write, stdout};
use std::process::ExitCode;

use pvlock_bench::{Error, plan, run};
use pvlock_bench_protocol::{Event, Options};

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), Error> {
    let argument = std::env::args().nth(1).ok_or("start `cargo xtask bench` instead: it starts this program")?;
    let options: Options =
        serde_json::from_str(&argument).map_err(|error| format!("the options cannot be read: {error}"))?;
    let blocks = plan(&options);
    if blocks.is_empty() {
        return Err("nothing of what was asked for can be measured: hand-offs need two CPUs, and not every kind measures every lock".into());
    }
    run(&options, &blocks, |event: Event| {
        let mut out = stdout().lock();
        serde_json::to_writer(&mut out, &event)?;
        writeln!(out)?;
        Ok(out.flush()?)
    })
}
