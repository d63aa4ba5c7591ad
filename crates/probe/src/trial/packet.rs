//! Generator and sink in user space, on AF_PACKET: for any user in a namespace of his own, and any
//! interface.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::account::{Account, Counted};
use super::order::{Expectation, GRACE_NS, Generated, Generator, Order, Refusals, Sink};
use crate::affinity;
use crate::capture::{self, Ring, RingStats};
use crate::clock::{self, NANOS_PER_SECOND};
use crate::error::{Error, Result};
use crate::filter::{self, SNAP_BYTES, Traffic};
use crate::frame::{self, Template};
use crate::netlink::{Netlink, must_be_up};
use crate::netns::IfSpec;
use crate::sockets::set_option;
use crate::stop;

/// The backend's name in results.
pub const AF_PACKET: &str = "af_packet";

/// The result of a batch.
pub struct Sent {
    /// Frames that are not sent again, from the first on: sent, or refused and lost.
    pub frames: u64,
    /// Frames that the interface dropped for lack of room.
    pub refused: u64,
}

/// Sends with sendmmsg, past the queueing discipline. Captures on the sending interface do not
/// see its frames.
#[derive(Debug)]
pub struct PacketGenerator {
    template: Template,
    cpu: Option<usize>,
    socket: OwnedFd,
    buffers: Vec<u8>,
    /// Point into `iovecs`, which point into `buffers`; neither vector changes its length.
    messages: Vec<libc::mmsghdr>,
    #[expect(dead_code, reason = "kept alive for `messages`")]
    iovecs: Vec<libc::iovec>,
    label: String,
}

// SAFETY: the raw pointers point into vectors that this value owns and moves along with.
unsafe impl Send for PacketGenerator {}

impl PacketGenerator {
    /// Opens the generator on an interface of the calling thread's namespace. `label` is the user's
    /// name for it.
    ///
    /// # Errors
    /// There is no such interface, it is down, or the user may not send frames.
    pub fn open(
        interface: &str,
        label: &dyn std::fmt::Display,
        template: &Template,
        batch: u16,
        cpu: Option<usize>,
    ) -> Result<Self> {
        let link = Netlink::open()?.link_at(interface, label)?;
        must_be_up(&link, label)?;
        let failed = |error: std::io::Error| {
            Error::failed(format!("cannot send frames on {label}"), "").caused_by(error)
        };
        let socket = capture::packet_socket()?;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1).map_err(failed)?;
        // Room for several batches that a NIC has not sent yet.
        let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 4 << 20);
        // Protocol 0: this socket receives nothing.
        capture::bind_packet_socket(&socket, link.index, 0).map_err(failed)?;
        let (bytes, batch) = (template.bytes(), usize::from(batch));
        let mut buffers = bytes.repeat(batch);
        let base = buffers.as_mut_ptr();
        let mut iovecs: Vec<libc::iovec> = (0..batch)
            .map(|index| libc::iovec {
                // SAFETY: `buffers` holds `batch` frames of the template's length.
                iov_base: unsafe { base.add(index * bytes.len()) }.cast(),
                iov_len: bytes.len(),
            })
            .collect();
        let messages = iovecs
            .iter_mut()
            .map(|iovec| {
                // SAFETY: an all-zero mmsghdr is valid: no address, no control data.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                message.msg_hdr.msg_iov = iovec;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        let (template, label) = (template.clone(), label.to_string());
        Ok(Self { template, cpu, socket, buffers, messages, iovecs, label })
    }

    /// Stamps and sends `count` frames from `sequence` on.
    fn send(&mut self, sequence: u64, count: usize, refusals: Refusals) -> Result<Sent> {
        let sent = |accepted: usize, refused: bool| {
            let lost = refused && refusals == Refusals::Lost;
            Sent { frames: accepted as u64 + u64::from(lost), refused: u64::from(refused) }
        };
        let tx_ns = clock::realtime_ns();
        let frames = self.buffers.chunks_exact_mut(self.template.frame_bytes()).take(count);
        for (index, frame) in frames.enumerate() {
            self.template.stamp(frame, sequence + index as u64, tx_ns);
        }
        let count = count.min(self.messages.len());
        // SAFETY: `messages` holds at least `count` headers whose pointers lead into vectors that
        // this value owns.
        let accepted = unsafe {
            libc::sendmmsg(self.socket.as_raw_fd(), self.messages.as_mut_ptr(), count as u32, 0)
        };
        if accepted >= 0 {
            // sendmmsg returns the error of a first message only: a later refusal ends the batch early.
            return Ok(sent(accepted as usize, (accepted as usize) < count));
        }
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            // The socket's own buffer is full: the frame did not reach the interface.
            Some(libc::EINTR | libc::EAGAIN) => Ok(sent(0, false)),
            Some(libc::ENOBUFS) => Ok(sent(0, true)),
            _ => Err(self.error(error)),
        }
    }

    fn error(&self, error: std::io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ENXIO | libc::ENODEV) => Error::failed(
                format!("the interface {} vanished while frames were sent", self.label),
                "find out what removes it (`ip monitor link`), then measure again",
            ),
            Some(libc::ENETDOWN) => down_or_gone(&self.label),
            Some(libc::EMSGSIZE) => Error::bad_input(
                format!(
                    "frames of {} bytes (with FCS) exceed the MTU of {}",
                    self.template.frame_bytes() + crate::wire::FCS_BYTES,
                    self.label
                ),
                "give a smaller --size or raise the MTU: ip link set IF mtu N",
            ),
            _ => {
                Error::failed(format!("cannot send frames on {}", self.label), "").caused_by(error)
            }
        }
    }
}

/// The error for an interface that vanished or was set down.
pub fn down_or_gone(label: &str) -> Error {
    Error::failed(
        format!("the interface {label} vanished or was set down during the trial"),
        "find out what changes it (`ip monitor link`), then measure again",
    )
}

impl Generator for PacketGenerator {
    fn backend(&self) -> &'static str {
        AF_PACKET
    }

    fn batch(&self) -> u16 {
        self.messages.len() as u16
    }

    fn sends_again(&self) -> bool {
        true
    }

    fn send_one(&mut self, sequence: u64) -> Result<u64> {
        Ok(self.send(sequence, 1, Refusals::SentAgain)?.frames)
    }

    fn run(&mut self, order: &Order, sent_so_far: &AtomicU64) -> Generated {
        let (cpu, batch) = (self.cpu, self.batch());
        paced(order, sent_so_far, (cpu, batch), |sequence, count| {
            self.send(sequence, count, order.refusals)
        })
    }
}

/// Carries out an order in user space by `send`, which takes a sequence number and a number of frames.
/// Sends overdue frames in batches, so that the rate over the whole trial is kept if possible.
pub fn paced(
    order: &Order,
    sent_so_far: &AtomicU64,
    (cpu, batch): (Option<usize>, u16),
    mut send: impl FnMut(u64, usize) -> Result<Sent>,
) -> Generated {
    let mut result = Generated::default();
    if let Err(error) = affinity::pin(cpu) {
        result.error = Some(error);
        return result;
    }
    // Time for the sink's thread to start.
    let start_ns = clock::monotonic_ns() + 2_000_000;
    let due_ns = |index: u64| start_ns + order.schedule.due_ns(index);
    let end_ns = due_ns(order.count);
    let burst = order.schedule.burst;
    // Lateness of this burst's first frame, which the others keep: no burst is shortened.
    let mut late_ns = 0;
    let mut now = clock::wait_until(start_ns);
    while result.sent < order.count && now < end_ns + GRACE_NS && !stop::requested() {
        let first = result.sent;
        if burst > 1 && first.is_multiple_of(burst) {
            late_ns = (now - due_ns(first)).max(0);
        }
        if due_ns(first) + late_ns > now {
            now = clock::wait_until((due_ns(first) + late_ns).min(now + NANOS_PER_SECOND / 10));
            continue;
        }
        let mut most = u64::from(batch).min(order.count - first);
        if burst > 1 {
            most = most.min(burst - first % burst);
        }
        let due = (1..most).find(|&more| due_ns(first + more) + late_ns > now).unwrap_or(most);
        match send(order.first_sequence + first, due as usize) {
            Ok(sent) => {
                result.refused += sent.refused;
                result.sent += sent.frames;
                for index in first..result.sent {
                    result.slip.record((now - due_ns(index)).max(0));
                }
                sent_so_far.store(result.sent, Ordering::Relaxed);
            }
            Err(error) => {
                result.error = Some(error);
                break;
            }
        }
        now = clock::monotonic_ns();
    }
    // A schedule that was kept lasts one period beyond its last frame.
    let complete = result.sent == order.count;
    result.elapsed_ns = if complete { now.max(end_ns) } else { now } - start_ns;
    result
}

/// Counts the frames of a capture ring.
#[derive(Debug)]
pub struct RingSink {
    ring: Ring,
    port: u16,
    account: Account,
}

impl RingSink {
    /// Opens the sink on `rx` with a ring of `ring_mib` MiB.
    ///
    /// # Errors
    /// There is no such interface, or the user may not capture.
    pub fn open(rx: &IfSpec, expected: &Expectation, ring_mib: u32) -> Result<Self> {
        let filter = filter::program(Traffic::Udp(expected.port), SNAP_BYTES);
        let ring = Ring::open(rx, &filter, ring_mib, true)?;
        Ok(Self { ring, port: expected.port, account: Account::new(expected) })
    }
}

impl Sink for RingSink {
    fn backend(&self) -> &'static str {
        AF_PACKET
    }

    fn poll(&mut self, timeout: Duration) -> Result<u64> {
        let (account, port) = (&mut self.account, &self.port);
        self.ring.poll(timeout, |captured| {
            if let Some(stamped) = frame::read(captured.network)
                && stamped.destination_port == *port
            {
                account.record(stamped, captured.stamp_ns);
            }
        })
    }

    fn arrived(&self) -> u64 {
        self.account.counted.arrived()
    }

    fn warmed_up(&self) -> u64 {
        self.account.counted.warmup
    }

    fn stats(&mut self) -> RingStats {
        self.ring.stats()
    }

    fn counted(&self) -> Counted {
        self.account.counted.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Schedule;

    #[test]
    fn a_burst_that_begins_late_is_as_long_as_another() {
        const GAP_NS: i64 = 200_000;
        let order = Order {
            first_sequence: 0,
            count: 10,
            schedule: Schedule::bursts(5, 1e9 / GAP_NS as f64, Duration::from_millis(5)),
            refusals: Refusals::Lost,
        };
        let (mut left_ns, mut late_ns) = (Vec::new(), 0);
        let sent = paced(&order, &AtomicU64::new(0), (None, 64), |sequence, count| {
            left_ns.extend(std::iter::repeat_n(clock::monotonic_ns(), count));
            if sequence == 4 {
                // Well into the second burst, which is due 5 ms after the first.
                clock::sleep_until(clock::monotonic_ns() + 6_000_000);
                late_ns = clock::monotonic_ns();
            }
            Ok(Sent { frames: count as u64, refused: 0 })
        });
        assert_eq!((sent.sent, left_ns.len()), (10, 10));
        // The second burst begins after that; how much later its first packet leaves is not known.
        assert!(left_ns[9] >= late_ns + 4 * GAP_NS, "{late_ns}: {left_ns:?}");
    }
}
