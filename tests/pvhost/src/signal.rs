//! Ticks by signal: the handler, the timers, interrupting another vCPU.

use core::ffi::c_int;
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigEvent, SigHandler, SigSet, SigevNotify, Signal, sigaction};
use nix::sys::time::{TimeSpec, TimeValLike};

use crate::exits;

/// The signal of ticks. A standard signal: several that are pending merge into one, as timer interrupts do.
pub(crate) const TICK: Signal = Signal::SIGUSR1;

/// Installs the handler for the whole process.
pub(crate) fn install() -> Result<(), Errno> {
    // NODEFER: the guest's interrupt handler runs on top of this one and must be preemptible too; host code is protected by
    // its own flag. RESTART: system calls of the guest's thread go on.
    let flags = SaFlags::SA_SIGINFO | SaFlags::SA_RESTART | SaFlags::SA_NODEFER;
    let action = SigAction::new(SigHandler::SigAction(on_tick), flags, SigSet::empty());
    // SAFETY: the handler uses only thread-local memory without destructor, atomics, and the host's lock, which a thread never
    //   holds where a tick is handled (`Context::enter_for_tick`).
    unsafe { sigaction(TICK, &action) }.map(drop)
}

extern "C" fn on_tick(_: c_int, _: *mut libc::siginfo_t, ucontext: *mut libc::c_void) {
    let errno = Errno::last_raw();
    // SAFETY: the kernel passes a `ucontext_t` to a handler that was installed with SA_SIGINFO.
    let rip = unsafe { (*ucontext.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] };
    exits::tick(rip as usize);
    Errno::set_raw(errno);
}

/// Makes the thread `tid` of this process tick. Nothing when it has ended.
pub(crate) fn interrupt(tid: i32) {
    // SAFETY: `getpid` has no preconditions.
    let pid = unsafe { libc::getpid() };
    // SAFETY: `tgkill` touches no memory; a thread that does not exist any more is an error, not another thread of another
    //   process.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, TICK as c_int) };
}

/// The tick timer of one vCPU's thread.
///
/// A plain id, so that it can live in thread-local memory without a destructor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickTimer(libc::timer_t);

impl TickTimer {
    /// A timer that signals the thread `tid` of this process.
    pub(crate) fn new(tid: i32) -> Result<Self, Errno> {
        let notify = SigevNotify::SigevThreadId { signal: TICK, thread_id: tid, si_value: 0 };
        let mut event = SigEvent::new(notify).sigevent();
        let mut timer = core::ptr::null_mut();
        // SAFETY: both pointers are to live locals.
        let result = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
        Errno::result(result).map(|_| Self(timer))
    }

    /// The next tick comes at `at_ns`; 0 for none.
    pub(crate) fn arm(self, at_ns: u64) {
        let at = TimeSpec::nanoseconds(at_ns as i64);
        let never_again = TimeSpec::nanoseconds(0);
        let spec = libc::itimerspec { it_interval: *never_again.as_ref(), it_value: *at.as_ref() };
        // SAFETY: the timer exists until `delete`; `spec` is a live local. It cannot fail with such arguments.
        unsafe { libc::timer_settime(self.0, libc::TIMER_ABSTIME, &raw const spec, core::ptr::null_mut()) };
    }

    /// The end of the timer.
    pub(crate) fn delete(self) {
        // SAFETY: the owner gives up the timer here; a second call would only be an error.
        unsafe { libc::timer_delete(self.0) };
    }
}
