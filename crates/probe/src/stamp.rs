//! STAMP test packets (RFC 8762, unauthenticated mode; session identifier and TLVs of RFC 8972).
//! Pure.

use crate::clock::NANOS_PER_SECOND;
use crate::wire::WARMUP_BIT;

/// STAMP's UDP port (RFC 8762, section 4.1).
pub const PORT: u16 = 862;
/// Length of the base packets of both roles (RFC 8762, sections 4.2.1 and 4.3.1).
pub const BASE_BYTES: usize = 44;

/// Sequence numbers from this on mark warm-up packets, unless a session has come that far: STAMP has
/// no other field for the mark.
pub const WARMUP: u32 = 0xffff_0000;

/// The number that a packet carries, whose 64-bit one may have [`WARMUP_BIT`].
pub fn number(sequence: u64) -> u32 {
    if sequence & WARMUP_BIT == 0 { sequence as u32 } else { WARMUP | (sequence as u32 & 0xffff) }
}

/// The 64-bit number of a packet that carries `number`.
pub fn sequence(number: u32) -> u64 {
    u64::from(number) | if number >= WARMUP { WARMUP_BIT } else { 0 }
}

/// Seconds from 1900-01-01 (NTP) to 1970-01-01 (Unix): 70 years with 17 leap days.
const NTP_TO_UNIX_SECONDS: i64 = 2_208_988_800;
const NTP_ERA_SECONDS: i64 = 1 << 32;

/// A time [ns since 1970-01-01 UTC] as a timestamp field: NTP's 64 bits, seconds since 1900 and 2⁻³²
/// fractions.
#[inline]
pub fn encode(unix_ns: i64) -> [u8; 8] {
    let seconds = unix_ns.div_euclid(NANOS_PER_SECOND) + NTP_TO_UNIX_SECONDS;
    let nanos = unix_ns.rem_euclid(NANOS_PER_SECOND) as u64;
    // Rounded up, so that decoding (which rounds down) gives the nanosecond back.
    let fraction = (nanos << 32).div_ceil(NANOS_PER_SECOND as u64).min(0xffff_ffff);
    (((seconds as u64) << 32) | fraction).to_be_bytes()
}

/// A timestamp field as a time [ns since 1970-01-01 UTC].
///
/// Its seconds wrap (in 2036): of the possible times the one nearest to `near_ns` is meant.
#[inline]
pub fn decode(field: [u8; 8], near_ns: i64) -> i64 {
    let field = u64::from_be_bytes(field);
    let seconds = (field >> 32) as i64 - NTP_TO_UNIX_SECONDS;
    let nanos = ((field & 0xffff_ffff) * NANOS_PER_SECOND as u64) >> 32;
    let near = near_ns.div_euclid(NANOS_PER_SECOND);
    let eras = (near - seconds + NTP_ERA_SECONDS / 2).div_euclid(NTP_ERA_SECONDS);
    let seconds = seconds + eras * NTP_ERA_SECONDS;
    seconds.saturating_mul(NANOS_PER_SECOND).saturating_add(nanos as i64)
}

/// The error estimate field (RFC 4656, section 4.1.2) of a clock that may be wrong by a second, not
/// synchronised: multiplier 128 · 2^(25 − 32) s. Its bit Z (RFC 8186) is clear: times are NTP's.
pub const ERROR_ESTIMATE: [u8; 2] = [25, 128];
/// The bit Z: times are PTP's.
const PTP: u8 = 0x40;

/// A Session-Sender's packet (RFC 8762, figure 2; SSID of RFC 8972, figure 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderPacket {
    /// Sequence number, from 0, wraps.
    pub sequence: u32,
    /// Time of sending, as a field.
    pub timestamp: [u8; 8],
    /// Error estimate of that time, as a field.
    pub error_estimate: [u8; 2],
    /// STAMP session identifier; zero when there is none.
    pub ssid: u16,
}

impl SenderPacket {
    /// Parses a packet; none when it is shorter than the base packet.
    #[inline]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let base: &[u8; BASE_BYTES] = packet.first_chunk()?;
        Some(Self {
            sequence: u32::from_be_bytes(field(base, 0)),
            timestamp: field(base, 4),
            error_estimate: field(base, 12),
            ssid: u16::from_be_bytes(field(base, 14)),
        })
    }

    /// Writes the base packet; bytes behind it become an Extra Padding TLV (RFC 8972, section
    /// 4.1), or zeros where fewer than four are left.
    ///
    /// # Panics
    /// When `packet` is shorter than [`BASE_BYTES`].
    pub fn write(&self, packet: &mut [u8]) {
        packet.fill(0);
        packet[..4].copy_from_slice(&self.sequence.to_be_bytes());
        packet[4..12].copy_from_slice(&self.timestamp);
        packet[12..14].copy_from_slice(&self.error_estimate);
        packet[14..16].copy_from_slice(&self.ssid.to_be_bytes());
        let tail = &mut packet[BASE_BYTES..];
        if tail.len() >= TLV_HEADER_BYTES {
            let length = (tail.len() - TLV_HEADER_BYTES) as u16;
            tail[0] = TLV_UNRECOGNISED;
            tail[1] = TLV_EXTRA_PADDING;
            tail[2..4].copy_from_slice(&length.to_be_bytes());
        }
    }
}

/// A Session-Reflector's packet (RFC 8762, figure 5; SSID of RFC 8972, figure 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReflectorPacket {
    /// The sender's number (stateless) or the reflector's own count (stateful).
    pub sequence: u32,
    /// T3: time of sending the answer.
    pub timestamp: [u8; 8],
    /// Error estimate of T2 and T3.
    pub error_estimate: [u8; 2],
    /// Session identifier, copied from the request.
    pub ssid: u16,
    /// T2: time of receiving the request.
    pub receive_timestamp: [u8; 8],
    /// Copied from the request.
    pub sender_sequence: u32,
    /// T1, copied from the request.
    pub sender_timestamp: [u8; 8],
    /// Copied from the request.
    pub sender_error_estimate: [u8; 2],
    /// TTL or hop limit with which the request arrived.
    pub sender_ttl: u8,
}

impl ReflectorPacket {
    /// Parses a packet; none when it is shorter than the base packet.
    #[inline]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let base: &[u8; BASE_BYTES] = packet.first_chunk()?;
        Some(Self {
            sequence: u32::from_be_bytes(field(base, 0)),
            timestamp: field(base, 4),
            error_estimate: field(base, 12),
            ssid: u16::from_be_bytes(field(base, 14)),
            receive_timestamp: field(base, 16),
            sender_sequence: u32::from_be_bytes(field(base, 24)),
            sender_timestamp: field(base, 28),
            sender_error_estimate: field(base, 36),
            sender_ttl: base[40],
        })
    }

    /// Writes the base packet and leaves what follows it alone.
    ///
    /// # Panics
    /// When `packet` is shorter than [`BASE_BYTES`].
    #[inline]
    pub fn write(&self, packet: &mut [u8]) {
        packet[..4].copy_from_slice(&self.sequence.to_be_bytes());
        packet[4..12].copy_from_slice(&self.timestamp);
        packet[12..14].copy_from_slice(&self.error_estimate);
        packet[14..16].copy_from_slice(&self.ssid.to_be_bytes());
        packet[16..24].copy_from_slice(&self.receive_timestamp);
        packet[24..28].copy_from_slice(&self.sender_sequence.to_be_bytes());
        packet[28..36].copy_from_slice(&self.sender_timestamp);
        packet[36..38].copy_from_slice(&self.sender_error_estimate);
        packet[38..40].fill(0);
        packet[40] = self.sender_ttl;
        packet[41..44].fill(0);
    }

    /// Time that the request spent in the reflector, T3 − T2 [ns]; both are of one clock. None where
    /// they are PTP's.
    #[inline]
    pub fn residence_ns(&self, near_ns: i64) -> Option<i64> {
        let times = (self.error_estimate[0] & PTP == 0)
            .then(|| [self.timestamp, self.receive_timestamp].map(|time| decode(time, near_ns)));
        times.map(|[sent_ns, received_ns]| sent_ns - received_ns)
    }
}

const TLV_HEADER_BYTES: usize = 4;
const TLV_UNRECOGNISED: u8 = 0x80;
const TLV_MALFORMED: u8 = 0x40;
const TLV_EXTRA_PADDING: u8 = 1;

/// Sets the flags of the TLVs behind a request's base packet as a reflector must (RFC 8972,
/// section 4): U cleared on what we know (Extra Padding), set on what we do not; M set on a TLV
/// that reaches beyond the packet. Zeros as RFC 8762 pads are left alone.
pub fn reflect_tlvs(mut tail: &mut [u8]) {
    if tail.iter().all(|&byte| byte == 0) {
        return;
    }
    while tail.len() >= TLV_HEADER_BYTES {
        let length = usize::from(u16::from_be_bytes([tail[2], tail[3]]));
        if TLV_HEADER_BYTES + length > tail.len() {
            tail[0] = (tail[0] & !TLV_UNRECOGNISED) | TLV_MALFORMED;
            return;
        }
        if tail[1] == TLV_EXTRA_PADDING {
            tail[0] &= !TLV_UNRECOGNISED;
        } else {
            tail[0] |= TLV_UNRECOGNISED;
        }
        tail = &mut tail[TLV_HEADER_BYTES + length..];
    }
}

#[inline]
fn field<const N: usize>(base: &[u8; BASE_BYTES], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&base[at..at + N]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2020-03-01T00:00:00.5Z: RFC 8762 is of March 2020.
    const TIME_NS: i64 = 1_583_020_800_500_000_000;

    #[test]
    fn a_sender_packet_has_the_layout_of_rfc_8762() {
        let mut packet = [0xee; 44];
        SenderPacket {
            sequence: 0x0102_0304,
            timestamp: encode(TIME_NS),
            error_estimate: [0x0a, 0x01],
            ssid: 0xbeef,
        }
        .write(&mut packet);
        let mut expected = vec![0x01, 0x02, 0x03, 0x04];
        // 1_583_020_800 + 2_208_988_800 = 0xe205_da80... half a second is 0x8000_0000.
        expected.extend((1_583_020_800_u32 + 2_208_988_800).to_be_bytes());
        expected.extend([0x80, 0, 0, 0]);
        expected.extend([0x0a, 0x01, 0xbe, 0xef]);
        expected.extend([0; 28]);
        assert_eq!(packet.as_slice(), expected);
    }

    #[test]
    fn a_reflector_packet_has_the_layout_of_rfc_8762() {
        let bytes: [u8; 44] = [
            0, 0, 0, 9, // sequence number
            0xe2, 5, 1, 2, 0x80, 0, 0, 0, // timestamp
            0x8a, 3, // error estimate: synchronised, scale 10
            0xbe, 0xef, // SSID
            0xe2, 5, 1, 2, 0x40, 0, 0, 0, // receive timestamp
            0, 0, 0, 7, // session-sender sequence number
            0xe2, 5, 1, 1, 0, 0, 0, 1, // session-sender timestamp
            0x0b, 1, // session-sender error estimate
            0, 0,  // must be zero
            64, // session-sender TTL
            0, 0, 0, // must be zero
        ];
        let packet = ReflectorPacket::parse(&bytes).expect("44 bytes");
        assert_eq!((packet.sequence, packet.sender_sequence), (9, 7));
        assert_eq!((packet.ssid, packet.sender_ttl), (0xbeef, 64));
        assert_eq!(packet.residence_ns(TIME_NS), Some(250_000_000));
        let ptp = ReflectorPacket { error_estimate: [0x40 | 25, 128], ..packet };
        assert_eq!(ptp.residence_ns(TIME_NS), None);
        let mut written = [0xff; 44];
        packet.write(&mut written);
        assert_eq!(written, bytes);
    }

    #[test]
    fn the_error_estimate_says_a_second() {
        let [scale, multiplier] = ERROR_ESTIMATE;
        assert_eq!(f64::from(multiplier) * 2f64.powi(i32::from(scale) - 32), 1.0);
    }

    #[test]
    fn times_survive_across_the_era_of_2036() {
        pw_cases::check!().with_type::<u64>().for_each(|&time| {
            let time_ns = (time % 5_000_000_000_000_000_000) as i64; // until 2128
            let near_ns = time_ns + 86_400 * NANOS_PER_SECOND;
            assert_eq!(decode(encode(time_ns), near_ns), time_ns);
        });
    }

    #[test]
    fn parsers_take_any_bytes_and_write_them_back() {
        pw_cases::check!().for_each(|bytes: &[u8]| {
            let sender = SenderPacket::parse(bytes);
            let reflector = ReflectorPacket::parse(bytes);
            assert_eq!(sender.is_some(), bytes.len() >= BASE_BYTES);
            assert_eq!(reflector.is_some(), bytes.len() >= BASE_BYTES);
            if let (Some(sender), Some(reflector)) = (sender, reflector) {
                let mut copy = bytes.to_vec();
                sender.write(&mut copy);
                assert_eq!(SenderPacket::parse(&copy), Some(sender));
                reflector.write(&mut copy);
                assert_eq!(ReflectorPacket::parse(&copy), Some(reflector));
                let _ = reflector.residence_ns(TIME_NS);
            }
            let mut tail = bytes.to_vec();
            reflect_tlvs(&mut tail);
        });
    }

    #[test]
    fn extra_padding_is_a_tlv_that_the_reflector_recognises() {
        let mut packet = [0; 60];
        SenderPacket { sequence: 1, timestamp: [0; 8], error_estimate: [0, 1], ssid: 1 }
            .write(&mut packet);
        assert_eq!(packet[44..48], [0x80, 1, 0, 12]);
        reflect_tlvs(&mut packet[44..]);
        assert_eq!(packet[44..48], [0, 1, 0, 12]);
    }

    #[test]
    fn unknown_and_malformed_tlvs_are_marked() {
        let mut unknown = [0, 9, 0, 0];
        reflect_tlvs(&mut unknown);
        assert_eq!(unknown[0], 0x80);
        let mut too_long = [0x80, 1, 0, 5, 0, 0, 0, 0];
        reflect_tlvs(&mut too_long);
        assert_eq!(too_long[0], 0x40);
    }
}
