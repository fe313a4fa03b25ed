//! [`Parker`]: what a kernel's scheduler does for the sleeping locks; [`TaskId`], how a lock names a task; and [`HaltParker`], for kernels
//! without tasks.

use core::fmt;
use core::marker::PhantomData;
use core::num::NonZeroU64;

use crate::cpu::{Cpu, CpuId, MAX_CPUS};
use crate::hypervisor::Hypervisor;
use crate::stats::{Counter, count};
use crate::sync::{AtomicU32, Ordering, spin_loop};
use crate::wait::deaf;

/// Name of one task: a number of the kernel's choice, `1..=`[`TaskId::MAX`], so 62 bits less one value.
///
/// An index plus one does, or the address of the task's structure divided by 8 (`address >> 3`; back by `<< 3`), if it is aligned to
/// 8 bytes. Two tasks that live at one time have different names; the name of a task that has ended may be given again.
///
/// `Option<TaskId>` is as small as `TaskId`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
// INVARIANT: holds 1..=MAX.
pub struct TaskId(NonZeroU64);

impl TaskId {
    /// The largest number. A mutex's word holds it beside two flags, and one value more for "a locker that is no task".
    pub const MAX: u64 = (1 << 62) - 2;

    /// The task with this number, or `None` for 0 and above [`TaskId::MAX`].
    #[inline]
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        if number > Self::MAX {
            return None;
        }
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskId({:#x})", self.get())
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {:#x}", self.get())
    }
}

/// Where a task is, as far as the kernel knows at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// It runs on this CPU (whose vCPU the host may have preempted: that is not for the kernel to say).
    On(CpuId),
    /// It runs nowhere: runnable, asleep or ended.
    Off,
    /// The kernel does not keep track. Spinners then trust it to run, for a bounded time.
    Unknown,
}

/// What a kernel's scheduler does for sleeping locks. Static methods on a zero-sized type.
///
/// A kernel without tasks makes its CPUs the tasks: [`HaltParker`].
///
/// The trait is safe to implement: a wrong answer can leave a task asleep for ever, but never lets two tasks into one critical
/// section. None of its methods is called with a lock of this library's own held; [`whereabouts`](Self::whereabouts) is called with
/// preemption disabled ([`Cpu::preempt_disable`]).
pub trait Parker: 'static {
    /// The CPUs of this kernel.
    type Cpu: Cpu;

    /// The task that runs here; `None` where there is none (early boot, interrupt handlers): a locker then spins and never sleeps.
    fn current() -> Option<TaskId>;

    /// Puts the calling task to sleep until it is unparked. May return for no reason.
    ///
    /// Sticky: after an [`unpark`](Self::unpark) that came before, it returns at once and takes that wake-up with it. One is
    /// remembered, not a count.
    ///
    /// What the unparking task wrote before is seen once it has also taken the lock.
    ///
    /// It should not panic. If it does, the caller leaves without the mutex, and what was meant for it goes to the next sleeper.
    fn park();

    /// Wakes `task` from [`park`](Self::park), or makes its next `park` return at once.
    ///
    /// Called by whoever unlocks or notifies: with interrupts off and from interrupt handlers too. A task that has ended meanwhile, or
    /// whose name was given again: no effect, or a wake-up for no reason.
    fn unpark(task: TaskId);

    /// Where `task` runs now. A hint, asked by spinners about the owner of a lock, which may end at any moment: the implementation
    /// must not touch the memory of a task without making sure that it still exists.
    fn whereabouts(task: TaskId) -> Whereabouts;

    /// Whether the caller may sleep. Debug builds panic in a `lock` where this says no; in others the locker spins instead.
    #[inline]
    fn may_sleep() -> bool {
        Self::Cpu::may_sleep()
    }
}

/// Whether the owner of a sleeping lock is worth spinning for. The only place where that is decided.
///
/// A task that runs on a vCPU that runs may release the lock any moment. One that does not run will not, and neither will one whose vCPU
/// the host has preempted. `me` is the caller's CPU: a task that is said to run here does not, since the caller does.
pub(crate) fn worth_spinning<P: Parker>(owner: TaskId, me: Option<CpuId>) -> Option<bool> {
    match P::whereabouts(owner) {
        Whereabouts::On(cpu) if Some(cpu) == me => Some(false),
        // Where the host does not tell, its vCPU may run or not.
        Whereabouts::On(_) if !<P::Cpu as Cpu>::Hypervisor::sees_preempted() => None,
        Whereabouts::On(cpu) => Some(!<P::Cpu as Cpu>::Hypervisor::is_preempted(cpu)),
        Whereabouts::Off => Some(false),
        Whereabouts::Unknown => None,
    }
}

/// A [`Parker`] for kernels without tasks: each CPU is one, sleeping is halting, waking is kicking.
///
/// Where the hypervisor cannot halt and kick, `park` spins with [`Cpu::relax`]. A CPU that does not know its number has no task.
///
/// An interrupt handler is the same "task" as what it interrupted, so it must not wait: it may try, unlock and notify. CPU numbers are
/// the kernel's: one kernel, one `C`.
pub struct HaltParker<C>(PhantomData<fn() -> C>);

impl<C> fmt::Debug for HaltParker<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HaltParker")
    }
}

/// [`EMPTY`], [`TOKEN`] or [`HALTED`].
#[derive(Debug)]
#[repr(align(64))]
struct Token(AtomicU32);

/// The CPU is not parked, or parks without halting.
const EMPTY: u32 = 0;
/// The CPU's next park returns at once.
const TOKEN: u32 = 1;
/// The CPU halts, or is about to: whoever unparks it kicks it.
const HALTED: u32 = 2;

#[cfg(not(pvlock_loom))]
static TOKENS: [Token; MAX_CPUS] = [const { Token(AtomicU32::new(EMPTY)) }; MAX_CPUS];
#[cfg(pvlock_loom)]
loom::lazy_static! {
    static ref TOKENS: [Token; MAX_CPUS] = core::array::from_fn(|_| Token(AtomicU32::new(EMPTY)));
}

impl<C: Cpu> HaltParker<C> {
    fn take_token(me: CpuId) -> bool {
        // ORDERING: Acquire, pair HALT-PARK (Release in `unpark`): what the waker wrote. It also takes back `HALTED` after a halt that ended for
        // no reason.
        TOKENS[me.index()].0.swap(EMPTY, Ordering::Acquire) == TOKEN
    }

    /// `false`: the token came first.
    fn announce_halt(me: CpuId) -> bool {
        // ORDERING: Relaxed. This and `unpark`'s swap are read-modify-writes of one word, so one of them comes second and sees the first.
        TOKENS[me.index()].0.compare_exchange(EMPTY, HALTED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl<C: Cpu> Parker for HaltParker<C> {
    type Cpu = C;

    #[inline]
    fn current() -> Option<TaskId> {
        TaskId::new(C::current()?.index() as u64 + 1)
    }

    /// ```text
    /// parker (here)                     waker
    ///   irqs off
    ///   [RmW] empty -> halted             [RmW] token, returns what was
    ///         fails on a token              halted:
    ///   hlt   (kicks are sticky)              kick
    /// ```
    /// An interrupt handler that parked would take the interrupted waiter's token.
    fn park() {
        let Some(me) = C::current() else { return };
        while !Self::take_token(me) {
            C::relax();
            let irqs_on = C::irqs_enabled();
            if irqs_on {
                C::irqs_disable();
            }
            let may_halt = C::Hypervisor::can_halt()
                && C::Hypervisor::may_halt(me)
                && !C::in_nmi()
                && (irqs_on || C::may_halt_with_irqs_off());
            if may_halt && Self::announce_halt(me) {
                // Leaves interrupts as they were.
                count(Some(me), Counter::Halt);
                deaf::halt::<C>(me, irqs_on);
                continue;
            }
            if irqs_on {
                C::irqs_enable();
            }
            spin_loop();
        }
    }

    fn unpark(task: TaskId) {
        let Some(cpu) = u32::try_from(task.get() - 1).ok().and_then(CpuId::new) else { return };
        // ORDERING: Release, pair HALT-PARK (Acquire in `take_token`). A CPU that does not halt needs no kick, which is an exit.
        if TOKENS[cpu.index()].0.swap(TOKEN, Ordering::Release) == HALTED {
            count(C::current(), Counter::Kick);
            C::Hypervisor::kick(cpu);
        }
    }

    /// A halt with interrupts off ends too, by a kick.
    #[inline]
    fn may_sleep() -> bool {
        C::may_sleep() || (C::may_halt_with_irqs_off() && C::Hypervisor::can_halt())
    }

    #[inline]
    fn whereabouts(task: TaskId) -> Whereabouts {
        match u32::try_from(task.get() - 1).ok().and_then(CpuId::new) {
            // A CPU that sleeps here halts, and reads as preempted.
            Some(cpu) => Whereabouts::On(cpu),
            None => Whereabouts::Off,
        }
    }
}

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::*;

    #[test]
    fn task_numbers_have_a_range() {
        assert_eq!(TaskId::new(0), None);
        assert_eq!(TaskId::new(TaskId::MAX + 1), None);
        assert_eq!(TaskId::new(u64::MAX), None);
        for number in [1, 2, 1 << 40, TaskId::MAX] {
            assert_eq!(TaskId::new(number).map(TaskId::get), Some(number));
        }
    }

    #[test]
    fn the_address_of_a_kernel_structure_fits() {
        let address = 0xffff_ffff_8000_1238_u64;
        assert_eq!(TaskId::new(address >> 3).unwrap().get() << 3, address);
    }
}
