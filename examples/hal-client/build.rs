//! Hands the linker its script.

use std::env;
use std::path::Path;

fn main() {
    // Cargo sets it for every build script.
    let package = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    let script = Path::new(&package).join("../link.ld");
    println!("cargo:rerun-if-changed={}", script.display());
    println!("cargo:rustc-link-arg-bins=-T{}", script.display());
    println!("cargo:rustc-link-arg-bins=-no-pie");
}
