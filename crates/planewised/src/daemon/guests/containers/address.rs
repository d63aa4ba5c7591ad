//! Checks that a guest's address is its own. Entries in bridges and PFs last, so they must never hold an
//! address that belongs to another station.

use std::collections::BTreeSet;

use pw_alloc::model::{GuestId, Mac};

use crate::daemon::net::{FdbEntry, Link};
use crate::daemon::pool::PoolView;

/// A host's addresses.
pub(super) struct Addresses<'a> {
    /// The host's interfaces.
    pub links: &'a [Link],
    /// Its forwarding entries.
    pub forwards: &'a [FdbEntry],
    /// Addresses of its gateways, and of neighbours that are not behind the guest's bridge.
    pub stations: &'a BTreeSet<Mac>,
    /// The managed guests.
    pub guests: &'a [(GuestId, Mac)],
    pub pool: &'a PoolView,
}

impl Addresses<'_> {
    /// Why this address is not that of the guest behind this port; None: no conflict. `assigned`: addresses
    /// that the guest was assigned; empty: unknown.
    pub fn conflict(
        &self,
        id: &GuestId,
        mac: Mac,
        assigned: &[Mac],
        port: &Link,
    ) -> Option<String> {
        if !assigned.is_empty() && !assigned.contains(&mac) {
            let assigned: Vec<String> = assigned.iter().map(ToString::to_string).collect();
            return Some(format!("it was given {}", assigned.join(" or ")));
        }
        if let Some((other, _)) =
            self.guests.iter().find(|(other, its_mac)| *its_mac == mac && other != id)
        {
            return Some(format!("it is the guest {other}'s"));
        }
        // A VF that was just returned may still have its last guest's address.
        let of_pool = |link: &Link| {
            let vfs = || self.pool.vfs.values().map(|vf| vf.address.to_string());
            link.pci.as_ref().is_some_and(|device| vfs().any(|vf| vf == *device))
        };
        let same = |link: &&Link| link.mac == Some(mac) && !of_pool(link);
        if let Some(link) = self.links.iter().find(same) {
            return Some(format!("it is the host's interface {}'s", link.name));
        }
        if self.stations.contains(&mac) {
            return Some("it is the host's gateway's or a neighbour's".to_owned());
        }
        // NICs hand broadcasts back to the PF that sent them, so that a bridge learns its own guests behind
        // the PF.
        let is_pf = |index: u32| self.pool.pfs.values().any(|pf| pf.index == index);
        let elsewhere = |entry: &&FdbEntry| {
            let other = self.links.iter().find(|link| link.index == entry.index);
            entry.mac == mac
                && entry.learned
                && entry.index != port.index
                && !is_pf(entry.index)
                && other.is_some_and(|other| {
                    other.controller.is_some() && other.controller == port.controller
                })
        };
        let entry = self.forwards.iter().find(elsewhere)?;
        let port = self.links.iter().find(|link| link.index == entry.index)?;
        Some(format!("frames from it come by {}", port.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::pool::PoolVf;
    use crate::daemon::testing::{link, pf};

    const MINE: Mac = Mac([2, 0x70, 0, 0, 0, 1]);

    /// A host with a bridge, a PF, the guest's port and another one.
    fn conflict(
        change: impl FnOnce(&mut Vec<Link>, &mut Vec<FdbEntry>, &mut PoolView),
    ) -> Option<String> {
        let mut links = vec![
            link(1, "pf0", "", Some(5)),
            link(2, "veth1", "veth", Some(5)),
            link(3, "tap0", "tun", Some(5)),
            link(4, "tap1", "tun", Some(6)),
            link(5, "br0", "bridge", None),
        ];
        let pfs = [("pf0".into(), pf(1, Some("br0")))].into();
        let mut pool = PoolView { pfs, ..PoolView::default() };
        let mut forwards = Vec::new();
        change(&mut links, &mut forwards, &mut pool);
        let guests = [("web".into(), MINE), ("db".into(), Mac([2, 0x70, 0, 0, 0, 2]))];
        let addresses = Addresses {
            links: &links,
            forwards: &forwards,
            stations: &[Mac([2, 0x70, 0, 0, 0, 9])].into(),
            guests: &guests,
            pool: &pool,
        };
        addresses.conflict(&"web".into(), MINE, &[], &links[1])
    }

    fn learned(index: u32) -> FdbEntry {
        FdbEntry { index, mac: MINE, is_self: false, permanent: false, learned: true }
    }

    #[test]
    fn an_address_of_the_hosts_or_that_comes_by_another_port_is_not_the_guests() {
        assert_eq!(conflict(|_, _, _| ()), None);
        let host = conflict(|links, _, _| links[4].mac = Some(MINE));
        assert_eq!(host.as_deref(), Some("it is the host's interface br0's"));
        let elsewhere = conflict(|_, forwards, _| forwards.push(learned(3)));
        assert_eq!(elsewhere.as_deref(), Some("frames from it come by tap0"));
        // By its own port; by the PF, which hears its own broadcasts; on another bridge; set by us.
        let set = FdbEntry { learned: false, ..learned(3) };
        for entry in [learned(2), learned(1), learned(4), set] {
            assert_eq!(conflict(|_, forwards, _| forwards.push(entry)), None, "{entry:?}");
        }
    }

    #[test]
    fn a_vf_that_has_just_come_home_may_have_the_address_of_its_last_guest() {
        let come_home = |links: &mut Vec<Link>, pool: &mut PoolView| {
            let vf = Link { pci: Some("0000:01:10.0".into()), ..link(9, "vf0", "", None) };
            links.push(Link { mac: Some(MINE), ..vf });
            let unused = PoolVf::unused("0000:01:10.0".parse().expect("valid"));
            let seen = PoolVf { mac: MINE, ..unused };
            pool.vfs.insert(pw_alloc::model::VfId::new("pf0", 0), seen);
        };
        assert_eq!(conflict(|links, _, pool| come_home(links, pool)), None);
    }

    #[test]
    fn an_address_that_was_not_given_or_is_another_guests_or_the_gateways_is_refused() {
        let pool = PoolView::default();
        let guests = [("db".into(), Mac([2, 0x70, 0, 0, 0, 2]))];
        let addresses = Addresses {
            links: &[],
            forwards: &[],
            stations: &[Mac([2, 0x70, 0, 0, 0, 9])].into(),
            guests: &guests,
            pool: &pool,
        };
        let port = link(2, "veth1", "veth", Some(5));
        let conflict = |mac, given: &[Mac]| addresses.conflict(&"web".into(), mac, given, &port);
        assert_eq!(conflict(MINE, &[MINE]), None);
        let other = Mac([2, 0x70, 0, 0, 0, 7]);
        assert_eq!(conflict(MINE, &[other]), Some(format!("it was given {other}")));
        assert_eq!(conflict(guests[0].1, &[]).as_deref(), Some("it is the guest db's"));
        assert_eq!(
            conflict(Mac([2, 0x70, 0, 0, 0, 9]), &[]).as_deref(),
            Some("it is the host's gateway's or a neighbour's")
        );
    }
}
