//! How probes get out and answers in: the seam between the schedule and the kernel. Faster ways
//! (AF_XDP, a NIC's own) implement [`Transport`].

use std::io;

use super::record::Arrival;
use crate::error::Error;
use crate::wire::WARMUP_BIT;

/// A way to send probes and to receive their answers. Nothing here blocks but [`wait`].
///
/// [`wait`]: Transport::wait
pub trait Transport {
    /// Puts packet `sequence` together, ahead of its time.
    fn prepare(&mut self, sequence: u64);

    /// Walks the way of [`transmit`] as far as it goes without sending anything, so that it is in
    /// the caches when it counts.
    ///
    /// [`transmit`]: Transport::transmit
    fn rehearse(&mut self) {}

    /// A packet will be sent within microseconds (`true`), or not for a while.
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
    /// read right before the call and how many the kernel took. An error means that it took none.
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

    /// Sleeps until an answer may be there, at most `timeout_ns`. An error of the interface ends
    /// it.
    fn wait(&mut self, timeout_ns: i64) -> io::Result<()>;

    /// Whether the interface that the probes leave by still exists; its name.
    fn interface(&self) -> (String, bool);

    /// Why nothing can be sent or received any more, said once.
    fn ended(&mut self) -> Option<Error> {
        None
    }

    /// Answers that this end received and had no room for.
    fn dropped(&mut self) -> u64;

    /// The way, in a word: `packet`, `raw`, `ping`, `udp` or `tcp`.
    fn name(&self) -> &'static str;
}

/// [`Transport::interface`] of one that is known by its name, or not known.
pub fn named(interface: Option<&str>) -> (String, bool) {
    let name = interface.unwrap_or_default();
    (name.to_owned(), name.is_empty() || nix::net::if_::if_nametoindex(name).is_ok())
}

/// Which transmit stamp belongs to which packet.
///
/// The kernel counts a socket's packets from when stamps were enabled. A packet that it refused
/// may have been counted or not: after one the count must be restarted.
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

    /// Notes that the kernel refused a packet, which it may or may not have counted.
    pub fn refused(&mut self) {
        self.restart = true;
    }

    /// Notes that a packet was sent.
    #[inline]
    pub fn sent(&mut self) {
        self.sent += 1;
    }

    /// The packet that the kernel's count `id` means; none when it was never sent.
    #[inline]
    pub fn sequence(&mut self, id: u32) -> Option<u64> {
        self.stamped += 1;
        // The count has 32 bits: of the possible numbers the latest is meant.
        let last = self.sent.checked_sub(1)?;
        let back = (last as u32).wrapping_sub(id);
        last.checked_sub(u64::from(back)).map(|place| self.first.wrapping_add(place))
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
