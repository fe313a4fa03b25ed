//! `cargo xtask bench` under wrong input: refused in a sentence, before anything is built or measured.

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin_cmd;

fn bench(arguments: &[&str]) -> Command {
    let mut command = cargo_bin_cmd!("xtask");
    command.arg("bench").args(arguments);
    command
}

/// The first line of what standard error says, after checking the exit code.
#[track_caller]
fn complaint(arguments: &[&str], code: i32) -> String {
    let output = bench(arguments).assert().code(code).get_output().clone();
    assert!(output.stdout.is_empty(), "something was measured");
    String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned()
}

#[track_caller]
fn refuses(arguments: &[&str], words: &str) {
    let sentence = complaint(arguments, 2);
    assert!(sentence.starts_with("error: ") && sentence.contains(words), "{sentence:?} does not say {words:?}");
}

#[track_caller]
fn fails(arguments: &[&str], words: &str) {
    let sentence = complaint(arguments, 1);
    assert!(sentence.starts_with("xtask: ") && sentence.contains(words), "{sentence:?} does not say {words:?}");
}

#[test]
fn unknown_locks_and_kinds() {
    refuses(&["--locks", "pvlock,padlock"], "invalid value 'padlock'");
    refuses(&["--only", "speed"], "invalid value 'speed'");
}

#[test]
fn numbers_that_make_no_sense() {
    refuses(&["--cpus", "0"], "0 is not in 1..=");
    refuses(&["--quantum-us", "0"], "0 is not in 20..=");
    refuses(&["--runs", "0"], "0 is not in 1..=");
    fails(&["--cpus", "1000"], "--cpus 1000 is more than the");
}

#[test]
fn places_where_no_report_can_be_written() {
    fails(&["--html", "/proc/bench.html"], "cannot write /proc/bench.html");
    fails(&["--json", "/nonexistent/bench.json"], "cannot write /nonexistent/bench.json");
}
