//! The host freezes the owner of a lock: what everybody who waits for it burns meanwhile.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};
use core::time::Duration;
use std::sync::Arc;

use pvhost::locks::Lock;
use pvhost::{PvHost, freeze_me};
use pvlock::CpuId;
use pvlock::hypervisor::Hypervisor;
use pvlock_bench_protocol::Reading;

use crate::Error;
use crate::crew::Crew;

/// vCPU 0 of `crew` is frozen for `length` with an `L` held; the others want it.
pub(crate) fn measure<L: Lock>(crew: &Crew, length: Duration) -> Result<Reading, Error> {
    let lock = Arc::new(L::default());
    let held = AtomicBool::new(false);
    let owner = CpuId::new(0).ok_or("there is a CPU 0")?;
    let work = move |me: usize| {
        if me == 0 {
            lock.with(|| {
                // ORDERING: Release, pair BENCH-FROZEN (below): who sees it finds the lock held.
                held.store(true, Release);
                freeze_me(length);
            });
            return;
        }
        let me = CpuId::new(me as u32);
        // Until the owner has the lock: without burning what is measured afterwards.
        // ORDERING: Acquire, pair BENCH-FROZEN (above).
        while let (Some(me), false) = (me, held.load(Acquire)) {
            let _ = PvHost::yield_to(me, owner);
        }
        lock.with(|| ());
    };
    let ((), report) = crew.run(work, || ())?;
    let report = report.ok_or("only pvhost can freeze an owner")?;
    let burned: Duration = report.vcpus.iter().skip(1).map(|vcpu| vcpu.cpu_time).sum();
    Ok(Reading::FrozenOwner { burned: burned.as_secs_f64() / length.as_secs_f64() })
}
