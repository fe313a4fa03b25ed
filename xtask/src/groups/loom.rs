//! Loom: every interleaving of the lock protocols' models, within each model's own bound of preemptions.

use super::Tally;
use super::libtest::cargo_test;
use crate::cargo;

/// The switch that puts loom's atomics in place of the real ones, in our crate only.
const FLAGS: &str = "--cfg pvlock_loom";

/// Would change the bounds that the models state.
const LOOM_VARIABLES: [&str; 3] = ["LOOM_MAX_PREEMPTIONS", "LOOM_MAX_BRANCHES", "LOOM_MAX_PERMUTATIONS"];

pub fn run(tally: &mut Tally) {
    let target = match cargo::target_dir() {
        Ok(target) => target.join("loom"),
        Err(error) => return tally.test("loom", || Err(error)),
    };
    let mut command = cargo::cargo();
    // A folder of its own: other flags would make the ordinary builds start over each time.
    command
        .args(["test", "--release", "--no-fail-fast", "--package", "pvlock", "--test", "loom_*"])
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", target);
    for variable in LOOM_VARIABLES {
        command.env_remove(variable);
    }
    cargo_test(tally, "loom", command);
}
