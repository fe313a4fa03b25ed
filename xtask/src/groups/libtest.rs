//! Groups that `cargo test` runs: the counts are libtest's.

use std::process::Command;

use anyhow::{Result, ensure};

use super::{Tally, Verdict, show};
use crate::cargo;

/// Unit tests, documentation tests and integration tests of all packages that run on this machine.
pub fn host(tally: &mut Tally) {
    let mut command = cargo::cargo();
    command.args(["test", "--no-fail-fast"]);
    cargo_test(tally, "host", command);
    let mut command = cargo::cargo();
    command.args(["test", "--no-fail-fast", "--package", LIBRARY, "--features", &FEATURES.join(",")]);
    cargo_test(tally, "host, all features", command);
    for set in 0..1 << FEATURES.len() {
        let features: Vec<&str> =
            FEATURES.into_iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, f)| f).collect();
        let features = features.join(",");
        let name = if features.is_empty() { "none" } else { &features };
        tally.verdict(&format!("features::{name}"), || builds_with(LIBRARY, &features));
    }
    // Without features they are built above.
    for (adapter, feature) in [("kspin", "smp"), ("hermit-sync", "all-one-shot")] {
        tally.verdict(&format!("features::{adapter}::{feature}"), || builds_with(adapter, feature));
    }
}

/// The library, and its features.
const LIBRARY: &str = "pvlock";
const FEATURES: [&str; 4] = ["lock-api-04", "lock-api-05", "spin", "stats"];

/// The package compiles without a warning with exactly these features.
fn builds_with(package: &str, features: &str) -> Result<Verdict> {
    let package = cargo::member(package)?;
    let names: Vec<&str> = features.split(',').filter(|name| !name.is_empty()).collect();
    if let Some(reason) = cargo::too_old_for(package, &names)? {
        return Ok(Verdict::Ignored(reason));
    }
    let mut command = cargo::cargo();
    command.args(["clippy", "--quiet", "--package", &package.id.repr, "--lib", "--no-default-features"]).args([
        "--features",
        features,
        "--",
        "-D",
        "warnings",
    ]);
    ensure!(show(command, |_| ())?, "it does not build, see above");
    Ok(Verdict::Passed)
}

/// Runs a `cargo test` and adds up what its test programs report. A call that fails without naming a failed test, such
/// as a build error, counts as one failed test called `name`.
pub fn cargo_test(tally: &mut Tally, name: &str, command: Command) {
    let mut counted = Tally::default();
    let result = show(command, |line| {
        if let Some(program) = counts(line) {
            counted.add(program);
        }
    });
    tally.add(counted);
    match result {
        Ok(true) if counted == Tally::default() => tally.test(name, || anyhow::bail!("no test ran")),
        Ok(false) if counted.failed == 0 => tally.test(name, || anyhow::bail!("cargo failed, see above")),
        Err(error) => tally.test(name, || Err(error)),
        Ok(_) => {}
    }
}

/// The counts in a line like `test result: ok. 3 passed; 0 failed; 0 ignored; ...`.
fn counts(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |what: &str| -> Option<u64> {
        counts.split("; ").find_map(|part| part.strip_suffix(what)?.trim().parse().ok())
    };
    Some(Tally { passed: count(" passed")?, failed: count(" failed")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtests_summary_is_read() {
        let line = "test result: FAILED. 12 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.04s";
        assert_eq!(counts(line), Some(Tally { passed: 12, failed: 1 }));
        assert_eq!(counts("test line::tests::known ... ok"), None);
    }

    #[test]
    fn a_command_that_fails_without_counts_is_one_failure() {
        let mut tally = Tally::default();
        cargo_test(&mut tally, "name", Command::new("false"));
        cargo_test(&mut tally, "name", Command::new("true"));
        assert_eq!(tally, Tally { passed: 0, failed: 2 });
        let mut command = Command::new("echo");
        command.arg("test result: ok. 5 passed; 0 failed; 0 ignored");
        cargo_test(&mut tally, "name", command);
        assert_eq!(tally, Tally { passed: 5, failed: 2 });
    }
}
