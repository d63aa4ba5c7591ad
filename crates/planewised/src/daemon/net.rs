//! The netlink of a host's and a guest's interfaces: bonds, veths, bridges' and NICs' forwarding
//! entries. Works in the namespace that its socket was opened in. Knows nothing of why.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::link::{
    BondAllPortActive, BondFailOverMac, BondMode, InfoBond, InfoBondPort, InfoBridge,
    InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoVeth, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage, MiiStatus,
};
use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use pw_alloc::model::Mac;
use pw_alloc::signal::Counters;
use pw_error::{Error, Result};
use pw_linux::netns::{Netns, cookie, run_in};
use pw_linux::rtnetlink::{Errno, RouteSocket, errno_text};
use pw_sriov::link::{Change, Links};

use crate::daemon::route::{MAIN, Route};

/// How often a bond looks at its members' carriers [ms].
const MIIMON_MS: u32 = 100;

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its index in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its address, if it is an Ethernet interface's.
    pub mac: Option<Mac>,
    /// Largest IP packet [bytes].
    pub mtu_bytes: u32,
    /// Is it set up?
    pub up: bool,
    /// Does it see a link?
    pub carrier: bool,
    /// The interface that it is a member of (bond) or a port of (bridge).
    pub master: Option<u32>,
    /// Another interface that it is tied to: a veth's peer, by the index in the peer's namespace.
    pub peer: Option<u32>,
    /// What it is: `veth`, `bond`, `bridge`; none: a device.
    pub kind: Option<String>,
    /// The PCI address of its device.
    pub device: Option<String>,
    /// A bond's active member.
    pub active: Option<u32>,
    /// Does the bond that it is a member of take it to be up? None: it is in no bond.
    pub member_up: Option<bool>,
    /// It is a bridge that filters by VLAN.
    pub filters_vlans: bool,
    /// How its bridge keeps it apart from other ports, or keeps frames out; none: not at all.
    pub confined: Option<&'static str>,
    /// What it has counted.
    pub counters: Counters,
}

/// A socket that asks and changes.
#[derive(Debug)]
pub struct Net {
    socket: RouteSocket,
    links: Links,
    place: String,
    identity: Identity,
}

/// What tells the namespace of a [`Net`] from every other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its inode: given again once the namespace is gone.
    pub inode: u64,
    /// Its cookie: never given again; none before Linux 5.14.
    pub cookie: Option<u64>,
}

impl Identity {
    /// That of the calling thread's namespace.
    fn here() -> Result<Self> {
        let file = std::fs::metadata("/proc/thread-self/ns/net")
            .map_err(|error| Error::failed("cannot look at this namespace", "").caused_by(error))?;
        Ok(Self { inode: file.ino(), cookie: cookie()? })
    }
}

/// An entry of a bridge's or a NIC's forwarding table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// The interface.
    pub index: u32,
    /// The address.
    pub mac: Mac,
    /// In the interface's own table (a NIC's filter), not its bridge's.
    pub own: bool,
    /// It is the address of the port itself or was set for good.
    pub permanent: bool,
    /// A frame from that address came there; nobody set it.
    pub learned: bool,
}

impl Net {
    /// Opens it in the calling thread's namespace.
    ///
    /// # Errors
    /// The kernel gives no socket.
    pub fn here() -> Result<Self> {
        Ok(Self {
            socket: RouteSocket::open()?,
            links: Links::open()?,
            place: String::new(),
            identity: Identity::here()?,
        })
    }

    /// The namespace that it works in.
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// Opens it in that namespace; it stays there.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    pub fn at(netns: &Netns) -> Result<Self> {
        let mut net = run_in(Some(netns), Self::here)?;
        net.place = format!(" in {netns}");
        Ok(net)
    }

    fn done(
        &mut self,
        what: impl FnOnce() -> String,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<()> {
        let answer = self.socket.request(message, flags | NLM_F_ACK)?.map(drop);
        self.said(what, answer)
    }

    fn said(
        &self,
        what: impl FnOnce() -> String,
        answer: std::result::Result<(), Errno>,
    ) -> Result<()> {
        answer.map_err(|code| {
            let remedy = match code {
                libc::EPERM | libc::EACCES => "run as root",
                libc::EOPNOTSUPP => "load what is missing, for a bond: modprobe bonding",
                _ => "",
            };
            Error::failed(format!("cannot {}{}: {}", what(), self.place, errno_text(code)), remedy)
        })
    }

    /// All interfaces.
    ///
    /// # Errors
    /// The socket failed.
    pub fn all(&mut self) -> Result<Vec<Link>> {
        let ask = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let answers = self.socket.dump(&ask)?;
        Ok(answers
            .into_iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewLink(message) => Some(read_link(message)),
                _ => None,
            })
            .collect())
    }

    /// The interface of that name.
    ///
    /// # Errors
    /// The socket failed.
    pub fn named(&mut self, name: &str) -> Result<Option<Link>> {
        let mut ask = LinkMessage::default();
        ask.attributes.push(LinkAttribute::IfName(name.into()));
        self.one(ask)
    }

    /// The interface of that index.
    ///
    /// # Errors
    /// The socket failed.
    pub fn indexed(&mut self, index: u32) -> Result<Option<Link>> {
        let mut ask = LinkMessage::default();
        ask.header.index = index;
        self.one(ask)
    }

    fn one(&mut self, ask: LinkMessage) -> Result<Option<Link>> {
        match self.socket.request(RouteNetlinkMessage::GetLink(ask), 0)? {
            Ok(answers) => Ok(answers.into_iter().find_map(|answer| match answer {
                RouteNetlinkMessage::NewLink(message) => Some(read_link(message)),
                _ => None,
            })),
            // No such interface is an answer; anything else is none.
            Err(libc::ENODEV) => Ok(None),
            Err(code) => {
                self.said(|| "ask about an interface".to_owned(), Err(code)).map(|()| None)
            }
        }
    }

    /// Changes an interface.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn change(&mut self, link: &Link, change: &Change) -> Result<()> {
        let answer = self.links.change(link.index, change)?;
        let what = || match change {
            Change::Up(true) => format!("set {} up", link.name),
            Change::Up(false) => format!("set {} down", link.name),
            Change::Name(name) => format!("rename {} to {name}", link.name),
            Change::Mac(mac) => format!("give {} the address {mac}", link.name),
            Change::MtuBytes(mtu) => format!("give {} the MTU {mtu}", link.name),
            Change::AddAddress(address) => format!("give {} the address {address}", link.name),
            Change::DeleteAddress(address) => {
                format!("take the address {address} from {}", link.name)
            }
        };
        let harmless = match (change, answer) {
            (Change::AddAddress(_), Err(code)) => code == libc::EEXIST,
            (Change::DeleteAddress(_), Err(code)) => code == libc::EADDRNOTAVAIL,
            _ => false,
        };
        if harmless { Ok(()) } else { self.said(what, answer) }
    }

    /// Moves an interface into the namespace that the open file stands for.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn move_to_netns(&mut self, link: &Link, netns: BorrowedFd<'_>, name: &str) -> Result<()> {
        let answer = self.links.move_to_netns(link.index, netns.as_raw_fd(), name)?;
        self.said(|| format!("move {} to another namespace", link.name), answer)
    }

    /// Makes a bond in active-backup mode whose address follows its active member.
    ///
    /// # Errors
    /// The kernel refuses, or has no bonding.
    pub fn make_bond(&mut self, name: &str) -> Result<()> {
        let options = vec![
            InfoBond::Mode(BondMode::ActiveBackup),
            InfoBond::MiiMon(MIIMON_MS),
            InfoBond::FailOverMac(BondFailOverMac::Follow),
            // Frames of the guests on the host's bridge find it again by this.
            InfoBond::NumPeerNotif(1),
        ];
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Bond),
            LinkInfo::Data(InfoData::Bond(options)),
        ]));
        let message = RouteNetlinkMessage::NewLink(message);
        self.done(|| format!("make the bond {name}"), message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Makes a veth pair: `name` here, `peer` in the namespace that the open file stands for.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn make_veth(&mut self, name: &str, peer: &str, netns: BorrowedFd<'_>) -> Result<()> {
        let mut other = LinkMessage::default();
        other.attributes.push(LinkAttribute::IfName(peer.into()));
        other.attributes.push(LinkAttribute::NetNsFd(netns.as_raw_fd()));
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other))),
        ]));
        let message = RouteNetlinkMessage::NewLink(message);
        self.done(|| format!("make the veth pair {name}"), message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Removes a virtual interface.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove(&mut self, link: &Link) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        self.done(|| format!("remove {}", link.name), RouteNetlinkMessage::DelLink(message), 0)
    }

    /// Makes an interface a member of a bond or a port of a bridge; none: of nothing.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn enslave(&mut self, link: &Link, master: Option<u32>) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        message.attributes.push(LinkAttribute::Controller(master.unwrap_or(0)));
        let what = || match master {
            Some(_) => format!("join {} to its bond or bridge", link.name),
            None => format!("take {} out of its bond or bridge", link.name),
        };
        self.done(what, RouteNetlinkMessage::SetLink(message), 0)
    }

    fn set_bond(&mut self, bond: &Link, option: InfoBond, what: String) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = bond.index;
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Bond),
            LinkInfo::Data(InfoData::Bond(vec![option])),
        ]));
        self.done(|| what, RouteNetlinkMessage::NewLink(message), 0)
    }

    /// Lets a bond send by this member.
    ///
    /// # Errors
    /// The kernel refuses: the member has no link.
    pub fn set_active(&mut self, bond: &Link, member: &Link) -> Result<()> {
        let what = format!("let {} send by {}", bond.name, member.name);
        self.set_bond(bond, InfoBond::ActivePort(member.index), what)
    }

    /// Lets a bond take in what comes by its other members, too, or not.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_all_ports_active(&mut self, bond: &Link, on: bool) -> Result<()> {
        let value = if on { BondAllPortActive::Delivered } else { BondAllPortActive::Dropped };
        let what = format!("tell {} what to do with frames of its other members", bond.name);
        self.set_bond(bond, InfoBond::AllPortsActive(value), what)
    }

    fn forward(
        mac: Mac,
        index: u32,
        flags: NeighbourFlags,
        state: NeighbourState,
    ) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = index;
        message.header.flags = flags;
        message.header.state = state;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
        message
    }

    /// Lets a bridge send frames for `mac` by its port `index`, until it learns otherwise. `lasting`:
    /// it neither forgets that nor learns otherwise. (A NIC that hands broadcasts back to the PF that
    /// sent them makes a bridge believe that its own guests are behind the PF.)
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn bridge_sends(&mut self, mac: Mac, index: u32, lasting: bool) -> Result<()> {
        // NUD_NOARP is what `bridge fdb` calls static, NUD_REACHABLE dynamic.
        let (flags, state) = if lasting {
            (NeighbourFlags::Controller | NeighbourFlags::Sticky, NeighbourState::Noarp)
        } else {
            (NeighbourFlags::Controller, NeighbourState::Reachable)
        };
        let message = Self::forward(mac, index, flags, state);
        let message = RouteNetlinkMessage::NewNeighbour(message);
        self.done(
            || format!("let the bridge send {mac} by interface {index}"),
            message,
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Lets a bridge forget what it knows of `mac` on its port `index`.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn bridge_forgets(&mut self, mac: Mac, index: u32) -> Result<()> {
        let message = Self::forward(mac, index, NeighbourFlags::Controller, NeighbourState::Noarp);
        let message = RouteNetlinkMessage::DelNeighbour(message);
        let answer = self.socket.request(message, NLM_F_ACK)?.map(drop);
        match answer {
            Err(libc::ENOENT) => Ok(()),
            answer => self.said(|| format!("let the bridge forget {mac}"), answer),
        }
    }

    /// Lets a NIC take frames for `mac` in for the host, or not any more.
    ///
    /// # Errors
    /// The kernel refuses: the NIC has no room for more addresses.
    pub fn nic_takes(&mut self, mac: Mac, index: u32, takes: bool) -> Result<()> {
        let message = Self::forward(mac, index, NeighbourFlags::Own, NeighbourState::Permanent);
        let answer = if takes {
            let message = RouteNetlinkMessage::NewNeighbour(message);
            self.socket.request(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)?.map(drop)
        } else {
            self.socket.request(RouteNetlinkMessage::DelNeighbour(message), NLM_F_ACK)?.map(drop)
        };
        match (takes, answer) {
            (true, Err(libc::EEXIST)) | (false, Err(libc::ENOENT)) => Ok(()),
            (_, answer) => self.said(|| format!("tell interface {index} to take {mac} in"), answer),
        }
    }

    /// All forwarding entries of bridges and NICs.
    ///
    /// # Errors
    /// The socket failed.
    pub fn forwards(&mut self) -> Result<Vec<Forward>> {
        let mut ask = NeighbourMessage::default();
        ask.header.family = AddressFamily::Bridge;
        let ask = RouteNetlinkMessage::GetNeighbour(ask);
        let answers = self.socket.dump(&ask)?;
        Ok(answers
            .into_iter()
            .filter_map(|answer| {
                let RouteNetlinkMessage::NewNeighbour(message) = answer else { return None };
                let bytes = message.attributes.iter().find_map(|attribute| match attribute {
                    NeighbourAttribute::LinkLayerAddress(bytes) => Some(bytes.as_slice()),
                    _ => None,
                })?;
                Some(Forward {
                    index: message.header.ifindex,
                    mac: Mac(bytes.try_into().ok()?),
                    own: message.header.flags.contains(NeighbourFlags::Own),
                    permanent: message.header.state == NeighbourState::Permanent,
                    learned: !matches!(
                        message.header.state,
                        NeighbourState::Permanent | NeighbourState::Noarp
                    ),
                })
            })
            .collect())
    }

    /// Addresses of an interface with their prefix lengths, but for those that the kernel makes.
    ///
    /// # Errors
    /// The socket failed.
    pub fn addresses(&mut self, name: &str) -> Result<Vec<String>> {
        let all = self.links.all(&pw_sriov::model::NetNs::Host)?;
        let found = all.into_iter().find(|seen| seen.netdev.name == name);
        Ok(found.map(|seen| seen.netdev.addresses).unwrap_or_default())
    }

    /// Routes out of the main table by this interface that the kernel did not make itself.
    ///
    /// # Errors
    /// The socket failed.
    pub fn routes(&mut self, index: u32) -> Result<Vec<Route>> {
        let mut found = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut ask = RouteMessage::default();
            ask.header.address_family = family;
            let ask = RouteNetlinkMessage::GetRoute(ask);
            for answer in self.socket.dump(&ask)? {
                let RouteNetlinkMessage::NewRoute(route) = answer else { continue };
                let leaves = route.attributes.contains(&RouteAttribute::Oif(index));
                if leaves
                    && route.header.table == MAIN
                    && route.header.protocol != RouteProtocol::Kernel
                {
                    found.extend(Route::read(&route));
                }
            }
        }
        // The kernel takes a route by a router only once it knows the way to the router.
        found.sort_by_key(|route| route.via.is_some());
        Ok(found)
    }

    /// Adds a route by this interface. One to whose router the way is gone, as when the address that led
    /// there was deleted after it was made, is said to be on the link: the kernel keeps such a route,
    /// and sends by it, but takes none.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn add_route(&mut self, index: u32, route: &Route) -> Result<()> {
        let mut answer = self.new_route(index, route)?;
        if matches!(answer, Err(libc::ENETUNREACH | libc::EHOSTUNREACH)) && !route.on_link {
            answer = self.new_route(index, &Route { on_link: true, ..route.clone() })?;
        }
        match answer {
            Err(libc::EEXIST) => Ok(()),
            answer => self.said(|| format!("add the route {route:?}"), answer),
        }
    }

    fn new_route(&mut self, index: u32, route: &Route) -> Result<std::result::Result<(), i32>> {
        let message = RouteNetlinkMessage::NewRoute(route.message(index));
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        Ok(self.socket.request(message, flags)?.map(drop))
    }
}

fn read_link(message: LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mac: None,
        mtu_bytes: 0,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        master: None,
        peer: None,
        kind: None,
        device: None,
        active: None,
        member_up: None,
        filters_vlans: false,
        confined: None,
        counters: Counters::default(),
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Address(bytes) => link.mac = bytes.try_into().ok().map(Mac),
            LinkAttribute::Mtu(mtu) => link.mtu_bytes = mtu,
            LinkAttribute::Controller(index) => link.master = Some(index),
            LinkAttribute::Link(index) => link.peer = Some(index),
            LinkAttribute::ParentDevName(name) => link.device = Some(name),
            LinkAttribute::Stats64(stats) => {
                // A promiscuous NIC also delivers what is for others. The kernel drops that of IP and counts
                // it (since Linux 6.9) where it would be used: on the bond, not on the bond's member.
                let for_others = stats.rx_otherhost_dropped;
                link.counters = Counters {
                    rx_packets: stats.rx_packets.saturating_sub(for_others),
                    tx_packets: stats.tx_packets,
                    rx_bytes: stats.rx_bytes,
                    tx_bytes: stats.tx_bytes,
                };
            }
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => link.kind = Some(kind.to_string()),
                        LinkInfo::Data(InfoData::Bond(options)) => {
                            link.active = options.iter().find_map(|option| match option {
                                InfoBond::ActivePort(index) if *index > 0 => Some(*index),
                                _ => None,
                            });
                        }
                        LinkInfo::Data(InfoData::Bridge(options)) => {
                            link.filters_vlans = options.contains(&InfoBridge::VlanFiltering(true));
                        }
                        LinkInfo::PortData(InfoPortData::BridgePort(options)) => {
                            link.confined = options.iter().find_map(|option| match option {
                                InfoBridgePort::Isolated(true) => Some("isolated"),
                                InfoBridgePort::Locked(true) => Some("locked"),
                                _ => None,
                            });
                        }
                        LinkInfo::PortData(InfoPortData::BondPort(options)) => {
                            link.member_up = options.iter().find_map(|option| match option {
                                InfoBondPort::MiiStatus(status) => Some(*status == MiiStatus::Up),
                                _ => None,
                            });
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    link
}

#[cfg(test)]
/// Also what other tests make interfaces with.
pub mod tests {
    use super::*;

    /// An interface that is up.
    pub fn link(index: u32, name: &str, kind: Option<&str>, master: Option<u32>) -> Link {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up | LinkFlags::LowerUp;
        message.attributes.push(LinkAttribute::IfName(name.into()));
        let mac = vec![2, 0, 0, 0, 0, index as u8];
        message.attributes.extend([LinkAttribute::Address(mac), LinkAttribute::Mtu(1500)]);
        Link { kind: kind.map(Into::into), master, ..read_link(message) }
    }

    #[test]
    fn the_loopback_interface_is_found_by_name_and_by_index() {
        let mut net = Net::here().expect("Linux");
        let lo = net.named("lo").expect("answered").expect("everywhere");
        assert_eq!(
            net.indexed(lo.index).expect("answered").map(|link| link.name),
            Some("lo".into())
        );
        assert_eq!(net.named("pw-none").expect("answered"), None);
        assert!(net.all().expect("answered").iter().any(|link| link.name == "lo"));
    }
}
