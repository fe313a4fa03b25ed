//! No hypervisor, or dedicated CPUs: everything compiles away and waiters spin.

use super::{Hypervisor, Yielded};
use crate::cpu::CpuId;

/// No hypervisor at all. Waiting is plain spinning in a queue; unlocking is a plain store.
#[derive(Debug)]
pub enum Native {}

impl Hypervisor for Native {
    #[inline(always)]
    fn sees_preempted() -> bool {
        false
    }

    #[inline(always)]
    fn is_preempted(_: CpuId) -> bool {
        false
    }

    #[inline(always)]
    fn cpu_limit() -> usize {
        0
    }

    #[inline(always)]
    fn can_yield() -> bool {
        false
    }

    #[inline(always)]
    fn yield_to(_: CpuId, _: CpuId) -> Yielded {
        Yielded::Nothing
    }

    #[inline(always)]
    fn can_halt() -> bool {
        false
    }

    #[inline(always)]
    fn may_halt(_: CpuId) -> bool {
        false
    }

    #[inline(always)]
    fn halt(_: bool) {}

    #[inline(always)]
    fn kick(_: CpuId) {}
}
