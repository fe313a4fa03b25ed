//! One guest from start to end: its lines, how it ended, what that means, and when trying again is honest.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::backend::{Backend, Guest, KvmCounters, Running};
use crate::line::{self, Record};
use crate::process::{Event, Line};

/// Boots, at most, until one brings a result.
const TRIES: usize = 3;

/// How long a guest may say nothing, if its limit is not shorter: a boot or a guest that hangs is noticed early. Guests say something
/// at the start and the end of every interval, and an interval is at most a minute.
const SILENCE: Duration = Duration::from_secs(75);

/// The same before a guest's first line: five times what each stage of a boot takes when the machine is idle.
const BOOT_SILENCE: Duration = Duration::from_secs(45);

/// How long a QEMU may take to end after its guest has.
const GRACE: Duration = Duration::from_secs(5);

/// How many lines of a failed guest are shown.
const LAST_LINES: usize = 15;

/// What QEMU says when KVM cannot go on with a guest.
const KVM_GAVE_UP: &str = "KVM internal error";

/// QEMU's exit codes as `isa-debug-exit` makes them from what the guest writes: (value << 1) | 1.
const EXIT_SUCCESS: i32 = 33;
const EXIT_FAILURE: i32 = 35;
const EXIT_PANIC: i32 = 37;

/// Kinds of machine line that say who the guest is or where it stands, but bring no result.
const NO_RESULT: [&str; 5] = ["host", "mark", "counters", "error", "end"];

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The guest's QEMU ended with this code.
    Exit(i32),
    /// The machine around the guest ended and never told how the guest did.
    Lost(String),
    /// Killed when the time for the whole run was up.
    Limit(Duration),
    /// Killed after a silence of this length.
    Silent(Duration),
}

/// Everything one run brought.
#[derive(Debug)]
pub struct Outcome {
    /// All lines of the guest, in order.
    pub lines: Vec<Line>,
    pub kvm: Option<KvmCounters>,
    pub end: End,
    /// QEMU's own complaints, warnings left out.
    pub complaints: Vec<String>,
}

/// Why a run counts as failed: one sentence, and the guest's last lines.
#[derive(Debug)]
pub struct Failure {
    pub sentence: String,
    pub last_lines: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// Called with each line of the guest as it comes.
pub type OnLine<'a> = &'a mut dyn FnMut(&Line) -> Result<()>;

impl Outcome {
    /// The machine lines, each with its position in time.
    pub fn stamped_records(&self) -> impl Iterator<Item = (Instant, Record)> + '_ {
        self.lines.iter().filter_map(|line| Some((line.at, Record::parse(&line.text)?)))
    }

    /// The machine lines of one kind.
    pub fn records<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = Record> + 'a {
        self.stamped_records().map(|(_, record)| record).filter(move |record| record.kind == kind)
    }

    /// Whether the guest did what it was meant to.
    pub fn verdict(&self) -> Result<(), Failure> {
        match self.fault() {
            None => Ok(()),
            Some(sentence) => {
                let from = self.lines.len().saturating_sub(LAST_LINES);
                Err(Failure { sentence, last_lines: self.lines[from..].iter().map(|line| line.text.clone()).collect() })
            }
        }
    }

    fn fault(&self) -> Option<String> {
        if let Some(error) = self.records("error").next() {
            return Some(format!("the guest says: {}", error.get("message").unwrap_or("error")));
        }
        if let Some(wrong) = self.records("result").find(|result| result.get("sum").is_some_and(|sum| sum != "ok")) {
            let field = |key| wrong.get(key).unwrap_or("?");
            return Some(format!("the count is wrong in round {} of lock {}", field("round"), field("lock")));
        }
        let status = self.records("end").last();
        match (&self.end, status.as_ref().and_then(|end| end.get("status"))) {
            (End::Exit(EXIT_SUCCESS), Some("ok")) => None,
            (End::Exit(EXIT_SUCCESS), _) => Some("the guest ended without the line `end status=ok`".to_owned()),
            (End::Exit(EXIT_FAILURE), _) => Some("the guest reports a failure".to_owned()),
            (End::Exit(EXIT_PANIC), _) => Some("the guest panicked".to_owned()),
            (End::Exit(0), _) => Some("the guest reset or switched off its machine".to_owned()),
            (End::Exit(code), _) => Some(match self.complaints.first() {
                Some(complaint) if self.refused() => format!("QEMU did not start the guest: {complaint}"),
                Some(complaint) => format!("QEMU ended with code {code}: {complaint}"),
                None => format!("QEMU ended with code {code} and did not say why"),
            }),
            (End::Lost(reason), _) => Some(reason.clone()),
            (End::Silent(limit), _) => Some(format!("the guest said nothing for {} s", limit.as_secs())),
            (End::Limit(limit), _) => Some(format!("the guest did not end within {} s", limit.as_secs())),
        }
    }

    /// Whether QEMU ended before the guest said a word, complaining: it will do so again.
    fn refused(&self) -> bool {
        !self.complaints.is_empty() && self.records("host").next().is_none()
    }

    /// Whether the machine stopped under a guest that had done nothing wrong: it hung, or was lost, and what it had reported
    /// until then holds.
    pub fn was_cut_short(&self) -> bool {
        let said_why = self.records("error").next().is_some();
        let wrong = self.records("result").any(|result| result.get("sum").is_some_and(|sum| sum != "ok"));
        matches!(self.end, End::Lost(_) | End::Limit(_) | End::Silent(_)) && !said_why && !wrong
    }

    /// Whether another boot may bring what this one did not. Only a run that died by itself before any result is
    /// repeated: a guest that reports a failure, or that failed after a result, has failed.
    fn worth_another_try(&self) -> bool {
        let result = self.stamped_records().any(|(_, record)| !NO_RESULT.contains(&record.kind.as_str()));
        let said_why = self.records("error").next().is_some() || (self.refused() && matches!(self.end, End::Exit(_)));
        let ended_itself = matches!(self.end, End::Exit(EXIT_SUCCESS | EXIT_FAILURE | EXIT_PANIC));
        !(result || said_why || ended_itself)
    }
}

/// Runs `guest`, again when a run died without any result, at most three times; each repetition is shown.
pub fn run(backend: &Backend, guest: &Guest, on_line: OnLine) -> Result<Outcome> {
    let mut tried = 1;
    loop {
        let outcome = once(backend, guest, on_line)?;
        let Err(failure) = outcome.verdict() else { return Ok(outcome) };
        if tried == TRIES || !outcome.worth_another_try() {
            return Ok(outcome);
        }
        tried += 1;
        let last = failure.last_lines.last().map(|line| format!(", its last line: {line}")).unwrap_or_default();
        eprintln!("no result came ({failure}{last}); try {tried} of {TRIES}");
    }
}

/// Runs `guest` once; if QEMU refuses a CPU flag that can be done without, once more without it.
pub fn once(backend: &Backend, guest: &Guest, on_line: OnLine) -> Result<Outcome> {
    let outcome = follow(backend.start(guest)?, guest, on_line)?;
    let remedy = outcome.complaints.iter().find_map(|complaint| backend.remedy(complaint));
    match remedy {
        Some(flag) if outcome.refused() && !guest.cpu_flags.iter().any(|f| f == flag) => {
            let cpu_flags: Vec<String> = guest.cpu_flags.iter().cloned().chain([flag.to_owned()]).collect();
            once(backend, &Guest { cpu_flags: &cpu_flags, ..guest.clone() }, on_line)
        }
        _ => Ok(outcome),
    }
}

/// Reads what a started guest says until it ends, is silent for too long, or `limit` is over; then nothing of it is left running.
fn follow(running: Running, guest: &Guest, on_line: OnLine) -> Result<Outcome> {
    let (limit, silence) = (guest.limit, guest.silence.unwrap_or(SILENCE));
    let Running { mut child, sampler, first_level, file } = running;
    let end = Instant::now() + limit;
    let mut reader = Reader::default();
    let mut silent_since = Instant::now();
    let stopped = loop {
        let silence = if reader.lines.is_empty() { BOOT_SILENCE } else { silence };
        match child.next(end.min(silent_since + silence)) {
            Event::Closed => break None,
            Event::Deadline if Instant::now() >= end => break Some(End::Limit(limit)),
            Event::Deadline => break Some(End::Silent(silence)),
            Event::Complaint(text) => {
                reader.complaints.extend(complaints([text.as_str()]));
                if text.starts_with(KVM_GAVE_UP) {
                    // QEMU stops the guest then but stays itself, for a debugger.
                    break Some(End::Lost(format!("KVM stopped the guest ({text})")));
                }
            }
            // The first-level kernel has a last word of its own when it switches off.
            Event::Line(_) if reader.exit.is_some() => {}
            Event::Line(line) if first_level && reader.take_first_level(&line)? => silent_since = line.at,
            Event::Line(line) => {
                silent_since = line.at;
                on_line(&line)?;
                reader.lines.push(line);
            }
        }
    };
    let status = if stopped.is_none() { child.wait(Instant::now() + GRACE)? } else { None };
    drop(child);
    drop(file);
    if let Some(sampler) = sampler {
        reader.kvm = sampler.finish();
    }
    let end = match (reader.exit, stopped, status) {
        (Some(code), _, _) => End::Exit(code),
        (None, Some(end), _) => end,
        (None, None, Some(status)) if !first_level => match status.code() {
            Some(code) => End::Exit(code),
            None => End::Lost(format!("QEMU was ended by {status}")),
        },
        (None, None, Some(_)) => End::Lost(match reader.complaints.first() {
            Some(complaint) => format!("QEMU did not run the first-level machine: {complaint}"),
            None => "the first-level machine ended before its guest did".to_owned(),
        }),
        (None, None, None) => End::Lost("QEMU closed its output but did not end".to_owned()),
    };
    Ok(Outcome { lines: reader.lines, kvm: reader.kvm, end, complaints: reader.complaints })
}

/// What has come so far.
#[derive(Default)]
struct Reader {
    lines: Vec<Line>,
    kvm: Option<KvmCounters>,
    exit: Option<i32>,
    complaints: Vec<String>,
}

impl Reader {
    /// Takes a line that the first-level machine itself printed; `false` if it is the guest's.
    fn take_first_level(&mut self, line: &Line) -> Result<bool> {
        if let Some(words) = line::for_people(&line.text).and_then(|text| text.strip_prefix("qemu: ")) {
            self.complaints.extend(complaints([words]));
            return Ok(true);
        }
        let Some(record) = Record::parse(&line.text) else { return Ok(false) };
        match record.kind.as_str() {
            "kvm" => self.kvm = Some(KvmCounters::from_record(&record)),
            "guest" => self.exit = Some(i32::try_from(record.number("exit")?)?),
            "l1" => {
                if let Some(error) = record.get("error") {
                    bail!("the first-level machine cannot run guests: {error}");
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// QEMU's error messages among `lines`, without the program's name.
fn complaints<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let own_name = format!("{}: ", crate::qemu::BINARY);
    lines
        .into_iter()
        .map(|line| line.strip_prefix(&own_name).unwrap_or(line).trim())
        .filter(|line| !line.is_empty() && !line.contains("warning: "))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lines: &[&str], end: End, complaint: &str) -> Outcome {
        let lines = lines.iter().map(|&text| Line { at: Instant::now(), text: text.to_owned() }).collect();
        Outcome { lines, kvm: None, end, complaints: complaints(complaint.lines()) }
    }

    fn sentence(outcome: &Outcome) -> String {
        outcome.verdict().expect_err("a failure").sentence
    }

    #[test]
    fn success_takes_exit_code_end_line_and_right_sums() {
        let good = ["host vcpus=1", "result round=0 lock=spin sum=ok", "end status=ok"];
        assert!(outcome(&good, End::Exit(33), "").verdict().is_ok());
        let cut = outcome(&good[..2], End::Exit(33), "");
        assert!(sentence(&cut).contains("end status=ok") && !cut.worth_another_try());
        let wrong = outcome(&["result round=1 lock=spin sum=wrong", "end status=ok"], End::Exit(33), "");
        assert_eq!(sentence(&wrong), "the count is wrong in round 1 of lock spin");
        assert!(!wrong.worth_another_try());
    }

    #[test]
    fn only_a_run_that_died_without_a_result_is_repeated() {
        let lost = End::Lost("gone".to_owned());
        let limit = End::Limit(Duration::from_secs(9));
        assert!(outcome(&["host vcpus=4", "mark start round=0"], lost.clone(), "").worth_another_try());
        assert!(outcome(&[], limit.clone(), "").worth_another_try());
        assert!(outcome(&[], End::Silent(Duration::from_secs(9)), "").worth_another_try());
        assert!(outcome(&["host vcpus=4"], End::Exit(0), "").worth_another_try());
        assert!(!outcome(&["result round=0 sum=ok"], lost, "").worth_another_try());
        assert!(!outcome(&["steal cpu=0 flips=3"], limit, "").worth_another_try());
        for code in [33, 35, 37] {
            assert!(!outcome(&["host vcpus=4"], End::Exit(code), "").worth_another_try());
        }
    }

    #[test]
    fn what_a_guest_reported_before_its_machine_hung_holds() {
        let silent = End::Silent(Duration::from_secs(9));
        let hung = outcome(&["result round=0 lock=spin sum=ok", "mark start round=1"], silent.clone(), "");
        assert!(hung.was_cut_short());
        assert_eq!(sentence(&hung), "the guest said nothing for 9 s");
        assert!(!outcome(&["result round=0 lock=spin sum=wrong"], silent.clone(), "").was_cut_short());
        assert!(!outcome(&["error message=\"no\""], silent, "").was_cut_short());
        assert!(!outcome(&["result round=0 lock=spin sum=ok"], End::Exit(37), "").was_cut_short());
    }

    #[test]
    fn a_qemu_that_refuses_is_quoted_and_not_asked_again() {
        let stderr =
            "qemu-system-x86_64: warning: TCG doesn't support X\nqemu-system-x86_64: Property 'foo' not found\n";
        let refused = outcome(&[], End::Exit(1), stderr);
        assert_eq!(sentence(&refused), "QEMU did not start the guest: Property 'foo' not found");
        assert!(!refused.worth_another_try());
        let broke = outcome(&["host vcpus=1"], End::Exit(1), "KVM internal error");
        assert!(sentence(&broke).starts_with("QEMU ended with code 1: KVM"));
    }

    #[test]
    fn the_last_lines_of_a_failure_are_kept() {
        let lines: Vec<String> = (0..40).map(|n| format!("# line {n}")).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let failure = outcome(&lines, End::Limit(Duration::from_secs(7)), "").verdict().unwrap_err();
        assert_eq!((failure.last_lines.len(), failure.last_lines[14].as_str()), (15, "# line 39"));
        assert_eq!(failure.to_string(), "the guest did not end within 7 s");
    }
}
