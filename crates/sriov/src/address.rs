//! PCI addresses.

use std::fmt;
use std::str::FromStr;

use pw_error::{Error, Result};

/// A PCI function: `domain:bus:device.function`, all in hexadecimal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    /// Bus (8 bits), device (5 bits), function (3 bits).
    routing_id: u16,
}

impl PciAddress {
    /// The function whose routing ID is larger by `offset`; none beyond the last.
    pub fn plus(self, offset: u32) -> Option<Self> {
        let routing_id = u32::from(self.routing_id).checked_add(offset)?;
        Some(Self { domain: self.domain, routing_id: u16::try_from(routing_id).ok()? })
    }
}

impl FromStr for PciAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let read = || {
            let (domain, slot) = text.split_once(':')?;
            let (bus, slot) = slot.split_once(':')?;
            let (device, function) = slot.split_once('.')?;
            let hex = |digits: &str, least: usize, most: usize| {
                let fits = (least..=most).contains(&digits.len())
                    && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                fits.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
            };
            let (device, function) = (hex(device, 2, 2)?, hex(function, 1, 1)?);
            if device > 0x1f || function > 7 {
                return None;
            }
            let routing_id = hex(bus, 2, 2)? << 8 | device << 3 | function;
            Some(Self { domain: hex(domain, 4, 8)?, routing_id: u16::try_from(routing_id).ok()? })
        };
        read().ok_or_else(|| {
            Error::bad_input(
                format!("'{text}' is not a PCI address"),
                "write domain:bus:device.function, for example 0000:01:10.0",
            )
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.routing_id;
        write!(f, "{:04x}:{:02x}:{:02x}.{}", self.domain, id >> 8, id >> 3 & 0x1f, id & 7)
    }
}

pw_error::serde_as_text!(PciAddress);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_vf_follows_from_offset_and_stride() {
        let pf: PciAddress = "0000:01:00.0".parse().expect("valid");
        // QEMU's 82576: offset 128, stride 2.
        let vfs: Vec<_> = (0..3).map(|i| pf.plus(128 + 2 * i).expect("fits").to_string()).collect();
        assert_eq!(vfs, ["0000:01:10.0", "0000:01:10.2", "0000:01:10.4"]);
        assert_eq!("0000:ff:1f.7".parse::<PciAddress>().expect("valid").plus(1), None);
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in
            ["", "01:00.0", "0000:01:00", "0000:01:20.0", "0000:01:00.8", "0000:1:00.0", "x"]
        {
            assert_eq!(
                text.parse::<PciAddress>().map_err(|error| error.kind),
                Err(pw_error::Kind::BadInput),
                "{text:?}"
            );
        }
    }

    #[test]
    fn every_address_that_is_accepted_reads_back_as_itself() {
        pw_cases::check!().with_type::<(u32, u16)>().for_each(|&(domain, routing_id)| {
            let address = PciAddress { domain, routing_id };
            assert_eq!(address.to_string().parse::<PciAddress>().ok(), Some(address));
        });
        pw_cases::check!().with_type::<String>().for_each(|text| {
            if let Ok(address) = text.parse::<PciAddress>() {
                assert_eq!(address.to_string().parse::<PciAddress>().ok(), Some(address));
            }
        });
    }
}
