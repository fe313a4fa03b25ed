//! The commands: one file each, with its arguments and what it does.

mod options;

pub mod api;
pub mod asm;
pub mod bench;
pub mod cost;
pub mod demo;
pub mod doctor;
pub mod run;
pub mod test;
