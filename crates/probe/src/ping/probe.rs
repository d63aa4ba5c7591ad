//! The messages of a probe: writes requests and recognises their answers. Pure; knows no sockets.

use std::net::IpAddr;

use crate::clock;
use crate::stamp::{self, ErrorEstimate, ReflectorPacket, SenderPacket, TimeFormat};
use crate::wire::{self, IpPacket, WARMUP_BIT};

/// Error estimate of this host's clock, whose offset from UTC is unknown.
const CLOCK_ERROR_NS: u64 = clock::NANOS_PER_SECOND as u64;

/// STAMP's sequence numbers have 32 bits; the topmost are for warming up.
pub use crate::stamp::WARMUP as STAMP_WARMUP;

/// A kind of probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// ICMP or ICMPv6 echo.
    Echo {
        /// ICMPv6.
        ipv6: bool,
        /// Identifier of the run.
        identifier: u16,
    },
    /// STAMP over UDP.
    Stamp {
        /// How times are written.
        format: TimeFormat,
        /// Session identifier.
        ssid: u16,
        /// UDP port of the sender.
        source_port: u16,
        /// UDP port of the reflector.
        port: u16,
    },
}

/// A parsed answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Sequence number of the packet answered; with [`WARMUP_BIT`] it is not a sample.
    pub sequence: u64,
    /// Time in the reflector [ns]; -1 when unknown.
    pub residence_ns: i32,
}

impl Probe {
    /// Protocol number in the IP header.
    pub fn protocol(self) -> u8 {
        match self {
            Self::Echo { ipv6: false, .. } => wire::PROTOCOL_ICMP,
            Self::Echo { ipv6: true, .. } => wire::PROTOCOL_ICMPV6,
            Self::Stamp { .. } => wire::PROTOCOL_UDP,
        }
    }

    /// Writes message `sequence`: an ICMP message with its header (checksum complete but for
    /// `pseudo_sum`), or a STAMP packet (the UDP payload; its time is [`set_time`]'s).
    ///
    /// [`set_time`]: Probe::set_time
    pub fn write(self, message: &mut [u8], sequence: u64, pseudo_sum: u32) {
        match self {
            Self::Echo { ipv6, identifier } => {
                wire::write_echo_request(message, ipv6, identifier, sequence, pseudo_sum);
            }
            Self::Stamp { format, ssid, .. } => {
                let sequence = if sequence & WARMUP_BIT == 0 {
                    sequence as u32
                } else {
                    STAMP_WARMUP | (sequence as u32 & 0xffff)
                };
                let error_estimate = ErrorEstimate::new(format, false, CLOCK_ERROR_NS).encode();
                SenderPacket { sequence, timestamp: [0; 8], error_estimate, ssid }.write(message);
            }
        }
    }

    /// Puts the time of sending into a STAMP packet; echoes carry none.
    #[inline]
    pub fn set_time(self, message: &mut [u8], user_tx_ns: i64) {
        if let Self::Stamp { format, .. } = self {
            message[4..12].copy_from_slice(&format.encode(user_tx_ns));
        }
    }

    /// Parses an answer in an ICMP message or a UDP payload; none for any other.
    #[inline]
    pub fn answer(self, message: &[u8], near_ns: i64) -> Option<Answer> {
        match self {
            Self::Echo { identifier, .. } => {
                let echo = wire::parse_icmp_echo(message, self.protocol())?;
                if !echo.reply || echo.identifier != identifier {
                    return None;
                }
                let sequence = wire::parse_echo_payload(echo.payload)?;
                Some(Answer { sequence, residence_ns: -1 })
            }
            Self::Stamp { ssid, .. } => {
                let packet = ReflectorPacket::parse(message)?;
                // A reflector without RFC 8972 leaves the identifier zero.
                if packet.ssid != ssid && packet.ssid != 0 {
                    return None;
                }
                let residence_ns = i32::try_from(packet.residence_ns(near_ns)).unwrap_or(-1);
                Some(Answer {
                    sequence: with_warmup_bit(packet.sender_sequence),
                    residence_ns: residence_ns.max(-1),
                })
            }
        }
    }

    #[inline]
    fn answer_in(self, ip: IpPacket<'_>, target: IpAddr, near_ns: i64) -> Option<Answer> {
        if ip.source != target || ip.protocol != self.protocol() {
            return None;
        }
        match self {
            Self::Echo { .. } => self.answer(ip.payload, near_ns),
            Self::Stamp { source_port, port, .. } => {
                let udp = wire::parse_udp_head(ip.payload)?;
                if udp.source_port != port || udp.destination_port != source_port {
                    return None;
                }
                self.answer(udp.payload, near_ns)
            }
        }
    }

    /// Parses an answer in the beginning of an Ethernet frame, as much as a capture kept.
    #[inline]
    pub fn answer_in_frame(self, frame: &[u8], target: IpAddr, near_ns: i64) -> Option<Answer> {
        let packet = frame.get(wire::ETHERNET_HEADER_BYTES..)?;
        let ip = wire::parse_ip_head(packet)?;
        self.answer_in(ip, target, near_ns)
    }

    /// The sequence number of a request to `target` in the beginning of an Ethernet frame.
    #[inline]
    pub fn request_in_frame(self, frame: &[u8], target: IpAddr) -> Option<u64> {
        let ip = wire::parse_ip_head(frame.get(wire::ETHERNET_HEADER_BYTES..)?)?;
        if ip.destination != target || ip.protocol != self.protocol() {
            return None;
        }
        match self {
            Self::Echo { identifier, .. } => {
                let echo = wire::parse_icmp_echo(ip.payload, ip.protocol)?;
                let matches = !echo.reply && echo.identifier == identifier;
                matches.then(|| wire::parse_echo_payload(echo.payload)).flatten()
            }
            Self::Stamp { source_port, port, .. } => {
                let udp = wire::parse_udp_head(ip.payload)?;
                let packet = SenderPacket::parse(udp.payload)?;
                let matches = udp.source_port == source_port && udp.destination_port == port;
                matches.then(|| with_warmup_bit(packet.sequence))
            }
        }
    }

    /// Bytes of the message that [`Probe::write`] writes, for a payload of `payload_bytes` behind
    /// the ICMP or UDP header.
    pub fn message_bytes(self, payload_bytes: usize) -> usize {
        match self {
            Self::Echo { .. } => wire::UPPER_HEADER_BYTES + payload_bytes,
            Self::Stamp { .. } => payload_bytes,
        }
    }

    /// The least payload behind the ICMP or UDP header.
    pub fn least_payload_bytes(stamp: bool) -> usize {
        if stamp { stamp::BASE_BYTES } else { wire::ECHO_HEADER_BYTES }
    }
}

fn with_warmup_bit(sequence: u32) -> u64 {
    u64::from(sequence) | if sequence >= STAMP_WARMUP { WARMUP_BIT } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Probe =
        Probe::Stamp { format: TimeFormat::Ntp, ssid: 7, source_port: 5000, port: 862 };
    const ECHO: Probe = Probe::Echo { ipv6: false, identifier: 0x1234 };

    #[test]
    fn only_replies_to_this_run_are_answers() {
        let mut message = [0; 26];
        ECHO.write(&mut message, 3, 0);
        assert_eq!(ECHO.answer(&message, 0), None, "a request is not an answer");
        message[0] = 0;
        assert_eq!(ECHO.answer(&message, 0), Some(Answer { sequence: 3, residence_ns: -1 }));
        assert_eq!(Probe::Echo { ipv6: false, identifier: 1 }.answer(&message, 0), None);
        message[8] = b'Q';
        assert_eq!(ECHO.answer(&message, 0), None, "a reply to someone else's ping");
    }

    #[test]
    fn a_reflected_stamp_packet_is_an_answer_with_its_residence() {
        let now_ns = 1_583_020_800_000_000_000;
        let mut packet = [0; 44];
        STAMP.write(&mut packet, 9, 0);
        STAMP.set_time(&mut packet, now_ns);
        let request = SenderPacket::parse(&packet).expect("base packet");
        ReflectorPacket {
            sequence: 1,
            timestamp: TimeFormat::Ntp.encode(now_ns + 3_000),
            error_estimate: [0, 1],
            ssid: request.ssid,
            receive_timestamp: TimeFormat::Ntp.encode(now_ns + 1_000),
            sender_sequence: request.sequence,
            sender_timestamp: request.timestamp,
            sender_error_estimate: request.error_estimate,
            sender_ttl: 64,
        }
        .write(&mut packet);
        let answer = STAMP.answer(&packet, now_ns);
        assert_eq!(answer, Some(Answer { sequence: 9, residence_ns: 2_000 }));
        packet[15] = 8;
        assert_eq!(STAMP.answer(&packet, now_ns), None, "another session");
    }

    #[test]
    fn warm_up_packets_are_told_from_samples() {
        let mut packet = [0; 44];
        STAMP.write(&mut packet, WARMUP_BIT | 5, 0);
        packet[24..28].copy_from_slice(&STAMP_WARMUP.to_be_bytes());
        assert!(STAMP.answer(&packet, 0).is_some_and(|a| a.sequence & WARMUP_BIT != 0));
        let mut message = [0; 26];
        ECHO.write(&mut message, WARMUP_BIT | 5, 0);
        message[0] = 0;
        assert!(ECHO.answer(&message, 0).is_some_and(|a| a.sequence & WARMUP_BIT != 0));
    }

    #[test]
    fn any_bytes_may_come_back() {
        let targets = [IpAddr::from([198, 18, 0, 2]), IpAddr::from([0x2001, 2, 0, 0, 0, 0, 0, 2])];
        pw_cases::check!().for_each(|bytes: &[u8]| {
            for probe in [ECHO, STAMP, Probe::Echo { ipv6: true, identifier: 0 }] {
                let _ = probe.answer(bytes, 0);
                for target in targets {
                    let _ = probe.answer_in_frame(bytes, target, 0);
                    let _ = probe.request_in_frame(bytes, target);
                }
            }
        });
    }
}
