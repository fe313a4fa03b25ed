//! One hand-written routine as it was built: its disassembly and what it does to memory, stack and registers.
//!
//! Used by the test of the assembly and by `cargo xtask asm`, so that both judge alike.

mod facts;
mod image;
mod red_zone;

pub use facts::{Facts, facts};
pub use image::{Line, ReadError, Routine};
pub use red_zone::red_zone_accesses;
