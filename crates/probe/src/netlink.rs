//! Asks the kernel about links, routes, neighbours and queues of the namespace that the calling
//! thread is in.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcStats2};
use pw_linux::links::Outcome;
pub use pw_linux::links::{Change, Link};
pub use pw_linux::mac::Mac;
use pw_linux::rtnetlink::{RouteSocket, errno_text};

use crate::error::{Error, Result};

/// Checks that an interface is up; `label` is the user's name for it.
///
/// # Errors
/// It is down.
pub fn must_be_up(link: &Link, label: &dyn std::fmt::Display) -> Result<()> {
    if link.up {
        return Ok(());
    }
    Err(Error::failed(
        format!("the interface {label} is down"),
        format!("set it up: ip link set {} up", link.name),
    ))
}

/// A socket to the kernel's routing tables, bound to the namespace it was opened in.
#[derive(Debug)]
pub struct Netlink {
    /// The socket, for other requests.
    pub socket: RouteSocket,
}

impl Netlink {
    /// Opens the socket in the calling thread's namespace.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: RouteSocket::open()? })
    }

    /// Requests a change; `what` begins the error's message.
    fn request(&mut self, message: RouteNetlinkMessage, flags: u16, what: &str) -> Result<()> {
        done(self.socket.acknowledged(message, flags)?, what)
    }

    /// Changes an interface.
    pub fn change(&mut self, index: u32, change: &Change) -> Result<()> {
        let what = match change {
            Change::Up(_) => "cannot set a link up".to_owned(),
            Change::MtuBytes(mtu) => format!("the MTU {mtu} is not possible"),
            Change::AddAddress(address) => format!("cannot add the address {address}"),
            change => format!("cannot change a link ({change:?})"),
        };
        done(self.socket.change(index, change)?, &what)
    }

    /// The interface `name`; none when there is none.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        Ok(self.socket.link(message)?.ok().flatten().map(Link::from))
    }

    /// The interface number `index`; none when there is none.
    pub fn link_number(&mut self, index: u32) -> Result<Option<Link>> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        Ok(self.socket.link(message)?.ok().flatten().map(Link::from))
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

    /// Adds a permanent entry to the neighbour table.
    pub fn add_neighbour(&mut self, index: u32, address: IpAddr, mac: Mac) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = address.into();
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        message.attributes.push(NeighbourAttribute::Destination(address.into()));
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        let what = format!("cannot add the neighbour {address}");
        self.request(RouteNetlinkMessage::NewNeighbour(message), flags, &what)
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
        self.request(RouteNetlinkMessage::NewLink(message), flags, "cannot make a veth pair")
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
                        mac = bytes.try_into().ok().map(Mac);
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
}

fn done(outcome: Outcome, what: &str) -> Result<()> {
    outcome.map_err(|code| Error::failed(format!("{what}: {}", errno_text(code)), ""))
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
