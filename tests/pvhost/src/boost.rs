//! Undirected yields: whom to boost when it is only known that somebody spins.

use core::sync::atomic::Ordering::Relaxed;

use crate::clock::spin_for;
use crate::counters::bump;
use crate::host::HostState;
use crate::policy::{BailOut, ReceiverBoost, YieldCandidates};
use crate::sched::{Next, Poke, Scheduler, State};
use crate::vcpu::{Place, Vcpu};

/// After so many candidates in a row for whom nothing could be done, an undirected yield gives up ([`BailOut::AfterThree`]).
const TRIES: u32 = 3;

/// The vCPU at `place` spins for an unknown sibling: yields to the best candidate, round robin from the last one boosted.
pub(crate) fn on_spin(place: &Place, state: &mut HostState, now_ns: u64) -> (Next, Poke) {
    let policies = place.host.config.policies;
    let counters = &place.vcpu.counters;
    let me = place.vcpu.index();
    bump(&counters.spin_exits);

    let mut tries = TRIES;
    let mut after = state.last_boosted;
    for _ in 0..place.host.vcpus.len() {
        let Some(candidate) = next_candidate(&state.sched, policies.candidates, after) else { break };
        after = candidate;
        if candidate == me || !may_boost(&place.host.vcpus[candidate], policies.receiver_boost) {
            continue;
        }
        bump(&counters.candidates_tried);
        spin_for(place.host.config.attempt_cost);
        if let Some(done) = state.sched.yield_to(me, candidate, now_ns) {
            state.last_boosted = candidate;
            bump(&counters.boosts);
            return done;
        }
        if policies.bail_out == BailOut::AfterThree && state.sched.nobody_waits_for_slots_of(me, candidate) {
            tries -= 1;
            if tries == 0 {
                bump(&counters.bail_outs);
                break;
            }
        }
    }
    // Nobody to yield to: as after any other tick.
    (state.sched.tick(me, now_ns), Poke::Nobody)
}

/// The candidate that comes after `after`, wrapping round.
fn next_candidate(sched: &Scheduler, candidates: YieldCandidates, after: usize) -> Option<usize> {
    let len = sched.tasks.len();
    match candidates {
        YieldCandidates::All => Some((after + 1) % len),
        YieldCandidates::Flag => {
            (1..=len).map(|i| (after + i) % len).find(|&id| sched.tasks[id].state == State::Runnable)
        }
        YieldCandidates::Bitmap => {
            sched.waiting.next_at_or_after(after + 1).or_else(|| sched.waiting.next_at_or_after(0))
        }
    }
}

/// A vCPU in user mode holds no kernel lock; it is boosted only for an interrupt that it has to take.
fn may_boost(vcpu: &Vcpu, receiver_boost: ReceiverBoost) -> bool {
    !vcpu.user_mode.load(Relaxed) || (receiver_boost == ReceiverBoost::On && vcpu.pending_irqs.load(Relaxed) != 0)
}
