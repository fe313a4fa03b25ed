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

/// Pauses of a newcomer before its first look at a lock that was held when it came.
///
/// Each look takes the lock's line away from the owner, who must then fetch it back to unlock: a newcomer that looks at every pause slows
/// down what it waits for. Two CPUs that want one lock all the time, on one machine in interleaved runs (`cargo xtask bench --only
/// handoff,sweep`), in million acquisitions per second: no pause 8.7, four 10.9, six 13.7, eight 15.9 with empty sections, and 3.8, 3.7, 4.4,
/// 5.0 with sections of 160 cycles. Eight are about 0.5 µs where a pause takes 140 cycles, and that much too late at most.
pub(crate) const FIRST_PAUSES: u32 = pick(8, 0);

/// Rounds that a newcomer tries for a sleeping mutex or a reader-writer lock before it queues: some six tries, [`TRY_GAP_MIN`] apart and more.
pub(crate) const SPACED_ROUNDS: u32 = pick(256, 1);

/// Rounds from one try for such a lock to the next, at first; doubled after each, up to [`TRY_GAP_MAX`].
pub(crate) const TRY_GAP_MIN: u32 = pick(8, 1);

/// See [`TRY_GAP_MIN`]: about 3 µs where a pause takes 140 cycles, and that much too late at most; less than a sleep and a wake-up take.
///
/// A try takes the mutex's line away from the owner, as with [`FIRST_PAUSES`]. Sections of 160 cycles with as much between them, in million
/// acquisitions per second of 2, 4, 8, 16 vCPUs on two CPUs of the test host: 8 rounds 4.5, 4.7, 4.3, 4.6; 16 rounds 5.5, 7.0, 5.4, 5.6;
/// 32 rounds 6.3, 6.6, 5.9, 8.0; 64 rounds 6.9, 6.8, 6.4, 6.0, with the least deviation. A reader-writer lock, every tenth a writer, 2, 4, 16 vCPUs: a look in
/// every round 4.8 to 6.0, 4.6 to 6.2, 4.2 to 4.5; these distances 6.0, 5.6, 5.4 to 5.7.
pub(crate) const TRY_GAP_MAX: u32 = pick(64, 1);

/// Rounds in which the running head of the queue may be passed; then it reserves the lock and nobody passes it.
///
/// This is the bound on starvation. Smaller is fairer and slower: each forced hand-over moves the lock's and the data's lines.
pub(crate) const HEAD_ROUNDS: u32 = pick(1024, 2);

/// Directed yields in a row that moved nothing, after which a wait makes no more of them.
///
/// With run queues of length one at probability p, giving up wrongly has probability p^(tries+1): 1/16 for three tries at 1.5x
/// overcommit (the undercommit bail-out of KVM's directed yield, 2013).
pub(crate) const FRUITLESS_YIELDS: u32 = pick(3, 2);

/// Times that a CPU which has given up yielding is refused before it gets one more try, unless its own record moved.
///
/// Refusals are a long wait (5 µs or more) apart. Measured on the test host with two CPUs and a foreign lock, beside six sleepers that the
/// kernel has not called idle, as throughput against plain spinning. Two vCPUs, so nothing to gain: never giving up 0.27 to 0.87, one try
/// in 16 0.82 to 1.05, in 64 0.94 to 0.97, in 250 0.94 to 0.95. Three vCPUs: 1.5, 1.9, 1.7, 1.3; and 0.96 when the first fruitless yield
/// already ends yielding.
pub(crate) const GIVEN_UP_LOOKS: u32 = pick(64, 2);

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

/// Rounds that an owner is trusted to run which does not read as preempted, or of which nothing is known. Then the waiter halts, where it can.
///
/// About 1 ms: longer than any sane critical section, and what Linux's paravirtual queue spins (1 << 15 rounds) to a factor of two.
pub(crate) const TRUSTED_ROUNDS: u32 = pick(16 * 1024, 1);

/// Rounds for which the head of a reader-writer lock's queue trusts the readers to run. Then it halts, where it can.
///
/// And a writer likewise. Who the readers are is not known. By then the head has closed the lock to newcomers ([`HEAD_ROUNDS`]), so if one of the readers is preempted all the
/// others wait too, and a CPU that spins keeps it from the CPU that it needs. Trusting them for [`TRUSTED_ROUNDS`] instead cost a third of the
/// throughput of 8 and 16 vCPUs on two CPUs (3.3 and 2.5 against 5.0 and 5.1 million acquisitions per second, a tenth of them to write).
pub(crate) const READER_TRUST: u32 = pick(1024, 1);

/// Times that the first of a mutex's sleepers is woken and finds the mutex taken; then it gets the mutex handed over.
///
/// A hand-over leaves the mutex idle until the sleeper runs, so it is the exception: it bounds how often a sleeper is passed.
pub(crate) const VAIN_WAKES: u32 = pick(2, 1);

/// The shipped value, or a small one under loom, where each round is a branch of the model.
const fn pick(shipped: u32, model: u32) -> u32 {
    if cfg!(pvlock_loom) { model } else { shipped }
}
