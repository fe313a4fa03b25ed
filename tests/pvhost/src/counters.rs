//! What is counted per vCPU.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Live counters of one vCPU.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

        /// The counters of one vCPU at one time, or a sum.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            pub(crate) fn read(&self) -> Counts {
                // ORDERING: none needed, each counter stands alone.
                Counts { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl Counts {
            /// Every counter with its name, in a fixed order.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Adds `other`.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Times the vCPU was scheduled in.
    slices,
    /// Ticks that it took.
    ticks,
    /// Times it was scheduled out while it could have gone on.
    preemptions,
    /// Freezes, by a test or at random.
    freezes,
    /// Directed yields asked for.
    yields,
    /// Directed yields after which it was really scheduled out.
    yields_moved,
    /// Undirected yields (pause-loop exits, and spinning found by ticks).
    spin_exits,
    /// Undirected yields that found somebody to boost.
    boosts,
    /// Candidates tried by undirected yields.
    candidates_tried,
    /// Undirected yields that gave up after three candidates in a row.
    bail_outs,
    /// Halts.
    halts,
    /// Halts that a kick from before ended at once.
    sticky_kicks,
    /// Halts that ended for no reason.
    spurious_wakes,
    /// Kicks sent.
    kicks_sent,
    /// Interrupts sent.
    irqs_sent,
    /// Times the interrupt handler ran.
    irqs_taken,
    /// Flush marks found when it was scheduled in.
    tlb_flushes,
}

/// Adds one.
pub(crate) fn bump(counter: &AtomicU64) {
    // ORDERING: Relaxed, a statistic. Written by the vCPU's own thread, in the host, so a plain add would do; an atomic one is
    //   not worth avoiding next to an exit.
    counter.fetch_add(1, Relaxed);
}
