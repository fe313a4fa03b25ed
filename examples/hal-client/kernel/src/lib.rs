//! A small kernel that its authors could have written without knowing of pvlock: it boots all CPUs through a published hardware abstraction
//! layer (axplat, for PCs axplat-x86-pc), takes its locks from that layer's lock crate (kspin), as the layer itself does, and lets the CPUs
//! contend for them. `../stock` links it as it is; `../pvlock` adds the two lines that replace kspin, and the feature `pvlock`, which is the
//! module [`paravirt`].
//!
//! Its lines and exit codes are those of the other guests (`pvlock-examples`). Parameters, as words of the command line: `vcpus`, how many CPUs
//! to boot, at most [`cpus::MAX_CPUS`]; `rounds` (1), `ms` per interval (700), `cs` and `ncs`: iterations of arithmetic inside and outside the
//! critical section (200 and 100); `stop_ms`: how long the owner of a lock stops (500; 0 leaves that out).
//!
//! Milliseconds are the HAL's: where CPUID does not tell the TSC's frequency it takes 4 GHz. The host's clock tells how long an interval was.
#![no_std]

// The platform, which nothing here names.
extern crate axplat_x86_pc;

mod contention;
mod cpus;
mod exit;
mod io_apic;
mod params;
#[cfg(feature = "pvlock")]
mod paravirt;
mod stopped;

use axplat::console_println as println;
use exit::Code;
use params::Params;

/// The boot CPU.
#[axplat::main]
fn main(cpu: usize, boot_info: usize) -> ! {
    cpus::identify_boot_cpu(cpu);
    axplat::init::init_early(cpu, boot_info);
    axplat::init::init_later(cpu, boot_info);
    cpus::report_up(cpu);
    let code = match Params::read(boot_info).and_then(|params| run(&params)) {
        Ok(()) => {
            println!("end status=ok");
            Code::Success
        }
        Err(message) => {
            println!("error message=\"{message}\"");
            Code::Failure
        }
    };
    exit::exit(code)
}

fn run(params: &Params) -> Result<(), &'static str> {
    println!("host vcpus={} locks={}", params.vcpus, if cfg!(feature = "pvlock") { "pvlock" } else { "stock" });
    cpus::boot_others(params.vcpus)?;
    #[cfg(feature = "pvlock")]
    paravirt::print_report();
    for round in 0..params.rounds {
        contention::measure(round, params)?;
        io_apic::measure(round, params)?;
        if params.stop_ms > 0 && params.vcpus > 1 {
            stopped::measure(round, params)?;
        }
    }
    Ok(())
}
