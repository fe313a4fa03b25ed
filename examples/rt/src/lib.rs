//! Runtime of the example guests: a kernel small enough to read, for QEMU and other loaders that know PVH.
//!
//! It boots into 64-bit mode with SSE on and the first 4 GiB identity-mapped, starts all CPUs, registers their
//! steal-time records with KVM and calls the guest's main function:
//!
//! ```ignore
//! #![no_std]
//! #![no_main]
//! pvlock_rt::entry!(main);
//!
//! fn main() -> pvlock_rt::ExitCode {
//!     pvlock_rt::run_on_all(&|cpu| pvlock_rt::println!("# {cpu} says hello"));
//!     pvlock_rt::ExitCode::Success
//! }
//! ```
//!
//! # Building a guest
//! Guests are built for the host's own target, freestanding, so no other target needs to be installed:
//!
//! ```text
//! RUSTFLAGS="-C relocation-model=static -C no-redzone=yes" cargo build --package pvlock-examples --profile guest \
//!     --target x86_64-unknown-linux-gnu
//! ```
//!
//! The images are `target/x86_64-unknown-linux-gnu/guest/NAME`. What the linker needs comes from `examples/build.rs`
//! and `examples/rt/link.ld`. `--target` must be named: it keeps the flags away from build scripts. Guests cannot be built
//! together with the workspace's host programs (`--workspace`), which link std.
//!
//! # Running one
//! ```text
//! qemu-system-x86_64 -M q35 -accel kvm -cpu host -smp 4 -m 128 -nodefaults -no-reboot -display none -serial stdio \
//!     -device isa-debug-exit,iobase=0xf4,iosize=4 -kernel IMAGE -append "key=value ..."
//! ```
//!
//! QEMU exits with 33 for success, 35 for failure, 37 for a panic or exception ([`ExitCode`]).
//!
//! # Limits
//! No page protection and no guard pages below stacks, memory above 4 GiB unused, interrupts only from the local APIC.
#![no_std]

extern crate alloc;

mod boot;
mod clock;
#[doc(hidden)]
pub mod console;
mod cpu;
mod error;
mod exit;
mod heap;
mod lapic;
mod madt;
mod per_cpu;
mod segments;
mod smp;
mod symbols;
pub mod task;
mod traps;
mod window;
mod work;

pub use boot::{BringUp, command_line};
pub use clock::{sleep_ms, tsc, tsc_khz};
pub use console::Quoted;
pub use cpu::{RtCpu, hypervisor_present, runtime_kicks};
pub use exit::{ExitCode, exit};
pub use lapic::{REQUEST_VECTOR, on_request, on_tick, request, start_periodic_timer, start_timer, stop_timer};
pub use per_cpu::current;
pub use smp::{cpu_count, halts, ticks};
pub use window::{Frame, Window};
pub use work::run_on_all;
