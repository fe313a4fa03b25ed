//! Loading an image: a static, position-independent ELF program without a system underneath.

use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr::NonNull;
use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use object::{File, Object, ObjectSection, ObjectSegment, ObjectSymbol, RelocationFlags, SectionKind, elf};

use crate::cpu;
use crate::table::{Image, Probe};

const PAGE: u64 = 4096;
/// arch_prctl(2).
const ARCH_SET_GS: libc::c_int = 0x1001;

/// An image in memory, registered with its hypervisor.
pub(crate) struct Loaded {
    memory: NonNull<u8>,
    length: NonZeroUsize,
    image: &'static Image,
    /// Its functions by their last address, so that the first one at or above an address may hold it.
    functions: BTreeMap<u64, (u64, String)>,
}

impl Loaded {
    /// Loads `file`, and has it decide on a host where waiters halt, or on none.
    pub(crate) fn new(file: &[u8], halting: bool) -> Result<Self> {
        let object = File::parse(file).context("not a readable ELF file")?;
        ensure!(object.segments().next().is_some(), "the file is no program");
        let end = object.segments().map(|segment| segment.address() + segment.size()).max().unwrap_or(0);
        let length = NonZeroUsize::new(end.next_multiple_of(PAGE) as usize).context("the program is empty")?;
        // SAFETY: new memory, which belongs to nobody else.
        let memory = unsafe {
            mmap_anonymous(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE)
        };
        let memory = memory.context("no memory for the image")?.cast::<u8>();
        // SAFETY: it was just mapped with this length, and only this slice refers to it.
        let bytes = unsafe { core::slice::from_raw_parts_mut(memory.as_ptr(), length.get()) };
        let base = memory.addr().get() as u64;
        fill(&object, bytes, base)?;
        for segment in object.segments() {
            protect(memory, &segment)?;
        }
        // SAFETY: the entry point of an image is a function of this type.
        let start: extern "C" fn() -> &'static Image =
            unsafe { core::mem::transmute((base + object.entry()) as *const ()) };
        let mut functions: BTreeMap<u64, (u64, String)> = BTreeMap::new();
        for symbol in object.symbols().filter(|symbol| symbol.is_definition() && symbol.size() > 0) {
            let begin = base + symbol.address();
            let name = format!("{:#}", rustc_demangle::demangle(symbol.name().unwrap_or_default()));
            let last = begin + symbol.size() - 1;
            // Equal functions may have become one, with many names: the first in the alphabet, so that it is the same each time.
            if functions.get(&last).is_none_or(|(_, other)| name < *other) {
                functions.insert(last, (begin, name));
            }
        }
        let loaded = Self { memory, length, image: start(), functions };
        cpu::set_host_wakes(halting);
        loaded.enter()?;
        (loaded.image.register)();
        Ok(loaded)
    }

    /// Makes the calling thread a CPU of this image.
    pub(crate) fn enter(&self) -> Result<()> {
        let begin = self.memory.addr().get() as u64;
        cpu::watch(&(begin..begin + self.length.get() as u64));
        // SAFETY: nothing of this thread uses gs, and the block stays as long as the image.
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, self.image.block) };
        ensure!(result == 0, "cannot set the gs base: {}", std::io::Error::last_os_error());
        Ok(())
    }

    pub(crate) fn probes(&self) -> &[Probe] {
        self.image.probes
    }

    /// The bytes from `address` on.
    pub(crate) fn code(&self, address: u64) -> &[u8] {
        let at = (address as usize).wrapping_sub(self.memory.addr().get()).min(self.length.get());
        let begin = self.memory.as_ptr().wrapping_add(at);
        // SAFETY: inside of the mapping. Code is not written any more.
        unsafe { core::slice::from_raw_parts(begin, self.length.get() - at) }
    }

    /// The function that holds `address`.
    pub(crate) fn function(&self, address: u64) -> String {
        match self.functions.range(address..).next() {
            Some((_, (begin, name))) if *begin <= address => name.clone(),
            _ => "a function without a name".to_owned(),
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; what refers to it goes with `self`.
        let _ = unsafe { munmap(self.memory.cast(), self.length.get()) };
    }
}

/// Puts the program's segments into `memory`, which lies at `base`, and relocates them.
fn fill(object: &File<'_>, memory: &mut [u8], base: u64) -> Result<()> {
    for segment in object.segments() {
        let data = segment.data().context("the file is cut off")?;
        place(memory, segment.address(), data.len())?.copy_from_slice(data);
    }
    for (at, relocation) in object.dynamic_relocations().context("the program is not position-independent")? {
        if relocation.flags() != (RelocationFlags::Elf { r_type: elf::R_X86_64_RELATIVE }) {
            bail!("the program needs another program: {relocation:?}");
        }
        let target = base.wrapping_add_signed(relocation.addend());
        place(memory, at, size_of_val(&target))?.copy_from_slice(&target.to_le_bytes());
    }
    for section in object.sections().filter(|section| section.kind() == SectionKind::Text) {
        let code = section.data().context("the file is cut off")?;
        for instruction in Decoder::with_ip(64, code, section.address(), DecoderOptions::NONE).into_iter() {
            if instruction.mnemonic() == Mnemonic::Cpuid && instruction.len() == cpu::CPUID.len() {
                place(memory, instruction.ip(), cpu::CPUID.len())?.copy_from_slice(&cpu::CPUID_REPLACED);
            }
        }
    }
    Ok(())
}

fn place(memory: &mut [u8], at: u64, length: usize) -> Result<&mut [u8]> {
    let range: Range<usize> = at as usize..(at as usize).saturating_add(length);
    memory.get_mut(range).context("the file refers to what is outside of it")
}

/// Makes code executable, and no longer writable.
fn protect(memory: NonNull<u8>, segment: &object::Segment<'_, '_>) -> Result<()> {
    let object::SegmentFlags::Elf { p_flags, .. } = segment.flags() else { bail!("a segment has no flags") };
    if !p_flags.contains(elf::PF_X) {
        return Ok(());
    }
    let begin = segment.address() & !(PAGE - 1);
    let length = (segment.address() + segment.size() - begin).next_multiple_of(PAGE);
    // SAFETY: a segment lies inside of the mapping.
    let code = unsafe { memory.add(begin as usize) };
    // SAFETY: whole pages of our own mapping, of which nobody has a reference now.
    let done = unsafe { mprotect(code.cast(), length as usize, ProtFlags::PROT_READ | ProtFlags::PROT_EXEC) };
    done.context("this system lets no program make code at run time executable")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(file: &[u8], words: &str) {
        let said = Loaded::new(file, false).err().map(|error| format!("{error:#}")).unwrap_or_default();
        assert!(said.contains(words), "{said:?} does not say {words:?}");
    }

    #[test]
    fn files_that_are_no_image_are_refused() {
        refused(b"text", "not a readable ELF file");
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        refused(&own, "needs another program");
        refused(&own[..own.len() / 2], "not a readable ELF file");
    }
}
