//! What a waiter does instead of the thing it waits for: one policy, used by every lock.
//!
//! [`Waiter`] decides and touches nothing; `drive` carries its decisions out. The decision for one look:
//!
//! | who is waited for | so far | step |
//! |---|---|---|
//! | runs, or unknown | fewer than the trusted number of rounds | pause |
//! | runs, or unknown | more, and this CPU can halt | halt |
//! | runs, or unknown | more | pause |
//! | preempted | fewer than `YIELDS_BEFORE_HALT` yields since it last ran | yield to it |
//! | preempted | else, and this CPU can halt | halt |
//! | preempted | else, back-off over | yield to it, double the back-off |
//! | preempted | else | pause |
//!
//! A yield that did not move us may still have worked: the host runs the target on another CPU, while we go on. So the next look comes
//! `YIELD_SETTLES` rounds later, and a target that is seen running clears the count.
//!
//! Who does not read as preempted need not run: the host may be busy on its behalf, with a page to fetch or a device to emulate, and since Linux
//! 5.18 KVM leaves the flag alone when a vCPU halts (commit 6cd88243c7e0). So nobody is trusted for ever, and a waiter that waits for another one
//! asks that one's own record whether it has halted ([`Waited::has_halted`](drive::Waited::has_halted)).
//!
//! Whether a yield is made at all is then up to the CPU's memory of its last ones, [`undercommit`], which it shares with all its other waits.
//! One that is refused counts as made.
//!
//! So there is no hypercall while nobody is preempted and nobody waits for longer than a sane section lasts, one yield (as shipped) to a target that does not come where the waiter can halt, and
//! nowhere more than three in a row that did nothing.

pub(crate) mod budget;
pub(crate) mod deaf;
pub(crate) mod drive;
pub(crate) mod undercommit;

use crate::hypervisor::Yielded;
use budget::{BACK_OFF_MAX, BACK_OFF_MIN, LOOK_EVERY, YIELD_SETTLES};

/// What is known of the vCPU that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing: the host does not tell, or the owner's CPU is not known.
    Unknown,
    /// It does not read as preempted.
    Running,
    /// The host has it off a CPU: preempted, or it has halted.
    Preempted,
}

/// What the waiting CPU can do right now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// Directed yield exists.
    pub(crate) yields: bool,
    /// Directed yields to make before halting.
    pub(crate) yields_first: u32,
    /// This CPU may halt here and will be kicked.
    pub(crate) halts: bool,
    /// Rounds for which somebody is trusted to run who does not read as preempted, or of whom nothing is known.
    pub(crate) trust: u32,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Spin one round.
    Pause,
    /// Yield to the vCPU that is waited for, once it is confirmed that it still is.
    Yield,
    /// Halt until kicked.
    Halt,
}

/// The memory of one wait.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    /// Rounds so far, saturating.
    rounds: u32,
    /// Rounds until the next look.
    until_look: u32,
    /// Yields since the target was last seen running, saturating.
    yields: u32,
    /// Rounds to pass before the next repeated yield, and that number's last full value.
    back_off: (u32, u32),
}

impl Waiter {
    /// Rounds so far, saturating.
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Decides the next step. `look` is called only in the rounds that look at the preempted byte.
    pub(crate) fn next(&mut self, look: impl FnOnce() -> (Seen, Abilities)) -> Step {
        self.rounds = self.rounds.saturating_add(1);
        self.back_off.0 = self.back_off.0.saturating_sub(1);
        if self.until_look > 0 {
            self.until_look -= 1;
            return Step::Pause;
        }
        self.until_look = LOOK_EVERY - 1;
        let (seen, can) = look();
        let step = self.decide(seen, can);
        if step == Step::Halt {
            // Who comes back from the host looks again at once.
            self.until_look = 0;
        }
        step
    }

    fn decide(&mut self, seen: Seen, can: Abilities) -> Step {
        match seen {
            Seen::Running => {
                // The yields did their work, on a CPU that is not ours. If it is preempted again, that is another story.
                self.yields = 0;
                if can.halts && self.rounds >= can.trust { Step::Halt } else { Step::Pause }
            }
            Seen::Unknown if can.halts && self.rounds >= can.trust => Step::Halt,
            Seen::Unknown => Step::Pause,
            Seen::Preempted if can.yields && self.yields < can.yields_first => Step::Yield,
            Seen::Preempted if can.halts => Step::Halt,
            Seen::Preempted if can.yields && self.back_off.0 == 0 => {
                let next = (self.back_off.1 * 2).clamp(BACK_OFF_MIN, BACK_OFF_MAX);
                self.back_off = (next, next);
                Step::Yield
            }
            Seen::Preempted => Step::Pause,
        }
    }

    /// Tells what a yield did; `None`: it was not made.
    pub(crate) fn yielded(&mut self, outcome: Option<Yielded>) {
        self.yields = self.yields.saturating_add(1);
        self.until_look = match outcome {
            Some(Yielded::Nothing) => YIELD_SETTLES,
            Some(Yielded::Moved) | None => 0,
        };
    }
}

#[cfg(all(test, not(pvlock_loom)))]
mod tests {
    use super::budget::TRUSTED_ROUNDS;
    use super::*;

    const ALL: Abilities = Abilities { yields: true, yields_first: 1, halts: true, trust: TRUSTED_ROUNDS };
    const NO_HALT: Abilities = Abilities { yields: true, yields_first: 1, halts: false, trust: TRUSTED_ROUNDS };
    const NOTHING: Abilities = Abilities { yields: false, yields_first: 1, halts: false, trust: TRUSTED_ROUNDS };

    fn steps(
        w: &mut Waiter,
        rounds: u32,
        seen: Seen,
        can: Abilities,
        outcome: impl Into<Option<Yielded>>,
    ) -> (u32, u32) {
        let outcome = outcome.into();
        let (mut yields, mut halts) = (0, 0);
        for _ in 0..rounds {
            match w.next(|| (seen, can)) {
                Step::Pause => {}
                Step::Yield => {
                    yields += 1;
                    w.yielded(outcome);
                }
                Step::Halt => halts += 1,
            }
        }
        (yields, halts)
    }

    #[test]
    fn no_hypercall_while_the_owner_runs_unless_it_takes_too_long() {
        let mut w = Waiter::default();
        assert_eq!(steps(&mut w, TRUSTED_ROUNDS - LOOK_EVERY, Seen::Running, ALL, Yielded::Moved), (0, 0));
        let (yields, halts) = steps(&mut w, 3 * LOOK_EVERY, Seen::Running, ALL, Yielded::Moved);
        assert!(yields == 0 && halts >= 1, "{yields} yields, {halts} halts");
        assert_eq!(steps(&mut Waiter::default(), 1_000_000, Seen::Running, NO_HALT, Yielded::Moved), (0, 0));
    }

    #[test]
    fn yields_once_then_halts() {
        let mut w = Waiter::default();
        assert_eq!(steps(&mut w, ALL.yields_first, Seen::Preempted, ALL, Yielded::Moved), (ALL.yields_first, 0));
        assert_eq!(steps(&mut w, 5, Seen::Preempted, ALL, Yielded::Moved), (0, 5));
    }

    #[test]
    fn halts_at_once_where_the_yield_is_refused() {
        let mut w = Waiter::default();
        assert_eq!(steps(&mut w, 1 + ALL.yields_first, Seen::Preempted, ALL, None), (ALL.yields_first, 1));
    }

    #[test]
    fn waits_for_the_effect_of_a_yield_that_did_not_move_it() {
        let mut w = Waiter::default();
        assert_eq!(steps(&mut w, YIELD_SETTLES + 1, Seen::Preempted, ALL, Yielded::Nothing), (1, 0));
        assert_eq!(steps(&mut w, 1, Seen::Preempted, ALL, Yielded::Nothing), (0, 1));
    }

    #[test]
    fn a_target_seen_running_clears_the_counts() {
        let mut w = Waiter::default();
        for _ in 0..10 {
            assert_eq!(steps(&mut w, YIELD_SETTLES, Seen::Preempted, ALL, Yielded::Nothing), (1, 0));
            assert_eq!(steps(&mut w, YIELD_SETTLES, Seen::Running, ALL, Yielded::Nothing), (0, 0));
        }
    }

    #[test]
    fn without_halt_yields_go_on_with_growing_gaps() {
        let mut w = Waiter::default();
        let (yields, halts) = steps(&mut w, 10 * BACK_OFF_MAX, Seen::Preempted, NO_HALT, Yielded::Moved);
        assert_eq!(halts, 0);
        assert!((10..40).contains(&yields), "{yields} yields");
    }

    #[test]
    fn unknown_owners_are_trusted_for_a_finite_time() {
        let mut w = Waiter::default();
        assert_eq!(steps(&mut w, TRUSTED_ROUNDS - LOOK_EVERY, Seen::Unknown, ALL, Yielded::Moved), (0, 0));
        assert!(steps(&mut w, 3 * LOOK_EVERY, Seen::Unknown, ALL, Yielded::Moved).1 >= 1);
    }

    #[test]
    fn spins_where_the_host_offers_nothing() {
        let mut w = Waiter::default();
        assert_eq!(steps(&mut w, 100_000, Seen::Preempted, NOTHING, Yielded::Nothing), (0, 0));
    }

    #[test]
    fn a_look_happens_in_the_first_round_and_then_every_so_often() {
        let mut w = Waiter::default();
        let mut looks = 0;
        for _ in 0..LOOK_EVERY * 10 {
            w.next(|| {
                looks += 1;
                (Seen::Running, ALL)
            });
        }
        assert_eq!(looks, 10);
    }
}
