//! Probes over the kernel's own ICMP and UDP sockets.

use std::io::{self, ErrorKind::AddrNotAvailable};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect,
    getsockname, send, socket,
};

use super::probe::Probe;
use super::record::{Arrival, MISSING};
use super::transport::{StampCount, Transport, named};
use crate::capture::attach_filter;
use crate::clock;
use crate::error::{Error, Result};
use crate::filter::{self, Traffic};
use crate::stamp::TimeFormat;
use crate::timestamping::{self, QueueEntry, set_option};
use crate::wire;

/// The route of probes and their IP options.
#[derive(Debug, Clone)]
pub struct ProbeRoute {
    /// Target; the scope of a link-local address is an interface's index. The port is the
    /// reflector's (STAMP) or 0.
    pub target: SocketAddr,
    /// Source address, when it is not the kernel's choice.
    pub source: Option<IpAddr>,
    /// Interface, when it is not the kernel's choice.
    pub interface: Option<String>,
    /// Differentiated services code point.
    pub dscp: u8,
    /// TTL or hop limit; the system's when there is none.
    pub ttl: Option<u8>,
}

/// The format of probes.
#[derive(Debug, Clone, Copy)]
pub enum ProbeFormat {
    /// Echo, with this identifier where the kernel does not choose one.
    Echo(u16),
    /// STAMP with this session identifier.
    Stamp(TimeFormat, u16),
}

/// A raw ICMP, ping or UDP socket, connected to the target.
#[derive(Debug)]
pub struct SocketTransport {
    socket: OwnedFd,
    name: &'static str,
    /// Whether received packets begin with the IP header, as on raw IPv4 sockets.
    with_ip_header: bool,
    source: IpAddr,
    probe: Probe,
    interface: Option<String>,
    message: Vec<u8>,
    sequence: u64,
    buffer: Vec<u8>,
    count: StampCount,
    dropped: u32,
}

/// Answers that may wait to be read: 32 MB hold some 40 000 of the kernel's buffers.
const RECEIVE_BUFFER_BYTES: libc::c_int = 32 << 20;

impl SocketTransport {
    /// Opens a socket for `kind` along `route`.
    ///
    /// # Errors
    /// No route, no such interface or source address, or echo sockets that are not allowed.
    pub fn open(kind: ProbeFormat, route: &ProbeRoute, payload_bytes: usize) -> Result<Self> {
        let ipv6 = route.target.is_ipv6();
        let (socket, name) = open(kind, ipv6)?;
        let fd = socket.as_fd();
        let unusable = |what: &str, error: io::Error| {
            Error::failed(format!("cannot {what} for {}", route.target.ip()), "").caused_by(error)
        };
        if let Some(interface) = &route.interface {
            timestamping::bind_to_device(fd, interface)?;
        }
        set_ip_options(fd, ipv6, route).map_err(|error| unusable("set the IP options", error))?;
        let local = SocketAddr::new(route.source.unwrap_or(wire::unspecified(ipv6)), 0);
        bind(fd.as_raw_fd(), &SockaddrStorage::from(local)).map_err(|errno| {
            Error::bad_input(
                format!("cannot send from {}: {}", local.ip(), errno.desc()),
                "give --source an address of this host (`ip address` lists them)",
            )
        })?;
        connect(fd.as_raw_fd(), &SockaddrStorage::from(route.target))
            .map_err(|errno| unreachable(route, errno))?;
        let local = getsockname(fd.as_raw_fd())
            .map_err(io::Error::from)
            .and_then(|name| timestamping::ip_address(&name).ok_or(AddrNotAvailable.into()))
            .map_err(|error| unusable("read the local address", error))?;
        let probe = match kind {
            // The kernel writes a ping socket's port as identifier.
            ProbeFormat::Echo(_) if name == "ping" => {
                Probe::Echo { ipv6, identifier: local.port() }
            }
            ProbeFormat::Echo(identifier) => Probe::Echo { ipv6, identifier },
            ProbeFormat::Stamp(format, ssid) => {
                Probe::Stamp { format, ssid, source_port: local.port(), port: route.target.port() }
            }
        };
        if name == "raw" {
            accept_replies_only(fd, ipv6)
                .map_err(|error| unusable("filter ICMP messages", error))?;
        }
        timestamping::set_receive_buffer(fd, RECEIVE_BUFFER_BYTES)
            .and_then(|()| set_option(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1))
            .and_then(|()| timestamping::enable(fd, true))
            .map_err(|error| unusable("get kernel timestamps", error))?;
        Ok(Self {
            socket,
            name,
            with_ip_header: name == "raw" && !ipv6,
            source: local.ip(),
            probe,
            interface: route.interface.clone(),
            message: vec![0; probe.message_bytes(payload_bytes)],
            sequence: 0,
            buffer: vec![0; 256],
            count: StampCount::new(),
            dropped: 0,
        })
    }

    /// The probe, with the identifier or port that the kernel chose.
    pub fn probe(&self) -> Probe {
        self.probe
    }

    /// The source address that the kernel chose.
    pub fn source(&self) -> IpAddr {
        self.source
    }

    /// Sets the name of the output interface, once it is known.
    pub fn set_interface(&mut self, name: &str) {
        self.interface = Some(name.to_owned());
    }

    /// The next errno that the network or the neighbour table reported.
    pub fn failure(&mut self) -> Option<i32> {
        loop {
            match timestamping::error_queue(self.socket.as_fd()) {
                Ok(Some(QueueEntry::Failure(errno))) => return Some(errno),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Makes the kernel drop all that arrives: the socket only holds its port from now on.
    pub fn hold_port(&self) -> io::Result<()> {
        attach_filter(&self.socket, &filter::program(Traffic::Nothing))
    }
}

fn open(kind: ProbeFormat, ipv6: bool) -> Result<(OwnedFd, &'static str)> {
    let family = if ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let cannot =
        |errno: Errno| Error::failed(format!("cannot open a socket: {}", errno.desc()), "");
    if let ProbeFormat::Stamp(..) = kind {
        let socket = socket(family, SockType::Datagram, flags, SockProtocol::Udp);
        return Ok((socket.map_err(cannot)?, "udp"));
    }
    let protocol = if ipv6 { SockProtocol::IcmpV6 } else { SockProtocol::Icmp };
    match socket(family, SockType::Raw, flags, protocol) {
        Ok(socket) => return Ok((socket, "raw")),
        Err(Errno::EPERM | Errno::EACCES) => {}
        Err(errno) => return Err(cannot(errno)),
    }
    match socket(family, SockType::Datagram, flags, protocol) {
        Ok(socket) => Ok((socket, "ping")),
        Err(Errno::EPERM | Errno::EACCES) => Err(Error::failed(
            "not allowed to send echo requests: neither raw sockets (CAP_NET_RAW) nor ping sockets \
             (net.ipv4.ping_group_range) are open to this user",
            "run as root or in a user namespace (unshare --user --map-root-user --net), or give \
             your group to sysctl net.ipv4.ping_group_range, or use --proto stamp",
        )),
        Err(errno) => Err(cannot(errno)),
    }
}

/// Sets traffic class and TTL, and forbids fragmentation.
pub fn set_ip_options(socket: BorrowedFd<'_>, ipv6: bool, route: &ProbeRoute) -> io::Result<()> {
    let traffic_class = libc::c_int::from(route.dscp) << 2;
    let ttl = route.ttl.map(libc::c_int::from);
    if ipv6 {
        let level = libc::IPPROTO_IPV6;
        set_option(socket, level, libc::IPV6_TCLASS, traffic_class)?;
        set_option(socket, level, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        set_option(socket, level, libc::IPV6_RECVERR, 1)?;
        ttl.map_or(Ok(()), |ttl| set_option(socket, level, libc::IPV6_UNICAST_HOPS, ttl))
    } else {
        let level = libc::IPPROTO_IP;
        set_option(socket, level, libc::IP_TOS, traffic_class)?;
        set_option(socket, level, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        set_option(socket, level, libc::IP_RECVERR, 1)?;
        ttl.map_or(Ok(()), |ttl| set_option(socket, level, libc::IP_TTL, ttl))
    }
}

/// Filters all but echo replies out of a raw socket.
fn accept_replies_only(socket: BorrowedFd<'_>, ipv6: bool) -> io::Result<()> {
    const ICMP_FILTER: libc::c_int = 1;
    const ICMP6_FILTER: libc::c_int = 1;
    if ipv6 {
        // A set bit blocks a type; 129 is the echo reply.
        let mut blocked = [u32::MAX; 8];
        blocked[129 / 32] &= !(1 << (129 % 32));
        set_option(socket, libc::IPPROTO_ICMPV6, ICMP6_FILTER, blocked)
    } else {
        set_option(socket, libc::SOL_RAW, ICMP_FILTER, !1_u32)
    }
}

/// The error for a target that cannot be reached, by the kernel's errno.
pub fn unreachable(route: &ProbeRoute, errno: Errno) -> Error {
    let target = route.target.ip();
    match errno {
        Errno::ENETUNREACH => Error::failed(
            format!("there is no route to {target}"),
            format!(
                "give this host an address in its network or a route (`ip route get {target}`); is \
                 the interface up?"
            ),
        ),
        Errno::EHOSTUNREACH => Error::failed(
            format!(
                "{target} cannot be reached: it does not answer {}, or a router says so",
                if target.is_ipv4() { "ARP" } else { "neighbour solicitation" }
            ),
            format!("is it up, and on the same wire? `ip neigh show {target}` tells its state"),
        ),
        Errno::EINVAL if target.is_ipv6() => Error::bad_input(
            format!("{target} cannot be used as a target"),
            "a link-local address needs its interface: fe80::1%eth0",
        ),
        Errno::EACCES => Error::bad_input(
            format!("{target} is a broadcast address"),
            "give the address of one host",
        ),
        Errno::ECONNREFUSED => Error::failed(
            format!("nothing reflects STAMP at {target}, UDP port {}", route.target.port()),
            "start `pw-probe reflect` there, or name its port with --port",
        ),
        errno => Error::failed(format!("cannot reach {target}: {}", errno.desc()), ""),
    }
}

impl Transport for SocketTransport {
    fn prepare(&mut self, sequence: u64) {
        // The kernel completes the checksum where it depends on the addresses.
        self.probe.write(&mut self.message, sequence, 0);
        self.sequence = sequence;
    }

    fn transmit(&mut self) -> io::Result<i64> {
        if self.count.must_restart(self.sequence) {
            timestamping::enable(self.socket.as_fd(), true)?;
            self.count.restarted(self.sequence);
        }
        let user_tx_ns = clock::realtime_ns();
        self.probe.set_time(&mut self.message, user_tx_ns);
        let sent = send(self.socket.as_raw_fd(), &self.message, MsgFlags::MSG_DONTWAIT);
        if let Err(errno) = sent {
            self.count.refused();
            return Err(errno.into());
        }
        self.count.sent();
        Ok(user_tx_ns)
    }

    fn receive(&mut self) -> io::Result<Option<Arrival>> {
        loop {
            let received = timestamping::receive(self.socket.as_fd(), &mut self.buffer)?;
            let user_rx_ns = clock::realtime_ns();
            let Some(received) = received else { return Ok(None) };
            self.dropped = received.dropped.unwrap_or(self.dropped);
            let bytes = &self.buffer[..received.bytes];
            let answer = if self.with_ip_header {
                // Skips the header alone: the buffer may be shorter than the packet.
                let header_bytes = usize::from(bytes.first().copied().unwrap_or(0) & 0x0f) * 4;
                self.probe.answer(bytes.get(header_bytes..).unwrap_or(&[]), user_rx_ns)
            } else {
                self.probe.answer(bytes, user_rx_ns)
            };
            if let Some(answer) = answer {
                return Ok(Some(Arrival {
                    sequence: answer.sequence,
                    kernel_rx_ns: received.kernel_rx_ns.unwrap_or(MISSING),
                    user_rx_ns,
                    residence_ns: answer.residence_ns,
                }));
            }
        }
    }

    fn transmit_stamp(&mut self) -> Option<(u64, i64)> {
        loop {
            match timestamping::error_queue(self.socket.as_fd()) {
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
        timestamping::wait_readable(self.socket.as_fd(), timeout_ns);
        Ok(())
    }

    fn interface(&self) -> (String, bool) {
        named(self.interface.as_deref())
    }

    fn dropped(&mut self) -> u64 {
        u64::from(self.dropped)
    }

    fn name(&self) -> &'static str {
        self.name
    }
}
