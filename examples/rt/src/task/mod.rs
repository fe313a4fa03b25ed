//! Tasks: many more than CPUs, preempted by the timer, each with a stack of its own. They run from [`run`] until all have ended.
//!
//! ```text
//!              switch in                                  its function returned
//!   Runnable ───────────▶ Running ─────────────────────────────────────────────▶ Ended
//!      ▲  ▲                │   │
//!      │  └── preempted ───┘   │ park, and no token
//!      │      or yields        ▼
//!      │                    Parking ── its context is saved ──▶ Parked
//!      └──────────────────────── unparked ───────────────────────┘
//! ```
//!
//! A context is saved by whoever comes after it on that CPU (`sched::after_switch`). Only then others may take it: so a task that
//! is on its way out is put into a run queue, or found to have been unparked, there. Nobody ever waits for another CPU to let go.

mod parker;
mod sched;
mod switch;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};

use crate::work::run_on_all;

pub use parker::TaskParker;
pub use sched::{idle_cycles, yield_now};
pub(crate) use sched::{need_resched, on_timer, preempt_enabled, yield_if_task};

/// What a task does.
pub type Body = Box<dyn FnOnce() + Send>;

/// How long a task may run while others wait, in µs.
const SLICE_US: u64 = 4000;

/// One task.
struct Task {
    state: AtomicU8,
    /// An unpark that no park has taken yet.
    token: AtomicBool,
    /// Number of the CPU it runs on, plus one; 0 while it does not run.
    on: AtomicU32,
    /// Number of the CPU it ran on last.
    last: AtomicU32,
    /// The context while it does not run. Used by the CPU that switches from or to it.
    saved: UnsafeCell<switch::Saved>,
    /// Taken by the task itself when it first runs.
    body: UnsafeCell<Option<Body>>,
}

// SAFETY: the cells are used by one CPU at a time: the one that took the task out of a run queue, which happens once per entry.
unsafe impl Sync for Task {}

const RUNNABLE: u8 = 0;
const RUNNING: u8 = 1;
const PARKING: u8 = 2;
const PARKED: u8 = 3;
const ENDED: u8 = 4;

/// The tasks of the run in progress.
static TASKS: AtomicPtr<Vec<Task>> = AtomicPtr::new(core::ptr::null_mut());

fn tasks() -> &'static [Task] {
    // ORDERING: Acquire, pair TASKS-SET (in `run`).
    let tasks = TASKS.load(Ordering::Acquire);
    // SAFETY: null, or a vector that is never freed and not changed any more.
    unsafe { tasks.as_ref() }.map_or(&[], |tasks| tasks)
}

/// Runs `bodies` as tasks on all CPUs, interrupts on, and returns when all have returned. Called by the boot CPU, outside tasks.
///
/// Stacks and what else belongs to the tasks is not given back: guests run a few times and end.
pub fn run(bodies: Vec<Body>) {
    let task = |(index, body): (usize, Body)| Task {
        state: AtomicU8::new(RUNNABLE),
        token: AtomicBool::new(false),
        on: AtomicU32::new(0),
        last: AtomicU32::new((index % crate::cpu_count()) as u32),
        saved: UnsafeCell::new(switch::prepare(sched::begin)),
        body: UnsafeCell::new(Some(body)),
    };
    let tasks: Vec<Task> = bodies.into_iter().enumerate().map(task).collect();
    // ORDERING: Release, pair TASKS-SET (in `tasks`).
    TASKS.store(Box::leak(Box::new(tasks)), Ordering::Release);
    sched::fill();
    run_on_all(&|cpu| sched::serve(cpu, SLICE_US));
}
