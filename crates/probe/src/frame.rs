//! The frames that are sent: builds them from a template, in which only numbers, times and
//! checksums change.
//!
//! A trial's frame is Ethernet, IPv4 or IPv6, UDP, then 18 bytes: the magic `PW`, the sequence number
//! and the time of sending [CLOCK_REALTIME, ns] as big-endian 64-bit integers; zeros fill the rest.
//! Sizes count the Ethernet frame check sequence of 4 bytes as RFC 2544 does; the hardware adds
//! it, so that the buffers here are 4 bytes shorter.

use std::net::IpAddr;

use etherparse::PacketBuilder;

use crate::error::{Error, Result};
use crate::netlink::Mac;
use crate::stamp::{self, SenderPacket};
use crate::wire::{self, FCS_BYTES, Message, UPPER_HEADER_BYTES};

/// The first bytes of a trial's payload.
pub const MAGIC: [u8; 2] = *b"PW";
/// Length of magic, sequence number and time [bytes].
pub const PAYLOAD_BYTES: usize = 18;

/// TTL or hop limit of all frames.
const HOPS: u8 = 64;

/// UDP source port of a trial's flow 0; flow `f` has this port plus `f`.
pub const SOURCE_PORT: u16 = 49_152;

/// The smallest frame that holds the payload [bytes with FCS].
pub fn smallest_bytes(ipv6: bool) -> usize {
    wire::smallest_bytes(wire::unspecified(ipv6), PAYLOAD_BYTES)
}

/// What the frames of a template are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A trial's: UDP.
    Trial,
    /// A ping's: echo requests.
    Echo,
    /// A ping's: STAMP test packets.
    Stamp,
}

/// What tells the probes of one ping from other packets.
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

impl FrameKind {
    /// Where the checksum is, behind the beginning of the UDP or ICMP header [bytes].
    fn checksum_at(self) -> usize {
        if self == Self::Echo { 2 } else { 6 }
    }
}

/// A frame in which only flow, sequence number, time and checksum change.
#[derive(Debug, Clone)]
pub struct Template {
    bytes: Vec<u8>,
    /// What the frames are.
    pub kind: FrameKind,
    /// Where the UDP or ICMP header begins [bytes].
    pub upper_at: usize,
    /// Number of flows, 1 to 16384.
    pub flows: u16,
    /// One's complement sum of the bytes that the checksum covers, without source port, sequence
    /// number and time.
    pub constant_sum: u32,
}

impl Template {
    /// Builds the template of a trial, without MAC addresses. `size_bytes` includes the FCS.
    ///
    /// # Errors
    /// The size is too small for the payload or too large for IP, or the addresses are of different
    /// versions.
    pub fn of_trial(
        source: IpAddr,
        destination: IpAddr,
        port: u16,
        size_bytes: usize,
        flows: u16,
    ) -> Result<Self> {
        let ipv6 = source.is_ipv6();
        let (version, smallest) = (if ipv6 { 6 } else { 4 }, smallest_bytes(ipv6));
        if !(smallest..=65_535).contains(&size_bytes) {
            return Err(Error::bad_input(
                format!(
                    "an IPv{version} frame of {size_bytes} bytes is not possible: with headers, an \
                     18-byte payload and the FCS it has {smallest} to 65535"
                ),
                format!("give --size {smallest} or more"),
            ));
        }
        let mut payload = vec![0; size_bytes - smallest + PAYLOAD_BYTES];
        payload[..2].copy_from_slice(&MAGIC);
        let ports = Probe::Stamp { ssid: 0, source: 0, port };
        let template = Self::build(source, destination, ports, &payload)?;
        Ok(Self { kind: FrameKind::Trial, flows, ..template })
    }

    /// Builds the template of a ping's probes, with `payload_bytes` behind the ICMP or UDP header and
    /// without MAC addresses.
    ///
    /// # Errors
    /// The addresses are of different versions, or the payload is too long.
    pub fn of_probe(
        source: IpAddr,
        destination: IpAddr,
        probe: Probe,
        payload_bytes: usize,
    ) -> Result<Self> {
        let mut payload = vec![0; payload_bytes];
        match probe {
            Probe::Echo(_) => payload[..4].copy_from_slice(&wire::ECHO_MAGIC),
            Probe::Stamp { ssid, .. } => {
                let error_estimate = stamp::ERROR_ESTIMATE;
                SenderPacket { sequence: 0, timestamp: [0; 8], error_estimate, ssid }
                    .write(&mut payload);
            }
        }
        Self::build(source, destination, probe, &payload)
    }

    fn build(source: IpAddr, destination: IpAddr, upper: Probe, payload: &[u8]) -> Result<Self> {
        let ethernet = PacketBuilder::ethernet2([0; 6], [0; 6]);
        let ip = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ethernet.ipv4(source.octets(), destination.octets(), HOPS)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ethernet.ipv6(source.octets(), destination.octets(), HOPS)
            }
            _ => {
                return Err(Error::bad_input(
                    format!(
                        "the source {source} and the destination {destination} are not of the same \
                         IP version"
                    ),
                    "give both as IPv4 or both as IPv6",
                ));
            }
        };
        let mut bytes = Vec::new();
        let (kind, written) = match upper {
            Probe::Stamp { source, port, .. } => {
                (FrameKind::Stamp, ip.udp(source, port).write(&mut bytes, payload))
            }
            Probe::Echo(id) if source.is_ipv4() => {
                (FrameKind::Echo, ip.icmpv4_echo_request(id, 0).write(&mut bytes, payload))
            }
            Probe::Echo(id) => {
                (FrameKind::Echo, ip.icmpv6_echo_request(id, 0).write(&mut bytes, payload))
            }
        };
        written.map_err(|error| {
            Error::bad_input("cannot build a frame", "give another --size").caused_by(error)
        })?;
        let upper_at = bytes.len() - payload.len() - UPPER_HEADER_BYTES;
        // The builder's checksum covers sequence number 0 and time 0.
        let checksum_at = upper_at + kind.checksum_at();
        let checksum = u16::from_be_bytes([bytes[checksum_at], bytes[checksum_at + 1]]);
        // Padded here, not by the driver or NIC.
        bytes.resize(bytes.len().max(wire::SMALLEST_FRAME_BYTES - FCS_BYTES), 0);
        let constant_sum = u32::from(!checksum);
        Ok(Self { bytes, kind, upper_at, flows: 1, constant_sum })
    }

    /// Sets the MAC addresses.
    pub fn set_macs(&mut self, source: Mac, destination: Mac) {
        self.bytes[..6].copy_from_slice(&destination.0);
        self.bytes[6..12].copy_from_slice(&source.0);
    }

    /// Length of a frame for the kernel, without the FCS [bytes].
    pub fn frame_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes that a buffer must hold before [`stamp`](Self::stamp).
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Makes a copy of the template the frame `sequence`, sent at `tx_ns` [CLOCK_REALTIME].
    #[inline]
    pub fn stamp(&self, frame: &mut [u8], sequence: u64, tx_ns: i64) {
        let upper = &mut frame[self.upper_at..];
        let sum = match self.kind {
            FrameKind::Trial => {
                let port = SOURCE_PORT + (sequence % u64::from(self.flows)) as u16;
                upper[..2].copy_from_slice(&port.to_be_bytes());
                upper[10..18].copy_from_slice(&sequence.to_be_bytes());
                upper[18..26].copy_from_slice(&tx_ns.to_be_bytes());
                u32::from(port) + words(sequence) + words(tx_ns as u64)
            }
            FrameKind::Echo => {
                upper[6..8].copy_from_slice(&(sequence as u16).to_be_bytes());
                upper[12..20].copy_from_slice(&sequence.to_be_bytes());
                words(sequence & 0xffff) + words(sequence)
            }
            FrameKind::Stamp => {
                let number = stamp::number(sequence);
                let time = stamp::encode(tx_ns);
                upper[8..12].copy_from_slice(&number.to_be_bytes());
                upper[12..20].copy_from_slice(&time);
                words(number.into()) + words(u64::from_be_bytes(time))
            }
        };
        let checksum = match wire::checksum(self.constant_sum + sum) {
            // Zero would mean "no checksum" (RFC 768).
            0 if self.kind != FrameKind::Echo => 0xffff,
            checksum => checksum,
        };
        let checksum_at = self.kind.checksum_at();
        upper[checksum_at..checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// The sum of the four 16-bit words of a number.
#[inline]
fn words(value: u64) -> u32 {
    let word = |shift: u32| ((value >> shift) & 0xffff) as u32;
    word(0) + word(16) + word(32) + word(48)
}

/// The stamps of a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamped {
    /// Its sequence number.
    pub sequence: u64,
    /// When it was sent [CLOCK_REALTIME, ns].
    pub tx_ns: i64,
    /// Its UDP destination port.
    pub destination_port: u16,
}

/// Parses a trial's frame from its IP header on; none for other packets, or one that is cut off
/// before the end of the payload.
#[inline]
pub fn read(network: &[u8]) -> Option<Stamped> {
    let Message::Udp { destination, payload, .. } = wire::parse(network)?.message else {
        return None;
    };
    let (sequence, tx_ns) = read_payload(payload)?;
    Some(Stamped { sequence, tx_ns, destination_port: destination })
}

/// Reads sequence number and time of sending [CLOCK_REALTIME, ns] from a UDP payload.
pub fn read_payload(payload: &[u8]) -> Option<(u64, i64)> {
    if payload.get(..2)? != MAGIC {
        return None;
    }
    let number = |at: usize| payload.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
    Some((number(2)?, number(10)? as i64))
}

#[cfg(test)]
pub(crate) mod tests {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    use super::*;
    use crate::wire::ETHERNET_BYTES;

    /// Addresses of the benchmarking networks.
    pub(crate) fn ends(ipv6: bool) -> [IpAddr; 2] {
        let ends = if ipv6 { ["2001:2::1", "2001:2::2"] } else { ["198.18.0.1", "198.18.0.2"] };
        ends.map(|address| address.parse().expect("address"))
    }

    /// Frames in 7 flows.
    fn of_size(ipv6: bool, size_bytes: usize) -> Result<Template> {
        let [source, destination] = ends(ipv6);
        Template::of_trial(source, destination, 9, size_bytes, 7)
    }

    #[test]
    fn the_smallest_ipv4_frame_has_64_bytes_with_fcs() {
        let template = of_size(false, 64).expect("possible");
        assert_eq!(template.frame_bytes(), 60);
        let error = of_size(true, 64).expect_err("too small");
        assert!(error.what.contains("84 to 65535"), "{}", error.what);
        assert!(of_size(false, 63).is_err());
        assert!(of_size(false, 70_000).is_err());
    }

    #[test]
    fn addresses_of_two_versions_are_refused() {
        assert!(Template::of_trial(ends(false)[0], ends(true)[1], 9, 64, 1).is_err());
    }

    /// The checksum of a frame, and as it should be.
    fn checksums(frame: &[u8]) -> (u16, u16) {
        let sliced = SlicedPacket::from_ethernet(frame).expect("well-formed");
        let (net, transport) = (sliced.net.expect("IP"), sliced.transport.expect("a message"));
        let expected = match (&net, &transport) {
            (NetSlice::Ipv4(ip), TransportSlice::Udp(udp)) => {
                udp.to_header().calc_checksum_ipv4(&ip.header().to_header(), udp.payload())
            }
            (NetSlice::Ipv6(ip), TransportSlice::Udp(udp)) => {
                udp.to_header().calc_checksum_ipv6(&ip.header().to_header(), udp.payload())
            }
            (_, TransportSlice::Icmpv4(icmp)) => Ok(icmp.icmp_type().calc_checksum(icmp.payload())),
            (NetSlice::Ipv6(ip), TransportSlice::Icmpv6(icmp)) => {
                let (source, destination) = (ip.header().source(), ip.header().destination());
                icmp.icmp_type().calc_checksum(source, destination, icmp.payload())
            }
            _ => panic!("neither UDP nor ICMP"),
        };
        let is = match transport {
            TransportSlice::Udp(udp) => udp.checksum(),
            TransportSlice::Icmpv4(icmp) => icmp.checksum(),
            TransportSlice::Icmpv6(icmp) => icmp.checksum(),
            TransportSlice::Tcp(_) => panic!("TCP"),
        };
        (is, expected.expect("short enough"))
    }

    #[test]
    fn every_stamped_frame_reads_back_with_a_valid_checksum() {
        pw_cases::check!().with_type::<(u64, i64, u16, bool)>().for_each(
            |&(sequence, tx_ns, extra, ipv6)| {
                let size = smallest_bytes(ipv6) + usize::from(extra % 1500);
                let template = of_size(ipv6, size).expect("possible");
                let mut frame = template.bytes().to_vec();
                template.stamp(&mut frame, sequence, tx_ns);
                let stamped = read(&frame[ETHERNET_BYTES..]).expect("ours");
                assert_eq!((stamped.sequence, stamped.tx_ns), (sequence, tx_ns));
                let port = &frame[template.upper_at..][..2];
                assert_eq!(port, (SOURCE_PORT + (sequence % 7) as u16).to_be_bytes());
                let (is, expected) = checksums(&frame);
                assert_eq!(is, expected);
            },
        );
    }

    #[test]
    fn whatever_arrives_is_read_or_left() {
        pw_cases::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let _ = read(bytes);
            let _ = read_payload(bytes);
        });
    }

    #[test]
    fn every_probe_reads_back_with_a_valid_checksum() {
        pw_cases::check!().with_type::<(u64, i64, u8, bool, bool)>().for_each(
            |&(sequence, tx_ns, extra, ipv6, stamp)| {
                let [source, destination] = ends(ipv6);
                let stamps = Probe::Stamp { ssid: 3, source: 5, port: 862 };
                let probe = if stamp { stamps } else { Probe::Echo(7) };
                let payload_bytes = 44 + usize::from(extra);
                let template = Template::of_probe(source, destination, probe, payload_bytes);
                let template = template.expect("fits");
                let mut frame = template.bytes().to_vec();
                template.stamp(&mut frame, sequence, tx_ns);
                let (is, expected) = checksums(&frame);
                assert_eq!(is, expected);
                match wire::parse(&frame[ETHERNET_BYTES..]).expect("well-formed").message {
                    Message::Echo { reply, identifier, sequence: low, payload } => {
                        assert_eq!((reply, identifier, low), (false, 7, sequence as u16));
                        assert_eq!(wire::echo_sequence(payload), Some(sequence));
                    }
                    Message::Udp { payload, .. } => {
                        let sent = SenderPacket::parse(payload).expect("STAMP");
                        assert_eq!((sent.sequence, sent.ssid), (stamp::number(sequence), 3));
                    }
                }
            },
        );
    }
}
