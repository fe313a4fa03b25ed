//! Groups of tests, and the account of what passed.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::process::{Child, Event};

pub mod guests;
pub mod guide;
pub mod loom;
pub mod nested;
pub mod none;
pub mod package;
pub mod supply;
pub mod tcg;

mod libtest;

pub use libtest::host;

/// For one cargo call: a cold build of everything included.
const LIMIT: Duration = Duration::from_secs(1200);

/// What a test that did not fail says.
pub enum Verdict {
    Passed,
    /// It cannot be run here, for this reason.
    Ignored(String),
}

/// How many tests passed and failed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
}

impl Tally {
    /// Runs one test of our own and prints its line as libtest does.
    pub fn test(&mut self, name: &str, test: impl FnOnce() -> Result<()>) {
        self.verdict(name, || test().map(|()| Verdict::Passed));
    }

    /// As [`test`](Self::test), for one that some machines cannot run: it then counts for nothing.
    pub fn verdict(&mut self, name: &str, test: impl FnOnce() -> Result<Verdict>) {
        let verdict = match test() {
            Ok(Verdict::Passed) => {
                self.passed += 1;
                "ok".to_owned()
            }
            Ok(Verdict::Ignored(reason)) => format!("ignored, {reason}"),
            Err(error) => {
                self.failed += 1;
                format!("FAILED ({error:#})")
            }
        };
        println!("test {name} ... {verdict}");
    }

    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// Runs `command` with its output shown, handing each line to `on_line`; whether it succeeded.
fn show(command: Command, mut on_line: impl FnMut(&str)) -> Result<bool> {
    let deadline = Instant::now() + LIMIT;
    let mut child = Child::spawn(command, None)?;
    loop {
        match child.next(deadline) {
            Event::Line(line) => {
                println!("{}", line.text);
                on_line(&line.text);
            }
            Event::Complaint(text) => eprintln!("{text}"),
            Event::Closed => break,
            Event::Deadline => bail!("it did not end within {} s", LIMIT.as_secs()),
        }
    }
    let status = child.wait(deadline)?;
    Ok(status.is_some_and(|status| status.success()))
}
