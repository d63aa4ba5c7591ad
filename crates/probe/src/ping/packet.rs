//! Probes as whole frames: sent by a packet socket straight to the driver, answers read from a ring
//! that the kernel writes into this process's memory. Shortest way between user and wire, hence the
//! user's stamps lie closest to the kernel's.
//!
//! The headers are those of a probe that the kernel itself sent while warming up: addresses, next
//! hop, hop limit and traffic class are the kernel's choice and not repeated here.

use std::io;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::probe::Probe;
use super::record::{Arrival, MISSING};
use super::socket::SocketTransport;
use super::transport::{StampCount, Transport};
use crate::clock;
use crate::timestamping::{self, QueueEntry, set_option};
use crate::wire::{self, ETHERNET_HEADER_BYTES};

/// What an answer needs of a ring slot: 66 bytes of kernel headers and address, 106 of frame.
const SLOT_BYTES: usize = 256;
const SLOTS: usize = 16_384;
const BLOCK_BYTES: usize = 1 << 16;
/// Bytes of a frame that are kept: Ethernet, IPv6, UDP and STAMP's base packet, and a margin for IP
/// options.
const SNAP_BYTES: u32 = 146;

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

/// A packet socket that sends and a ring that receives, on one Ethernet interface.
#[derive(Debug)]
pub struct PacketTransport {
    sender: OwnedFd,
    ring: Ring,
    probe: Probe,
    target: IpAddr,
    interface: u32,
    interface_name: String,
    frame: Vec<u8>,
    /// Where the probe's message begins in `frame`.
    message_at: usize,
    /// Where the UDP header begins, and the sum of pseudo-header and header; STAMP alone.
    udp: Option<(usize, u32)>,
    /// Sum over the pseudo-header; ICMPv6 alone.
    pseudo_sum: u32,
    /// Sum over everything that UDP's checksum covers, but for the time.
    partial_sum: u32,
    sequence: u64,
    count: StampCount,
    dropped: u64,
    port: Option<SocketTransport>,
}

impl PacketTransport {
    /// Takes the headers of `departure`.
    ///
    /// # Errors
    /// The interface is no Ethernet, the frame is not a plain probe, or the kernel refuses.
    pub fn open(departure: &Departure, probe: Probe) -> io::Result<Self> {
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
        frame.truncate((upper_at + upper_bytes).max(60));
        let sender = packet_socket(0)?;
        bind_packet(sender.as_fd(), departure.interface, 0)?;
        set_option(sender.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        timestamping::set_receive_buffer(sender.as_fd(), 32 << 20)?;
        let ring = Ring::open(departure.interface, probe, source.is_ipv6())?;
        let interface_name = interface_name(departure.interface)?;
        Ok(Self {
            sender,
            ring,
            probe,
            target,
            interface: departure.interface,
            interface_name,
            frame,
            message_at,
            udp,
            pseudo_sum: if source.is_ipv6() { pseudo_sum } else { 0 },
            partial_sum: 0,
            sequence: 0,
            count: StampCount::new(),
            dropped: 0,
            port: None,
        })
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
        self.sequence = sequence;
        let message = &mut self.frame[self.message_at..];
        self.probe.write(message, sequence, self.pseudo_sum);
        if let Some((_, header_sum)) = self.udp {
            self.partial_sum = wire::sum_words(header_sum, message);
        }
    }

    #[inline]
    fn transmit(&mut self) -> io::Result<i64> {
        if self.count.must_restart(self.sequence) {
            timestamping::enable(self.sender.as_fd(), true)?;
            self.count.restarted(self.sequence);
        }
        let user_tx_ns = clock::realtime_ns();
        if let Some((udp_at, _)) = self.udp {
            let message = &mut self.frame[self.message_at..];
            self.probe.set_time(message, user_tx_ns);
            let sum = wire::finish_sum(wire::sum_words(self.partial_sum, &message[4..12]));
            // Zero means "no checksum" (RFC 768).
            let sum = if sum == 0 { 0xffff } else { sum };
            self.frame[udp_at + 6..udp_at + 8].copy_from_slice(&sum.to_be_bytes());
        }
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
            self.count.refused();
            return Err(io::Error::last_os_error());
        }
        self.count.sent();
        Ok(user_tx_ns)
    }

    #[inline]
    fn receive(&mut self) -> io::Result<Option<Arrival>> {
        while let Some(slot) = self.ring.filled() {
            let user_rx_ns = clock::realtime_ns();
            let (kernel_rx_ns, packet) = slot;
            let answer = self.probe.answer_in_frame(packet, self.target, user_rx_ns);
            self.ring.release();
            if let Some(answer) = answer {
                return Ok(Some(Arrival {
                    sequence: answer.sequence,
                    kernel_rx_ns,
                    user_rx_ns,
                    residence_ns: answer.residence_ns,
                }));
            }
        }
        Ok(None)
    }

    fn transmit_stamp(&mut self) -> Option<(u64, i64)> {
        loop {
            match timestamping::error_queue(self.sender.as_fd()) {
                Ok(Some(QueueEntry::Stamp { id, kernel_tx_ns })) => {
                    if let Some(sequence) = self.count.sequence(id) {
                        return Some((sequence, kernel_tx_ns));
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    fn stamps_pending(&self) -> bool {
        self.count.pending()
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

/// Name of interface number `index`.
pub fn interface_name(index: u32) -> io::Result<String> {
    let name = nix::net::if_::if_indextoname(index)?;
    Ok(name.to_string_lossy().into_owned())
}

fn packet_socket(protocol: u16) -> io::Result<OwnedFd> {
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

fn bind_packet(socket: BorrowedFd<'_>, interface: u32, protocol: u16) -> io::Result<()> {
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
    next: usize,
}

// SAFETY: the mapping belongs to this value alone and is reachable from any thread.
unsafe impl Send for Ring {}

impl Ring {
    fn open(interface: u32, probe: Probe, ipv6: bool) -> io::Result<Self> {
        let socket = packet_socket(0)?;
        let fd = socket.as_fd();
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        set_option(fd, libc::SOL_PACKET, libc::PACKET_VERSION, version)?;
        let mut program = answer_filter(probe, ipv6);
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, filter)?;
        // Makes the kernel stamp packets when the driver hands them over, not when they get here.
        timestamping::enable(fd, false)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: (SLOTS * SLOT_BYTES / BLOCK_BYTES) as u32,
            tp_frame_size: SLOT_BYTES as u32,
            tp_frame_nr: SLOTS as u32,
        };
        set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, request)?;
        let length = NonZeroUsize::new(SLOTS * SLOT_BYTES).unwrap_or(NonZeroUsize::MIN);
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
        let protocol = if ipv6 { libc::ETH_P_IPV6 } else { libc::ETH_P_IP } as u16;
        let ring = Self { socket, memory, next: 0 };
        bind_packet(ring.socket.as_fd(), interface, protocol)?;
        Ok(ring)
    }

    fn header(&self) -> *mut libc::tpacket2_hdr {
        // SAFETY: `next` is below SLOTS, so that the slot lies within the mapping; slots are
        // aligned to 16 bytes and more.
        unsafe { self.memory.as_ptr().add(self.next * SLOT_BYTES).cast() }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: the status is an aligned 32-bit word in the mapping, shared with the kernel,
        // which both sides access whole.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.header()).tp_status) }
    }

    /// The packet in the next slot, if the kernel has filled it: receive stamp and frame.
    #[inline]
    fn filled(&self) -> Option<(i64, &[u8])> {
        if self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the slot is the user's until it is released; the kernel keeps `tp_mac` and
        // `tp_snaplen` within the slot.
        let (header, frame) = unsafe {
            let header = self.header().read();
            let mac = usize::from(header.tp_mac).min(SLOT_BYTES);
            let length = (header.tp_snaplen as usize).min(SLOT_BYTES - mac);
            let start = self.header().cast::<u8>().add(mac);
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
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
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
        let _ = unsafe { munmap(self.memory.cast(), SLOTS * SLOT_BYTES) };
    }
}

/// A classic BPF program that keeps the first bytes of answers and drops everything else.
fn answer_filter(probe: Probe, ipv6: bool) -> Vec<libc::sock_filter> {
    const LOAD_BYTE: u16 = 0x30; // ldb [k]
    const LOAD_HALF: u16 = 0x28; // ldh [k]
    const LOAD_HALF_X: u16 = 0x48; // ldh [x + k]
    const LOAD_BYTE_X: u16 = 0x50; // ldb [x + k]
    const LOAD_X_HEADER: u16 = 0xb1; // ldx 4 * ([k] & 0xf)
    const LOAD_X: u16 = 0x01; // ldx #k
    const EQUAL: u16 = 0x15; // jeq #k
    const ANY_SET: u16 = 0x45; // jset #k
    const RETURN: u16 = 0x06; // ret #k
    let op = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let ethernet = ETHERNET_HEADER_BYTES as u32;
    let (protocol_at, header_to_x) =
        if ipv6 { (6, op(LOAD_X, 40)) } else { (9, op(LOAD_X_HEADER, ethernet)) };
    // Jumps to the last instruction (drop) are filled in below.
    let mut program =
        vec![op(LOAD_BYTE, ethernet + protocol_at), op(EQUAL, u32::from(probe.protocol()))];
    if !ipv6 {
        program.extend([op(LOAD_HALF, ethernet + 6), op(ANY_SET, 0x1fff)]);
    }
    program.push(header_to_x);
    match probe {
        Probe::Echo { ipv6, identifier } => program.extend([
            op(LOAD_BYTE_X, ethernet),
            op(EQUAL, if ipv6 { 129 } else { 0 }),
            op(LOAD_HALF_X, ethernet + 4),
            op(EQUAL, u32::from(identifier)),
        ]),
        Probe::Stamp { source_port, port, .. } => program.extend([
            op(LOAD_HALF_X, ethernet),
            op(EQUAL, u32::from(port)),
            op(LOAD_HALF_X, ethernet + 2),
            op(EQUAL, u32::from(source_port)),
        ]),
    }
    program.extend([op(RETURN, SNAP_BYTES), op(RETURN, 0)]);
    let drop = program.len() - 1;
    for (at, instruction) in program.iter_mut().enumerate() {
        let distance = drop.saturating_sub(at + 1) as u8;
        match instruction.code {
            EQUAL => instruction.jf = distance,
            ANY_SET => instruction.jt = distance,
            _ => {}
        }
    }
    program
}
