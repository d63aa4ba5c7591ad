//! How frames get out and in: the two traits a backend implements, and the one backend there is,
//! AF_PACKET. Knows nothing of rates and sequence numbers.
//!
//! A faster backend (AF_XDP, BPF_PROG_RUN) owns its buffers as this one does, lets `fill` write
//! into them, and is chosen where [`open`](AfPacketTx::open) is called now.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use crate::capture::{self, Captured, Ring, RingStats};
use crate::error::{Error, Result};
use crate::netlink::Netlink;

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Frames that the kernel took, from the first on.
    pub accepted: usize,
    /// Whether the interface dropped the frame after them for lack of room.
    pub refused: bool,
}

/// Sends frames.
pub trait Transmitter {
    /// How many frames one call of [`send`](Self::send) takes at most.
    fn batch(&self) -> usize;

    /// Lets `fill` stamp `count` frames (at most [`batch`](Self::batch)), each a copy of the
    /// template in the backend's own buffer, and hands them over in order.
    ///
    /// # Errors
    /// The interface vanished, is down, or cannot take a frame of this size.
    fn send(&mut self, count: usize, fill: &mut dyn FnMut(usize, &mut [u8])) -> Result<Sent>;
}

/// Receives frames.
pub trait Receiver {
    /// Waits up to `timeout`, gives each frame to `each`, returns how many there were.
    ///
    /// # Errors
    /// The interface vanished or is down.
    fn poll(&mut self, timeout: Duration, each: &mut dyn FnMut(Captured<'_>)) -> Result<u64>;

    /// What the backend itself counted: frames, and those it had no room for.
    fn stats(&mut self) -> RingStats;
}

impl Receiver for Ring {
    fn poll(&mut self, timeout: Duration, each: &mut dyn FnMut(Captured<'_>)) -> Result<u64> {
        Ring::poll(self, timeout, each)
    }

    fn stats(&mut self) -> RingStats {
        Ring::stats(self)
    }
}

/// AF_PACKET with sendmmsg, past the queueing discipline. Captures on the sending interface do not
/// see its frames.
#[derive(Debug)]
pub struct AfPacketTx {
    socket: OwnedFd,
    buffers: Vec<u8>,
    frame_bytes: usize,
    /// Point into `iovecs`, which point into `buffers`; neither vector changes its length.
    messages: Vec<libc::mmsghdr>,
    #[expect(dead_code, reason = "kept alive for `messages`")]
    iovecs: Vec<libc::iovec>,
    place: String,
}

// SAFETY: the raw pointers point into vectors that this value owns and moves along with.
unsafe impl Send for AfPacketTx {}

impl AfPacketTx {
    /// Opens the backend on an interface of the calling thread's namespace. `place` is what the
    /// user calls it.
    pub fn open(
        interface: &str,
        place: &dyn std::fmt::Display,
        template: &[u8],
        batch: usize,
    ) -> Result<Self> {
        let link = Netlink::open()?.link_at(interface, place)?;
        if !link.up {
            return Err(Error::failed(
                format!("the interface {place} is down"),
                format!("set it up: ip link set {interface} up"),
            ));
        }
        let failed = |error: std::io::Error| {
            Error::failed(format!("cannot send frames on {place}: {error}"), "")
        };
        let socket = capture::packet_socket()?;
        let one: libc::c_int = 1;
        capture::set_option(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &one)
            .map_err(failed)?;
        // Room for several batches that a NIC has not sent yet.
        let room: libc::c_int = 4 << 20;
        let _ = capture::set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &room);
        // Protocol 0: this socket receives nothing.
        capture::bind_packet_socket(&socket, link.index, 0).map_err(failed)?;
        let mut buffers = template.repeat(batch);
        let base = buffers.as_mut_ptr();
        let mut iovecs: Vec<libc::iovec> = (0..batch)
            .map(|index| libc::iovec {
                // SAFETY: `buffers` holds `batch` frames of the template's length.
                iov_base: unsafe { base.add(index * template.len()) }.cast(),
                iov_len: template.len(),
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
        Ok(Self {
            socket,
            buffers,
            frame_bytes: template.len(),
            messages,
            iovecs,
            place: place.to_string(),
        })
    }

    fn error(&self, error: &std::io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ENXIO | libc::ENODEV) => Error::failed(
                format!("the interface {} vanished while frames were sent", self.place),
                "look who removes it (`ip monitor link`), then measure again",
            ),
            Some(libc::ENETDOWN) => Error::failed(
                format!("the interface {} vanished or was set down during the trial", self.place),
                "look who changes it (`ip monitor link`), then measure again",
            ),
            Some(libc::EMSGSIZE) => Error::bad_input(
                format!(
                    "frames of {} bytes (with FCS) exceed the MTU of {}",
                    self.frame_bytes + crate::frame::FCS_BYTES,
                    self.place
                ),
                "give a smaller --size or raise the MTU: ip link set IF mtu N",
            ),
            _ => Error::failed(format!("cannot send frames on {}: {error}", self.place), ""),
        }
    }
}

impl Transmitter for AfPacketTx {
    fn batch(&self) -> usize {
        self.messages.len()
    }

    fn send(&mut self, count: usize, fill: &mut dyn FnMut(usize, &mut [u8])) -> Result<Sent> {
        let count = count.min(self.messages.len());
        let frames = self.buffers.chunks_exact_mut(self.frame_bytes).take(count);
        frames.enumerate().for_each(|(index, frame)| fill(index, frame));
        // SAFETY: `messages` holds at least `count` headers whose pointers lead into vectors that
        // this value owns.
        let accepted = unsafe {
            libc::sendmmsg(self.socket.as_raw_fd(), self.messages.as_mut_ptr(), count as u32, 0)
        };
        if accepted >= 0 {
            // sendmmsg tells the error of a first message only: a frame refused later ends the
            // batch early.
            let accepted = accepted as usize;
            return Ok(Sent { accepted, refused: accepted < count });
        }
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            // The socket's own buffer is full: no interface has seen the frame.
            Some(libc::EINTR | libc::EAGAIN) => Ok(Sent { accepted: 0, refused: false }),
            Some(libc::ENOBUFS) => Ok(Sent { accepted: 0, refused: true }),
            _ => Err(self.error(&error)),
        }
    }
}
