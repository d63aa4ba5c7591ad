//! Recognises the probe in a captured packet: its flow, sequence number and direction.

use serde::Serialize;

use crate::stamp::{ReflectorPacket, SenderPacket};
use crate::wire::{self, Message};

/// The protocols whose probes are recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Proto {
    /// ICMP and ICMPv6 echoes, of any tool
    Icmp,
    /// STAMP test packets (RFC 8762)
    Stamp,
}

/// The probes to recognise.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Their protocol.
    pub proto: Proto,
    /// UDP port of the reflector.
    pub port: u16,
    /// Of this echo identifier, or this UDP port of the sender, only.
    pub id: Option<u16>,
}

/// A probe that passed a capture point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassedProbe {
    /// Its protocol, as in the CSV file.
    pub protocol: &'static str,
    /// Echo identifier, or UDP port of the sender.
    pub id: u16,
    /// Its sequence number.
    pub number: u64,
    /// Bits of the number: 64 (our echo) never wrap, 16 (another tool's) and 32 (STAMP) do.
    pub bits: u32,
    /// Whether it is the answer.
    pub reply: bool,
    /// Whether it warms up the path and is not a sample.
    pub warmup: bool,
}

/// Recognises a probe in a packet from its IP header on, which may be cut off behind the sequence
/// number. None for all other packets.
pub fn decode(network: &[u8], wanted: Wanted) -> Option<PassedProbe> {
    let packet = wire::parse(network)?;
    let probe = match (wanted.proto, packet.message) {
        (Proto::Icmp, Message::Echo { reply, identifier, sequence, payload }) => {
            let ours = wire::echo_sequence(payload);
            PassedProbe {
                protocol: if packet.source.is_ipv4() { "icmp" } else { "icmp6" },
                id: identifier,
                number: ours.unwrap_or(sequence.into()),
                bits: if ours.is_some() { 64 } else { 16 },
                reply,
                warmup: ours.is_some_and(|number| number & wire::WARMUP_BIT != 0),
            }
        }
        (Proto::Stamp, Message::Udp { source, destination, payload }) => {
            let reply = source == wanted.port;
            if !reply && destination != wanted.port {
                return None;
            }
            let (id, number) = if reply {
                (destination, ReflectorPacket::parse(payload)?.sender_sequence)
            } else {
                (source, SenderPacket::parse(payload)?.sequence)
            };
            let number = number.into();
            PassedProbe { protocol: "stamp", id, number, bits: 32, reply, warmup: false }
        }
        _ => return None,
    };
    wanted.id.is_none_or(|id| id == probe.id).then_some(probe)
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    const ECHO: Wanted = Wanted { proto: Proto::Icmp, port: 862, id: None };

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
        for (ipv6, protocol) in [(false, "icmp"), (true, "icmp6")] {
            for reply in [false, true] {
                let packet = bytes(reply, ipv6, 9, &[0; 56]);
                let probe = decode(&packet, ECHO).expect("an echo");
                let expected =
                    PassedProbe { protocol, id: 77, number: 9, bits: 16, reply, warmup: false };
                assert_eq!(probe, expected);
                assert_eq!(decode(&packet, Wanted { id: Some(78), ..ECHO }), None);
            }
        }
    }

    #[test]
    fn our_echoes_carry_64_bits_and_their_warm_up_is_told_apart() {
        let payload =
            |number: u64| [&wire::ECHO_MAGIC[..], &number.to_be_bytes(), &[0; 88]].concat();
        let packet = bytes(true, false, 0, &payload(1 << 40));
        let probe = decode(&packet, ECHO).expect("an echo");
        assert_eq!((probe.number, probe.bits, probe.warmup), (1 << 40, 64, false));
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
        let wanted = Wanted { proto: Proto::Stamp, ..ECHO };
        for (source, destination, reply, number) in
            [(40_000, 862, false, 500), (862, 40_000, true, 7)]
        {
            let mut packet = Vec::new();
            PacketBuilder::ipv4([198, 18, 0, 1], [198, 18, 0, 2], 64)
                .udp(source, destination)
                .write(&mut packet, &payload)
                .expect("fits");
            let probe = decode(&packet, wanted).expect("STAMP");
            assert_eq!((probe.reply, probe.id), (reply, 40_000));
            assert_eq!((probe.number, probe.bits), (number, 32));
        }
    }

    #[test]
    fn whatever_is_captured_is_recognised_or_left() {
        pw_cases::check!().with_type::<(Vec<u8>, u16, Option<u16>)>().for_each(
            |(bytes, port, id)| {
                for proto in [Proto::Icmp, Proto::Stamp] {
                    let _ = decode(bytes, Wanted { proto, port: *port, id: *id });
                }
            },
        );
    }
}
