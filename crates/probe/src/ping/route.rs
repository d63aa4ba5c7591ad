//! Where probes leave. The kernel sends the first probe itself, which resolves the next hop (ARP, ND);
//! all later frames copy its headers, so that addresses, hop limit and traffic class are the kernel's
//! choice.

use std::io::{self, ErrorKind::AddrNotAvailable};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect,
    getsockname, send, socket,
};

use crate::capture::{NEEDS_RAW, attach_filter, bind_packet_socket, packet_socket};
use crate::clock;
use crate::error::{Error, Result};
use crate::filter::{self, Traffic};
use crate::frame::Template;
use crate::sockets::{self, set_option};
use crate::stamp::{self, ReflectorPacket, SenderPacket, TimeFormat};
use crate::stop;
use crate::wire::{self, ETHERNET_BYTES, Message, UPPER_HEADER_BYTES, WARMUP_BIT};

/// Interval of warm-up packets [ns].
pub const INTERVAL_NS: i64 = 100_000_000;

/// The route of probes and their IP options.
#[derive(Debug, Clone)]
pub struct ProbeRoute {
    /// Target; the scope of a link-local address is an interface's index. The port is that of the
    /// reflector or server, or 0.
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

impl ProbeRoute {
    /// Binds a socket to interface and source address, sets traffic class and TTL, and forbids
    /// fragmentation.
    ///
    /// # Errors
    /// There is no such interface or address.
    pub fn apply(&self, socket: BorrowedFd<'_>) -> Result<()> {
        if let Some(interface) = &self.interface {
            sockets::bind_to_device(socket, interface)?;
        }
        self.set_options(socket).map_err(|error| {
            let what = format!("cannot set the IP options for {}", self.target);
            Error::failed(what, "").caused_by(error)
        })?;
        let Some(source) = self.source else { return Ok(()) };
        bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0))).map_err(
            |errno| {
                let why = io::Error::from(errno);
                let why = if why.kind() == AddrNotAvailable {
                    "it is not an address of this host".to_owned()
                } else {
                    why.to_string()
                };
                Error::bad_input(
                    format!("cannot send from {source}: {why}"),
                    "give --source an address of this host (`ip address` lists them)",
                )
            },
        )
    }

    fn set_options(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let (level, class, discover, receive_errors, hops, always) = if self.target.is_ipv6() {
            let names = (libc::IPV6_TCLASS, libc::IPV6_MTU_DISCOVER, libc::IPV6_RECVERR);
            let hops = libc::IPV6_UNICAST_HOPS;
            (libc::IPPROTO_IPV6, names.0, names.1, names.2, hops, libc::IPV6_PMTUDISC_DO)
        } else {
            let names = (libc::IP_TOS, libc::IP_MTU_DISCOVER, libc::IP_RECVERR);
            (libc::IPPROTO_IP, names.0, names.1, names.2, libc::IP_TTL, libc::IP_PMTUDISC_DO)
        };
        set_option(socket, level, class, libc::c_int::from(self.dscp) << 2)?;
        set_option(socket, level, discover, always)?;
        set_option(socket, level, receive_errors, 1)?;
        self.ttl.map_or(Ok(()), |ttl| set_option(socket, level, hops, libc::c_int::from(ttl)))
    }

    /// The error for a target that cannot be reached, by the kernel's errno.
    pub fn unreachable(&self, errno: Errno) -> Error {
        let target = self.target.ip();
        match errno {
            Errno::ENETUNREACH => Error::failed(
                format!("there is no route to {target}"),
                format!(
                    "give this host an address in its network or a route (`ip route get {target}`); \
                     is the interface up?"
                ),
            ),
            Errno::EHOSTUNREACH => Error::failed(
                format!(
                    "{target} cannot be reached: it does not answer {}, or a router says so",
                    if target.is_ipv4() { "ARP" } else { "neighbour solicitation" }
                ),
                format!("is it up, and on the same wire? `ip neigh show {target}` shows its state"),
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
                format!("nothing reflects STAMP at {target}, UDP port {}", self.target.port()),
                "start `pw-probe reflect` there, or name its port with --port",
            ),
            errno => Error::failed(format!("cannot reach {target}: {}", errno.desc()), ""),
        }
    }

    fn too_large(&self, size_bytes: usize) -> Error {
        let what =
            format!("a frame of {size_bytes} bytes does not fit the path to {}", self.target.ip());
        // A frame is the MTU with Ethernet header and FCS.
        let remedy = match self.path_mtu() {
            Some(mtu) => format!(
                "its MTU is {mtu}: the largest is --size {}, or raise the MTU (ip link set IF mtu N)",
                mtu + 18
            ),
            None => "choose a smaller --size, or raise the MTU (ip link set IF mtu N)".to_owned(),
        };
        Error::bad_input(what, remedy)
    }

    fn path_mtu(&self) -> Option<i32> {
        let ipv6 = self.target.is_ipv6();
        let socket = UdpSocket::bind((wire::unspecified(ipv6), 0)).ok()?;
        let mut target = self.target;
        target.set_port(9);
        socket.connect(target).ok()?;
        let (level, name) = if ipv6 {
            (libc::IPPROTO_IPV6, libc::IPV6_MTU)
        } else {
            (libc::IPPROTO_IP, libc::IP_MTU)
        };
        sockets::get_option(socket.as_fd(), level, name).ok()
    }
}

/// What tells the probes of one run from other packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// ICMP or ICMPv6 echo of this identifier.
    Echo(u16),
    /// STAMP over UDP.
    Stamp {
        /// Session identifier.
        ssid: u16,
        /// UDP port of the sender.
        source: u16,
        /// UDP port of the reflector.
        port: u16,
    },
}

/// A probe that was captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenProbe {
    /// Its sequence number; with [`WARMUP_BIT`] it is not a sample.
    pub sequence: u64,
    /// Whether it is an answer.
    pub answer: bool,
    /// Time in the reflector [ns]; -1 when unknown.
    pub residence_ns: i32,
}

impl Probe {
    /// The packets to capture.
    pub fn traffic(self) -> Traffic {
        match self {
            Self::Echo(identifier) => Traffic::Echo(Some(identifier)),
            Self::Stamp { source, .. } => Traffic::Udp(source),
        }
    }

    /// Recognises a request to `target` or its answer, in a packet from its IP header on.
    #[inline]
    pub fn find(self, network: &[u8], target: IpAddr, near_ns: i64) -> Option<SeenProbe> {
        let packet = wire::parse(network)?;
        match (self, packet.message) {
            (Self::Echo(id), Message::Echo { reply, identifier, payload, .. }) => {
                let peer = if reply { packet.source } else { packet.destination };
                let sequence = wire::echo_sequence(payload)?;
                let seen = SeenProbe { sequence, answer: reply, residence_ns: -1 };
                (identifier == id && peer == target).then_some(seen)
            }
            (
                Self::Stamp { ssid, source, port },
                Message::Udp { source: from, destination, payload },
            ) => {
                if (from, destination, packet.destination) == (source, port, target) {
                    let sequence = stamp::sequence(SenderPacket::parse(payload)?.sequence);
                    return Some(SeenProbe { sequence, answer: false, residence_ns: -1 });
                }
                if (from, destination, packet.source) != (port, source, target) {
                    return None;
                }
                let answer = ReflectorPacket::parse(payload)?;
                // A reflector without RFC 8972 leaves the identifier zero.
                let ours = answer.ssid == ssid || answer.ssid == 0;
                let residence_ns = i32::try_from(answer.residence_ns(near_ns)).unwrap_or(-1);
                ours.then_some(SeenProbe {
                    sequence: stamp::sequence(answer.sender_sequence),
                    answer: true,
                    residence_ns: residence_ns.max(-1),
                })
            }
            _ => None,
        }
    }
}

/// How the kernel sent its first probe.
#[derive(Debug)]
pub struct Departure {
    /// Frames like it.
    pub template: Template,
    /// The run's probes.
    pub probe: Probe,
    /// Source address that the kernel chose.
    pub source: IpAddr,
    /// Target address.
    pub target: IpAddr,
    /// Number of the output interface.
    pub index: u32,
    /// Name of the output interface.
    pub interface: String,
    /// Sent the probe. Receives nothing, but holds the port, so that the kernel does not answer
    /// "port unreachable", and hears of unreachable targets.
    pub socket: OwnedFd,
}

impl Departure {
    /// Makes the kernel send probes with a payload of `payload_bytes` behind the ICMP or UDP header
    /// until one is seen to leave.
    ///
    /// # Errors
    /// No route, no neighbour, too large for the MTU, not Ethernet, or CAP_NET_RAW is missing.
    pub fn of(
        route: &ProbeRoute,
        is_stamp: bool,
        (payload_bytes, size_bytes): (usize, usize),
        patience_ns: i64,
    ) -> Result<Self> {
        let watch = packet_socket()?;
        let socket = open(is_stamp, route.target.is_ipv6())?;
        let unusable = |what: &str, error: io::Error| {
            Error::failed(format!("cannot {what} for {}", route.target.ip()), "").caused_by(error)
        };
        route.apply(socket.as_fd())?;
        connect(socket.as_raw_fd(), &SockaddrStorage::from(route.target))
            .map_err(|errno| route.unreachable(errno))?;
        attach_filter(&socket, &filter::nothing())
            .map_err(|error| unusable("silence the socket", error))?;
        let local: SockaddrStorage = getsockname(socket.as_raw_fd())
            .map_err(|errno| unusable("find the source address", errno.into()))?;
        let local = sockets::ip_address(&local).unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
        let identifier = std::process::id() as u16;
        let probe = if is_stamp {
            let (source, port) = (local.port(), route.target.port());
            Probe::Stamp { ssid: identifier.max(1), source, port }
        } else {
            Probe::Echo(identifier)
        };
        attach_filter(&watch, &filter::program(probe.traffic(), u32::from(u16::MAX)))
            .and_then(|()| bind_packet_socket(&watch, 0, libc::ETH_P_ALL as u16))
            .map_err(|error| unusable("watch the first probe leave", error))?;

        let message = first_message(probe, route.target.is_ipv6(), payload_bytes);
        let end_ns = clock::monotonic_ns() + patience_ns;
        while clock::monotonic_ns() < end_ns && !stop::requested() {
            if let Err(errno) = send(socket.as_raw_fd(), &message, MsgFlags::MSG_DONTWAIT) {
                match errno {
                    Errno::EMSGSIZE => return Err(route.too_large(size_bytes)),
                    Errno::ENOBUFS | Errno::EAGAIN | Errno::EINTR => {}
                    errno => return Err(route.unreachable(errno)),
                }
            }
            let next_ns = clock::monotonic_ns() + INTERVAL_NS;
            while clock::monotonic_ns() < next_ns {
                let found = next_departure(&watch, probe, route.target.ip())
                    .map_err(|error| unusable("watch the first probe leave", error))?;
                if let Some((index, hardware, frame)) = found {
                    let interface = interface_name(index)
                        .map_err(|error| unusable("name the interface", error))?;
                    let ethernet = hardware == libc::ARPHRD_ETHER;
                    let template =
                        Template::of_probe(&frame).filter(|_| ethernet).ok_or_else(|| {
                            Error::failed(
                                format!(
                                    "the route to {} leaves by {interface}, which is no Ethernet \
                                 interface, or adds IP options",
                                    route.target.ip()
                                ),
                                "pw-probe sends whole Ethernet frames: name another --interface",
                            )
                        })?;
                    let (source, target) = (local.ip(), route.target.ip());
                    return Ok(Self { template, probe, source, target, index, interface, socket });
                }
                check(&socket, route)?;
                sockets::wait_readable(watch.as_fd(), 5_000_000);
            }
        }
        Err(Error::failed(
            format!("the kernel sent no probe to {}", route.target.ip()),
            "is its address resolved (`ip neigh`)? Does a firewall drop what leaves?",
        ))
    }
}

/// Fails when the network reported an error for the kernel's probe.
pub fn check(socket: &OwnedFd, route: &ProbeRoute) -> Result<()> {
    match sockets::failure(socket.as_fd()) {
        Ok(Some(errno)) => Err(route.unreachable(Errno::from_raw(errno))),
        _ => Ok(()),
    }
}

fn open(is_stamp: bool, ipv6: bool) -> Result<OwnedFd> {
    let family = if ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = match (is_stamp, ipv6) {
        (true, _) => socket(family, SockType::Datagram, flags, SockProtocol::Udp),
        (false, true) => socket(family, SockType::Raw, flags, SockProtocol::IcmpV6),
        (false, false) => socket(family, SockType::Raw, flags, SockProtocol::Icmp),
    };
    socket.map_err(|errno| match errno {
        Errno::EPERM | Errno::EACCES => {
            Error::failed("not allowed to send echo requests (CAP_NET_RAW is missing)", NEEDS_RAW)
        }
        errno => Error::failed(format!("cannot open a socket: {}", errno.desc()), ""),
    })
}

/// An echo request with its ICMP header, or the payload of a STAMP packet.
fn first_message(probe: Probe, ipv6: bool, payload_bytes: usize) -> Vec<u8> {
    match probe {
        Probe::Echo(identifier) => {
            let mut message = vec![0; UPPER_HEADER_BYTES + payload_bytes];
            message[0] = if ipv6 { 128 } else { 8 };
            message[4..6].copy_from_slice(&identifier.to_be_bytes());
            message[8..12].copy_from_slice(&wire::ECHO_MAGIC);
            message[12..20].copy_from_slice(&WARMUP_BIT.to_be_bytes());
            // The kernel replaces that of ICMPv6, which depends on the addresses.
            let checksum = wire::checksum(wire::sum_words(0, &message));
            message[2..4].copy_from_slice(&checksum.to_be_bytes());
            message
        }
        Probe::Stamp { ssid, .. } => {
            let mut message = vec![0; payload_bytes];
            let sequence = stamp::number(WARMUP_BIT);
            let error_estimate = stamp::error_estimate(TimeFormat::Ntp);
            SenderPacket { sequence, timestamp: [0; 8], error_estimate, ssid }.write(&mut message);
            message
        }
    }
}

/// The next outgoing probe, as the number of its interface, the interface's ARPHRD type, and the frame.
fn next_departure(
    watch: &OwnedFd,
    probe: Probe,
    target: IpAddr,
) -> io::Result<Option<(u32, u16, Vec<u8>)>> {
    let mut buffer = vec![0; wire::LARGEST_FRAME_BYTES + 64];
    while let Some(received) = sockets::receive(watch.as_fd(), &mut buffer)? {
        let link = received.source.as_ref().and_then(SockaddrStorage::as_link_addr);
        let Some(link) = link.filter(|link| link.pkttype() == libc::PACKET_OUTGOING) else {
            continue;
        };
        let frame = &buffer[..received.bytes];
        let network = frame.get(ETHERNET_BYTES..).unwrap_or(&[]);
        if probe.find(network, target, 0).is_some_and(|seen| !seen.answer) {
            return Ok(Some((link.ifindex() as u32, link.hatype(), frame.to_vec())));
        }
    }
    Ok(None)
}

/// Name of interface number `index`.
///
/// nix's `if_indextoname` (0.30) takes the null pointer of a missing interface for success.
pub fn interface_name(index: u32) -> io::Result<String> {
    let mut name = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the function asks for.
    let result = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if result.is_null() {
        return Err(io::Error::last_os_error());
    }
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_interface_has_no_name() {
        assert_eq!(interface_name(1).ok().as_deref(), Some("lo"));
        assert!(interface_name(u32::MAX >> 1).is_err());
    }

    /// An IPv4 packet between the hosts 1 and 2.
    fn packet(from: u8, protocol: u8, upper: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 20 + upper.len() as u8, 0, 0, 0, 0, 64, protocol, 0, 0];
        packet.extend([198, 18, 0, from, 198, 18, 0, 3 - from]);
        packet.extend(upper);
        packet
    }

    #[test]
    fn only_the_runs_own_requests_and_answers_are_found() {
        let target: IpAddr = [198, 18, 0, 2].into();
        let echo = |from, kind, identifier: u16| {
            let mut message = first_message(Probe::Echo(identifier), false, 18);
            message[0] = kind;
            Probe::Echo(7).find(&packet(from, 1, &message), target, 0).map(|seen| seen.answer)
        };
        assert_eq!((echo(1, 8, 7), echo(2, 0, 7)), (Some(false), Some(true)));
        assert_eq!((echo(2, 0, 8), echo(1, 0, 7), echo(2, 8, 7)), (None, None, None));

        let probe = Probe::Stamp { ssid: 5, source: 40_000, port: 862 };
        let stamp = |from, ports: [u16; 2], ssid| {
            let payload = first_message(Probe::Stamp { ssid, source: 0, port: 0 }, false, 44);
            let upper = [&ports.map(u16::to_be_bytes).concat()[..], &[0, 52, 0, 0], &payload];
            probe.find(&packet(from, 17, &upper.concat()), target, 0).map(|seen| seen.answer)
        };
        assert_eq!(stamp(1, [40_000, 862], 5), Some(false));
        assert_eq!(stamp(2, [862, 40_000], 5), Some(true));
        assert_eq!(stamp(2, [862, 40_000], 0), Some(true), "a reflector without RFC 8972");
        assert_eq!((stamp(2, [862, 40_000], 6), stamp(2, [862, 40_001], 5)), (None, None));
    }
}
