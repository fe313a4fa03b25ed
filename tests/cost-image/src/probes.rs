//! Which locks, in which form, are compared.

use core::mem::size_of;

use pvlock::guard::{IrqSave, NoGuard};
use pvlock::lock::HaltParker;
use pvlock::platform::Linked;
use pvlock::{Mutex, RwLock, SpinMutex};

use crate::kernel::{ByBlock, ByOffset};
use crate::limits::Limit;
use crate::table::Probe;
use crate::{OwnLine, anywhere, begin, end, held, repeat};

/// The probe `$name` of `$lock`, a type of locks around `T`, in a new of which `$round` takes and releases `$it`.
macro_rules! probe {
    ($name:literal, $lock:ty, |$it:ident| $round:block) => {{
        type Around<T> = $lock;
        static LOCK: OwnLine<Around<()>> = OwnLine(Around::new(()));
        #[inline(always)]
        fn round($it: &Around<()>) {
            begin();
            $round
            end();
        }
        extern "C" fn once() {
            round(anywhere(&LOCK.0));
        }
        extern "C" fn many(rounds: u64) {
            repeat(&LOCK.0, rounds, round);
        }
        Probe { name: $name, bytes: size_of::<Around<()>>(), bytes_around_u64: size_of::<Around<u64>>(), once, many }
    }};
}

/// A probe of `$lock`, which is locked by `$method`.
macro_rules! guarded {
    ($name:literal, $lock:ty, $method:ident) => {
        probe!($name, $lock, |lock| {
            let guard = lock.$method();
            held();
            drop(guard);
        })
    };
}

/// All of them.
pub static PROBES: &[Probe] = &[
    probe!(c"limit|compare-exchange, store|||lock", Limit<T>, |lock| { lock.and_store(held) }),
    probe!(c"limit|two compare-exchanges|||lock", Limit<T>, |lock| { lock.twice(held) }),
    guarded!(c"pvlock|SpinMutex|type parameter|NoGuard|lock", SpinMutex<T, ByBlock, NoGuard>, lock),
    guarded!(c"pvlock|SpinMutex|type parameter|IrqSave|lock", SpinMutex<T, ByBlock, IrqSave>, lock),
    guarded!(c"pvlock|SpinMutex|gs offset|NoGuard|lock", SpinMutex<T, ByOffset, NoGuard>, lock),
    guarded!(c"pvlock|SpinMutex|gs offset|IrqSave|lock", SpinMutex<T, ByOffset, IrqSave>, lock),
    guarded!(c"pvlock|SpinMutex|link-time symbol|NoGuard|lock", SpinMutex<T, Linked, NoGuard>, lock),
    guarded!(c"pvlock|SpinMutex|link-time symbol|IrqSave|lock", SpinMutex<T, Linked, IrqSave>, lock),
    guarded!(c"pvlock|RwLock|type parameter|NoGuard|read", RwLock<T, ByBlock, NoGuard>, read),
    guarded!(c"pvlock|RwLock|type parameter|NoGuard|write", RwLock<T, ByBlock, NoGuard>, write),
    guarded!(c"pvlock|RwLock|type parameter|IrqSave|read", RwLock<T, ByBlock, IrqSave>, read),
    guarded!(c"pvlock|RwLock|type parameter|IrqSave|write", RwLock<T, ByBlock, IrqSave>, write),
    guarded!(c"pvlock|RwLock|gs offset|NoGuard|read", RwLock<T, ByOffset, NoGuard>, read),
    guarded!(c"pvlock|RwLock|gs offset|NoGuard|write", RwLock<T, ByOffset, NoGuard>, write),
    guarded!(c"pvlock|RwLock|gs offset|IrqSave|read", RwLock<T, ByOffset, IrqSave>, read),
    guarded!(c"pvlock|RwLock|gs offset|IrqSave|write", RwLock<T, ByOffset, IrqSave>, write),
    guarded!(c"pvlock|RwLock|link-time symbol|NoGuard|read", RwLock<T, Linked, NoGuard>, read),
    guarded!(c"pvlock|RwLock|link-time symbol|NoGuard|write", RwLock<T, Linked, NoGuard>, write),
    guarded!(c"pvlock|RwLock|link-time symbol|IrqSave|read", RwLock<T, Linked, IrqSave>, read),
    guarded!(c"pvlock|RwLock|link-time symbol|IrqSave|write", RwLock<T, Linked, IrqSave>, write),
    guarded!(c"pvlock|Mutex|type parameter||lock", Mutex<T, HaltParker<ByBlock>>, lock),
    guarded!(c"pvlock|Mutex|gs offset||lock", Mutex<T, HaltParker<ByOffset>>, lock),
    guarded!(c"pvlock|Mutex|link-time symbol||lock", Mutex<T, HaltParker<Linked>>, lock),
    guarded!(c"pvlock as kspin|SpinRaw|link-time symbol||lock", kspin_adapter::SpinRaw<T>, lock),
    guarded!(c"pvlock as kspin|SpinNoIrq|link-time symbol||lock", kspin_adapter::SpinNoIrq<T>, lock),
    guarded!(c"pvlock as hermit-sync|TicketMutex|link-time symbol||lock", hermit_sync_adapter::TicketMutex<T>, lock),
    guarded!(
        c"pvlock as hermit-sync|InterruptTicketMutex|link-time symbol||lock",
        hermit_sync_adapter::InterruptTicketMutex<T>,
        lock
    ),
    guarded!(c"spin|SpinMutex|||lock", spin::mutex::SpinMutex<T>, lock),
    guarded!(c"spin|TicketMutex|||lock", spin::mutex::TicketMutex<T>, lock),
    guarded!(c"spin|RwLock|||read", spin::RwLock<T>, read),
    guarded!(c"spin|RwLock|||write", spin::RwLock<T>, write),
    guarded!(c"hermit-sync|SpinMutex|||lock", hermit_sync::SpinMutex<T>, lock),
    guarded!(c"hermit-sync|TicketMutex|||lock", hermit_sync::TicketMutex<T>, lock),
    guarded!(c"hermit-sync|InterruptSpinMutex|||lock", hermit_sync::InterruptSpinMutex<T>, lock),
    guarded!(c"hermit-sync|InterruptTicketMutex|||lock", hermit_sync::InterruptTicketMutex<T>, lock),
    guarded!(c"hermit-sync|RwSpinLock|||read", hermit_sync::RwSpinLock<T>, read),
    guarded!(c"hermit-sync|RwSpinLock|||write", hermit_sync::RwSpinLock<T>, write),
    guarded!(c"kspin|SpinRaw|||lock", kspin::SpinRaw<T>, lock),
    guarded!(c"kspin|SpinNoIrq|||lock", kspin::SpinNoIrq<T>, lock),
];
