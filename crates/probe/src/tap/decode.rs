//! Recognises the probe in a captured packet: its protocol, id, sequence number and direction.
//! Knows nothing of capture points.

use etherparse::{Icmpv4Type, Icmpv6Type, LaxSlicedPacket, TransportSlice};
use serde::Serialize;

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
    let packet = LaxSlicedPacket::from_ip(network).ok()?;
    let matches = |id: Option<u16>, probe_id: u16| id.is_none_or(|id| id == probe_id);
    match (probes, packet.transport?) {
        (Probes::Echo { id }, transport) => {
            let (protocol, reply, echo, payload) = match &transport {
                TransportSlice::Icmpv4(icmp) => match icmp.icmp_type() {
                    Icmpv4Type::EchoRequest(echo) => (Protocol::Icmp, false, echo, icmp.payload()),
                    Icmpv4Type::EchoReply(echo) => (Protocol::Icmp, true, echo, icmp.payload()),
                    _ => return None,
                },
                TransportSlice::Icmpv6(icmp) => match icmp.icmp_type() {
                    Icmpv6Type::EchoRequest(echo) => (Protocol::Icmp6, false, echo, icmp.payload()),
                    Icmpv6Type::EchoReply(echo) => (Protocol::Icmp6, true, echo, icmp.payload()),
                    _ => return None,
                },
                _ => return None,
            };
            let number = wire::parse_echo_payload(payload);
            matches(id, echo.id).then_some(PassedProbe {
                protocol,
                id: echo.id,
                sequence: number.map_or(Sequence::Short(echo.seq), Sequence::Wide),
                reply,
                warmup: number.is_some_and(|sequence| sequence & wire::WARMUP_BIT != 0),
            })
        }
        (Probes::Stamp { port, id } | Probes::Udp { port, id }, TransportSlice::Udp(udp)) => {
            let reply = udp.source_port() == port;
            if !reply && udp.destination_port() != port {
                return None;
            }
            let sender = if reply { udp.destination_port() } else { udp.source_port() };
            let payload = udp.payload();
            let (protocol, sequence) = if matches!(probes, Probes::Udp { .. }) {
                (Protocol::Udp, Sequence::Wide(frame::read_payload(payload)?.0))
            } else if reply {
                let sequence = stamp::ReflectorPacket::parse(payload)?.sender_sequence;
                (Protocol::Stamp, Sequence::Half(sequence))
            } else {
                let sequence = stamp::SenderPacket::parse(payload)?.sequence;
                (Protocol::Stamp, Sequence::Half(sequence))
            };
            let probe = PassedProbe { protocol, id: sender, sequence, reply, warmup: false };
            matches(id, sender).then_some(probe)
        }
        _ => None,
    }
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
        let mut payload = [0; 100];
        wire::write_echo_payload(&mut payload, 1 << 40);
        let packet = bytes(true, false, 0, &payload);
        let probe = decode(&packet, ECHO).expect("an echo");
        assert_eq!((probe.sequence, probe.warmup), (Sequence::Wide(1 << 40), false));
        // A snap length that cuts the padding off does no harm.
        assert_eq!(decode(&packet[..40], ECHO), Some(probe));
        wire::write_echo_payload(&mut payload, wire::WARMUP_BIT | 3);
        assert!(decode(&bytes(false, true, 3, &payload), ECHO).expect("an echo").warmup);
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
