//! The owner of a lock stops for a while, and all others wait for it: what do they burn? The host tells, by the CPU time of the whole machine
//! between the marks.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use axplat::time::{Duration, busy_wait, current_ticks, monotonic_time_nanos, set_oneshot_timer};
use kspin::SpinRaw;
use x86_64::instructions::interrupts;

use crate::contention::Interval;
use crate::cpus::run_on_all;
use crate::params::Params;

/// As `timer-irq` in `axconfig.toml`.
pub const TIMER: usize = axplat_x86_pc::config::devices::TIMER_IRQ;

/// How long the others get to begin to wait after they have said that they will, in HAL milliseconds.
const SETTLE: Duration = Duration::from_millis(50);

static TIME_IS_UP: AtomicBool = AtomicBool::new(false);

/// The timer interrupt.
pub fn time_is_up() {
    // ORDERING: Relaxed, read by the interrupted CPU.
    TIME_IS_UP.store(true, Relaxed);
}

/// The boot CPU stops, with the lock.
pub fn measure(round: u64, params: &Params) -> Result<(), &'static str> {
    let lock = SpinRaw::new(0u64);
    let (is_taken, waiters) = (AtomicBool::new(false), AtomicUsize::new(0));
    // Begins when all wait.
    let interval = spin_once(&lock, &is_taken, &waiters, round, params);
    let entered = *lock.lock();
    interval.report(params.vcpus, entered, 0)
}

fn spin_once(
    lock: &SpinRaw<u64>,
    is_taken: &AtomicBool,
    waiters: &AtomicUsize,
    round: u64,
    params: &Params,
) -> Interval {
    let tallies: [crate::contention::Tally; crate::cpus::MAX_CPUS] = [crate::contention::Tally::NEW; crate::cpus::MAX_CPUS];
    let interval = kspin::SpinRaw::new(None);
    run_on_all(params.vcpus, &|cpu| {
        let asked;
        let mut count = if cpu == 0 {
            let count = lock.lock();
            // ORDERING: Release, pair TAKEN: who sees it finds the lock held.
            is_taken.store(true, Release);
            while waiters.load(Relaxed) != params.vcpus - 1 {
                core::hint::spin_loop();
            }
            busy_wait(SETTLE);
            let begun = Interval::begin("stopped-owner", round, params.stop_ms);
            stop(params.stop_ms);
            begun.end(current_ticks());
            *interval.lock() = Some(begun);
            asked = current_ticks();
            count
        } else {
            // ORDERING: Acquire, pair TAKEN.
            while !is_taken.load(Acquire) {
                core::hint::spin_loop();
            }
            waiters.fetch_add(1, Relaxed);
            asked = current_ticks();
            lock.lock()
        };
        *count += 1;
        drop(count);
        // ORDERING: Relaxed, `run_on_all` publishes them to the boot CPU.
        tallies[cpu].acquisitions.store(1, Relaxed);
        tallies[cpu].max_wait.store(current_ticks() - asked, Relaxed);
    });
    let mut interval = interval.into_inner().unwrap_or_else(|| Interval::begin("stopped-owner", round, 0));
    interval.tallies = tallies;
    interval
}

/// Halts this CPU until its timer rings.
fn stop(ms: u64) {
    // ORDERING: Relaxed, this CPU's own.
    TIME_IS_UP.store(false, Relaxed);
    set_oneshot_timer(monotonic_time_nanos() + ms * 1_000_000);
    interrupts::disable();
    while !TIME_IS_UP.load(Relaxed) {
        // An interrupt that comes before the halt ends it at once.
        interrupts::enable_and_hlt();
        interrupts::disable();
    }
    interrupts::enable();
}
