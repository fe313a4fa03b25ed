//! The first-level machine's kernel: a distribution's own, unpacked and never installed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use walkdir::WalkDir;

use crate::setup;

/// Packages that depend on the newest small kernel, by distribution.
const META_PACKAGES: [(&str, &str); 2] = [("ubuntu", "linux-image-virtual"), ("debian", "linux-image-cloud-amd64")];

/// The module that runs guests on AMD processors, which is what QEMU emulates; what it needs comes with it.
const KVM_MODULE: &str = "kvm-amd";

/// A kernel unpacked below the target folder.
#[derive(Debug)]
pub struct Kernel {
    pub version: String,
    pub image: PathBuf,
    modules: PathBuf,
}

/// The kernel unpacked by an earlier call, or the distribution's newest, downloaded now.
pub fn ensure(folder: &Path) -> Result<Kernel> {
    let unpacked = folder.join("kernel");
    if let Ok(kernel) = find(&unpacked) {
        return Ok(kernel);
    }
    let packages = setup::kernel_packages(meta_package()?)?;
    setup::fetch(&packages, &unpacked)?;
    find(&unpacked).with_context(|| format!("the packages {} hold no usable kernel", packages.join(" ")))
}

fn meta_package() -> Result<&'static str> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let is = |name: &str| {
        let words = release.lines().filter(|line| line.starts_with("ID=") || line.starts_with("ID_LIKE="));
        words.flat_map(|line| line.split(['=', '"', ' '])).any(|word| word == name)
    };
    META_PACKAGES
        .iter()
        .find(|(name, _)| is(name))
        .map(|&(_, package)| package)
        .ok_or_else(|| anyhow!("this is neither Debian nor Ubuntu, so there is no known kernel package to download"))
}

/// Finds a kernel image with its modules below `unpacked`.
fn find(unpacked: &Path) -> Result<Kernel> {
    for entry in fs::read_dir(unpacked.join("boot")).context("no kernel unpacked")?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(version) = name.strip_prefix("vmlinuz-") else { continue };
        for modules in ["lib/modules", "usr/lib/modules"].map(|path| unpacked.join(path).join(version)) {
            if modules.is_dir() {
                return Ok(Kernel { version: version.to_owned(), image: entry.path(), modules });
            }
        }
    }
    Err(anyhow!("no kernel image with modules in {}", unpacked.display()))
}

/// A kernel module, decompressed.
pub struct Module {
    pub name: String,
    pub content: Vec<u8>,
}

impl Kernel {
    /// KVM's modules in the order in which they have to be loaded.
    pub fn kvm_modules(&self) -> Result<Vec<Module>> {
        let mut files = BTreeMap::new();
        for entry in WalkDir::new(&self.modules).into_iter().flatten() {
            if let Some((name, _)) = entry.file_name().to_string_lossy().split_once(".ko") {
                files.insert(canonical(name), entry.into_path());
            }
        }
        ensure!(files.contains_key(&canonical(KVM_MODULE)), "kernel {} has no module {KVM_MODULE}", self.version);
        let mut modules = Vec::new();
        load(KVM_MODULE, &files, &mut modules)?;
        Ok(modules)
    }
}

/// Appends the module `name` after everything it depends on. What has no file is built into the kernel.
fn load(name: &str, files: &BTreeMap<String, PathBuf>, modules: &mut Vec<Module>) -> Result<()> {
    let name = canonical(name);
    let Some(path) = files.get(&name).filter(|_| modules.iter().all(|module| module.name != name)) else {
        return Ok(());
    };
    let content = decompressed(path).with_context(|| format!("cannot read {}", path.display()))?;
    for dependency in dependencies(&content) {
        load(&dependency, files, modules)?;
    }
    modules.push(Module { name, content });
    Ok(())
}

/// Module names mean the same with `-` and `_`.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// The modules named in a module's own `depends=a,b` string.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value: Vec<u8> = module[start + KEY.len()..].iter().copied().take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&value).split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// A module file's content; distributions ship them plain or compressed.
fn decompressed(path: &Path) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => {
            let compressed = &mut BufReader::new(File::open(path)?);
            lzma_rs::xz_decompress(compressed, &mut content).map_err(|error| anyhow!("{error:?}"))?;
        }
        Some("zst") => {
            let mut decoder = ruzstd::decoding::StreamingDecoder::new(File::open(path)?)?;
            std::io::copy(&mut decoder, &mut content)?;
        }
        _ => content = fs::read(path)?,
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_depend_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = BTreeMap::new();
        for (name, depends) in [("kvm_amd", "kvm,ccp"), ("kvm", "irqbypass"), ("irqbypass", "")] {
            let path = folder.path().join(format!("{name}.ko"));
            fs::write(&path, format!("\x7fELF license=GPL\0depends={depends}\0retpoline=Y\0")).unwrap();
            files.insert(name.to_owned(), path);
        }
        let mut modules = Vec::new();
        load("kvm-amd", &files, &mut modules).unwrap();
        let names: Vec<&str> = modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, ["irqbypass", "kvm", "kvm_amd"]);
    }

    #[test]
    fn compressed_modules_are_read_as_plain_ones() {
        let folder = tempfile::tempdir().unwrap();
        let text = b"\x7fELF\0depends=kvm\0".repeat(100);
        let mut xz = Vec::new();
        lzma_rs::xz_compress(&mut text.as_slice(), &mut xz).unwrap();
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let zst = ruzstd::encoding::compress_to_vec(text.as_slice(), level);
        for (name, content) in [("m.ko", &text), ("m.ko.xz", &xz), ("m.ko.zst", &zst)] {
            let path = folder.path().join(name);
            fs::write(&path, content).unwrap();
            assert!(decompressed(&path).unwrap() == text, "{name}");
        }
    }
}
