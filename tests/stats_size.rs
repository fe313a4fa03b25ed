//! Without the feature `stats`, counting leaves no trace: the library's code is as large as that of its sources with all counting cut out.
#![cfg(not(any(pvlock_loom, feature = "stats")))]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection, SectionKind};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Copies what a build needs to `to`; `edit` gets each Rust file's text.
fn copy(to: &Path, edit: fn(&str) -> String) {
    fn walk(from: &Path, to: &Path, edit: fn(&str) -> String) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            let (path, target) = (entry.path(), to.join(entry.file_name()));
            if path.is_dir() {
                walk(&path, &target, edit);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                let is_rust = path.extension().is_some_and(|extension| extension == "rs");
                fs::write(target, if is_rust { edit(&text) } else { text }).unwrap();
            }
        }
    }
    for folder in ["src", "asm"] {
        walk(&Path::new(ROOT).join(folder), &to.join(folder), edit);
    }
    fs::copy(Path::new(ROOT).join("README.md"), to.join("README.md")).unwrap();
}

/// The text without statements that call `count`.
fn without_counting(text: &str) -> String {
    let mut kept = String::new();
    let mut inside = false;
    for line in text.lines() {
        let code = line.trim_start();
        inside |= code.starts_with("count(") || code.starts_with("count::<");
        if !inside {
            kept += line;
            kept.push('\n');
        }
        inside &= !line.trim_end().ends_with(");");
    }
    kept
}

/// Bytes of machine code in the library built from `source`, for a type that uses all of it.
fn code_bytes(source: &Path) -> u64 {
    let user = r#"
        pub enum K {}
        impl pvlock::Cpu for K {
            type Hypervisor = pvlock::hypervisor::Kvm;
            fn current() -> Option<pvlock::CpuId> { pvlock::CpuId::new(unsafe { X }) }
        }
        static mut X: u32 = 0;
        pub type P = pvlock::lock::HaltParker<K>;
        #[no_mangle] pub fn a(l: &pvlock::lock::RawSpinLock<K>) { l.lock(); unsafe { l.unlock() } }
        #[no_mangle] pub fn b(l: &pvlock::lock::RawRwLock<K>) { l.read(); unsafe { l.unlock_read() } l.write(); unsafe { l.unlock_write() } }
        #[no_mangle] pub fn c(l: &pvlock::lock::RawMutex<P>) { l.lock(); unsafe { l.unlock() } }
        #[no_mangle] pub fn d(l: &pvlock::lock::OsqLock<K>) { if let Some(t) = l.lock(|| false) { l.unlock(t) } }
    "#;
    let manifest = fs::read_to_string(Path::new(ROOT).join("Cargo.toml")).unwrap();
    // The library's own dependencies, without what only the workspace has.
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap().to_owned();
    let features = manifest.split("[features]").nth(1).unwrap().split("\n[").next().unwrap().to_owned();
    let package = |name: &str, rest: &str| {
        format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n{rest}")
    };
    fs::write(
        source.join("Cargo.toml"),
        package("pvlock", &format!("[features]\n{features}\n[dependencies]\n{dependencies}")),
    )
    .unwrap();
    let user_folder = source.join("user");
    fs::create_dir_all(user_folder.join("src")).unwrap();
    let release =
        "[profile.release]\ncodegen-units = 1\nlto = \"fat\"\npanic = \"abort\"\n[lib]\ncrate-type = [\"cdylib\"]\n";
    let user_manifest =
        package("user", &format!("[dependencies]\npvlock = {{ path = \"..\" }}\n{release}[workspace]\n"));
    fs::write(user_folder.join("Cargo.toml"), user_manifest).unwrap();
    fs::write(user_folder.join("src/lib.rs"), user.replace("#[no_mangle]", "#[unsafe(no_mangle)]")).unwrap();
    // The same versions of everything.
    fs::copy(Path::new(ROOT).join("Cargo.lock"), user_folder.join("Cargo.lock")).unwrap();
    let target = user_folder.join("target");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(&user_folder).args(["build", "--release", "--quiet", "--target-dir"]).arg(&target);
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    let output = cargo.output().expect("cargo does not start");
    assert!(output.status.success(), "build failed:\n{}", String::from_utf8_lossy(&output.stderr));
    let file = fs::read(target.join("release/libuser.so")).unwrap();
    let object = object::File::parse(&*file).unwrap();
    object.sections().filter(|section| section.kind() == SectionKind::Text).map(|section| section.size()).sum()
}

#[test]
fn counting_leaves_no_code_behind() {
    let folder = |name: &str| -> PathBuf {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stats-size").join(name);
        let _ = fs::remove_dir_all(folder.join("src"));
        folder
    };
    let (with, without) = (folder("with"), folder("without"));
    copy(&with, str::to_owned);
    copy(&without, without_counting);
    let counted = |folder: &Path| {
        let text = fs::read_to_string(folder.join("src/lock/spin/queue.rs")).unwrap();
        text.lines().filter(|line| line.trim_start().starts_with("count(")).count()
    };
    assert!(counted(&with) > 3 && counted(&without) == 0, "the cut does not cut");
    let (with, without) = (code_bytes(&with), code_bytes(&without));
    assert!(with > 1000, "{with} bytes: that is not the library");
    assert_eq!(with, without);
}
