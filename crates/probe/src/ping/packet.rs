//! Probes as whole frames: sent by a packet socket, answers read from a ring that the kernel writes
//! into this process's memory. Shortest way between user and wire, hence the user's stamps lie
//! closest to the kernel's.
//!
//! The same ring captures the probes as they leave, which gives their kernel transmit stamps: taken
//! where every capture takes them, when the stack hands the frame to the driver.
//!
//! The headers are those of a probe that the kernel itself sent while warming up: addresses, next
//! hop, hop limit and traffic class are the kernel's choice and not repeated here.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::probe::Probe;
use super::record::{Arrival, MISSING};
use super::rehearsal::Stage;
use super::socket::SocketTransport;
use super::transport::Transport;
use super::watch::{Statuses, Watcher};
use crate::clock;
use crate::timestamping::{self, set_option};
use crate::wire::{self, ETHERNET_HEADER_BYTES};

/// What an answer needs of a ring slot: 66 bytes of kernel headers and address, 106 of frame.
const SLOT_BYTES: usize = 256;
/// Most and fewest slots of the ring. It holds a quarter of a second where it can, and is no larger
/// than that needs: a ring that fits into a cache costs the kernel no miss a packet.
const MOST_SLOTS: usize = 32_768;
const FEWEST_SLOTS: usize = 256;
const BLOCK_BYTES: usize = 1 << 16;
/// Bytes of a frame that are kept: Ethernet, IPv6, UDP and STAMP's base packet, and a margin for IP
/// options.
const SNAP_BYTES: u32 = 146;

/// Above this rate the ring does not capture what leaves and the queueing discipline is left out:
/// both cost as much as the sending itself. Kernel transmit stamps are then missing.
const LEAN_PPS: f64 = 250_000.0;
/// Socket option of linux/if_packet.h, since Linux 4.20.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// Most packets in one system call.
const BATCH: usize = 64;

/// A frame that left this host, as a capture saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// Number of the interface.
    pub interface: u32,
    /// ARPHRD type of the interface.
    pub hardware: u16,
    /// The frame without its FCS.
    pub frame: Vec<u8>,
}

/// Watches what leaves this host, on all interfaces.
#[derive(Debug)]
pub struct DepartureWatch {
    socket: OwnedFd,
}

impl DepartureWatch {
    /// Starts to watch.
    pub fn open() -> io::Result<Self> {
        let socket = packet_socket(libc::ETH_P_ALL as u16)?;
        timestamping::set_receive_buffer(socket.as_fd(), 4 << 20)?;
        Ok(Self { socket })
    }

    /// The next frame that left and contains the probe's message; none when there is none yet.
    pub fn next(&self, probe: Probe, target: IpAddr) -> io::Result<Option<Departure>> {
        let mut buffer = vec![0; wire::LARGEST_FRAME_BYTES + 64];
        while let Some(received) = timestamping::receive(self.socket.as_fd(), &mut buffer)? {
            // SAFETY: the kernel wrote a sockaddr_ll, as it does for every packet socket.
            let link = unsafe {
                (&raw const received.source).cast::<libc::sockaddr_ll>().read_unaligned()
            };
            if link.sll_pkttype != libc::PACKET_OUTGOING || received.bytes > buffer.len() {
                continue;
            }
            let frame = &buffer[..received.bytes];
            let Some(ip) = frame.get(ETHERNET_HEADER_BYTES..).and_then(wire::parse_ip) else {
                continue;
            };
            let ours = ip.destination == target
                && ip.protocol == probe.protocol()
                && match probe {
                    Probe::Echo { identifier, .. } => {
                        wire::parse_icmp_echo(ip.payload, ip.protocol)
                            .is_some_and(|echo| !echo.reply && echo.identifier == identifier)
                    }
                    Probe::Stamp { source_port, port, .. } => wire::parse_udp(ip.payload)
                        .is_some_and(|udp| {
                            udp.source_port == source_port && udp.destination_port == port
                        }),
                };
            if ours {
                return Ok(Some(Departure {
                    interface: link.sll_ifindex as u32,
                    hardware: link.sll_hatype,
                    frame: frame.to_vec(),
                }));
            }
        }
        Ok(None)
    }
}

/// Where the parts of a frame lie.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Where the probe's message begins.
    message_at: usize,
    /// Where the message ends; what follows pads the frame.
    message_end: usize,
    /// Where the UDP header begins, and the sum of pseudo-header and header; STAMP alone.
    udp: Option<(usize, u32)>,
    /// Sum over the pseudo-header; ICMPv6 alone.
    pseudo_sum: u32,
}

impl Layout {
    /// Writes message `sequence`; returns the sum over all that UDP's checksum covers but the time.
    fn write(&self, probe: Probe, frame: &mut [u8], sequence: u64) -> u32 {
        let message = &mut frame[self.message_at..self.message_end];
        probe.write(message, sequence, self.pseudo_sum);
        self.udp.map_or(0, |(_, header_sum)| wire::sum_words(header_sum, message))
    }

    /// Writes the time of sending and with it UDP's checksum, where there are such.
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
    /// Before `ring`, whose memory it reads: it is dropped first.
    watcher: Option<Watcher>,
    ring: Ring,
    probe: Probe,
    target: IpAddr,
    interface: u32,
    interface_name: String,
    frame: Vec<u8>,
    layout: Layout,
    /// Sum over everything that UDP's checksum covers, but for the time.
    partial_sum: u32,
    /// Transmit stamps that were read from the ring and not yet fetched.
    departed: VecDeque<(u64, i64)>,
    /// Frames of a batch; empty where packets go one by one.
    batch: Vec<Vec<u8>>,
    dropped: u64,
    port: Option<SocketTransport>,
    stage: Option<Stage>,
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
            .ok_or_else(|| unsuitable("the kernel's own probe is no plain IP packet"))?;
        let (source, target) = (ip.source, ip.destination);
        let upper_at = ip.payload.as_ptr().addr() - frame.as_ptr().addr();
        let upper_bytes = ip.payload.len();
        let pseudo_sum = wire::pseudo_header_sum(source, target, probe.protocol(), upper_bytes);
        // What the driver or NIC would have padded.
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
        let sender = packet_socket(0)?;
        bind_packet(sender.as_fd(), departure.interface, 0)?;
        let ring = Ring::open(departure.interface, probe, source.is_ipv6(), slots(peak_pps))?;
        let interface_name = interface_name(departure.interface)?;
        let lean = peak_pps > LEAN_PPS;
        if lean {
            set_option(sender.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
            set_option(ring.socket.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
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
            stage: if lean { None } else { Stage::open(&departure.frame) },
        })
    }

    /// Lets a second thread note when answers come.
    pub fn watch(&mut self) {
        // SAFETY: the watcher is dropped before the ring (order of the fields).
        self.watcher = unsafe { Watcher::start(self.ring.statuses()) };
    }

    /// Keeps `socket` open, so that the kernel does not call its port unreachable, and silent.
    pub fn keep(&mut self, socket: SocketTransport) -> io::Result<()> {
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
        if let Some(stage) = &self.stage {
            stage.send();
            return;
        }
        // Shorter than an Ethernet header: the kernel allocates and copies the packet, then refuses
        // it.
        // SAFETY: pointer and length describe the beginning of `frame`.
        unsafe {
            libc::send(self.sender.as_raw_fd(), self.frame.as_ptr().cast(), 4, libc::MSG_DONTWAIT)
        };
    }

    #[inline]
    fn transmit(&mut self) -> io::Result<i64> {
        let user_tx_ns = clock::realtime_ns();
        self.layout.set_time(self.probe, &mut self.frame, self.partial_sum, user_tx_ns);
        // SAFETY: pointer and length describe `frame`, which lives through the call.
        let sent = unsafe {
            libc::send(
                self.sender.as_raw_fd(),
                self.frame.as_ptr().cast(),
                self.frame.len(),
                libc::MSG_DONTWAIT,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
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
        for (place, frame) in self.batch[..count].iter_mut().enumerate() {
            let sum = self.layout.write(self.probe, frame, first + place as u64);
            self.layout.set_time(self.probe, frame, sum, time_ns);
            vectors[place] =
                libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
            messages[place].msg_hdr.msg_iov = &raw mut vectors[place];
            messages[place].msg_hdr.msg_iovlen = 1;
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
        let mut looked_ns = None;
        while let Some((kernel_ns, frame)) = self.ring.filled() {
            // A request of ours and its answer often lie there together: one look at the clock for
            // both, and no work before it.
            let both = self.ring.is_filled(1);
            let now_ns = looked_ns.unwrap_or_else(clock::realtime_ns);
            looked_ns = both.then_some(now_ns);
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
        timestamping::wait_readable(self.ring.socket.as_fd(), timeout_ns);
        // An interface that goes down leaves an error on the socket, and poll returns at once until
        // it is fetched.
        match nix::sys::socket::getsockopt(
            &self.ring.socket,
            nix::sys::socket::sockopt::SocketError,
        ) {
            Ok(0) => Ok(()),
            Ok(errno) => Err(io::Error::from_raw_os_error(errno)),
            Err(errno) => Err(errno.into()),
        }
    }

    fn interface(&self) -> (String, bool) {
        let there = interface_name(self.interface).is_ok();
        (self.interface_name.clone(), there)
    }

    fn dropped(&mut self) -> u64 {
        self.dropped += self.ring.drops();
        self.dropped
    }

    fn name(&self) -> &'static str {
        "packet"
    }
}

/// Slots of a ring for requests and answers at `peak_pps`.
fn slots(peak_pps: f64) -> usize {
    let wanted = (peak_pps * 2.0 * 0.25) as usize;
    wanted.next_power_of_two().clamp(FEWEST_SLOTS, MOST_SLOTS)
}

/// Name of interface number `index`.
///
/// Not by nix, whose `if_indextoname` (0.30) takes the null pointer of a missing interface for
/// success.
pub fn interface_name(index: u32) -> io::Result<String> {
    let mut name = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the function asks for.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if found.is_null() {
        return Err(io::Error::last_os_error());
    }
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

pub(super) fn packet_socket(protocol: u16) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe {
        libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            libc::c_int::from(protocol.to_be()),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn bind_packet(socket: BorrowedFd<'_>, interface: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: sockaddr_ll is plain integers, for which zero is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface as libc::c_int;
    // SAFETY: pointer and length describe `address`, which lives through the call.
    let done = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A receive ring (TPACKET_V2) that holds the answers alone.
#[derive(Debug)]
struct Ring {
    socket: OwnedFd,
    memory: NonNull<u8>,
    /// A power of two.
    slots: usize,
    /// How many slots were read; the next one is this modulo their number.
    next: u64,
}

// SAFETY: the mapping belongs to this value alone and is reachable from any thread.
unsafe impl Send for Ring {}

impl Ring {
    fn open(interface: u32, probe: Probe, ipv6: bool, slots: usize) -> io::Result<Self> {
        let socket = packet_socket(0)?;
        let fd = socket.as_fd();
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        set_option(fd, libc::SOL_PACKET, libc::PACKET_VERSION, version)?;
        let mut program = probe_filter(probe, ipv6);
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, filter)?;
        // Makes the kernel stamp packets when the driver hands them over, not when they get here.
        timestamping::enable(fd, false)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: (slots * SLOT_BYTES / BLOCK_BYTES) as u32,
            tp_frame_size: SLOT_BYTES as u32,
            tp_frame_nr: slots as u32,
        };
        set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, request)?;
        let length = NonZeroUsize::new(slots * SLOT_BYTES).unwrap_or(NonZeroUsize::MIN);
        // SAFETY: a fresh mapping of the ring that was just made, of its size.
        let memory = unsafe {
            mmap(
                None,
                length,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE,
                fd,
                0,
            )
        }?
        .cast();
        let ring = Self { socket, memory, slots, next: 0 };
        // Sockets for all protocols see what leaves, and get what comes before the IP stack does.
        bind_packet(ring.socket.as_fd(), interface, libc::ETH_P_ALL as u16)?;
        Ok(ring)
    }

    /// Header of the slot that comes `ahead` slots after the next one.
    fn header(&self, ahead: u64) -> *mut libc::tpacket2_hdr {
        let slot = (self.next + ahead) as usize % self.slots;
        // SAFETY: `slot` is below `slots`, so that it lies within the mapping; slots are aligned to 16
        // bytes and more.
        unsafe { self.memory.as_ptr().add(slot * SLOT_BYTES).cast() }
    }

    fn status(&self, ahead: u64) -> &AtomicU32 {
        // SAFETY: the status is an aligned 32-bit word in the mapping, shared with the kernel,
        // which both sides access whole.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.header(ahead)).tp_status) }
    }

    fn statuses(&self) -> Statuses {
        let first = self.memory.as_ptr().cast::<libc::tpacket2_hdr>();
        Statuses {
            // SAFETY: slot 0 lies within the mapping; the address alone is taken.
            first: unsafe { &raw const (*first).tp_status },
            stride_bytes: SLOT_BYTES,
            slots: self.slots,
        }
    }

    #[inline]
    fn is_filled(&self, ahead: u64) -> bool {
        self.status(ahead).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// The packet in the next slot, if the kernel has filled it: receive stamp and frame.
    #[inline]
    fn filled(&self) -> Option<(i64, &[u8])> {
        if !self.is_filled(0) {
            return None;
        }
        // SAFETY: the slot is the user's until it is released; the kernel keeps `tp_mac` and
        // `tp_snaplen` within the slot.
        let (header, frame) = unsafe {
            let header = self.header(0).read();
            let mac = usize::from(header.tp_mac).min(SLOT_BYTES);
            let length = (header.tp_snaplen as usize).min(SLOT_BYTES - mac);
            let start = self.header(0).cast::<u8>().add(mac);
            (header, std::slice::from_raw_parts(start, length))
        };
        let stamp = i64::from(header.tp_sec) * clock::NANOS_PER_SECOND + i64::from(header.tp_nsec);
        let software = header.tp_status & libc::TP_STATUS_TS_SOFTWARE != 0;
        Some((if software { stamp } else { MISSING }, frame))
    }

    /// Gives the slot back to the kernel.
    #[inline]
    fn release(&mut self) {
        fence(Ordering::Release);
        self.status(0).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next += 1;
    }

    /// Packets that found the ring full since this was last asked.
    fn drops(&self) -> u64 {
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: pointers and length describe `stats`, which lives through the call.
        let done = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &mut length,
            )
        };
        if done == 0 { u64::from(stats.tp_drops) } else { 0 }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `open` with this size and nothing refers to it any more.
        let _ = unsafe { munmap(self.memory.cast(), self.slots * SLOT_BYTES) };
    }
}

/// A classic BPF program that keeps the first bytes of our requests and their answers, and drops
/// everything else.
fn probe_filter(probe: Probe, ipv6: bool) -> Vec<libc::sock_filter> {
    const LOAD_BYTE: u16 = 0x30; // ldb [k]
    const LOAD_HALF: u16 = 0x28; // ldh [k]
    const LOAD_HALF_X: u16 = 0x48; // ldh [x + k]
    const LOAD_BYTE_X: u16 = 0x50; // ldb [x + k]
    const LOAD_X_HEADER: u16 = 0xb1; // ldx 4 * ([k] & 0xf)
    const LOAD_X: u16 = 0x01; // ldx #k
    const EQUAL: u16 = 0x15; // jeq #k
    const ANY_SET: u16 = 0x45; // jset #k
    const RETURN: u16 = 0x06; // ret #k
    // Jumps to the end, whose distance is not yet known.
    const KEEP: u8 = 254;
    const DROP: u8 = 255;
    let op = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let jump = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let ethernet = ETHERNET_HEADER_BYTES as u32;
    let (ethertype, protocol_at) = if ipv6 { (libc::ETH_P_IPV6, 6) } else { (libc::ETH_P_IP, 9) };
    let mut program = vec![
        op(LOAD_HALF, 12),
        jump(EQUAL, ethertype as u32, 0, DROP),
        op(LOAD_BYTE, ethernet + protocol_at),
        jump(EQUAL, u32::from(probe.protocol()), 0, DROP),
    ];
    if ipv6 {
        program.push(op(LOAD_X, 40));
    } else {
        program.extend([
            op(LOAD_HALF, ethernet + 6),
            jump(ANY_SET, 0x1fff, DROP, 0),
            op(LOAD_X_HEADER, ethernet),
        ]);
    }
    match probe {
        Probe::Echo { ipv6, identifier } => {
            let (request, reply) = if ipv6 { (128, 129) } else { (8, 0) };
            program.extend([
                op(LOAD_BYTE_X, ethernet),
                jump(EQUAL, reply, 1, 0),
                jump(EQUAL, request, 0, DROP),
                op(LOAD_HALF_X, ethernet + 4),
                jump(EQUAL, u32::from(identifier), KEEP, DROP),
            ]);
        }
        Probe::Stamp { source_port, port, .. } => {
            let (sender, reflector) = (u32::from(source_port), u32::from(port));
            program.extend([
                op(LOAD_HALF_X, ethernet),
                jump(EQUAL, reflector, 0, 2),
                op(LOAD_HALF_X, ethernet + 2),
                jump(EQUAL, sender, KEEP, DROP),
                jump(EQUAL, sender, 0, DROP),
                op(LOAD_HALF_X, ethernet + 2),
                jump(EQUAL, reflector, KEEP, DROP),
            ]);
        }
    }
    let keep = program.len();
    for (at, instruction) in program.iter_mut().enumerate() {
        for target in [&mut instruction.jt, &mut instruction.jf] {
            match *target {
                KEEP => *target = (keep - at - 1) as u8,
                DROP => *target = (keep - at) as u8,
                _ => {}
            }
        }
    }
    program.extend([op(RETURN, SNAP_BYTES), op(RETURN, 0)]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_interface_has_no_name() {
        assert_eq!(interface_name(1).ok().as_deref(), Some("lo"));
        assert!(interface_name(u32::MAX >> 1).is_err());
    }

    #[test]
    fn the_ring_holds_a_quarter_of_a_second_within_bounds() {
        assert_eq!(slots(1.0), FEWEST_SLOTS);
        assert_eq!(slots(1_000.0), 512);
        assert_eq!(slots(1e9), MOST_SLOTS);
        assert_eq!(FEWEST_SLOTS * SLOT_BYTES % BLOCK_BYTES, 0);
    }

    /// Runs a classic BPF program on a frame, as the kernel does; the bytes to keep.
    fn run(program: &[libc::sock_filter], frame: &[u8]) -> u32 {
        let (mut a, mut x, mut at) = (0_u32, 0_u32, 0);
        loop {
            let instruction = program[at];
            let k = instruction.k as usize;
            let byte = |at: usize| frame.get(at).map(|&byte| u32::from(byte));
            let half = |at: usize| Some(byte(at)? << 8 | byte(at + 1)?);
            let mut skip = 0;
            let loaded = match instruction.code {
                0x30 => byte(k).map(|value| a = value),
                0x28 => half(k).map(|value| a = value),
                0x50 => byte(x as usize + k).map(|value| a = value),
                0x48 => half(x as usize + k).map(|value| a = value),
                0xb1 => byte(k).map(|value| x = 4 * (value & 0xf)),
                0x01 => {
                    x = instruction.k;
                    Some(())
                }
                0x15 | 0x45 => {
                    let yes = match instruction.code {
                        0x15 => a == instruction.k,
                        _ => a & instruction.k != 0,
                    };
                    skip = usize::from(if yes { instruction.jt } else { instruction.jf });
                    Some(())
                }
                0x06 => return instruction.k,
                code => panic!("no such instruction {code:#x}"),
            };
            if loaded.is_none() {
                return 0;
            }
            at += 1 + skip;
        }
    }

    fn frame(ethertype: u16, protocol: u8, upper: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend(ethertype.to_be_bytes());
        if ethertype == 0x0800 {
            let mut header = [0; 20];
            header[0] = 0x45;
            header[9] = protocol;
            frame.extend(header);
        } else {
            let mut header = [0; 40];
            header[0] = 0x60;
            header[6] = protocol;
            frame.extend(header);
        }
        frame.extend(upper);
        frame
    }

    #[test]
    fn the_filter_keeps_our_requests_and_their_answers_alone() {
        let echo = |kind, identifier: u16| {
            let [high, low] = identifier.to_be_bytes();
            [kind, 0, 0, 0, high, low, 0, 0]
        };
        for (ipv6, ethertype, protocol, request, reply) in
            [(false, 0x0800, 1, 8, 0), (true, 0x86dd, 58, 128, 129)]
        {
            let program = probe_filter(Probe::Echo { ipv6, identifier: 7 }, ipv6);
            let kept = |upper: &[u8]| run(&program, &frame(ethertype, protocol, upper)) > 0;
            assert!(kept(&echo(request, 7)) && kept(&echo(reply, 7)));
            assert!(!kept(&echo(reply, 8)), "another run's");
            assert!(!kept(&echo(3, 7)), "another message");
            assert!(!kept(&[]), "a packet cut short");
            assert_eq!(run(&program, &frame(ethertype, 17, &echo(reply, 7))), 0, "UDP");
            assert_eq!(run(&program, &frame(0x0806, protocol, &echo(reply, 7))), 0, "ARP");
        }
        let stamp = Probe::Stamp {
            format: crate::stamp::TimeFormat::Ntp,
            ssid: 1,
            source_port: 5_000,
            port: 862,
        };
        let udp = |source: u16, destination: u16| {
            [source.to_be_bytes(), destination.to_be_bytes(), [0, 52], [0, 0]].concat()
        };
        for (ipv6, ethertype) in [(false, 0x0800), (true, 0x86dd)] {
            let program = probe_filter(stamp, ipv6);
            let kept = |upper: &[u8]| run(&program, &frame(ethertype, 17, upper)) > 0;
            assert!(kept(&udp(5_000, 862)) && kept(&udp(862, 5_000)));
            assert!(!kept(&udp(862, 5_001)) && !kept(&udp(5_001, 862)));
            assert!(!kept(&udp(5_000, 5_000)) && !kept(&udp(862, 862)));
        }
    }

    #[test]
    fn fragments_are_not_kept() {
        let program = probe_filter(Probe::Echo { ipv6: false, identifier: 0 }, false);
        let mut fragment = frame(0x0800, 1, &[0; 8]);
        assert!(run(&program, &fragment) > 0);
        fragment[21] = 1;
        assert_eq!(run(&program, &fragment), 0);
    }
}
