//! A route of the main table, kept while its interface is in a bond. Knows no socket.

use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use pw_linux::rtnetlink::ip;

/// The kernel's main table.
pub const MAIN: u8 = 254;

/// A kept route.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Route {
    /// Destination; none: the default route.
    pub to: Option<IpAddr>,
    /// Length of the prefix [bits].
    pub prefix: u8,
    /// Gateway; none: on the link.
    pub via: Option<IpAddr>,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// Metric.
    pub metric: Option<u32>,
    /// IPv6.
    pub six: bool,
    /// Its protocol (`RTPROT_…`); 4, static, in records of earlier versions.
    #[serde(default = "static_protocol")]
    pub protocol: u8,
    /// Its scope (`RT_SCOPE_…`); none in records of earlier versions: derived from the gateway.
    #[serde(default)]
    pub scope: Option<u8>,
    /// Type of service.
    #[serde(default)]
    pub service: u8,
    /// The gateway is on the link (RTNH_F_ONLINK).
    #[serde(default)]
    pub on_link: bool,
}

fn static_protocol() -> u8 {
    RouteProtocol::Static.into()
}

impl Route {
    /// Reads a message; none where an address is not of IP.
    pub fn read(message: &RouteMessage) -> Option<Self> {
        let mut route = Self {
            to: None,
            prefix: message.header.destination_prefix_length,
            via: None,
            source: None,
            metric: None,
            six: message.header.address_family == AddressFamily::Inet6,
            protocol: message.header.protocol.into(),
            scope: Some(message.header.scope.into()),
            service: message.header.tos,
            on_link: message.header.flags.contains(RouteFlags::Onlink),
        };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(to) => route.to = Some(ip(to)?),
                RouteAttribute::Gateway(via) => route.via = Some(ip(via)?),
                RouteAttribute::PrefSource(source) => route.source = ip(source),
                RouteAttribute::Priority(metric) => route.metric = Some(*metric),
                _ => {}
            }
        }
        Some(route)
    }

    /// The message that adds it by this interface.
    pub fn message(&self, index: u32) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family =
            if self.six { AddressFamily::Inet6 } else { AddressFamily::Inet };
        message.header.destination_prefix_length = self.prefix;
        message.header.table = MAIN;
        message.header.protocol = self.protocol.into();
        message.header.tos = self.service;
        message.header.kind = RouteType::Unicast;
        message.header.scope = match self.scope {
            Some(scope) => scope.into(),
            None if self.via.is_none() && !self.six => RouteScope::Link,
            None => RouteScope::Universe,
        };
        if self.on_link {
            message.header.flags = RouteFlags::Onlink;
        }
        message.attributes.push(RouteAttribute::Oif(index));
        message.attributes.extend(self.to.map(|to| RouteAttribute::Destination(to.into())));
        message.attributes.extend(self.via.map(|via| RouteAttribute::Gateway(via.into())));
        let source = self.source.map(|from| RouteAttribute::PrefSource(from.into()));
        message.attributes.extend(source);
        message.attributes.extend(self.metric.map(RouteAttribute::Priority));
        message
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::daemon::net::Net;

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
    ";

    /// As iproute2 says it in the calling thread's namespace.
    fn shell(script: &str) -> String {
        let output = Command::new("sh").args(["-ec", script]).output().expect("a shell");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What iproute2 says of the routes after this script, and after they were lost and added again.
    fn lost_and_added(script: &'static str) -> Option<(String, String)> {
        let done = std::thread::spawn(move || {
            if unshare(CloneFlags::CLONE_NEWNET).is_err()
                || Command::new("ip").arg("-V").output().is_err()
            {
                eprintln!("skipped: needs root and ip");
                return None;
            }
            let told =
                || shell("ip route show table main; ip -6 route show | grep -v fe80 || true");
            shell(GUEST);
            shell(script);
            let before = told();
            let mut net = Net::open().expect("Linux");
            let link = net.named("eth0").expect("answered").expect("just made");
            let routes = net.routes(link.index).expect("told");
            shell(&format!("ip link del eth0; {GUEST}"));
            let link = net.named("eth0").expect("answered").expect("just made");
            for route in &routes {
                net.add_route(link.index, route).expect("taken");
            }
            Some((before, told()))
        });
        done.join().expect("no panic")
    }

    #[test]
    fn routes_that_were_lost_with_their_interface_are_added_as_they_were() {
        let Some((before, after)) = lost_and_added(ROUTES) else { return };
        assert_eq!(before.lines().count(), 10, "{before}");
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
    fn a_route_survives_writing_and_reading() {
        let routes = [
            Route {
                to: None,
                prefix: 0,
                via: Some(IpAddr::from([198, 18, 0, 1])),
                source: None,
                metric: Some(7),
                six: false,
                protocol: RouteProtocol::Boot.into(),
                scope: Some(RouteScope::Universe.into()),
                service: 0x10,
                on_link: true,
            },
            Route {
                to: Some("2001:2::".parse().expect("valid")),
                prefix: 48,
                via: None,
                source: Some("2001:2::1".parse().expect("valid")),
                metric: None,
                six: true,
                protocol: RouteProtocol::Dhcp.into(),
                scope: Some(RouteScope::Universe.into()),
                service: 0,
                on_link: false,
            },
        ];
        for route in routes {
            assert_eq!(Route::read(&route.message(3)), Some(route));
        }
    }

    #[test]
    fn a_route_of_a_record_of_before_its_maker_was_kept_is_added_as_it_was_then() {
        let old =
            r#"{"to":"198.18.9.0","prefix":24,"via":null,"source":null,"metric":null,"six":false}"#;
        let route: Route = serde_json::from_str(old).expect("still a route");
        let header = route.message(3).header;
        assert_eq!((header.protocol, header.scope), (RouteProtocol::Static, RouteScope::Link));
    }
}
