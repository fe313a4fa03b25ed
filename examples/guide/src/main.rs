//! A small kernel whose CPUs share spin locks: what the `steal-time` guest is without pvlock.
//!
//! `pvlock::guide` starts from here. `cargo xtask test` takes the fragments out of the guide's text and puts each at the line that
//! names it, in place of what stands between that line and `end`; after each step this must build and run.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};

use pvlock_rt::{ExitCode, cpu_count, println, run_on_all};

// guide: locks
use spin::{Mutex, RwLock};
// guide: end

pvlock_rt::entry!(main, up = bring_up, ready = takes_interrupts);

/// Rounds of CPU 0; the others work until it is done.
const ROUNDS: u64 = 20_000;
/// CPUs that can be asked something.
const MOST_CPUS: usize = 64;

static COUNT: Mutex<u64> = Mutex::new(0);
/// CPUs that came to work.
static WORKERS: RwLock<usize> = RwLock::new(0);
/// Requests that have not been answered, by CPU.
static ASKED: [AtomicBool; MOST_CPUS] = [const { AtomicBool::new(false) }; MOST_CPUS];
static DONE: AtomicBool = AtomicBool::new(false);

// guide: platform

// guide: registration

/// From the kernel's per-CPU data.
#[allow(dead_code)] // Until step 2.
fn per_cpu_index() -> Option<u32> {
    pvlock_rt::current().map(|cpu| cpu.index() as u32)
}

/// Memory is identity-mapped.
#[allow(dead_code)] // Until step 3.
fn virt_to_phys<T>(address: *const T) -> u64 {
    address as u64
}

/// On each CPU, as soon as it has its number.
#[allow(unused_variables)] // Until step 3.
fn bring_up(index: u32, apic_id: u32) {
    // guide: up
}

/// On each CPU, once it can take interrupts.
#[allow(unused_variables)] // Until step 3.
fn takes_interrupts(index: u32) {
    // guide: interrupts
}

/// On each CPU, before it goes.
fn leave() {
    // guide: leave
}

fn answer_requests() {
    if let Some(index) = pvlock_rt::current() {
        // ORDERING: Release, pair ASKED (Acquire in `ask_others`): the asker sees what this CPU did before.
        ASKED[index.index()].store(false, Release);
    }
}

fn ask_others() {
    (1..cpu_count()).for_each(|cpu| ASKED[cpu].store(true, Release));
    // guide: wait
    while ASKED.iter().any(|asked| asked.load(Acquire)) {
        core::hint::spin_loop();
    }
    // guide: end
}

fn work(is_first: bool) {
    *WORKERS.write() += 1;
    let mut rounds = 0;
    while if is_first { rounds < ROUNDS } else { !DONE.load(Acquire) } {
        let mut count = COUNT.lock();
        *count += 1;
        // Long enough to be preempted in.
        (0..100).for_each(|_| core::hint::black_box(()));
        drop(count);
        rounds += 1;
        answer_requests();
    }
    if is_first {
        ask_others();
        DONE.store(true, Release);
    }
}

fn main() -> ExitCode {
    if cpu_count() > MOST_CPUS {
        println!("error message=\"this guest knows {MOST_CPUS} CPUs: start it with fewer\"");
        return ExitCode::Failure;
    }
    run_on_all(&|cpu| work(cpu.index() == 0));
    println!("work workers={} counted={}", *WORKERS.read(), *COUNT.lock() >= ROUNDS);
    // guide: report
    run_on_all(&|_| leave());
    println!("end status=ok");
    ExitCode::Success
}
