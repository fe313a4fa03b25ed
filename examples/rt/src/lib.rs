//! Runtime of the example guests.
#![no_std]
