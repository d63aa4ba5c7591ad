//! Probes as whole frames: sent by a packet socket, answers read from a ring in memory shared with
//! the kernel. The shortest way between user and wire: user stamps lie closest to the kernel's.
//!
//! The same ring captures the probes as they leave, which gives their kernel transmit stamps: taken
//! as by any capture, when the stack hands the frame to the driver.
//!
//! The headers are copied from a probe that the kernel itself sent while warming up: addresses, next
//! hop, hop limit and traffic class are the kernel's choice.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::sys::socket::{MsgFlags, send};

use super::departure::{Departure, interface_name};
use super::probe::Probe;
use super::record::{Arrival, MISSING};
use super::rehearsal::Rehearsal;
use super::ring::AnswerRing;
use super::socket::SocketTransport;
use super::transport::Transport;
use super::watch::{SlotClock, Watcher};
use crate::capture::{self, bind_packet_socket};
use crate::clock;
use crate::filter::Traffic;
use crate::timestamping::{self, set_option};
use crate::wire::{self, ETHERNET_HEADER_BYTES};

/// Above this rate the ring does not capture the probes and the queueing discipline is bypassed:
/// each costs as much as the sending itself. Kernel transmit stamps are then missing.
const LEAN_PPS: f64 = 250_000.0;
/// Most packets in one system call.
const BATCH: usize = 64;

/// Offsets of the parts of a frame.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Beginning of the probe's message.
    message_at: usize,
    /// End of the message; padding follows.
    message_end: usize,
    /// Beginning of the UDP header, and the sum of pseudo-header and header; STAMP only.
    udp: Option<(usize, u32)>,
    /// Sum over the pseudo-header; ICMPv6 only.
    pseudo_sum: u32,
}

impl Layout {
    /// Writes message `sequence`; returns the sum over the bytes of UDP's checksum without the time.
    fn write(&self, probe: Probe, frame: &mut [u8], sequence: u64) -> u32 {
        let message = &mut frame[self.message_at..self.message_end];
        probe.write(message, sequence, self.pseudo_sum);
        self.udp.map_or(0, |(_, header_sum)| wire::sum_words(header_sum, message))
    }

    /// Writes the time of sending and UDP's checksum, for STAMP.
    #[inline]
    fn set_time(&self, probe: Probe, frame: &mut [u8], sum: u32, user_tx_ns: i64) {
        let Some((udp_at, _)) = self.udp else { return };
        let message = &mut frame[self.message_at..];
        probe.set_time(message, user_tx_ns);
        let sum = wire::finish_sum(wire::sum_words(sum, &message[4..12]));
        // Zero means "no checksum" (RFC 768).
        let sum = if sum == 0 { 0xffff } else { sum };
        frame[udp_at + 6..udp_at + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// A packet socket that sends and a ring that receives, on one Ethernet interface.
#[derive(Debug)]
pub struct PacketTransport {
    sender: OwnedFd,
    /// Declared before `ring`, whose memory it reads, so that it is dropped first.
    watcher: Option<Watcher>,
    ring: AnswerRing,
    probe: Probe,
    target: IpAddr,
    interface: u32,
    interface_name: String,
    frame: Vec<u8>,
    layout: Layout,
    /// Sum over the bytes of UDP's checksum without the time.
    partial_sum: u32,
    /// Transmit stamps that were read from the ring and not yet fetched.
    departed: VecDeque<(u64, i64)>,
    /// Frames of a batch; empty where packets go one by one.
    batch: Vec<Vec<u8>>,
    dropped: u64,
    port: Option<SocketTransport>,
    rehearsal: Option<Rehearsal>,
}

impl PacketTransport {
    /// Takes the headers of `departure`, for up to `peak_pps` packets/s.
    ///
    /// # Errors
    /// The interface is no Ethernet, the frame is not a plain probe, or the kernel refuses.
    pub fn open(departure: &Departure, probe: Probe, peak_pps: f64) -> io::Result<Self> {
        let unsuitable = |why: &str| io::Error::new(io::ErrorKind::Unsupported, why.to_owned());
        if departure.hardware != libc::ARPHRD_ETHER {
            return Err(unsuitable("the interface is no Ethernet"));
        }
        let mut frame = departure.frame.clone();
        let ip = wire::parse_ip(&frame[ETHERNET_HEADER_BYTES..])
            .ok_or_else(|| unsuitable("the kernel's own probe is not a plain IP packet"))?;
        let (source, target) = (ip.source, ip.destination);
        let upper_at = ip.payload.as_ptr().addr() - frame.as_ptr().addr();
        let upper_bytes = ip.payload.len();
        let pseudo_sum = wire::pseudo_header_sum(source, target, probe.protocol(), upper_bytes);
        // Padded here, not by the driver or NIC.
        frame.truncate(upper_at + upper_bytes);
        frame.resize(frame.len().max(wire::SMALLEST_FRAME_BYTES - wire::FCS_BYTES), 0);
        let (message_at, udp) = match probe {
            Probe::Echo { .. } => (upper_at, None),
            Probe::Stamp { .. } => {
                // The checksum counts as zero while it is summed up.
                frame[upper_at + 6..upper_at + 8].fill(0);
                let header = &frame[upper_at..upper_at + 8];
                (upper_at + 8, Some((upper_at, wire::sum_words(pseudo_sum, header))))
            }
        };
        let sender = capture::packet_socket().map_err(io::Error::other)?;
        bind_packet_socket(&sender, departure.interface, 0)?;
        let traffic = match probe {
            Probe::Echo { identifier, .. } => Traffic::Echo { id: Some(identifier) },
            Probe::Stamp { source_port, .. } => Traffic::Udp { port: source_port },
        };
        let ring = AnswerRing::open(departure.interface, source.is_ipv6(), traffic, peak_pps)?;
        let interface_name = interface_name(departure.interface)?;
        let lean = peak_pps > LEAN_PPS;
        if lean {
            set_option(sender.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
            ring.ignore_outgoing()?;
        }
        let batch = if lean { vec![frame.clone(); BATCH] } else { Vec::new() };
        Ok(Self {
            sender,
            watcher: None,
            ring,
            probe,
            target,
            interface: departure.interface,
            interface_name,
            frame,
            layout: Layout {
                message_at,
                message_end: upper_at + upper_bytes,
                udp,
                pseudo_sum: if source.is_ipv6() { pseudo_sum } else { 0 },
            },
            partial_sum: 0,
            departed: VecDeque::with_capacity(1024),
            batch,
            dropped: 0,
            port: None,
            rehearsal: if lean { None } else { Rehearsal::open(&departure.frame) },
        })
    }

    /// Starts the thread that notes when answers come.
    pub fn watch(&mut self) {
        // SAFETY: the watcher is dropped before the ring (order of the fields).
        self.watcher = unsafe { Watcher::start(self.ring.statuses()) };
    }

    /// Keeps `socket` open but silent, so that the kernel does not answer "port unreachable".
    pub fn hold(&mut self, socket: SocketTransport) -> io::Result<()> {
        socket.hold_port()?;
        self.port = Some(socket);
        Ok(())
    }
}

impl Transport for PacketTransport {
    fn prepare(&mut self, sequence: u64) {
        self.partial_sum = self.layout.write(self.probe, &mut self.frame, sequence);
    }

    fn attend(&mut self, soon: bool) {
        match &self.watcher {
            Some(watcher) if soon => watcher.arm(),
            Some(watcher) => watcher.disarm(),
            None => {}
        }
    }

    fn rehearse(&mut self) {
        if let Some(rehearsal) = &self.rehearsal {
            rehearsal.send();
            return;
        }
        // Shorter than an Ethernet header: the kernel allocates and copies the packet, then refuses
        // it.
        let _ = send(self.sender.as_raw_fd(), &self.frame[..4], MsgFlags::MSG_DONTWAIT);
    }

    #[inline]
    fn transmit(&mut self) -> io::Result<i64> {
        let user_tx_ns = clock::realtime_ns();
        self.layout.set_time(self.probe, &mut self.frame, self.partial_sum, user_tx_ns);
        send(self.sender.as_raw_fd(), &self.frame, MsgFlags::MSG_DONTWAIT)?;
        Ok(user_tx_ns)
    }

    fn batch(&self) -> usize {
        self.batch.len().max(1)
    }

    fn transmit_batch(&mut self, first: u64, count: usize) -> io::Result<(i64, usize)> {
        let count = count.min(self.batch.len());
        if count < 2 {
            self.prepare(first);
            return self.transmit().map(|user_tx_ns| (user_tx_ns, 1));
        }
        // SAFETY: iovec and mmsghdr are plain data, for which zero is a valid value.
        let (mut vectors, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { std::mem::zeroed() };
        let time_ns = clock::realtime_ns();
        for (index, frame) in self.batch[..count].iter_mut().enumerate() {
            let sum = self.layout.write(self.probe, frame, first + index as u64);
            self.layout.set_time(self.probe, frame, sum, time_ns);
            vectors[index] =
                libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
            messages[index].msg_hdr.msg_iov = &raw mut vectors[index];
            messages[index].msg_hdr.msg_iovlen = 1;
        }
        let user_tx_ns = clock::realtime_ns();
        // SAFETY: the first `count` messages point at vectors and frames that live through the call.
        let sent = unsafe {
            libc::sendmmsg(
                self.sender.as_raw_fd(),
                messages.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT as _,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((user_tx_ns, sent as usize))
    }

    #[inline]
    fn receive(&mut self) -> io::Result<Option<Arrival>> {
        let mut slot_clock = SlotClock::default();
        while let Some((kernel_ns, frame)) = self.ring.filled() {
            let now_ns = slot_clock.read(|| self.ring.is_filled(1), clock::realtime_ns);
            let user_rx_ns = match &self.watcher {
                Some(watcher) => watcher.take(self.ring.next, kernel_ns, now_ns),
                None => now_ns,
            };
            let answer = self.probe.answer_in_frame(frame, self.target, user_rx_ns);
            if answer.is_none()
                && kernel_ns != MISSING
                && let Some(sequence) = self.probe.request_in_frame(frame, self.target)
            {
                self.departed.push_back((sequence, kernel_ns));
            }
            self.ring.release();
            if let Some(answer) = answer {
                return Ok(Some(Arrival {
                    sequence: answer.sequence,
                    kernel_rx_ns: kernel_ns,
                    user_rx_ns,
                    residence_ns: answer.residence_ns,
                }));
            }
        }
        Ok(None)
    }

    fn transmit_stamp(&mut self) -> Option<(u64, i64)> {
        self.departed.pop_front()
    }

    fn stamps_pending(&self) -> bool {
        !self.departed.is_empty()
    }

    fn wait(&mut self, timeout_ns: i64) -> io::Result<()> {
        timestamping::wait_readable(self.ring.socket(), timeout_ns);
        // An interface that goes down leaves an error on the socket, by which poll returns at once
        // until it is fetched.
        match nix::sys::socket::getsockopt(
            &self.ring.socket(),
            nix::sys::socket::sockopt::SocketError,
        ) {
            Ok(0) => Ok(()),
            Ok(errno) => Err(io::Error::from_raw_os_error(errno)),
            Err(errno) => Err(errno.into()),
        }
    }

    fn interface(&self) -> (String, bool) {
        (self.interface_name.clone(), interface_name(self.interface).is_ok())
    }

    fn dropped(&mut self) -> u64 {
        self.dropped += self.ring.drops();
        self.dropped
    }

    fn name(&self) -> &'static str {
        "packet"
    }
}
