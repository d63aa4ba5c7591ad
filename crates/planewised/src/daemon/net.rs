//! Netlink of the interfaces in its socket's namespace: bonds, veths, forwarding entries.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::link::{
    BondAllPortActive, BondFailOverMac, BondMode, InfoBond, InfoData, InfoKind, LinkAttribute,
    LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::tc::{TcAttribute, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use pw_alloc::model::Mac;
use pw_alloc::signal::Counters;
use pw_error::{Error, Result};
pub use pw_linux::links::Link;
use pw_linux::netns::{Netns, cookie, run_in};
use pw_linux::rtnetlink::{Errno, RouteSocket, errno_text};
use pw_sriov::link::{Change, Links};

use crate::daemon::route::{self, Route};

/// A bond's interval of link monitoring [ms].
const MIIMON_MS: u32 = 100;

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
        Ok(self.socket().links()?.into_iter().map(Link::from).collect())
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
            Ok(link) => Ok(link.map(Link::from)),
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

/// The packets and bytes of an interface.
pub const fn counters(link: &Link) -> Counters {
    let stats = &link.stats;
    // A promiscuous NIC also delivers frames for others. The kernel drops those of IP and counts them (since
    // Linux 6.9) on the receiving interface: the bond, not its member.
    let rx_packets = stats.rx_packets.saturating_sub(stats.rx_otherhost_dropped);
    let (tx_packets, rx_bytes, tx_bytes) = (stats.tx_packets, stats.rx_bytes, stats.tx_bytes);
    Counters { rx_packets, tx_packets, rx_bytes, tx_bytes }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::testing::in_namespace;

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
        in_namespace("ip link add pwa type veth peer pwb", || {
            let mut net = Net::open().expect("Linux");
            let veth = net.named("pwa").expect("answered").expect("just made");
            let mac = Mac([2, 0, 0, 0, 0, 1]);
            net.delete_bridge_fdb(mac, veth.index).expect("nothing to do");
        });
    }
}
