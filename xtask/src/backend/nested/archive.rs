//! The archive format that Linux takes as its first file system: cpio, "newc", uncompressed.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

use cpio::newc::{self, Builder, ModeFileType};

/// Linux looks for the next archive at a multiple of 4 bytes; whole sectors are the custom.
const PADDING: usize = 512;

/// An archive being written. Parent folders come by themselves.
pub struct Archive<W: Write> {
    output: W,
    written: usize,
    folders: BTreeSet<String>,
    next_inode: u32,
}

impl<W: Write> Archive<W> {
    pub fn new(output: W) -> Self {
        Self { output, written: 0, folders: BTreeSet::new(), next_inode: 1 }
    }

    /// Adds a file that can be run.
    pub fn program(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.with_parents(path, 0o755, content)
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.with_parents(path, 0o644, content)
    }

    /// Adds an empty folder.
    pub fn folder(&mut self, path: &str) -> io::Result<()> {
        let path = path.trim_start_matches('/');
        if path.is_empty() || !self.folders.insert(path.to_owned()) {
            return Ok(());
        }
        self.parents(path)?;
        self.entry(path, 0o755, ModeFileType::Directory, &[])
    }

    /// Ends the archive, padded so that another may follow.
    pub fn finish(mut self) -> io::Result<W> {
        let mut trailer = newc::trailer(Vec::new())?;
        trailer.resize((self.written + trailer.len()).next_multiple_of(PADDING) - self.written, 0);
        self.output.write_all(&trailer)?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn parents(&mut self, path: &str) -> io::Result<()> {
        match Path::new(path).parent().and_then(Path::to_str) {
            Some(parent) => self.folder(parent),
            None => Ok(()),
        }
    }

    fn with_parents(&mut self, path: &str, permissions: u32, content: &[u8]) -> io::Result<()> {
        let path = path.trim_start_matches('/');
        self.parents(path)?;
        self.entry(path, permissions, ModeFileType::Regular, content)
    }

    fn entry(&mut self, path: &str, permissions: u32, kind: ModeFileType, content: &[u8]) -> io::Result<()> {
        let size = u32::try_from(content.len()).map_err(io::Error::other)?;
        let builder = Builder::new(path).ino(self.next_inode).mode(permissions).set_mode_file_type(kind);
        self.next_inode += 1;
        let mut entry = builder.write(Vec::new(), size);
        entry.write_all(content)?;
        let bytes = entry.finish()?;
        self.written += bytes.len();
        self.output.write_all(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn folders_come_before_what_is_in_them_and_the_end_is_padded() {
        let mut archive = Archive::new(Vec::new());
        archive.program("/usr/bin/qemu", b"abc").unwrap();
        archive.file("usr/bin/other", b"").unwrap();
        archive.folder("proc").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % PADDING, 0);

        let mut names = Vec::new();
        let mut rest = bytes.as_slice();
        loop {
            let mut reader = newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            names.push((reader.entry().name().to_owned(), reader.entry().mode()));
            let mut content = Vec::new();
            reader.read_to_end(&mut content).unwrap();
            rest = reader.finish().unwrap();
        }
        let expected = [
            ("usr", 0o040755),
            ("usr/bin", 0o040755),
            ("usr/bin/qemu", 0o100755),
            ("usr/bin/other", 0o100644),
            ("proc", 0o040755),
        ];
        assert_eq!(names, expected.map(|(name, mode)| (name.to_owned(), mode)));
    }
}
