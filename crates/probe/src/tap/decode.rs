//! Recognises the probe in a captured packet: its protocol, id, sequence number and direction.

use serde::Serialize;

use crate::wire::Message;
use crate::{frame, stamp, wire};

/// The protocols whose probes are recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// ICMP echo.
    Icmp,
    /// ICMPv6 echo.
    Icmp6,
    /// STAMP (RFC 8762).
    Stamp,
    /// The frames of `pw-probe trial`.
    Udp,
}

impl Protocol {
    /// Its name, as in the CSV file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Icmp => "icmp",
            Self::Icmp6 => "icmp6",
            Self::Stamp => "stamp",
            Self::Udp => "udp",
        }
    }
}

/// The probes to recognise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probes {
    /// ICMP and ICMPv6 echoes.
    Echo {
        /// Of this identifier only.
        id: Option<u16>,
    },
    /// STAMP test packets to and from a reflector's port.
    Stamp {
        /// The reflector's port.
        port: u16,
        /// Of this sender's port only.
        id: Option<u16>,
    },
    /// Frames of `pw-probe trial` to (requests) and from (replies) a port.
    Udp {
        /// The port.
        port: u16,
        /// Of this sender's port only.
        id: Option<u16>,
    },
}

impl Probes {
    /// The UDP port; none of echoes.
    pub fn port(self) -> Option<u16> {
        match self {
            Self::Echo { .. } => None,
            Self::Stamp { port, .. } | Self::Udp { port, .. } => Some(port),
        }
    }
}

/// A sequence number as the packet carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequence {
    /// 64 bits, which never wrap: our echo.
    Wide(u64),
    /// 16 bits, to be unwrapped: another tool's echo.
    Short(u16),
    /// 32 bits, to be unwrapped: STAMP.
    Half(u32),
}

/// A probe that passed a capture point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassedProbe {
    /// Its protocol.
    pub protocol: Protocol,
    /// Echo identifier, or UDP port of the sender.
    pub id: u16,
    /// Its sequence number.
    pub sequence: Sequence,
    /// Whether it is the answer.
    pub reply: bool,
    /// Whether it warms up the path and is not a sample.
    pub warmup: bool,
}

/// Recognises a probe in a packet from its IP header on, which may be cut off behind the sequence
/// number. None for all other packets.
pub fn decode(network: &[u8], probes: Probes) -> Option<PassedProbe> {
    let packet = wire::parse(network)?;
    let probe = match (probes, packet.message) {
        (Probes::Echo { .. }, Message::Echo { reply, identifier, sequence, payload }) => {
            let number = wire::echo_sequence(payload);
            PassedProbe {
                protocol: if packet.source.is_ipv4() { Protocol::Icmp } else { Protocol::Icmp6 },
                id: identifier,
                sequence: number.map_or(Sequence::Short(sequence), Sequence::Wide),
                reply,
                warmup: number.is_some_and(|number| number & wire::WARMUP_BIT != 0),
            }
        }
        (
            Probes::Stamp { port, .. } | Probes::Udp { port, .. },
            Message::Udp { source, destination, payload },
        ) => {
            let reply = source == port;
            if !reply && destination != port {
                return None;
            }
            let (protocol, sequence) = if matches!(probes, Probes::Udp { .. }) {
                (Protocol::Udp, Sequence::Wide(frame::read_payload(payload)?.0))
            } else if reply {
                let sequence = stamp::ReflectorPacket::parse(payload)?.sender_sequence;
                (Protocol::Stamp, Sequence::Half(sequence))
            } else {
                let sequence = stamp::SenderPacket::parse(payload)?.sequence;
                (Protocol::Stamp, Sequence::Half(sequence))
            };
            let id = if reply { destination } else { source };
            PassedProbe { protocol, id, sequence, reply, warmup: false }
        }
        _ => return None,
    };
    let (Probes::Echo { id } | Probes::Stamp { id, .. } | Probes::Udp { id, .. }) = probes;
    id.is_none_or(|id| id == probe.id).then_some(probe)
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    const ECHO: Probes = Probes::Echo { id: None };

    fn bytes(reply: bool, ipv6: bool, seq: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let written = if ipv6 {
            let ip = PacketBuilder::ipv6([1; 16], [2; 16], 64);
            let icmp =
                if reply { ip.icmpv6_echo_reply(77, seq) } else { ip.icmpv6_echo_request(77, seq) };
            icmp.write(&mut bytes, payload)
        } else {
            let ip = PacketBuilder::ipv4([198, 18, 0, 1], [198, 18, 0, 2], 64);
            let icmp =
                if reply { ip.icmpv4_echo_reply(77, seq) } else { ip.icmpv4_echo_request(77, seq) };
            icmp.write(&mut bytes, payload)
        };
        written.expect("fits");
        bytes
    }

    #[test]
    fn echoes_are_recognised_in_both_versions_and_directions() {
        for (ipv6, protocol) in [(false, Protocol::Icmp), (true, Protocol::Icmp6)] {
            for reply in [false, true] {
                let packet = bytes(reply, ipv6, 9, &[0; 56]);
                let probe = decode(&packet, ECHO).expect("an echo");
                let expected = PassedProbe {
                    protocol,
                    id: 77,
                    sequence: Sequence::Short(9),
                    reply,
                    warmup: false,
                };
                assert_eq!(probe, expected);
                assert_eq!(decode(&packet, Probes::Echo { id: Some(78) }), None);
            }
        }
    }

    #[test]
    fn our_echoes_carry_64_bits_and_their_warm_up_is_told_apart() {
        let payload =
            |number: u64| [&wire::ECHO_MAGIC[..], &number.to_be_bytes(), &[0; 88]].concat();
        let packet = bytes(true, false, 0, &payload(1 << 40));
        let probe = decode(&packet, ECHO).expect("an echo");
        assert_eq!((probe.sequence, probe.warmup), (Sequence::Wide(1 << 40), false));
        // A snap length that cuts the padding off does no harm.
        assert_eq!(decode(&packet[..40], ECHO), Some(probe));
        let warmup = bytes(false, true, 3, &payload(wire::WARMUP_BIT | 3));
        assert!(decode(&warmup, ECHO).expect("an echo").warmup);
    }

    #[test]
    fn stamp_replies_carry_the_senders_number() {
        let mut payload = [0_u8; 44];
        payload[..4].copy_from_slice(&500_u32.to_be_bytes());
        payload[24..28].copy_from_slice(&7_u32.to_be_bytes());
        let probes = Probes::Stamp { port: 862, id: None };
        for (source, destination, reply, sequence) in
            [(40_000, 862, false, 500), (862, 40_000, true, 7)]
        {
            let mut packet = Vec::new();
            PacketBuilder::ipv4([198, 18, 0, 1], [198, 18, 0, 2], 64)
                .udp(source, destination)
                .write(&mut packet, &payload)
                .expect("fits");
            let probe = decode(&packet, probes).expect("STAMP");
            assert_eq!((probe.reply, probe.id), (reply, 40_000));
            assert_eq!(probe.sequence, Sequence::Half(sequence));
        }
    }

    #[test]
    fn whatever_is_captured_is_recognised_or_left() {
        pw_cases::check!().with_type::<(Vec<u8>, u16, Option<u16>)>().for_each(
            |(bytes, port, id)| {
                let (port, id) = (*port, *id);
                for probes in
                    [Probes::Echo { id }, Probes::Stamp { port, id }, Probes::Udp { port, id }]
                {
                    let _ = decode(bytes, probes);
                }
            },
        );
    }
}
