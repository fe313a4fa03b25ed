//! The cost of an uncontended lock, of the very machine code that was built for `x86_64-unknown-none`.
//!
//! An image of `tests/cost-image` is loaded into this process and its probes are called: once instruction by instruction, to count what
//! is executed, and many times at full speed. What user space may not execute is skipped while counting, and then nothing is timed.

mod count;
mod cpu;
mod load;
#[path = "../../cost-image/src/table.rs"]
mod table;
mod time;

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;

pub use count::{Part, Round};
pub use time::{Clock, Samples};

use load::Loaded;

/// An image that was built.
#[derive(Debug)]
pub struct Built {
    /// How, in a word.
    pub build: String,
    /// The contents of its file.
    pub file: Vec<u8>,
}

/// The cost of one probe.
#[derive(Debug, Serialize)]
pub struct Cost {
    /// How its image was built.
    pub build: String,
    /// The crate that the lock is from; `limit` for what the processor allows.
    pub from: String,
    /// The lock's type, in the words of its crate.
    pub lock: String,
    /// How the lock asks which CPU it runs on; empty where it does not.
    pub form: String,
    /// What happens to the CPU meanwhile; empty where the lock's own name says it.
    pub guard: String,
    /// `lock`, `read` or `write`.
    pub operation: String,
    /// Whether the kernel has decided that waiters halt; `None` for locks that do not know of it.
    pub halting: Option<bool>,
    /// Size around `()`.
    pub bytes: usize,
    /// Size around a `u64`.
    pub bytes_around_u64: usize,
    /// What is executed.
    pub round: Round,
    /// Cycles of the time-stamp counter for taking and releasing, one sample per run; empty where user space may not execute all of it.
    #[serde(skip)]
    pub cycles: Vec<f64>,
}

/// All costs.
#[derive(Debug)]
pub struct Costs {
    /// One per probe, build and decision.
    pub rows: Vec<Cost>,
    /// Length of a cycle of the time-stamp counter.
    pub ns_per_cycle: f64,
}

/// A probe in a loaded image, with what is known of it.
struct Subject<'a> {
    image: &'a Loaded,
    many: extern "C" fn(u64),
    cost: Cost,
    samples: Samples,
}

/// Counts all probes of `images`, and times them `runs` times, in turn, on one CPU.
///
/// # Errors
/// When an image is none, when its probes do not behave, or when this process may not do what that takes.
///
/// # Panics
/// When the thread that measures does: a mistake here.
pub fn measure(images: &[Built], runs: usize) -> Result<Costs> {
    // A thread of its own: its gs base and its CPU are not those of the others.
    std::thread::scope(|scope| {
        scope.spawn(|| measure_here(images, runs)).join().expect("the measuring thread panicked")
    })
}

fn measure_here(images: &[Built], runs: usize) -> Result<Costs> {
    pin()?;
    let handlers = cpu::Handlers::install()?;
    let mut loaded = Vec::new();
    for image in images {
        for halting in [false, true] {
            let ready =
                Loaded::new(&image.file, halting).with_context(|| format!("in the image built {}", image.build))?;
            loaded.push((image.build.as_str(), halting, ready));
        }
    }
    let mut subjects = Vec::new();
    for (build, halting, image) in &loaded {
        image.enter()?;
        for probe in image.probes() {
            let name = probe.name.to_str().context("the name of a probe")?;
            let cost = Cost::new(build, name, *halting, probe)?;
            if cost.halting.is_none() && *halting {
                continue;
            }
            let round = count::round(image, probe.once).with_context(|| format!("{name}, built {build}"))?;
            subjects.push(Subject {
                image,
                many: probe.many,
                cost: Cost { round, ..cost },
                samples: Samples::default(),
            });
        }
    }
    let clock = Clock::start();
    for _ in 0..runs {
        for subject in subjects.iter_mut().filter(|subject| subject.cost.round.privileged() == 0) {
            subject.image.enter()?;
            subject.samples.take(subject.many);
        }
    }
    let ns_per_cycle = clock.ns_per_cycle();
    drop(handlers);
    let rows = subjects.into_iter().map(|subject| Cost { cycles: subject.samples.all(), ..subject.cost }).collect();
    Ok(Costs { rows, ns_per_cycle })
}

/// Keeps this thread on the CPU it may use first.
fn pin() -> Result<()> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).context("cannot read which CPUs this process may use")?;
    let first = (0..CpuSet::count()).find(|&cpu| allowed.is_set(cpu).unwrap_or(false)).context("no CPU may be used")?;
    let mut set = CpuSet::new();
    set.set(first).context("CPU number too high for an affinity set")?;
    sched_setaffinity(this, &set).context("cannot stay on one CPU")
}

impl Cost {
    fn new(build: &str, name: &str, halting: bool, probe: &table::Probe) -> Result<Self> {
        let words: Vec<&str> = name.split('|').collect();
        ensure!(words.len() == 5, "the probe {name:?} is not named in five words");
        let word = |at: usize| words[at].to_owned();
        Ok(Self {
            build: build.to_owned(),
            from: word(0),
            lock: word(1),
            form: word(2),
            guard: word(3),
            operation: word(4),
            halting: words[0].starts_with("pvlock").then_some(halting),
            bytes: probe.bytes,
            bytes_around_u64: probe.bytes_around_u64,
            round: Round::default(),
            cycles: Vec::new(),
        })
    }
}
