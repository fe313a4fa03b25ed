//! All that this kernel adds to use pvlock, besides two lines in `Cargo.toml`: who asks, and what the host is told.

use core::fmt::Write;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use axplat::console_println as println;
use axplat::mem::{VirtAddr, virt_to_phys};
use pvlock::hypervisor::Kvm;
use pvlock::{ApicId, Cpu, CpuId, kvm};

use crate::cpus;

struct HalKernel;

impl Cpu for HalKernel {
    type Hypervisor = Kvm;

    #[inline]
    fn current() -> Option<CpuId> {
        CpuId::new(cpus::number())
    }
}

pvlock::platform!(HalKernel);

/// CPUs whose registration succeeded.
static REGISTERED: AtomicUsize = AtomicUsize::new(0);

/// Registers `cpu`, which is the caller, with the host.
pub fn register(cpu: usize) {
    let Some(id) = CpuId::new(cpu as u32) else { return };
    let record = VirtAddr::from(kvm::record_address(id) as usize);
    let address = virt_to_phys(record).as_usize() as u64;
    // SAFETY: the address is that of the record of this CPU, which the HAL numbers by its APIC id.
    match unsafe { kvm::register_this_cpu(id, ApicId(cpu as u32), address) } {
        Ok(()) => REGISTERED.fetch_add(1, Relaxed),
        Err(reason) => return println!("# {id}: {reason}"),
    };
    if let Err(reason) = Kvm::ready_to_be_kicked(id) {
        println!("# {id}: {reason}");
    }
}

/// Prints what was found and decided, line by line, and how many CPUs the host reports about.
pub fn print_report() {
    println!("registered cpus={}", REGISTERED.load(Relaxed));
    let _ = write!(Quoted { at_start: true }, "{}", Kvm::report());
    axplat::console_print!("\n");
}

/// Lines for people begin with `# `.
struct Quoted {
    at_start: bool,
}

impl Write for Quoted {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for part in text.split_inclusive('\n') {
            if self.at_start {
                axplat::console_print!("# ");
            }
            axplat::console_print!("{part}");
            self.at_start = part.ends_with('\n');
        }
        Ok(())
    }
}
