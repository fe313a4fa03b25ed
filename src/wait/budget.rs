//! Every tuning constant of the waiting policy, with its reason.
//!
//! A round is one look at what is waited for and one `pause`: 40 to 140 cycles on silicon. The constants must hold both
//! where a VM exit costs 1 µs and where it costs 100 µs (nested), so none is a time.

/// Rounds between two looks at a preempted byte.
///
/// The byte lies in a line that the host writes, and only at a switch; between switches a look is a cache hit, right after one it is
/// a miss. 16 rounds (about 1 µs) keep the misses rare and notice a preempted owner long before a time slice (1 to 30 ms) is lost.
pub(crate) const LOOK_EVERY: u32 = pick(16, 1);

/// Rounds that a newcomer tries for the lock before it joins the queue.
///
/// Long enough for a short section on another CPU to end (the queue costs two more locked instructions and a line transfer), short
/// enough that many CPUs do not hammer one line.
pub(crate) const NEWCOMER_ROUNDS: u32 = pick(128, 1);

/// Rounds in which the running head of the queue may be passed; then it reserves the lock and nobody passes it.
///
/// This is the bound on starvation. Smaller is fairer and slower: each forced hand-over moves the lock's and the data's lines.
pub(crate) const HEAD_ROUNDS: u32 = pick(1024, 2);

/// Directed yields to one preempted target before the waiter halts instead.
///
/// One boosts the owner where the host's scheduler lets it. More seldom help: a vCPU that has just used up its slice is behind the others in
/// fairness, and the scheduler then disregards the yield (and its effect lasts for one pick only: sched/kvm "Semantics-aware vCPU
/// scheduling", 2025). A halted waiter leaves the run queue, so the owner's turn comes. On nested KVM at 4x, medians of acquisitions per
/// second in interleaved boots (`cargo xtask run overcommit --vcpus 8 --cpus 2 --accel nested`): no yield 2.2 to 2.9 M, one 3.0 to 4.2 M,
/// three 2.6 M; on pvhost the three are equal within their deviation.
pub(crate) const YIELDS_BEFORE_HALT: u32 = pick(1, 1);

/// Directed yields in a row that moved nothing, after which a wait makes no more of them.
///
/// With run queues of length one at probability p, giving up wrongly has probability p^(tries+1): 1/16 for three tries at 1.5x
/// overcommit (the undercommit bail-out of KVM's directed yield, 2013).
pub(crate) const FRUITLESS_YIELDS: u32 = pick(3, 2);

/// Rounds after a yield that did not schedule the caller out, until it looks whether its target runs now.
///
/// The host has interrupted the CPU where the target waits; that CPU needs about 5 µs to switch. Most yields end so when the two sit on
/// different CPUs: nested, KVM counted 658 of 709 yields as successful where the caller's record had moved in 84.
pub(crate) const YIELD_SETTLES: u32 = pick(128, 1);

/// Rounds before the first and, doubled each time, between later repeated yields where halting is impossible; at most
/// [`BACK_OFF_MAX`].
pub(crate) const BACK_OFF_MIN: u32 = pick(256, 1);

/// See [`BACK_OFF_MIN`]: about 1 ms, a short time slice.
pub(crate) const BACK_OFF_MAX: u32 = pick(16 * 1024, 2);

/// Rounds that an owner of unknown state is trusted to run. Then the waiter halts, where it can.
///
/// About 1 ms: longer than any sane critical section, and what Linux's paravirtual queue spins (1 << 15 rounds) to a factor of two.
pub(crate) const UNKNOWN_ROUNDS: u32 = pick(16 * 1024, 1);

/// The shipped value, or a small one under loom, where each round is a branch of the model.
const fn pick(shipped: u32, model: u32) -> u32 {
    if cfg!(pvlock_loom) { model } else { shipped }
}
