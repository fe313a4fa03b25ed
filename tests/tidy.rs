//! The house rules that no compiler checks. Each test names the rule; a failure lists the places.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules of the library, lowest first: each may use only those before it.
///
/// `stats` is called by everything and calls nobody; it stands low because it counts per CPU.
const LAYERS: [&str; 12] =
    ["sync", "cpu", "stats", "kvm", "preempted", "hypervisor", "guard", "platform", "wait", "lock", "linked", "boost"];

/// The one upward use: the trait `Cpu` names its `Hypervisor`, whose methods name `CpuId`.
const UPWARD: (&str, &str) = ("cpu", "hypervisor");

/// Files of the library that may hold unsafe code (their tests may too).
const UNSAFE_FILES: [&str; 30] = [
    "src/boost/ipi.rs",
    "src/boost/shootdown.rs",
    "src/boost/tsc.rs",
    "src/guard.rs",
    "src/hypervisor/kvm.rs",
    "src/hypervisor/mod.rs",
    "src/kvm/detect.rs",
    "src/kvm/hypercall.rs",
    "src/kvm/msr.rs",
    "src/kvm/register.rs",
    "src/kvm/setup.rs",
    "src/kvm/table.rs",
    "src/lock/api04.rs",
    "src/lock/api05.rs",
    "src/lock/condvar.rs",
    "src/lock/mutex/api04.rs",
    "src/lock/mutex/data.rs",
    "src/lock/mutex/mod.rs",
    "src/lock/node.rs",
    "src/lock/rwlock/api04.rs",
    "src/lock/rwlock/data.rs",
    "src/lock/rwlock/guards.rs",
    "src/lock/rwlock/mod.rs",
    "src/lock/rwlock/slow.rs",
    "src/lock/spin/mod.rs",
    "src/lock/spin/mutex.rs",
    "src/lock/wait_list.rs",
    "src/platform.rs",
    "src/preempted.rs",
    "src/stats.rs",
];

/// Files longer than this have more than one subject.
const MOST_LINES: usize = 500;

/// A source file with its path from the root of the repository, in `/` notation.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// The lines that hold code, with their numbers, without comments at the end.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().zip(1..).filter_map(|(line, number)| {
            let code = line.split("//").next().unwrap_or_default();
            (!code.trim().is_empty()).then_some((number, code))
        })
    }

    /// The lines that hold comments, with their numbers.
    fn comments(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().zip(1..).filter_map(|(line, number)| Some((number, line.split_once("//")?.1)))
    }

    fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs")
    }
}

/// All Rust files under `folder`, but build output.
fn sources(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path: PathBuf = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if name.ends_with(".rs") {
                let text = fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
                found.push(Source { path, text });
            }
        }
    }
    assert!(!found.is_empty(), "no sources under {folder:?}");
    found
}

#[track_caller]
fn assert_none(rule: &str, places: &[String]) {
    assert!(places.is_empty(), "{rule}:\n  {}", places.join("\n  "));
}

/// The identifier that `text` begins with.
fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

#[test]
fn each_layer_uses_only_those_below() {
    let rank = |module: &str| LAYERS.iter().position(|&layer| layer == module);
    let mut places = Vec::new();
    for source in sources("src") {
        let module = identifier(source.path.strip_prefix("src/").unwrap());
        if module == "lib" {
            continue;
        }
        let Some(own) = rank(module) else {
            places.push(format!("{}: the module {module} has no place in LAYERS", source.path));
            continue;
        };
        for (number, line) in source.code() {
            for (at, _) in line.match_indices("crate::") {
                let used = identifier(&line[at + "crate::".len()..]);
                // Names that the root re-exports, and macros, are not modules.
                let is_module = used.starts_with(|c: char| c.is_lowercase()) && LAYERS.contains(&used);
                if line[at..].starts_with("crate::{") {
                    places.push(format!("{}:{number}: one `use crate::module` per line, please", source.path));
                } else if is_module && rank(used) > Some(own) && (module, used) != UPWARD {
                    places.push(format!("{}:{number}: {module} uses {used}", source.path));
                }
            }
        }
    }
    assert_none("a layer uses one above it", &places);
}

#[test]
fn algorithms_name_atomics_through_the_sync_module() {
    let mut places = Vec::new();
    for source in sources("src/lock").into_iter().chain(sources("src/wait")) {
        for (number, line) in source.code() {
            if line.contains("sync::atomic") || line.contains("loom::sync") {
                places.push(format!("{}:{number}", source.path));
            }
        }
    }
    assert_none("only src/sync.rs knows whether atomics are modelled", &places);
}

#[test]
fn unsafe_code_stays_in_the_listed_files() {
    let mut places = Vec::new();
    for source in sources("src") {
        if source.is_test() || UNSAFE_FILES.contains(&source.path.as_str()) {
            continue;
        }
        for (number, line) in source.code() {
            if line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe") {
                places.push(format!("{}:{number}", source.path));
            }
        }
    }
    assert_none("unsafe code in a file that is not in UNSAFE_FILES", &places);
}

#[test]
fn every_file_says_first_what_it_is_for() {
    // The library's own documentation is the README.
    let says =
        |text: &str| ["//! ", "#![doc = include_str!(\"../README.md\")]"].iter().any(|first| text.starts_with(first));
    let places: Vec<_> =
        sources("").into_iter().filter(|source| !says(&source.text)).map(|source| source.path).collect();
    assert_none("the first line is not a `//! ` sentence", &places);
}

#[test]
fn no_file_is_long() {
    let places: Vec<_> = sources("")
        .into_iter()
        .map(|source| (source.text.lines().count(), source.path))
        .filter(|&(lines, _)| lines > MOST_LINES)
        .map(|(lines, path)| format!("{path}: {lines}"))
        .collect();
    assert_none("split files of more than 500 lines", &places);
}

/// An ordering that another one answers says `pair NAME`; so does the other, with three exceptions. Where both ends are one
/// line of code, run on two CPUs, it says `pair NAME (with itself ...)`. Where the other end is assembly, it says where:
/// `pair NAME (... FILE.s)`. The other end of a pair whose name begins with HOST is in the host's code.
#[test]
fn both_ends_of_an_ordering_pair_are_named() {
    let mut ends: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources("") {
        for (number, comment) in source.comments() {
            for (at, _) in comment.match_indices("pair ") {
                let rest = &comment[at + "pair ".len()..];
                let end = rest.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '-');
                let name = rest[..end.unwrap_or(rest.len())].trim_end_matches('-');
                if !name.contains('-') || name.starts_with("HOST-") {
                    continue;
                }
                let place = format!("{}:{number}", source.path);
                let places = ends.entry(name.to_owned()).or_default();
                let partner = rest[name.len()..].split(')').next().unwrap_or_default();
                if partner.starts_with(" (with itself") || partner.ends_with(".s") {
                    places.push(place.clone());
                }
                places.push(place);
            }
        }
    }
    let places: Vec<_> = ends
        .into_iter()
        .filter(|(_, places)| places.len() < 2)
        .map(|(name, places)| format!("{}: {name}", places.join(", ")))
        .collect();
    assert_none("an ORDERING pair of which only one end is named", &places);
}

#[test]
fn xtask_commands_do_not_call_each_other() {
    let sources = sources("xtask/src/cmd");
    let is_command = |name: &str| {
        sources.iter().any(|s| s.path == format!("xtask/src/cmd/{name}.rs") && s.text.contains("pub struct Args"))
    };
    let mut places = Vec::new();
    for source in sources.iter().filter(|source| !source.path.ends_with("/mod.rs")) {
        for (number, line) in source.code() {
            for prefix in ["super::", "cmd::"] {
                for (at, _) in line.match_indices(prefix) {
                    if is_command(identifier(&line[at + prefix.len()..])) {
                        places.push(format!("{}:{number}: {}", source.path, line.trim()));
                    }
                }
            }
        }
    }
    assert_none("what two commands share is a file of its own, beside `cmd`", &places);
}

/// Keep a Changelog: versions from new to old, each with its date, in these sections; until its release a version is `Unreleased`.
#[test]
fn the_changelog_has_the_current_version() {
    const SECTIONS: [&str; 6] = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("CHANGELOG.md")).unwrap();
    let mut places = Vec::new();
    let mut versions = Vec::new();
    let mut section_is_empty = None;
    for (line, number) in text.lines().zip(1..) {
        if line.starts_with('#') && section_is_empty.take() == Some(true) {
            places.push(format!("CHANGELOG.md:{number}: the section above is empty"));
        }
        if let Some(version) = line.strip_prefix("## ") {
            let dated = version.strip_prefix('[').and_then(|rest| rest.split_once("] - "));
            let is_date = |date: &str| date.len() == 10 && date.split('-').all(|part| part.parse::<u16>().is_ok());
            match dated {
                Some((version, date)) if is_date(date) => versions.push(version),
                None if version == "[Unreleased]" && versions.is_empty() => versions.push("Unreleased"),
                _ => places.push(format!(
                    "CHANGELOG.md:{number}: neither `[VERSION] - YYYY-MM-DD` nor, first, `[Unreleased]`"
                )),
            }
        } else if let Some(section) = line.strip_prefix("### ") {
            section_is_empty = Some(true);
            if !SECTIONS.contains(&section) {
                places.push(format!("CHANGELOG.md:{number}: sections are {}", SECTIONS.join(", ")));
            }
        } else if line.starts_with("- ") {
            section_is_empty = Some(false);
        }
    }
    let current = env!("CARGO_PKG_VERSION");
    // A version that is not released yet is what `Unreleased` will be.
    let is_released = versions.iter().any(|version| *version != "Unreleased");
    if !versions.contains(&current) && (is_released || !versions.contains(&"Unreleased")) {
        places.push(format!("CHANGELOG.md: no entry for {current}"));
    }
    assert_none("the changelog is not in its form", &places);
}
