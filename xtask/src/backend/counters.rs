//! KVM's own counters for one guest, read from debugfs while it runs: independent evidence of what it did.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, fs};

use serde::Serialize;

use crate::line::Record;

/// Where Linux keeps one folder per guest, called PID-FD.
const FOLDER: &str = "/sys/kernel/debug/kvm";

/// Those of KVM's statistics that our guests can move. `nested/init.sh` has the same list.
const NAMES: [&str; 7] = [
    "directed_yield_attempted",
    "directed_yield_successful",
    "halt_exits",
    "hypercalls",
    "exits",
    "preemption_reported",
    "tlb_flush",
];

const PERIOD: Duration = Duration::from_millis(150);

/// Statistics by name, as KVM counts them from the guest's start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct KvmCounters(BTreeMap<String, u64>);

impl KvmCounters {
    /// The value of one statistic; 0 if KVM does not keep it.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Adds another guest's counts.
    pub fn add(&mut self, other: &Self) {
        for (name, value) in &other.0 {
            *self.0.entry(name.clone()).or_default() += value;
        }
    }

    /// From a `kvm` line of the first-level machine.
    pub fn from_record(record: &Record) -> Self {
        Self(record.fields.iter().filter_map(|(name, value)| Some((name.clone(), value.parse().ok()?))).collect())
    }

    fn read(folder: &Path) -> Option<Self> {
        let value = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok();
        NAMES.iter().map(|&name| Some((name.to_owned(), value(name)?))).collect::<Option<_>>().map(Self)
    }
}

/// For people: `exits 5, hypercalls 2`.
impl fmt::Display for KvmCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(|(name, value)| format!("{name} {value}")).collect();
        f.write_str(&words.join(", "))
    }
}

/// A thread that reads the counters of one QEMU process until told to stop.
#[derive(Debug)]
pub struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Option<KvmCounters>>,
}

impl Sampler {
    /// Starts to sample the guest of the QEMU process `pid`.
    pub fn start(pid: u32) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut last = None;
            loop {
                last = guest_folder(pid).and_then(|folder| KvmCounters::read(&folder)).or(last);
                if stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                    return last;
                }
            }
        });
        Self { stop, thread }
    }

    /// The last complete reading; `None` when debugfs cannot be read here (it takes root).
    pub fn finish(self) -> Option<KvmCounters> {
        drop(self.stop);
        self.thread.join().ok().flatten()
    }
}

fn guest_folder(pid: u32) -> Option<PathBuf> {
    let prefix = format!("{pid}-");
    let entries = fs::read_dir(FOLDER).ok()?;
    entries.flatten().find(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_several_guests_add_up() {
        let line = |text| KvmCounters::from_record(&Record::parse(text).unwrap());
        let mut sum = line("kvm exits=5 hypercalls=2");
        sum.add(&line("kvm exits=7 halt_exits=1"));
        assert_eq!((sum.get("exits"), sum.get("hypercalls"), sum.get("halt_exits"), sum.get("other")), (12, 2, 1, 0));
    }

    #[test]
    fn a_statistic_that_is_missing_spoils_the_sample() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(KvmCounters::read(folder.path()), None);
        for name in NAMES {
            fs::write(folder.path().join(name), "3\n").unwrap();
        }
        assert_eq!(KvmCounters::read(folder.path()).unwrap().get("exits"), 3);
    }

    #[test]
    fn the_first_level_machine_samples_the_same_list() {
        let script = include_str!("nested/init.sh");
        assert!(NAMES.iter().all(|name| script.contains(name)));
    }
}
