//! The owner of a lock stops for a while, by halting with the lock held, as if the host did not run its vCPU at all; all others wait for it. What
//! do they burn? The host tells, by the CPU time of the whole machine between the marks.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use axplat::time::{Duration, busy_wait, current_ticks, monotonic_time_nanos, set_oneshot_timer};
use kspin::{SpinNoIrq, SpinRaw};
use x86_64::instructions::interrupts;

use crate::contention::Interval;
use crate::cpus::run_on_all;
use crate::params::Params;

/// As `timer-irq` in `axconfig.toml`.
pub const TIMER: usize = axplat_x86_pc::config::devices::TIMER_IRQ;

/// What the others get to begin to wait after they have said that they will, in milliseconds of the HAL. One whose vCPU the host does not run
/// for that long begins late, and burns less.
const SETTLE: Duration = Duration::from_millis(50);

static TIME_IS_UP: AtomicBool = AtomicBool::new(false);

/// The timer interrupt.
pub fn time_is_up() {
    // ORDERING: Relaxed, read by the interrupted CPU.
    TIME_IS_UP.store(true, Relaxed);
}

macro_rules! measure {
    ($kind:ident, $name:literal, $round:expr, $params:expr) => {{
        let params: &Params = $params;
        let lock = $kind::new(0u64);
        let (is_taken, waiters) = (AtomicBool::new(false), AtomicUsize::new(0));
        // The boot CPU is the owner; it begins the interval when all wait.
        let interval = SpinRaw::new(None);
        run_on_all(params.vcpus, &|cpu| {
            if cpu == 0 {
                let mut entered = lock.lock();
                // ORDERING: Release, pair TAKEN: who sees it finds the lock held.
                is_taken.store(true, Release);
                while waiters.load(Relaxed) != params.vcpus - 1 {
                    core::hint::spin_loop();
                }
                busy_wait(SETTLE);
                let begun = Interval::begin($name, $round, params.stop_ms);
                stop(params.stop_ms);
                begun.end(current_ticks());
                *interval.lock() = Some(begun);
                *entered += 1;
            } else {
                // ORDERING: Acquire, pair TAKEN.
                while !is_taken.load(Acquire) {
                    core::hint::spin_loop();
                }
                waiters.fetch_add(1, Relaxed);
                *lock.lock() += 1;
            }
        });
        let interval: Option<Interval> = interval.into_inner();
        let interval = interval.ok_or("the owner of a lock did not stop")?;
        for tally in &interval.tallies[..params.vcpus] {
            tally.acquisitions.store(1, Relaxed);
        }
        let entered = *lock.lock();
        interval.report(params.vcpus, |acquisitions| entered == acquisitions)
    }};
}

/// With interrupts on while they wait, and with interrupts off.
pub fn measure(round: u64, params: &Params) -> Result<(), &'static str> {
    measure!(SpinRaw, "stopped-SpinRaw", round, params)?;
    measure!(SpinNoIrq, "stopped-SpinNoIrq", round, params)
}

/// Halts this CPU until its timer rings. Interrupts are then as before.
fn stop(ms: u64) {
    // ORDERING: Relaxed, this CPU's own.
    TIME_IS_UP.store(false, Relaxed);
    set_oneshot_timer(monotonic_time_nanos() + ms * 1_000_000);
    interrupts::without_interrupts(|| {
        while !TIME_IS_UP.load(Relaxed) {
            // An interrupt that comes before the halt ends it at once.
            interrupts::enable_and_hlt();
            interrupts::disable();
        }
    });
}
