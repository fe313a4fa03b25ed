//! One vCPU: its gate, its timer, its counters, and the thread-local context through which a thread knows that it is one.

use core::cell::Cell;
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, compiler_fence};
use pvlock::CpuId;

use crate::counters::Counters;
use crate::host::Host;
use crate::signal::TickTimer;
use crate::step::Step;

/// One vCPU, shared by its own thread and the rest of the host. What the scheduler needs is not here but in its `Task`.
#[derive(Debug)]
pub(crate) struct Vcpu {
    pub(crate) cpu: CpuId,
    /// Thread id, 0 before the thread runs and after it has ended.
    pub(crate) tid: AtomicI32,
    gate: AtomicU32,
    /// What the vCPU is told when the gate opens.
    orders: Orders,
    /// Interrupts sent and not yet taken, one bit per vector.
    pub(crate) pending_irqs: AtomicU64,
    pub(crate) user_mode: AtomicBool,
    /// A signal is on its way, or has come and the tick is still to be handled.
    pub(crate) poked: AtomicBool,
    pub(crate) counters: Counters,
    /// Instruction at which the vCPU was last interrupted.
    pub(crate) last_rip: AtomicUsize,
    /// The same for the busy-spin detector: 0 after any exit that was no tick.
    pub(crate) tick_rip: AtomicUsize,
    /// The protocol step that the guest last named.
    pub(crate) step: AtomicPtr<Step>,
    /// CPU time at the end of the thread.
    pub(crate) final_cpu_ns: AtomicU64,
}

#[derive(Debug)]
struct Orders {
    steal_ns: AtomicU64,
    slice_end_ns: AtomicU64,
}

impl Vcpu {
    pub(crate) fn new(cpu: CpuId) -> Self {
        Self {
            cpu,
            tid: AtomicI32::new(0),
            gate: AtomicU32::new(0),
            orders: Orders { steal_ns: AtomicU64::new(0), slice_end_ns: AtomicU64::new(0) },
            pending_irqs: AtomicU64::new(0),
            user_mode: AtomicBool::new(false),
            poked: AtomicBool::new(false),
            counters: Counters::default(),
            last_rip: AtomicUsize::new(0),
            tick_rip: AtomicUsize::new(0),
            step: AtomicPtr::new(ptr::null_mut()),
            final_cpu_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn index(&self) -> usize {
        self.cpu.index()
    }

    /// Lets the vCPU run: `steal_ns` has been stolen from it so far, its slice ends at `slice_end_ns`.
    pub(crate) fn open_gate(&self, steal_ns: u64, slice_end_ns: u64) {
        self.orders.steal_ns.store(steal_ns, Relaxed);
        self.orders.slice_end_ns.store(slice_end_ns, Relaxed);
        // ORDERING: Release, pair PVHOST-GATE (in `wait_at_gate`): the orders are seen.
        self.gate.store(1, Release);
        atomic_wait::wake_one(&self.gate);
    }

    /// Waits until the gate opens, closes it behind itself and returns (steal_ns, slice_end_ns).
    pub(crate) fn wait_at_gate(&self) -> (u64, u64) {
        // ORDERING: Acquire, pair PVHOST-GATE (in `open_gate`).
        while self.gate.swap(0, Acquire) == 0 {
            atomic_wait::wait(&self.gate, 0);
        }
        (self.orders.steal_ns.load(Relaxed), self.orders.slice_end_ns.load(Relaxed))
    }
}

/// Which vCPU of which host a thread is, and the timer that makes it tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) host: &'static Host,
    pub(crate) vcpu: &'static Vcpu,
    pub(crate) timer: TickTimer,
}

/// What a thread knows about being a vCPU. Used by the thread itself and by the signal handler on top of it.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) cpu: Cell<Option<CpuId>>,
    pub(crate) place: Cell<Option<Place>>,
    /// The thread is in host code: a tick is put off until it leaves.
    in_host: AtomicBool,
    tick_put_off: AtomicBool,
    pub(crate) irqs_on: AtomicBool,
    /// When the timer was last told to tick.
    pub(crate) next_tick_ns: Cell<u64>,
}

thread_local! {
    /// Constant and without destructor, so that reaching it is plain memory access, also in a signal handler.
    pub(crate) static CONTEXT: Context = const {
        Context {
            cpu: Cell::new(None),
            place: Cell::new(None),
            in_host: AtomicBool::new(false),
            tick_put_off: AtomicBool::new(false),
            irqs_on: AtomicBool::new(true),
            next_tick_ns: Cell::new(0),
        }
    };
}

/// Whether a tick may be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// The thread was in the guest and is in the host now.
    FromGuest,
    /// It was in the host already, which will see to the tick when it leaves.
    Already,
}

impl Context {
    /// From the guest into the host, by an exit.
    pub(crate) fn enter(&self) {
        // ORDERING: the flag is for the handler on this very thread: only the compiler must keep the order.
        self.in_host.store(true, Relaxed);
        compiler_fence(Acquire);
    }

    /// Into the host, by a tick.
    pub(crate) fn enter_for_tick(&self) -> Entered {
        if self.in_host.load(Relaxed) {
            self.tick_put_off.store(true, Relaxed);
            return Entered::Already;
        }
        self.enter();
        Entered::FromGuest
    }

    /// Back to the guest; `tick` handles a tick that was put off.
    pub(crate) fn leave(&self, mut tick: impl FnMut()) {
        loop {
            // ORDERING: as in `enter`.
            compiler_fence(Release);
            self.in_host.store(false, Relaxed);
            compiler_fence(Acquire);
            // A tick from here on is handled by the handler itself.
            if !self.tick_put_off.load(Relaxed) {
                return;
            }
            self.tick_put_off.store(false, Relaxed);
            self.enter();
            tick();
        }
    }
}
