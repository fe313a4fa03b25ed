//! A kernel in one process for the tests: threads are CPUs, the interrupt flag and the hypervisor are fakes that keep count.
#![allow(dead_code, reason = "each test uses a part")]

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use pvlock::hypervisor::{Hypervisor, Yielded};
use pvlock::{Cpu, CpuId};

/// Rounds until it comes, and its handler.
type Interrupt = (u32, Box<dyn FnOnce()>);

thread_local! {
    /// The CPU that this thread plays.
    pub static ME: Cell<Option<CpuId>> = const { Cell::new(None) };
    /// Its interrupt flag, how often it was turned on, and whether an NMI is being handled.
    pub static IRQS_ON: Cell<bool> = const { Cell::new(true) };
    pub static ENABLES: Cell<u32> = const { Cell::new(0) };
    /// The task that runs here, for messages.
    pub static TASK: Cell<Option<core::num::NonZeroU64>> = const { Cell::new(None) };
    pub static IN_NMI: Cell<bool> = const { Cell::new(false) };
    /// After how many calls `relax` does what, once: an interrupt.
    static INTERRUPT: Cell<Option<Interrupt>> = const { Cell::new(None) };
}

/// Bit `i`: CPU `i` reads as preempted.
pub static PREEMPTED: AtomicU64 = AtomicU64::new(0);

static KICKED: Mutex<u64> = Mutex::new(0);
static KICK: Condvar = Condvar::new();

pub struct Fake;

/// CPU `index`, one of 64.
pub fn cpu(index: u32) -> CpuId {
    assert!(index < u64::BITS, "the fake host has 64 CPUs");
    CpuId::new(index).unwrap()
}

/// Runs `f` as CPU `index`, interrupts on, and checks that they are on afterwards.
pub fn on_cpu<R>(index: u32, f: impl FnOnce() -> R) -> R {
    ME.set(Some(cpu(index)));
    IRQS_ON.set(true);
    let result = f();
    assert!(IRQS_ON.get(), "interrupts stayed off");
    result
}

/// Calls `handler` on this CPU when a waiter on it has waited for `rounds` rounds.
pub fn interrupt_after(rounds: u32, handler: impl FnOnce() + 'static) {
    INTERRUPT.set(Some((rounds, Box::new(handler))));
}

impl Cpu for Fake {
    type Hypervisor = FakeHost;
    fn current() -> Option<CpuId> {
        ME.get()
    }
    fn task() -> Option<core::num::NonZeroU64> {
        TASK.get()
    }
    fn irqs_enabled() -> bool {
        IRQS_ON.get()
    }
    fn irqs_disable() {
        assert!(IRQS_ON.replace(false), "turned off while off");
    }
    fn irqs_enable() {
        assert!(!IRQS_ON.replace(true), "turned on while on");
        ENABLES.set(ENABLES.get() + 1);
    }
    fn in_nmi() -> bool {
        IN_NMI.get()
    }
    fn relax() {
        match INTERRUPT.take() {
            Some((0, handler)) => handler(),
            Some((rounds, handler)) => INTERRUPT.set(Some((rounds - 1, handler))),
            None => {}
        }
    }
}

/// Halts and kicks by a condition variable; yields let other threads run and move nothing.
pub struct FakeHost;

/// Halts so far, and how many of them with interrupts on.
pub static HALTS: AtomicU64 = AtomicU64::new(0);
pub static HALTS_IRQS_ON: AtomicU64 = AtomicU64::new(0);

impl Hypervisor for FakeHost {
    fn sees_preempted() -> bool {
        true
    }
    fn is_preempted(cpu: CpuId) -> bool {
        PREEMPTED.load(Ordering::Relaxed) >> cpu.index() & 1 != 0
    }
    fn cpu_limit() -> usize {
        u64::BITS as usize
    }
    fn can_yield() -> bool {
        true
    }
    fn yield_to(me: CpuId, target: CpuId) -> Yielded {
        assert_ne!(me, target, "yield to self");
        assert!(Self::is_preempted(target), "yield to a CPU that runs");
        std::thread::yield_now();
        Yielded::Nothing
    }
    fn can_halt() -> bool {
        true
    }
    fn may_halt(_: CpuId) -> bool {
        true
    }
    fn halt(irqs_on: bool) {
        assert!(!IN_NMI.get(), "halted in an NMI");
        assert!(!IRQS_ON.get(), "halting with interrupts already on loses a wake-up");
        HALTS.fetch_add(1, Ordering::Relaxed);
        HALTS_IRQS_ON.fetch_add(irqs_on as u64, Ordering::Relaxed);
        let bit = 1 << ME.get().unwrap().index();
        let mut kicked = KICK.wait_while(KICKED.lock().unwrap(), |kicked| *kicked & bit == 0).unwrap();
        *kicked &= !bit;
        IRQS_ON.set(irqs_on);
    }
    fn kick(cpu: CpuId) {
        *KICKED.lock().unwrap() |= 1 << cpu.index();
        KICK.notify_all();
    }
}
