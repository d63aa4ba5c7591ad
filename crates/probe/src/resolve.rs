//! Resolves the addresses of frames.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::netlink::{Mac, Netlink};
use crate::netns::{IfSpec, run_in};
use crate::stop;
use crate::{clock, wire};

/// The requested destination MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MacChoice {
    /// This address.
    Given(Mac),
    /// The receiving interface's.
    Receiver,
}

/// Parses `rx` or a MAC address as `02:00:00:00:00:01`.
pub fn parse_mac_choice(text: &str) -> std::result::Result<MacChoice, String> {
    if text == "rx" {
        return Ok(MacChoice::Receiver);
    }
    let wrong = |_| "give six bytes as 02:00:00:00:00:01, or rx".to_owned();
    text.parse().map(MacChoice::Given).map_err(wrong)
}

/// The addresses of frames and the MTU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// MAC address of the sending interface.
    pub source_mac: Mac,
    /// MAC address of the next hop.
    pub destination_mac: Mac,
    /// Source IP address.
    pub source: IpAddr,
    /// MTU of the sending interface [bytes].
    pub mtu: u32,
}

/// How long the kernel may take to resolve a trial's next hop [ns].
const RESOLVE_NS: i64 = 3_000_000_000;
/// Interval of the packets that make it do so [ns].
const SOLICIT_NS: i64 = 100_000_000;

/// The MAC address of `neighbour`, which `solicit` makes the kernel resolve; none within `patience_ns`,
/// or when a signal comes.
///
/// # Errors
/// That of `solicit`.
pub fn next_hop(
    netlink: &mut Netlink,
    index: u32,
    neighbour: IpAddr,
    patience_ns: i64,
    mut solicit: impl FnMut() -> Result<()>,
) -> Result<Option<Mac>> {
    let begin_ns = clock::monotonic_ns();
    let mut next_ns = begin_ns;
    loop {
        let now = clock::monotonic_ns();
        if now >= next_ns {
            solicit()?;
            next_ns = now + SOLICIT_NS;
        }
        let mac = netlink.neighbour(index, neighbour)?;
        if mac.is_some() || now - begin_ns > patience_ns || stop::requested() {
            return Ok(mac);
        }
        clock::pause(Duration::from_millis(2));
    }
}

/// Resolves MAC and IP addresses for frames from `tx` to `dst`; `rx` is the receiver, if known.
///
/// # Errors
/// No such interface, it is not Ethernet, no route to `dst` by it, or no neighbour answers.
pub fn resolve(
    tx: &IfSpec,
    rx: Option<&IfSpec>,
    src: Option<IpAddr>,
    dst: IpAddr,
    dst_port: u16,
    choice: Option<MacChoice>,
) -> Result<Route> {
    let chosen_mac = match (choice, rx) {
        (Some(MacChoice::Given(mac)), _) => Some(mac),
        (Some(MacChoice::Receiver), Some(rx)) => Some(run_in(rx.netns.as_ref(), || {
            let link = Netlink::open()?.link_at(&rx.interface, rx)?;
            link.mac.ok_or_else(|| not_ethernet(rx))
        })?),
        (Some(MacChoice::Receiver), None) => {
            return Err(Error::bad_input(
                "--dst-mac rx names a receiving interface, which is not known here",
                "give the MAC address itself, or leave --dst-mac out",
            ));
        }
        (None, _) => None,
    };
    run_in(tx.netns.as_ref(), || {
        let mut netlink = Netlink::open()?;
        let link = netlink.link_at(&tx.interface, tx)?;
        let source_mac = link.mac.ok_or_else(|| not_ethernet(tx))?;
        // Looked up for one interface, IPv4 takes any address for a neighbour; so look up without one
        // first, which fails when there is no route.
        let hop = match netlink.socket.route(dst, None, None)? {
            Some(hop) if hop.interface_index == link.index => Some(hop),
            Some(_) => netlink.socket.route(dst, None, Some(link.index))?,
            None => None,
        };
        let no_route = || {
            Error::failed(
                format!("there is no route to {dst} by {tx}"),
                format!(
                    "add one (ip route add … dev {}), or give --src and --dst-mac",
                    tx.interface
                ),
            )
        };
        let source = match src.or(hop.as_ref().and_then(|hop| hop.source)) {
            Some(source) => source,
            None => return Err(no_route()),
        };
        let route =
            |destination_mac| Route { source_mac, destination_mac, source, mtu: link.mtu_bytes };
        if let Some(mac) = chosen_mac {
            return Ok(route(mac));
        }
        let hop = hop.filter(|hop| hop.interface_index == link.index).ok_or_else(no_route)?;
        let neighbour = hop.gateway.unwrap_or(dst);
        let to = SocketAddr::new(dst, dst_port);
        let mac = next_hop(&mut netlink, link.index, neighbour, RESOLVE_NS, || {
            solicit(&tx.interface, to);
            Ok(())
        })?;
        if let Some(mac) = mac {
            return Ok(route(mac));
        }
        let protocol = if dst.is_ipv4() { "ARP" } else { "neighbour discovery" };
        Err(Error::failed(
            format!("nobody on {tx} answers {protocol} for {neighbour}"),
            "is the other side up, with that address? Else give --dst-mac MAC (or --dst-mac rx)",
        ))
    })
}

fn not_ethernet(interface: &IfSpec) -> Error {
    Error::bad_input(
        format!("{interface} is not an Ethernet interface"),
        "trials send Ethernet frames: name a veth, bridge, macvlan or NIC",
    )
}

/// Sends an empty datagram to `to` by `interface`, so that the kernel resolves the neighbour. The sink
/// holds its port, so that nothing answers. A failure shows as a missing neighbour.
fn solicit(interface: &str, to: SocketAddr) {
    let Ok(socket) = UdpSocket::bind((wire::unspecified(to.is_ipv6()), 0)) else { return };
    let name = std::ffi::OsString::from(interface);
    let _ = nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::BindToDevice, &name);
    let _ = socket.send_to(&[], to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_address_or_the_receivers_can_be_chosen() {
        assert_eq!(parse_mac_choice("rx"), Ok(MacChoice::Receiver));
        let given = MacChoice::Given(Mac([2, 0, 0, 0, 0, 1]));
        assert_eq!(parse_mac_choice("02:00:00:00:00:01"), Ok(given));
        for text in ["", "02:00", "02:00:00:00:00:0g", "+2:00:00:00:00:01", "02:00:00:00:00:01:02"]
        {
            assert!(parse_mac_choice(text).is_err(), "{text:?}");
        }
    }
}
