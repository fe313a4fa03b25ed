//! How foreign code waits: plainly, without a pause, caught by the host, or with the library's help.

use core::cell::Cell;
use core::hint::spin_loop;
use core::marker::PhantomData;

use pvhost::PvCpu;
use pvhost::machine::rdtsc;
use pvlock::CpuId;
use pvlock::boost::wait_acks;
use spin::RelaxStrategy;

/// A pause.
#[derive(Debug)]
pub(super) struct Plain;

impl RelaxStrategy for Plain {
    #[inline(always)]
    fn relax() {
        spin_loop();
    }
}

/// Not even a pause.
#[derive(Debug)]
pub(super) struct NoPause;

impl RelaxStrategy for NoPause {
    #[inline(always)]
    fn relax() {}
}

/// A pause, on a processor that catches loops of pauses: after `WINDOW` cycles of pauses that are no further than `GAP` cycles apart, the
/// guest exits to the host.
#[derive(Debug)]
pub(super) struct Caught;

/// KVM's `ple_window`.
const WINDOW: u64 = 4096;
/// KVM's `ple_gap` is 128 cycles from one pause to the next, the pause itself not counted. Here it and the reading of the counter are.
const GAP: u64 = 512;

thread_local! {
    /// When the loop began, and when its last pause was.
    static LOOP: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

impl RelaxStrategy for Caught {
    #[inline(always)]
    fn relax() {
        spin_loop();
        let now = rdtsc();
        let (began, last) = LOOP.get();
        if now.wrapping_sub(last) > GAP {
            LOOP.set((now, now));
        } else if now.wrapping_sub(began) > WINDOW {
            pvhost::pause_loop_exit();
            let now = rdtsc();
            LOOP.set((now, now));
        } else {
            LOOP.set((began, now));
        }
    }
}

/// How the answers of others are waited for.
pub(super) trait Wait: Send + Sync + 'static {
    /// Returns when each of `targets` has answered.
    fn wait(targets: impl Iterator<Item = CpuId> + Clone, has_answered: impl Fn(CpuId) -> bool);
}

/// One after the other, by a loop.
#[derive(Debug)]
pub(super) struct Bare<R>(PhantomData<fn() -> R>);

impl<R: RelaxStrategy + 'static> Wait for Bare<R> {
    fn wait(targets: impl Iterator<Item = CpuId> + Clone, has_answered: impl Fn(CpuId) -> bool) {
        for target in targets {
            while !has_answered(target) {
                R::relax();
            }
        }
    }
}

/// With the library's help.
#[derive(Debug)]
pub(super) struct Boosting;

impl Wait for Boosting {
    fn wait(targets: impl Iterator<Item = CpuId> + Clone, has_answered: impl Fn(CpuId) -> bool) {
        wait_acks::<PvCpu>(targets, has_answered);
    }
}
