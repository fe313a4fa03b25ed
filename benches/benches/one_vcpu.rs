//! What needs one vCPU only, under Criterion: its statistics, and comparison with its last run.
//!
//! `cargo xtask bench` measures the same and more, but side by side, in rounds: take ratios from there.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use pvhost::locks::{Lock, Spin, Ticket};
use pvlock_bench::limits::{CmpxchgStore, TwoCmpxchg};
use pvlock_bench::locks::{Hermit, Mcs, ParkingLot, Std};
use pvlock_bench::s1;
use pvlock_bench_protocol::{Form, Metric};

fn uncontended(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("uncontended");
    macro_rules! each {
        ($($lock:ty),* $(,)?) => {$(
            group.bench_function(<$lock>::NAME, |bencher| {
                let lock = <$lock>::default();
                bencher.iter(|| lock.with(|| black_box(())));
            });
        )*};
    }
    // No host was started, so pvlock finds none: halting is off.
    each!(CmpxchgStore, TwoCmpxchg, pvhost::locks::Pvlock, Spin, Ticket, Hermit, Mcs, ParkingLot, Std);
    group.finish();
}

fn vcpu_is_preempted(criterion: &mut Criterion) {
    for (metric, name) in [(Metric::S1Dependent, "s1 dependent"), (Metric::S1LiveRegisters, "s1 live registers")] {
        let mut group = criterion.benchmark_group(name);
        for &form in Form::ALL {
            let mut rounds = s1::rounds(metric, form);
            group.bench_function(form.name(), |bencher| {
                bencher.iter_custom(|count| {
                    let begun = std::time::Instant::now();
                    rounds(count);
                    begun.elapsed()
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, uncontended, vcpu_is_preempted);
criterion_main!(benches);
