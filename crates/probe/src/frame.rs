//! The frames of a trial: builds them from a template and parses them. Knows nothing of how they are
//! sent.
//!
//! A frame is Ethernet, IPv4 or IPv6, UDP, then 18 bytes: the magic `PW`, the sequence number and
//! the time of sending [CLOCK_REALTIME, ns] as big-endian 64-bit integers; zeros fill the rest.
//! Sizes count the Ethernet frame check sequence of 4 bytes as RFC 2544 does; the hardware adds
//! it, so that the buffers here are 4 bytes shorter.

use std::net::IpAddr;

use etherparse::PacketBuilder;

use crate::error::{Error, Result};
use crate::netlink::Mac;
use crate::wire;

/// The first bytes of a trial's payload.
pub const MAGIC: [u8; 2] = *b"PW";
/// Length of magic, sequence number and time [bytes].
pub const PAYLOAD_BYTES: usize = 18;
/// Length of the frame check sequence [bytes].
pub const FCS_BYTES: usize = 4;
const ETHERNET_BYTES: usize = 14;
const UDP_BYTES: usize = 8;

/// The constant part of a trial's frames.
#[derive(Debug, Clone)]
pub struct FrameSpec {
    /// Source MAC address.
    pub source_mac: Mac,
    /// MAC address of the next hop.
    pub destination_mac: Mac,
    /// Source IP address.
    pub source: IpAddr,
    /// Destination IP address, of the same version.
    pub destination: IpAddr,
    /// UDP source port of flow 0; flow `f` has this port plus `f`.
    pub first_source_port: u16,
    /// UDP destination port.
    pub destination_port: u16,
    /// Frame size with FCS [bytes].
    pub size_bytes: usize,
    /// Number of flows, at least 1.
    pub flows: u16,
}

/// The smallest frame that holds the payload [bytes with FCS].
pub fn smallest_bytes(ipv6: bool) -> usize {
    let ip = if ipv6 { 40 } else { 20 };
    ETHERNET_BYTES + ip + UDP_BYTES + PAYLOAD_BYTES + FCS_BYTES
}

/// A frame in which only flow, sequence number, time and checksum change.
#[derive(Debug, Clone)]
pub struct Template {
    bytes: Vec<u8>,
    udp_at: usize,
    first_source_port: u16,
    flows: u16,
    /// One's complement sum of the constant bytes that the checksum covers.
    constant_sum: u32,
    kind: FrameKind,
}

/// Whose frames they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A trial's: UDP.
    Trial,
    /// A ping's: echo requests.
    Echo,
}

/// The parameters by which a BPF program stamps a copy of a template as [`Template::stamp`] does.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The kind of frames.
    pub kind: FrameKind,
    /// Where the UDP or ICMP header begins [bytes].
    pub udp_at: usize,
    /// UDP source port of the first flow.
    pub first_source_port: u16,
    /// Number of flows.
    pub flows: u16,
    /// One's complement sum of the bytes that the checksum covers, without source port, sequence
    /// number and time.
    pub constant_sum: u32,
}

impl Template {
    /// Builds the template.
    ///
    /// # Errors
    /// The size is too small for the payload or too large for IP, the addresses are of different
    /// versions, or there are more flows than ports.
    pub fn new(spec: &FrameSpec) -> Result<Self> {
        let ipv6 = spec.source.is_ipv6();
        if ipv6 != spec.destination.is_ipv6() {
            return Err(Error::bad_input(
                format!(
                    "the source {} and the destination {} are not of the same IP version",
                    spec.source, spec.destination
                ),
                "give both as IPv4 or both as IPv6",
            ));
        }
        let (version, smallest) = (if ipv6 { 6 } else { 4 }, smallest_bytes(ipv6));
        if !(smallest..=65_535).contains(&spec.size_bytes) {
            return Err(Error::bad_input(
                format!(
                    "an IPv{version} frame of {} bytes is not possible: with headers, an 18-byte \
                     payload and the FCS it has {smallest} to 65535",
                    spec.size_bytes
                ),
                format!("give --size {smallest} or more"),
            ));
        }
        if spec.flows == 0 || usize::from(spec.first_source_port) + usize::from(spec.flows) > 65_536
        {
            return Err(Error::bad_input(
                format!(
                    "{} flows from UDP port {} on do not fit below port 65536",
                    spec.flows, spec.first_source_port
                ),
                "give --flows from 1 to 16384",
            ));
        }
        let ethernet = PacketBuilder::ethernet2(spec.source_mac, spec.destination_mac);
        let ip = match (spec.source, spec.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ethernet.ipv4(source.octets(), destination.octets(), 64)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ethernet.ipv6(source.octets(), destination.octets(), 64)
            }
            _ => unreachable!("the versions were compared above"),
        };
        let udp = ip.udp(0, spec.destination_port);
        let mut payload = vec![0; spec.size_bytes - smallest + PAYLOAD_BYTES];
        payload[..2].copy_from_slice(&MAGIC);
        let mut bytes = Vec::with_capacity(spec.size_bytes);
        udp.write(&mut bytes, &payload).map_err(|error| {
            Error::bad_input("cannot build a frame", "give another --size").caused_by(error)
        })?;
        let udp_at = bytes.len() - payload.len() - UDP_BYTES;
        // The builder's checksum covers source port 0, sequence number 0 and time 0.
        let checksum = u16::from_be_bytes([bytes[udp_at + 6], bytes[udp_at + 7]]);
        Ok(Self {
            bytes,
            udp_at,
            first_source_port: spec.first_source_port,
            flows: spec.flows,
            constant_sum: u32::from(!checksum),
            kind: FrameKind::Trial,
        })
    }

    /// Echo requests like `frame`, whose ICMP header is at `icmp_at`; sequence numbers and checksum
    /// change. `pseudo_sum` is the sum of ICMPv6's pseudo-header.
    pub fn of_echo(frame: &[u8], icmp_at: usize, pseudo_sum: u32) -> Self {
        let mut bytes = frame.to_vec();
        let message = &mut bytes[icmp_at..];
        message[2..4].fill(0);
        message[6..8].fill(0);
        message[12..20].fill(0);
        let constant_sum = wire::sum_words(pseudo_sum, message);
        let (first_source_port, flows, kind) = (0, 1, FrameKind::Echo);
        Self { bytes, udp_at: icmp_at, first_source_port, flows, constant_sum, kind }
    }

    /// Length of a frame for the kernel, without the FCS [bytes].
    pub fn frame_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes that a buffer must hold before [`stamp`](Self::stamp).
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The parameters for stamping elsewhere.
    pub fn shape(&self) -> Shape {
        Shape {
            kind: self.kind,
            udp_at: self.udp_at,
            first_source_port: self.first_source_port,
            flows: self.flows,
            constant_sum: self.constant_sum,
        }
    }

    /// The flow of a sequence number: round robin.
    #[inline]
    pub fn flow(&self, sequence: u64) -> u16 {
        (sequence % u64::from(self.flows)) as u16
    }

    /// Makes a copy of the template the frame `sequence`, sent at `tx_ns`.
    #[inline]
    pub fn stamp(&self, frame: &mut [u8], sequence: u64, tx_ns: i64) {
        let udp = &mut frame[self.udp_at..self.udp_at + UDP_BYTES + PAYLOAD_BYTES];
        let port = self.first_source_port + self.flow(sequence);
        let tx = tx_ns as u64;
        udp[..2].copy_from_slice(&port.to_be_bytes());
        udp[10..18].copy_from_slice(&sequence.to_be_bytes());
        udp[18..26].copy_from_slice(&tx.to_be_bytes());
        let sum = self.constant_sum + u32::from(port) + words(sequence) + words(tx);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        // Zero would mean "no checksum" (RFC 768).
        let checksum = match !(sum as u16) {
            0 => 0xffff,
            checksum => checksum,
        };
        udp[6..8].copy_from_slice(&checksum.to_be_bytes());
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
    /// Its UDP source port.
    pub source_port: u16,
    /// Its UDP destination port.
    pub destination_port: u16,
}

/// Parses a trial's frame from its IP header on; none for other packets, or one that is cut off
/// before the end of the payload.
#[inline]
pub fn read(network: &[u8]) -> Option<Stamped> {
    let ip = wire::parse_ip_head(network).filter(|ip| ip.protocol == wire::PROTOCOL_UDP)?;
    let udp = wire::parse_udp_head(ip.payload)?;
    let (sequence, tx_ns) = read_payload(udp.payload)?;
    let (source_port, destination_port) = (udp.source_port, udp.destination_port);
    Some(Stamped { sequence, tx_ns, source_port, destination_port })
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
    use etherparse::{SlicedPacket, TransportSlice};

    use super::*;

    /// Frames of the benchmarking networks, to the port 9, in 7 flows.
    pub(crate) fn spec(ipv6: bool, size_bytes: usize) -> FrameSpec {
        let (source, destination) =
            if ipv6 { ("2001:2::1", "2001:2::2") } else { ("198.18.0.1", "198.18.0.2") };
        FrameSpec {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            source: source.parse().expect("address"),
            destination: destination.parse().expect("address"),
            first_source_port: 49_152,
            destination_port: 9,
            size_bytes,
            flows: 7,
        }
    }

    #[test]
    fn the_smallest_ipv4_frame_has_64_bytes_with_fcs() {
        let template = Template::new(&spec(false, 64)).expect("possible");
        assert_eq!(template.frame_bytes(), 60);
        let error = Template::new(&spec(true, 64)).expect_err("too small");
        assert!(error.what.contains("84 to 65535"), "{}", error.what);
        assert!(Template::new(&spec(false, 63)).is_err());
        assert!(Template::new(&spec(false, 70_000)).is_err());
    }

    #[test]
    fn addresses_of_two_versions_and_too_many_flows_are_refused() {
        let mut mixed = spec(false, 64);
        mixed.destination = "2001:2::2".parse().expect("address");
        assert!(Template::new(&mixed).is_err());
        let mut many = spec(false, 64);
        many.flows = 16_385;
        assert!(Template::new(&many).is_err());
    }

    #[test]
    fn every_stamped_frame_reads_back_with_a_valid_checksum() {
        pw_cases::check!().with_type::<(u64, i64, u16, bool)>().for_each(
            |&(sequence, tx_ns, extra, ipv6)| {
                let size = smallest_bytes(ipv6) + usize::from(extra % 1500);
                let template = Template::new(&spec(ipv6, size)).expect("possible");
                let mut frame = template.bytes().to_vec();
                template.stamp(&mut frame, sequence, tx_ns);
                let stamped = read(&frame[ETHERNET_BYTES..]).expect("ours");
                assert_eq!((stamped.sequence, stamped.tx_ns), (sequence, tx_ns));
                assert_eq!(stamped.source_port, 49_152 + (sequence % 7) as u16);
                let sliced = SlicedPacket::from_ethernet(&frame).expect("well-formed");
                let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!("UDP") };
                let header = udp.to_header();
                let expected = match sliced.net.expect("IP") {
                    etherparse::NetSlice::Ipv4(ip) => {
                        header.calc_checksum_ipv4(&ip.header().to_header(), udp.payload())
                    }
                    etherparse::NetSlice::Ipv6(ip) => {
                        header.calc_checksum_ipv6(&ip.header().to_header(), udp.payload())
                    }
                    _ => panic!("IP"),
                };
                assert_eq!(Ok(header.checksum), expected);
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
}
