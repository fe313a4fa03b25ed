//! Undercommit bail-out: what a CPU remembers of its yields from one wait to the next, so that it stops making useless ones.
//!
//! A yield costs a VM exit also where there is nobody to yield to. The guest sees that a yield did nothing by two signs together: its own
//! record did not move (it was not scheduled out), and the target still reads as preempted a little later.
//!
//! | state | event | next |
//! |---|---|---|
//! | `n` in a row did nothing, `n < 3` | a yield moved us | 0 |
//! | `n` in a row did nothing, `n < 3` | the next look finds the last target running: it worked on another CPU | 0 |
//! | `n` in a row did nothing, `n < 3` | a yield did nothing | `n + 1` |
//! | 3 in a row: given up | the next look finds the last target running | 0 |
//! | 3 in a row: given up | our own record moved since, not for a halt in a wait of ours: our CPU seems to be shared after all | 0 |
//! | 3 in a row: given up | `GIVEN_UP_LOOKS` times refused | 2: one more try |
//!
//! Three, as in KVM's own bail-out: see [`FRUITLESS_YIELDS`].

use super::budget::{FRUITLESS_YIELDS, GIVEN_UP_LOOKS};
use crate::cpu::{CpuId, MAX_CPUS};
use crate::hypervisor::{Hypervisor, Yielded};
use crate::sync::{AtomicU64, Ordering::Relaxed, const_fn};

/// The memory of one CPU. Only that CPU changes it; an interrupt that comes in between may undo one step, which costs a yield at most.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Undercommit(AtomicU64);

/// [`Undercommit`] unpacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Memory {
    /// The caller's [`Hypervisor::schedule_ins`] at the last fruitless yield.
    schedule_ins: u32,
    /// Its target, plus one.
    target: u16,
    /// Fruitless yields in a row, at most [`FRUITLESS_YIELDS`].
    fruitless: u8,
    /// Times refused since.
    refused: u8,
}

impl Memory {
    fn unpack(raw: u64) -> Self {
        Self {
            schedule_ins: raw as u32,
            target: (raw >> 32) as u16,
            fruitless: (raw >> 48) as u8,
            refused: (raw >> 56) as u8,
        }
    }

    fn pack(self) -> u64 {
        u64::from(self.schedule_ins)
            | u64::from(self.target) << 32
            | u64::from(self.fruitless) << 48
            | u64::from(self.refused) << 56
    }
}

#[cfg(not(pvlock_loom))]
static TABLE: [Undercommit; MAX_CPUS] = [const { Undercommit::new() }; MAX_CPUS];
#[cfg(pvlock_loom)]
loom::lazy_static! {
    static ref TABLE: [Undercommit; MAX_CPUS] = core::array::from_fn(|_| Undercommit::new());
}

impl Undercommit {
    const_fn! {
        pub(crate) const fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    /// The memory of `cpu`.
    pub(crate) fn of(cpu: CpuId) -> &'static Self {
        &TABLE[cpu.index()]
    }

    // ORDERING (of all): Relaxed, one CPU's own memory.

    /// Whether a yield by `me` may do something. Ask before each, not sooner than the last one can have had its effect.
    pub(crate) fn may_yield<H: Hypervisor>(&self, me: CpuId) -> bool {
        if !H::BAILS_OUT {
            return true;
        }
        let raw = self.0.load(Relaxed);
        if raw == 0 {
            return true;
        }
        let memory = Memory::unpack(raw);
        let given_up = u32::from(memory.fruitless) >= FRUITLESS_YIELDS;
        let last_runs = || CpuId::from_plus_one(memory.target).is_none_or(|target| !H::is_preempted(target));
        let next = if memory.schedule_ins != H::schedule_ins(me) || (memory.refused == 0 && last_runs()) {
            Memory::default()
        } else if given_up && u32::from(memory.refused) < GIVEN_UP_LOOKS {
            self.0.store(Memory { refused: memory.refused + 1, ..memory }.pack(), Relaxed);
            return false;
        } else if given_up {
            Memory { fruitless: memory.fruitless - 1, refused: 0, ..memory }
        } else {
            return true;
        };
        self.0.store(next.pack(), Relaxed);
        true
    }

    /// Tells that `me` has halted, which moves its record and says nothing about who shares its CPU.
    pub(crate) fn halted<H: Hypervisor>(&self, me: CpuId) {
        let raw = if H::BAILS_OUT { self.0.load(Relaxed) } else { 0 };
        if raw != 0 {
            self.0.store(Memory { schedule_ins: H::schedule_ins(me), ..Memory::unpack(raw) }.pack(), Relaxed);
        }
    }

    /// Tells what a yield by `me` to `target` did. Returns whether that ends yielding for now.
    pub(crate) fn yielded<H: Hypervisor>(&self, me: CpuId, target: CpuId, outcome: Yielded) -> bool {
        if !H::BAILS_OUT {
            return false;
        }
        let next = match outcome {
            Yielded::Moved => Memory::default(),
            Yielded::Nothing => Memory {
                schedule_ins: H::schedule_ins(me),
                target: target.plus_one(),
                fruitless: (Memory::unpack(self.0.load(Relaxed)).fruitless + 1).min(FRUITLESS_YIELDS as u8),
                refused: 0,
            },
        };
        self.0.store(next.pack(), Relaxed);
        u32::from(next.fruitless) == FRUITLESS_YIELDS
    }
}

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A host whose answers the test sets.
    enum Host {}

    thread_local! {
        static SCHEDULE_INS: Cell<u32> = const { Cell::new(7) };
        static PREEMPTED: Cell<bool> = const { Cell::new(true) };
    }

    impl Hypervisor for Host {
        fn sees_preempted() -> bool {
            true
        }
        fn is_preempted(_: CpuId) -> bool {
            PREEMPTED.get()
        }
        fn schedule_ins(_: CpuId) -> u32 {
            SCHEDULE_INS.get()
        }
        fn can_yield() -> bool {
            true
        }
        fn yield_to(_: CpuId, _: CpuId) -> Yielded {
            Yielded::Nothing
        }
        fn can_halt() -> bool {
            false
        }
        fn may_halt(_: CpuId) -> bool {
            false
        }
        fn halt(_: bool) {}
        fn kick(_: CpuId) {}
    }

    const ME: CpuId = CpuId::new(0).unwrap();
    const OTHER: CpuId = CpuId::new(3).unwrap();

    fn give_up() -> Undercommit {
        let memory = Undercommit::new();
        for last in [false, false, true] {
            assert!(memory.may_yield::<Host>(ME));
            assert_eq!(memory.yielded::<Host>(ME, OTHER, Yielded::Nothing), last);
        }
        assert!(!memory.may_yield::<Host>(ME));
        memory
    }

    #[test]
    fn three_fruitless_yields_in_a_row_end_yielding() {
        give_up();
    }

    #[test]
    fn a_yield_that_moved_us_starts_the_count_anew() {
        let memory = Undercommit::new();
        for _ in 0..10 {
            assert!(!memory.yielded::<Host>(ME, OTHER, Yielded::Nothing));
            assert!(!memory.yielded::<Host>(ME, OTHER, Yielded::Nothing));
            assert!(!memory.yielded::<Host>(ME, OTHER, Yielded::Moved));
            assert!(memory.may_yield::<Host>(ME));
        }
    }

    #[test]
    fn a_target_that_runs_soon_after_was_worth_it() {
        let memory = Undercommit::new();
        for _ in 0..10 {
            PREEMPTED.set(true);
            assert!(!memory.yielded::<Host>(ME, OTHER, Yielded::Nothing));
            PREEMPTED.set(false);
            assert!(memory.may_yield::<Host>(ME));
        }
    }

    #[test]
    fn being_scheduled_out_arms_it_again() {
        let memory = give_up();
        SCHEDULE_INS.set(9);
        for last in [false, false, true] {
            assert!(memory.may_yield::<Host>(ME));
            assert_eq!(memory.yielded::<Host>(ME, OTHER, Yielded::Nothing), last);
        }
    }

    #[test]
    fn one_more_try_after_many_refusals() {
        let memory = give_up();
        for _ in 0..10 {
            // `give_up` has been refused once, as each round here is at its end.
            assert!((1..GIVEN_UP_LOOKS).all(|_| !memory.may_yield::<Host>(ME)));
            assert!(memory.may_yield::<Host>(ME));
            assert!(memory.yielded::<Host>(ME, OTHER, Yielded::Nothing), "one useless try ends it again");
            assert!(!memory.may_yield::<Host>(ME));
        }
    }

    #[test]
    fn an_own_halt_does_not_arm_it_again() {
        let memory = give_up();
        SCHEDULE_INS.set(SCHEDULE_INS.get() + 2);
        memory.halted::<Host>(ME);
        assert!(!memory.may_yield::<Host>(ME));
    }

    #[test]
    fn packs_and_unpacks() {
        let memory = Memory { schedule_ins: u32::MAX - 1, target: MAX_CPUS as u16, fruitless: 3, refused: 77 };
        assert_eq!(Memory::unpack(memory.pack()), memory);
        assert_eq!(Memory::default().pack(), 0);
    }
}
