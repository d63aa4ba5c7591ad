//! Filters on the host that a VF would bypass: VLAN filtering, isolated and locked ports, rules of nftables
//! (with ebtables and nwfilter) on bridges and devices, filters and limits of tc on ports and PFs.

use std::collections::{BTreeMap, BTreeSet};

use pw_linux::nftables::{BridgeFilter, bridge_filters};

use crate::daemon::net::{Link, Net};

/// Queueing disciplines that neither drop, mark, delay nor redirect frames by rules of their own.
const HARMLESS: [&str; 10] =
    ["noqueue", "pfifo_fast", "pfifo", "bfifo", "fq", "fq_codel", "mq", "mqprio", "multiq", "sfq"];

/// Filters by interface, and the interfaces that existed when they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters {
    /// Indices of those interfaces.
    pub read: BTreeSet<u32>,
    bridges: BTreeMap<String, String>,
    interfaces: BTreeMap<String, String>,
    rules: Vec<BridgeFilter>,
    /// Why filters are unknown.
    unknown: Option<String>,
}

impl Filters {
    /// The current filters on these interfaces of the host.
    pub fn read<'a>(net: &mut Net, links: impl Iterator<Item = &'a Link>) -> Self {
        let mut filters = Self::default();
        let mut names = BTreeMap::new();
        for link in links {
            filters.read.insert(link.index);
            names.insert(link.index, link.name.clone());
            if link.filters_vlans {
                let what = format!("the VLAN filtering of its bridge {}", link.name);
                filters.bridges.insert(link.name.clone(), what);
            }
            if let Some(how) = link.confined {
                let what = format!("the confinement of its port {} ({how})", link.name);
                filters.interfaces.insert(link.name.clone(), what);
            }
        }
        match net.disciplines() {
            Ok(kinds) => {
                let kinds = kinds.into_iter().filter(|(_, kind)| !HARMLESS.contains(&&**kind));
                for (index, kind) in kinds {
                    let Some(name) = names.get(&index) else { continue };
                    let what = format!("what tc does on {name} ({kind})");
                    filters.interfaces.entry(name.clone()).or_insert(what);
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
        let vlans = self.bridges.get(bridge).filter(|_| !tagged);
        // A PF that is isolated confines other ports, not this one.
        let on_port = || self.interfaces.get(port);
        let on_pfs = || {
            let all = pfs.iter().filter_map(|pf| self.interfaces.get(*pf));
            all.into_iter().find(|what| !what.starts_with("the confinement"))
        };
        if let Some(what) = vlans.or_else(on_port).or_else(on_pfs) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::testing::in_namespace;

    /// What a guest behind `pwport` of `pwbr`, whose way to the wire is `pwwire`, would bypass once these
    /// commands have run in a namespace of their own; None: they did not, on this machine.
    fn bypassed(script: &str) -> Option<Option<String>> {
        let set_up = "ip link add name pwbr type bridge; ip link add pwport type veth peer pwinside
             ip link add pwwire type veth peer pwfar; ip link set pwport master pwbr
             ip link set pwwire master pwbr";
        in_namespace(&format!("{set_up}\n{script}"), || {
            let mut net = Net::open().expect("Linux");
            let links = net.all().expect("interfaces");
            let filters = Filters::read(&mut net, links.iter());
            filters.bypassed("pwbr", "pwport", &["pwwire"], false)
        })
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
            ("tc qdisc add dev pwport clsact", Some("tc does on pwport (clsact)")),
            ("tc qdisc add dev pwport root tbf rate 1mbit burst 10k latency 1s", Some("(tbf)")),
            ("tc qdisc add dev pwport root prio", Some("(prio)")),
            ("tc qdisc add dev pwport root netem loss 1%", Some("(netem)")),
            ("tc qdisc add dev pwport root cake bandwidth 1mbit", Some("(cake)")),
            ("tc qdisc add dev pwwire clsact", Some("tc does on pwwire (clsact)")),
            ("tc qdisc add dev pwport root fq_codel", None),
            ("tc qdisc add dev pwinside clsact", None),
            (
                "nft 'add table netdev t; add chain netdev t c { type filter hook ingress device pwport \
                 priority 0; policy drop; }'",
                Some("(t c)"),
            ),
            (
                "nft 'add table netdev t; add chain netdev t c { type filter hook ingress device pwinside \
                 priority 0; policy drop; }'",
                None,
            ),
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
            let Some(seen) = bypassed(script) else { continue };
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
