//! What a run of the guest `overcommit` measured: one sample per round and lock, timed by this machine's clock.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::backend::{Backend, Guest};
use crate::boot::{self, Outcome};
use crate::line::Record;
use crate::machine::CpuTime;
use crate::process::Line;
use crate::progress;

/// CPUs' worth of other work on this machine above which a sample is set aside. With one of two CPUs taken away a
/// fair lock at "1x" measures as if at 2x.
pub const FOREIGN_LIMIT: f64 = 0.12;

/// One lock in one round.
#[derive(Debug, Clone)]
pub struct Sample {
    pub lock: String,
    /// Acquisitions by all vCPUs together, per second.
    pub ops_per_s: f64,
    /// Acquisitions of each vCPU.
    pub per_vcpu: Vec<u64>,
    pub max_wait_us: f64,
    /// The lock's own event counters; only ours has any.
    pub counters: BTreeMap<String, u64>,
    /// CPUs used by everything else on this machine meanwhile.
    pub foreign: f64,
    /// CPUs used by us, which is by the machine that runs the guest.
    pub own: f64,
}

impl Sample {
    pub fn is_clean(&self) -> bool {
        self.foreign <= FOREIGN_LIMIT
    }
}

/// A round of a lock: `(round, lock)`.
type Interval = (u64, String);

fn interval(record: &Record) -> Result<Interval> {
    Ok((record.number("round")?, record.text("lock")?.to_owned()))
}

/// Reads the machine's CPU clocks whenever an interval begins or ends. To be fed with every line as it comes.
#[derive(Debug, Default)]
pub struct ForeignWatch {
    start: Option<CpuTime>,
    used: BTreeMap<Interval, Used>,
}

/// CPUs used during an interval.
#[derive(Debug, Clone, Copy)]
struct Used {
    foreign: f64,
    own: f64,
}

impl ForeignWatch {
    /// Takes one line; returns the interval that it begins, if it does.
    pub fn observe(&mut self, line: &Line) -> Result<Option<Interval>> {
        let Some(mark) = Record::parse(&line.text).filter(|record| record.kind == "mark") else { return Ok(None) };
        let now = CpuTime::now()?;
        if mark.has_word("start") {
            self.start = Some(now);
            return interval(&mark).map(Some);
        }
        if let Some(start) = self.start.take() {
            let used = Used { foreign: now.foreign_since(&start), own: now.own_since(&start) };
            self.used.insert(interval(&mark)?, used);
        }
        Ok(None)
    }
}

/// What one boot brought.
#[derive(Debug)]
pub struct Boot {
    pub samples: Vec<Sample>,
    pub outcome: Outcome,
}

/// Boots `guest`, an `overcommit` of `rounds` rounds, and measures it; `what` describes it. Of a machine that hung, what the guest had
/// finished is kept.
pub fn boot(backend: &Backend, guest: &Guest, what: &str, rounds: u32) -> Result<Boot> {
    let spinner = progress::spinner(format!("{what}: booting"));
    let mut watch = ForeignWatch::default();
    let outcome = boot::run(backend, guest, &mut |line| {
        if let Some((round, lock)) = watch.observe(line)? {
            spinner.set_message(format!("{what}: round {} of {rounds}, {lock}", round + 1));
        }
        Ok(())
    });
    spinner.finish_and_clear();
    let outcome = outcome?;
    let samples = samples(&outcome, &watch)?;
    if let Err(failure) = outcome.verdict() {
        let lines = failure.last_lines.join("\n");
        ensure!(outcome.was_cut_short() && !samples.is_empty(), "{failure}, with {what}; its last lines:\n{lines}");
        eprintln!(
            "the machine hung ({failure}), with {what}; the {} samples it had finished are kept; its last lines:\n{lines}",
            samples.len()
        );
    }
    Ok(Boot { samples, outcome })
}

/// An interval being put together from its lines.
#[derive(Debug, Default)]
struct Parts {
    start: Option<(Instant, u64)>,
    stop: Option<(Instant, u64)>,
    result: Option<Record>,
    per_vcpu: Vec<u64>,
    counters: BTreeMap<String, u64>,
}

/// The samples of one run, in the order in which they were taken. Of a run that was cut short, those that were finished.
pub fn samples(outcome: &Outcome, watch: &ForeignWatch) -> Result<Vec<Sample>> {
    let mut order = Vec::new();
    let mut parts: BTreeMap<Interval, Parts> = BTreeMap::new();
    for (at, record) in outcome.stamped_records() {
        if !["mark", "result", "cpu", "counters"].contains(&record.kind.as_str()) {
            continue;
        }
        let key = interval(&record)?;
        let entry = parts.entry(key.clone()).or_insert_with(|| {
            order.push(key);
            Parts::default()
        });
        match record.kind.as_str() {
            "mark" if record.has_word("start") => entry.start = Some((at, record.number("tsc")?)),
            "mark" => entry.stop = Some((at, record.number("tsc")?)),
            "cpu" => entry.per_vcpu.push(record.number("acquisitions")?),
            "counters" => entry.counters = numbers(&record),
            _ => entry.result = Some(record),
        }
    }
    if outcome.was_cut_short() {
        // What comes last of an interval's lines are our lock's counters, and the next interval's mark.
        order.pop();
    }
    let build = |key: Interval| {
        let parts = parts.remove(&key).unwrap_or_default();
        let used = watch.used.get(&key).copied();
        sample(parts, &key, used).with_context(|| format!("round {} of lock {}", key.0, key.1))
    };
    order.into_iter().map(build).collect()
}

fn sample(parts: Parts, (_, lock): &Interval, used: Option<Used>) -> Result<Sample> {
    let (start, start_tsc) = parts.start.context("the guest printed no `mark start`")?;
    let (stop, stop_tsc) = parts.stop.context("the guest printed no `mark stop`")?;
    let result = parts.result.context("the guest printed no `result`")?;
    let seconds = stop.duration_since(start).as_secs_f64();
    ensure!(seconds > 0.0 && stop_tsc > start_tsc, "the marks are not apart in time");
    ensure!(
        parts.per_vcpu.len() as u64 == result.number("vcpus")?,
        "the guest printed {} `cpu` lines for {} vCPUs",
        parts.per_vcpu.len(),
        result.text("vcpus")?
    );
    let used = used.context("the interval was not watched")?;
    // The guest counts waits in its own cycles; what a microsecond is, the marks tell.
    let cycles_per_us = (stop_tsc - start_tsc) as f64 / (seconds * 1e6);
    Ok(Sample {
        lock: lock.clone(),
        ops_per_s: result.number("acquisitions")? as f64 / seconds,
        per_vcpu: parts.per_vcpu,
        max_wait_us: result.number("max_wait_cycles")? as f64 / cycles_per_us,
        counters: parts.counters,
        foreign: used.foreign,
        own: used.own,
    })
}

/// Every numeric field but the round.
fn numbers(record: &Record) -> BTreeMap<String, u64> {
    let fields = record.fields.iter().filter(|(key, _)| key != "round");
    fields.filter_map(|(key, value)| Some((key.clone(), value.parse().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot::End;
    use std::time::Duration;

    fn run(lines: &[(u64, &str)]) -> Result<Vec<Sample>> {
        let zero = Instant::now();
        let line = |&(ms, text): &(u64, &str)| Line { at: zero + Duration::from_millis(ms), text: text.to_owned() };
        let lines: Vec<Line> = lines.iter().map(line).collect();
        let mut watch = ForeignWatch::default();
        for line in &lines {
            watch.observe(line)?;
        }
        samples(&Outcome { lines, kvm: None, end: End::Exit(33), complaints: vec![] }, &watch)
    }

    #[test]
    fn rates_and_waits_come_from_the_host_clock() {
        let samples = run(&[
            (0, "mark start round=0 lock=pvlock tsc=1000"),
            (500, "mark stop round=0 lock=pvlock tsc=1001000"),
            (510, "result round=0 lock=pvlock vcpus=2 acquisitions=3000 handoffs=9 min=1000 max=2000 max_wait_cycles=4000 sum=ok"),
            (511, "cpu round=0 lock=pvlock cpu=0 acquisitions=1000"),
            (512, "cpu round=0 lock=pvlock cpu=1 acquisitions=2000"),
            (513, "counters round=0 lock=pvlock yields=7 halts=1"),
        ])
        .unwrap();
        assert_eq!(samples.len(), 1);
        let sample = &samples[0];
        assert!((sample.ops_per_s - 6000.0).abs() < 1e-6);
        // A million cycles in half a second: two cycles a microsecond.
        assert!((sample.max_wait_us - 2000.0).abs() < 1e-6);
        assert_eq!(sample.per_vcpu, [1000, 2000]);
        assert_eq!(sample.counters.len(), 2);
    }

    #[test]
    fn a_round_with_lines_missing_is_an_error_that_names_it() {
        let error = run(&[(0, "mark start round=4 lock=spin tsc=1")]).unwrap_err();
        assert_eq!(format!("{error:#}"), "round 4 of lock spin: the guest printed no `mark stop`");
    }
}
