//! The flush mark against a host thread that schedules a vCPU in and out: every request ends as flushed by the host or as an interrupt.
#![cfg(not(pvlock_loom))]

use std::hint::spin_loop;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::thread;

use pvlock::kvm::ask_for_flush;

const PREEMPTED: u8 = 1 << 0;
const FLUSH_TLB: u8 = 1 << 1;

const REQUESTERS: usize = 3;
const REQUESTS: u64 = 20_000;

/// One vCPU's byte, and what its host has seen of the requesters' latest requests at its last flush.
#[derive(Default)]
struct Vcpu {
    byte: AtomicU8,
    requested: [AtomicU64; REQUESTERS],
    flushed: [AtomicU64; REQUESTERS],
    flushes: AtomicU64,
    switches: AtomicU64,
    over: AtomicBool,
}

impl Vcpu {
    /// Schedules the vCPU out and in until the test is over.
    fn host(&self) {
        let mut rounds = 0u32;
        while !self.over.load(Relaxed) {
            self.byte.store(PREEMPTED, Release);
            // Now long, now short.
            (0..rounds.wrapping_mul(2_654_435_761) >> 24).for_each(|_| spin_loop());
            let byte = self.byte.swap(0, SeqCst);
            assert!(byte & PREEMPTED != 0 && byte & !(PREEMPTED | FLUSH_TLB) == 0, "{byte:#x}");
            if byte & FLUSH_TLB != 0 {
                for (flushed, requested) in self.flushed.iter().zip(&self.requested) {
                    flushed.store(requested.load(Acquire), Release);
                }
                self.flushes.fetch_add(1, Relaxed);
            }
            // ORDERING: Release, after the flush: who sees the switch sees what it flushed.
            self.switches.fetch_add(1, Release);
            // The vCPU runs: a mark that is set now would stay unseen.
            (0..rounds.wrapping_mul(2_246_822_519) >> 25).for_each(|_| {
                assert_eq!(self.byte.load(Relaxed), 0, "a mark on a vCPU that runs");
                spin_loop();
            });
            rounds += 1;
            if rounds.is_multiple_of(64) {
                thread::yield_now();
            }
        }
        self.byte.store(0, Release);
    }

    /// Makes requests; returns how many were left to the host.
    fn requester(&self, me: usize) -> u64 {
        let mut marked = 0;
        for request in 1..=REQUESTS {
            self.requested[me].store(request, Release);
            let before = self.switches.load(Acquire);
            if !ask_for_flush(&self.byte) {
                // An interrupt, which a vCPU that runs takes.
                continue;
            }
            marked += 1;
            // The host may be in the switch that takes the mark, or that one's predecessor may not have been counted yet.
            while self.switches.load(Acquire) < before + 2 {
                thread::yield_now();
            }
            assert!(self.flushed[me].load(Acquire) >= request, "request {request} of {me} was lost");
        }
        marked
    }
}

#[test]
fn every_request_is_flushed_by_the_host_or_sent_as_an_interrupt() {
    let vcpu = Vcpu::default();
    let marked: u64 = thread::scope(|scope| {
        let host = scope.spawn(|| vcpu.host());
        let requesters: Vec<_> = (0..REQUESTERS)
            .map(|me| {
                scope.spawn({
                    let vcpu = &vcpu;
                    move || vcpu.requester(me)
                })
            })
            .collect();
        let marked = requesters.into_iter().map(|requester| requester.join().expect("no request is lost")).sum();
        vcpu.over.store(true, Relaxed);
        host.join().expect("the host sees no byte that it does not know");
        marked
    });
    let flushes = vcpu.flushes.load(Relaxed);
    println!("{} requests: {marked} marks, {flushes} flushes", REQUESTERS as u64 * REQUESTS);
    assert!(marked > 0 && marked < REQUESTERS as u64 * REQUESTS, "both ways have been met");
    assert!((1..=marked).contains(&flushes), "several marks may be one flush, never the other way");
}

#[test]
fn a_vcpu_that_is_not_preempted_is_left_alone() {
    for byte in [0, FLUSH_TLB, 0xfc] {
        let preempted = AtomicU8::new(byte);
        assert!(!ask_for_flush(&preempted));
        assert_eq!(preempted.load(Relaxed), byte);
    }
}

#[test]
fn a_mark_leaves_the_other_bits_alone() {
    for byte in [PREEMPTED, PREEMPTED | FLUSH_TLB, 0xf0 | PREEMPTED] {
        let preempted = AtomicU8::new(byte);
        assert!(ask_for_flush(&preempted));
        assert_eq!(preempted.load(Relaxed), byte | FLUSH_TLB);
    }
}
