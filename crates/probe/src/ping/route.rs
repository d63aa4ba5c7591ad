//! Where probes leave. The kernel sends the first probes itself, which resolves the next hop (ARP, ND)
//! and shows whether the target can be reached at all.

use std::io::ErrorKind::AddrNotAvailable;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect,
    getsockname, getsockopt, send, socket, sockopt,
};

use crate::capture::{NEEDS_RAW, attach_filter};
use crate::clock;
use crate::error::{Error, Result};
use crate::filter::{self, Traffic};
use crate::frame::{Probe, Template};
use crate::netlink::Netlink;
use crate::resolve;
use crate::sockets::{self, set_option};
use crate::stamp::{self, ReflectorPacket, SenderPacket};
use crate::wire::{self, ETHERNET_BYTES, FCS_BYTES, Message, UPPER_HEADER_BYTES, WARMUP_BIT};

/// The route of probes.
#[derive(Debug, Clone)]
pub struct ProbeRoute {
    /// Target; the scope of a link-local address is an interface's index. The port is that of the
    /// reflector or server, or 0.
    pub target: SocketAddr,
    /// Source address, when it is not the kernel's choice.
    pub source: Option<IpAddr>,
    /// Interface, when it is not the kernel's choice.
    pub interface: Option<String>,
}

impl ProbeRoute {
    /// Binds a socket to interface and source address, and makes it report unreachable targets.
    ///
    /// # Errors
    /// There is no such interface or address.
    pub fn apply(&self, socket: BorrowedFd<'_>) -> Result<()> {
        if let Some(interface) = &self.interface {
            sockets::bind_to_device(socket, interface)?;
        }
        let (level, name) = if self.target.is_ipv6() {
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        } else {
            (libc::IPPROTO_IP, libc::IP_RECVERR)
        };
        set_option(socket, level, name, 1).map_err(|error| {
            let what = format!("cannot set the IP options for {}", self.target);
            Error::failed(what, "").caused_by(error)
        })?;
        let Some(source) = self.source else { return Ok(()) };
        bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(source, 0))).map_err(
            |errno| {
                let why = std::io::Error::from(errno);
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
            Errno::ECONNREFUSED if self.target.port() > 0 => Error::failed(
                format!("nothing reflects STAMP at {target}, UDP port {}", self.target.port()),
                "start `pw-probe reflect` there, or name its port with --port",
            ),
            errno => Error::failed(format!("cannot reach {target}: {}", errno.desc()), ""),
        }
    }
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
                let residence_ns = answer.residence_ns(near_ns).unwrap_or(-1);
                let residence_ns = i32::try_from(residence_ns).unwrap_or(-1);
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

/// How probes leave.
#[derive(Debug)]
pub struct Departure {
    /// The frames.
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
    /// Sent the first probes. Receives nothing, but holds the port, so that the kernel does not answer
    /// "port unreachable", and hears of unreachable targets.
    pub socket: OwnedFd,
}

impl Departure {
    /// Makes the kernel send probes with a payload of `payload_bytes` behind the ICMP or UDP header
    /// until the next hop is known.
    ///
    /// # Errors
    /// No route, no neighbour, too large for the MTU, not Ethernet, or CAP_NET_RAW is missing.
    pub fn of(
        route: &ProbeRoute,
        is_stamp: bool,
        payload_bytes: usize,
        patience_ns: i64,
    ) -> Result<Self> {
        let target = route.target.ip();
        let unusable = |what: &str, error: std::io::Error| {
            Error::failed(format!("cannot {what} for {target}"), "").caused_by(error)
        };
        let socket = open(is_stamp, route.target.is_ipv6())?;
        route.apply(socket.as_fd())?;
        connect(socket.as_raw_fd(), &SockaddrStorage::from(route.target))
            .map_err(|errno| route.unreachable(errno))?;
        attach_filter(&socket, &filter::nothing())
            .map_err(|error| unusable("silence the socket", error))?;
        let local: SockaddrStorage = getsockname(socket.as_raw_fd())
            .map_err(|errno| unusable("find the source address", errno.into()))?;
        let local = sockets::ip_address(&local).unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
        let source = local.ip();

        let mut netlink = Netlink::open()?;
        let by = match (&route.interface, route.target) {
            (Some(name), _) => Some(netlink.link_at(name, name)?.index),
            (None, SocketAddr::V6(to)) => Some(to.scope_id()).filter(|&scope| scope > 0),
            (None, SocketAddr::V4(_)) => None,
        };
        let hop = netlink.socket.route(target, Some(source), by)?;
        let hop = hop.ok_or_else(|| route.unreachable(Errno::ENETUNREACH))?;
        let link = netlink.link_number(hop.interface_index)?;
        let link = link.ok_or_else(|| route.unreachable(Errno::ENETUNREACH))?;
        let Some(mac) = link.mac.filter(|_| !hop.local) else {
            return Err(Error::failed(
                format!(
                    "the route to {target} leaves by {}, which is no Ethernet interface",
                    link.name
                ),
                "pw-probe sends whole Ethernet frames: name another --interface",
            ));
        };

        let identifier = std::process::id() as u16;
        let probe = if is_stamp {
            let (source, port) = (local.port(), route.target.port());
            Probe::Stamp { ssid: identifier.max(1), source, port }
        } else {
            Probe::Echo(identifier)
        };
        let mut template = Template::of_probe(source, target, probe, payload_bytes)?;
        let message_bytes = UPPER_HEADER_BYTES + payload_bytes;
        let packet_bytes = wire::ip_header_bytes(target) + message_bytes;
        if packet_bytes > link.mtu_bytes as usize {
            let (mtu, size) = (link.mtu_bytes, packet_bytes + ETHERNET_BYTES + FCS_BYTES);
            return Err(Error::bad_input(
                format!("a frame of {size} bytes does not fit {}: its MTU is {mtu}", link.name),
                format!(
                    "the largest is --size {}, or raise the MTU (ip link set IF mtu N)",
                    mtu as usize + ETHERNET_BYTES + FCS_BYTES
                ),
            ));
        }
        let mut first = template.bytes().to_vec();
        template.stamp(&mut first, WARMUP_BIT, clock::realtime_ns());
        let first = &first[template.upper_at..template.upper_at + message_bytes];
        // Of UDP the kernel makes the header.
        let first = if is_stamp { &first[UPPER_HEADER_BYTES..] } else { first };
        let neighbour = hop.gateway.unwrap_or(target);
        let next_hop = resolve::next_hop(&mut netlink, link.index, neighbour, patience_ns, || {
            match send(socket.as_raw_fd(), first, MsgFlags::MSG_DONTWAIT) {
                Ok(_) | Err(Errno::ENOBUFS | Errno::EAGAIN | Errno::EINTR) => Ok(()),
                Err(errno) => Err(route.unreachable(errno)),
            }
        })?;
        check(&socket, route)?;
        let next_hop = next_hop.ok_or_else(|| {
            Error::failed(
                format!("the kernel does not find {neighbour} on {}", link.name),
                "is its address resolved (`ip neigh`)? Does a firewall drop what leaves?",
            )
        })?;
        template.set_macs(mac, next_hop);
        let (index, interface) = (link.index, link.name);
        Ok(Self { template, probe, source, target, index, interface, socket })
    }
}

/// Fails when the network reported an error for the kernel's probe.
pub fn check(socket: &OwnedFd, route: &ProbeRoute) -> Result<()> {
    match getsockopt(socket, sockopt::SocketError) {
        Ok(errno) if errno != 0 => Err(route.unreachable(Errno::from_raw(errno))),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet between the hosts 1 and 2.
    fn packet(from: u8, protocol: u8, upper: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 20 + upper.len() as u8, 0, 0, 0, 0, 64, protocol, 0, 0];
        packet.extend([198, 18, 0, from, 198, 18, 0, 3 - from]);
        packet.extend(upper);
        packet
    }

    /// A request from its ICMP or UDP header on.
    fn message(probe: Probe, payload_bytes: usize) -> Vec<u8> {
        let ends: [IpAddr; 2] = [[198, 18, 0, 1].into(), [198, 18, 0, 2].into()];
        let template = Template::of_probe(ends[0], ends[1], probe, payload_bytes).expect("fits");
        template.bytes()[template.upper_at..].to_vec()
    }

    #[test]
    fn only_the_runs_own_requests_and_answers_are_found() {
        let target: IpAddr = [198, 18, 0, 2].into();
        let echo = |from, kind, identifier: u16| {
            let mut message = message(Probe::Echo(identifier), 18);
            message[0] = kind;
            Probe::Echo(7).find(&packet(from, 1, &message), target, 0).map(|seen| seen.answer)
        };
        assert_eq!((echo(1, 8, 7), echo(2, 0, 7)), (Some(false), Some(true)));
        assert_eq!((echo(2, 0, 8), echo(1, 0, 7), echo(2, 8, 7)), (None, None, None));

        let probe = Probe::Stamp { ssid: 5, source: 40_000, port: 862 };
        let stamp = |from, ports: [u16; 2], ssid| {
            let [source, port] = ports;
            let upper = message(Probe::Stamp { ssid, source, port }, 44);
            probe.find(&packet(from, 17, &upper), target, 0).map(|seen| seen.answer)
        };
        assert_eq!(stamp(1, [40_000, 862], 5), Some(false));
        assert_eq!(stamp(2, [862, 40_000], 5), Some(true));
        assert_eq!(stamp(2, [862, 40_000], 0), Some(true), "a reflector without RFC 8972");
        assert_eq!((stamp(2, [862, 40_000], 6), stamp(2, [862, 40_001], 5)), (None, None));
    }
}
