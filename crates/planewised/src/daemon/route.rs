//! A route, kept as the kernel told it while its interface is in a bond.

use std::fmt;
use std::net::IpAddr;

use netlink_packet_core::{Emitable, Parseable};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteMessage, RouteNextHopFlags, RouteProtocol,
};
use pw_error::{Error, Result};
use pw_linux::rtnetlink::ip;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A kept route: all of it but its interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route(RouteMessage);

impl Route {
    /// The route in this message, if it leads by this interface and the kernel did not make it itself.
    ///
    /// # Errors
    /// It cannot be kept: it leads by other interfaces, too, or by a nexthop object, which goes with its
    /// interface.
    pub fn by(index: u32, mut message: RouteMessage) -> Result<Option<Self>> {
        let hops = message.attributes.iter().flat_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => vec![*index],
            RouteAttribute::MultiPath(hops) => hops.iter().map(|hop| hop.interface_index).collect(),
            _ => Vec::new(),
        });
        let hops: Vec<u32> = hops.collect();
        if !hops.contains(&index) || message.header.protocol == RouteProtocol::Kernel {
            return Ok(None);
        }
        let object = |attribute: &RouteAttribute| matches!(attribute, RouteAttribute::NhId(_));
        let what = match () {
            () if hops.iter().any(|hop| *hop != index) => "has paths by several interfaces",
            () if message.attributes.iter().any(object) => "uses a nexthop object",
            () => {
                message.header.flags &= RouteFlags::Onlink;
                message.attributes.retain(|one| !matches!(one, RouteAttribute::CacheInfo(_)));
                return Ok(Some(Self(message)));
            }
        };
        Err(Error::failed(
            format!("its route {} {what}, which a bond would not keep", Self(message)),
            "replace that route by one of a single interface",
        ))
    }

    /// Does it lead via a router?
    pub fn has_router(&self) -> bool {
        gateways(&self.0).next().is_some()
            || self.0.attributes.iter().any(|one| matches!(one, RouteAttribute::Via(_)))
    }

    /// The message that adds it by this interface; `on_link`: its routers are on the link.
    pub fn message(&self, index: u32, on_link: bool) -> RouteMessage {
        let mut message = self.0.clone();
        for attribute in &mut message.attributes {
            match attribute {
                RouteAttribute::Oif(by) => *by = index,
                RouteAttribute::MultiPath(hops) => {
                    for hop in hops {
                        hop.interface_index = index;
                        hop.flags &= RouteNextHopFlags::Onlink;
                        if on_link {
                            hop.flags |= RouteNextHopFlags::Onlink;
                        }
                    }
                }
                _ => {}
            }
        }
        if on_link {
            message.header.flags |= RouteFlags::Onlink;
        }
        message
    }
}

/// The routers of a route.
pub fn gateways(route: &RouteMessage) -> impl Iterator<Item = IpAddr> {
    let of = |attributes: &[RouteAttribute]| {
        let gateways = attributes.iter().filter_map(|attribute| match attribute {
            RouteAttribute::Gateway(address) => ip(address),
            _ => None,
        });
        gateways.collect::<Vec<_>>()
    };
    let hops = route.attributes.iter().flat_map(move |attribute| match attribute {
        RouteAttribute::MultiPath(hops) => {
            hops.iter().flat_map(|hop| of(&hop.attributes)).collect()
        }
        _ => Vec::new(),
    });
    of(&route.attributes).into_iter().chain(hops)
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = self.0.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Destination(to) => ip(to),
            _ => None,
        });
        match to {
            Some(to) => write!(f, "{to}/{}", self.0.header.destination_prefix_length),
            None => f.write_str("default"),
        }
    }
}

impl Serialize for Route {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut bytes = vec![0; self.0.buffer_len()];
        self.0.emit(&mut bytes);
        bytes.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Route {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(from)?;
        RouteMessage::parse(&bytes).map(Self).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::net::Net;
    use crate::daemon::testing::{in_namespace, shell};

    const GUEST: &str = "
        ip link add eth0 type veth peer name eth1 && ip link set eth1 up && ip link set eth0 up
        ip address add 198.18.7.2/24 dev eth0 && ip address add 198.18.10.2/24 dev eth0
    ";
    const ROUTES: &str = "
        ip route add default via 198.18.7.1
        ip route add 198.18.9.0/24 via 198.18.7.1 metric 7 proto static
        ip route add 198.18.10.77 dev eth0 scope link proto bird
        ip route add 198.18.11.0/24 via 198.18.10.77 src 198.18.10.2 proto dhcp
        ip route add 198.18.12.0/24 via 198.18.99.1 dev eth0 onlink
        ip route add 198.18.13.0/24 dev eth0 scope global proto 42
        # The way to this router is another route, which the kernel tells later.
        ip route add 198.18.99.9 dev eth0
        ip route add 198.18.14.0/24 via 198.18.99.9 tos 0x10
        # Routing by source, as Multus sets it up, and two routers at once.
        ip route add default via 198.18.7.1 table 100
        ip route add 198.18.15.0/24 via 198.18.7.1 mtu lock 1400 advmss 1200 table 1000
        ip route add 198.18.16.0/24 nexthop via 198.18.7.1 weight 3 nexthop via 198.18.7.9
    ";

    fn eth0(net: &mut Net) -> u32 {
        net.named("eth0").expect("answered").expect("just made").index
    }

    /// What iproute2 says of the routes after this script, and after they were lost and added again.
    fn lost_and_added(script: &str) -> Option<(String, String)> {
        in_namespace(&format!("{GUEST}{script}"), || {
            let told = || {
                shell(
                    "ip -4 route show table all | grep -v 'table local'; ip -6 route show | grep -v fe80 || true",
                )
            };
            let before = told().expect("told");
            let mut net = Net::open().expect("Linux");
            let index = eth0(&mut net);
            let routes: Vec<_> = net.routes(index).expect("told").into_iter().flatten().collect();
            shell(&format!("ip link del eth0; {GUEST}")).expect("made again");
            let index = eth0(&mut net);
            for route in &routes {
                net.add_route(index, route).expect("taken");
            }
            (before, told().expect("told"))
        })
    }

    #[test]
    fn routes_that_were_lost_with_their_interface_are_added_as_they_were() {
        let Some((before, after)) = lost_and_added(ROUTES) else { return };
        assert_eq!(before.lines().count(), 15, "{before}");
        assert_eq!(after, before);
    }

    #[test]
    fn a_route_whose_router_nothing_leads_to_any_more_is_added_as_one_on_the_link() {
        let script = "
            ip address add 198.18.20.2/24 dev eth0 && ip address add 2001:2::2/64 dev eth0 nodad
            ip route add 198.18.21.0/24 via 198.18.20.1 metric 7
            ip route add 2001:2:1::/48 via 2001:2::1
            ip address del 198.18.20.2/24 dev eth0 && ip address del 2001:2::2/64 dev eth0
        ";
        let Some((before, after)) = lost_and_added(script) else { return };
        assert_eq!(before.lines().count(), 4, "{before}");
        assert_eq!(after.matches(" onlink").count(), 2, "{after}");
        assert_eq!(after.replace(" onlink", ""), before);
    }

    #[test]
    fn a_route_survives_writing_and_reading_and_one_that_cannot_be_kept_is_named() {
        in_namespace(&format!("{GUEST}{ROUTES}"), || {
            let mut net = Net::open().expect("Linux");
            let index = eth0(&mut net);
            let routes: Vec<_> = net.routes(index).expect("told").into_iter().flatten().collect();
            let text = serde_json::to_string(&routes).expect("JSON");
            assert_eq!(serde_json::from_str::<Vec<Route>>(&text).expect("read"), routes);
            shell(
                "ip address add 198.18.30.2/24 dev eth1
                 ip route add 198.18.40.0/24 nexthop via 198.18.7.1 nexthop via 198.18.30.1",
            )
            .expect("made");
            let routes = net.routes(index).expect("told");
            let error = routes.into_iter().find_map(Result::err).expect("by two interfaces");
            let what = "its route 198.18.40.0/24 has paths by several interfaces";
            assert!(error.what.starts_with(what), "{}", error.what);
        });
    }
}
