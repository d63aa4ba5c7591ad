//! The wire format of probes: echo payload, checksums, IP, ICMP and UDP headers, frame sizes. Pure;
//! knows no sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::{Error, Result};

/// First four bytes of an echo request's payload.
pub const ECHO_MAGIC: [u8; 4] = *b"PWP1";
/// Magic and 64-bit sequence number; zeros follow.
pub const ECHO_HEADER_BYTES: usize = 12;
/// Set in the 64-bit sequence number of warm-up echoes, which are no samples.
pub const WARMUP_BIT: u64 = 1 << 63;

/// Ethernet header without a VLAN tag.
pub const ETHERNET_HEADER_BYTES: usize = 14;
/// Frame check sequence, part of every frame size in this project (RFC 2544, section 9).
pub const FCS_BYTES: usize = 4;
/// Smallest Ethernet frame, with its FCS.
pub const SMALLEST_FRAME_BYTES: usize = 64;
/// Largest frame of this program, with its FCS.
pub const LARGEST_FRAME_BYTES: usize = 9000;
/// ICMP echo header, and UDP header: both have 8 bytes.
pub const UPPER_HEADER_BYTES: usize = 8;

/// ICMP's protocol number.
pub const PROTOCOL_ICMP: u8 = 1;
/// UDP's protocol number.
pub const PROTOCOL_UDP: u8 = 17;
/// ICMPv6's protocol number.
pub const PROTOCOL_ICMPV6: u8 = 58;

/// Length of the IP header of packets to `target`: no options, no extension headers.
pub fn ip_header_bytes(target: IpAddr) -> usize {
    if target.is_ipv4() { 20 } else { 40 }
}

/// The payload (behind ICMP or UDP header) that makes a frame of `size_bytes`, FCS included.
///
/// `least` is the protocol's smallest payload. Errors: a frame too small or too large, with the limit.
pub fn payload_bytes(
    size_bytes: usize,
    target: IpAddr,
    least: usize,
    protocol: &str,
) -> Result<usize> {
    let headers = ETHERNET_HEADER_BYTES + FCS_BYTES + ip_header_bytes(target) + UPPER_HEADER_BYTES;
    let smallest = (headers + least).max(SMALLEST_FRAME_BYTES);
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
    Ok(size_bytes - headers)
}

/// Writes the echo payload: magic, sequence number, zeros.
///
/// # Panics
/// When `payload` is shorter than [`ECHO_HEADER_BYTES`].
pub fn write_echo_payload(payload: &mut [u8], sequence: u64) {
    payload[..4].copy_from_slice(&ECHO_MAGIC);
    payload[4..12].copy_from_slice(&sequence.to_be_bytes());
    payload[12..].fill(0);
}

/// The 64-bit sequence number of an echo payload; none without the magic. A number with
/// [`WARMUP_BIT`] is not a sample.
#[inline]
pub fn parse_echo_payload(payload: &[u8]) -> Option<u64> {
    let header: &[u8; ECHO_HEADER_BYTES] = payload.first_chunk()?;
    if header[..4] != ECHO_MAGIC {
        return None;
    }
    header[4..].try_into().ok().map(u64::from_be_bytes)
}

/// Adds `bytes` to a ones' complement sum, as 16-bit big-endian words (RFC 1071).
#[inline]
pub fn sum_words(mut sum: u32, bytes: &[u8]) -> u32 {
    let mut words = bytes.chunks_exact(2);
    for word in &mut words {
        sum += u32::from(u16::from_be_bytes([word[0], word[1]]));
        // Keeps 9000-byte frames of 0xff from overflowing.
        sum = (sum & 0xffff) + (sum >> 16);
    }
    if let [last] = words.remainder() {
        sum += u32::from(u16::from_be_bytes([*last, 0]));
    }
    (sum & 0xffff) + (sum >> 16)
}

/// The wildcard address.
pub fn unspecified(ipv6: bool) -> IpAddr {
    if ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// The checksum field for a ones' complement sum.
#[inline]
pub fn finish_sum(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

/// The sum over the pseudo-header of UDP or ICMPv6 (RFC 768, RFC 8200 section 8.1).
pub fn pseudo_header_sum(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    length_bytes: usize,
) -> u32 {
    let mut sum = u32::from(protocol) + length_bytes as u32;
    for address in [source, destination] {
        sum = match address {
            IpAddr::V4(address) => sum_words(sum, &address.octets()),
            IpAddr::V6(address) => sum_words(sum, &address.octets()),
        };
    }
    sum
}

/// A parsed IP packet; the payload has the header's length, without padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpPacket<'a> {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol number of the payload.
    pub protocol: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// The bytes behind the header.
    pub payload: &'a [u8],
}

/// As [`parse_ip`], for a packet cut short by a capture, and its payload with it.
#[inline]
pub fn parse_ip_head(packet: &[u8]) -> Option<IpPacket<'_>> {
    parse_ip_parts(packet, true)
}

/// Parses an IPv4 or IPv6 packet. None for packets that are malformed, cut short, fragmented or with
/// IPv6 extension headers, which no probe is.
#[inline]
pub fn parse_ip(packet: &[u8]) -> Option<IpPacket<'_>> {
    parse_ip_parts(packet, false)
}

#[inline]
fn parse_ip_parts(packet: &[u8], head: bool) -> Option<IpPacket<'_>> {
    let end = |length: usize| if head { length.min(packet.len()) } else { length };
    match packet.first()? >> 4 {
        4 => {
            let header: &[u8; 20] = packet.first_chunk()?;
            let header_bytes = usize::from(header[0] & 0x0f) * 4;
            let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
            if header_bytes < 20 || fragment != 0 {
                return None;
            }
            Some(IpPacket {
                source: Ipv4Addr::new(header[12], header[13], header[14], header[15]).into(),
                destination: Ipv4Addr::new(header[16], header[17], header[18], header[19]).into(),
                protocol: header[9],
                ttl: header[8],
                payload: packet.get(header_bytes..end(total))?,
            })
        }
        6 => {
            let header: &[u8; 40] = packet.first_chunk()?;
            let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
            let source: [u8; 16] = header[8..24].try_into().ok()?;
            let destination: [u8; 16] = header[24..40].try_into().ok()?;
            Some(IpPacket {
                source: Ipv6Addr::from(source).into(),
                destination: Ipv6Addr::from(destination).into(),
                protocol: header[6],
                ttl: header[7],
                payload: packet.get(40..end(40 + length))?,
            })
        }
        _ => None,
    }
}

/// An ICMP or ICMPv6 echo message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpEcho<'a> {
    /// Whether it is the answer.
    pub reply: bool,
    /// Identifier.
    pub identifier: u16,
    /// The 16-bit sequence number.
    pub sequence: u16,
    /// Payload behind the 8-byte header.
    pub payload: &'a [u8],
}

/// Parses an echo request or reply; none for other messages. The kernel has checked the checksum.
#[inline]
pub fn parse_icmp_echo(message: &[u8], protocol: u8) -> Option<IcmpEcho<'_>> {
    let (header, payload) = message.split_first_chunk::<8>()?;
    let reply = match (protocol, header[0], header[1]) {
        (PROTOCOL_ICMP, 0, 0) | (PROTOCOL_ICMPV6, 129, 0) => true,
        (PROTOCOL_ICMP, 8, 0) | (PROTOCOL_ICMPV6, 128, 0) => false,
        _ => return None,
    };
    Some(IcmpEcho {
        reply,
        identifier: u16::from_be_bytes([header[4], header[5]]),
        sequence: u16::from_be_bytes([header[6], header[7]]),
        payload,
    })
}

/// Writes an echo request with its 8-byte header into `message`; the checksum is complete
/// when `pseudo_sum` is the pseudo-header's sum (ICMPv6) or 0 (ICMP).
///
/// # Panics
/// When `message` is shorter than 8 + [`ECHO_HEADER_BYTES`].
pub fn write_echo_request(
    message: &mut [u8],
    ipv6: bool,
    identifier: u16,
    sequence: u64,
    pseudo_sum: u32,
) {
    message[0] = if ipv6 { 128 } else { 8 };
    message[1..4].fill(0);
    message[4..6].copy_from_slice(&identifier.to_be_bytes());
    message[6..8].copy_from_slice(&(sequence as u16).to_be_bytes());
    write_echo_payload(&mut message[8..], sequence);
    let sum = finish_sum(sum_words(pseudo_sum, message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

/// A UDP datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpDatagram<'a> {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Payload, of the length that the header says.
    pub payload: &'a [u8],
}

/// Parses a UDP datagram; none when it is cut short.
#[inline]
pub fn parse_udp(datagram: &[u8]) -> Option<UdpDatagram<'_>> {
    parse_udp_parts(datagram, false)
}

/// As [`parse_udp`], for the beginning of a datagram.
#[inline]
pub fn parse_udp_head(datagram: &[u8]) -> Option<UdpDatagram<'_>> {
    parse_udp_parts(datagram, true)
}

#[inline]
fn parse_udp_parts(datagram: &[u8], head: bool) -> Option<UdpDatagram<'_>> {
    let header: &[u8; 8] = datagram.first_chunk()?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    Some(UdpDatagram {
        source_port: u16::from_be_bytes([header[0], header[1]]),
        destination_port: u16::from_be_bytes([header[2], header[3]]),
        payload: datagram.get(8..if head { length.min(datagram.len()) } else { length })?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1));

    #[test]
    fn the_echo_payload_is_as_documented() {
        let mut payload = [0xaa; 18];
        write_echo_payload(&mut payload, 0x0102_0304_0506_0708);
        assert_eq!(payload, *b"PWP1\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0");
        assert_eq!(parse_echo_payload(&payload), Some(0x0102_0304_0506_0708));
        assert_eq!(parse_echo_payload(b"PWP2\0\0\0\0\0\0\0\x01"), None);
        assert_eq!(parse_echo_payload(b"PWP1\0\0\0\0\0\0\0"), None);
    }

    #[test]
    fn the_smallest_ipv4_frame_carries_18_bytes() {
        assert_eq!(payload_bytes(64, V4, ECHO_HEADER_BYTES, "ICMP").ok(), Some(18));
    }

    #[test]
    fn a_frame_too_small_names_the_smallest() {
        for (target, least, smallest) in [(V4, 12, 64), (V6, 12, 78), (V4, 44, 90), (V6, 44, 110)] {
            let error = payload_bytes(smallest - 1, target, least, "X").expect_err("too small");
            assert!(error.remedy.contains(&format!("--size {smallest} ")), "{}", error.remedy);
            assert_eq!(error.kind, pw_error::Kind::BadInput);
            assert!(payload_bytes(smallest, target, least, "X").is_ok());
        }
        assert!(payload_bytes(9001, V4, 12, "X").is_err());
    }

    fn checksum(bytes: &[u8]) -> u16 {
        finish_sum(sum_words(0, bytes))
    }

    #[test]
    fn the_checksum_is_rfc_1071s() {
        // The example of RFC 1071, section 3: sum ddf2.
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(checksum(&[0xff; 8996]), 0);
        assert_eq!(checksum(&[0x01]), !0x0100);
    }

    #[test]
    fn an_echo_request_has_a_right_checksum_and_reads_back() {
        let mut message = [0; 26];
        write_echo_request(&mut message, false, 0x1234, 65_537, 0);
        assert_eq!(checksum(&message), 0, "a message with its checksum sums to zero");
        let echo = parse_icmp_echo(&message, PROTOCOL_ICMP).expect("an echo");
        assert_eq!((echo.reply, echo.identifier, echo.sequence), (false, 0x1234, 1));
        assert_eq!(parse_echo_payload(echo.payload), Some(65_537));
    }

    #[test]
    fn ip_packets_end_where_their_header_says() {
        let mut packet = vec![0_u8; 46];
        packet[0] = 0x45;
        packet[3] = 28;
        packet[8] = 61;
        packet[9] = PROTOCOL_UDP;
        packet[12..16].copy_from_slice(&[198, 18, 0, 1]);
        packet[16..20].copy_from_slice(&[198, 18, 0, 2]);
        let ip = parse_ip(&packet).expect("IPv4");
        assert_eq!((ip.source, ip.ttl, ip.payload.len()), (V4, 61, 8));
        packet[6] = 0x20; // more fragments
        assert_eq!(parse_ip(&packet), None);
    }

    #[test]
    fn parsers_take_any_bytes() {
        pw_cases::check!().for_each(|bytes: &[u8]| {
            let _ = parse_ip_head(bytes).map(|ip| parse_udp_head(ip.payload));
            if let Some(ip) = parse_ip(bytes) {
                assert_eq!(parse_ip_head(bytes), Some(ip));
                assert!(ip.payload.len() + 20 <= bytes.len());
                let _ = parse_udp(ip.payload);
            }
            for protocol in [PROTOCOL_ICMP, PROTOCOL_ICMPV6] {
                if let Some(echo) = parse_icmp_echo(bytes, protocol) {
                    assert_eq!(echo.payload.len() + 8, bytes.len());
                    let _ = parse_echo_payload(echo.payload);
                }
            }
            if let Some(udp) = parse_udp(bytes) {
                assert!(udp.payload.len() + 8 <= bytes.len());
            }
            let _ = checksum(bytes);
        });
    }

    #[test]
    fn echo_requests_round_trip() {
        pw_cases::check!().with_type::<(u16, u64, u8, bool)>().for_each(
            |&(identifier, sequence, extra, ipv6)| {
                let mut message = vec![0; 20 + usize::from(extra)];
                write_echo_request(&mut message, ipv6, identifier, sequence, 0);
                let protocol = if ipv6 { PROTOCOL_ICMPV6 } else { PROTOCOL_ICMP };
                let echo = parse_icmp_echo(&message, protocol).expect("an echo");
                assert_eq!(echo.identifier, identifier);
                assert_eq!(echo.sequence, sequence as u16);
                assert_eq!(parse_echo_payload(echo.payload), Some(sequence));
                assert_eq!(checksum(&message), 0);
            },
        );
    }
}
