//! The commands: one file each, with its arguments and what it does.

pub mod doctor;
mod options;

pub mod demo;
pub mod run;
pub mod test;
