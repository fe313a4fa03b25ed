//! What the workspace is built from: licences, sources and versions of all dependencies, and the Rust versions that they need.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::{DependencyKind, Metadata, Package, PackageId};
use semver::Version;
use spdx::{Expression, ParseMode};

use super::{Tally, Verdict, show};
use crate::{api, cargo};

/// Licences that a user of MIT or Apache-2.0 software can take.
const LICENCES: [&str; 6] = ["Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "Unicode-3.0", "Zlib"];

/// The only source besides this workspace.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Packages of which there is more than one version, and why.
const DUPLICATES: [(&str, &str); 10] = [
    ("bitflags", "x2apic, which the guests use, needs 1"),
    ("hermit-sync", "the adapter, and the original that it is compared with"),
    ("interrupt-mutex", "one for each lock_api"),
    ("kspin", "the adapter, and the original that it is compared with"),
    ("lock_api", "pvlock has an adapter for each"),
    ("raw-cpuid", "x2apic needs 10"),
    ("spin", "kernels use both; pvlock is tested in the place of either"),
    ("spinning_top", "linked_list_allocator and hermit-sync each have their own"),
    ("syn", "derives have not all moved to 3"),
    ("volatile", "x86_64 needs 0.4"),
];

pub fn run(tally: &mut Tally) {
    let metadata = match cargo::whole_metadata() {
        Ok(metadata) => metadata,
        Err(error) => return tally.test("supply", || Err(error)),
    };
    tally.test("supply::licences", || licences(&metadata.packages));
    tally.test("supply::sources", || sources(&metadata.packages));
    tally.test("supply::one-version-each", || one_version_each(&metadata.packages));
    for name in api::PACKAGES {
        tally.test(&format!("supply::rust-version-{name}"), || rust_version(metadata, name));
        tally.verdict(&format!("supply::builds-with-oldest-rust-{name}"), || builds_with_oldest(metadata, name));
    }
}

fn licences(packages: &[Package]) -> Result<()> {
    let acceptable = |licence: &str| -> Result<bool> {
        // `MIT/Apache-2.0` is how it was written once.
        let expression = Expression::parse_mode(licence, ParseMode::LAX)?;
        Ok(expression.evaluate(|required| {
            required.license.id().is_some_and(|id| LICENCES.contains(&id.name)) && required.addition.is_none()
        }))
    };
    let mut bad = Vec::new();
    for package in packages {
        let licence = package.license.as_deref().unwrap_or("no licence");
        if !acceptable(licence).unwrap_or(false) {
            bad.push(format!("{} {}: {licence}", package.name, package.version));
        }
    }
    ensure!(bad.is_empty(), "licences that are not in the list {}: {}", LICENCES.join(", "), bad.join("; "));
    Ok(())
}

fn sources(packages: &[Package]) -> Result<()> {
    let root = cargo::workspace_root();
    let foreign = |package: &&Package| match &package.source {
        Some(source) => source.repr != CRATES_IO,
        None => !package.manifest_path.starts_with(&*root.to_string_lossy()),
    };
    let bad: Vec<String> = packages.iter().filter(foreign).map(|package| package.id.repr.clone()).collect();
    ensure!(bad.is_empty(), "neither from crates.io nor of this workspace: {}", bad.join(", "));
    Ok(())
}

fn one_version_each(packages: &[Package]) -> Result<()> {
    let mut versions = BTreeMap::<&str, Vec<&Version>>::new();
    packages.iter().for_each(|package| versions.entry(package.name.as_str()).or_default().push(&package.version));
    let several: BTreeSet<&str> =
        versions.iter().filter(|(_, versions)| versions.len() > 1).map(|(name, _)| *name).collect();
    let known: BTreeSet<&str> = DUPLICATES.iter().map(|(name, _)| *name).collect();
    let new: Vec<String> = several.difference(&known).map(|name| format!("{name} {:?}", versions[name])).collect();
    let gone: Vec<&str> = known.difference(&several).copied().collect();
    ensure!(new.is_empty(), "more than one version, without a reason in DUPLICATES: {}", new.join(", "));
    ensure!(gone.is_empty(), "one version by now, so not for DUPLICATES: {}", gone.join(", "));
    Ok(())
}

fn member<'a>(metadata: &'a Metadata, name: &str) -> Result<&'a Package> {
    let found = metadata.workspace_packages().into_iter().find(|package| package.name.as_str() == name);
    found.with_context(|| format!("the workspace has no package {name}"))
}

/// What users of the package compile with its default features needs no newer Rust than it says.
fn rust_version(metadata: &Metadata, name: &str) -> Result<()> {
    let package = member(metadata, name)?;
    let own = package.rust_version.as_ref().with_context(|| format!("{name} says no rust-version"))?;
    let packages: HashMap<&PackageId, &Package> =
        metadata.packages.iter().map(|package| (&package.id, package)).collect();
    let nodes = &metadata.resolve.as_ref().context("cargo resolves no dependencies")?.nodes;
    let nodes: HashMap<&PackageId, _> = nodes.iter().map(|node| (&node.id, node)).collect();
    let mut left = vec![&package.id];
    let mut seen = BTreeSet::new();
    while let Some(id) = left.pop() {
        if !seen.insert(&id.repr) {
            continue;
        }
        for dependency in &nodes[id].deps {
            let normal = dependency.dep_kinds.iter().any(|kind| {
                kind.kind == DependencyKind::Normal
                    && !kind.target.as_ref().is_some_and(|of| of.to_string().contains("pvlock_loom"))
            });
            // The workspace resolves pvlock with all features that a member enables.
            if normal && (*id != package.id || !is_off(package, packages[&dependency.pkg])) {
                left.push(&dependency.pkg);
            }
        }
    }
    let seen = metadata.packages.iter().filter(|package| seen.contains(&package.id.repr));
    let newer = seen.filter(|package| package.rust_version.as_ref().is_some_and(|needed| needed > own));
    let newer: Vec<String> = newer.map(|package| format!("{} {}", package.name, package.version)).collect();
    ensure!(newer.is_empty(), "{name} says Rust {own}, and these need a newer one: {}", newer.join(", "));
    Ok(())
}

/// Whether `dependency` is optional in `package` and not enabled by its default features.
fn is_off(package: &Package, dependency: &Package) -> bool {
    let feature = |name: &str| package.features.get(name).map(Vec::as_slice).unwrap_or_default();
    let on: Vec<&String> = feature("default").iter().flat_map(|enabled| feature(enabled)).collect();
    let mut uses = package.dependencies.iter().filter(|used| {
        used.kind == DependencyKind::Normal
            && used.name == dependency.name.as_str()
            && used.req.matches(&dependency.version)
    });
    let is_on = |used: &cargo_metadata::Dependency| {
        let name = format!("dep:{}", used.rename.as_deref().unwrap_or(&used.name));
        !used.optional || on.contains(&&name)
    };
    !uses.any(is_on)
}

/// The package built by the oldest compiler that it says it takes, with all features that this takes.
fn builds_with_oldest(metadata: &Metadata, name: &str) -> Result<Verdict> {
    let package = member(metadata, name)?;
    let oldest = package.rust_version.as_ref().with_context(|| format!("{name} says no rust-version"))?;
    let toolchain = format!("{}.{}", oldest.major, oldest.minor);
    if cargo::rustc_version()? < *oldest {
        return Ok(Verdict::Ignored(format!("not checked: this Rust is older than {toolchain}")));
    }
    if which::which("rustup").is_err() {
        return Ok(Verdict::Ignored(format!("not checked: there is no rustup to run Rust {toolchain} with")));
    }
    let rustup = |args: &[&str]| {
        let output = cargo::cleaned("rustup").args(args).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !rustup(&["run", &toolchain, "rustc", "-V"])
        && !rustup(&["toolchain", "install", &toolchain, "--profile", "minimal", "--no-self-update"])
    {
        return Ok(Verdict::Ignored(format!("not checked: rustup cannot install Rust {toolchain}")));
    }
    let mut features = Vec::new();
    for feature in package.features.keys().filter(|feature| *feature != "default") {
        if cargo::feature_needs(package, feature)?.is_none_or(|needed| needed <= *oldest) {
            features.push(feature.as_str());
        }
    }
    let mut command = cargo::cleaned("rustup");
    command
        .args(["run", &toolchain, "cargo", "check", "--quiet", "--lib", "--package", &package.id.repr])
        .args(["--no-default-features", "--features", &features.join(",")])
        // What an old compiler warns of is not what today's does.
        .env("RUSTFLAGS", "--cap-lints=allow")
        .env("CARGO_TARGET_DIR", cargo::target_dir()?.join("oldest"));
    if !show(command, |_| ())? {
        bail!("Rust {toolchain} does not build {name}, see above");
    }
    Ok(Verdict::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(change: impl FnOnce(&mut Vec<Package>)) -> Vec<Package> {
        let mut packages = cargo::whole_metadata().unwrap().packages.clone();
        change(&mut packages);
        packages
    }

    #[test]
    fn other_licences_are_found() {
        licences(&changed(|_| ())).unwrap();
        let or = Some("GPL-3.0-only OR MIT".to_owned());
        licences(&changed(|packages| packages[0].license = or)).unwrap();
        for bad in [
            Some("GPL-2.0-only"),
            Some("MIT AND GPL-3.0-or-later"),
            Some("Apache-2.0 WITH Classpath-exception-2.0"),
            Some("my own"),
            None,
        ] {
            assert!(licences(&changed(|packages| packages[0].license = bad.map(str::to_owned))).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn other_sources_are_found() {
        sources(&changed(|_| ())).unwrap();
        let outside = |packages: &mut Vec<Package>| {
            let package = packages.iter_mut().find(|package| package.source.is_none()).unwrap();
            package.manifest_path = "/elsewhere/Cargo.toml".into();
        };
        assert!(sources(&changed(outside)).is_err());
        let from_git = |packages: &mut Vec<Package>| {
            let package = packages.iter_mut().find_map(|package| package.source.as_mut()).unwrap();
            package.repr = "git+https://example.org/x".to_owned();
        };
        assert!(sources(&changed(from_git)).is_err());
    }

    #[test]
    fn new_and_former_duplicates_are_found() {
        one_version_each(&changed(|_| ())).unwrap();
        let again = |packages: &mut Vec<Package>| {
            let mut package = packages.iter().find(|package| package.name.as_str() == "pvlock").unwrap().clone();
            package.version = Version::new(9, 0, 0);
            packages.push(package);
        };
        assert!(one_version_each(&changed(again)).is_err());
        assert!(
            one_version_each(&changed(|packages| packages.retain(|package| package.name.as_str() != "syn"))).is_err()
        );
    }

    #[test]
    fn dependencies_for_newer_compilers_are_found() {
        let metadata = cargo::whole_metadata().unwrap();
        for name in api::PACKAGES {
            rust_version(metadata, name).unwrap();
        }
        let with = |dependency: &str, needed| {
            let mut metadata = metadata.clone();
            let package = metadata
                .packages
                .iter_mut()
                .find(|package| package.name.as_str() == dependency && package.version < Version::new(0, 5, 0));
            package.unwrap().rust_version = Some(Version::new(1, needed, 0));
            rust_version(&metadata, "pvlock")
        };
        // Of `lock_api` 0.4, used by default, and one deeper.
        assert!(with("lock_api", 88).is_ok() && with("lock_api", 89).is_err());
        let deeper = metadata.packages.iter().find(|package| package.name.as_str() == "scopeguard");
        let mut newer = metadata.clone();
        let scopeguard =
            newer.packages.iter_mut().find(|package| Some(&package.id) == deeper.map(|package| &package.id));
        scopeguard.unwrap().rust_version = Some(Version::new(1, 89, 0));
        assert!(rust_version(&newer, "pvlock").is_err());
    }
}
