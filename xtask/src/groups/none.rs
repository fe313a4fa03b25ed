//! The library built for `x86_64-unknown-none`, the target that kernels really have.

use anyhow::{Context, Result, bail};

use super::{Tally, show};
use crate::cargo;
use crate::freestanding::{TARGET, Toolchain};

pub fn run(tally: &mut Tally) {
    let sets = match feature_sets() {
        Ok(sets) => sets,
        Err(error) => return tally.test("none", || Err(error)),
    };
    let toolchain = match Toolchain::ensure() {
        Ok(toolchain) => toolchain,
        Err(error) => return tally.test("none::toolchain", || Err(error)),
    };
    for set in sets {
        let name = if set.is_empty() { "without-features".to_owned() } else { set.join("+") };
        tally.test(&format!("none::{name}"), || build(toolchain, &set));
    }
}

/// Every subset of the library's features.
fn feature_sets() -> Result<Vec<Vec<String>>> {
    let package = cargo::metadata()?.packages.iter().find(|package| package.name.as_str() == "pvlock");
    let package = package.context("the workspace has no package pvlock")?;
    let names: Vec<&String> = package.features.keys().filter(|name| *name != "default").collect();
    Ok(subsets(&names))
}

fn subsets(names: &[&String]) -> Vec<Vec<String>> {
    let chosen = |bits: usize| names.iter().enumerate().filter(move |(i, _)| bits >> i & 1 == 1);
    (0..1 << names.len()).map(|bits| chosen(bits).map(|(_, name)| (*name).clone()).collect()).collect()
}

fn build(toolchain: Toolchain, features: &[String]) -> Result<()> {
    let mut command = toolchain.cargo();
    command
        .args(["build", "--quiet", "--package", "pvlock", "--target", TARGET, "--no-default-features"])
        .args(["--features", &features.join(",")])
        .env("CARGO_TARGET_DIR", cargo::target_dir()?.join("none"));
    if !show(command, |_| ())? {
        bail!("it does not build, see above");
    }
    Ok(())
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
