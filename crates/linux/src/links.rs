//! Interfaces of a socket's namespace: how the kernel reports them, and changes of them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoBond, InfoBondPort, InfoBridge, InfoBridgePort, InfoData, InfoPortData, LinkAttribute,
    LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp, MiiStatus, Stats64, XdpAttached,
};
use pw_error::{Error, Result};
use serde::Serialize;

use crate::mac::Mac;
use crate::rtnetlink::{Errno, RouteSocket};

/// An interface.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Link {
    /// Its index in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its MAC address; none on links that are not Ethernet.
    pub mac: Option<Mac>,
    /// The MAC address that its device was made with.
    pub permanent_mac: Option<Mac>,
    /// Largest IP packet [bytes].
    pub mtu_bytes: u32,
    /// Whether it is set up.
    pub up: bool,
    /// Whether it sees a link.
    pub carrier: Option<bool>,
    /// Its driver's kind (`veth`, `bridge`, …); empty on a physical NIC.
    pub kind: String,
    /// Index of the link at its other end or below it, in `lower_netns`, which whoever made it chose.
    pub lower: Option<u32>,
    /// This namespace's number for the namespace of that link; none: this one.
    pub lower_netns: Option<i32>,
    /// Index of the bridge or bond that it is a port of.
    pub controller: Option<u32>,
    /// How somebody uses it that leaves no other trace: it is promiscuous or has an XDP program.
    pub taken: Option<&'static str>,
    /// Name of its physical port.
    pub port: Option<String>,
    /// Its device's address on the PCI bus.
    pub pci: Option<String>,
    /// A bond's active member.
    pub active: Option<u32>,
    /// Is it up by its bond's link monitoring? None: it is in no bond.
    pub member_up: Option<bool>,
    /// It is a bridge that filters by VLAN.
    pub filters_vlans: bool,
    /// How its bridge isolates or locks it as a port; none: not at all.
    pub confined: Option<&'static str>,
    /// Its counters.
    pub stats: Stats64,
}

impl Link {
    /// Is it up, with a link?
    pub fn works(&self) -> bool {
        self.up && self.carrier == Some(true)
    }

    /// Is it the host's end of this guest's veth? Only the host's word about its own interface counts, and
    /// both indices and the namespace: a guest chooses the indices of its interfaces freely.
    pub fn is_port_of(&self, veth: u32, netns: i32) -> bool {
        self.kind == "veth" && (self.lower, self.lower_netns) == (Some(veth), Some(netns))
    }

    fn take(&mut self, info: LinkInfo) {
        match info {
            LinkInfo::Kind(kind) => self.kind = kind.to_string(),
            LinkInfo::Data(InfoData::Bond(options)) => {
                self.active = options.iter().find_map(|option| match option {
                    InfoBond::ActivePort(index) if *index > 0 => Some(*index),
                    _ => None,
                });
            }
            LinkInfo::Data(InfoData::Bridge(options)) => {
                self.filters_vlans = options.contains(&InfoBridge::VlanFiltering(true));
            }
            LinkInfo::PortData(InfoPortData::BridgePort(options)) => {
                self.confined = options.iter().find_map(|option| match option {
                    InfoBridgePort::Isolated(true) => Some("isolated"),
                    InfoBridgePort::Locked(true) => Some("locked"),
                    _ => None,
                });
            }
            LinkInfo::PortData(InfoPortData::BondPort(options)) => {
                self.member_up = options.iter().find_map(|option| match option {
                    InfoBondPort::MiiStatus(status) => Some(*status == MiiStatus::Up),
                    _ => None,
                });
            }
            _ => {}
        }
    }
}

impl From<LinkMessage> for Link {
    fn from(message: LinkMessage) -> Self {
        let has_mac = matches!(
            message.header.link_layer_type,
            LinkLayerType::Ether | LinkLayerType::Loopback
        );
        let up = message.header.flags.contains(LinkFlags::Up);
        let mut link = Self { index: message.header.index, up, ..Self::default() };
        let mut bus_is_pci = true;
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Address(bytes) if has_mac => {
                    link.mac = bytes.try_into().ok().map(Mac);
                }
                LinkAttribute::PermAddress(bytes) => {
                    link.permanent_mac = bytes.try_into().ok().map(Mac);
                }
                LinkAttribute::Mtu(mtu) => link.mtu_bytes = mtu,
                LinkAttribute::Carrier(carrier) => link.carrier = Some(carrier != 0),
                LinkAttribute::Promiscuity(count) if count > 0 => {
                    link.taken = Some("is promiscuous");
                }
                LinkAttribute::Xdp(facts) if facts.iter().any(runs_program) => {
                    link.taken = Some("has an XDP program");
                }
                LinkAttribute::PhysPortName(name) => link.port = Some(name),
                LinkAttribute::Link(index) => link.lower = Some(index),
                LinkAttribute::LinkNetNsId(id) => link.lower_netns = Some(id),
                LinkAttribute::Controller(index) => link.controller = Some(index),
                LinkAttribute::ParentDevName(name) => link.pci = Some(name),
                LinkAttribute::ParentDevBusName(name) => bus_is_pci = name == "pci",
                LinkAttribute::Stats64(stats) => link.stats = stats,
                LinkAttribute::LinkInfo(infos) => {
                    infos.into_iter().for_each(|info| link.take(info))
                }
                _ => {}
            }
        }
        link.pci = link.pci.filter(|_| bus_is_pci);
        link
    }
}

fn runs_program(fact: &LinkXdp) -> bool {
    matches!(fact, LinkXdp::Attached(attached) if *attached != XdpAttached::None)
}

/// One change of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each says what it changes")]
pub enum Change {
    Up(bool),
    Name(String),
    Mac(Mac),
    MtuBytes(u32),
    AddAddress(Cidr),
    DeleteAddress(Cidr),
}

/// The kernel's answer: done, or an errno.
pub type Outcome = std::result::Result<(), Errno>;

impl RouteSocket {
    /// Changes an interface. An address that it has already is no error.
    pub fn change(&mut self, index: u32, change: &Change) -> Result<Outcome> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        match change {
            Change::Up(up) => {
                message.header.flags = if *up { LinkFlags::Up } else { LinkFlags::empty() };
                message.header.change_mask = LinkFlags::Up;
            }
            Change::Name(name) => message.attributes.push(LinkAttribute::IfName(name.clone())),
            Change::Mac(mac) => message.attributes.push(LinkAttribute::Address(mac.0.to_vec())),
            Change::MtuBytes(mtu) => message.attributes.push(LinkAttribute::Mtu(*mtu)),
            Change::AddAddress(address) => return self.change_address(index, *address, true),
            Change::DeleteAddress(address) => return self.change_address(index, *address, false),
        }
        self.acknowledged(RouteNetlinkMessage::SetLink(message), 0)
    }

    fn change_address(&mut self, index: u32, cidr: Cidr, add: bool) -> Result<Outcome> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.prefix_len = cidr.prefix;
        message.header.family = cidr.address.into();
        if add && cidr.address.is_ipv6() {
            // Nobody else has the address, and duplicate detection would delay a start by seconds.
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        message.attributes.push(AddressAttribute::Local(cidr.address));
        message.attributes.push(AddressAttribute::Address(cidr.address));
        if add {
            let message = RouteNetlinkMessage::NewAddress(message);
            return self.acknowledged(message, NLM_F_CREATE | NLM_F_REPLACE);
        }
        self.acknowledged(RouteNetlinkMessage::DelAddress(message), 0)
    }

    /// Requests a change that the kernel acknowledges.
    pub fn acknowledged(&mut self, message: RouteNetlinkMessage, flags: u16) -> Result<Outcome> {
        Ok(self.request(message, flags | NLM_F_ACK)?.map(drop))
    }
}

/// An IP address and the length of its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub address: IpAddr,
    /// Length of its prefix [bits].
    pub prefix: u8,
}

impl FromStr for Cidr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let read = || {
            let (address, prefix) = text.split_once('/')?;
            let address: IpAddr = address.parse().ok()?;
            let longest = if address.is_ipv4() { 32 } else { 128 };
            let plain = prefix.bytes().all(|byte| byte.is_ascii_digit());
            let prefix = prefix.parse().ok().filter(|prefix| plain && *prefix <= longest)?;
            Some(Self { address, prefix })
        };
        read().ok_or_else(|| {
            Error::bad_input(
                format!("'{text}' is not an address with a prefix length"),
                "write ADDRESS/PREFIX, for example 198.18.0.1/24 or 2001:2::1/64",
            )
        })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

pw_error::serde_as_text!(Cidr);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bond_sends_by_the_member_that_it_names_and_by_none_while_that_is_zero() {
        let active = |index| {
            let mut link = Link::default();
            link.take(LinkInfo::Data(InfoData::Bond(vec![InfoBond::ActivePort(index)])));
            link.active
        };
        assert_eq!((active(7), active(0)), (Some(7), None));
    }

    #[test]
    fn every_address_that_is_accepted_reads_back_as_itself() {
        for text in ["198.18.0.1", "198.18.0.1/33", "2001:2::1/129", "198.18.0.1/+4", "x/8", "/8"] {
            let error = text.parse::<Cidr>().expect_err(text);
            assert_eq!(error.kind, pw_error::Kind::BadInput, "{text:?}");
        }
        pw_cases::check!().with_type::<String>().for_each(|text| {
            if let Ok(cidr) = text.parse::<Cidr>() {
                assert_eq!(cidr.to_string().parse::<Cidr>().ok(), Some(cidr));
            }
        });
        pw_cases::check!().with_type::<(u128, u8)>().for_each(|(bits, prefix)| {
            let text = format!("{}/{prefix}", std::net::Ipv6Addr::from(*bits));
            assert_eq!(text.parse::<Cidr>().is_ok(), *prefix <= 128);
        });
    }
}
