//! Result files: checked before the long work, written whole or not at all.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::NamedTempFile;

/// A file to be written at the end.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
}

impl Output {
    /// Makes sure now, before the long work, that `path` can be written then. Nothing is left behind.
    pub fn check(path: &Path) -> Result<Self> {
        let output = Self { path: path.to_owned() };
        ensure!(!path.is_dir(), "cannot write {}: it is a folder", path.display());
        if let Ok(metadata) = fs::metadata(path) {
            ensure!(!metadata.permissions().readonly(), "cannot write {}: it is read-only", path.display());
        }
        if !output.is_special() {
            output.temporary()?;
        }
        Ok(output)
    }

    /// Writes `content`. What was there before stays until all of it is on disk.
    pub fn write(&self, content: &str) -> Result<()> {
        if self.is_special() {
            return fs::write(&self.path, content).with_context(|| format!("cannot write {}", self.path.display()));
        }
        let mut file = self.temporary()?;
        file.write_all(content.as_bytes()).with_context(|| format!("cannot write {}", self.path.display()))?;
        file.persist(&self.path).with_context(|| format!("cannot write {}", self.path.display()))?;
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this is a device or pipe, which cannot be replaced by another file.
    fn is_special(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|metadata| !metadata.is_file())
    }

    fn temporary(&self) -> Result<NamedTempFile> {
        let folder = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        tempfile::Builder::new()
            .prefix(".unfinished-")
            .permissions(readable_by_all())
            .tempfile_in(folder)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// What a plain `create` asks for; the umask takes from it what the user wants taken.
fn readable_by_all() -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o666)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_a_check_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.json");
        let output = Output::check(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        output.write("one").unwrap();
        output.write("two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn folders_and_places_that_are_not_there_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Output::check(folder.path()).unwrap_err().to_string().contains("it is a folder"));
        let absent = folder.path().join("absent/out.json");
        assert!(Output::check(&absent).unwrap_err().to_string().contains("absent/out.json"));
        Output::check(Path::new("/dev/null")).unwrap().write("x").unwrap();
    }
}
