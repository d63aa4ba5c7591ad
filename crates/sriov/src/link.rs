//! The rtnetlink of interfaces and of a PF's VFs, in the namespace that the calling thread is in.

use std::collections::{HashMap, HashSet};
use std::os::fd::RawFd;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkMessage, LinkVfInfo, VfInfo as SetVfInfo, VfInfoLinkState,
    VfInfoMac, VfInfoRate, VfInfoSpoofCheck, VfInfoTrust, VfLinkState, VfVlan, VfVlanInfo,
    VlanProtocol as TagProtocol,
};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use pw_error::{Error, Result};
pub use pw_linux::links::{Change, Cidr, Outcome};
use pw_linux::rtnetlink::{RouteSocket, errno_text};
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

/// A socket that reads and changes interfaces.
#[derive(Debug)]
pub struct Links {
    socket: RouteSocket,
}

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
        let links: Vec<_> =
            self.socket.links()?.into_iter().map(pw_linux::links::Link::from).collect();
        let mut addresses: HashMap<u32, Vec<String>> = HashMap::new();
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        for answer in self.socket.dump(&request)? {
            let RouteNetlinkMessage::NewAddress(address) = answer else { continue };
            if let Some(text) = read_address(&address) {
                addresses.entry(address.header.index).or_default().push(text);
            }
        }
        let names: HashMap<u32, String> =
            links.iter().map(|link| (link.index, link.name.clone())).collect();
        let stacked: HashMap<u32, u32> = links
            .iter()
            .filter(|link| link.lower_netns.is_none())
            .filter_map(|link| Some((link.lower.filter(|lower| *lower != link.index)?, link.index)))
            .collect();
        let sockets = if netns.is_host() { packet_sockets() } else { HashSet::new() };
        let complete = |link: pw_linux::links::Link| {
            let upper = link.controller.filter(|controller| names.contains_key(controller));
            let upper = upper.or_else(|| stacked.get(&link.index).copied());
            let listened = sockets.contains(&link.index).then_some("has a packet socket");
            let netdev = Netdev {
                index: link.index,
                mac: link.mac,
                mac_is_permanent: link.mac.map(|mac| link.permanent_mac == Some(mac)),
                mtu_bytes: link.mtu_bytes,
                up: link.up,
                carrier: link.carrier,
                addresses: addresses.remove(&link.index).unwrap_or_default(),
                attached_to: upper.and_then(|upper| names.get(&upper)).cloned(),
                taken: link.taken.or(listened).map(str::to_owned),
                netns: netns.clone(),
                counters: NetdevCounters {
                    rx_packets: link.stats.rx_packets,
                    tx_packets: link.stats.tx_packets,
                    rx_bytes: link.stats.rx_bytes,
                    tx_bytes: link.stats.tx_bytes,
                },
                name: link.name,
            };
            let device = link.pci.and_then(|address| address.parse().ok());
            Link {
                device,
                representor: link.port.is_some_and(|port| is_representor(&port)),
                netdev,
            }
        };
        Ok(links.into_iter().map(complete).collect())
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
        self.socket.acknowledged(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Changes an interface.
    pub fn change(&mut self, index: u32, change: &Change) -> Result<Outcome> {
        self.socket.change(index, change)
    }

    /// Moves an interface into the namespace of an open file, under `name`.
    pub fn move_to_netns(&mut self, index: u32, netns: RawFd, name: &str) -> Result<Outcome> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::NetNsFd(netns));
        message.attributes.push(LinkAttribute::IfName(name.into()));
        self.socket.acknowledged(RouteNetlinkMessage::SetLink(message), 0)
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
    fn representors_are_told_from_ports() {
        assert!(is_representor("pf0vf12"));
        for port in ["p0", "pf0", "pf0vf", "pfvf1", "pf0sf1", "vf1"] {
            assert!(!is_representor(port), "{port}");
        }
    }
}
