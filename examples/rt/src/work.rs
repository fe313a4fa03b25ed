//! Giving all CPUs something to do. A CPU without work halts, so that it disturbs nobody.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use pvlock::CpuId;
use x86_64::instructions::interrupts;

use crate::per_cpu::{BOOT_CPU, PerCpu, current};
use crate::{clock, cpu, lapic, smp};

/// What is done on every CPU.
type Job<'a> = dyn Fn(CpuId) + Sync + 'a;

/// The job that all CPUs run, and how far they are.
///
/// | state   | round                   | unfinished                 | job                     |
/// |---------|-------------------------|----------------------------|-------------------------|
/// | idle    | what every CPU has seen | 0                          | not read by anybody     |
/// | running | one more                | CPUs that have not ended it | read, valid until 0 left |
struct Dispatch {
    round: AtomicU32,
    unfinished: AtomicUsize,
    job: UnsafeCell<Option<&'static Job<'static>>>,
}

// SAFETY: `job` is written by the boot CPU alone, in the idle state, and read by others between their two handshakes.
unsafe impl Sync for Dispatch {}

static DISPATCH: Dispatch =
    Dispatch { round: AtomicU32::new(0), unfinished: AtomicUsize::new(0), job: UnsafeCell::new(None) };

/// Runs `job` on every CPU at the same time, this one included, and returns when all have returned from it.
///
/// The others are woken by interrupt; whoever waits for the rest halts.
///
/// # Panics
/// When it is not called on the boot CPU, or from within a job.
pub fn run_on_all(job: &Job<'_>) {
    let cpu = current().filter(|cpu| Some(*cpu) == BOOT_CPU.cpu()).expect("run_on_all belongs to the boot CPU");
    // ORDERING: Acquire, pair JOB-DONE: nobody reads the previous job any more.
    assert_eq!(DISPATCH.unfinished.load(Ordering::Acquire), 0, "run_on_all was called from within a job");
    // SAFETY: only the lifetime changes. This function does not return before every CPU has returned from the job.
    let forever = unsafe { core::mem::transmute::<&Job<'_>, &'static Job<'static>>(job) };
    // SAFETY: the idle state (see the table), and only the boot CPU writes.
    unsafe { *DISPATCH.job.get() = Some(forever) };
    // ORDERING: Relaxed, published by the next line.
    DISPATCH.unfinished.store(smp::cpu_count() - 1, Ordering::Relaxed);
    // ORDERING: Release, pair JOB-START: the job and the count are written.
    DISPATCH.round.fetch_add(1, Ordering::Release);
    smp::all().iter().filter(|other| other.cpu() != Some(cpu)).for_each(|other| wake(other));
    job(cpu);
    // ORDERING: Acquire, pair JOB-DONE: what the others did in the job has happened.
    halt_while(|| DISPATCH.unfinished.load(Ordering::Acquire) != 0);
}

/// Waits for jobs for ever: where every CPU but the boot CPU spends its life.
pub(crate) fn serve(block: &'static PerCpu) -> ! {
    let cpu = block.cpu().expect("a started CPU has its number");
    let mut seen = 0;
    // ORDERING: Release, pair AP-ONLINE.
    block.online.store(true, Ordering::Release);
    loop {
        // ORDERING: Acquire, pair JOB-START: the job and the count are there.
        halt_while(|| DISPATCH.round.load(Ordering::Acquire) == seen);
        // A round only ends when this CPU has finished it, so none is ever missed.
        seen = seen.wrapping_add(1);
        // SAFETY: the running state: nobody writes until this CPU counts itself as finished.
        let job = unsafe { *DISPATCH.job.get() }.expect("a round has a job");
        job(cpu);
        // ORDERING: Release, pair JOB-DONE: what this CPU did in the job. AcqRel, so that the last one carries all.
        if DISPATCH.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            wake(&BOOT_CPU);
        }
    }
}

/// Ends the halt of a CPU in [`halt_while`], or its next one.
///
/// Where it can, by a kick and not by an interrupt: an idle CPU then takes no interrupt at all, and the halts and kicks are those
/// that the locks use.
pub(crate) fn wake(block: &PerCpu) {
    match block.cpu() {
        Some(cpu) if cpu::idles_until_kicked(cpu) => cpu::kick(cpu),
        _ => lapic::wake(block.apic_id()),
    }
}

/// Halts until `condition` is false; whoever changes it wakes this CPU afterwards ([`wake`]). Interrupts are on when it returns.
pub(crate) fn halt_while(condition: impl Fn() -> bool) {
    loop {
        // With interrupts off, a wake-up between the look and the halt stays pending and ends the halt. So does a kick.
        interrupts::disable();
        if !condition() {
            break;
        }
        if current().is_some_and(cpu::idles_until_kicked) {
            clock::halt_until_kicked();
        } else {
            clock::halt();
        }
    }
    interrupts::enable();
}
