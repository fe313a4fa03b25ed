//! The host's scheduler as plain data: who runs where, who waits, who is next. No threads, no system calls.
//!
//! A small model of what Linux does with vCPU threads. Each physical CPU is a [`Slot`] with at most one running vCPU. A slot
//! that gets free takes the waiting vCPU that has run least (its own first, another slot's when that one is behind by more
//! than a quantum, so that nobody starves on a crowded slot). A vCPU that wakes goes to an idle slot, or preempts a vCPU
//! that has run clearly more. Yields name a *buddy*, who is next on its slot unless it has run too far ahead.
//!
//! INVARIANT 1: `slots[s].current == Some(v)` if and only if `tasks[v].state == Running && tasks[v].slot == s`.
//! INVARIANT 2: a slot is idle only while no eligible vCPU waits.
//! INVARIANT 3: only a vCPU itself (in an exit, or in its tick) takes itself off its slot; others mark the slot and interrupt
//! it.

use crate::policy::VcpuSet;
use crate::slice::SliceClock;

/// What a vCPU is doing, as the host sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// On a physical CPU.
    Running,
    /// Ready to run, waiting for a physical CPU (or frozen).
    Runnable,
    /// In a halt, waiting for a kick or an interrupt.
    Halted,
    /// The guest's function has returned or panicked.
    Finished,
}

/// One vCPU in the scheduler.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) state: State,
    pub(crate) slot: usize,
    /// Time on a slot, in ns, raised on waking so that a long sleep earns no long run.
    vruntime_ns: u64,
    /// When `state` was entered.
    since_ns: u64,
    pub(crate) run_ns: u64,
    pub(crate) steal_ns: u64,
    pub(crate) halted_ns: u64,
    /// Not eligible before this time; 0 for not frozen, `u64::MAX` for until thawed by hand.
    pub(crate) frozen_until_ns: u64,
    /// A kick that has not ended a halt yet.
    pub(crate) kicked: bool,
    /// Whether the current halt ends for an interrupt too.
    pub(crate) halted_with_irqs_on: bool,
}

/// One physical CPU.
#[derive(Clone, Debug)]
struct Slot {
    current: Option<usize>,
    /// Who is next, by a yield or a wake-up.
    buddy: Option<usize>,
    slice_end_ns: u64,
    /// The current vCPU is to be replaced at its next tick.
    resched: bool,
}

/// A vCPU that has just been given a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elected {
    pub(crate) vcpu: usize,
    pub(crate) slot: usize,
    /// It ran elsewhere before.
    pub(crate) migrated: bool,
    /// Its total of stolen time.
    pub(crate) steal_ns: u64,
    pub(crate) slice_end_ns: u64,
}

/// What becomes of a vCPU that has offered its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It keeps the slot; the slice ends at this time.
    Stay { slice_end_ns: u64 },
    /// It waits; the slot goes to another vCPU or becomes idle.
    Switch(Option<Elected>),
}

/// What the caller has to do to a third vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poke {
    Nobody,
    /// Let it run.
    Start(Elected),
    /// Make it tick.
    Interrupt(usize),
}

/// The scheduler.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) tasks: Vec<Task>,
    slots: Vec<Slot>,
    pub(crate) quantum_ns: u64,
    pub(crate) clock: SliceClock,
    /// vCPUs that wait for a slot, frozen ones included: the preempted bitmap.
    pub(crate) waiting: VcpuSet,
}

impl Scheduler {
    /// All vCPUs ready to run, none running.
    pub(crate) fn new(vcpus: usize, slots: usize, quantum_ns: u64, clock: SliceClock) -> Self {
        let mut waiting = VcpuSet::new(vcpus);
        let tasks = (0..vcpus).map(|id| {
            waiting.insert(id);
            Task {
                state: State::Runnable,
                slot: id % slots,
                vruntime_ns: 0,
                since_ns: 0,
                run_ns: 0,
                steal_ns: 0,
                halted_ns: 0,
                frozen_until_ns: 0,
                kicked: false,
                halted_with_irqs_on: false,
            }
        });
        let tasks = tasks.collect();
        let idle = Slot { current: None, buddy: None, slice_end_ns: 0, resched: false };
        Self { tasks, slots: vec![idle; slots], quantum_ns, clock, waiting }
    }

    /// Time begins.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.tasks.iter_mut().for_each(|task| task.since_ns = now_ns);
    }

    /// Gives `slot` to the best waiting vCPU, if it is idle and there is one.
    pub(crate) fn fill(&mut self, slot: usize, now_ns: u64) -> Option<Elected> {
        if self.slots[slot].current.is_some() {
            return None;
        }
        self.pick(slot, None).map(|id| self.start(id, slot, now_ns))
    }

    /// The running vCPU `id` enters `into` (not Running), or goes on running if it is the best candidate for its own slot.
    pub(crate) fn deschedule(&mut self, id: usize, into: State, now_ns: u64) -> Next {
        self.leave(id, into, now_ns);
        self.hand_on(id, None, now_ns)
    }

    /// A tick: the running vCPU `id` goes on unless its slice is over, it is frozen, or somebody asked for its slot.
    pub(crate) fn tick(&mut self, id: usize, now_ns: u64) -> Next {
        let slot = &self.slots[self.tasks[id].slot];
        if !slot.resched && now_ns < slot.slice_end_ns && self.tasks[id].frozen_until_ns == 0 {
            return Next::Stay { slice_end_ns: slot.slice_end_ns };
        }
        self.deschedule(id, State::Runnable, now_ns)
    }

    /// Whether the slice of the running vCPU `id` is over.
    pub(crate) fn slice_is_over(&self, id: usize, now_ns: u64) -> bool {
        now_ns >= self.slots[self.tasks[id].slot].slice_end_ns
    }

    /// The running vCPU `me` offers its slot; `target` becomes next on the slot where it waits. `None` when `target` does not
    /// wait for a slot.
    pub(crate) fn yield_to(&mut self, me: usize, target: usize, now_ns: u64) -> Option<(Next, Poke)> {
        if target == me || !self.is_eligible(target) {
            return None;
        }
        let theirs = self.tasks[target].slot;
        let mine = self.tasks[me].slot;
        self.slots[theirs].buddy = Some(target);
        let mut poke = Poke::Nobody;
        if theirs != mine
            && let Some(current) = self.slots[theirs].current
        {
            self.slots[theirs].resched = true;
            poke = Poke::Interrupt(current);
        }
        self.leave(me, State::Runnable, now_ns);
        Some((self.hand_on(me, Some(me), now_ns), poke))
    }

    /// Whether neither on `me`'s slot nor on `target`'s anybody waits: a yield could do nothing for anyone.
    pub(crate) fn nobody_waits_for_slots_of(&self, me: usize, target: usize) -> bool {
        let (mine, theirs) = (self.tasks[me].slot, self.tasks[target].slot);
        !(0..self.tasks.len())
            .any(|id| self.is_eligible(id) && (self.tasks[id].slot == mine || self.tasks[id].slot == theirs))
    }

    /// Ends a halt. Nothing when `id` is not halted.
    pub(crate) fn wake(&mut self, id: usize, now_ns: u64) -> Poke {
        let task = &mut self.tasks[id];
        if task.state != State::Halted {
            return Poke::Nobody;
        }
        task.halted_ns += now_ns - task.since_ns;
        task.since_ns = now_ns;
        task.state = State::Runnable;
        // A kick ends one halt, not two.
        task.kicked = false;
        self.waiting.insert(id);
        self.place(id, now_ns)
    }

    /// `id` runs no instruction before `until_ns`.
    pub(crate) fn freeze(&mut self, id: usize, until_ns: u64) -> Poke {
        self.tasks[id].frozen_until_ns = until_ns;
        match self.tasks[id].state {
            State::Running => Poke::Interrupt(id),
            _ => Poke::Nobody,
        }
    }

    /// Ends a freeze, before its time or after.
    pub(crate) fn thaw(&mut self, id: usize, now_ns: u64) -> Poke {
        self.tasks[id].frozen_until_ns = 0;
        if self.tasks[id].state == State::Runnable { self.place(id, now_ns) } else { Poke::Nobody }
    }

    /// The end of the freeze that ends first, `u64::MAX` when there is none.
    pub(crate) fn next_thaw_ns(&self) -> u64 {
        self.tasks.iter().map(|t| t.frozen_until_ns).filter(|&t| t != 0).min().unwrap_or(u64::MAX)
    }

    /// A vCPU whose freeze is over at `now_ns`.
    pub(crate) fn thaw_due(&self, now_ns: u64) -> Option<usize> {
        self.tasks.iter().position(|t| t.frozen_until_ns != 0 && t.frozen_until_ns <= now_ns)
    }

    /// Time spent in the current state so far.
    pub(crate) fn in_state_ns(&self, id: usize, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.tasks[id].since_ns)
    }

    /// Whether every vCPU that has not ended is halted, and no freeze will end.
    pub(crate) fn all_halted(&self) -> bool {
        let mut living = self.tasks.iter().filter(|t| t.state != State::Finished).peekable();
        living.peek().is_some() && living.all(|t| t.state == State::Halted && t.frozen_until_ns == 0)
    }

    /// Whether `id` waits for a slot and may have one.
    pub(crate) fn is_eligible(&self, id: usize) -> bool {
        self.tasks[id].state == State::Runnable && self.tasks[id].frozen_until_ns == 0
    }

    /// Running vCPUs.
    pub(crate) fn running(&self) -> impl Iterator<Item = usize> {
        self.slots.iter().filter_map(|slot| slot.current)
    }

    /// Takes the running `id` off its slot.
    fn leave(&mut self, id: usize, into: State, now_ns: u64) {
        let task = &mut self.tasks[id];
        debug_assert_eq!(task.state, State::Running, "INVARIANT 3");
        let ran_ns = now_ns - task.since_ns;
        task.run_ns += ran_ns;
        task.vruntime_ns += ran_ns;
        task.since_ns = now_ns;
        task.state = into;
        if into == State::Runnable {
            self.waiting.insert(id);
        }
        let slot = &mut self.slots[task.slot];
        slot.current = None;
        slot.resched = false;
    }

    /// Gives the slot that `id` has just left to the best vCPU, `id` included unless it is passed over and there is another.
    fn hand_on(&mut self, id: usize, passed_over: Option<usize>, now_ns: u64) -> Next {
        let slot = self.tasks[id].slot;
        let best = self.pick(slot, passed_over);
        if best != Some(id) {
            return Next::Switch(best.map(|best| self.start(best, slot, now_ns)));
        }
        // INVARIANT 1 is restored without the steps of a schedule-in: nothing was stolen, and a slice that is not over goes
        // on.
        self.tasks[id].state = State::Running;
        self.waiting.remove(id);
        self.slots[slot].current = Some(id);
        if now_ns >= self.slots[slot].slice_end_ns {
            self.slots[slot].slice_end_ns = self.clock.end_of_slice_ns(now_ns);
        }
        Next::Stay { slice_end_ns: self.slots[slot].slice_end_ns }
    }

    fn start(&mut self, id: usize, slot: usize, now_ns: u64) -> Elected {
        let slice_end_ns = self.clock.end_of_slice_ns(now_ns);
        let task = &mut self.tasks[id];
        debug_assert_eq!(task.state, State::Runnable);
        let migrated = task.slot != slot;
        task.steal_ns += now_ns - task.since_ns;
        task.since_ns = now_ns;
        task.state = State::Running;
        task.slot = slot;
        self.waiting.remove(id);
        self.slots[slot] = Slot {
            current: Some(id),
            buddy: self.slots[slot].buddy.filter(|&b| b != id),
            slice_end_ns,
            resched: false,
        };
        Elected { vcpu: id, slot, migrated, steal_ns: task.steal_ns, slice_end_ns }
    }

    /// The best vCPU for `slot`. `passed_over` is it only if nobody else waits for this slot, nor far behind for another.
    fn pick(&mut self, slot: usize, passed_over: Option<usize>) -> Option<usize> {
        let buddy = self.slots[slot].buddy.take();
        let least = |own: bool| {
            (0..self.tasks.len())
                .filter(|&id| Some(id) != passed_over && self.is_eligible(id) && (self.tasks[id].slot == slot) == own)
                .min_by_key(|&id| self.tasks[id].vruntime_ns)
        };
        let own = least(true).or_else(|| passed_over.filter(|&id| self.is_eligible(id)));
        let other = least(false);
        let best = match (own, other) {
            (Some(own), Some(other)) if self.is_behind(other, own, self.quantum_ns) => Some(other),
            (Some(own), _) => Some(own),
            (None, other) => other,
        }?;
        // Linux honours a buddy as long as that is not too unfair to whoever would be next.
        match buddy {
            Some(buddy)
                if Some(buddy) != passed_over
                    && self.is_eligible(buddy)
                    && self.tasks[buddy].slot == slot
                    && !self.is_behind(best, buddy, self.quantum_ns) =>
            {
                Some(buddy)
            }
            _ => Some(best),
        }
    }

    /// Whether `a` has run less than `b` by more than `by_ns`.
    fn is_behind(&self, a: usize, b: usize, by_ns: u64) -> bool {
        self.tasks[a].vruntime_ns + by_ns < self.tasks[b].vruntime_ns
    }

    /// Finds a place for a vCPU that has just become eligible.
    fn place(&mut self, id: usize, now_ns: u64) -> Poke {
        if !self.is_eligible(id) {
            return Poke::Nobody;
        }
        // A sleeper gets ahead of the others by half a quantum at most, as in Linux.
        let floor = (0..self.tasks.len())
            .filter(|&other| other != id && matches!(self.tasks[other].state, State::Running | State::Runnable))
            .map(|other| self.tasks[other].vruntime_ns)
            .min();
        if let Some(floor) = floor {
            let task = &mut self.tasks[id];
            task.vruntime_ns = task.vruntime_ns.max(floor.saturating_sub(self.quantum_ns / 2));
        }
        let home = self.tasks[id].slot;
        let idle = |slot: &usize| self.slots[*slot].current.is_none();
        if let Some(slot) = core::iter::once(home).chain(0..self.slots.len()).find(idle) {
            return Poke::Start(self.start(id, slot, now_ns));
        }
        match self.slots[home].current {
            // A quarter of a quantum: not every wake-up is worth a switch.
            Some(current)
                if self.vruntime_now_ns(current, now_ns) > self.tasks[id].vruntime_ns + self.quantum_ns / 4 =>
            {
                self.slots[home].resched = true;
                self.slots[home].buddy = Some(id);
                Poke::Interrupt(current)
            }
            _ => Poke::Nobody,
        }
    }

    fn vruntime_now_ns(&self, running: usize, now_ns: u64) -> u64 {
        self.tasks[running].vruntime_ns + now_ns.saturating_sub(self.tasks[running].since_ns)
    }
}

#[cfg(test)]
mod tests;
