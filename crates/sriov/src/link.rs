//! The rtnetlink of interfaces and of a PF's VFs, in the namespace that the calling thread is in.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::RawFd;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkFlags, LinkLayerType, LinkMessage, LinkVfInfo, LinkXdp,
    VfInfo as SetVfInfo, VfInfoLinkState, VfInfoMac, VfInfoRate, VfInfoSpoofCheck, VfInfoTrust,
    VfLinkState, VfVlan, VfVlanInfo, VlanProtocol as TagProtocol, XdpAttached,
};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use pw_error::{Error, Result};
use pw_linux::rtnetlink::{Errno, RouteSocket, errno_text};
use serde::Serialize;

use crate::address::PciAddress;
use crate::mac::Mac;
use crate::model::{LinkState, NetNs, Netdev, NetdevCounters, Vlan, VlanProtocol};
use crate::vfinfo::{self, VfInfo};

/// An interface and the PCI function that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The function; none for virtual interfaces.
    pub device: Option<PciAddress>,
    /// Whether it is a switchdev driver's representor of another function's port.
    pub representor: bool,
    /// The interface.
    pub netdev: Netdev,
}

/// One setting of a VF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields of VfConfig")]
pub enum Setting {
    Mac(Mac),
    Vlan(Vlan),
    Rate { min_tx_mbps: u32, max_tx_mbps: u32 },
    SpoofCheck(bool),
    Trust(bool),
    LinkState(LinkState),
}

/// One change of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields of Netdev")]
pub enum Change {
    Up(bool),
    Name(String),
    Mac(Mac),
    MtuBytes(u32),
    AddAddress(Cidr),
    DeleteAddress(Cidr),
}

/// An IP address and the length of its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub address: IpAddr,
    /// Length of its prefix [bits].
    pub prefix: u8,
}

impl std::str::FromStr for Cidr {
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

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

pw_error::serde_as_text!(Cidr);

/// A socket that reads and changes interfaces.
#[derive(Debug)]
pub struct Links {
    socket: RouteSocket,
}

/// The kernel's answer: done, or an errno.
pub type Outcome = std::result::Result<(), Errno>;

impl Links {
    /// Opens a socket in the calling thread's namespace.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: RouteSocket::open()? })
    }

    /// The socket, for other requests.
    pub const fn socket(&mut self) -> &mut RouteSocket {
        &mut self.socket
    }

    /// All interfaces of the socket's namespace, which is `netns`.
    pub fn all(&mut self, netns: &NetNs) -> Result<Vec<Link>> {
        let links = self.socket.links()?;
        let rows: Vec<Row> = links.into_iter().map(|link| read_link(link, netns)).collect();
        let mut addresses: HashMap<u32, Vec<String>> = HashMap::new();
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        for answer in self.socket.dump(&request)? {
            let RouteNetlinkMessage::NewAddress(address) = answer else { continue };
            if let Some(text) = read_address(&address) {
                addresses.entry(address.header.index).or_default().push(text);
            }
        }
        let name = |row: &Row| row.link.netdev.name.clone();
        let names: HashMap<u32, String> =
            rows.iter().map(|row| (row.link.netdev.index, name(row))).collect();
        let stacked: HashMap<u32, String> =
            rows.iter().filter_map(|row| Some((row.lower?, name(row)))).collect();
        let sockets = if netns.is_host() { packet_sockets() } else { HashSet::new() };
        let complete = |mut row: Row| {
            let netdev = &mut row.link.netdev;
            netdev.addresses = addresses.remove(&netdev.index).unwrap_or_default();
            let master = row.master.and_then(|master| names.get(&master));
            netdev.attached_to = master.or_else(|| stacked.get(&netdev.index)).cloned();
            if sockets.contains(&netdev.index) {
                netdev.taken.get_or_insert_with(|| "has a packet socket".to_owned());
            }
            row.link
        };
        Ok(rows.into_iter().map(complete).collect())
    }

    /// The VFs of a PF as the kernel reports them; none when there is no such interface.
    pub fn vfs(&mut self, interface: &str) -> Result<Option<Vec<VfInfo>>> {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfName(interface.into()));
        request.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::Vf]));
        match self.socket.exchange(RouteNetlinkMessage::GetLink(request), 0)? {
            Ok(answers) => Ok(answers.first().map(|answer| vfinfo::read(answer))),
            Err(libc::ENODEV) => Ok(None),
            Err(code) => Err(Error::failed(
                format!("the kernel does not list the VFs of {interface}: {}", errno_text(code)),
                "",
            )),
        }
    }

    /// Sets a VF's setting through its PF.
    pub fn set_vf(&mut self, pf: u32, vf: u32, setting: Setting) -> Result<Outcome> {
        let setting = match setting {
            Setting::Mac(mac) => SetVfInfo::Mac(VfInfoMac::new(vf, &mac.0)),
            Setting::Vlan(vlan) => {
                let protocol = match vlan.protocol {
                    VlanProtocol::Dot1q => TagProtocol::Ieee8021Q,
                    VlanProtocol::Dot1ad => TagProtocol::Ieee8021Ad,
                };
                let info = VfVlanInfo::new(vf, vlan.id, vlan.qos, protocol);
                SetVfInfo::VlanList(vec![VfVlan::Info(info)])
            }
            Setting::Rate { min_tx_mbps, max_tx_mbps } => {
                SetVfInfo::Rate(VfInfoRate::new(vf, min_tx_mbps, max_tx_mbps))
            }
            Setting::SpoofCheck(on) => SetVfInfo::SpoofCheck(VfInfoSpoofCheck::new(vf, on)),
            Setting::Trust(on) => SetVfInfo::Trust(VfInfoTrust::new(vf, on)),
            Setting::LinkState(state) => {
                let state = match state {
                    LinkState::Auto => VfLinkState::Auto,
                    LinkState::Enable => VfLinkState::Enable,
                    LinkState::Disable => VfLinkState::Disable,
                };
                SetVfInfo::LinkState(VfInfoLinkState::new(vf, state))
            }
        };
        let mut message = LinkMessage::default();
        message.header.index = pf;
        message.attributes.push(LinkAttribute::VfInfoList(vec![LinkVfInfo(vec![setting])]));
        self.set(message)
    }

    /// Changes an interface.
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
        self.set(message)
    }

    /// Moves an interface into the namespace of an open file, under `name`.
    pub fn move_to_netns(&mut self, index: u32, netns: RawFd, name: &str) -> Result<Outcome> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::NetNsFd(netns));
        message.attributes.push(LinkAttribute::IfName(name.into()));
        self.set(message)
    }

    fn set(&mut self, message: LinkMessage) -> Result<Outcome> {
        let message = RouteNetlinkMessage::SetLink(message);
        Ok(self.socket.request(message, NLM_F_ACK)?.map(|_| ()))
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
        let (message, flags) = if add {
            (RouteNetlinkMessage::NewAddress(message), NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)
        } else {
            (RouteNetlinkMessage::DelAddress(message), NLM_F_ACK)
        };
        Ok(self.socket.request(message, flags)?.map(|_| ()))
    }

    /// Indices of the interfaces that default routes leave by, IPv4 and IPv6.
    pub fn default_routes(&mut self) -> Result<Vec<u32>> {
        let mut interfaces = Vec::new();
        for route in self.socket.routes()? {
            if route.header.destination_prefix_length == 0
                && route.header.kind == RouteType::Unicast
            {
                interfaces.extend(output_interfaces(&route));
            }
        }
        interfaces.sort_unstable();
        interfaces.dedup();
        Ok(interfaces)
    }

    /// Index of the interface by which packets to `address` leave; none without a route.
    pub fn route_to(&mut self, address: IpAddr) -> Result<Option<u32>> {
        let mut request = RouteMessage::default();
        request.header.address_family = address.into();
        request.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
        request.attributes.push(RouteAttribute::Destination(address.into()));
        let Ok(answers) = self.socket.request(RouteNetlinkMessage::GetRoute(request), 0)? else {
            return Ok(None);
        };
        Ok(answers.into_iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(route) => output_interfaces(&route).first().copied(),
            _ => None,
        }))
    }
}

fn output_interfaces(route: &RouteMessage) -> Vec<u32> {
    let mut interfaces = Vec::new();
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interfaces.push(*index),
            RouteAttribute::MultiPath(hops) => {
                interfaces.extend(hops.iter().map(|hop| hop.interface_index));
            }
            _ => {}
        }
    }
    interfaces
}

struct Row {
    link: Link,
    master: Option<u32>,
    /// The interface of this namespace that it is stacked upon.
    lower: Option<u32>,
}

fn read_link(message: LinkMessage, netns: &NetNs) -> Row {
    let ethernet = message.header.link_layer_type == LinkLayerType::Ether;
    let up = message.header.flags.contains(LinkFlags::Up);
    let index = message.header.index;
    let mut netdev = Netdev { index, up, netns: netns.clone(), ..Netdev::default() };
    let (mut device, mut representor, mut master, mut lower) = (None, false, None, None);
    let (mut lower_is_foreign, mut permanent, mut bus_is_pci) = (false, None, true);
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => netdev.name = name,
            LinkAttribute::Address(bytes) if ethernet => netdev.mac = mac(&bytes),
            LinkAttribute::PermAddress(bytes) => permanent = mac(&bytes),
            LinkAttribute::Mtu(mtu) => netdev.mtu_bytes = mtu,
            LinkAttribute::Carrier(carrier) => netdev.carrier = Some(carrier != 0),
            LinkAttribute::Promiscuity(count) if count > 0 => {
                netdev.taken = Some("is promiscuous".to_owned());
            }
            LinkAttribute::Xdp(facts) if facts.iter().any(runs_program) => {
                netdev.taken = Some("has an XDP program".to_owned());
            }
            LinkAttribute::PhysPortName(name) => representor = is_representor(&name),
            LinkAttribute::Link(index) => lower = Some(index),
            LinkAttribute::LinkNetNsId(_) => lower_is_foreign = true,
            LinkAttribute::Controller(index) => master = Some(index),
            LinkAttribute::ParentDevName(name) => device = name.parse().ok(),
            LinkAttribute::ParentDevBusName(name) => bus_is_pci = name == "pci",
            LinkAttribute::Stats64(stats) => {
                netdev.counters = NetdevCounters {
                    rx_packets: stats.rx_packets,
                    tx_packets: stats.tx_packets,
                    rx_bytes: stats.rx_bytes,
                    tx_bytes: stats.tx_bytes,
                };
            }
            _ => {}
        }
    }
    netdev.mac_is_permanent = netdev.mac.map(|mac| permanent == Some(mac));
    let device = device.filter(|_| bus_is_pci);
    let lower = lower.filter(|index| !lower_is_foreign && *index != netdev.index);
    Row { link: Link { device, representor, netdev }, master, lower }
}

fn runs_program(fact: &LinkXdp) -> bool {
    matches!(fact, LinkXdp::Attached(attached) if *attached != XdpAttached::None)
}

/// Indices of the interfaces that packet sockets are bound to, in the calling thread's namespace.
fn packet_sockets() -> HashSet<u32> {
    let sockets = std::fs::read_to_string("/proc/thread-self/net/packet").unwrap_or_default();
    let index = |line: &str| line.split_whitespace().nth(4)?.parse().ok();
    sockets.lines().skip(1).filter_map(index).collect()
}

/// Whether a port's name is that of a VF's representor (`pf0vf3`; Documentation/networking/
/// representors.rst).
fn is_representor(port: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    port.strip_prefix("pf")
        .and_then(|numbers| numbers.split_once("vf"))
        .is_some_and(|(pf, vf)| digits(pf) && digits(vf))
}

/// An address as `198.18.0.1/24`; none for IPv6 link-local ones, which the kernel makes itself.
fn read_address(message: &AddressMessage) -> Option<String> {
    let (mut local, mut peer) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => peer = Some(*address),
            _ => {}
        }
    }
    let address = local.or(peer)?;
    let made_by_kernel = address.is_ipv6() && message.header.scope == AddressScope::Link;
    (!made_by_kernel).then(|| format!("{address}/{}", message.header.prefix_len))
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    Some(Mac(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_of_no_device() {
        let links = Links::open().and_then(|mut links| links.all(&NetNs::Host)).expect("Linux");
        let lo = links.iter().find(|link| link.netdev.name == "lo").expect("everywhere");
        assert_eq!((lo.device, lo.netdev.index, lo.representor), (None, 1, false));
    }

    #[test]
    fn an_interface_that_is_not_there_has_no_vfs_to_tell_of() {
        let mut links = Links::open().expect("Linux");
        assert_eq!(links.vfs("pw-none").expect("answered"), None);
        assert_eq!(links.vfs("lo").expect("answered"), Some(Vec::new()));
    }

    #[test]
    fn whoever_listens_to_an_interface_uses_it() {
        let taken = |script: &'static str| {
            let look = std::thread::spawn(move || {
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
                let make = "ip link add pwa type veth peer pwb && ip link set pwa up";
                for line in [make, script] {
                    let done = std::process::Command::new("sh").args(["-ec", line]).status();
                    done.ok().filter(std::process::ExitStatus::success)?;
                }
                let look = || {
                    let links = Links::open().and_then(|mut links| links.all(&NetNs::Host));
                    links.expect("answered").into_iter().find(|link| link.netdev.name == "pwa")
                };
                let index = look()?.netdev.index;
                let _socket = (script == "true # socket").then(|| bound_packet_socket(index));
                look()
            });
            look.join().expect("no panic").map(|link| link.netdev.taken)
        };
        let Some(nobody) = taken("true") else { return eprintln!("skipped: needs root and ip") };
        assert_eq!(nobody, None);
        assert_eq!(taken("true # socket"), Some(Some("has a packet socket".into())));
        let promiscuous = taken("ip link set pwa promisc on");
        assert_eq!(promiscuous, Some(Some("is promiscuous".into())));
    }

    fn bound_packet_socket(index: u32) -> std::os::fd::OwnedFd {
        use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
        // SAFETY: the descriptor is new and nobody else's; the address lives during the call.
        unsafe {
            let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
            assert!(socket >= 0, "{}", std::io::Error::last_os_error());
            let socket = OwnedFd::from_raw_fd(socket);
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
            address.sll_ifindex = index as i32;
            let size = size_of::<libc::sockaddr_ll>() as u32;
            let bound = libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size);
            assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
            socket
        }
    }

    #[test]
    fn every_address_that_is_accepted_reads_back_as_itself() {
        for text in ["198.18.0.1", "198.18.0.1/33", "2001:2::1/129", "198.18.0.1/+4", "x/8", "/8"] {
            assert_eq!(
                text.parse::<Cidr>().map_err(|error| error.kind),
                Err(pw_error::Kind::BadInput),
                "{text:?}"
            );
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

    #[test]
    fn representors_are_told_from_ports() {
        assert!(is_representor("pf0vf12"));
        for port in ["p0", "pf0", "pf0vf", "pfvf1", "pf0sf1", "vf1"] {
            assert!(!is_representor(port), "{port}");
        }
    }
}
