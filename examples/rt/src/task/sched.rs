//! The scheduler: a run queue per CPU, the next task, and what happens between two.

use alloc::collections::VecDeque;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, Ordering::Relaxed, fence};

use pvlock::{CpuId, IrqSave, MAX_CPUS, SpinMutex};
use x86_64::instructions::interrupts;

use super::switch::{Saved, switch};
use super::{ENDED, PARKED, PARKING, RUNNABLE, RUNNING, Task, tasks};
use crate::cpu::RtCpu;
use crate::per_cpu::{current, preempt_count};
use crate::{clock, cpu_count, lapic, smp, work};

/// What one CPU has to do. The queue is under the library's own spinlock, as a kernel's would be.
struct Queue {
    tasks: SpinMutex<VecDeque<usize>, RtCpu, IrqSave>,
    /// The CPU halts, or is about to look once more before it does.
    idle: AtomicBool,
    /// The task that runs here, plus one; 0 for the CPU's own context.
    running: AtomicUsize,
    /// The task that was switched from, plus one; 0 for none. Used on this CPU, interrupts off.
    left: UnsafeCell<usize>,
    /// The CPU's own context while a task runs. Used on this CPU, interrupts off.
    own: UnsafeCell<Saved>,
    idle_cycles: AtomicU64,
    need_resched: AtomicBool,
}

// SAFETY: the cells are used by their CPU alone, interrupts off.
unsafe impl Sync for Queue {}

static QUEUES: [Queue; MAX_CPUS] = [const {
    Queue {
        tasks: SpinMutex::new(VecDeque::new()),
        idle: AtomicBool::new(false),
        running: AtomicUsize::new(0),
        left: UnsafeCell::new(0),
        own: UnsafeCell::new(0),
        idle_cycles: AtomicU64::new(0),
        need_resched: AtomicBool::new(false),
    }
}; MAX_CPUS];

/// Tasks that have not ended.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// This CPU's queue. Only with interrupts off does it stay this CPU's.
fn here() -> &'static Queue {
    &QUEUES[current().map_or(0, CpuId::index)]
}

/// The number of the task that runs here.
pub(super) fn running() -> Option<usize> {
    interrupts::without_interrupts(|| here().running.load(Relaxed).checked_sub(1))
}

/// Cycles in which CPUs had no task to run, all CPUs together, in all runs so far.
pub fn idle_cycles() -> u64 {
    // ORDERING: Relaxed, a statistic.
    QUEUES[..cpu_count()].iter().map(|queue| queue.idle_cycles.load(Relaxed)).sum()
}

/// Puts all tasks into the queues, before any CPU serves them.
pub(super) fn fill() {
    LEFT.store(tasks().len() as u32, Relaxed);
    // No allocation later on, with interrupts off: the heap's lock may be held by a task that is not on a CPU.
    QUEUES[..cpu_count()].iter().for_each(|queue| queue.tasks.lock().reserve(tasks().len()));
    for (index, task) in tasks().iter().enumerate() {
        QUEUES[task.last.load(Relaxed) as usize].tasks.lock().push_back(index);
    }
}

/// Runs tasks on this CPU until all have ended.
pub(super) fn serve(_: CpuId, slice_us: u64) {
    lapic::start_periodic_timer(slice_us);
    interrupts::disable();
    let queue = here();
    loop {
        if let Some(next) = next(queue) {
            go_to(queue, Some(next));
            continue;
        }
        // ORDERING: Relaxed first, SeqCst by the fence, pair TASK-IDLE (in `make_runnable` and `end`): either they see us idle, or we see
        // what they did.
        queue.idle.store(true, Relaxed);
        fence(Ordering::SeqCst);
        let since = clock::tsc();
        // Not `lock`: that may halt and take the kick that tells of work.
        let has_work = |queue: &Queue| queue.tasks.try_lock().is_none_or(|tasks| !tasks.is_empty());
        let work_is_there = || QUEUES[..cpu_count()].iter().any(has_work);
        work::halt_while(|| LEFT.load(Ordering::SeqCst) != 0 && !work_is_there());
        interrupts::disable();
        queue.idle.store(false, Relaxed);
        queue.idle_cycles.fetch_add(clock::tsc() - since, Relaxed);
        if LEFT.load(Ordering::SeqCst) == 0 {
            break;
        }
    }
    interrupts::enable();
    lapic::stop_timer();
}

/// The next task for this CPU: its own, else another CPU's.
fn next(queue: &Queue) -> Option<usize> {
    let own = queue.tasks.lock().pop_front();
    own.or_else(|| QUEUES[..cpu_count()].iter().find_map(|other| other.tasks.lock().pop_back()))
}

/// Goes on with task `next`, or with the CPU's own context. Returns when this context has its turn again, maybe on another CPU.
///
/// Interrupts are off.
fn go_to(queue: &'static Queue, next: Option<usize>) {
    let me = queue.running.load(Relaxed);
    let from: *mut Saved = match me.checked_sub(1) {
        Some(task) => tasks()[task].saved.get(),
        None => queue.own.get(),
    };
    let to = match next {
        // SAFETY: this CPU took the task out of a queue, where it was put with its context saved.
        Some(task) => unsafe { *tasks()[task].saved.get() },
        // SAFETY: saved when the CPU first went to a task; interrupts are off.
        None => unsafe { *queue.own.get() },
    };
    if let Some(task) = next.map(|task| &tasks()[task]) {
        let cpu = current().map_or(0, CpuId::index) as u32;
        task.state.store(RUNNING, Relaxed);
        task.last.store(cpu, Relaxed);
        task.on.store(cpu + 1, Relaxed);
    }
    queue.running.store(next.map_or(0, |task| task + 1), Relaxed);
    // SAFETY: this CPU's, interrupts off.
    unsafe { *queue.left.get() = me };
    // SAFETY: interrupts are off; `to` is saved and this CPU's to use; `from` lives as long as the tasks.
    unsafe { switch(from, to) };
    after_switch();
}

/// What the context that comes in does for the one that went out: its context is saved now, so others may have it.
fn after_switch() {
    // Not the queue from before the switch: this context may have been on another CPU.
    let queue = here();
    // SAFETY: this CPU's, interrupts off.
    let left = core::mem::take(unsafe { &mut *queue.left.get() });
    let Some(index) = left.checked_sub(1) else { return };
    let task = &tasks()[index];
    task.on.store(0, Relaxed);
    match task.state.load(Relaxed) {
        ENDED => {}
        PARKING => {
            // ORDERING: SeqCst by the fences, pair TASK-PARK (in `unpark`): either it sees us parked, or we see its token.
            task.state.store(PARKED, Ordering::Release);
            fence(Ordering::SeqCst);
            if task.token.load(Relaxed) {
                wake(index, task);
            }
        }
        _ => make_runnable(index, task),
    }
}

/// Where a new task begins.
pub(super) extern "C" fn begin() -> ! {
    after_switch();
    let index = here().running.load(Relaxed) - 1;
    // SAFETY: the task itself, which begins once.
    let body = unsafe { (*tasks()[index].body.get()).take() };
    interrupts::enable();
    if let Some(body) = body {
        body();
    }
    interrupts::disable();
    tasks()[index].state.store(ENDED, Relaxed);
    if LEFT.fetch_sub(1, Ordering::SeqCst) == 1 {
        smp::all().iter().for_each(|cpu| work::wake(cpu));
    }
    leave();
    unreachable!("a task that has ended ran again")
}

/// Gives this CPU to another task, or to its own context. Interrupts are off.
fn leave() {
    let queue = here();
    queue.need_resched.store(false, Relaxed);
    let next = next(queue);
    go_to(queue, next);
}

/// Lets another task run if one waits. Outside tasks it does nothing.
pub fn yield_now() {
    interrupts::without_interrupts(|| {
        let queue = here();
        if queue.running.load(Relaxed) == 0 {
            return;
        }
        queue.need_resched.store(false, Relaxed);
        if let Some(next) = next(queue) {
            // `after_switch` makes it runnable again.
            tasks()[queue.running.load(Relaxed) - 1].state.store(RUNNABLE, Relaxed);
            go_to(queue, Some(next));
        }
    });
}

/// As [`yield_now`], where that may be done: preemption is allowed and interrupts are on.
pub(crate) fn yield_if_task() {
    if interrupts::are_enabled() && preempt_count() == 0 {
        yield_now();
    }
}

/// The timer has interrupted this CPU. Interrupts are off, and the interrupted context is on its own stack.
pub(crate) fn on_timer() {
    let queue = here();
    if queue.running.load(Relaxed) == 0 {
        return;
    }
    if preempt_count() == 0 {
        yield_now();
    } else {
        queue.need_resched.store(true, Relaxed);
    }
}

/// Preemption is allowed again: what the timer wanted meanwhile is done now.
pub(crate) fn preempt_enabled() {
    if interrupts::are_enabled() && here().need_resched.load(Relaxed) {
        yield_now();
    }
}

/// Whether another task should run here.
pub(crate) fn need_resched() -> bool {
    here().need_resched.load(Relaxed)
}

/// Puts the calling task to sleep unless it has a token, which it takes.
pub(super) fn park() {
    interrupts::without_interrupts(|| {
        let Some(index) = here().running.load(Relaxed).checked_sub(1) else { return };
        let task = &tasks()[index];
        // ORDERING: Acquire, pair TASK-TOKEN (in `unpark`): what the waker wrote.
        if task.token.swap(false, Ordering::Acquire) {
            return;
        }
        task.state.store(PARKING, Relaxed);
        leave();
        task.token.swap(false, Ordering::Acquire);
    });
}

/// Wakes the task, or leaves it a token.
pub(super) fn unpark(index: usize) {
    let Some(task) = tasks().get(index) else { return };
    // ORDERING: Release, pair TASK-TOKEN (in `park`).
    task.token.store(true, Ordering::Release);
    // ORDERING: SeqCst, pair TASK-PARK (in `after_switch`).
    fence(Ordering::SeqCst);
    wake(index, task);
}

/// Makes a parked task runnable, once.
fn wake(index: usize, task: &Task) {
    // ORDERING: Acquire, pair with the Release in `after_switch`: its context is saved.
    if task.state.compare_exchange(PARKED, RUNNABLE, Ordering::Acquire, Relaxed).is_ok() {
        make_runnable(index, task);
    }
}

/// Puts a task whose context is saved into a queue: where it ran last, or where a CPU idles.
fn make_runnable(index: usize, task: &Task) {
    let cpus = &QUEUES[..cpu_count()];
    let last = task.last.load(Relaxed) as usize;
    let target = if cpus[last].idle.load(Relaxed) {
        last
    } else {
        cpus.iter().position(|queue| queue.idle.load(Relaxed)).unwrap_or(last)
    };
    cpus[target].tasks.lock().push_back(index);
    // ORDERING: SeqCst, pair TASK-IDLE (in `serve`).
    fence(Ordering::SeqCst);
    if cpus[target].idle.load(Relaxed) && current().map(CpuId::index) != Some(target) {
        work::wake(smp::all()[target]);
    }
}
