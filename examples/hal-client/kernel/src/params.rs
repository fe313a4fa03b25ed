//! The words of the command line.

use axplat::mem::{PhysAddr, phys_to_virt};
use multiboot::information::{MemoryManagement, Multiboot, PAddr};

use crate::cpus::MAX_CPUS;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    pub vcpus: usize,
    pub rounds: u64,
    pub ms: u64,
    pub cs: u64,
    pub ncs: u64,
    pub stop_ms: u64,
}

/// Physical memory, as the HAL has mapped it.
struct Mapped;

impl MemoryManagement for Mapped {
    unsafe fn paddr_to_slice(&self, address: PAddr, length: usize) -> Option<&'static [u8]> {
        let start = phys_to_virt(PhysAddr::from(usize::try_from(address).ok()?)).as_ptr();
        // SAFETY: the HAL maps all memory, and the boot loader's tables, for which this is asked, stay as they are.
        Some(unsafe { core::slice::from_raw_parts(start, length) })
    }

    unsafe fn allocate(&mut self, _: usize) -> Option<(PAddr, &mut [u8])> {
        None
    }

    unsafe fn deallocate(&mut self, _: PAddr) {}
}

impl Params {
    /// Reads the command line that the boot loader's tables at `boot_info` have.
    pub fn read(boot_info: usize) -> Result<Self, &'static str> {
        let mut memory = Mapped;
        // SAFETY: the HAL hands on the address that it got from the boot loader.
        let tables = unsafe { Multiboot::from_ptr(boot_info as PAddr, &mut memory) };
        let tables = tables.ok_or("the boot loader left no tables")?;
        let line = tables.command_line().ok_or("the boot loader left no command line")?;
        let mut params = Self { vcpus: 1, rounds: 1, ms: 700, cs: 200, ncs: 100, stop_ms: 500 };
        // The first word is the name of the image.
        for word in line.split_ascii_whitespace().skip(1) {
            let (key, value) = word.split_once('=').ok_or("every parameter must be of the form key=value")?;
            let value: u64 = value.parse().map_err(|_| "the value of a parameter must be a number")?;
            match key {
                "vcpus" if (1..=MAX_CPUS as u64).contains(&value) => params.vcpus = value as usize,
                "rounds" if (1..=10_000).contains(&value) => params.rounds = value,
                "ms" if (1..=60_000).contains(&value) => params.ms = value,
                // The HAL's timer counts to about 4 s.
                "stop_ms" if value <= 4000 => params.stop_ms = value,
                "cs" if value <= 10_000_000 => params.cs = value,
                "ncs" if value <= 10_000_000 => params.ncs = value,
                _ => {
                    return Err(
                        "the parameters are vcpus (1 to 64), rounds (1 to 10000), ms (1 to 60000), stop_ms (0 to 4000), cs and ncs (0 to \
                                10000000)",
                    );
                }
            }
        }
        Ok(params)
    }
}
