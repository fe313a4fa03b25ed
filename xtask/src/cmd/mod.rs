//! The commands: one file each, with its arguments and what it does.

pub mod doctor;
mod options;
pub mod run;
