//! Named protocol steps: a guest says where it is, a test has it stopped there.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::PoisonError;

use pvlock::CpuId;

use crate::exits;
use crate::vcpu::{CONTEXT, Place};

/// A place in a protocol, by name. Make it a `static` and pass it to [`step`].
#[derive(Debug)]
pub struct Step(pub &'static str);

/// The first vCPU that comes to a step is frozen there. Once.
#[derive(Clone, Copy, Debug)]
pub struct Trap {
    /// Name of the step.
    pub step: &'static str,
    /// Only this vCPU; any one if `None`.
    pub cpu: Option<CpuId>,
    /// For how long.
    pub frozen_for: Duration,
}

/// The guest is at `here`: shown in reports, and the place where a [`Trap`] stops it. Costs a store and a load.
#[inline]
pub fn step(here: &'static Step) {
    let Some(place) = CONTEXT.with(|context| context.place.get()) else { return };
    place.vcpu.step.store(core::ptr::from_ref(here).cast_mut(), Relaxed);
    // ORDERING: Relaxed, the traps themselves are guarded by a mutex.
    if place.host.armed_traps.load(Relaxed) != 0 {
        spring(&place, here);
    }
}

#[cold]
fn spring(place: &Place, here: &'static Step) {
    let mine = |trap: &Trap| trap.step == here.0 && trap.cpu.is_none_or(|only| only == place.vcpu.cpu);
    // In the host no tick comes: a vCPU that was stopped with this mutex held would stop all others at their next step.
    let sprung = exits::in_host(|place| {
        let mut traps = place.host.traps.lock().unwrap_or_else(PoisonError::into_inner);
        let trap = traps.iter().position(mine).map(|found| traps.swap_remove(found));
        place.host.armed_traps.store(traps.len(), Relaxed);
        trap
    });
    if let Some(Some(trap)) = sprung {
        exits::freeze_me(trap.frozen_for);
    }
}
