//! Link arguments of guest images: freestanding, at a fixed address, laid out by rt/link.ld.

fn main() {
    let script = format!("{}/rt/link.ld", env!("CARGO_MANIFEST_DIR"));
    println!("cargo::rerun-if-changed={script}");
    for arg in ["-nostdlib", "-nostartfiles", "-static", "-no-pie", "-Wl,--build-id=none", "-Wl,--no-eh-frame-hdr"] {
        println!("cargo::rustc-link-arg-bins={arg}");
    }
    println!("cargo::rustc-link-arg-bins=-Wl,-T,{script}");
}
