//! Filters on the host's bridges that a VF would bypass: VLAN filtering, isolated and locked ports, rules of
//! nftables (with ebtables and nwfilter) on bridges, filters and limits of tc on ports. Reads only; knows
//! nothing of guests.

use std::collections::BTreeMap;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcMessage};
use pw_error::Result;
use pw_linux::nftables::{BridgeFilter, bridge_filters};
use pw_linux::rtnetlink::RouteSocket;

use crate::daemon::net::Link;

/// Queueing disciplines that drop, mark, delay or redirect frames.
const DISCIPLINES: [&str; 7] = ["clsact", "ingress", "htb", "hfsc", "tbf", "drr", "qfq"];

/// Filters by interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters {
    bridges: BTreeMap<String, String>,
    ports: BTreeMap<String, String>,
    rules: Vec<BridgeFilter>,
    /// Why filters are unknown.
    unknown: Option<String>,
}

impl Filters {
    /// The current filters on these interfaces of the host.
    pub fn read(links: &[Link]) -> Self {
        let mut filters = Self::default();
        for link in links {
            if link.filters_vlans {
                let what = format!("the VLAN filtering of its bridge {}", link.name);
                filters.bridges.insert(link.name.clone(), what);
            }
            if let Some(how) = link.confined {
                let what = format!("the confinement of its port {} ({how})", link.name);
                filters.ports.insert(link.name.clone(), what);
            }
        }
        match disciplines() {
            Ok(kinds) => {
                for (index, kind) in kinds {
                    let port = links.iter().find(|link| link.index == index);
                    let Some(port) = port.filter(|link| link.master.is_some()) else { continue };
                    let what = format!("what tc does on its port {} ({kind})", port.name);
                    filters.ports.entry(port.name.clone()).or_insert(what);
                }
            }
            Err(error) => filters.unknown = Some(error.what),
        }
        match bridge_filters() {
            Ok(rules) => filters.rules = rules,
            Err(error) => filters.unknown = Some(error.what),
        }
        filters
    }

    /// The filter that a guest behind this port of this bridge would bypass by a VF; `pfs` are the bridge's
    /// PFs. A guest whose VF the PF tags with its VLAN (`tagged`) does not bypass VLAN filtering.
    pub fn bypassed(&self, bridge: &str, port: &str, pfs: &[&str], tagged: bool) -> Option<String> {
        if let Some(what) = self.bridges.get(bridge).filter(|_| !tagged) {
            return Some(what.clone());
        }
        if let Some(what) = self.ports.get(port) {
            return Some(what.clone());
        }
        let names: Vec<&str> = [bridge, port].into_iter().chain(pfs.iter().copied()).collect();
        let rule = self.rules.iter().find(|rule| rule.concerns(&names));
        let rule = rule.map(|rule| format!("the rules of nftables on bridges ({})", rule.place));
        rule.or_else(|| {
            self.unknown.as_ref().map(|why| format!("filters that cannot be read: {why}"))
        })
    }
}

/// Interfaces by index that have such a queueing discipline, and its kind.
fn disciplines() -> Result<BTreeMap<u32, String>> {
    let ask = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
    let mut kinds = BTreeMap::new();
    for answer in RouteSocket::open()?.dump(&ask)? {
        let RouteNetlinkMessage::NewQueueDiscipline(message) = answer else { continue };
        let kind = message.attributes.iter().find_map(|attribute| match attribute {
            TcAttribute::Kind(kind) => Some(kind.as_str()),
            _ => None,
        });
        let kind = kind.filter(|kind| DISCIPLINES.contains(kind));
        if let (Some(kind), Ok(index)) = (kind, u32::try_from(message.header.index)) {
            kinds.insert(index, kind.to_owned());
        }
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::daemon::net::Net;

    /// What a guest behind `pwport` of `pwbr`, whose way to the wire is `pwwire`, would bypass once these
    /// commands have run in a namespace of their own; None: they did not, on this machine.
    fn bypassed(script: &str) -> Option<Option<String>> {
        let set_up = "ip link add name pwbr type bridge && ip link add pwport type veth peer pwinside \
             && ip link add pwwire type veth peer pwfar && ip link set pwport master pwbr \
             && ip link set pwwire master pwbr";
        let look = || {
            unshare(CloneFlags::CLONE_NEWNET).ok()?;
            let run = |text: &str| Command::new("sh").args(["-ec", text]).status();
            for text in [set_up, script] {
                if !run(text).is_ok_and(|ended| ended.success()) {
                    return None;
                }
            }
            let links = Net::open().and_then(|mut net| net.all()).expect("interfaces");
            Some(Filters::read(&links).bypassed("pwbr", "pwport", &["pwwire"], false))
        };
        // A thread of its own keeps the namespace to itself.
        std::thread::scope(|scope| scope.spawn(look).join().expect("no panic"))
    }

    #[test]
    fn whatever_a_vf_would_bypass_is_seen_and_what_is_about_others_is_not() {
        let cases = [
            ("true", None),
            (
                "ip link set pwbr type bridge vlan_filtering 1",
                Some("the VLAN filtering of its bridge pwbr"),
            ),
            ("bridge link set dev pwport isolated on", Some("its port pwport (isolated)")),
            ("bridge link set dev pwwire isolated on", None),
            ("bridge link set dev pwport locked on", Some("its port pwport (locked)")),
            ("tc qdisc add dev pwport clsact", Some("tc does on its port pwport (clsact)")),
            ("tc qdisc add dev pwport root tbf rate 1mbit burst 10k latency 1s", Some("(tbf)")),
            ("tc qdisc add dev pwinside clsact", None),
            ("ebtables -A FORWARD -p IPv4 -j DROP", Some("nftables on bridges (filter FORWARD)")),
            ("ebtables -A FORWARD -i pwport -j DROP", Some("filter FORWARD")),
            ("ebtables -A FORWARD -o pwwire -j DROP", Some("filter FORWARD")),
            ("ebtables -A FORWARD -i pw+ -j DROP", Some("filter FORWARD")),
            ("ebtables -A FORWARD -i ! other -j DROP", Some("filter FORWARD")),
            ("ebtables -P FORWARD DROP", Some("filter FORWARD")),
            // nwfilter of another guest: its rules are met by way of its own port alone.
            (
                "ebtables -t nat -N of-other && ebtables -t nat -A of-other -j DROP \
              && ebtables -t nat -A PREROUTING -i other -j of-other",
                None,
            ),
            ("ebtables -A FORWARD -i other -j DROP", None),
        ];
        for (script, wanted) in cases {
            let Some(seen) = bypassed(script) else {
                eprintln!("left out, as this machine cannot: {script}");
                continue;
            };
            match wanted {
                None => assert_eq!(seen, None, "{script}"),
                Some(what) => {
                    assert!(
                        seen.as_ref().is_some_and(|seen| seen.contains(what)),
                        "{script}: {seen:?}"
                    );
                }
            }
        }
    }
}
