//! A route of the main table, as it is kept while its interface is elsewhere. Knows no socket.

use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};

/// The kernel's main table.
pub const MAIN: u8 = 254;

/// A route as it is kept: to where, by whom.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Route {
    /// To these addresses; none: to all.
    pub to: Option<IpAddr>,
    /// Length of the prefix [bits].
    pub prefix: u8,
    /// By this router; none: they are on the link.
    pub via: Option<IpAddr>,
    /// From this address.
    pub source: Option<IpAddr>,
    /// The lower, the better.
    pub metric: Option<u32>,
    /// Addresses of IPv6.
    pub six: bool,
}

impl Route {
    /// Of a message; none where an address is of another kind.
    pub fn read(message: &RouteMessage) -> Option<Self> {
        let mut route = Self {
            to: None,
            prefix: message.header.destination_prefix_length,
            via: None,
            source: None,
            metric: None,
            six: message.header.address_family == AddressFamily::Inet6,
        };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(to) => route.to = Some(plain(to)?),
                RouteAttribute::Gateway(via) => route.via = Some(plain(via)?),
                RouteAttribute::PrefSource(source) => route.source = plain(source),
                RouteAttribute::Priority(metric) => route.metric = Some(*metric),
                _ => {}
            }
        }
        Some(route)
    }

    /// The message that adds it by this interface.
    pub fn message(&self, index: u32) -> RouteMessage {
        let address = |address: IpAddr| match address {
            IpAddr::V4(address) => RouteAddress::Inet(address),
            IpAddr::V6(address) => RouteAddress::Inet6(address),
        };
        let mut message = RouteMessage::default();
        message.header.address_family =
            if self.six { AddressFamily::Inet6 } else { AddressFamily::Inet };
        message.header.destination_prefix_length = self.prefix;
        message.header.table = MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        if self.via.is_none() && !self.six {
            message.header.scope = RouteScope::Link;
        }
        message.attributes.push(RouteAttribute::Oif(index));
        message.attributes.extend(self.to.map(|to| RouteAttribute::Destination(address(to))));
        message.attributes.extend(self.via.map(|via| RouteAttribute::Gateway(address(via))));
        message
            .attributes
            .extend(self.source.map(|from| RouteAttribute::PrefSource(address(from))));
        message.attributes.extend(self.metric.map(RouteAttribute::Priority));
        message
    }
}

fn plain(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            },
            Route {
                to: Some("2001:2::".parse().expect("valid")),
                prefix: 48,
                via: None,
                source: Some("2001:2::1".parse().expect("valid")),
                metric: None,
                six: true,
            },
        ];
        for route in routes {
            assert_eq!(Route::read(&route.message(3)), Some(route));
        }
    }
}
