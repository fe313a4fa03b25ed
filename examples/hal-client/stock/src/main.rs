//! The image; everything is in `hal-client-kernel`.
#![no_std]
#![no_main]

extern crate hal_client_kernel;
