//! Reads pcap and pcapng files: each packet from its IP header on, with its time in nanoseconds.
//! Knows nothing of what the packets mean.

use std::path::Path;

use pcap_file::pcap::PcapParser;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgParser};
use pcap_file::{DataLink, PcapError, TsResolution};

use crate::error::{Error, Result};

/// Where and why a file cannot be read on.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Damage {
    /// Offset of the record that cannot be read [bytes].
    pub offset_bytes: u64,
    /// What is wrong with it.
    pub why: String,
}

/// A packet of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePacket<'a> {
    /// When it was captured [ns since 1970].
    pub stamp_ns: i64,
    /// The packet from its IP header on.
    pub network: &'a [u8],
}

/// The first four bytes of a pcapng file.
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Reads the file at `path` and hands each IP packet to `on_packet`. Returns the damage, if the file
/// is cut off or corrupt, after the packets before it.
///
/// # Errors
/// The file cannot be read, or is no capture file at all.
pub fn read(path: &Path, on_packet: impl FnMut(FilePacket<'_>)) -> Result<Option<Damage>> {
    let bytes = std::fs::read(path).map_err(|error| {
        Error::bad_input(
            format!("cannot read the capture file {}", path.display()),
            "give a file that `tcpdump -w FILE` wrote",
        )
        .caused_by(error)
    })?;
    if bytes.len() < 4 || !known_magic(&bytes) {
        return Err(Error::bad_input(
            format!(
                "{} is not a pcap or pcapng file (byte 0: unknown magic number)",
                path.display()
            ),
            "give a file that `tcpdump -w FILE` wrote, not compressed",
        ));
    }
    Ok(read_bytes(&bytes, on_packet))
}

fn known_magic(bytes: &[u8]) -> bool {
    let magic: [u8; 4] = [bytes[0], bytes[1], bytes[2], bytes[3]];
    let number = u32::from_be_bytes(magic);
    magic == PCAPNG_MAGIC
        || [0xa1b2_c3d4, 0xa1b2_3c4d].iter().any(|&m: &u32| number == m || number == m.swap_bytes())
}

/// Reads the contents of a capture file; see [`read`].
fn read_bytes(bytes: &[u8], on_packet: impl FnMut(FilePacket<'_>)) -> Option<Damage> {
    if bytes.starts_with(&PCAPNG_MAGIC) {
        read_pcapng(bytes, on_packet)
    } else {
        read_pcap(bytes, on_packet)
    }
}

fn damage(bytes: &[u8], unread: &[u8], error: &PcapError) -> Option<Damage> {
    let why = match error {
        PcapError::IncompleteBuffer => "the file ends in the middle of a record".into(),
        error => error.to_string(),
    };
    Some(Damage { offset_bytes: (bytes.len() - unread.len()) as u64, why })
}

fn read_pcap(bytes: &[u8], mut on_packet: impl FnMut(FilePacket<'_>)) -> Option<Damage> {
    let (mut unread, parser) = match PcapParser::new(bytes) {
        Ok(parsed) => parsed,
        Err(error) => return damage(bytes, bytes, &error),
    };
    let header = parser.header();
    if !known_link(header.datalink) {
        return Some(unknown_link(20, header.datalink));
    }
    let unit_ns = if header.ts_resolution == TsResolution::NanoSecond { 1 } else { 1_000 };
    while !unread.is_empty() {
        // The raw packet: the library's own check refuses packets longer than the snap length.
        match parser.next_raw_packet(unread) {
            Ok((remaining, packet)) => {
                unread = remaining;
                if let Some(network) = network(header.datalink, &packet.data) {
                    let stamp_ns = i64::from(packet.ts_sec) * 1_000_000_000
                        + i64::from(packet.ts_frac) * unit_ns;
                    on_packet(FilePacket { stamp_ns, network });
                }
            }
            Err(error) => return damage(bytes, unread, &error),
        }
    }
    None
}

fn read_pcapng(bytes: &[u8], mut on_packet: impl FnMut(FilePacket<'_>)) -> Option<Damage> {
    let (mut unread, mut parser) = match PcapNgParser::new(bytes) {
        Ok(parsed) => parsed,
        Err(error) => return damage(bytes, bytes, &error),
    };
    while !unread.is_empty() {
        let offset_bytes = (bytes.len() - unread.len()) as u64;
        let (remaining, block) = match parser.next_block(unread) {
            Ok(parsed) => parsed,
            Err(error) => return damage(bytes, unread, &error),
        };
        unread = remaining;
        let (interface, units, data) = match &block {
            // The block's units, which the library takes for nanoseconds.
            Block::EnhancedPacket(b) => (b.interface_id, b.timestamp.as_nanos() as u64, &b.data),
            Block::Packet(b) => (b.interface_id.into(), b.timestamp, &b.data),
            Block::SimplePacket(_) => {
                let why = "packets without a time (simple packet blocks) cannot be joined".into();
                return Some(Damage { offset_bytes, why });
            }
            Block::InterfaceDescription(b) if !known_link(b.linktype) => {
                return Some(unknown_link(offset_bytes, b.linktype));
            }
            _ => continue,
        };
        let Some(interface) = parser.interfaces().get(interface as usize) else {
            let why =
                format!("a packet of interface {interface}, which the file does not describe");
            return Some(Damage { offset_bytes, why });
        };
        if let Some(network) = network(interface.linktype, data) {
            on_packet(FilePacket { stamp_ns: pcapng_ns(interface, units), network });
        }
    }
    None
}

/// The time of a pcapng packet: `if_tsresol` is a negative power of 10, or of 2 with the highest
/// bit set; without it units are microseconds. `if_tsoffset` is in seconds.
fn pcapng_ns(interface: &InterfaceDescriptionBlock<'_>, units: u64) -> i64 {
    let (mut resolution, mut offset_s) = (6, 0_u64);
    for option in &interface.options {
        match option {
            InterfaceDescriptionOption::IfTsResol(value) => resolution = *value,
            InterfaceDescriptionOption::IfTsOffset(value) => offset_s = *value,
            _ => {}
        }
    }
    let exponent = u32::from(resolution & 0x7f);
    let units = u128::from(units);
    let ns = if resolution & 0x80 != 0 {
        units.checked_mul(1_000_000_000).map(|ns| ns.checked_shr(exponent).unwrap_or(0))
    } else if exponent <= 9 {
        Some(units * 10_u128.pow(9 - exponent))
    } else {
        Some(10_u128.checked_pow(exponent - 9).map_or(0, |divisor| units / divisor))
    };
    let ns = ns.and_then(|ns| i64::try_from(ns).ok()).unwrap_or(i64::MAX);
    ns.saturating_add((offset_s as i64).saturating_mul(1_000_000_000))
}

fn known_link(link: DataLink) -> bool {
    matches!(
        link,
        DataLink::ETHERNET
            | DataLink::RAW
            | DataLink::IPV4
            | DataLink::IPV6
            | DataLink::LINUX_SLL
            | DataLink::LINUX_SLL2
    )
}

fn unknown_link(offset_bytes: u64, link: DataLink) -> Damage {
    let number = u32::from(link);
    let why = format!("link type {number} is not known (Ethernet, raw IP and Linux SLL are)");
    Damage { offset_bytes, why }
}

/// The packet from its IP header on; none when it is not IP.
fn network(link: DataLink, data: &[u8]) -> Option<&[u8]> {
    let (mut ethertype_at, mut start) = match link {
        DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => return Some(data),
        DataLink::ETHERNET => (12, 14),
        DataLink::LINUX_SLL => (14, 16),
        DataLink::LINUX_SLL2 => (0, 20),
        _ => return None,
    };
    loop {
        let ethertype =
            u16::from_be_bytes([*data.get(ethertype_at)?, *data.get(ethertype_at + 1)?]);
        match ethertype {
            0x0800 | 0x86dd => return data.get(start..),
            // VLAN tags: the EtherType proper follows two bytes behind.
            0x8100 | 0x88a8 | 0x9100 => (ethertype_at, start) = (start + 2, start + 4),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pcap file with packets of the given times [s, fraction] and contents.
    fn pcap(magic: u32, link: u32, packets: &[(u32, u32, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [magic, 0x0004_0002, 0, 0, 65_535, link] {
            bytes.extend(word.to_le_bytes());
        }
        for (seconds, fraction, data) in packets {
            for word in [*seconds, *fraction, data.len() as u32, 9000] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(*data);
        }
        bytes
    }

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = (body.len().next_multiple_of(4) + 12) as u32;
        let mut bytes = [kind.to_le_bytes(), length.to_le_bytes()].concat();
        bytes.extend(body);
        bytes.resize(length as usize - 4, 0);
        bytes.extend(length.to_le_bytes());
        bytes
    }

    /// A pcapng file with one interface of the given `if_tsresol` and one packet.
    fn pcapng(resolution: Option<u8>, link: u16, units: u64, data: &[u8]) -> Vec<u8> {
        let mut section = 0x1a2b_3c4d_u32.to_le_bytes().to_vec();
        section.extend([1, 0, 0, 0]);
        section.extend(u64::MAX.to_le_bytes());
        let mut interface = link.to_le_bytes().to_vec();
        interface.extend([0; 2]);
        interface.extend(65_535_u32.to_le_bytes());
        if let Some(resolution) = resolution {
            interface.extend([9, 0, 1, 0, resolution, 0, 0, 0, 0, 0, 0, 0]);
        }
        let mut packet = Vec::new();
        for word in [0, (units >> 32) as u32, units as u32, data.len() as u32, data.len() as u32] {
            packet.extend(word.to_le_bytes());
        }
        packet.extend(data);
        [block(0x0a0d_0d0a, &section), block(1, &interface), block(6, &packet)].concat()
    }

    fn all(bytes: &[u8]) -> (Vec<(i64, Vec<u8>)>, Option<Damage>) {
        let mut packets = Vec::new();
        let damage = read_bytes(bytes, |p| packets.push((p.stamp_ns, p.network.to_vec())));
        (packets, damage)
    }

    const IP: [u8; 3] = [0x45, 1, 2];

    #[test]
    fn microseconds_and_nanoseconds_are_told_apart_by_the_magic_number() {
        for (magic, ns) in [(0xa1b2_c3d4, 2_000_005_000), (0xa1b2_3c4d, 2_000_000_005)] {
            let (packets, damage) = all(&pcap(magic, 101, &[(2, 5, &IP)]));
            assert_eq!((packets, damage), (vec![(ns, IP.to_vec())], None));
        }
    }

    #[test]
    fn pcapng_times_have_the_resolution_that_the_interface_says() {
        for (resolution, units, ns) in [
            (None, 3_000_007, 3_000_007_000),
            (Some(9), 3_000_000_007, 3_000_000_007),
            (Some(3), 3_001, 3_001_000_000),
            (Some(12), 3_000_000_007_000, 3_000_000_007),
            (Some(0x80 | 10), 1_536, 1_500_000_000),
        ] {
            let (packets, damage) = all(&pcapng(resolution, 101, units, &IP));
            assert_eq!((packets, damage), (vec![(ns, IP.to_vec())], None), "{resolution:?}");
        }
    }

    #[test]
    fn the_ip_header_is_found_behind_every_link_layer() {
        let tagged = [&[0; 12][..], &[0x81, 0, 0, 5, 0x08, 0], &IP].concat();
        let twice = [&[0; 12][..], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x86, 0xdd], &IP].concat();
        for (link, data) in [
            (1, [&[0; 12][..], &[0x08, 0], &IP].concat()),
            (1, tagged),
            (1, twice),
            (113, [&[0; 14][..], &[0x08, 0], &IP].concat()),
            (276, [&[0x86, 0xdd][..], &[0; 18], &IP].concat()),
            (101, IP.to_vec()),
        ] {
            let (packets, damage) = all(&pcap(0xa1b2_3c4d, link, &[(0, 1, &data)]));
            assert_eq!((packets, damage), (vec![(1, IP.to_vec())], None), "link {link}");
        }
    }

    #[test]
    fn a_truncated_file_gives_what_it_has_and_says_where_it_ends() {
        let whole = pcap(0xa1b2_3c4d, 101, &[(1, 0, &IP), (2, 0, &IP)]);
        let (packets, damage) = all(&whole[..whole.len() - 1]);
        assert_eq!(packets.len(), 1);
        assert_eq!(damage.map(|d| d.offset_bytes), Some(24 + 16 + 3));
        let whole = pcapng(None, 101, 5, &IP);
        let (packets, damage) = all(&whole[..whole.len() - 4]);
        assert!(packets.is_empty());
        assert!(damage.is_some_and(|d| d.why.contains("middle of a record")));
    }

    #[test]
    fn an_unknown_link_type_is_named() {
        let (_, damage) = all(&pcap(0xa1b2_3c4d, 105, &[]));
        assert!(damage.is_some_and(|d| d.why.contains("link type 105")));
    }

    #[test]
    fn no_file_whatever_its_bytes_makes_the_reader_panic() {
        pw_cases::check!().with_type::<(u8, Vec<u8>)>().for_each(|(kind, bytes)| {
            let bytes = match kind % 4 {
                0 => bytes.clone(),
                1 => [&pcap(0xa1b2_3c4d, 1, &[]), bytes.as_slice()].concat(),
                2 => [&pcapng(Some(9), 1, 5, bytes), bytes.as_slice()].concat(),
                // One byte of a good file is changed.
                _ => {
                    let mut good = pcapng(Some(6), 1, 5, &[0; 40]);
                    if let [at, value, ..] = bytes[..] {
                        let at = usize::from(at) % good.len();
                        good[at] = value;
                    }
                    good
                }
            };
            let mut count = 0;
            let _ = read_bytes(&bytes, |_| count += 1);
            assert!(count <= bytes.len() / 16 + 1);
        });
    }
}
