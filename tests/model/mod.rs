//! The host and the kernel of the loom models: model threads are CPUs, halting is a condition variable with a sticky kick.
#![allow(dead_code, reason = "each model uses a part")]

use std::cell::Cell;

use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};
use pvlock::hypervisor::{Hypervisor, Yielded};
use pvlock::lock::{Parker, TaskId, Whereabouts};
use pvlock::{Cpu, CpuId, MAX_CPUS};

/// What the model's host offers, and the CPU's hook: one type per kind of host.
pub trait Host: 'static {
    const SEES: bool = true;
    const YIELDS: bool = false;
    const HALTS: bool = false;
    /// Whether a CPU has said that it can be kicked.
    fn ready(_: CpuId) -> bool {
        true
    }
    /// Whether this halt returns for no reason.
    fn returns_at_once() -> bool {
        false
    }
    /// Whether the others read as preempted to the caller at this moment, where they can.
    fn preempted() -> bool {
        true
    }
    /// Called by every waiter in every round: an interrupt, for instance.
    fn relax() {}
    /// What a directed yield does besides letting the others run.
    fn yielded(_me: CpuId) {}
}

/// Everybody reads as running; there is no way to halt: unlocking is a plain store.
pub struct Spins;
impl Host for Spins {}

/// Everybody reads as preempted, and halts at the first look.
pub struct Halts;
impl Host for Halts {
    const HALTS: bool = true;
}

/// As [`Halts`], but everybody reads as running to those who have been parked.
pub struct RunsAfterParking;
impl Host for RunsAfterParking {
    const HALTS: bool = true;
    fn preempted() -> bool {
        !HAS_PARKED.with(Cell::get)
    }
}

/// As [`Halts`], but every other halt of a CPU returns for no reason.
pub struct Spurious;
impl Host for Spurious {
    const HALTS: bool = true;
    fn returns_at_once() -> bool {
        EVERY_OTHER.with(|flag| !flag.replace(!flag.get()))
    }
}

/// As [`Halts`], but CPU 1 has not said that it can be kicked.
pub struct OneNotReady;
impl Host for OneNotReady {
    const HALTS: bool = true;
    fn ready(cpu: CpuId) -> bool {
        cpu.index() != 1
    }
}

/// The state of preemption is unknown: waiters halt when their trust is used up.
pub struct Unknown;
impl Host for Unknown {
    const SEES: bool = false;
    const HALTS: bool = true;
}

loom::lazy_static! {
    static ref KICKED: Vec<(Mutex<bool>, Condvar)> = (0..MAX_CPUS).map(|_| (Mutex::new(false), Condvar::new())).collect();
}

loom::thread_local! {
    static ME: Cell<Option<CpuId>> = Cell::new(None);
    static IRQS: Cell<bool> = Cell::new(false);
    static HAS_PARKED: Cell<bool> = Cell::new(false);
    static EVERY_OTHER: Cell<bool> = Cell::new(false);
}

std::thread_local! {
    /// How many halts happened in all executions of this test: a model in which none did shows nothing. All threads of a model run
    /// on the test's own thread.
    pub static HALTED: Cell<u32> = const { Cell::new(0) };
}

/// The kernel: CPUs are model threads, by [`on_cpu`].
pub struct Model<H>(H);

impl<H: Host> Cpu for Model<H> {
    type Hypervisor = Model<H>;
    fn current() -> Option<CpuId> {
        ME.with(Cell::get)
    }
    fn irqs_enabled() -> bool {
        IRQS.with(Cell::get)
    }
    fn irqs_disable() {
        assert!(IRQS.with(|f| f.replace(false)), "interrupts were off already");
    }
    fn irqs_enable() {
        assert!(!IRQS.with(|f| f.replace(true)), "interrupts were on already");
    }
    fn relax() {
        H::relax();
    }
}

impl<H: Host> Hypervisor for Model<H> {
    fn sees_preempted() -> bool {
        H::SEES
    }
    fn is_preempted(_: CpuId) -> bool {
        H::SEES && (H::HALTS || H::YIELDS) && H::preempted()
    }
    fn can_yield() -> bool {
        H::YIELDS
    }
    fn yield_to(me: CpuId, target: CpuId) -> Yielded {
        assert_ne!(me, target, "yield to self");
        H::yielded(me);
        loom::thread::yield_now();
        Yielded::Moved
    }
    fn can_halt() -> bool {
        H::HALTS
    }
    fn may_halt(cpu: CpuId) -> bool {
        H::HALTS && H::ready(cpu)
    }
    fn halt(irqs_on: bool) {
        assert!(!IRQS.with(Cell::get), "halting with interrupts already on loses a wake-up");
        HALTED.set(HALTED.get() + 1);
        let me = ME.with(Cell::get).unwrap();
        assert!(H::ready(me), "halted without having said that it can be kicked");
        if H::returns_at_once() {
            loom::thread::yield_now();
            return IRQS.with(|f| f.set(irqs_on));
        }
        let (kicked, wake) = &KICKED[me.index()];
        let mut kicked = kicked.lock().unwrap();
        while !*kicked {
            kicked = wake.wait(kicked).unwrap();
        }
        *kicked = false;
        IRQS.with(|f| f.set(irqs_on));
    }
    fn kick(cpu: CpuId) {
        let (kicked, wake) = &KICKED[cpu.index()];
        *kicked.lock().unwrap() = true;
        wake.notify_one();
    }
}

/// Runs `f` as CPU `index` with interrupts off, or without a number.
pub fn on_cpu<R>(index: Option<u32>, f: impl FnOnce() -> R) -> R {
    on_cpu_with_irqs(index, false, f)
}

/// As [`on_cpu`], with interrupts on or off. They are afterwards as before.
pub fn on_cpu_with_irqs<R>(index: Option<u32>, irqs_on: bool, f: impl FnOnce() -> R) -> R {
    ME.with(|me| me.set(index.map(|i| CpuId::new(i).unwrap())));
    IRQS.with(|flag| flag.set(irqs_on));
    let result = f();
    assert_eq!(IRQS.with(Cell::get), irqs_on, "interrupts are as on entry");
    result
}

/// A number that only one thread at a time may touch; loom reports a race otherwise.
pub struct Protected(UnsafeCell<u32>);

// SAFETY: every access is under the lock that is being checked, and loom verifies that.
unsafe impl Sync for Protected {}
// SAFETY: a plain number.
unsafe impl Send for Protected {}

impl Protected {
    pub fn new() -> Self {
        Self(UnsafeCell::new(0))
    }
    pub fn add_one(&self) {
        // SAFETY: under the lock; loom fails the model if two threads are here.
        self.0.with_mut(|n| unsafe { *n += 1 });
    }
    pub fn get(&self) -> u32 {
        // SAFETY: all other threads have been joined, or the caller holds the lock.
        self.0.with(|n| unsafe { *n })
    }
}

/// Explores `f` with at most `preemptions` involuntary switches per execution (`LOOM_MAX_PREEMPTIONS` overrides).
pub fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 20_000;
    builder.check(f);
}

loom::lazy_static! {
    static ref UNPARKED: Vec<(Mutex<bool>, Condvar)> = (0..MAX_CPUS).map(|_| (Mutex::new(false), Condvar::new())).collect();
}

std::thread_local! {
    /// How many parks happened in all executions of this test.
    pub static PARKED: Cell<u32> = const { Cell::new(0) };
    /// Those of the CPU with number 1.
    pub static PARKED_ON_1: Cell<u32> = const { Cell::new(0) };
}

/// The scheduler: one task per CPU, with the number of the CPU plus one.
pub struct ModelParker<H>(H);

impl<H: Host> Parker for ModelParker<H> {
    type Cpu = Model<H>;
    fn current() -> Option<TaskId> {
        TaskId::new(ME.with(Cell::get)?.index() as u64 + 1)
    }
    fn park() {
        PARKED.set(PARKED.get() + 1);
        let me = ME.with(Cell::get).unwrap().index();
        PARKED_ON_1.set(PARKED_ON_1.get() + u32::from(me == 1));
        let (unparked, wake) = &UNPARKED[me];
        let mut unparked = unparked.lock().unwrap();
        while !*unparked {
            unparked = wake.wait(unparked).unwrap();
        }
        *unparked = false;
        HAS_PARKED.with(|has| has.set(true));
    }
    fn unpark(task: TaskId) {
        let (unparked, wake) = &UNPARKED[task.get() as usize - 1];
        *unparked.lock().unwrap() = true;
        wake.notify_one();
    }
    fn may_sleep() -> bool {
        true
    }
    fn whereabouts(task: TaskId) -> Whereabouts {
        CpuId::new(task.get() as u32 - 1).map_or(Whereabouts::Unknown, Whereabouts::On)
    }
}

/// Runs `f` and checks that somebody slept in it: a model in which nobody did shows nothing of that.
pub fn parks_in(f: impl FnOnce()) {
    let before = PARKED.get();
    f();
    assert!(PARKED.get() > before, "nobody ever slept: the model shows nothing");
}

/// Runs `f` and checks that somebody halted in it.
pub fn halts_in(f: impl FnOnce()) {
    let before = HALTED.get();
    f();
    assert!(HALTED.get() > before, "nobody ever halted: the model shows nothing");
}
