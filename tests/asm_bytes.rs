//! The assembly as built, in every way that kernels build: debug, fat LTO, for size, statically linked, with return thunks.
//!
//! Each test builds `tests/asm-image`, runs it, and judges the disassembly of the routine in it.

use disasm::{Routine, facts};
use pvlock::preempted::CLOBBERED;
use std::path::Path;
use std::process::{Command, Stdio};

const SYMBOL: &str = "pvlock_vcpu_is_preempted";

/// endbr64, mov, cmp, jae, shl, lea, test, setne, return; xor, return.
const INSTRUCTIONS: usize = 10;

/// One way to build the image.
#[derive(Default)]
struct Build {
    debug: bool,
    /// Environment variables for cargo.
    variables: &'static [(&'static str, &'static str)],
    /// Arguments for the compiler, for the image itself only.
    rustc: &'static [&'static str],
}

/// Builds the image in a folder of its own, runs it, and judges the routine in it.
#[track_caller]
fn check(name: &str, build: Build) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("asm-image").join(name);
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["rustc", "--quiet", "--package", "asm-image", "--target-dir"]).arg(&target).stdin(Stdio::null());
    for (variable, _) in std::env::vars_os() {
        let text = variable.to_string_lossy();
        if ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "PVLOCK_MAX_CPUS"].contains(&&*text)
            || text.starts_with("CARGO_PROFILE_")
            || text.starts_with("CARGO_BUILD_")
        {
            cargo.env_remove(&variable);
        }
    }
    if !build.debug {
        cargo.arg("--release");
    }
    cargo.arg("--").args(build.rustc).envs(build.variables.iter().copied());
    let output = cargo.output().expect("cargo does not start");
    assert!(output.status.success(), "build failed:\n{}", String::from_utf8_lossy(&output.stderr));

    let image = target.join(if build.debug { "debug" } else { "release" }).join("asm-image");
    let run = Command::new(&image).output().expect("the image does not start");
    assert!(run.status.success(), "wrong answers:\n{}", String::from_utf8_lossy(&run.stderr));

    let routine = Routine::read(&std::fs::read(&image).unwrap(), SYMBOL).unwrap();
    let facts = facts(&routine, &CLOBBERED);
    let listing: Vec<_> = routine.lines.iter().map(|line| line.text.as_str()).collect();
    assert!(facts.faults.is_empty(), "{:#?}\nin\n{}", facts.faults, listing.join("\n"));
    assert_eq!(facts.instructions, INSTRUCTIONS, "{}", listing.join("\n"));
}

#[test]
fn debug() {
    check("debug", Build { debug: true, ..Build::default() });
}

#[test]
fn many_codegen_units() {
    let variables = &[("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "256")];
    check("many-codegen-units", Build { variables, ..Build::default() });
}

#[test]
fn fat_lto() {
    let variables = &[("CARGO_PROFILE_RELEASE_LTO", "fat"), ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")];
    check("fat-lto", Build { variables, ..Build::default() });
}

#[test]
fn for_size_with_section_garbage_collection() {
    let variables = &[("CARGO_PROFILE_RELEASE_OPT_LEVEL", "z")];
    check("size", Build { variables, rustc: &["-Clink-arg=-Wl,--gc-sections"], ..Build::default() });
}

#[test]
fn at_a_fixed_address() {
    // With LTO, so that the library too is compiled for a fixed address.
    let variables = &[("CARGO_PROFILE_RELEASE_LTO", "fat")];
    check("static", Build { variables, rustc: &["-Crelocation-model=static"], ..Build::default() });
}

#[test]
fn with_return_thunks() {
    let variables = &[("RUSTFLAGS", "--cfg pvlock_return_thunk")];
    check("return-thunk", Build { variables, ..Build::default() });
}

#[test]
fn for_one_cpu_and_for_the_most() {
    check("one-cpu", Build { variables: &[("PVLOCK_MAX_CPUS", "1")], ..Build::default() });
    check("most-cpus", Build { variables: &[("PVLOCK_MAX_CPUS", "4096")], ..Build::default() });
}
