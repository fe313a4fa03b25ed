//! The local APIC of each CPU: wake-ups between CPUs, start of CPUs, timer.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, Ordering::Relaxed, fence};

use pvlock::{ApicId, CpuId};
use spin::Once;
use x2apic::lapic::{LocalApic, LocalApicBuilder, TimerDivide, TimerMode, xapic_base};
use x86_64::instructions::{interrupts, port::Port};

use crate::per_cpu::this_cpu;
use crate::{clock, cpu, smp, task};

pub(crate) const TIMER_VECTOR: u8 = 0x20;
pub(crate) const WAKE_VECTOR: u8 = 0x21;
pub(crate) const ERROR_VECTOR: u8 = 0x22;
/// What the example wants other CPUs to do: see [`on_request`](crate::on_request).
pub const REQUEST_VECTOR: u8 = 0x23;
/// Low four bits set: some processors force them.
pub(crate) const SPURIOUS_VECTOR: u8 = 0x2f;

/// Timer counts per millisecond.
static TIMER_KHZ: AtomicU64 = AtomicU64::new(0);
/// Whether APIC ids are 32 bits wide.
static X2APIC: AtomicBool = AtomicBool::new(false);

/// Masks the two legacy interrupt controllers: firmware leaves their timer interrupt on, and x2apic 0.5 leaves the pin
/// that they drive open.
pub(crate) fn mask_legacy_pics() {
    for port in [0x21, 0xa1] {
        // SAFETY: the interrupt mask registers of the PICs; nothing in the guest uses their interrupts.
        unsafe { Port::<u8>::new(port).write(0xff) };
    }
}

/// Turns on the APIC of the running CPU: x2APIC mode where the processor has it. The timer is stopped.
pub(crate) fn init_this_cpu() {
    // SAFETY: ring 0 on a processor with a local APIC, as MSR 0x1b exists on all 64-bit ones.
    let base = unsafe { xapic_base() };
    let mut apic = LocalApicBuilder::new()
        .timer_vector(TIMER_VECTOR as usize)
        .error_vector(ERROR_VECTOR as usize)
        .spurious_vector(SPURIOUS_VECTOR as usize)
        .timer_mode(TimerMode::OneShot)
        .timer_divide(TimerDivide::Div1)
        .timer_initial(0)
        .set_xapic_base(base)
        .build()
        .expect("the builder has all its fields");
    // SAFETY: the registers are identity-mapped below 4 GiB, or MSRs, and the vectors have gates.
    unsafe { apic.enable() };
    // ORDERING: Relaxed, all CPUs store the same value and use it after this.
    X2APIC.store(cpu::has_x2apic(), Relaxed);
    // SAFETY: interrupts are still off on this CPU, and the cell is its own: nobody else uses it now.
    unsafe { *this_cpu().lapic.get() = Some(apic) };
}

/// Runs `f` on the APIC of this CPU, interrupts off meanwhile: the handlers use it too.
fn with<R>(f: impl FnOnce(&mut LocalApic) -> R) -> R {
    interrupts::without_interrupts(|| {
        // SAFETY: the cell belongs to this CPU, interrupts are off, and `f` (private to this file) does not call
        // `with`.
        let apic = unsafe { &mut *this_cpu().lapic.get() };
        f(apic.as_mut().expect("init_this_cpu comes first"))
    })
}

/// The id as the destination half of the command register: all of it in x2APIC mode, else bits 56 to 63, which the
/// crate leaves to its caller.
fn destination(target: ApicId) -> u32 {
    // ORDERING: Relaxed, written before by this CPU.
    if X2APIC.load(Relaxed) { target.0 } else { target.0 << 24 }
}

/// Highest APIC id that an interrupt can be sent to.
pub(crate) fn highest_id() -> ApicId {
    // ORDERING: Relaxed, as above. All ones is the broadcast address.
    ApicId(if X2APIC.load(Relaxed) { u32::MAX - 1 } else { 0xfe })
}

/// Ends the halt of one CPU, or the next one if it does not halt now.
pub(crate) fn wake(target: ApicId) {
    // SAFETY: the vector has a gate on every CPU that can take interrupts.
    with(|apic| unsafe { apic.send_ipi(WAKE_VECTOR, destination(target)) });
}

/// Puts another CPU into the state in which it waits for [`send_startup`].
pub(crate) fn send_init(target: ApicId) {
    // SAFETY: only used for CPUs that run nothing yet.
    with(|apic| unsafe { apic.send_init_ipi(destination(target)) });
}

/// Starts another CPU in real mode at `page << 12`; without effect on one that runs.
pub(crate) fn send_startup(target: ApicId, page: u8) {
    // SAFETY: the page holds the trampoline.
    with(|apic| unsafe { apic.send_sipi(page, destination(target)) });
}

/// Learns how fast the timer counts, against the TSC. Called once, by the boot CPU.
pub(crate) fn calibrate_timer() {
    const MS: u64 = 10;
    // SAFETY: no interrupt comes of it: the count does not end within the measurement.
    with(|apic| unsafe { apic.set_timer_initial(u32::MAX) });
    clock::spin_us(MS * 1000);
    // SAFETY: reads a register.
    let left = with(|apic| unsafe { apic.timer_current() });
    stop_timer();
    // ORDERING: Relaxed, written before other CPUs start.
    TIMER_KHZ.store((u64::from(u32::MAX - left) / MS).max(1), Relaxed);
}

fn start(mode: TimerMode, period_us: u64) {
    // ORDERING: Relaxed, written before this CPU started.
    let counts = (TIMER_KHZ.load(Relaxed) * period_us / 1000).clamp(1, u32::MAX.into()) as u32;
    with(|apic| {
        // SAFETY: the timer vector has a gate.
        unsafe { apic.set_timer_mode(mode) };
        // SAFETY: as above.
        unsafe { apic.set_timer_initial(counts) };
    });
}

/// Interrupts this CPU every `period_us` microseconds from now on; at most the timer's 32-bit range (seconds).
pub fn start_periodic_timer(period_us: u64) {
    start(TimerMode::Periodic, period_us);
}

/// Interrupts this CPU once, `after_us` microseconds from now. Replaces a periodic timer.
pub fn start_timer(after_us: u64) {
    start(TimerMode::OneShot, after_us);
}

/// Stops the timer of this CPU.
pub fn stop_timer() {
    // SAFETY: a count of 0 stops the timer.
    with(|apic| unsafe { apic.set_timer_initial(0) });
}

/// Sends [`REQUEST_VECTOR`] to one CPU. All that was written before is seen by its handler.
pub fn request(target: CpuId) {
    let Some(block) = smp::all().get(target.index()) else { return };
    // ORDERING: SeqCst. In x2APIC mode the command register is an MSR, and a write to that is not ordered after earlier stores by itself.
    fence(Ordering::SeqCst);
    // SAFETY: the vector has a gate on every CPU that can take interrupts.
    with(|apic| unsafe { apic.send_ipi(REQUEST_VECTOR, destination(block.apic_id())) });
}

/// What the example does in interrupts, if anything.
static ON_REQUEST: Once<fn(CpuId)> = Once::new();
static ON_TICK: Once<fn(CpuId, u64)> = Once::new();

/// Lets `handler` answer [`request`], on the CPU that was asked, interrupts off. The first call counts.
pub fn on_request(handler: fn(CpuId)) {
    ON_REQUEST.call_once(|| handler);
}

/// Tells `handler` of each timer interrupt: on which CPU, and which instruction it interrupted. Interrupts are off. The first call counts.
pub fn on_tick(handler: fn(CpuId, u64)) {
    ON_TICK.call_once(|| handler);
}

/// Called for every interrupt, interrupts off; `ip` is the interrupted instruction.
pub(crate) fn on_interrupt(vector: u8, ip: u64) {
    if vector == TIMER_VECTOR {
        // ORDERING: Relaxed, a statistic.
        this_cpu().ticks.fetch_add(1, Relaxed);
    }
    if vector != SPURIOUS_VECTOR {
        // SAFETY: ends the interrupt that is being handled; a spurious one must not be ended.
        with(|apic| unsafe { apic.end_of_interrupt() });
    }
    let cpu = this_cpu().cpu();
    match vector {
        REQUEST_VECTOR => {
            if let (Some(handler), Some(cpu)) = (ON_REQUEST.get(), cpu) {
                handler(cpu);
            }
        }
        TIMER_VECTOR => {
            if let (Some(handler), Some(cpu)) = (ON_TICK.get(), cpu) {
                handler(cpu, ip);
            }
            task::on_timer();
        }
        _ => {}
    }
}
