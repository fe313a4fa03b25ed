//! Reading steal time while the host writes it, and differences that never jump.

use super::*;
use crate::kvm::steal_time::{Record, StealTime, consistent};
use core::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*, fence};

/// Steal time as a host keeps it.
struct Host(std::cell::UnsafeCell<StealTime>);

// SAFETY: all fields are only reached by atomics or volatile reads.
unsafe impl Sync for Host {}

impl Host {
    fn new() -> Self {
        Self(StealTime::ZERO.into())
    }

    fn record(&self) -> Record<'_> {
        // SAFETY: lives as long as `self`; written by atomics only.
        unsafe { volatile::VolatilePtr::new_read_only(NonNull::new(self.0.get()).unwrap()) }
    }

    fn version(&self) -> &AtomicU32 {
        let field = self.0.get().cast::<u8>().wrapping_add(8);
        // SAFETY: a field of the record, aligned, shared as atomic only.
        unsafe { AtomicU32::from_ptr(field.cast()) }
    }

    fn steal(&self) -> &AtomicU64 {
        // SAFETY: a field of the record, aligned, shared as atomic only.
        unsafe { AtomicU64::from_ptr(self.0.get().cast()) }
    }
}

#[test]
fn the_layout_is_the_hosts() {
    assert_eq!(memoffset::span_of!(StealTime, steal), 0..8);
    assert_eq!(memoffset::span_of!(StealTime, version), 8..12);
    assert_eq!(memoffset::span_of!(StealTime, preempted), 16..17);
}

/// What [`consistent`] makes of these readings of `version`; the n-th reading of `steal` is n.
fn consistent_over(versions: &[u32]) -> Option<u64> {
    let versions = std::cell::RefCell::new(versions.iter().copied().cycle());
    let readings = std::cell::Cell::new(0);
    consistent(
        || versions.borrow_mut().next().unwrap(),
        || {
            readings.set(readings.get() + 1);
            readings.get()
        },
    )
}

#[test]
fn a_reading_counts_between_two_equal_even_versions() {
    assert_eq!(consistent_over(&[4, 4]), Some(1));
    assert_eq!(consistent_over(&[4, 5, 6, 6]), Some(2), "changed meanwhile, half-way");
    assert_eq!(consistent_over(&[4, 6, 6, 6]), Some(2), "changed meanwhile, all the way");
    assert_eq!(consistent_over(&[5, 5, 5, 6, 6, 6]), Some(3), "in the midst of a change");
    assert_eq!(consistent_over(&[5, 5]), None);
    assert_eq!(consistent_over(&[2, 4]), None);
}

#[test]
fn a_reading_is_never_torn() {
    let host = Host::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=u64::from(u32::MAX) {
                if stop.load(Relaxed) {
                    break;
                }
                // As the host does it: odd, change, even. Both halves are `n`, but only while the version is even.
                host.version().fetch_add(1, Relaxed);
                fence(Release);
                host.steal().store(n, Relaxed);
                host.steal().store(n << 32 | n, Relaxed);
                host.version().fetch_add(1, Release);
            }
        });
        let (mut readings, mut unstable, mut torn) = (0, 0, 0);
        while readings < 100_000 && unstable < 100_000 && torn == 0 {
            match read_steal(host.record()) {
                Some(steal) if steal >> 32 == steal & 0xffff_ffff => readings += 1,
                Some(_) => torn += 1,
                None => unstable += 1,
            }
        }
        // Asserted only now: a panic before this store would wait for the writer for ever.
        stop.store(true, Relaxed);
        assert_eq!(torn, 0);
        assert!(readings > 0);
    });
}

#[test]
fn a_version_stuck_odd_ends_in_an_error() {
    let host = Host::new();
    host.version().store(7, Relaxed);
    assert_eq!(read_steal(host.record()), None);
}

#[test]
fn a_cpu_without_a_record_has_no_steal_time() {
    let cpu = CpuId::new(100).unwrap();
    let error = steal_ns(cpu).unwrap_err();
    assert_eq!(error, StealError::NotRegistered(NotRegistered { cpu }));
    assert_eq!(error.to_string(), "CPU 100 is not registered: call register_this_cpu on it first");
}

#[test]
fn steps_back_count_as_nothing_and_start_anew() {
    let mut clock = StealClock::default();
    assert_eq!(clock.advance(50), 50);
    assert_eq!(clock.advance(80), 30);
    // Registered again, or migrated: the host counts from 0.
    assert_eq!(clock.advance(0), 0);
    assert_eq!(clock.advance(10), 10);
    assert_eq!(clock.advance(u64::MAX), u64::MAX - 10);
    // Wrapped.
    assert_eq!(clock.advance(5), 0);
    assert_eq!(clock.advance(6), 1);
}
