//! The library built for `x86_64-unknown-none`, the target that kernels really have, and what its locks cost there.

use anyhow::{Context, Result, bail, ensure};
use cost_host::Cost;

use super::{Tally, Verdict, show};
use crate::bare::Toolchain;
use crate::cargo;
use crate::cost;

pub fn run(tally: &mut Tally) {
    let sets = match feature_sets() {
        Ok(sets) => sets,
        Err(error) => return tally.test("none", || Err(error)),
    };
    let toolchain = match Toolchain::find() {
        Ok(toolchain) => toolchain,
        Err(error) => return tally.test("none::toolchain", || Err(error)),
    };
    for set in sets {
        let name = if set.is_empty() { "without-features".to_owned() } else { set.join("+") };
        tally.verdict(&format!("none::{name}"), || build(&toolchain, &set));
    }
    match cost::images(&toolchain).and_then(|images| cost_host::measure(&images, 0)) {
        Ok(costs) => costs_hold(tally, &costs.rows),
        Err(error) => tally.test("none::cost", || Err(error)),
    }
}

/// What the library says of its uncontended cost, as far as it does not depend on the compiler's version.
fn costs_hold(tally: &mut Tally, costs: &[Cost]) {
    tally.test("none::cost::spinlock-has-one-locked-instruction", || spinlock_is_cheap(costs));
    tally.test("none::cost::all-is-inlined", || all_is_inlined(costs));
    tally.test("none::cost::sizes-are-as-stated", || sizes_are_as_stated(costs));
}

/// One to take it, none to release it, or one where waiters may be halted.
fn spinlock_is_cheap(costs: &[Cost]) -> Result<()> {
    let spinlocks = costs.iter().filter(|cost| cost.from == "pvlock" && cost.lock == "SpinMutex");
    let mut seen = 0;
    for cost in spinlocks {
        let halting = cost.halting.context("it does not say whether waiters halt")?;
        let locked = (cost.round.take.locked, cost.round.release.locked);
        ensure!(locked == (1, usize::from(halting)), "{locked:?} locked instructions: {cost:?}");
        seen += 1;
    }
    // Three forms, two guards, two builds, two decisions.
    ensure!(seen == 24, "{seen} spinlocks were counted");
    Ok(())
}

/// Only the link-time symbols are called, and they only without link-time optimisation.
fn all_is_inlined(costs: &[Cost]) -> Result<()> {
    let mut called = 0;
    for cost in costs.iter().filter(|cost| cost.halting.is_some()) {
        let mut calls = cost.round.take.calls.iter().chain(&cost.round.release.calls);
        if cost.build == cost::LTO || cost.form != "link-time symbol" {
            ensure!(calls.next().is_none(), "something is called: {cost:?}");
        } else {
            called += calls.clone().count();
            ensure!(calls.all(|name| name.starts_with("__pvlock_platform_")), "something else is called: {cost:?}");
        }
    }
    ensure!(called > 0, "nothing is called without link-time optimisation either, so this test shows nothing");
    Ok(())
}

/// The sizes in the README's table are those of the locks as built.
fn sizes_are_as_stated(costs: &[Cost]) -> Result<()> {
    let readme = std::fs::read_to_string(cargo::workspace_root().join("README.md")).context("cannot read README.md")?;
    let stated = |name: &str| -> Result<usize> {
        let row = readme.lines().find(|line| line.starts_with(&format!("| {name} |")));
        let row = row.with_context(|| format!("README.md has no row {name:?}"))?;
        row.split(" | ").nth(1).and_then(|bytes| bytes.parse().ok()).with_context(|| format!("no size in {row:?}"))
    };
    for cost in costs.iter().filter(|cost| cost.halting == Some(false) && cost.from == "pvlock") {
        let name = cost::row_name(cost);
        // Rows of the README stand for all forms, and for all guards.
        let name = name.split(", ").next().unwrap_or_default();
        let bytes = stated(name)?;
        ensure!(cost.bytes == bytes, "{name} is {} bytes, README.md says {bytes}", cost.bytes);
    }
    Ok(())
}

/// Every subset of the library's features.
fn feature_sets() -> Result<Vec<Vec<String>>> {
    let package = cargo::member("pvlock")?;
    let names: Vec<&String> = package.features.keys().filter(|name| *name != "default").collect();
    Ok(subsets(&names))
}

fn subsets(names: &[&String]) -> Vec<Vec<String>> {
    let chosen = |bits: usize| names.iter().enumerate().filter(move |(i, _)| bits >> i & 1 == 1);
    (0..1 << names.len()).map(|bits| chosen(bits).map(|(_, name)| (*name).clone()).collect()).collect()
}

fn build(toolchain: &Toolchain, features: &[String]) -> Result<Verdict> {
    // Debian's compiler is its own: what it is too old for, it says.
    if let (Toolchain::Installed, Some(reason)) = (toolchain, cargo::too_old_for(cargo::member("pvlock")?, features)?) {
        return Ok(Verdict::Ignored(reason));
    }
    let mut command = toolchain.cargo("build");
    command
        .args(["--quiet", "--package", "pvlock", "--no-default-features"])
        .args(["--features", &features.join(",")])
        .env("CARGO_TARGET_DIR", cargo::target_dir()?.join("none"));
    if !show(command, |_| ())? {
        bail!("it does not build, see above");
    }
    Ok(Verdict::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_subsets_of_the_features_are_built() {
        let (a, b) = ("a".to_owned(), "b".to_owned());
        let sets = subsets(&[&a, &b]);
        assert_eq!(sets, [vec![], vec![a.clone()], vec![b.clone()], vec![a, b]]);
        assert!(feature_sets().unwrap().len() >= 2);
    }
}
