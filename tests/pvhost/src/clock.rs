//! Time: the host's clock, CPU clocks of threads, and spinning for the cost of an exit.

use core::hint::spin_loop;
use core::time::Duration;
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};

/// Nanoseconds on the host's clock (CLOCK_MONOTONIC). Reads the vDSO: cheap, and safe in a signal handler.
pub(crate) fn now_ns() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// CPU time that the calling thread has burned, in ns.
pub(crate) fn thread_cpu_ns() -> u64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time that the thread `tid` of this process has burned, in ns; 0 when there is no such thread.
pub(crate) fn cpu_ns_of(tid: i32) -> u64 {
    // How Linux writes the CPU clock of one thread (`pthread_getcpuclockid` does the same): the complement of its id
    // above three bits, PERTHREAD (4) and SCHED (2).
    let clock = (!tid << 3) | 4 | 2;
    clock_gettime(ClockId::from_raw(clock)).map_or(0, |t| t.num_nanoseconds() as u64)
}

/// Burns CPU for `duration`, as an exit to the host does.
pub(crate) fn spin_for(duration: Duration) {
    if duration.is_zero() {
        return;
    }
    let end_ns = now_ns() + duration.as_nanos() as u64;
    while now_ns() < end_ns {
        spin_loop();
    }
}

fn read(clock: ClockId) -> u64 {
    // The two clocks above exist on every Linux, so this cannot fail.
    clock_gettime(clock).map_or(0, |t| t.num_nanoseconds() as u64)
}
