//! Asks the kernel about links, routes, neighbours and queues of the namespace that the calling
//! thread is in.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
    Stats64,
};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};
use pw_linux::rtnetlink::{RouteSocket, errno_text, ip};

use crate::error::{Error, Result};

/// A MAC address.
pub type Mac = [u8; 6];

/// An interface.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// Its index in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its MAC address; none on links that are not Ethernet.
    pub mac: Option<Mac>,
    /// Largest IP packet [bytes].
    pub mtu: u32,
    /// Whether it is set up.
    pub up: bool,
    /// Its driver's kind (`veth`, `bridge`, …); empty on a physical NIC.
    pub kind: String,
    /// Index of the link at its other end or below it, in `peer_netns`.
    pub peer_index: Option<u32>,
    /// This namespace's number for the namespace of the other end; none: this one.
    pub peer_netns: Option<i32>,
    /// Its counters.
    pub stats: Stats64,
}

/// The route of packets to an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// Index of the output interface.
    pub interface_index: u32,
    /// The next hop; none: the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The source address that the kernel chooses.
    pub source: Option<IpAddr>,
    /// Whether the address is one of this namespace.
    pub local: bool,
}

impl Link {
    /// Checks that the interface is up; `label` is the user's name for it.
    ///
    /// # Errors
    /// It is down.
    pub fn must_be_up(&self, label: &dyn std::fmt::Display) -> Result<()> {
        if self.up {
            return Ok(());
        }
        Err(Error::failed(
            format!("the interface {label} is down"),
            format!("set it up: ip link set {} up", self.name),
        ))
    }
}

/// A socket to the kernel's routing tables, bound to the namespace it was opened in.
#[derive(Debug)]
pub struct Netlink {
    socket: RouteSocket,
}

impl Netlink {
    /// Opens the socket in the calling thread's namespace.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: RouteSocket::open()? })
    }

    /// Requests a change; `what` begins the error's message.
    fn change(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        self.socket
            .request(message, NLM_F_ACK | flags)?
            .map(|_| ())
            .map_err(|code| Error::failed(format!("{}: {}", what(), errno_text(code)), ""))
    }

    /// The interface `name`; none when there is none.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        Ok(self.socket.link(message)?.ok().flatten().map(read_link))
    }

    /// The interface number `index`; none when there is none.
    pub fn link_number(&mut self, index: u32) -> Result<Option<Link>> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        Ok(self.socket.link(message)?.ok().flatten().map(read_link))
    }

    /// The interface `name`.
    ///
    /// # Errors
    /// There is none; the message names it as the user did, by `label`.
    pub fn link_at(&mut self, name: &str, label: &dyn std::fmt::Display) -> Result<Link> {
        self.link(name)?.ok_or_else(|| {
            Error::bad_input(
                format!("there is no interface {label}"),
                "list them with `ip link`; one of another namespace is written IF@NETNS",
            )
        })
    }

    /// Sets an interface up.
    pub fn set_up(&mut self, index: u32) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::SetLink(message), 0, || "cannot set a link up".into())
    }

    /// Sets the largest IP packet that an interface takes [bytes].
    pub fn set_mtu(&mut self, index: u32, mtu_bytes: u32) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::Mtu(mtu_bytes));
        let what = || format!("the MTU {mtu_bytes} is not possible");
        self.change(RouteNetlinkMessage::SetLink(message), 0, what)
    }

    /// Adds an address to an interface; one that it has already is no error.
    pub fn add_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = address.into();
        message.header.prefix_len = prefix;
        message.header.index = index;
        message.attributes.push(AddressAttribute::Local(address));
        message.attributes.push(AddressAttribute::Address(address));
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        let what = || format!("cannot add the address {address}/{prefix}");
        self.change(RouteNetlinkMessage::NewAddress(message), flags, what)
    }

    /// Adds a permanent entry to the neighbour table.
    pub fn add_neighbour(&mut self, index: u32, address: IpAddr, mac: Mac) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = address.into();
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        message.attributes.push(NeighbourAttribute::Destination(address.into()));
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        let what = || format!("cannot add the neighbour {address}");
        self.change(RouteNetlinkMessage::NewNeighbour(message), flags, what)
    }

    /// Makes a veth pair in this namespace whose ends take IP packets of up to `mtu` bytes.
    pub fn add_veth(&mut self, name: &str, peer: &str, mtu: u32) -> Result<()> {
        let mut peer_link = LinkMessage::default();
        peer_link.attributes.push(LinkAttribute::IfName(peer.into()));
        peer_link.attributes.push(LinkAttribute::Mtu(mtu));
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        message.attributes.push(LinkAttribute::Mtu(mtu));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer_link))),
        ]));
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        let what = || "cannot make a veth pair".into();
        self.change(RouteNetlinkMessage::NewLink(message), flags, what)
    }

    /// The route of packets from this namespace to `destination`, from its address `source` and
    /// through the interface `oif` if given; none when there is no route.
    pub fn route(
        &mut self,
        destination: IpAddr,
        source: Option<IpAddr>,
        oif: Option<u32>,
    ) -> Result<Option<Hop>> {
        let bits = if destination.is_ipv4() { 32 } else { 128 };
        let mut message = RouteMessage::default();
        message.header.address_family = destination.into();
        message.header.destination_prefix_length = bits;
        message.attributes.push(RouteAttribute::Destination(destination.into()));
        if let Some(source) = source {
            message.header.source_prefix_length = bits;
            message.attributes.push(RouteAttribute::Source(source.into()));
        }
        message.attributes.extend(oif.map(RouteAttribute::Oif));
        let Ok(answers) = self.socket.request(RouteNetlinkMessage::GetRoute(message), 0)? else {
            return Ok(None);
        };
        let Some(RouteNetlinkMessage::NewRoute(route)) = answers.into_iter().next() else {
            return Ok(None);
        };
        let unreachable =
            [RouteType::Unreachable, RouteType::BlackHole, RouteType::Prohibit, RouteType::Throw];
        if unreachable.contains(&route.header.kind) {
            return Ok(None);
        }
        let mut hop = Hop {
            interface_index: oif.unwrap_or(0),
            gateway: None,
            source: None,
            local: route.header.kind == RouteType::Local,
        };
        for attribute in route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => hop.interface_index = index,
                RouteAttribute::Gateway(address) => hop.gateway = ip(&address),
                RouteAttribute::PrefSource(address) => hop.source = ip(&address),
                _ => {}
            }
        }
        Ok(Some(hop))
    }

    /// The MAC address of `address` on an interface in the neighbour table; none while it has none.
    pub fn neighbour(&mut self, interface_index: u32, address: IpAddr) -> Result<Option<Mac>> {
        let mut message = NeighbourMessage::default();
        message.header.family = address.into();
        let answers = self
            .socket
            .request(RouteNetlinkMessage::GetNeighbour(message), NLM_F_DUMP)?
            .unwrap_or_default();
        for answer in answers {
            let RouteNetlinkMessage::NewNeighbour(entry) = answer else { continue };
            if entry.header.ifindex != interface_index {
                continue;
            }
            let (mut matches, mut mac) = (false, None);
            for attribute in entry.attributes {
                match attribute {
                    NeighbourAttribute::Destination(entry) => matches = entry == address.into(),
                    NeighbourAttribute::LinkLayerAddress(bytes) => {
                        mac = Mac::try_from(bytes.as_slice()).ok();
                    }
                    _ => {}
                }
            }
            if matches && mac.is_some() {
                return Ok(mac);
            }
        }
        Ok(None)
    }

    /// Frames that the queueing discipline of an interface has dropped.
    pub fn qdisc_drops(&mut self, interface_index: u32) -> Result<u64> {
        let message = TcMessage::with_index(interface_index as i32);
        let answers = self
            .socket
            .request(RouteNetlinkMessage::GetQueueDiscipline(message), NLM_F_DUMP)?
            .unwrap_or_default();
        let mut drops = 0;
        for answer in answers {
            let RouteNetlinkMessage::NewQueueDiscipline(qdisc) = answer else { continue };
            // A root counts what its children drop.
            if qdisc.header.index != interface_index as i32 || qdisc.header.parent != TcHandle::ROOT
            {
                continue;
            }
            for attribute in qdisc.attributes {
                let TcAttribute::Stats2(stats) = attribute else { continue };
                for stat in stats {
                    if let TcStats2::Queue(queue) = stat {
                        drops += u64::from(queue.drops);
                    }
                }
            }
        }
        Ok(drops)
    }

    /// This namespace's number for the namespace of the open file `fd`; none when it has none.
    pub fn netns_number(&mut self, fd: std::os::fd::RawFd) -> Result<Option<i32>> {
        let mut message = NsidMessage::default();
        message.attributes.push(NsidAttribute::Fd(fd as u32));
        let answers = self.socket.request(RouteNetlinkMessage::GetNsId(message), 0)?;
        Ok(answers.ok().and_then(|answers| {
            answers.into_iter().find_map(|answer| match answer {
                RouteNetlinkMessage::NewNsId(message) => {
                    message.attributes.into_iter().find_map(|attribute| match attribute {
                        NsidAttribute::Id(id) if id >= 0 => Some(id),
                        _ => None,
                    })
                }
                _ => None,
            })
        }))
    }
}

fn read_link(message: LinkMessage) -> Link {
    let ethernet =
        matches!(message.header.link_layer_type, LinkLayerType::Ether | LinkLayerType::Loopback);
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        kind: String::new(),
        peer_index: None,
        peer_netns: None,
        stats: Stats64::default(),
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Address(bytes) if ethernet => {
                link.mac = Mac::try_from(bytes.as_slice()).ok();
            }
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::Link(index) => link.peer_index = Some(index),
            LinkAttribute::LinkNetNsId(id) => link.peer_netns = Some(id),
            LinkAttribute::Stats64(stats) => link.stats = stats,
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    if let LinkInfo::Kind(kind) = info {
                        link.kind = kind.to_string();
                    }
                }
            }
            _ => {}
        }
    }
    link
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found_and_an_unknown_one_is_named() {
        let mut netlink = Netlink::open().expect("Linux");
        let lo = netlink.link_at("lo", &"lo").expect("every namespace has one");
        assert_eq!((lo.index, lo.name.as_str()), (1, "lo"));
        let error = netlink.link_at("pw-none", &"pw-none@x").expect_err("there is none");
        assert!(error.what.contains("pw-none@x"));
        assert_eq!(error.kind, pw_error::Kind::BadInput);
    }
}
