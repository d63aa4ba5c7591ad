//! The interface between the schedule and the kernel: a [`Transport`] sends probes and receives their
//! answers.

use std::io;

use super::record::Arrival;
use crate::error::Error;
use crate::wire::WARMUP_BIT;

/// Sends probes and receives their answers. Only [`wait`] blocks.
///
/// [`wait`]: Transport::wait
pub trait Transport {
    /// Builds packet `sequence` ahead of its time.
    fn prepare(&mut self, sequence: u64);

    /// Runs the code path of [`transmit`] without sending a packet, so that it stays in the caches.
    ///
    /// [`transmit`]: Transport::transmit
    fn rehearse(&mut self) {}

    /// Announces that a packet is sent within microseconds (`true`), or not for a while.
    fn attend(&mut self, _soon: bool) {}

    /// Sends the prepared packet; returns the time read right before the system call
    /// [CLOCK_REALTIME ns].
    fn transmit(&mut self) -> io::Result<i64>;

    /// How many packets [`transmit_batch`] takes at most.
    ///
    /// [`transmit_batch`]: Transport::transmit_batch
    fn batch(&self) -> usize {
        1
    }

    /// Sends `count` packets from `first` on in one system call, prepared or not; returns the time
    /// read right before the call and how many the kernel took; an error: none.
    fn transmit_batch(&mut self, first: u64, _count: usize) -> io::Result<(i64, usize)> {
        self.prepare(first);
        self.transmit().map(|user_tx_ns| (user_tx_ns, 1))
    }

    /// An answer, if there is one; answers to warm-up packets have [`WARMUP_BIT`].
    fn receive(&mut self) -> io::Result<Option<Arrival>>;

    /// A kernel transmit stamp, if there is one: sequence number and time [CLOCK_REALTIME ns].
    fn transmit_stamp(&mut self) -> Option<(u64, i64)>;

    /// Whether transmit stamps may still come.
    fn stamps_pending(&self) -> bool;

    /// Sleeps until an answer may be there or the interface fails, at most `timeout_ns`.
    fn wait(&mut self, timeout_ns: i64) -> io::Result<()>;

    /// Name of the output interface, and whether it still exists.
    fn interface(&self) -> (String, bool);

    /// The error after which nothing can be sent or received any more; returned once.
    fn ended(&mut self) -> Option<Error> {
        None
    }

    /// Answers that were dropped for want of receive buffer.
    fn dropped(&mut self) -> u64;

    /// Its name in results: `packet`, `raw`, `ping`, `udp` or `tcp`.
    fn name(&self) -> &'static str;
}

/// [`Transport::interface`] for an interface that is known by name, or not at all.
pub fn named(interface: Option<&str>) -> (String, bool) {
    let name = interface.unwrap_or_default();
    (name.to_owned(), name.is_empty() || nix::net::if_::if_nametoindex(name).is_ok())
}

/// Matches transmit stamps to packets.
///
/// The kernel counts a socket's packets from when stamps were enabled. A packet that it refused may
/// or may not be counted: the count must be restarted then.
#[derive(Debug)]
pub struct StampCount {
    first: u64,
    sent: u64,
    stamped: u64,
    restart: bool,
}

impl StampCount {
    /// Before the first packet: stamps must be enabled.
    pub fn new() -> Self {
        Self { first: 0, sent: 0, stamped: 0, restart: true }
    }

    /// Notes that stamps were enabled anew and that `sequence` comes next.
    pub fn restarted(&mut self, sequence: u64) {
        *self = Self { first: sequence, sent: 0, stamped: 0, restart: false };
    }

    /// Whether stamps must be enabled anew before `sequence` is sent.
    #[inline]
    pub fn must_restart(&self, sequence: u64) -> bool {
        self.restart || sequence != self.first.wrapping_add(self.sent)
    }

    /// Notes that the kernel refused a packet.
    pub fn refused(&mut self) {
        self.restart = true;
    }

    /// Notes that a packet was sent.
    #[inline]
    pub fn sent(&mut self) {
        self.sent += 1;
    }

    /// The sequence number of the kernel's count `id`; none when no such packet was sent.
    #[inline]
    pub fn sequence(&mut self, id: u32) -> Option<u64> {
        self.stamped += 1;
        // The count has 32 bits: the latest packet with these bits.
        let last = self.sent.checked_sub(1)?;
        let back = (last as u32).wrapping_sub(id);
        last.checked_sub(u64::from(back)).map(|index| self.first.wrapping_add(index))
    }

    /// Whether stamps are still to come.
    #[inline]
    pub fn pending(&self) -> bool {
        self.stamped < self.sent
    }
}

/// Whether a sequence number is that of a warm-up packet.
#[inline]
pub fn is_warmup(sequence: u64) -> bool {
    sequence & WARMUP_BIT != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamps_count_leads_to_its_packet_even_when_it_wraps() {
        let mut count = StampCount::new();
        count.restarted(1_000);
        assert_eq!(count.sequence(0), None, "nothing was sent");
        assert!(!count.must_restart(1_000));
        assert!(count.must_restart(0), "not the packet that the count expects");
        count.sent = 5;
        assert_eq!(count.sequence(0), Some(1_000));
        assert_eq!(count.sequence(4), Some(1_004));
        assert_eq!(count.sequence(5), None, "not yet sent");
        count.sent = (1 << 32) + 2;
        assert_eq!(count.sequence(1), Some(1_000 + (1 << 32) + 1));
        assert_eq!(count.sequence(u32::MAX), Some(1_000 + (1 << 32) - 1));
    }
}
