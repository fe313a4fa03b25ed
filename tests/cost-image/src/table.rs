//! What the image tells who loads it. This file is part of both.

use core::ffi::CStr;

/// One way to take and release one lock.
#[derive(Debug)]
#[repr(C)]
pub struct Probe {
    /// Crate, lock, platform form, what happens to the CPU meanwhile, and what is done, with `|` between them.
    pub name: &'static CStr,
    /// Size of the lock around `()`, in bytes.
    pub bytes: usize,
    /// Size of the lock around a `u64`, in bytes.
    pub bytes_around_u64: usize,
    /// Takes and releases the lock. On the way the markers [`BEGIN`], [`HELD`] and [`END`] are executed.
    ///
    /// The CPU's own block is at its gs base (see [`Image::block`]).
    pub once: extern "C" fn(),
    /// The same so many times, in a loop.
    pub many: extern "C" fn(rounds: u64),
}

/// What the entry point of the image returns.
#[derive(Debug)]
#[repr(C)]
pub struct Image {
    /// What can be measured.
    pub probes: &'static [Probe],
    /// Where the gs base of the CPU has to point, filled in for CPU 0.
    pub block: *const u8,
    /// Registers CPU 0 with its hypervisor, which decides whether waiters halt. Executes privileged instructions and CPUID.
    pub register: extern "C" fn(),
}

// SAFETY: nobody writes what `block` points to once it is filled in.
unsafe impl Sync for Image {}

/// A no-operation by whose displacement one finds out where in a round a CPU is: before the lock is taken.
pub const BEGIN: i32 = 0x7076_6c01;
/// As [`BEGIN`], while the lock is held.
pub const HELD: i32 = 0x7076_6c02;
/// As [`BEGIN`], after the lock was released.
pub const END: i32 = 0x7076_6c03;
