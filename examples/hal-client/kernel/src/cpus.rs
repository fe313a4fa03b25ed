//! The CPUs: booted by the HAL, and set to work all at once.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

use axcpu::trap::{IRQ, register_trap_handler};
use axplat::irq::IpiTarget;
use axplat::mem::{VirtAddr, virt_to_phys};
use axplat::time::{Duration, busy_wait};
use x86_64::instructions::interrupts;

/// As `max-cpu-num` in `axconfig.toml` and `MAX_CPUS` in `link.ld`.
pub const MAX_CPUS: usize = axplat_x86_pc::config::plat::MAX_CPU_NUM;

/// As `ipi-irq` in `axconfig.toml`.
const IPI: usize = axplat_x86_pc::config::devices::IPI_IRQ;

/// How long a CPU may take to come up, in milliseconds of the HAL.
const BOOT_MS: u32 = 20_000;

const STACK_BYTES: usize = 32 * 1024;

#[repr(C, align(4096))]
struct Stacks([[u8; STACK_BYTES]; MAX_CPUS]);

static mut STACKS: Stacks = Stacks([[0; STACK_BYTES]; MAX_CPUS]);

/// This CPU's number; no number before [`identify`].
#[percpu::def_percpu]
static NUMBER: u32 = u32::MAX;

/// CPUs that are up.
static UP: AtomicUsize = AtomicUsize::new(0);

/// Counts the tasks given to all, and what the latest is. The boot CPU alone writes both.
static TASKS: AtomicU32 = AtomicU32::new(0);
static TASK: AtomicPtr<Task<'static>> = AtomicPtr::new(core::ptr::null_mut());
/// CPUs that have done the latest.
static DONE: AtomicUsize = AtomicUsize::new(0);

struct Task<'a>(&'a (dyn Fn(usize) + Sync));

/// Gives the boot CPU its own data, its number among them. The first thing that it does: locks ask for the number.
pub fn identify_boot_cpu(cpu: usize) {
    axcpu::init::init_percpu(cpu);
    NUMBER.write_current(cpu as u32);
}

/// The same for another CPU. The data of all are laid out once, by the boot CPU.
fn identify(cpu: usize) {
    percpu::init_percpu_reg(cpu);
    NUMBER.write_current(cpu as u32);
}

/// This CPU's number. `u32::MAX` until it has one.
#[cfg_attr(not(feature = "pvlock"), expect(dead_code, reason = "only locks that know their owner ask"))]
#[inline(always)]
pub fn number() -> u32 {
    NUMBER.read_current()
}

/// To be called when the HAL has initialised all of `cpu`, on it.
pub fn report_up(cpu: usize) {
    #[cfg(feature = "pvlock")]
    crate::paravirt::register(cpu);
    let _ = cpu;
    // ORDERING: Release, pair CPU-UP (Acquire in `boot_others`): it finds the CPU initialised.
    UP.fetch_add(1, Release);
}

/// Boots CPUs until there are `count`.
pub fn boot_others(count: usize) -> Result<(), &'static str> {
    let registered = axplat::irq::register(IPI, || ());
    if !(registered && axplat::irq::register(crate::stopped::TIMER, crate::stopped::time_is_up)) {
        return Err("the HAL does not take the interrupt handlers");
    }
    for cpu in 1..count {
        // The HAL numbers CPUs by their APIC ids, and boots them by these numbers. QEMU's are 0, 1, 2, as long as it is not given a topology.
        let stacks = VirtAddr::from(&raw const STACKS as usize);
        axplat::power::cpu_boot(cpu, virt_to_phys(stacks).as_usize() + (cpu + 1) * STACK_BYTES);
        let mut waited = 0;
        // ORDERING: Acquire, pair CPU-UP.
        while UP.load(Acquire) != cpu + 1 {
            if waited == BOOT_MS {
                return Err("a CPU did not come up");
            }
            waited += 1;
            busy_wait(Duration::from_millis(1));
        }
    }
    interrupts::enable();
    Ok(())
}

/// Runs `task` on the first `count` CPUs, all that were booted, with each CPU's number, and returns when all have done it.
pub fn run_on_all(count: usize, task: &(dyn Fn(usize) + Sync)) {
    let mut task = Task(task);
    // ORDERING: Relaxed, before the Release below.
    DONE.store(0, Relaxed);
    TASK.store((&raw mut task).cast(), Relaxed);
    // ORDERING: Release, pair TASK (Acquire in `work`): who sees the count finds the task, and DONE at zero.
    TASKS.fetch_add(1, Release);
    axplat::irq::send_ipi(IPI, IpiTarget::AllExceptCurrent { cpu_id: 0, cpu_num: count });
    (task.0)(0);
    // ORDERING: Acquire, pair DONE (Release in `work`): what they did is seen, and nobody uses `task` any more.
    while DONE.load(Acquire) != count - 1 {
        core::hint::spin_loop();
    }
}

/// Waits for tasks, for ever.
fn work(cpu: usize) -> ! {
    let mut done = 0;
    loop {
        interrupts::disable();
        // ORDERING: Acquire, pair TASK.
        if TASKS.load(Acquire) == done {
            // An interrupt that comes before the halt ends it at once.
            interrupts::enable_and_hlt();
            continue;
        }
        interrupts::enable();
        done += 1;
        // SAFETY: the boot CPU has stored its task before it counted, and does not return from it until this CPU has said it is done.
        let task = unsafe { &*TASK.load(Relaxed) };
        (task.0)(cpu);
        // ORDERING: Release, pair DONE.
        DONE.fetch_add(1, Release);
    }
}

/// The other CPUs.
#[axplat::secondary_main]
fn secondary_main(cpu: usize) -> ! {
    identify(cpu);
    axplat::init::init_early_secondary(cpu);
    axplat::init::init_later_secondary(cpu);
    report_up(cpu);
    work(cpu)
}

#[register_trap_handler(IRQ)]
fn interrupt(vector: usize) -> bool {
    axplat::irq::handle(vector);
    true
}
