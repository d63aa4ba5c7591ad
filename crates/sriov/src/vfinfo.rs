//! Parses the VFs in the kernel's answer about a PF: IFLA_VFINFO_LIST (linux/if_link.h). Pure.
//!
//! netlink-packet-route parses the same attributes but loses the answer −1, neither on nor off, of a
//! driver that does not report its spoof check or trust.

use pw_linux::nftables::{attribute, attributes};

use crate::mac::Mac;
use crate::model::{LinkState, VfConfig, VfCounters, Vlan, VlanProtocol};

const IFLA_VFINFO_LIST: u16 = 22;
const IFLA_VF_INFO: u16 = 1;

const IFLA_VF_MAC: u16 = 1;
const IFLA_VF_VLAN: u16 = 2;
const IFLA_VF_TX_RATE: u16 = 3;
const IFLA_VF_SPOOFCHK: u16 = 4;
const IFLA_VF_LINK_STATE: u16 = 5;
const IFLA_VF_RATE: u16 = 6;
const IFLA_VF_STATS: u16 = 8;
const IFLA_VF_TRUST: u16 = 9;
const IFLA_VF_VLAN_LIST: u16 = 12;

/// Bytes before the attributes of an answer: `struct nlmsghdr` and `struct ifinfomsg`.
const BEFORE_ATTRIBUTES: usize = 32;

const ETH_P_8021AD: u16 = 0x88a8;

/// A VF as rtnetlink reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VfInfo {
    /// Its number on its PF.
    pub index: u32,
    /// Its settings.
    pub config: VfConfig,
    /// Its counters; all zeros also where the driver keeps none.
    pub counters: Option<VfCounters>,
}

/// The VFs in the kernel's answer about a link (headers included), as far as they can be read.
///
/// The list's length has 16 bits: of more than about 250 VFs the kernel sends only the first.
pub fn read(answer: &[u8]) -> Vec<VfInfo> {
    let all = answer.get(BEFORE_ATTRIBUTES..).unwrap_or_default();
    let list = attribute(all, IFLA_VFINFO_LIST).unwrap_or_default();
    let infos = attributes(list).filter(|(kind, _)| *kind == IFLA_VF_INFO);
    infos.filter_map(|(_, info)| read_info(info)).collect()
}

fn read_info(info_attributes: &[u8]) -> Option<VfInfo> {
    let mut info = VfInfo::default();
    let mut index = None;
    let config = &mut info.config;
    for (kind, value) in attributes(info_attributes) {
        let word = |at: usize| word(value, at);
        match kind {
            IFLA_VF_MAC => {
                index = index.or(word(0));
                config.mac = value.get(4..10).and_then(|bytes| Some(Mac(bytes.try_into().ok()?)));
            }
            IFLA_VF_VLAN => {
                let Some((id, qos)) = word(4).zip(word(8)) else { continue };
                config.vlan.get_or_insert(Vlan { id, qos, protocol: VlanProtocol::Dot1q });
            }
            IFLA_VF_VLAN_LIST => config.vlan = read_vlan(value).or(config.vlan),
            // The older form, which drivers fill with the largest rate.
            IFLA_VF_TX_RATE => config.max_tx_mbps = config.max_tx_mbps.or(word(4)),
            IFLA_VF_RATE => {
                config.min_tx_mbps = word(4);
                config.max_tx_mbps = word(8);
            }
            IFLA_VF_SPOOFCHK => config.spoof_check = word(4).and_then(switch),
            IFLA_VF_TRUST => config.trust = word(4).and_then(switch),
            IFLA_VF_LINK_STATE => {
                config.link_state = match word(4) {
                    Some(0) => Some(LinkState::Auto),
                    Some(1) => Some(LinkState::Enable),
                    Some(2) => Some(LinkState::Disable),
                    _ => None,
                };
            }
            IFLA_VF_STATS => info.counters = Some(read_counters(value)),
            _ => {}
        }
    }
    info.index = index?;
    Some(info)
}

/// 0 is off; −1 is the kernel's answer for a driver that does not report the setting.
fn switch(setting: u32) -> Option<bool> {
    (setting != u32::MAX).then_some(setting != 0)
}

fn read_vlan(list: &[u8]) -> Option<Vlan> {
    let (_, value) = attributes(list).next()?;
    let protocol = u16::from_be_bytes(value.get(12..14)?.try_into().ok()?);
    let protocol =
        if protocol == ETH_P_8021AD { VlanProtocol::Dot1ad } else { VlanProtocol::Dot1q };
    Some(Vlan { id: word(value, 4)?, qos: word(value, 8)?, protocol })
}

fn read_counters(value: &[u8]) -> VfCounters {
    let mut counters = VfCounters::default();
    for (kind, value) in attributes(value) {
        let Some(count) = value.try_into().ok().map(u64::from_ne_bytes) else { continue };
        match kind {
            0 => counters.rx_packets = count,
            1 => counters.tx_packets = count,
            2 => counters.rx_bytes = count,
            3 => counters.tx_bytes = count,
            4 => counters.broadcast_packets = count,
            5 => counters.multicast_packets = count,
            7 => counters.rx_dropped_packets = count,
            8 => counters.tx_dropped_packets = count,
            _ => {}
        }
    }
    counters
}

fn word(value: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(value.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        pw_linux::nftables::put_attribute(&mut bytes, kind, value);
        bytes
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn answer(info: &[u8]) -> Vec<u8> {
        let list = put(IFLA_VFINFO_LIST, &put(IFLA_VF_INFO, info));
        [vec![0; BEFORE_ATTRIBUTES], list].concat()
    }

    fn mac_of_vf(index: u32) -> Vec<u8> {
        let mut value = words(&[index]);
        value.extend([2, 0x70, 0x77, 0, 0, 1]);
        value.resize(36, 0);
        put(IFLA_VF_MAC, &value)
    }

    #[test]
    fn every_setting_of_a_vf_is_read() {
        let vlan = [words(&[3, 7, 5]), vec![0x88, 0xa8, 0, 0]].concat();
        let info = [
            mac_of_vf(3),
            put(IFLA_VF_VLAN, &words(&[3, 7, 5])),
            put(IFLA_VF_VLAN_LIST, &put(1, &vlan)),
            put(IFLA_VF_TX_RATE, &words(&[3, 900])),
            put(IFLA_VF_RATE, &words(&[3, 100, 800])),
            put(IFLA_VF_SPOOFCHK, &words(&[3, 1])),
            put(IFLA_VF_TRUST, &words(&[3, 0])),
            put(IFLA_VF_LINK_STATE, &words(&[3, 2])),
            put(IFLA_VF_STATS, &put(1, &42_u64.to_ne_bytes())),
        ]
        .concat();
        let config = VfConfig {
            mac: Some("02:70:77:00:00:01".parse().expect("valid")),
            vlan: Some(Vlan { id: 7, qos: 5, protocol: VlanProtocol::Dot1ad }),
            min_tx_mbps: Some(100),
            max_tx_mbps: Some(800),
            spoof_check: Some(true),
            trust: Some(false),
            link_state: Some(LinkState::Disable),
        };
        let counters = Some(VfCounters { tx_packets: 42, ..VfCounters::default() });
        assert_eq!(read(&answer(&info)), [VfInfo { index: 3, config, counters }]);
    }

    #[test]
    fn what_a_driver_does_not_say_is_neither_on_nor_off() {
        let info = [
            mac_of_vf(0),
            put(IFLA_VF_SPOOFCHK, &words(&[0, u32::MAX])),
            put(IFLA_VF_TRUST, &words(&[0, u32::MAX])),
        ]
        .concat();
        let read = read(&answer(&info));
        assert_eq!((read[0].config.spoof_check, read[0].config.trust), (None, None));
        assert_eq!(read[0].counters, None);
    }

    #[test]
    fn no_answer_is_read_past_its_end() {
        pw_cases::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let _ = read(bytes);
            for info in read(&answer(bytes)) {
                assert!(bytes.len() >= 8, "a VF of {} bytes: {info:?}", bytes.len());
            }
        });
    }
}
