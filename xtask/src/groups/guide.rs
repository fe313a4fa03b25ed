//! A stranger follows the guide: its fragments, step by step, in a kernel that knew nothing of pvlock.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::Tally;
use super::guests::Boot;
use crate::backend::Backend;
use crate::boot::Outcome;
use crate::guide::{self, Step};
use crate::{cargo, image};

/// What the guide says in step 1; a checkout is tested with itself.
const GIT: &str = r#"git = "https://github.com/pvlock/pvlock""#;
const FILES: [&str; 2] = ["Cargo.toml", "src/main.rs"];

/// Without KVM: after each step, and before the first, the kernel builds and runs, and prints what the guide says.
pub fn without_kvm(tally: &mut Tally, backend: &Backend) {
    tally.test("tcg::guide", || {
        let kernel = Kernel::new("guide-kernel")?;
        let steps = steps()?;
        kernel.boot(backend, 4).context("before step 1")?;
        let mut expected: Vec<String> = Vec::new();
        for step in &steps {
            kernel.take(step)?;
            expected.extend(step.prints.iter().cloned());
            let outcome = kernel.boot(backend, 4).with_context(|| format!("after step {}", step.title))?;
            check(&outcome, &expected).with_context(|| format!("after step {}", step.title))?;
        }
        ensure!(!expected.is_empty(), "the guide says nowhere what the kernel prints");
        kernel.require_no_open_place()
    });
}

/// Under KVM, with four vCPUs per CPU: after the last step.
pub fn under_kvm(tally: &mut Tally, backend: &Backend) {
    tally.test("nested::guide", || {
        let kernel = Kernel::new("guide-kernel-kvm")?;
        let mut expected: Vec<String> = Vec::new();
        for step in &steps()? {
            kernel.take(step)?;
            expected.extend(step.prints_under_kvm.iter().cloned());
        }
        ensure!(!expected.is_empty(), "the guide says nowhere what the kernel prints under KVM");
        check(&kernel.boot(backend, 8)?, &expected)
    });
}

fn steps() -> Result<Vec<Step>> {
    let path = cargo::workspace_root().join("src/guide.md");
    guide::steps(&read(&path)?)
}

fn check(outcome: &Outcome, expected: &[String]) -> Result<()> {
    let printed: Vec<&str> = outcome.lines.iter().map(|line| line.text.trim_end()).collect();
    let missing = guide::missing(expected, &printed);
    ensure!(
        missing.is_none(),
        "the kernel does not print `{}`, but: {}",
        missing.unwrap_or_default(),
        printed.join(" | ")
    );
    let work = outcome.records("work").next().context("the kernel did not report its work")?;
    ensure!(work.get("counted") == Some("true"), "the kernel's count is wrong");
    Ok(())
}

/// A copy of `examples/guide` that is being changed.
struct Kernel {
    folder: PathBuf,
}

impl Kernel {
    fn new(name: &str) -> Result<Self> {
        let folder = cargo::target_dir()?.join(name);
        fs::create_dir_all(folder.join("src")).context("cannot make a folder for the kernel")?;
        let root = cargo::workspace_root();
        for file in FILES {
            let text = read(&root.join("examples/guide").join(file))?;
            let rt = root.join("examples/rt").display().to_string();
            write(&folder.join(file), &text.replace(r#""../rt""#, &format!("{rt:?}")))?;
        }
        // The same versions as everywhere else here.
        write(&folder.join("Cargo.lock"), &read(&root.join("Cargo.lock"))?)?;
        Ok(Self { folder })
    }

    fn take(&self, step: &Step) -> Result<()> {
        for fragment in &step.fragments {
            let file = self.folder.join(&fragment.file);
            let text = guide::apply(&read(&file)?, fragment).with_context(|| format!("step {}", step.title))?;
            let here = format!("path = {:?}", cargo::workspace_root().display().to_string());
            write(&file, &text.replace(GIT, &here))?;
        }
        Ok(())
    }

    fn boot(&self, backend: &Backend, vcpus: usize) -> Result<Outcome> {
        let image = image::build_kernel(&self.folder, "guide-kernel")?;
        Boot { vcpus, ..Boot::default() }.run_image(backend, &image)
    }

    fn require_no_open_place(&self) -> Result<()> {
        for file in FILES {
            let text = read(&self.folder.join(file))?;
            let open = guide::open_places(&text);
            ensure!(open.is_empty(), "the guide fills these places of {file} in no step: {}", open.join(", "));
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
