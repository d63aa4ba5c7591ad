//! The open loop: sends on schedule whether or not answers came, and collects answers and stamps in
//! between. Knows neither protocol nor sockets.

use std::collections::BTreeMap;
use std::io;

use nix::errno::Errno;
use nix::sys::mman::{MlockAllFlags, mlockall};

use super::record::{Arrival, Records};
use super::transport::{Transport, is_warmup};
use crate::clock::{self, SPIN_NS, Schedule, StepDetector, SystemClock};
use crate::error::Error;

/// How long an answer is polled for before the thread sleeps [ns]. A later answer is read after a
/// wake-up, which its user stamp includes.
const ANSWER_SPIN_NS: i64 = 200_000;
/// The clocks are compared about this often [ns].
const CHECK_NS: i64 = 10_000_000;
/// A transmit stamp, which takes a microsecond, is fetched only with this much time left [ns].
const STAMP_SLACK_NS: i64 = 6_000;
/// How long before a packet the watcher is woken [ns]: a CPU in a deep idle state takes up to a
/// hundred microseconds.
const ATTENTION_NS: i64 = 200_000;
/// No rehearsal, which takes about 3 µs, begins in this time before a packet [ns].
const REHEARSAL_NS: i64 = 5_000;
/// From the decision to start until the first packet [ns].
const LEAD_NS: i64 = 2_000_000;

/// What to send.
#[derive(Debug, Clone, Copy)]
pub struct ProbeOrder {
    /// When each packet is due.
    pub schedule: Schedule,
    /// How many packets.
    pub count: u64,
    /// Packets in a burst; 1 where there are none.
    pub burst: u64,
    /// Sending ends this long after its start, however many packets are left [ns].
    pub deadline_ns: Option<i64>,
    /// How long to wait for answers after the last packet [ns].
    pub timeout_ns: i64,
}

/// The result of a run.
#[derive(Debug)]
pub struct SessionOutcome {
    /// Every packet.
    pub records: Records,
    /// The wall clock's steps.
    pub steps: StepDetector,
    /// CLOCK_REALTIME of the schedule's start [ns].
    pub start_ns: i64,
    /// From the schedule's start to the end of waiting [ns].
    pub elapsed_ns: i64,
    /// Whether a signal ended it.
    pub interrupted: bool,
    /// For each complete burst, when the system call with its last packet returned
    /// [CLOCK_REALTIME ns].
    pub burst_ends_ns: Vec<i64>,
    /// Packets that the kernel refused, by error.
    pub refused: BTreeMap<String, u64>,
    /// Why it ended early, other than by a signal.
    pub failure: Option<Error>,
}

struct Session<'a> {
    transport: &'a mut dyn Transport,
    records: Records,
    steps: StepDetector,
    checked_ns: i64,
    burst_ends_ns: Vec<i64>,
    refused: BTreeMap<String, u64>,
    failure: Option<Error>,
}

/// Runs `order` over `transport` until it is done or `stop` returns true.
pub fn run(
    transport: &mut dyn Transport,
    order: ProbeOrder,
    stop: &dyn Fn() -> bool,
) -> SessionOutcome {
    let records = Records::with_capacity(order.count);
    lock_memory();
    clock::tighten_timers();
    let steps = StepDetector::new(&SystemClock);
    let start = clock::monotonic_ns() + LEAD_NS;
    let start_ns = clock::realtime_offset(&SystemClock).0 + start;
    let mut session = Session {
        transport,
        records,
        steps,
        checked_ns: start,
        burst_ends_ns: Vec::with_capacity((order.count / order.burst) as usize),
        refused: BTreeMap::new(),
        failure: None,
    };
    let mut interrupted = session.send_all(order, start, stop);
    if session.failure.is_none() {
        interrupted |= session.wait_for_answers(order.timeout_ns, stop);
    }
    session.collect_stamps();
    session.steps.check(&SystemClock);
    SessionOutcome {
        start_ns,
        elapsed_ns: clock::monotonic_ns() - start,
        interrupted,
        burst_ends_ns: session.burst_ends_ns,
        refused: session.refused,
        failure: session.failure,
        steps: session.steps,
        records: session.records,
    }
}

/// Locks the present pages in memory, where that is allowed.
fn lock_memory() {
    let _ = mlockall(MlockAllFlags::MCL_CURRENT);
}

impl Session<'_> {
    /// Sends every packet at its time; returns true when `stop` ended it.
    fn send_all(&mut self, order: ProbeOrder, start: i64, stop: &dyn Fn() -> bool) -> bool {
        let mut last_tx = start;
        let batch = self.transport.batch() as u64;
        let mut sequence = 0;
        while sequence < order.count {
            self.transport.prepare(sequence);
            let due = start + order.schedule.due_ns(sequence);
            let now = self.wait_until_due(due, last_tx, stop);
            if stop() {
                return true;
            }
            if self.failure.is_some() || order.deadline_ns.is_some_and(|d| now >= start + d) {
                return false;
            }
            // Packets that are due together are sent together, where the transport can do that.
            let most = batch.min(order.count - sequence);
            let count = (1..most)
                .find(|&n| start + order.schedule.due_ns(sequence + n) > now)
                .unwrap_or(most);
            let sent = if count == 1 {
                self.transport.transmit().map(|user_tx_ns| (user_tx_ns, 1))
            } else {
                self.transport.transmit_batch(sequence, count as usize)
            };
            // Read before anything else: on a short path the answer is there already.
            let answer = self.transport.receive();
            last_tx = now;
            match sent {
                Ok((user_tx_ns, accepted)) => {
                    for _ in 0..accepted {
                        self.records.sent(user_tx_ns, self.steps.checks());
                    }
                    sequence += accepted as u64;
                }
                Err(error) => {
                    self.not_sent(&error);
                    sequence += 1;
                }
            }
            if order.burst > 1 && sequence / order.burst > self.burst_ends_ns.len() as u64 {
                self.burst_ends_ns.push(clock::realtime_ns());
            }
            self.note(answer);
            if now - self.checked_ns > CHECK_NS {
                self.check_clock(now);
            }
        }
        false
    }

    /// Collects answers and stamps until `due` (or a failure); returns the time.
    #[inline]
    fn wait_until_due(&mut self, due: i64, last_tx: i64, stop: &dyn Fn() -> bool) -> i64 {
        loop {
            let now = clock::monotonic_ns();
            let slack = due - now;
            if slack <= 0 || self.failure.is_some() {
                return now;
            }
            let answer = self.transport.receive();
            if self.note(answer) {
                continue;
            }
            if slack > STAMP_SLACK_NS
                && self.transport.stamps_pending()
                && let Some((sequence, kernel_tx_ns)) = self.transport.transmit_stamp()
            {
                self.records.stamped(sequence, kernel_tx_ns);
                continue;
            }
            if slack <= SPIN_NS {
                self.transport.attend(true);
                if slack > REHEARSAL_NS {
                    self.transport.rehearse();
                }
                std::hint::spin_loop();
                continue;
            }
            if now - self.checked_ns > CHECK_NS {
                self.check_clock(now);
            }
            if stop() {
                return now;
            }
            let polling = self.records.outstanding() > 0 && now - last_tx < ANSWER_SPIN_NS;
            if polling {
                std::hint::spin_loop();
            } else {
                let soon = slack <= ATTENTION_NS;
                self.transport.attend(soon);
                let until = if soon { SPIN_NS } else { ATTENTION_NS };
                self.sleep((slack - until).min(100_000_000));
            }
        }
    }

    /// Waits for outstanding answers; returns true when `stop` ended it.
    fn wait_for_answers(&mut self, timeout_ns: i64, stop: &dyn Fn() -> bool) -> bool {
        let begin = clock::monotonic_ns();
        let end = begin + timeout_ns;
        loop {
            let answer = self.transport.receive();
            if self.note(answer) {
                continue;
            }
            let now = clock::monotonic_ns();
            // A duplicate of the last answer may still come.
            let end =
                if self.records.outstanding() == 0 { end.min(begin + ANSWER_SPIN_NS) } else { end };
            if now >= end || self.failure.is_some() {
                return false;
            }
            if stop() {
                return true;
            }
            if now - self.checked_ns > CHECK_NS {
                self.check_clock(now);
            }
            self.collect_stamps();
            if now - begin > ANSWER_SPIN_NS {
                self.sleep((end - now).min(50_000_000));
            }
        }
    }

    fn sleep(&mut self, timeout_ns: i64) {
        if let Err(error) = self.transport.wait(timeout_ns) {
            self.fail_if_ended(&error);
        }
    }

    fn collect_stamps(&mut self) {
        while let Some((sequence, kernel_tx_ns)) = self.transport.transmit_stamp() {
            self.records.stamped(sequence, kernel_tx_ns);
        }
    }

    /// Notes an answer; returns whether there was one.
    #[inline]
    fn note(&mut self, answer: io::Result<Option<Arrival>>) -> bool {
        match answer {
            Ok(None) => false,
            Ok(Some(arrival)) => {
                if !is_warmup(arrival.sequence) {
                    self.records.arrived(arrival, self.steps.checks());
                }
                true
            }
            Err(error) => {
                // An error that an earlier packet left on the socket; reading cleared it.
                self.fail_if_ended(&error);
                false
            }
        }
    }

    fn not_sent(&mut self, error: &io::Error) {
        self.records.sent(super::record::MISSING, self.steps.checks());
        let name = match error.raw_os_error() {
            Some(errno) => format!("{:?}", Errno::from_raw(errno)),
            None => error.to_string(),
        };
        *self.refused.entry(name).or_default() += 1;
        if !matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN | libc::ENOMEM)) {
            self.fail_if_ended(error);
        }
    }

    fn fail_if_ended(&mut self, error: &io::Error) {
        if self.failure.is_some() {
            return;
        }
        self.failure = self.transport.ended();
        let (name, exists) = self.transport.interface();
        if !exists && self.failure.is_none() {
            self.failure = Some(Error::failed(
                format!(
                    "interface {name} vanished after {} packets ({error})",
                    self.records.as_slice().len()
                ),
                "what was measured until then is printed; repeat the run when it is back",
            ));
        }
    }

    fn check_clock(&mut self, now: i64) {
        self.steps.check(&SystemClock);
        self.checked_ns = now;
    }
}
