//! Ready ways to name the platform: [`GsCpu`], and one link-time symbol set ([`platform!`](crate::platform!) and [`Linked`]).
//!
//! | way | for | cost of "which CPU am I" |
//! |---|---|---|
//! | a type of the kernel's own that implements [`Cpu`] | kernels that own their lock type | whatever it inlines to |
//! | [`GsCpu`] | kernels that keep the CPU number at a fixed offset from the gs base | one `mov` |
//! | [`platform!`](crate::platform!) + [`Linked`] | crates *below* the kernel, whose lock types have no parameter to spare | a call; nothing with LTO |

use core::arch::asm;
use core::marker::PhantomData;
use core::num::NonZeroU64;

use crate::cpu::{Cpu, CpuId};
use crate::hypervisor::Kvm;

/// Where a kernel keeps the number of the current CPU, for [`GsCpu`].
///
/// # Safety
/// From before the first lock is taken on a CPU, the four bytes at `gs:[OFFSET]` can be read there and hold that CPU's number as a
/// `u32`, or a value of [`MAX_CPUS`](crate::MAX_CPUS) or more (such as `u32::MAX`) while it is not known.
pub unsafe trait GsLayout: 'static {
    /// Offset from the gs base, in bytes.
    const OFFSET: i32;
}

/// A [`Cpu`] that reads its number with one `mov eax, gs:[OFFSET]`, on KVM, with interrupts by `cli` and `sti`.
///
/// ```
/// use pvlock::platform::{GsCpu, GsLayout};
///
/// struct PerCpuBlock;
///
/// // SAFETY: this kernel's per-CPU block starts with two pointers, then the CPU number, and is set up first thing on each CPU.
/// unsafe impl GsLayout for PerCpuBlock {
///     const OFFSET: i32 = 16;
/// }
///
/// static LOCK: pvlock::SpinMutex<u32, GsCpu<PerCpuBlock>> = pvlock::SpinMutex::new(0);
/// ```
#[derive(Debug)]
pub struct GsCpu<L>(PhantomData<L>);

impl<L: GsLayout> Cpu for GsCpu<L> {
    type Hypervisor = Kvm;

    #[inline(always)]
    fn current() -> Option<CpuId> {
        let index: u32;
        // SAFETY: the implementer of `GsLayout` promises that these bytes can be read. Not `pure`: the task may move.
        unsafe {
            asm!("mov {:e}, gs:[{}]", out(reg) index, const L::OFFSET, options(nostack, readonly, preserves_flags));
        }
        CpuId::new(index)
    }
}

/// The platform that some crate of the final image names with [`platform!`](crate::platform!). Its hypervisor is [`Kvm`].
///
/// Linking fails with an undefined symbol `__pvlock_platform_current` when no crate does, and with a duplicate symbol when
/// two do.
#[derive(Debug)]
pub enum Linked {}

/// Makes a type the platform behind [`Linked`](crate::platform::Linked): `pvlock::platform!(MyCpu);`, once in the final image.
///
/// The type implements [`Cpu`](crate::Cpu) with [`Kvm`](crate::hypervisor::Kvm) as its hypervisor.
///
/// ```
/// # struct MyCpu;
/// # impl pvlock::Cpu for MyCpu {
/// #     type Hypervisor = pvlock::hypervisor::Kvm;
/// #     fn current() -> Option<pvlock::CpuId> { pvlock::CpuId::new(0) }
/// # }
/// pvlock::platform!(MyCpu);
///
/// static LOCK: pvlock::SpinMutex<u32, pvlock::platform::Linked> = pvlock::SpinMutex::new(7);
/// assert_eq!(*LOCK.lock(), 7);
/// ```
#[macro_export]
macro_rules! platform {
    ($cpu:ty) => {
        const _: () = {
            const fn on_kvm<C: $crate::Cpu<Hypervisor = $crate::hypervisor::Kvm>>() {}
            on_kvm::<$cpu>();
        };
        $crate::__platform_symbols! { $cpu;
            __pvlock_platform_current current -> ::core::option::Option<$crate::CpuId>;
            __pvlock_platform_irqs_enabled irqs_enabled -> bool;
            __pvlock_platform_irqs_disable irqs_disable -> ();
            __pvlock_platform_irqs_enable irqs_enable -> ();
            __pvlock_platform_in_nmi in_nmi -> bool;
            __pvlock_platform_need_resched need_resched -> bool;
            __pvlock_platform_relax relax -> ();
            __pvlock_platform_may_halt_with_irqs_off may_halt_with_irqs_off -> bool;
            __pvlock_platform_relax_same_cpu relax_same_cpu -> ();
            __pvlock_platform_preempt_disable preempt_disable -> ();
            __pvlock_platform_preempt_enable preempt_enable -> ();
            __pvlock_platform_may_sleep may_sleep -> bool;
            __pvlock_platform_task task -> ::core::option::Option<::core::num::NonZeroU64>;
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __platform_symbols {
    ($cpu:ty; $($symbol:ident $method:ident -> $result:ty;)*) => {
        const _: () = {
            $(
                #[unsafe(no_mangle)]
                extern "Rust" fn $symbol() -> $result {
                    <$cpu as $crate::Cpu>::$method()
                }
            )*
        };
    };
}

macro_rules! linked {
    ($($symbol:ident $method:ident -> $result:ty;)*) => {
        unsafe extern "Rust" {
            $(safe fn $symbol() -> $result;)*
        }

        impl Cpu for Linked {
            type Hypervisor = Kvm;
            $(
                #[inline(always)]
                fn $method() -> $result {
                    $symbol()
                }
            )*
        }
    };
}

// SAFETY (of `safe fn`): only `platform!` defines these symbols, with these types.
linked! {
    __pvlock_platform_current current -> Option<CpuId>;
    __pvlock_platform_irqs_enabled irqs_enabled -> bool;
    __pvlock_platform_irqs_disable irqs_disable -> ();
    __pvlock_platform_irqs_enable irqs_enable -> ();
    __pvlock_platform_in_nmi in_nmi -> bool;
    __pvlock_platform_need_resched need_resched -> bool;
    __pvlock_platform_relax relax -> ();
    __pvlock_platform_may_halt_with_irqs_off may_halt_with_irqs_off -> bool;
    __pvlock_platform_relax_same_cpu relax_same_cpu -> ();
    __pvlock_platform_preempt_disable preempt_disable -> ();
    __pvlock_platform_preempt_enable preempt_enable -> ();
    __pvlock_platform_may_sleep may_sleep -> bool;
    __pvlock_platform_task task -> Option<NonZeroU64>;
}
