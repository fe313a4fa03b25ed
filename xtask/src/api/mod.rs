//! The public API, as listings that are checked in: `tests/api/PACKAGE.txt`, one item per line.
//!
//! The items are those of the sources after macro expansion, which any compiler prints, so that the listing does not depend on a compiler's
//! version as rustdoc's JSON does. Not seen: auto traits, and what other crates' blanket impls add.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::Package;

use crate::cargo;

mod expanded;
mod listing;
mod tree;

/// The packages whose API others depend on.
pub const PACKAGES: [&str; 3] = ["pvlock", "kspin", "hermit-sync"];

/// How to accept a change.
const BLESS: &str = "cargo xtask api --bless";

/// How the features on which an item depends stand behind it.
const WITH: &str = " // with ";
const WITHOUT: &str = " // without ";
const ALL: &str = "all features";

/// A listing, and the features that this compiler is too old for.
pub struct Api {
    package: &'static str,
    lines: BTreeSet<String>,
    skipped: Vec<String>,
}

/// The API of a package by its sources; `Err(reason)` inside if this compiler is too old for all of it.
pub fn read(name: &'static str) -> Result<std::result::Result<Api, String>> {
    let package = cargo::member(name)?;
    let compiler = cargo::rustc_version()?;
    if let Some(needed) = package.rust_version.as_ref().filter(|needed| **needed > compiler) {
        return Ok(Err(format!("{name} needs Rust {needed}, this is {compiler}")));
    }
    let mut features = Vec::new();
    let mut skipped = Vec::new();
    for feature in package.features.keys().filter(|feature| *feature != "default") {
        match cargo::feature_needs(package, feature)?.filter(|needed| *needed > compiler) {
            Some(_) => skipped.push(feature.clone()),
            None => features.push(feature.clone()),
        }
    }
    let mut sets = vec![Vec::new()];
    sets.extend(features.iter().map(|feature| vec![feature.clone()]));
    sets.push(features.clone());
    let listings = sets.iter().map(|set| offered(package, set)).collect::<Result<Vec<_>>>()?;
    Ok(Ok(Api { package: name, lines: with_conditions(&features, &listings), skipped }))
}

/// The names that the published crate of an adapter's name has and the adapter has not.
pub fn missing_names(adapter: &str) -> Result<Vec<String>> {
    let all = &cargo::whole_metadata()?.packages;
    let published = all.iter().find(|package| package.name.as_str() == adapter && package.source.is_some());
    let published = published.with_context(|| format!("{adapter} is not compared with the published crate"))?;
    let names = |package| -> Result<BTreeSet<String>> {
        let lines = offered(package, &[])?;
        Ok(lines.iter().filter_map(|line| Some(line.split_once(" | ")?.0.to_owned())).collect())
    };
    let own = names(cargo::member(adapter)?)?;
    Ok(names(published)?.into_iter().filter(|name| !own.contains(name)).collect())
}

impl Api {
    /// Fails if the listing that is checked in is another.
    pub fn check(&self) -> Result<()> {
        let file = file(self.package);
        let known = fs::read_to_string(&file)
            .with_context(|| format!("cannot read {}; `{BLESS}` writes it", file.display()))?;
        let known = seen_without(known.lines(), &self.skipped);
        let now = seen_without(self.lines.iter().map(String::as_str), &self.skipped);
        let gone = known.difference(&now).map(|line| format!("\n  - {line}"));
        let new = now.difference(&known).map(|line| format!("\n  + {line}"));
        let changes: String = gone.chain(new).collect();
        ensure!(
            changes.is_empty(),
            "the public API of {} is not the one in tests/api (if that is meant: `{BLESS}`, and a line in CHANGELOG.md):{changes}",
            self.package
        );
        Ok(())
    }

    /// Cargo builds a package once, with the features of all who depend on it: fails if one takes or changes an item.
    pub fn features_only_add(&self) -> Result<()> {
        let taken: Vec<&str> = self.lines.iter().filter(|line| line.contains(WITHOUT)).map(String::as_str).collect();
        ensure!(taken.is_empty(), "with a feature, these are gone or others:\n  {}", taken.join("\n  "));
        Ok(())
    }

    /// What is not looked at, if anything.
    pub fn skipped(&self) -> Option<String> {
        (!self.skipped.is_empty()).then(|| format!("without {}: the compiler is too old", self.skipped.join(", ")))
    }

    /// Makes this the listing that is checked in.
    pub fn bless(&self) -> Result<PathBuf> {
        if let Some(reason) = self.skipped() {
            bail!("the listing of {} would be {reason}", self.package);
        }
        let file = file(self.package);
        let text: String = self.lines.iter().flat_map(|line| [line, "\n"]).collect();
        fs::create_dir_all(file.parent().context("the listing has no folder")?).context("cannot make tests/api")?;
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }
}

fn file(package: &str) -> PathBuf {
    cargo::workspace_root().join("tests/api").join(format!("{package}.txt"))
}

/// What the package offers with exactly these features.
fn offered(package: &Package, features: &[String]) -> Result<BTreeSet<String>> {
    let lines = listing::lines(&package.name.replace('-', "_"), expanded::file(package, features)?);
    ensure!(!lines.is_empty(), "{} has no public items with the features [{}]", package.name, features.join(", "));
    Ok(lines)
}

/// One listing of all, from those with no feature, with each, and with all; the condition stands behind each item that is not in all.
fn with_conditions(features: &[String], listings: &[BTreeSet<String>]) -> BTreeSet<String> {
    let mut holders = BTreeMap::<&String, Vec<usize>>::new();
    for (i, listing) in listings.iter().enumerate() {
        listing.iter().for_each(|line| holders.entry(line).or_default().push(i));
    }
    let conditional = |(line, holders): (&String, Vec<usize>)| {
        if holders.len() == listings.len() {
            return line.clone();
        }
        let without = holders.contains(&0);
        let names = (1..).zip(features).filter(|(i, _)| holders.contains(i) != without).map(|(_, name)| name.as_str());
        let names: Vec<&str> = names.collect();
        let names = if names.is_empty() { ALL.to_owned() } else { names.join(" or ") };
        format!("{line}{}{names}", if without { WITHOUT } else { WITH })
    };
    holders.into_iter().map(conditional).collect()
}

/// The lines as they would be if the features `skipped` did not exist.
fn seen_without<'a>(lines: impl Iterator<Item = &'a str>, skipped: &[String]) -> BTreeSet<String> {
    let seen = |line: &str| {
        let with = line.split_once(WITH).map(|parts| (parts, WITH));
        let Some(((item, names), kind)) = with.or_else(|| line.split_once(WITHOUT).map(|parts| (parts, WITHOUT)))
        else {
            return Some(line.to_owned());
        };
        if skipped.is_empty() {
            return Some(line.to_owned());
        }
        let left: Vec<&str> =
            names.split(" or ").filter(|name| *name != ALL && !skipped.iter().any(|skipped| skipped == name)).collect();
        match (left.is_empty(), kind) {
            (true, WITHOUT) => Some(item.to_owned()),
            (true, _) => None,
            (false, kind) => Some(format!("{item}{kind}{}", left.join(" or "))),
        }
    };
    lines.filter_map(seen).collect()
}

#[cfg(test)]
mod tests;
