//! How long it takes to find that nobody is preempted, or that the last one is: through the records alone, and behind the idle set.
//!
//! Up to 512 CPUs, or as many as this package is compiled for: `PVLOCK_MAX_CPUS=4096 cargo bench -p pvlock-bench --bench candidates`.
//! `cached` finds all records in the cache; before each search of `written` another CPU has written them all, as a host does.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use pvlock::boost::{Boost, boost_any, idle_begin, idle_end};
use pvlock::hypervisor::{Hypervisor, Yielded};
use pvlock::{Cpu, CpuId, MAX_CPUS};

/// A record as the host keeps it: a cache line, one byte of which counts.
#[repr(align(64))]
struct Record(AtomicU8);

static RECORDS: [Record; MAX_CPUS] = [const { Record(AtomicU8::new(0)) }; MAX_CPUS];
static CPUS: AtomicUsize = AtomicUsize::new(0);

/// CPU 0 of a guest in which nobody is ever preempted, so that a search goes all the way.
enum Guest {}

impl Cpu for Guest {
    type Hypervisor = Guest;
    fn current() -> Option<CpuId> {
        CpuId::new(0)
    }
}

impl Hypervisor for Guest {
    fn sees_preempted() -> bool {
        true
    }
    #[inline(always)]
    fn is_preempted(cpu: CpuId) -> bool {
        RECORDS[cpu.index()].0.load(Relaxed) & 1 != 0
    }
    fn cpu_limit() -> usize {
        CPUS.load(Relaxed)
    }
    fn can_yield() -> bool {
        true
    }
    fn yield_to(_: CpuId, _: CpuId) -> Yielded {
        Yielded::Nothing
    }
    fn can_halt() -> bool {
        false
    }
    fn may_halt(_: CpuId) -> bool {
        false
    }
    fn halt(_: bool) {}
    fn kick(_: CpuId) {}
}

/// The other form: every record but one's own, in turn.
#[inline(never)]
fn records_alone(me: CpuId) -> Option<CpuId> {
    (0..Guest::cpu_limit() as u32).filter_map(CpuId::new).find(|&cpu| cpu != me && Guest::is_preempted(cpu))
}

/// Times `search` `times` times, before each of which another CPU writes all `cpus` records.
fn after_writes(times: u64, cpus: usize, search: impl Fn()) -> Duration {
    let (asked, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut total = Duration::ZERO;
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=times {
                while asked.load(Acquire) != round {
                    spin_loop();
                }
                RECORDS[..cpus].iter().for_each(|record| record.0.store(0, Relaxed));
                done.store(round, Release);
            }
        });
        for round in 1..=times {
            asked.store(round, Release);
            while done.load(Acquire) != round {
                spin_loop();
            }
            let begun = Instant::now();
            search();
            total += begun.elapsed();
        }
    });
    total
}

fn candidates(criterion: &mut Criterion) {
    let me = CpuId::new(0).expect("CPU 0");
    for cpus in [2, 8, 64, 512, 4096].into_iter().filter(|&cpus| cpus <= MAX_CPUS) {
        CPUS.store(cpus, Relaxed);
        let all = || (1..cpus as u32).filter_map(CpuId::new);
        // Of eight CPUs, so many are idle.
        for idle in [0, 1, 4, 7] {
            all().filter(|cpu| cpu.index() % 8 < idle).for_each(idle_begin);
            let mut group = criterion.benchmark_group(format!("{cpus} CPUs, {idle}/8 idle"));
            group.warm_up_time(Duration::from_millis(50)).measurement_time(Duration::from_millis(200)).sample_size(20);
            let records = || {
                black_box(records_alone(black_box(me)));
            };
            let idle_set = || assert_eq!(boost_any::<Guest>(), Boost::NobodyPreempted);
            for (form, search) in [("records", &records as &dyn Fn()), ("idle set", &idle_set)] {
                // What the records alone cost does not depend on who is idle.
                if form == "idle set" || idle == 0 {
                    group.bench_function(BenchmarkId::new(form, "cached"), |bencher| bencher.iter(search));
                    group.bench_function(BenchmarkId::new(form, "written"), |bencher| {
                        bencher.iter_custom(|times| after_writes(times, cpus, search));
                    });
                }
            }
            group.finish();
            all().for_each(idle_end);
        }
    }
}

criterion_group!(benches, candidates);
criterion_main!(benches);
