//! The wire format of probes: echo payload, checksums, sizes, and the parts of received packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{Icmpv4Type, Icmpv6Type, LaxNetSlice, LaxSlicedPacket, TransportSlice};

use crate::error::{Error, Result};

/// First four bytes of an echo request's payload.
pub const ECHO_MAGIC: [u8; 4] = *b"PWP1";
/// Magic and 64-bit sequence number; zeros follow.
pub const ECHO_HEADER_BYTES: usize = 12;
/// Set in the 64-bit sequence number of warm-up echoes, which are no samples.
pub const WARMUP_BIT: u64 = 1 << 63;

/// Ethernet header without a VLAN tag.
pub const ETHERNET_BYTES: usize = 14;
/// Frame check sequence, part of every frame size in this project (RFC 2544, section 9).
pub const FCS_BYTES: usize = 4;
/// Smallest Ethernet frame, with its FCS.
pub const SMALLEST_FRAME_BYTES: usize = 64;
/// Largest frame of this program, with its FCS.
pub const LARGEST_FRAME_BYTES: usize = 9000;
/// ICMP echo header, and UDP header: both have 8 bytes.
pub const UPPER_HEADER_BYTES: usize = 8;

/// Length of the IP header of packets to `target`: no options, no extension headers.
pub fn ip_header_bytes(target: IpAddr) -> usize {
    if target.is_ipv4() { 20 } else { 40 }
}

/// The smallest frame with this payload behind an ICMP or UDP header [bytes with FCS].
pub fn smallest_bytes(target: IpAddr, payload_bytes: usize) -> usize {
    let headers = ETHERNET_BYTES + FCS_BYTES + ip_header_bytes(target) + UPPER_HEADER_BYTES;
    (headers + payload_bytes).max(SMALLEST_FRAME_BYTES)
}

/// The sizes of a frame with its FCS, as requested or the smallest, and of its payload behind the ICMP
/// or UDP header [bytes]. `least` is the protocol's smallest payload.
///
/// # Errors
/// The frame is too small or too large; the error names the limit.
pub fn sizes(
    size_bytes: Option<usize>,
    target: IpAddr,
    least: usize,
    protocol: &str,
) -> Result<(usize, usize)> {
    let smallest = smallest_bytes(target, least);
    let size_bytes = size_bytes.unwrap_or(smallest);
    let family = if target.is_ipv4() { "IPv4" } else { "IPv6" };
    if size_bytes < smallest {
        return Err(Error::bad_input(
            format!("a frame of {size_bytes} bytes is too small for {protocol} over {family}"),
            format!("the smallest is --size {smallest} (the size includes the 4-byte FCS)"),
        ));
    }
    if size_bytes > LARGEST_FRAME_BYTES {
        return Err(Error::bad_input(
            format!("a frame of {size_bytes} bytes is too large"),
            format!("the largest is --size {LARGEST_FRAME_BYTES} (the size includes the FCS)"),
        ));
    }
    let headers = ETHERNET_BYTES + FCS_BYTES + ip_header_bytes(target) + UPPER_HEADER_BYTES;
    Ok((size_bytes, size_bytes - headers))
}

/// The 64-bit sequence number of an echo payload; none without the magic. A number with
/// [`WARMUP_BIT`] is not a sample.
#[inline]
pub fn echo_sequence(payload: &[u8]) -> Option<u64> {
    let header: &[u8; ECHO_HEADER_BYTES] = payload.first_chunk()?;
    if header[..4] != ECHO_MAGIC {
        return None;
    }
    header[4..].try_into().ok().map(u64::from_be_bytes)
}

/// The wildcard address.
pub fn unspecified(ipv6: bool) -> IpAddr {
    if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// The checksum field for a ones' complement sum.
#[inline]
pub fn checksum(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

/// The parts of a received packet that may be a probe or an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// What it carries.
    pub message: Message<'a>,
}

/// What a packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// ICMP or ICMPv6 echo.
    Echo {
        /// Whether it is the answer.
        reply: bool,
        /// Identifier.
        identifier: u16,
        /// The 16-bit sequence number.
        sequence: u16,
        /// Payload behind the 8-byte header.
        payload: &'a [u8],
    },
    /// A UDP datagram.
    Udp {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
        /// Payload.
        payload: &'a [u8],
    },
}

/// Parses a packet from its IP header on, which a capture may have cut short. None for fragments and
/// for packets that are neither echoes nor UDP.
#[inline]
pub fn parse(network: &[u8]) -> Option<Packet<'_>> {
    let packet = LaxSlicedPacket::from_ip(network).ok()?;
    let (source, destination): (IpAddr, IpAddr) = match packet.net? {
        LaxNetSlice::Ipv4(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        LaxNetSlice::Ipv6(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        LaxNetSlice::Arp(_) => return None,
    };
    let (reply, echo, payload) = match packet.transport? {
        TransportSlice::Icmpv4(icmp) => match icmp.icmp_type() {
            Icmpv4Type::EchoRequest(echo) => (false, echo, icmp.payload()),
            Icmpv4Type::EchoReply(echo) => (true, echo, icmp.payload()),
            _ => return None,
        },
        TransportSlice::Icmpv6(icmp) => match icmp.icmp_type() {
            Icmpv6Type::EchoRequest(echo) => (false, echo, icmp.payload()),
            Icmpv6Type::EchoReply(echo) => (true, echo, icmp.payload()),
            _ => return None,
        },
        TransportSlice::Udp(udp) => {
            let message = Message::Udp {
                source: udp.source_port(),
                destination: udp.destination_port(),
                payload: udp.payload(),
            };
            return Some(Packet { source, destination, message });
        }
        TransportSlice::Tcp(_) => return None,
    };
    let message = Message::Echo { reply, identifier: echo.id, sequence: echo.seq, payload };
    Some(Packet { source, destination, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1));

    #[test]
    fn the_echo_payload_is_as_documented() {
        assert_eq!(
            echo_sequence(b"PWP1\x01\x02\x03\x04\x05\x06\x07\x08\0"),
            Some(0x0102_0304_0506_0708)
        );
        assert_eq!(echo_sequence(b"PWP2\0\0\0\0\0\0\0\x01"), None);
        assert_eq!(echo_sequence(b"PWP1\0\0\0\0\0\0\0"), None);
    }

    #[test]
    fn a_frame_too_small_names_the_smallest() {
        assert_eq!(sizes(None, V4, ECHO_HEADER_BYTES, "ICMP").ok(), Some((64, 18)));
        for (target, least, smallest) in [(V4, 12, 64), (V6, 12, 78), (V4, 44, 90), (V6, 44, 110)] {
            let error = sizes(Some(smallest - 1), target, least, "X").expect_err("too small");
            assert!(error.remedy.contains(&format!("--size {smallest} ")), "{}", error.remedy);
            assert_eq!(error.kind, pw_error::Kind::BadInput);
            assert!(sizes(Some(smallest), target, least, "X").is_ok());
        }
        assert!(sizes(Some(9001), V4, 12, "X").is_err());
    }

    #[test]
    fn fragments_are_no_probes_and_any_bytes_are_read_or_left() {
        let mut packet = vec![0_u8; 46];
        packet[..10].copy_from_slice(&[0x45, 0, 0, 28, 0, 0, 0, 0, 61, 17]);
        packet[12..16].copy_from_slice(&[198, 18, 0, 1]);
        let parsed = parse(&packet).expect("UDP");
        assert_eq!(parsed.source, V4);
        assert!(matches!(parsed.message, Message::Udp { payload: [], .. }), "without padding");
        packet[6] = 0x20; // more fragments
        assert_eq!(parse(&packet), None);
        pw_cases::check!().for_each(|bytes: &[u8]| {
            let _ = parse(bytes);
        });
    }
}
