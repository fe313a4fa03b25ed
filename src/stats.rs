//! Event counters per CPU, behind the feature `stats`. Without it every call compiles to nothing.

use crate::cpu::CpuId;
#[cfg(all(feature = "stats", not(pvlock_loom)))]
use crate::cpu::MAX_CPUS;
#[cfg(all(feature = "stats", not(pvlock_loom)))]
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident $field:ident,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter { $($(#[$doc])* $variant,)* }

        /// The counters of one CPU, or a sum over CPUs, since the last reset.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Snapshot { $($(#[$doc])* pub $field: u64,)* }

        impl Snapshot {
            /// Every counter with its name, in a fixed order.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }

            #[cfg(all(feature = "stats", not(pvlock_loom)))]
            fn add(&mut self, row: &Row) {
                // ORDERING: none needed, each counter stands alone.
                $(self.$field = self.$field.wrapping_add(row.0[Counter::$variant as usize].load(Relaxed));)*
            }
        }

        #[cfg(all(feature = "stats", not(pvlock_loom)))]
        const COUNTERS: usize = [$(stringify!($field)),*].len();
    };
}

counters! {
    /// Acquisitions that did not succeed on the first attempt.
    SlowPath slow_paths,
    /// Times a waiter joined a queue.
    Queued queued,
    /// Waiters that found no free queue node (more than four nested waits) and waited without one.
    NoNode no_node,
    /// Times a waiter saw the owner, or the waiter before it, preempted.
    PreemptedSeen preempted_seen,
    /// Directed yields asked for.
    Yield yields,
    /// Directed yields after which the caller had not been scheduled out.
    FruitlessYield fruitless_yields,
    /// Waits in which yielding was given up after three fruitless tries.
    BailOut bail_outs,
    /// Times a waiter halted its vCPU.
    Halt halts,
    /// Halts that returned while the wait was not over.
    SpuriousWake spurious_wakes,
    /// Kicks sent to a halted waiter.
    Kick kicks,
    /// Times a head waiter reserved the lock for itself, so that nobody passes it any more.
    Reserve reserves,
    /// Locks taken by a waiter past a queue of others. Acquisitions at the first attempt are not looked at.
    Pass passes,
    /// Times a locker of a sleeping mutex spun, since the owner ran.
    OptimisticSpin optimistic_spins,
    /// Optimistic spins given up because the owner, or the spinner before in the queue, was preempted or does not run.
    SpinPreempted spins_preempted,
    /// Optimistic spins given up because the kernel wanted to run another task.
    SpinResched spins_resched,
    /// Times a task parked for a sleeping lock or a condition variable.
    Sleep sleeps,
    /// Times the first sleeper of a mutex woke and found it held again.
    WakeInVain wakes_in_vain,
    /// Times a mutex was handed to its first sleeper.
    HandOver hand_overs,
    /// Yields in foreign waits and in waits for answers: a preempted vCPU was boosted.
    Boost boosts,
    /// Targets of TLB shootdowns that were left a flush mark.
    FlushMark flush_marks,
    /// Targets of TLB shootdowns that were asked to flush.
    FlushAsk flush_asks,
    /// Timer ticks that found their CPU spinning in the loop in which the last one found it.
    BusySpin busy_spins,
}

/// One cache line or more per CPU, so that counting does not make CPUs share lines.
#[cfg(all(feature = "stats", not(pvlock_loom)))]
#[repr(align(64))]
struct Row([AtomicU64; COUNTERS]);

#[cfg(all(feature = "stats", not(pvlock_loom)))]
static ROWS: [Row; MAX_CPUS] = [const { Row([const { AtomicU64::new(0) }; COUNTERS]) }; MAX_CPUS];

/// Counts one event on `cpu`; lockers that do not know their CPU are not counted.
#[inline(always)]
#[cfg_attr(any(not(feature = "stats"), pvlock_loom), expect(unused_variables, reason = "counts nothing in this build"))]
pub(crate) fn count(cpu: Option<CpuId>, counter: Counter) {
    #[cfg(all(feature = "stats", not(pvlock_loom)))]
    if let Some(cpu) = cpu {
        let row = ROWS[cpu.index()].0[counter as usize].as_ptr();
        // One instruction, so that an interrupt on this CPU which counts too loses nothing, and no locked one: waiters count on every
        // slow path. Two tasks of one CPU that migrate in between may lose a count.
        // SAFETY: the address is that of a static atomic, aligned and for ever valid; this is a Relaxed access to it as the compiler sees
        // it, since assembly may do what another thread might.
        unsafe { core::arch::asm!("inc qword ptr [{}]", in(reg) row, options(nostack)) };
    }
}

/// The counters of `cpu`.
#[cfg(all(feature = "stats", not(pvlock_loom)))]
pub fn snapshot(cpu: CpuId) -> Snapshot {
    let mut sum = Snapshot::default();
    sum.add(&ROWS[cpu.index()]);
    sum
}

/// The sum over all CPUs. Counters that move meanwhile are read one after the other.
#[cfg(all(feature = "stats", not(pvlock_loom)))]
pub fn total() -> Snapshot {
    let mut sum = Snapshot::default();
    ROWS.iter().for_each(|row| sum.add(row));
    sum
}

/// Sets every counter to zero. Events counted meanwhile may be lost.
#[cfg(all(feature = "stats", not(pvlock_loom)))]
pub fn reset() {
    // ORDERING: Relaxed, as for counting.
    ROWS.iter().flat_map(|row| &row.0).for_each(|c| c.store(0, Relaxed));
}
