//! What the example guests share. Each guest is one file in `src/bin`; how to build and run them stands in `pvlock-rt`.
//!
//! Guests print lines: those that start with `# ` are for people, the others are `KIND key=value ...` for programs. The
//! last one is `end status=ok` or `end status=fail`.
#![no_std]

extern crate alloc;

pub mod contention;
pub mod guest;
pub mod host;
pub mod locks;
pub mod params;
pub mod report;
