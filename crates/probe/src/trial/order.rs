//! The interfaces of generators and sinks. AF_PACKET is in packet.rs, the programs inside the kernel are
//! in kernel/.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::account::Counted;
pub use super::account::Expectation;
use crate::capture::RingStats;
use crate::clock::Schedule;
use crate::error::{Error, Result};
use crate::histogram::LatencyRecorder;

/// The frames to send.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// Sequence number of the first frame.
    pub first_sequence: u64,
    /// Number of frames.
    pub count: u64,
    /// When each is due after the start.
    pub schedule: Schedule,
    /// The treatment of frames that the sending interface has no room for.
    pub refusals: Refusals,
}

/// The treatment of a frame that the sending interface drops for lack of room.
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

/// The result of a generator.
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
    /// The error that ended it early.
    pub error: Option<Error>,
}

impl Generated {
    /// Frames per second.
    pub fn achieved_pps(&self) -> f64 {
        self.sent as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }
}

/// How long after the schedule's end a generator that is behind may go on sending [ns].
pub const GRACE_NS: i64 = 100_000_000;

/// The mask by which the kernel's programs time every frame, or one of sixteen at high rates, where
/// reading the clock costs as much as the frame.
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

    /// Whether it can send a refused frame again, for which it has to know which frame that was.
    fn sends_again(&self) -> bool {
        false
    }

    /// Sends the frame `sequence` at once; returns how many frames left, 0 or 1.
    ///
    /// # Errors
    /// The interface vanished, is down, or cannot take the frame.
    fn send_one(&mut self, sequence: u64) -> Result<u64>;

    /// Carries out `order` at once, on the CPU that it was opened for. `sent` counts the frames for other
    /// threads. The result has an error beside the frames until then.
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

    /// Frames that reached the sink, and those of them that it dropped for lack of room.
    fn stats(&mut self) -> RingStats;

    /// The account.
    fn counted(&self) -> Counted;
}
