//! The measured loops, one pair per form, under names by which the built program's code is read.

use core::arch::asm;

use super::forms::{CFunction, Form, Inline, Routine, Thunk, TwoLoads};
use pvlock_bench_protocol as protocol;

/// `rounds` questions, each about the CPU that the answer before names: the time of one is from the number to the answer.
/// Its contract is that of [`Form::is_preempted`].
pub(super) type Dependent = unsafe extern "C" fn(rounds: u64, index: u32) -> u32;

/// `rounds` of a spin loop without its pause, which would hide everything else, with all of `values` in registers.
/// Its contract is that of [`Form::is_preempted`].
pub(super) type Live = unsafe extern "C" fn(rounds: u64, index: u32, values: &mut [u64; LIVE]);

/// Values that the spin loop keeps in registers: with the CPU's number and the count of rounds, about what one has that watches
/// a lock, an owner and a queue.
pub(super) const LIVE: usize = 10;

/// A loop with its symbol.
pub(super) struct Loop<F> {
    pub(super) run: F,
    pub(super) symbol: &'static str,
}

macro_rules! loops {
    ($($variant:ident: $form:ty, $dependent:ident, $live:ident;)*) => {
        $(
            // SAFETY (of `no_mangle`): no other symbol in this program has this name, here and below.
            #[unsafe(no_mangle)]
            #[inline(never)]
            unsafe extern "C" fn $dependent(mut rounds: u64, mut index: u32) -> u32 {
                while rounds != 0 {
                    // SAFETY: by the contract of `Dependent`; nobody sets a byte, so `index` stays what it was.
                    index ^= u32::from(unsafe { <$form>::is_preempted(index) });
                    rounds -= 1;
                    // SAFETY: no instruction at all. Who cannot see how many rounds are left does not unroll the loop.
                    unsafe { asm!("/* {} */", inout(reg) rounds, options(nomem, nostack, preserves_flags)) };
                }
                index
            }

            #[unsafe(no_mangle)]
            #[inline(never)]
            unsafe extern "C" fn $live(mut rounds: u64, index: u32, values: &mut [u64; LIVE]) {
                let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h, mut i, mut j] = *values;
                // SAFETY: by the contract of `Live`.
                while rounds != 0 && !unsafe { <$form>::is_preempted(index) } {
                    rounds -= 1;
                    // SAFETY: no instruction at all; the values must be in registers here, and may be others afterwards.
                    unsafe {
                        asm!(
                            "/* {} {} {} {} {} {} {} {} {} {} {} */",
                            inout(reg) a, inout(reg) b, inout(reg) c, inout(reg) d, inout(reg) e,
                            inout(reg) f, inout(reg) g, inout(reg) h, inout(reg) i, inout(reg) j,
                            inout(reg) rounds,
                            options(nomem, nostack, preserves_flags),
                        );
                    }
                }
                *values = [a, b, c, d, e, f, g, h, i, j];
            }
        )*

        /// The dependent loop with `form`.
        pub(super) fn dependent(form: protocol::Form) -> Loop<Dependent> {
            match form {
                $(protocol::Form::$variant => Loop { run: $dependent, symbol: stringify!($dependent) },)*
            }
        }

        /// The spin loop with `form`.
        pub(super) fn live(form: protocol::Form) -> Loop<Live> {
            match form {
                $(protocol::Form::$variant => Loop { run: $live, symbol: stringify!($live) },)*
            }
        }
    };
}

loops! {
    Routine: Routine, pvlock_bench_dependent_routine, pvlock_bench_live_routine;
    Inline: Inline, pvlock_bench_dependent_inline, pvlock_bench_live_inline;
    TwoLoads: TwoLoads, pvlock_bench_dependent_two_loads, pvlock_bench_live_two_loads;
    CFunction: CFunction, pvlock_bench_dependent_c_function, pvlock_bench_live_c_function;
    Thunk: Thunk, pvlock_bench_dependent_thunk, pvlock_bench_live_thunk;
}
