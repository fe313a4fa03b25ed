//! Finds out whether a host really runs guests: SSE arithmetic, CPUID, a hypercall and a timed loop.
//!
//! Expect `probe loop_cycles=... hypercall_ok=yes|none sse=ok` and success within a second. A KVM that only answers
//! ioctls, or emulates one instruction at a time, fails or takes far longer: callers set a time limit.
//!
//! Parameters: `linger_ms` (0).
#![no_std]
#![no_main]

use core::hint::black_box;

use pvlock_examples::guest::{self, Failure};
use pvlock_examples::host;
use pvlock_rt::{ExitCode, println, tsc};

pvlock_rt::entry!(main);

fn main() -> ExitCode {
    guest::run(&[], |_| probe())
}

fn probe() -> Result<(), Failure> {
    let sse_ok = sse_works();
    let hypercall_ok = host::try_hypercall();
    println!(
        "probe loop_cycles={} hypercall_ok={} sse={}",
        loop_cycles(),
        hypercall_ok.map_or("none", |ok| if ok { "yes" } else { "no" }),
        if sse_ok { "ok" } else { "wrong" }
    );
    match (sse_ok, hypercall_ok) {
        (false, _) => Err(Failure::WrongSse),
        (true, Some(false)) => Err(Failure::Hypercall),
        _ => Ok(()),
    }
}

/// Double arithmetic is compiled to SSE2. All values here are exact, whatever the rounding.
fn sse_works() -> bool {
    let sum: f64 = (1..=1000).map(|i| f64::from(black_box(i)) * 0.5).sum();
    sum == 250_250.0
}

/// TSC cycles for ten million rounds of a loop that never leaves the CPU.
fn loop_cycles() -> u64 {
    let start = tsc();
    for i in 0..10_000_000u64 {
        black_box(i);
    }
    tsc() - start
}
