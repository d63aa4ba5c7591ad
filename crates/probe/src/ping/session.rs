//! The open loop: sends on schedule whether or not answers came, and collects answers and stamps in
//! between.

use std::collections::BTreeMap;
use std::io;

use nix::errno::Errno;
use nix::sys::mman::{MlockAllFlags, mlockall};

use super::record::{Arrival, MISSING, Records};
use crate::clock::{self, ClockStep, ClockWatch, SPIN_NS, Schedule};
use crate::error::{Error, Result};
use crate::stop;
use crate::wire::WARMUP_BIT;

/// Interval of warm-up packets [ns].
pub const INTERVAL_NS: i64 = 100_000_000;
/// How long an answer is polled for before the thread sleeps [ns]. A later answer is read after a
/// wake-up, which its user stamp includes.
const ANSWER_SPIN_NS: i64 = 200_000;
/// How long before a packet the watching thread is woken [ns]: a CPU in a deep idle state takes up to
/// a hundred microseconds.
const ATTENTION_NS: i64 = 200_000;
/// From the decision to start until the first packet [ns].
const LEAD_NS: i64 = 2_000_000;
/// How much longer than the first answer took the next ones are waited for: on an emulated machine
/// each of the first packets may take longer than all later ones.
const SLOWDOWN: i64 = 4;
/// Warm-up packets after the first answer: they fill caches, and the kernel switches receive stamps on
/// in the background.
const ROUNDS: u64 = 10;

/// Sends probes and receives their answers. Only [`wait`](Transport::wait) blocks.
pub trait Transport {
    /// Sends packet `sequence`; returns the time read right before the system call
    /// [CLOCK_REALTIME ns].
    fn transmit(&mut self, sequence: u64) -> io::Result<i64>;

    /// An answer, if there is one; answers to warm-up packets have [`WARMUP_BIT`].
    fn receive(&mut self) -> io::Result<Option<Arrival>>;

    /// A kernel transmit stamp, if there is one: sequence number and time [CLOCK_REALTIME ns].
    fn departed(&mut self) -> Option<(u64, i64)> {
        None
    }

    /// Announces that a packet is sent within microseconds (`true`), or not for a while.
    fn attend(&mut self, _soon: bool) {}

    /// Sleeps until an answer may be there or the interface fails, at most `timeout_ns`.
    fn wait(&mut self, timeout_ns: i64) -> io::Result<()>;

    /// Why nothing can be sent or received any more.
    fn ended(&mut self) -> Option<Error>;

    /// Fails when the network reported that the target cannot be reached.
    fn refused(&mut self) -> Result<()> {
        Ok(())
    }

    /// Answers that were dropped for want of receive buffer.
    fn dropped(&mut self) -> u64 {
        0
    }
}

/// Warms the path up: sends packets, one every `interval_ns`, until one is answered, then a few more.
/// Returns whether one was answered within `patience_ns`.
///
/// # Errors
/// The target cannot be reached, or a signal ended the waiting.
pub fn warm_up(transport: &mut dyn Transport, interval_ns: i64, patience_ns: i64) -> Result<bool> {
    let begin = clock::monotonic_ns();
    let (mut number, mut next, mut first_ns) = (0, begin, 0);
    while first_ns == 0 {
        let now = clock::monotonic_ns();
        if stop::requested() {
            return Err(Error::failed("interrupted before the first answer", ""));
        }
        if now - begin > patience_ns {
            return Ok(false);
        }
        if now >= next {
            let _ = transport.transmit(WARMUP_BIT | number);
            number += 1;
            next = now.saturating_add(interval_ns);
        }
        match transport.receive() {
            Ok(Some(_)) => first_ns = clock::monotonic_ns() - (next - interval_ns),
            Ok(None) => drop(transport.wait((next - now).min(INTERVAL_NS))),
            Err(error) => {
                if let Some(ended) = transport.ended() {
                    return Err(ended);
                }
                return Err(Error::failed("cannot receive", "").caused_by(error));
            }
        }
        transport.refused()?;
    }
    let wait_ns = INTERVAL_NS.max(SLOWDOWN * first_ns);
    for _ in 0..ROUNDS {
        number += 1;
        let end = clock::monotonic_ns() + wait_ns;
        if transport.transmit(WARMUP_BIT | number).is_ok() {
            while clock::monotonic_ns() < end && !stop::requested() {
                if matches!(transport.receive(), Ok(Some(_))) {
                    break;
                }
            }
        }
        // The kernel takes some milliseconds to switch receive stamps on.
        clock::sleep_until(clock::monotonic_ns() + 2_000_000);
    }
    while transport.departed().is_some() {}
    Ok(true)
}

/// What to send.
#[derive(Debug, Clone, Copy)]
pub struct ProbeOrder {
    /// When each packet is due.
    pub schedule: Schedule,
    /// How many packets.
    pub count: u64,
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
    /// Steps of the wall clock.
    pub clock_steps: Vec<ClockStep>,
    /// CLOCK_REALTIME of the schedule's start [ns].
    pub start_ns: i64,
    /// From the schedule's start to the end of waiting [ns].
    pub elapsed_ns: i64,
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
    burst_ends_ns: Vec<i64>,
    refused: BTreeMap<String, u64>,
    failure: Option<Error>,
}

/// Runs `order` over `transport` until it is done or a signal comes.
pub fn run(transport: &mut dyn Transport, order: ProbeOrder) -> SessionOutcome {
    let records = Records::with_capacity(order.count);
    // Locks the present pages in memory, where that is allowed.
    let _ = mlockall(MlockAllFlags::MCL_CURRENT);
    clock::tighten_timers();
    let watch = ClockWatch::start();
    let start = clock::monotonic_ns() + LEAD_NS;
    let start_ns = clock::realtime_offset().0 + start;
    let mut session = Session {
        transport,
        records,
        burst_ends_ns: Vec::new(),
        refused: BTreeMap::new(),
        failure: None,
    };
    session.send_all(order, start);
    session.wait_for_answers(order.timeout_ns);
    session.collect_stamps();
    SessionOutcome {
        records: session.records,
        clock_steps: watch.steps(),
        start_ns,
        elapsed_ns: clock::monotonic_ns() - start,
        burst_ends_ns: session.burst_ends_ns,
        refused: session.refused,
        failure: session.failure,
    }
}

impl Session<'_> {
    fn is_over(&self) -> bool {
        self.failure.is_some() || stop::requested()
    }

    /// Sends every packet at its time.
    fn send_all(&mut self, order: ProbeOrder, start: i64) {
        let burst = order.schedule.burst;
        let end = order.deadline_ns.map_or(i64::MAX, |deadline_ns| start + deadline_ns);
        let mut last_tx = start;
        for sequence in 0..order.count {
            let due = start + order.schedule.due_ns(sequence);
            let now = self.wait_until_due(due, last_tx);
            if now >= end || self.is_over() {
                return;
            }
            let sent = self.transport.transmit(sequence);
            // Read before anything else: on a short path the answer is there already.
            let answer = self.transport.receive();
            last_tx = now;
            match sent {
                Ok(user_tx_ns) => self.records.sent(user_tx_ns),
                Err(error) => self.not_sent(&error),
            }
            if burst > 1 && (sequence + 1).is_multiple_of(burst) {
                self.burst_ends_ns.push(clock::realtime_ns());
            }
            self.note(answer);
        }
    }

    /// Collects answers and stamps until `due`, a failure or a signal; returns the time.
    #[inline]
    fn wait_until_due(&mut self, due: i64, last_tx: i64) -> i64 {
        loop {
            let now = clock::monotonic_ns();
            let slack = due - now;
            if slack <= 0 || self.is_over() {
                return now;
            }
            let answer = self.transport.receive();
            if self.note(answer) {
                continue;
            }
            self.collect_stamps();
            let polling = self.records.outstanding() > 0 && now - last_tx < ANSWER_SPIN_NS;
            if polling || slack <= SPIN_NS {
                self.transport.attend(true);
                std::hint::spin_loop();
            } else {
                let soon = slack <= ATTENTION_NS;
                self.transport.attend(soon);
                let until = if soon { SPIN_NS } else { ATTENTION_NS };
                self.sleep((slack - until).min(INTERVAL_NS));
            }
        }
    }

    /// Waits for outstanding answers.
    fn wait_for_answers(&mut self, timeout_ns: i64) {
        let begin = clock::monotonic_ns();
        while !self.is_over() {
            let answer = self.transport.receive();
            if self.note(answer) {
                continue;
            }
            self.collect_stamps();
            let now = clock::monotonic_ns();
            // A duplicate of the last answer may still come.
            let outstanding = self.records.outstanding() > 0;
            let end = begin + if outstanding { timeout_ns } else { timeout_ns.min(ANSWER_SPIN_NS) };
            if now >= end {
                return;
            }
            if now - begin > ANSWER_SPIN_NS {
                self.sleep((end - now).min(INTERVAL_NS));
            }
        }
    }

    fn sleep(&mut self, timeout_ns: i64) {
        if let Err(error) = self.transport.wait(timeout_ns) {
            self.fail_if_ended(&error);
        }
    }

    fn collect_stamps(&mut self) {
        while let Some((sequence, kernel_tx_ns)) = self.transport.departed() {
            self.records.stamped(sequence, kernel_tx_ns);
        }
    }

    /// Notes an answer; returns whether there was one.
    #[inline]
    fn note(&mut self, answer: io::Result<Option<Arrival>>) -> bool {
        match answer {
            Ok(None) => false,
            Ok(Some(arrival)) => {
                if arrival.sequence & WARMUP_BIT == 0 {
                    self.records.arrived(arrival);
                }
                true
            }
            Err(error) => {
                self.fail_if_ended(&error);
                false
            }
        }
    }

    fn not_sent(&mut self, error: &io::Error) {
        self.records.sent(MISSING);
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
        if self.failure.is_none()
            && let Some(mut ended) = self.transport.ended()
        {
            let packets = self.records.as_slice().len();
            ended.what = format!("{} after {packets} packets ({error})", ended.what);
            self.failure = Some(ended);
        }
    }
}
