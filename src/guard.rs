//! What a lock does to its CPU while it is held: the [`Guard`] type parameter of a lock.

use core::marker::PhantomData;

use crate::cpu::Cpu;

/// A change of CPU state for the time a lock is held, entered *before* the lock word is touched and left *after* it is
/// released.
///
/// The state lives in the lock's guard (the token), never in the lock, so the layout of a lock does not depend on `G` and
/// nested or out-of-order guards keep apart. A kernel brings its own by implementing this for its type; see
/// `tests/shims.rs` for adapters to `kernel_guard::BaseGuard`, Asterinas's `SpinGuardian` and COCONUT-SVSM's `IrqLocking`.
pub trait Guard<C: Cpu>: 'static {
    /// What [`leave`](Self::leave) needs to restore what was.
    type State;

    /// Whether the holder cannot be preempted by another task of its CPU while it holds the lock.
    ///
    /// Only then is "the owner is my CPU" recursion, which debug builds report by a panic. Otherwise the owner may be a
    /// descheduled task, or have migrated.
    const PINS: bool;

    /// Enters the state. Called before the first attempt to lock.
    fn enter() -> Self::State;

    /// Restores what `enter` found. Called after the release, and after an attempt that failed.
    ///
    /// # Safety
    /// `state` comes from [`enter`](Self::enter) on this CPU, is given back once, and the lock that it guarded is released.
    unsafe fn leave(state: Self::State);
}

/// Changes nothing. The holder may be interrupted and, in a preemptive kernel, descheduled and migrated.
///
/// Wrong for a lock that an interrupt handler of the same CPU takes too: it waits for itself for ever.
#[derive(Debug)]
pub enum NoGuard {}

impl<C: Cpu> Guard<C> for NoGuard {
    type State = ();
    const PINS: bool = false;

    #[inline(always)]
    fn enter() {}

    #[inline(always)]
    unsafe fn leave((): ()) {}
}

/// Maskable interrupts are off while the lock is held *and while it is waited for*; restored exactly.
///
/// Guards dropped out of order restore in that order: the first lock's saved state wins when its guard goes first.
#[derive(Debug)]
pub enum IrqSave {}

/// Whether interrupts were on. Belongs to one CPU, so it cannot be sent.
#[derive(Debug)]
pub struct IrqState {
    were_on: bool,
    _here: Here,
}

/// Not `Send`, not `Sync`.
type Here = PhantomData<*const ()>;

impl<C: Cpu> Guard<C> for IrqSave {
    type State = IrqState;
    const PINS: bool = true;

    #[inline]
    fn enter() -> IrqState {
        let were_on = C::irqs_enabled();
        if were_on {
            C::irqs_disable();
        }
        IrqState { were_on, _here: PhantomData }
    }

    #[inline]
    unsafe fn leave(state: IrqState) {
        if state.were_on {
            C::irqs_enable();
        }
    }
}

/// The kernel's scheduler may not deschedule the holder ([`Cpu::preempt_disable`]); interrupts stay as they are.
#[derive(Debug)]
pub enum NoPreempt {}

/// That preemption was disabled. Belongs to one CPU, so it cannot be sent.
#[derive(Debug)]
pub struct PreemptState {
    _here: Here,
}

impl<C: Cpu> Guard<C> for NoPreempt {
    type State = PreemptState;
    const PINS: bool = true;

    #[inline]
    fn enter() -> PreemptState {
        C::preempt_disable();
        PreemptState { _here: PhantomData }
    }

    #[inline]
    unsafe fn leave(_: PreemptState) {
        C::preempt_enable();
    }
}

/// First `A`, then `B`; left in the opposite order. `(NoPreempt, IrqSave)` is what kernels call "no preemption, interrupts saved".
impl<C: Cpu, A: Guard<C>, B: Guard<C>> Guard<C> for (A, B) {
    type State = (A::State, B::State);
    const PINS: bool = A::PINS || B::PINS;

    #[inline]
    fn enter() -> Self::State {
        let first = A::enter();
        (first, B::enter())
    }

    #[inline]
    unsafe fn leave((first, second): Self::State) {
        // SAFETY: the caller gives back what `enter` returned, once, here.
        unsafe { B::leave(second) };
        // SAFETY: as above.
        unsafe { A::leave(first) };
    }
}
