//! What a trial asks of a generator and of a sink. Knows neither of them: AF_PACKET is in
//! packet.rs, the programs inside the kernel are in kernel/.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::account::Counted;
pub use super::account::Expectation;
use crate::capture::RingStats;
use crate::clock::Schedule;
use crate::error::{Error, Result};
use crate::histogram::LatencyRecorder;

/// Frames to send: which, how many, when.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// Sequence number of the first frame.
    pub first_sequence: u64,
    /// Number of frames.
    pub count: u64,
    /// When each is due after the start.
    pub schedule: Schedule,
    /// What becomes of frames that the sending interface has no room for.
    pub refusals: Refusals,
}

/// What becomes of a frame that the sending interface drops for lack of room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Refusals {
    /// It is lost: a virtual interface hands frames on at once, so that what has no room is what
    /// lies behind it. Sending it again would close the loop.
    Lost,
    /// It is sent again: a physical interface has no room while it sends at line rate, which is
    /// the generator's limit.
    #[value(name = "again")]
    SentAgain,
}

/// What the generator did.
#[derive(Debug, Default)]
pub struct Generated {
    /// Frames that the kernel took.
    pub sent: u64,
    /// Frames that the interface dropped for lack of room.
    pub refused: u64,
    /// Frames that the kernel lost on their way to the interface, where no interface counts them,
    /// and the tracepoint that shows them.
    pub lost_before_interface: (u64, &'static str),
    /// From the first frame's due time to the end of sending [ns].
    pub elapsed_ns: i64,
    /// How much later than scheduled the frames were stamped and handed over [ns].
    pub slip: LatencyRecorder,
    /// How much later than scheduled frames left by the interface [ns]; empty where it is not
    /// measured.
    pub departure: LatencyRecorder,
    /// What broke it off.
    pub error: Option<Error>,
}

impl Generated {
    /// Frames per second.
    pub fn achieved_pps(&self) -> f64 {
        self.sent as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }
}

/// After the schedule's end a generator that is behind may go on for this long [ns]; what it has
/// not sent then it never sends.
pub const GRACE_NS: i64 = 100_000_000;

/// Of how many frames, less 1, the kernel's programs time one: of all while that costs nothing, of
/// sixteen at high rates, where reading the clock costs as much as the frame.
pub fn sample_mask(mean_pps: f64) -> u32 {
    if mean_pps > 200_000.0 { 15 } else { 0 }
}

/// Sends frames on schedule by one interface, open loop: frame `i` is sent when it is due, or as
/// soon after as the generator can.
pub trait Generator: Send {
    /// Its name in results.
    fn backend(&self) -> &'static str;

    /// Most frames that leave together.
    fn batch(&self) -> u16;

    /// Whether it can send again what the interface refuses: it has to know which frame that was.
    fn sends_again(&self) -> bool {
        false
    }

    /// Sends the frame `sequence` at once; returns how many frames left, 0 or 1.
    ///
    /// # Errors
    /// The interface vanished, is down, or cannot take the frame.
    fn send_one(&mut self, sequence: u64) -> Result<u64>;

    /// Carries out `order` as soon as it can, on the CPU that it was opened for. `sent` is the number of
    /// frames so far, for other threads to read. Errors are in the result, beside what was done until then.
    fn run(&mut self, order: &Order, sent: &AtomicU64) -> Generated;
}

/// Accounts for frames that arrive at one interface.
pub trait Sink {
    /// Its name in results.
    fn backend(&self) -> &'static str;

    /// Counts what arrives for up to `timeout`; returns the number of frames since the last call.
    ///
    /// # Errors
    /// The interface vanished or is down.
    fn poll(&mut self, timeout: Duration) -> Result<u64>;

    /// Frames of the trial that have arrived, in time or late.
    fn arrived(&self) -> u64;

    /// Warm-up frames that have arrived.
    fn warmed_up(&self) -> u64;

    /// Frames that the sink saw, and those that it had no room for.
    fn stats(&mut self) -> RingStats;

    /// The account.
    fn counted(&self) -> Counted;
}
