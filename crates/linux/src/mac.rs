//! MAC addresses.

use std::fmt;
use std::str::FromStr;

use pw_error::{Error, Result};

/// A MAC address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The address of a VF that was given none.
    pub const NONE: Self = Self([0; 6]);

    /// Whether it is a unicast address: not all zeros, no group bit.
    pub fn is_station(self) -> bool {
        self != Self::NONE && self.0[0] & 1 == 0
    }

    /// The address whose last three bytes are larger by `count`, modulo 2^24.
    pub fn plus(self, count: u32) -> Self {
        let [a, b, c, d, e, f] = self.0;
        let [_, d, e, f] = u32::from_be_bytes([0, d, e, f]).wrapping_add(count).to_be_bytes();
        Self([a, b, c, d, e, f])
    }

    /// The first address for the VFs of the PF with this address: locally administered, the same at
    /// every call, distinct between PFs up to a collision of 24 bits (FNV-1a).
    pub fn first_of_pool(pf: Self) -> Self {
        let hash = pf.0.iter().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
        Self([0x06, 0x70, 0x77, 0, 0, 0]).plus((hash >> 8) & 0x00ff_ffff)
    }

    /// Parses a unicast address.
    pub fn station(text: &str) -> Result<Self> {
        let mac: Self = text.parse()?;
        if mac.is_station() {
            return Ok(mac);
        }
        Err(Error::bad_input(
            format!("{mac} is not an address of a station"),
            "the first byte must be even, and not all bytes may be zero; 02:… is free for anybody",
        ))
    }
}

impl FromStr for Mac {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        let read = bytes.iter_mut().all(|byte| {
            parts.next().is_some_and(|part| {
                part.len() == 2
                    && part.bytes().all(|digit| digit.is_ascii_hexdigit())
                    && u8::from_str_radix(part, 16).map(|value| *byte = value).is_ok()
            })
        });
        if read && parts.next().is_none() {
            return Ok(Self(bytes));
        }
        Err(Error::bad_input(
            format!("'{text}' is not a MAC address"),
            "write six bytes in hexadecimal, for example 02:70:77:00:00:01",
        ))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pw_error::serde_as_text!(Mac);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_a_pool_differ_and_are_local_ones() {
        let first = Mac::first_of_pool("02:70:77:6c:00:00".parse().expect("valid"));
        let other = Mac::first_of_pool("02:70:77:6c:01:00".parse().expect("valid"));
        assert_ne!(first, other);
        for index in 0..256 {
            let mac = first.plus(index);
            assert!(mac.is_station() && mac.0[0] & 2 == 2, "{mac}");
            assert_eq!(&mac.0[..3], &[0x06, 0x70, 0x77]);
        }
        let last: Mac = "02:00:00:ff:ff:ff".parse().expect("valid");
        assert_eq!(last.plus(1).to_string(), "02:00:00:00:00:00");
    }

    #[test]
    fn groups_and_nothing_are_no_stations() {
        for text in ["01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"] {
            assert_eq!(
                Mac::station(text).map_err(|error| error.kind),
                Err(pw_error::Kind::BadInput),
                "{text}"
            );
        }
    }

    #[test]
    fn every_address_that_is_accepted_reads_back_as_itself() {
        pw_cases::check!().with_type::<[u8; 6]>().for_each(|bytes| {
            assert_eq!(Mac(*bytes).to_string().parse::<Mac>().ok(), Some(Mac(*bytes)));
        });
        pw_cases::check!().with_type::<String>().for_each(|text| {
            if let Ok(mac) = text.parse::<Mac>() {
                assert!(mac.to_string().eq_ignore_ascii_case(text));
            }
        });
    }
}
