//! Child processes that never outlive this one, with their output line by line as it comes.
//!
//! Three nets, since a forgotten QEMU burns a CPU for ever: a [`Child`] kills its whole process group when it is
//! dropped; Ctrl-C and SIGTERM kill every group that is alive; and the kernel itself kills the child when we die
//! without a chance to do either (`PR_SET_PDEATHSIG`).

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigHandler, Signal, killpg, signal};
use nix::unistd::{Pid, getpid, getppid};

/// Exit code after Ctrl-C, as shells have it: 128 + SIGINT.
pub const INTERRUPTED: u8 = 130;

/// How often a child that should end is looked at.
const POLL: Duration = Duration::from_millis(10);

/// The process groups that are alive, each named by its first process.
static LIVE: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<i32>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The processes started by [`Child::spawn`] that are still alive.
pub fn live_children() -> Vec<i32> {
    live().iter().copied().collect()
}

/// Whether the next interrupt stops the children only, and whether there was one.
static RESULTS_ARE_KEPT: AtomicBool = AtomicBool::new(false);
static INTERRUPTED_ONCE: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C, SIGTERM and SIGHUP kill every child before this process ends.
pub fn kill_children_on_interrupt() -> Result<()> {
    ctrlc::set_handler(|| {
        // Known before the children are gone: whoever finds them gone asks for the reason.
        let kept = RESULTS_ARE_KEPT.swap(false, Ordering::SeqCst);
        INTERRUPTED_ONCE.store(true, Ordering::SeqCst);
        // Held until the process is gone, so that no new child can slip in behind the loop.
        let live = live();
        for &group in live.iter() {
            kill_group(group);
        }
        if kept {
            return;
        }
        eprintln!("xtask: interrupted");
        std::process::exit(INTERRUPTED.into());
    })
    .context("cannot install the handler for Ctrl-C")
}

/// From now on the first interrupt kills the children and nothing else, so that what they brought can be reported.
pub fn keep_results_on_interrupt() {
    RESULTS_ARE_KEPT.store(true, Ordering::SeqCst);
}

/// Whether there was an interrupt.
pub fn was_interrupted() -> bool {
    INTERRUPTED_ONCE.load(Ordering::SeqCst)
}

/// Makes a reader that goes away, as in `... | head`, end this process quietly, children and all, not in a panic.
pub fn end_with_reader_of_output() -> Result<()> {
    // SAFETY: the default action is no handler, so nothing runs in a signal's context.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }.context("cannot reset SIGPIPE")?;
    Ok(())
}

fn kill_group(group: i32) {
    // An error means that nobody is left in the group: nothing to do.
    let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
}

/// One line of a child's output, without its line end.
#[derive(Debug, Clone)]
pub struct Line {
    /// When the end of the line arrived here, by this machine's monotonic clock.
    pub at: Instant,
    pub text: String,
}

/// What [`Child::next`] came back with.
#[derive(Debug)]
pub enum Event {
    /// A line of its output.
    Line(Line),
    /// A line of its error output.
    Complaint(String),
    /// The child closed both: it has ended or is about to.
    Closed,
    /// Nothing came before the deadline.
    Deadline,
}

/// A running child process in a process group of its own.
#[derive(Debug)]
pub struct Child {
    inner: std::process::Child,
    events: Receiver<Event>,
}

impl Child {
    /// Starts `command`, restricted to `cpus` if given, with no input and its output read from now on.
    ///
    /// To be called from the main thread only: the kernel's kill-on-death follows the *thread* that started a child.
    pub fn spawn(mut command: Command, cpus: Option<CpuSet>) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let parent = getpid();
        let prepare = move || {
            set_pdeathsig(Signal::SIGKILL)?;
            if getppid() != parent {
                // We died before the call above, so its signal will never come.
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if let Some(cpus) = &cpus {
                sched_setaffinity(Pid::from_raw(0), cpus)?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec `prepare` makes three system calls on values it owns; it takes no lock and
        // does not allocate.
        unsafe { command.pre_exec(prepare) };

        let mut live = live();
        let mut inner = command.spawn().with_context(|| format!("cannot start {name}"))?;
        live.insert(inner.id() as i32);
        drop(live);

        let (sender, events) = mpsc::channel();
        let output = inner.stdout.take().context("the child has no output pipe")?;
        let errors = inner.stderr.take().context("the child has no error pipe")?;
        forward(output, sender.clone(), |at, text| Event::Line(Line { at, text }));
        forward(errors, sender, |_, text| Event::Complaint(text));
        Ok(Self { inner, events })
    }

    /// Process id, which is also that of the process group.
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// The next line of either output, waited for until `deadline`.
    pub fn next(&self, deadline: Instant) -> Event {
        match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => Event::Deadline,
            Err(RecvTimeoutError::Disconnected) => Event::Closed,
        }
    }

    /// Waits until the child has ended, or returns `None` at the deadline.
    pub fn wait(&mut self, deadline: Instant) -> Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.inner.try_wait().context("cannot wait for a child process")? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(POLL);
        }
    }

    fn kill(&mut self) {
        let group = self.inner.id() as i32;
        let mut live = live();
        if !live.remove(&group) {
            return;
        }
        // Still under the lock: whoever interrupts us now finds the group either listed or killed.
        kill_group(group);
        drop(live);
        // An error means that it was waited for already.
        let _ = self.inner.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads `pipe` line by line in a thread of its own and sends what `event` makes of each.
fn forward(pipe: impl Read + Send + 'static, sender: Sender<Event>, event: fn(Instant, String) -> Event) {
    thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            let at = Instant::now();
            let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned();
            bytes.clear();
            if sender.send(event(at, text)).is_err() {
                break;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Child::spawn(command, None).expect("sh starts")
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn lines_come_one_by_one_and_then_the_end() {
        let mut child = shell("printf 'one\\r\\ntwo'; exec >&-; echo bad >&2; exit 3");
        let (mut lines, mut complaints) = (Vec::new(), Vec::new());
        loop {
            match child.next(soon()) {
                Event::Line(line) => lines.push(line.text),
                Event::Complaint(text) => complaints.push(text),
                Event::Closed => break,
                Event::Deadline => panic!("the child hangs"),
            }
        }
        assert_eq!((lines, complaints), (vec!["one".to_owned(), "two".to_owned()], vec!["bad".to_owned()]));
        assert_eq!(child.wait(soon()).unwrap().unwrap().code(), Some(3));
    }

    #[test]
    fn a_silent_child_is_given_up_at_the_deadline_and_killed_with_its_own_children() {
        let child = shell("sleep 1000 & echo $!; wait");
        let Event::Line(grandchild) = child.next(soon()) else { panic!("no line") };
        assert!(matches!(child.next(Instant::now() + Duration::from_millis(20)), Event::Deadline));
        drop(child);
        let stat = format!("/proc/{}/stat", grandchild.text);
        let gone = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        let deadline = soon();
        while !gone() && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        assert!(gone());
    }
}
