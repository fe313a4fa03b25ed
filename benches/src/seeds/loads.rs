//! What the guest does: a unit of work after the other, on each vCPU.

use core::marker::PhantomData;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use pvhost::contend::work;
use pvlock::boost::CpuSet;
use pvlock::{CpuId, MAX_CPUS};
use spin::RelaxStrategy;
use spin::mutex::SpinMutex;

use super::waits::Wait;

/// Units of work.
pub(super) trait Work: Send + Sync + 'static {
    /// For vCPUs `0..workers`.
    fn new(workers: usize) -> Self;

    /// Does one unit on `me`, which has done `done`.
    fn unit(&self, me: CpuId, done: u64);

    /// `me` does no more.
    fn leave(&self, me: CpuId) {
        let _ = me;
    }
}

/// All take one foreign lock all the time: sections of 160 cycles, as much between them.
pub(super) struct Locks<R>(OwnLine<SpinMutex<(), R>>);

#[repr(align(128))]
struct OwnLine<T>(T);

impl<R: RelaxStrategy + 'static> Work for Locks<R> {
    fn new(_: usize) -> Self {
        Self(OwnLine(SpinMutex::new(())))
    }

    #[inline]
    fn unit(&self, _: CpuId, _: u64) {
        let held = self.0.0.lock();
        work(40);
        drop(held);
        work(40);
    }
}

/// Computes for 20 000 cycles, then takes one of four foreign locks, by turns, for 800.
pub(super) struct Mixed<R>([OwnLine<SpinMutex<(), R>>; 4]);

impl<R: RelaxStrategy + 'static> Work for Mixed<R> {
    fn new(_: usize) -> Self {
        Self([const { OwnLine(SpinMutex::new(())) }; 4])
    }

    fn unit(&self, me: CpuId, done: u64) {
        work(5000);
        let held = self.0[(me.index() + done as usize) % 4].0.lock();
        work(200);
        drop(held);
    }
}

/// Computes for 400 000 cycles in user mode, then interrupts all others and waits until each has taken the interrupt.
pub(super) struct Interrupts<W>(PhantomData<fn() -> W>);

/// The interrupt.
const VECTOR: u32 = 2;

/// Requests to each vCPU so far, and the latest that it has answered.
static ASKED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
static ANSWERED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
/// Who answers.
static ACTIVE: CpuSet = CpuSet::new();

/// `me` has been interrupted.
pub(super) fn answer(me: CpuId) {
    // ORDERING: Acquire, pair SEED-ASK (Release in `unit`): what the requester wrote before.
    let asked = ASKED[me.index()].load(Acquire);
    // ORDERING: Release, pair SEED-ANSWER (Acquire in `unit`): what `me` did before.
    ANSWERED[me.index()].fetch_max(asked, Release);
}

impl<W: Wait> Work for Interrupts<W> {
    fn new(workers: usize) -> Self {
        (&ACTIVE).extend((0..workers as u32).filter_map(CpuId::new));
        Self(PhantomData)
    }

    fn unit(&self, me: CpuId, _: u64) {
        pvhost::in_user_mode(|| work(100_000));
        let others = || ACTIVE.iter().filter(|&cpu| cpu != me);
        let mut numbers = [0; MAX_CPUS];
        for other in others() {
            // ORDERING: Release, pair SEED-ASK.
            numbers[other.index()] = ASKED[other.index()].fetch_add(1, Release) + 1;
            pvhost::send_interrupt(other, VECTOR);
        }
        // ORDERING: Acquire, pair SEED-ANSWER. Who has left meanwhile answers nothing any more.
        W::wait(others(), |cpu| ANSWERED[cpu.index()].load(Acquire) >= numbers[cpu.index()] || !ACTIVE.contains(cpu));
    }

    fn leave(&self, me: CpuId) {
        ACTIVE.remove(me);
        // ORDERING: Relaxed, nobody waits for it any more.
        ANSWERED[me.index()].store(ASKED[me.index()].load(Relaxed), Relaxed);
    }
}
