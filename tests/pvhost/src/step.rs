//! Named protocol steps: a guest says where it is, a test stops it there.

use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use crate::vcpu::CONTEXT;
use crate::{exits, guest};
use pvlock::CpuId;

/// A place in a protocol, by name.
///
/// Make it a `static` and pass it to [`step`].
#[derive(Debug)]
pub struct Step(pub &'static str);

/// Which vCPU is to be stopped where, and for how long.
#[derive(Clone, Copy, Debug)]
struct Trap {
    cpu: Option<CpuId>,
    name: &'static str,
    frozen_for: Duration,
}

static TRAPS: Mutex<Vec<Trap>> = Mutex::new(Vec::new());
/// Number of traps, so that a step costs a load while there is none.
static ARMED: AtomicUsize = AtomicUsize::new(0);

/// The guest is at `here`: shown in reports, and the place where [`freeze_at`] stops it.
#[inline]
pub fn step(here: &'static Step) {
    CONTEXT.with(|context| {
        if let Some(place) = context.place.get() {
            place.vcpu.step.store(core::ptr::from_ref(here).cast_mut(), Relaxed);
        }
    });
    // ORDERING: Acquire is not needed for the traps themselves (a mutex guards them); it keeps the check after the mark.
    if ARMED.load(Acquire) != 0 {
        spring(here);
    }
}

/// The next vCPU (or `cpu` only) that comes to the step `name` is frozen there for `frozen_for`. Once.
pub fn freeze_at(name: &'static str, cpu: Option<CpuId>, frozen_for: Duration) {
    let mut traps = TRAPS.lock().unwrap_or_else(PoisonError::into_inner);
    traps.push(Trap { cpu, name, frozen_for });
    ARMED.store(traps.len(), Ordering::Release);
}

/// Forgets all traps that nobody came to.
pub(crate) fn disarm() {
    TRAPS.lock().unwrap_or_else(PoisonError::into_inner).clear();
    ARMED.store(0, Relaxed);
}

#[cold]
fn spring(here: &'static Step) {
    let Some(cpu) = guest::current() else { return };
    let mine = |trap: &Trap| trap.name == here.0 && trap.cpu.is_none_or(|only| only == cpu);
    // Inside the host no tick comes: a vCPU that was stopped with this lock held would stop everybody at their next step.
    let frozen_for = exits::in_host(|_| {
        let mut traps = TRAPS.lock().unwrap_or_else(PoisonError::into_inner);
        let found = traps.iter().position(mine)?;
        let trap = traps.swap_remove(found);
        ARMED.store(traps.len(), Relaxed);
        Some(trap.frozen_for)
    });
    if let Some(frozen_for) = frozen_for.flatten() {
        exits::freeze_me(frozen_for);
    }
}
