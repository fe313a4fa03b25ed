//! The command line under wrong input: one sentence on standard error, and the exit code that `--help` promises.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use assert_cmd::Command;
use assert_cmd::cargo::{cargo_bin, cargo_bin_cmd};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

const FAILURE: i32 = 1;
const USAGE: i32 = 2;
const INTERRUPTED: i32 = 130;

fn xtask(arguments: &[&str]) -> Command {
    let mut command = cargo_bin_cmd!("xtask");
    command.args(arguments);
    command
}

/// What standard error says, after checking the exit code.
fn complaint(mut command: Command, code: i32) -> String {
    let output = command.assert().code(code).get_output().clone();
    assert!(output.stdout.is_empty(), "nothing was done, yet it prints {:?}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).expect("UTF-8")
}

/// A failure is a single line that begins with our name and contains `words`.
fn fails_with(command: Command, words: &str) {
    let said = complaint(command, FAILURE);
    assert!(said.starts_with("xtask: ") && said.trim_end().lines().count() == 1, "not one sentence: {said:?}");
    assert!(said.contains(words), "{said:?} does not say {words:?}");
}

/// clap explains wrong usage; its first line is the sentence.
fn refuses(arguments: &[&str], words: &str) {
    let said = complaint(xtask(arguments), USAGE);
    let sentence = said.lines().next().unwrap_or_default();
    assert!(sentence.starts_with("error: ") && sentence.contains(words), "{sentence:?} does not say {words:?}");
}

#[test]
fn numbers_of_cpus_out_of_range() {
    refuses(&["run", "probe", "--vcpus", "0"], "0 is not in 1..=");
    let too_many = (pvlock::MAX_CPUS + 1).to_string();
    refuses(&["run", "probe", "--vcpus", &too_many], &format!("1..={}", pvlock::MAX_CPUS));
    refuses(&["run", "probe", "--cpus", "0"], "0 is not in 1..=");
    refuses(&["run", "probe", "--vcpus", "many"], "invalid value 'many'");
    fails_with(xtask(&["run", "probe", "--accel", "tcg", "--cpus", "1000"]), "is more than the");
    fails_with(xtask(&["demo", "--cpus", "1000"]), "vCPUs, more than");
}

#[test]
fn unknown_names() {
    fails_with(xtask(&["run", "nonesuch"]), "there is no example `nonesuch`: choose one of");
    refuses(&["run", "probe", "--accel", "xen"], "invalid value 'xen'");
    refuses(&["test", "--only", "moon"], "invalid value 'moon'");
    refuses(&["frobnicate"], "unrecognized subcommand 'frobnicate'");
}

#[test]
fn parameters_and_limits_of_the_wrong_form() {
    refuses(&["run", "probe", "--", "locks"], "words of the form key=value");
    refuses(&["run", "probe", "--", "locks=a b"], "words of the form key=value");
    refuses(&["run", "probe", "--timeout", "0"], "a number of seconds from 1");
    refuses(&["run", "probe", "--cpu", "a b"], "without spaces");
    refuses(&["demo", "--runs", "0"], "0 is not in 1..=");
    refuses(&["cost", "--runs", "1"], "1 is not in 2..=");
}

#[test]
fn result_files_are_checked_before_anything_long() {
    let absent = "/nonexistent-folder/result.json";
    fails_with(xtask(&["run", "probe", "--json", absent]), absent);
    fails_with(xtask(&["demo", "--json", absent]), absent);
    fails_with(xtask(&["cost", "--json", absent]), absent);
    fails_with(xtask(&["demo", "--svg", "/"]), "it is a folder");
}

#[test]
fn no_qemu_and_no_way_to_get_it() {
    let empty = tempfile::tempdir().unwrap();
    for arguments in [["run", "probe"].as_slice(), &["demo"]] {
        let mut command = xtask(arguments);
        command.env("PATH", empty.path());
        fails_with(command, "qemu-system-x86_64 is not installed: there is no apt-get");
    }
}

#[test]
fn what_no_package_can_mend_is_said_before_any_is_installed() {
    let empty = tempfile::tempdir().unwrap();
    for (arguments, words) in [
        (["run", "probe", "--accel", "tcg", "--cpus", "1000"].as_slice(), "only the nested back end can make up more"),
        (&["run", "probe", "--accel", "nested", "--cpus", "100"], "more than the nested back end's"),
        (&["demo", "--accel", "kvm", "--cpus", "100"], "only the nested back end can make up more"),
    ] {
        let mut command = xtask(arguments);
        command.env("PATH", empty.path());
        fails_with(command, words);
    }
}

/// A folder with a program that passes for QEMU, and a `PATH` on which it comes first.
fn fake_qemu(script: &str) -> (TempDir, OsString) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("qemu-system-x86_64");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let mut path = OsString::from(folder.path());
    path.push(":");
    path.push(env::var_os("PATH").unwrap());
    (folder, path)
}

#[test]
fn a_qemu_that_refuses_is_quoted() {
    let (_folder, path) = fake_qemu("echo 'qemu-system-x86_64: -accel tcg: no luck today' >&2; exit 1");
    let mut command = xtask(&["run", "probe", "--accel", "tcg"]);
    command.env("PATH", path);
    let said = complaint(command, FAILURE);
    let last = said.lines().last().unwrap_or_default();
    assert_eq!(last, "xtask: QEMU did not start the guest: -accel tcg: no luck today");
}

#[test]
fn a_guest_that_hangs_is_shown_and_given_up_after_three_tries() {
    let (_folder, path) = fake_qemu("echo '# the last thing it says'; exec sleep 1000");
    let mut command = xtask(&["run", "probe", "--accel", "tcg", "--timeout", "1"]);
    let output = command.env("PATH", path).assert().code(FAILURE).get_output().clone();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("try 2 of 3") && said.contains("try 3 of 3"), "{said}");
    assert!(said.contains("# the last thing it says"), "{said}");
    assert!(said.ends_with("xtask: the guest did not end within 1 s\n"), "{said}");
}

/// Starts a run whose QEMU never ends, sends `signal` to xtask and returns how that ended, once QEMU is gone too.
fn end_by(signal: Signal) -> ExitStatus {
    let (folder, path) = fake_qemu("echo $$ >\"$0.pid\"; exec sleep 1000");
    let pid_file = folder.path().join("qemu-system-x86_64.pid");
    let mut command = std::process::Command::new(cargo_bin!("xtask"));
    command.args(["run", "probe", "--accel", "tcg"]).env("PATH", path).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let pid = || fs::read_to_string(&pid_file).ok()?.trim().parse::<u32>().ok();
    wait_until(|| pid().is_some());
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    let status = child.wait().unwrap();
    let stat = format!("/proc/{}/stat", pid().unwrap());
    wait_until(|| fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")));
    status
}

fn wait_until(condition: impl Fn() -> bool) {
    // Long enough for a cold build of the guest.
    for _ in 0..6000 {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("it did not come to pass");
}

#[test]
fn no_qemu_survives_an_interrupt_or_our_own_violent_end() {
    assert_eq!(end_by(Signal::SIGINT).code(), Some(INTERRUPTED));
    assert_eq!(end_by(Signal::SIGKILL).signal(), Some(Signal::SIGKILL as i32));
}
