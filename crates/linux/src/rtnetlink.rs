//! Requests to the kernel's routing tables and their answers, and the parts of it that other netlink
//! sockets share.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use pw_error::{Error, Result};

/// Bytes of a netlink message's header (`struct nlmsghdr`).
pub const HEADER_BYTES: usize = 16;

const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// The dumped tables changed meanwhile: parts may be missing (`NLM_F_DUMP_INTR`).
const DUMP_INTERRUPTED: u16 = 0x10;
/// Most attempts at a dump that is interrupted.
const DUMP_TRIES: u32 = 10;

/// The kernel's refusal of a request: an errno.
pub type Errno = i32;

/// One message of an answer, its header included.
pub type Answer = Vec<u8>;

/// The route of packets to an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// Index of the output interface.
    pub interface_index: u32,
    /// The next hop; none: the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The source address that the kernel chooses.
    pub source: Option<IpAddr>,
    /// Whether the address is one of this namespace.
    pub local: bool,
}

/// A socket to the kernel's routing tables, bound to the namespace it was opened in.
pub struct RouteSocket {
    socket: Socket,
    sequence: u32,
}

impl std::fmt::Debug for RouteSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RouteSocket").finish_non_exhaustive()
    }
}

impl RouteSocket {
    /// Opens the socket in the calling thread's namespace.
    pub fn open() -> Result<Self> {
        let socket = open(NETLINK_ROUTE)
            .map_err(|error| Error::failed("cannot open a netlink socket", "").caused_by(error))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends one request and collects the answers. The inner result is the kernel's errno.
    ///
    /// # Errors
    /// The socket failed, or the library cannot read an answer: what is unknown is not left out.
    pub fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<std::result::Result<Vec<RouteNetlinkMessage>, Errno>> {
        match self.exchange(message, flags)? {
            Ok(answers) => answers.iter().map(|answer| read(answer)).collect::<Result<_>>().map(Ok),
            Err(code) => Ok(Err(code)),
        }
    }

    /// Dumps a table. Repeats a dump that the kernel reports as interrupted.
    pub fn dump(&mut self, message: &RouteNetlinkMessage) -> Result<Vec<RouteNetlinkMessage>> {
        uninterrupted(|| self.request(message.clone(), NLM_F_DUMP))?.map_err(|code| {
            let why = errno_text(code);
            Error::failed(format!("the kernel did not list what was asked for: {why}"), "")
        })
    }

    /// All interfaces.
    pub fn links(&mut self) -> Result<Vec<LinkMessage>> {
        let answers = self.dump(&RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        Ok(answers.into_iter().filter_map(link).collect())
    }

    /// The interface with the name or index in `request`. The inner result is the kernel's errno.
    pub fn link(
        &mut self,
        request: LinkMessage,
    ) -> Result<std::result::Result<Option<LinkMessage>, Errno>> {
        let answers = self.request(RouteNetlinkMessage::GetLink(request), 0)?;
        Ok(answers.map(|answers| answers.into_iter().find_map(link)))
    }

    /// All routes, of IPv4 and of IPv6.
    pub fn routes(&mut self) -> Result<Vec<RouteMessage>> {
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut request = RouteMessage::default();
            request.header.address_family = family;
            let answers = self.dump(&RouteNetlinkMessage::GetRoute(request))?;
            routes.extend(answers.into_iter().filter_map(|answer| match answer {
                RouteNetlinkMessage::NewRoute(route) => Some(route),
                _ => None,
            }));
        }
        Ok(routes)
    }

    /// The route of packets from this namespace to `destination`, from its address `source` and
    /// through the interface `oif` if given; none when there is no route.
    pub fn route(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
        oif: Option<u32>,
    ) -> Result<Option<Hop>> {
        let bits = if destination.is_ipv4() { 32 } else { 128 };
        let mut message = RouteMessage::default();
        message.header.address_family = destination.into();
        message.header.destination_prefix_length = bits;
        message.attributes.push(RouteAttribute::Destination(destination.into()));
        if let Some(source) = source {
            message.header.source_prefix_length = bits;
            message.attributes.push(RouteAttribute::Source(source.into()));
        }
        message.attributes.extend(oif.map(RouteAttribute::Oif));
        let Ok(answers) = self.request(RouteNetlinkMessage::GetRoute(message), 0)? else {
            return Ok(None);
        };
        let Some(RouteNetlinkMessage::NewRoute(route)) = answers.into_iter().next() else {
            return Ok(None);
        };
        let unreachable =
            [RouteType::Unreachable, RouteType::BlackHole, RouteType::Prohibit, RouteType::Throw];
        if unreachable.contains(&route.header.kind) {
            return Ok(None);
        }
        let mut hop = Hop {
            interface_index: oif.unwrap_or(0),
            gateway: None,
            source: None,
            local: route.header.kind == RouteType::Local,
        };
        for attribute in route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => hop.interface_index = index,
                RouteAttribute::Gateway(address) => hop.gateway = ip(&address),
                RouteAttribute::PrefSource(address) => hop.source = ip(&address),
                _ => {}
            }
        }
        Ok(Some(hop))
    }

    /// This namespace's number for the namespace of an open file; none: nothing here refers to it.
    pub fn netns_number(&mut self, netns: BorrowedFd<'_>) -> Result<Option<i32>> {
        let mut ask = NsidMessage::default();
        ask.attributes.push(NsidAttribute::Fd(netns.as_raw_fd() as u32));
        let answers = self.request(RouteNetlinkMessage::GetNsId(ask), 0)?.unwrap_or_default();
        let ids = answers.into_iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewNsId(message) => Some(message.attributes),
            _ => None,
        });
        Ok(ids.flatten().find_map(|attribute| match attribute {
            NsidAttribute::Id(id) if id >= 0 => Some(id),
            _ => None,
        }))
    }

    /// Sends one request and collects the answers as they came, headers included. The inner result
    /// is the kernel's errno.
    pub fn exchange(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<std::result::Result<Vec<Answer>, Errno>> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map_err(failed)?;
        collect(&self.socket, self.sequence, flags)
    }
}

/// Opens a socket of this netlink protocol in the calling thread's namespace.
pub fn open(protocol: isize) -> std::io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// Builds a message that the library does not know; `head` is its family's own header.
pub fn message(kind: u16, flags: u16, sequence: u32, head: [u8; 4], attributes: &[u8]) -> Vec<u8> {
    let length = (HEADER_BYTES + head.len() + attributes.len()) as u32;
    let words = [&kind.to_ne_bytes()[..], &flags.to_ne_bytes(), &sequence.to_ne_bytes(), &[0; 4]];
    [&length.to_ne_bytes()[..], &words.concat(), &head, attributes].concat()
}

/// Repeats a dump while it is interrupted (`EINTR`).
pub(crate) fn uninterrupted<T>(
    mut dump: impl FnMut() -> Result<std::result::Result<T, Errno>>,
) -> Result<std::result::Result<T, Errno>> {
    for _ in 1..DUMP_TRIES {
        match dump()? {
            Err(libc::EINTR) => {}
            answer => return Ok(answer),
        }
    }
    dump()
}

fn link(answer: RouteNetlinkMessage) -> Option<LinkMessage> {
    match answer {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    }
}

/// A route's address; none for other families than IP.
pub fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

/// The answers to the request `sequence`, headers included; the kernel's errno where it refuses.
pub(crate) fn collect(
    socket: &Socket,
    sequence: u32,
    flags: u16,
) -> Result<std::result::Result<Vec<Answer>, Errno>> {
    let mut gathered = Gathered { sequence, flags, ..Gathered::default() };
    loop {
        let (datagram, _) = socket.recv_from_full().map_err(failed)?;
        if let Some(result) = gathered.add(&datagram) {
            return Ok(result);
        }
    }
}

/// The answers to one request, so far.
#[derive(Debug, Default)]
struct Gathered {
    sequence: u32,
    flags: u16,
    answers: Vec<Answer>,
    interrupted: bool,
}

impl Gathered {
    fn end(&mut self, code: Errno) -> std::result::Result<Vec<Answer>, Errno> {
        if code == 0 { Ok(std::mem::take(&mut self.answers)) } else { Err(code) }
    }

    /// Adds a datagram; returns the result if it was the last, or the kernel refuses.
    fn add(&mut self, datagram: &[u8]) -> Option<std::result::Result<Vec<Answer>, Errno>> {
        for part in messages(datagram).into_iter().filter(|part| part.sequence == self.sequence) {
            let dump = self.flags & NLM_F_DUMP == NLM_F_DUMP;
            self.interrupted |= dump && part.flags & DUMP_INTERRUPTED != 0;
            match part.kind {
                NLMSG_NOOP => {}
                NLMSG_DONE if self.interrupted => return Some(Err(libc::EINTR)),
                // The end of a dump has its errno; others have none.
                NLMSG_DONE => return Some(self.end(part.done_errno())),
                NLMSG_ERROR => return Some(self.end(part.errno())),
                _ => {
                    self.answers.push(part.bytes.to_vec());
                    if self.flags & (NLM_F_DUMP | NLM_F_ACK) == 0 {
                        return Some(self.end(0));
                    }
                }
            }
        }
        None
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::failed("the kernel's netlink socket failed", "").caused_by(error)
}

/// Parses an answer.
fn read(answer: &[u8]) -> Result<RouteNetlinkMessage> {
    let wrong = |why: &dyn std::fmt::Display| {
        Error::failed(format!("the kernel's answer cannot be read: {why}"), "")
    };
    let parse = NetlinkMessage::<RouteNetlinkMessage>::deserialize;
    // Names are bytes to the kernel, and may not be UTF-8.
    let parsed = parse(answer).or_else(|_| parse(&with_plain_names(answer)));
    match parsed.map_err(|error| wrong(&error))?.payload {
        NetlinkPayload::InnerMessage(inner) => Ok(inner),
        _ => Err(wrong(&"it is of another kind")),
    }
}

/// The message about an interface, with a question mark for each byte of its names that is not ASCII.
fn with_plain_names(answer: &[u8]) -> Vec<u8> {
    /// `struct nlmsghdr` and `struct ifinfomsg`.
    const BEFORE_ATTRIBUTES: usize = 32;
    const IFNAME: u16 = 3;
    const IFALIAS: u16 = 20;
    const PROP_LIST: u16 = 52;
    const ALT_IFNAME: u16 = 53;
    let mut plain = answer.to_vec();
    let mut at = BEFORE_ATTRIBUTES;
    while let Some(&[a, b, c, d]) = plain.get(at..at + 4) {
        let (length, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
        let kind = kind & 0x3fff;
        if length < 4 {
            break;
        }
        let end = (at + length).min(plain.len());
        if matches!(kind, IFNAME | IFALIAS | ALT_IFNAME) {
            for byte in plain[at + 4..end].iter_mut().filter(|byte| !byte.is_ascii()) {
                *byte = b'?';
            }
        }
        // The list's own attributes follow its head.
        at += if kind == PROP_LIST { 4 } else { length.next_multiple_of(4) };
    }
    plain
}

/// A socket for what the kernel reports by itself.
pub struct Monitor(Socket);

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Monitor").finish_non_exhaustive()
    }
}

impl Monitor {
    /// Subscribes to a group (`RTNLGRP_…`) in the calling thread's namespace.
    pub fn open(group: u32) -> Result<Self> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.add_membership(group)?;
            socket.set_non_blocking(true)?;
            // Of a flood, what fits; without the privilege the usual size has to do.
            let _ = nix::sys::socket::setsockopt(
                &socket,
                nix::sys::socket::sockopt::RcvBufForce,
                &(4 << 20),
            );
            Ok(Self(socket))
        };
        open().map_err(failed)
    }

    /// What was reported since the last call; none: some of it was lost.
    pub fn drain(&self) -> Option<Vec<RouteNetlinkMessage>> {
        let (mut reported, mut complete) = (Vec::new(), true);
        loop {
            match self.0.recv_from_full() {
                Ok((datagram, _)) => {
                    for part in messages(&datagram) {
                        match read(part.bytes) {
                            Ok(message) => reported.push(message),
                            Err(_) => complete = false,
                        }
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => complete = false,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return complete.then_some(reported);
                }
                Err(_) => return None,
            }
        }
    }
}

/// The system's words for an errno.
pub fn errno_text(code: Errno) -> String {
    std::io::Error::from_raw_os_error(code).to_string()
}

/// A message of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    /// The header included.
    bytes: &'a [u8],
}

impl Part<'_> {
    /// The errno of an NLMSG_ERROR: 0 is an acknowledgement; one that is cut short is a failure.
    fn errno(&self) -> Errno {
        let code = self.bytes.get(HEADER_BYTES..HEADER_BYTES + 4);
        code.and_then(|bytes| bytes.try_into().ok())
            .map_or(libc::EBADMSG, |bytes| i32::from_ne_bytes(bytes).saturating_abs())
    }

    /// The errno of an NLMSG_DONE; none is success.
    fn done_errno(&self) -> Errno {
        if self.bytes.len() < HEADER_BYTES + 4 { 0 } else { self.errno() }
    }
}

/// The messages of a datagram, up to the first that does not fit into it.
fn messages(datagram: &[u8]) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut unread = datagram;
    while unread.len() >= HEADER_BYTES {
        let length = u32::from_ne_bytes([unread[0], unread[1], unread[2], unread[3]]) as usize;
        if !(HEADER_BYTES..=unread.len()).contains(&length) {
            break;
        }
        parts.push(Part {
            kind: u16::from_ne_bytes([unread[4], unread[5]]),
            flags: u16::from_ne_bytes([unread[6], unread[7]]),
            sequence: u32::from_ne_bytes([unread[8], unread[9], unread[10], unread[11]]),
            bytes: &unread[..length],
        });
        unread = &unread[length.next_multiple_of(4).min(unread.len())..];
    }
    parts
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::rule::RuleMessage;

    use super::*;

    #[test]
    fn a_dump_of_links_holds_the_loopback_interface() {
        let mut socket = RouteSocket::open().expect("Linux");
        let request = || RouteNetlinkMessage::GetLink(LinkMessage::default());
        let parsed = socket.request(request(), NLM_F_DUMP).expect("answered").expect("allowed");
        assert!(!parsed.is_empty());
        let raw = socket.exchange(request(), NLM_F_DUMP).expect("answered").expect("allowed");
        assert_eq!(raw.len(), parsed.len());
    }

    #[test]
    fn an_interface_whose_names_are_no_text_is_seen_all_the_same() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        let seen = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            let ip = |words: &[&[u8]]| {
                let words = words.iter().map(|word| OsStr::from_bytes(word));
                std::process::Command::new("ip").args(words).status().is_ok_and(|end| end.success())
            };
            let made = ip(&[b"link", b"add", b"pw\xff", b"type", b"veth", b"peer", b"pwb"])
                && ip(&[b"link", b"set", b"pwb", b"alias", b"\xc3("]);
            made.then(|| RouteSocket::open().and_then(|mut socket| socket.links()))
        });
        let Some(links) = seen.join().expect("no panic") else {
            return eprintln!("skipped: needs root");
        };
        let names = |link: &LinkMessage| {
            link.attributes.iter().find_map(|attribute| match attribute {
                netlink_packet_route::link::LinkAttribute::IfName(name) => Some(name.clone()),
                _ => None,
            })
        };
        let names: Vec<String> = links.expect("answered").iter().filter_map(names).collect();
        assert_eq!(names, ["lo", "pwb", "pw?"]);
    }

    #[test]
    fn a_dump_that_the_kernel_refuses_is_an_error_and_not_empty() {
        let mut socket = RouteSocket::open().expect("Linux");
        let all = RouteNetlinkMessage::GetLink(LinkMessage::default());
        assert!(!socket.dump(&all).expect("answered").is_empty());
        // There are no routing rules for raw packets.
        let mut rule = RuleMessage::default();
        rule.header.family = AddressFamily::Packet;
        let refused = socket.dump(&RouteNetlinkMessage::GetRule(rule)).expect_err("refused");
        assert!(refused.what.contains("did not list"), "{}", refused.what);
    }

    /// A message as the kernel writes it, with this code behind its header.
    fn message(kind: u16, flags: u16, sequence: u32, code: Errno) -> Vec<u8> {
        super::message(kind, flags, sequence, code.to_ne_bytes(), &[])
    }

    #[test]
    fn a_dump_that_ends_early_or_was_interrupted_is_not_what_it_told_so_far() {
        const NEW_LINK: u16 = 16;
        let gather = |flags, parts: &[Vec<u8>]| {
            let mut gathered = Gathered { sequence: 7, flags, ..Gathered::default() };
            parts.iter().find_map(|part| gathered.add(part))
        };
        let link = |flags| message(NEW_LINK, flags, 7, 0);
        let done = |flags, code| message(NLMSG_DONE, flags, 7, code);
        let dump = |parts: &[Vec<u8>]| gather(NLM_F_DUMP, parts);
        assert_eq!(dump(&[link(0), link(0), done(0, 0)]).unwrap().unwrap().len(), 2);
        assert_eq!(dump(&[link(0)]), None);
        assert_eq!(dump(&[link(0), done(0, -libc::ENOMEM)]), Some(Err(libc::ENOMEM)));
        let interrupted = Some(Err(libc::EINTR));
        assert_eq!(dump(&[link(DUMP_INTERRUPTED), link(0), done(0, 0)]), interrupted);
        assert_eq!(dump(&[link(0), done(DUMP_INTERRUPTED, 0)]), interrupted);
        assert_eq!(dump(&[message(NLMSG_ERROR, 0, 7, -libc::EPERM)]), Some(Err(libc::EPERM)));
        // The answer to another request.
        assert_eq!(dump(&[message(NLMSG_DONE, 0, 6, 0)]), None);
        assert_eq!(
            gather(NLM_F_ACK, &[link(0), message(NLMSG_ERROR, 0, 7, 0)]).unwrap().unwrap().len(),
            1
        );
    }

    #[test]
    fn no_datagram_can_be_read_past_its_end() {
        pw_cases::check!().with_type::<Vec<u8>>().for_each(|datagram| {
            let parts = messages(datagram);
            assert!(parts.iter().map(|part| part.bytes.len()).sum::<usize>() <= datagram.len());
            for part in parts {
                assert!(part.errno() >= 0);
                let _ = read(part.bytes);
            }
        });
    }
}
