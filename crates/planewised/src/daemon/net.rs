//! Netlink of the interfaces in its socket's namespace: bonds, veths, forwarding entries.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::link::{
    BondAllPortActive, BondFailOverMac, BondMode, InfoBond, InfoBondPort, InfoBridge,
    InfoBridgePort, InfoData, InfoKind, InfoPortData, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage, MiiStatus,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::tc::{TcAttribute, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use pw_alloc::model::Mac;
use pw_alloc::signal::Counters;
use pw_error::{Error, Result};
use pw_linux::netns::{Netns, cookie, run_in};
use pw_linux::rtnetlink::{Errno, RouteSocket, errno_text};
use pw_sriov::link::{Change, Links};

use crate::daemon::route::{self, Route};

/// A bond's interval of link monitoring [ms].
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
    /// A veth's peer (IFLA_LINK), by the index in the peer's namespace, which whoever made it chose.
    pub peer: Option<u32>,
    /// The peer's namespace, by its number in this one (IFLA_LINK_NETNSID); none: this one.
    pub peer_netns: Option<i32>,
    /// Its kind: `veth`, `bond`, `bridge`; none: a device.
    pub kind: Option<String>,
    /// The PCI address of its device.
    pub device: Option<String>,
    /// A bond's active member.
    pub active: Option<u32>,
    /// Is it up by its bond's link monitoring? None: it is in no bond.
    pub member_up: Option<bool>,
    /// It is a bridge that filters by VLAN.
    pub filters_vlans: bool,
    /// How its bridge isolates or locks it as a port; none: not at all.
    pub confined: Option<&'static str>,
    /// Its counters.
    pub counters: Counters,
}

/// A netlink socket in one namespace.
#[derive(Debug)]
pub struct Net {
    links: Links,
    place: String,
    identity: Identity,
}

/// Identity of the namespace of a [`Net`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its inode, which may be reused once the namespace is gone.
    pub inode: u64,
    /// Its cookie, never reused; none before Linux 5.14.
    pub cookie: Option<u64>,
}

impl Identity {
    /// Identity of the calling thread's namespace.
    fn current() -> Result<Self> {
        let file = std::fs::metadata("/proc/thread-self/ns/net")
            .map_err(|error| Error::failed("cannot read this namespace", "").caused_by(error))?;
        Ok(Self { inode: file.ino(), cookie: cookie()? })
    }
}

/// An entry of a bridge's or a NIC's forwarding table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FdbEntry {
    /// The interface.
    pub index: u32,
    /// The address.
    pub mac: Mac,
    /// In the interface's own table (NTF_SELF, a NIC's filter), not its bridge's.
    pub is_self: bool,
    /// The port's own address, or permanent.
    pub permanent: bool,
    /// Learned from a frame, not set.
    pub learned: bool,
}

impl Net {
    /// Opens a socket in the calling thread's namespace.
    pub fn open() -> Result<Self> {
        Ok(Self { links: Links::open()?, place: String::new(), identity: Identity::current()? })
    }

    /// Its namespace.
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// Opens a socket in that namespace; it stays there.
    pub fn open_in(netns: &Netns) -> Result<Self> {
        let mut net = run_in(Some(netns), Self::open)?;
        net.place = format!(" in {netns}");
        Ok(net)
    }

    const fn socket(&mut self) -> &mut RouteSocket {
        self.links.socket()
    }

    fn request(
        &mut self,
        what: impl FnOnce() -> String,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<()> {
        let answer = self.socket().request(message, flags | NLM_F_ACK)?.map(drop);
        self.check(what, answer)
    }

    fn check(
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
    pub fn all(&mut self) -> Result<Vec<Link>> {
        Ok(self.socket().links()?.into_iter().map(read_link).collect())
    }

    /// The interface of that name.
    pub fn named(&mut self, name: &str) -> Result<Option<Link>> {
        let mut ask = LinkMessage::default();
        ask.attributes.push(LinkAttribute::IfName(name.into()));
        self.get_link(ask)
    }

    /// The interface of that index.
    pub fn indexed(&mut self, index: u32) -> Result<Option<Link>> {
        let mut ask = LinkMessage::default();
        ask.header.index = index;
        self.get_link(ask)
    }

    fn get_link(&mut self, ask: LinkMessage) -> Result<Option<Link>> {
        match self.socket().link(ask)? {
            Ok(link) => Ok(link.map(read_link)),
            // ENODEV is an answer: there is no such interface.
            Err(libc::ENODEV) => Ok(None),
            Err(code) => self.check(|| "query an interface".to_owned(), Err(code)).map(|()| None),
        }
    }

    /// Changes an interface.
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
        if harmless { Ok(()) } else { self.check(what, answer) }
    }

    /// Moves an interface into the namespace that the open file stands for.
    pub fn move_to_netns(&mut self, link: &Link, netns: BorrowedFd<'_>, name: &str) -> Result<()> {
        let answer = self.links.move_to_netns(link.index, netns.as_raw_fd(), name)?;
        self.check(|| format!("move {} to another namespace", link.name), answer)
    }

    /// Makes a bond in active-backup mode whose address follows its active member.
    pub fn make_bond(&mut self, name: &str) -> Result<()> {
        let options = vec![
            InfoBond::Mode(BondMode::ActiveBackup),
            InfoBond::MiiMon(MIIMON_MS),
            InfoBond::FailOverMac(BondFailOverMac::Follow),
            // Gratuitous ARP, by which the host's bridge learns the new port.
            InfoBond::NumPeerNotif(1),
        ];
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        message.attributes.push(of_bond(options));
        let message = RouteNetlinkMessage::NewLink(message);
        self.request(|| format!("make the bond {name}"), message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Removes a virtual interface.
    pub fn remove(&mut self, link: &Link) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        self.request(|| format!("remove {}", link.name), RouteNetlinkMessage::DelLink(message), 0)
    }

    /// Makes an interface a member of a bond or a port of a bridge; none: of nothing.
    pub fn enslave(&mut self, link: &Link, master: Option<u32>) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        message.attributes.push(LinkAttribute::Controller(master.unwrap_or(0)));
        let what = || match master {
            Some(_) => format!("join {} to its bond or bridge", link.name),
            None => format!("take {} out of its bond or bridge", link.name),
        };
        self.request(what, RouteNetlinkMessage::SetLink(message), 0)
    }

    fn set_bond(&mut self, bond: &Link, option: InfoBond, what: String) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = bond.index;
        message.attributes.push(of_bond(vec![option]));
        self.request(|| what, RouteNetlinkMessage::NewLink(message), 0)
    }

    /// Lets a bond send by this member, and return to it when its link does.
    pub fn set_active(&mut self, bond: &Link, member: &Link) -> Result<()> {
        let what = || format!("let {} send by {}", bond.name, member.name);
        self.set_bond(bond, InfoBond::ActivePort(member.index), what())?;
        self.set_bond(bond, InfoBond::Primary(member.index), what())
    }

    /// Lets a bond receive from its inactive members, too, or not.
    pub fn set_all_ports_active(&mut self, bond: &Link, on: bool) -> Result<()> {
        let value = if on { BondAllPortActive::Delivered } else { BondAllPortActive::Dropped };
        let what = format!("set what {} does with frames of its other members", bond.name);
        self.set_bond(bond, InfoBond::AllPortsActive(value), what)
    }

    /// The number of the namespace that the open file stands for; none: nothing here refers to it.
    pub fn netns_id(&mut self, netns: BorrowedFd<'_>) -> Result<Option<i32>> {
        self.socket().netns_number(netns)
    }

    /// Kinds of queueing disciplines, by interface.
    pub fn disciplines(&mut self) -> Result<Vec<(u32, String)>> {
        let ask = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
        let mut kinds = Vec::new();
        for answer in self.socket().dump(&ask)? {
            let RouteNetlinkMessage::NewQueueDiscipline(message) = answer else { continue };
            for attribute in message.attributes {
                if let (TcAttribute::Kind(kind), Ok(index)) =
                    (attribute, u32::try_from(message.header.index))
                {
                    kinds.push((index, kind));
                }
            }
        }
        Ok(kinds)
    }

    /// Addresses of this host's gateways, and of its neighbours by interfaces other than these bridges:
    /// none of them is behind a port of one.
    pub fn stations(&mut self, bridges: &BTreeSet<u32>) -> Result<BTreeSet<Mac>> {
        let routes = self.socket().routes()?;
        let gateways: BTreeSet<IpAddr> = routes.iter().flat_map(route::gateways).collect();
        let ask = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        let mut stations = BTreeSet::new();
        for answer in self.socket().dump(&ask)? {
            let RouteNetlinkMessage::NewNeighbour(neighbour) = answer else { continue };
            let is_gateway = neighbour.attributes.iter().any(|attribute| match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                    gateways.contains(&IpAddr::V4(*v4))
                }
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                    gateways.contains(&IpAddr::V6(*v6))
                }
                _ => false,
            });
            if is_gateway || !bridges.contains(&neighbour.header.ifindex) {
                stations.extend(mac_of(&neighbour));
            }
        }
        Ok(stations)
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

    /// Lets a bridge send frames for `mac` by its port `index`, until it learns otherwise; with `lasting`
    /// the entry neither ages nor moves. (A NIC that hands broadcasts back to the PF that
    /// sent them makes a bridge believe that its own guests are behind the PF.)
    pub fn set_bridge_fdb(&mut self, mac: Mac, index: u32, lasting: bool) -> Result<()> {
        // NUD_NOARP is what `bridge fdb` calls static, NUD_REACHABLE dynamic.
        let (flags, state) = if lasting {
            (NeighbourFlags::Controller | NeighbourFlags::Sticky, NeighbourState::Noarp)
        } else {
            (NeighbourFlags::Controller, NeighbourState::Reachable)
        };
        let message = Self::forward(mac, index, flags, state);
        let message = RouteNetlinkMessage::NewNeighbour(message);
        self.request(
            || format!("let the bridge send {mac} by interface {index}"),
            message,
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Deletes a bridge's entry of `mac` on its port `index`, if there is one and it is a port.
    pub fn delete_bridge_fdb(&mut self, mac: Mac, index: u32) -> Result<()> {
        let message = Self::forward(mac, index, NeighbourFlags::Controller, NeighbourState::Noarp);
        let message = RouteNetlinkMessage::DelNeighbour(message);
        let answer = self.socket().request(message, NLM_F_ACK)?.map(drop);
        match answer {
            Err(libc::ENOENT | libc::EOPNOTSUPP) => Ok(()),
            answer => self.check(|| format!("let the bridge forget {mac}"), answer),
        }
    }

    /// Adds `mac` to a NIC's filter for the host, or removes it.
    pub fn set_nic_filter(&mut self, mac: Mac, index: u32, takes: bool) -> Result<()> {
        let message = Self::forward(mac, index, NeighbourFlags::Own, NeighbourState::Permanent);
        let answer = if takes {
            let message = RouteNetlinkMessage::NewNeighbour(message);
            self.socket().request(message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)?.map(drop)
        } else {
            self.socket().request(RouteNetlinkMessage::DelNeighbour(message), NLM_F_ACK)?.map(drop)
        };
        match (takes, answer) {
            (true, Err(libc::EEXIST)) | (false, Err(libc::ENOENT)) => Ok(()),
            (_, answer) => self.check(|| format!("let interface {index} take {mac}"), answer),
        }
    }

    /// All forwarding entries of bridges and NICs.
    pub fn fdb_entries(&mut self) -> Result<Vec<FdbEntry>> {
        let mut ask = NeighbourMessage::default();
        ask.header.family = AddressFamily::Bridge;
        let ask = RouteNetlinkMessage::GetNeighbour(ask);
        let answers = self.socket().dump(&ask)?;
        Ok(answers
            .into_iter()
            .filter_map(|answer| {
                let RouteNetlinkMessage::NewNeighbour(message) = answer else { return None };
                FdbEntry::read(&message)
            })
            .collect())
    }

    /// Addresses of an interface with their prefix lengths, but for those that the kernel makes.
    pub fn addresses(&mut self, name: &str) -> Result<Vec<String>> {
        let all = self.links.all(&pw_sriov::model::NetNs::Host)?;
        let link = all.into_iter().find(|link| link.netdev.name == name);
        Ok(link.map(|link| link.netdev.addresses).unwrap_or_default())
    }

    /// Routes by this interface that the kernel did not make itself, of all tables; an error for each that
    /// cannot be kept.
    pub fn routes(&mut self, index: u32) -> Result<Vec<Result<Route>>> {
        let routes = self.socket().routes()?.into_iter();
        let routes = routes.map(|route| Route::by(index, route));
        let mut routes: Vec<_> = routes.filter_map(Result::transpose).collect();
        // The kernel accepts a route via a router only once the router is reachable.
        routes.sort_by_key(|route| route.as_ref().is_ok_and(Route::has_router));
        Ok(routes)
    }

    /// Adds a route by this interface. Where its router is no longer reachable, as when the address on its
    /// subnet was deleted later, the router is marked as on the link: the kernel keeps and uses such a
    /// route, but accepts no new one.
    pub fn add_route(&mut self, index: u32, route: &Route) -> Result<()> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        let mut add = |on_link| -> Result<std::result::Result<(), Errno>> {
            let message = RouteNetlinkMessage::NewRoute(route.message(index, on_link));
            Ok(self.socket().request(message, flags)?.map(drop))
        };
        let mut answer = add(false)?;
        if matches!(answer, Err(libc::ENETUNREACH | libc::EHOSTUNREACH)) {
            answer = add(true)?;
        }
        match answer {
            Err(libc::EEXIST) => Ok(()),
            answer => self.check(|| format!("add the route {route}"), answer),
        }
    }
}

impl Link {
    /// Is it the host's end of this guest's veth? Only the host's word about its own interface counts, and
    /// both indices and the namespace: a guest chooses the indices of its interfaces freely.
    pub fn is_port_of(&self, veth: u32, netns: i32) -> bool {
        self.kind.as_deref() == Some("veth")
            && (self.peer, self.peer_netns) == (Some(veth), Some(netns))
    }
}

impl FdbEntry {
    /// Reads an entry; none: it is for no Ethernet address.
    pub fn read(message: &NeighbourMessage) -> Option<Self> {
        Some(Self {
            index: message.header.ifindex,
            mac: mac_of(message)?,
            is_self: message.header.flags.contains(NeighbourFlags::Own),
            permanent: message.header.state == NeighbourState::Permanent,
            learned: !matches!(
                message.header.state,
                NeighbourState::Permanent | NeighbourState::Noarp
            ),
        })
    }
}

fn of_bond(options: Vec<InfoBond>) -> LinkAttribute {
    let data = LinkInfo::Data(InfoData::Bond(options));
    LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bond), data])
}

fn mac_of(neighbour: &NeighbourMessage) -> Option<Mac> {
    neighbour.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => bytes.as_slice().try_into().ok().map(Mac),
        _ => None,
    })
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
        peer_netns: None,
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
            LinkAttribute::LinkNetNsId(id) => link.peer_netns = Some(id),
            LinkAttribute::ParentDevName(name) => link.device = Some(name),
            LinkAttribute::Stats64(stats) => {
                // A promiscuous NIC also delivers frames for others. The kernel drops those of IP and counts
                // them (since Linux 6.9) on the receiving interface: the bond, not its member.
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
        let mut net = Net::open().expect("Linux");
        let lo = net.named("lo").expect("answered").expect("everywhere");
        assert_eq!(
            net.indexed(lo.index).expect("answered").map(|link| link.name),
            Some("lo".into())
        );
        assert_eq!(net.named("pw-none").expect("answered"), None);
        assert!(net.all().expect("answered").iter().any(|link| link.name == "lo"));
    }

    #[test]
    fn what_is_no_port_of_a_bridge_has_nothing_to_forget() {
        let forgotten = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            let arguments = ["link", "add", "pwa", "type", "veth", "peer", "pwb"];
            std::process::Command::new("ip")
                .args(arguments)
                .status()
                .ok()
                .filter(|s| s.success())?;
            let mut net = Net::open().expect("Linux");
            let veth = net.named("pwa").expect("answered").expect("just made");
            Some(net.delete_bridge_fdb(Mac([2, 0, 0, 0, 0, 1]), veth.index))
        });
        match forgotten.join().expect("no panic") {
            Some(answer) => answer.expect("nothing to do"),
            None => eprintln!("skipped: needs root and ip"),
        }
    }
}
