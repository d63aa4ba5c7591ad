//! Keeps stations on the host's bridges reachable for guests on VFs: the NIC's embedded switch delivers to the
//! PF only addresses in its filter, so those that the host's bridge has learned behind its guests' ports are
//! added to it, and those of managed machines without a VF. Addresses that executors set are left alone.
//!
//! Whoever can send frames can have a bridge learn any address, so that an address counts only while nothing
//! contradicts it: it is no station of the wire, and was learned behind one port of a guest and nowhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netlink_packet_route::RouteNetlinkMessage;
use pw_alloc::model::{Mac, PfId};
use pw_error::{Error, Result};
use pw_linux::rtnetlink::Monitor;
use serde::{Deserialize, Serialize};

use crate::daemon::disk::{read_json, write_json};
use crate::daemon::net::{FdbEntry, Link, Net};
use crate::daemon::pool::{Addresses, PoolView};
use crate::daemon::status::unix_ms;

/// Between two updates.
const PAUSE: Duration = Duration::from_secs(1);
/// How long an address stays in the filter after the bridge has forgotten it, as bridges do after five
/// minutes of silence.
const REMEMBERED_MS: u64 = 3_600_000;
/// The same after a managed machine is gone: long enough for a restarted daemon to find it again.
const REMEMBERED_RESTING_MS: u64 = 60_000;
/// How long an address must have been behind one port of a guest alone, once it was learned elsewhere.
const CONTESTED: Duration = Duration::from_secs(10);
/// Moves of an address in that time by which it counts as another station's.
const MOVES_MOST: usize = 3;
/// In place of a port: the address is that of a managed machine, which no budget limits.
const RESTING: u32 = u32::MAX;
/// The group of changes of neighbours and forwarding entries (`RTNLGRP_NEIGH`).
const NEIGHBOURS: u32 = 3;

/// An address in the filter of a PF.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Entry {
    pf: PfId,
    mac: Mac,
}

/// When and where the bridge learned an address; as it is on disk, beside the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Learned {
    /// When the bridge last had the address [ms since 1970].
    #[serde(default = "unix_ms")]
    at_unix_ms: u64,
    /// The index of the port behind which it was learned; 0: the bridge itself; or [`RESTING`].
    #[serde(default)]
    port: u32,
}

impl Learned {
    fn now(port: u32) -> Self {
        Self { at_unix_ms: unix_ms(), port }
    }

    fn is_forgotten(&self) -> bool {
        let longest = if self.port == RESTING { REMEMBERED_RESTING_MS } else { REMEMBERED_MS };
        unix_ms().saturating_sub(self.at_unix_ms) > longest
    }
}

/// An address on disk.
#[derive(Serialize, Deserialize)]
struct Saved {
    #[serde(flatten)]
    entry: Entry,
    #[serde(flatten)]
    learned: Learned,
}

/// Most learned addresses in filters. A NIC has few (an 82576 24, with those of its VFs), managed guests
/// need one each, and a guest may send from any number of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Behind one port of a bridge.
    pub per_port: usize,
    /// For one PF.
    pub per_pf: usize,
}

/// The addresses that we added to filters.
#[derive(Debug)]
pub struct Forwarding {
    path: PathBuf,
    entries: BTreeMap<Entry, Learned>,
    contested: Contested,
    budget: Budget,
    next: Instant,
    /// What bridges learn between two updates.
    monitor: Option<Monitor>,
}

/// Addresses behind ports of guests that were learned elsewhere, too: a guest forges another's address, or has
/// moved away.
#[derive(Debug, Default)]
struct Contested {
    /// Those that bridges have elsewhere now.
    elsewhere: BTreeSet<Mac>,
    /// When each was learned elsewhere of late.
    moves: BTreeMap<Mac, Vec<Instant>>,
}

impl Contested {
    /// Notes where addresses are, and where they were since the last call.
    fn note(
        &mut self,
        view: &PoolView,
        known: &BTreeMap<Entry, Learned>,
        (moves, forwards): (&[FdbEntry], &[FdbEntry]),
        now: Instant,
    ) {
        let mut ports: BTreeMap<Mac, u32> =
            known.iter().map(|(entry, learned)| (entry.mac, learned.port)).collect();
        let on_bridge = |entry: &&FdbEntry| {
            let link = view.links.get(&entry.index);
            let bridged = link.is_some_and(|link| view.bridge_of(link).is_some());
            !entry.is_self && entry.learned && bridged
        };
        let is_guests = |index| view.links.get(&index).is_some_and(is_guests);
        for entry in moves.iter().chain(forwards).filter(on_bridge) {
            if is_guests(entry.index) {
                ports.entry(entry.mac).or_insert(entry.index);
            }
        }
        let elsewhere = |entry: &&FdbEntry| {
            ports.get(&entry.mac).is_some_and(|port| *port != entry.index && *port != RESTING)
        };
        self.moves.retain(|mac, at| {
            at.retain(|at| now - *at <= CONTESTED);
            !at.is_empty() && ports.contains_key(mac)
        });
        for entry in moves.iter().filter(on_bridge).filter(elsewhere) {
            let at = self.moves.entry(entry.mac).or_default();
            at.truncate(MOVES_MOST);
            at.push(now);
        }
        let now_elsewhere = forwards.iter().filter(on_bridge).filter(elsewhere);
        self.elsewhere = now_elsewhere.map(|entry| entry.mac).collect();
    }

    /// Was it learned elsewhere at all of late? Then it is not added.
    fn has(&self, mac: Mac) -> bool {
        self.elsewhere.contains(&mac) || self.moves.contains_key(&mac)
    }

    /// Is it elsewhere, or does it move to and fro? Then it is removed. A NIC that hands a station's broadcast
    /// back moves it once each.
    fn disproves(&self, mac: Mac) -> bool {
        self.elsewhere.contains(&mac)
            || self.moves.get(&mac).is_some_and(|at| at.len() >= MOVES_MOST)
    }
}

/// Is it a port of a guest? Anything else, like a NIC or a tunnel, leads to others.
fn is_guests(link: &Link) -> bool {
    matches!(&*link.kind, "veth" | "tun")
}

impl Forwarding {
    /// Reads the addresses of an earlier daemon.
    pub fn new(state_directory: &Path, budget: Budget) -> Self {
        let path = state_directory.join("forwarding.json");
        let saved: Vec<Saved> = read_json(&path).ok().flatten().unwrap_or_default();
        let entries = saved.into_iter().map(|saved| (saved.entry, saved.learned)).collect();
        let (contested, next) = (Contested::default(), Instant::now());
        Self { path, entries, contested, budget, next, monitor: None }
    }

    /// Adds new addresses to the PFs' filters, and removes old ones.
    pub fn settle(&mut self, view: &PoolView, managed: &Addresses) -> Result<()> {
        let now = Instant::now();
        if now < self.next || view.pfs.values().all(|pf| pf.bridge.is_none()) {
            return Ok(());
        }
        self.next = now + PAUSE;
        let mut net = Net::open()?;
        let monitor = match self.monitor.take() {
            Some(monitor) => monitor,
            None => Monitor::open(NEIGHBOURS)?,
        };
        let reported = monitor.drain();
        self.monitor = Some(monitor);
        let forwards = net.fdb_entries()?;
        let bridges = view
            .links
            .values()
            .filter(|link| view.pfs.values().any(|pf| pf.bridge.as_ref() == Some(&link.name)));
        let stations = net.stations(&bridges.map(|bridge| bridge.index).collect())?;
        let moves: Vec<FdbEntry> = reported
            .iter()
            .flatten()
            .filter_map(|message| match message {
                RouteNetlinkMessage::NewNeighbour(message) => FdbEntry::read(message),
                _ => None,
            })
            .collect();
        self.contested.note(view, &self.entries, (&moves, &forwards), now);
        // Of a flood the rest is unknown.
        let complete = reported.is_some();
        let mut required = learned_entries(view, &forwards, managed);
        required
            .retain(|entry, _| !stations.contains(&entry.mac) && !self.contested.has(entry.mac));
        required.extend(resting_entries(managed, view));
        for (entry, port) in &required {
            self.entries.entry(entry.clone()).and_modify(|known| *known = Learned::now(*port));
        }
        let in_filter = |entry: &Entry| {
            let index = view.pfs.get(&entry.pf).map(|pf| pf.index);
            forwards
                .iter()
                .any(|fdb| fdb.is_self && Some(fdb.index) == index && fdb.mac == entry.mac)
        };
        // Entries that others added are left to them, but not those of machines, which executors leave behind.
        let left_by_executor =
            |entry: &Entry, port| port == RESTING && !self.entries.contains_key(entry);
        let required = required
            .into_iter()
            .filter(|(_, port)| complete || *port == RESTING)
            .filter(|(entry, port)| !in_filter(entry) || left_by_executor(entry, *port))
            .collect();
        let (new, crowded) = admit(&self.entries, required, self.budget);
        let expired: Vec<Entry> = self
            .entries
            .iter()
            .filter(|(entry, learned)| {
                let port = learned.port;
                let is_port = port == 0 || port == RESTING || view.links.contains_key(&port);
                learned.is_forgotten()
                    || managed.cared_for.contains(&entry.mac)
                    || port != RESTING && (stations.contains(&entry.mac) || !is_port)
                    || port != RESTING && self.contested.disproves(entry.mac)
            })
            .map(|(entry, _)| entry.clone())
            .collect();
        let crowded = crowded.map_or(Ok(()), |port| {
            let Budget { per_port, per_pf } = self.budget;
            Err(Error::failed(
                format!(
                    "more addresses are behind {} than PFs may take: guests on VFs do not reach the \
                     others by the NIC",
                    view.links.get(&port).map_or("a port of a bridge", |link| &link.name)
                ),
                format!(
                    "if guests need them: raise [pool] learned_per_port (now {per_port}) and learned_per_pf \
                     (now {per_pf})"
                ),
            ))
        });
        if new.is_empty() && expired.is_empty() {
            return crowded;
        }
        let added = new.iter().map(|(entry, port)| (entry.clone(), Learned::now(*port)));
        self.entries.extend(added);
        // Written first: an address that is recorded and not added does no harm.
        self.save()?;
        let mut refused = Ok(());
        for entry in new.keys() {
            if let Some(pf) = view.pfs.get(&entry.pf) {
                refused = refused.and(net.set_nic_filter(entry.mac, pf.index, true));
            }
        }
        for entry in expired {
            if let Some(pf) = view.pfs.get(&entry.pf).filter(|_| !managed.contains(entry.mac)) {
                net.set_nic_filter(entry.mac, pf.index, false)?;
            }
            self.entries.remove(&entry);
        }
        self.save()?;
        refused.and(crowded)
    }

    fn save(&self) -> Result<()> {
        let saved = self
            .entries
            .iter()
            .map(|(entry, learned)| Saved { entry: entry.clone(), learned: *learned });
        write_json(&self.path, &saved.collect::<Vec<_>>()).map_err(|error| {
            Error::failed(format!("cannot write {}", self.path.display()), "make space")
                .caused_by(error)
        })
    }
}

/// The new addresses within the budget, with their ports; and a port that exceeds it. Earlier addresses
/// stay: a late station with many addresses displaces none.
fn admit(
    present: &BTreeMap<Entry, Learned>,
    new: BTreeMap<Entry, u32>,
    budget: Budget,
) -> (BTreeMap<Entry, u32>, Option<u32>) {
    let mut per_port: BTreeMap<(PfId, u32), usize> = BTreeMap::new();
    let mut per_pf: BTreeMap<PfId, usize> = BTreeMap::new();
    let counts = |(entry, learned): &(&Entry, &Learned)| {
        learned.port != RESTING && !new.contains_key(*entry)
    };
    for (entry, learned) in present.iter().filter(counts) {
        *per_port.entry((entry.pf.clone(), learned.port)).or_default() += 1;
        *per_pf.entry(entry.pf.clone()).or_default() += 1;
    }
    let mut crowded = None;
    let mut admitted = BTreeMap::new();
    for (address, port) in new {
        if port == RESTING {
            admitted.insert(address, port);
            continue;
        }
        let behind = per_port.entry((address.pf.clone(), port)).or_default();
        let of_pf = per_pf.entry(address.pf.clone()).or_default();
        // The bridge's own address is a single one, and no guest can choose it.
        if present.contains_key(&address)
            || port == 0
            || *behind < budget.per_port && *of_pf < budget.per_pf
        {
            *behind += 1;
            *of_pf += 1;
            admitted.insert(address, port);
        } else {
            crowded = Some(port);
        }
    }
    (admitted, crowded)
}

/// The entries of managed guests without a VF, on all PFs of their bridges.
fn resting_entries(managed: &Addresses, view: &PoolView) -> impl Iterator<Item = (Entry, u32)> {
    managed.resting.iter().flat_map(|(mac, pfs)| {
        let bridge = |pf: &PfId| view.pfs.get(pf).and_then(|pf| pf.bridge.as_ref());
        let bridges: BTreeSet<&String> = pfs.iter().filter_map(bridge).collect();
        view.pfs
            .iter()
            .filter(move |(_, pf)| pf.bridge.as_ref().is_some_and(|on| bridges.contains(on)))
            .map(|(name, _)| (Entry { pf: name.clone(), mac: *mac }, RESTING))
    })
}

/// Entries for PFs' filters, with their ports: the bridge's own address, and those learned behind ports of
/// guests.
fn learned_entries(
    view: &PoolView,
    forwards: &[FdbEntry],
    managed: &Addresses,
) -> BTreeMap<Entry, u32> {
    let mut entries = BTreeMap::new();
    for (name, pf) in &view.pfs {
        let Some(uplink) = view.links.get(&pf.index) else { continue };
        let Some(bridge) = view.bridge_of(uplink) else { continue };
        let of_guest = |entry: &&FdbEntry| {
            let port = view.links.get(&entry.index);
            port.is_some_and(|port| port.controller == Some(bridge.index) && is_guests(port))
        };
        let learned = forwards.iter().filter(|entry| !entry.is_self && !entry.permanent);
        let learned = learned.filter(of_guest).map(|entry| (entry.mac, entry.index));
        for (mac, port) in learned.chain(bridge.mac.map(|mac| (mac, 0))) {
            if Some(mac) != uplink.mac && !managed.contains(mac) && mac.0[0] & 1 == 0 {
                entries.insert(Entry { pf: name.clone(), mac }, port);
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::daemon::testing::{in_namespace, link, pf};

    fn learned(index: u32, last: u8) -> FdbEntry {
        let mac = Mac([6, 0, 0, 0, 0, last]);
        FdbEntry { index, mac, is_self: false, permanent: false, learned: true }
    }

    const GUEST: Mac = Mac([6, 0, 0, 0, 0, 1]);

    /// A bridge with a PF, another NIC, two guests' ports, and a port of another bridge.
    fn view() -> PoolView {
        let links = [
            link(1, "pf0", "", Some(5)),
            link(2, "tap0", "tun", Some(5)),
            link(3, "other", "veth", Some(6)),
            link(4, "eth1", "", Some(5)),
            link(5, "br0", "bridge", None),
            link(6, "br1", "bridge", None),
            link(7, "veth0", "veth", Some(5)),
        ];
        PoolView {
            pfs: [("pf0".into(), pf(1, Some("br0")))].into(),
            links: Arc::new(links.map(|link| (link.index, link)).into()),
            ..PoolView::default()
        }
    }

    #[test]
    fn a_pf_takes_what_is_learned_behind_ports_of_guests_who_are_not_managed() {
        let group = FdbEntry { mac: Mac([1, 0, 0x5e, 0, 0, 1]), ..learned(2, 0) };
        let forwards = [
            learned(2, 1),
            learned(2, 2),
            learned(1, 3),
            learned(3, 4),
            FdbEntry { is_self: true, ..learned(2, 5) },
            FdbEntry { permanent: true, ..learned(2, 6) },
            learned(4, 7),
            group,
        ];
        let cared_for = BTreeSet::from([Mac([6, 0, 0, 0, 0, 2])]);
        let managed = Addresses { cared_for, ..Addresses::default() };
        let entries = learned_entries(&view(), &forwards, &managed);
        let macs: Vec<Mac> = entries.into_keys().map(|entry| entry.mac).collect();
        assert_eq!(macs, [Mac([2, 0, 0, 0, 0, 5]), GUEST]);
    }

    #[test]
    fn an_address_that_is_learned_elsewhere_too_is_another_stations() {
        let (view, start) = (view(), Instant::now());
        let entry = Entry { pf: "pf0".into(), mac: GUEST };
        let known = BTreeMap::from([(entry, Learned::now(2))]);
        let contested = |moves: &[FdbEntry], forwards: &[FdbEntry]| {
            let mut contested = Contested::default();
            contested.note(&view, &known, (moves, forwards), start);
            (contested.has(GUEST), contested.disproves(GUEST))
        };
        let (own, wire) = (learned(2, 1), learned(1, 1));
        assert_eq!(contested(&[own], &[own]), (false, false), "its own port");
        // The bridge has the forger's, at the moment; the station itself sends now and then.
        assert_eq!(contested(&[wire, own, wire, own, wire, own], &[own]), (true, true));
        assert_eq!(contested(&[wire, own], &[own]), (true, false), "a broadcast that came back");
        assert_eq!(contested(&[], &[wire]), (true, true), "it has moved to another host");
        assert_eq!(contested(&[], &[learned(7, 1)]), (true, true), "it is another guest's by now");
        assert_eq!(contested(&[learned(3, 1)], &[]), (true, false), "another bridge");
        let mut contested = Contested::default();
        contested.note(&view, &known, (&[wire], &[own]), start);
        contested.note(&view, &known, (&[], &[own]), start + CONTESTED + PAUSE);
        assert!(!contested.has(GUEST));
    }

    /// What a container that forges an address does to a real bridge, as far as `settle` looks at it.
    #[test]
    fn no_forged_address_of_the_gateway_or_of_another_port_gets_into_a_filter() {
        let run = |script: &str| {
            let set_up = "
                ip link add br0 up type bridge
                for i in 0 1; do
                    ip link add pf$i up master br0 address 02:00:00:00:0$i:01 type veth peer far$i
                    ip link set far$i up
                done
                ip link add ct0 up master br0 type veth peer in0; ip link set in0 up
                ip address add 198.18.0.1/24 dev br0
                ip neigh add 198.18.0.254 lladdr 06:00:00:00:00:fe dev br0
                ip route add default via 198.18.0.254";
            in_namespace(&format!("{set_up}\n{script}"), || {
                let directory = tempfile::tempdir().expect("a directory");
                let mut net = Net::open().expect("Linux");
                let mut links: BTreeMap<u32, Link> = BTreeMap::new();
                for mut link in net.all().expect("answered") {
                    // A NIC is no veth.
                    if link.name.starts_with("pf") {
                        link.kind = String::new();
                    }
                    links.insert(link.index, link);
                }
                let pf0 = links.values().find(|link| link.name == "pf0").expect("made").index;
                let view = PoolView {
                    pfs: [("pf0".into(), pf(pf0, Some("br0")))].into(),
                    links: Arc::new(links),
                    ..PoolView::default()
                };
                let mut forwarding = Forwarding::new(directory.path(), BUDGET);
                // A veth refuses filters; what would be set is what counts.
                let _ = forwarding.settle(&view, &Addresses::default());
                let macs = forwarding.entries.into_keys().map(|entry| entry.mac.to_string());
                macs.filter(|mac| mac.starts_with("06:00")).collect::<Vec<_>>()
            })
        };
        let learn = "bridge fdb add 06:00:00:00:00:01 dev ct0 master dynamic";
        let Some(own) = run(learn) else { return };
        assert_eq!(own, ["06:00:00:00:00:01"]);
        let gateway = run("bridge fdb add 06:00:00:00:00:fe dev ct0 master dynamic");
        assert_eq!(gateway, Some(Vec::new()), "the gateway's");
        let wire = run("bridge fdb add 06:00:00:00:00:01 dev pf1 master dynamic");
        assert_eq!(wire, Some(Vec::new()), "of a station of the wire");
    }

    #[test]
    fn all_pfs_of_its_bridge_take_a_machine_that_never_had_a_vf_and_no_budget_limits_that() {
        let pfs = [("pf0", Some("br0")), ("pf1", Some("br0")), ("pf2", Some("br1")), ("pf3", None)];
        let pfs = (1..).zip(pfs).map(|(index, (name, on))| (PfId::from(name), pf(index, on)));
        let view = PoolView { pfs: pfs.collect(), ..PoolView::default() };
        let machines = (0..20).map(|last| (Mac([6, 0, 0, 0, 0, last]), vec!["pf0".into()]));
        let managed = Addresses { resting: machines.collect(), ..Addresses::default() };
        let entries: BTreeMap<Entry, u32> = resting_entries(&managed, &view).collect();
        let first = |entry: &&Entry| entry.mac == Mac([6, 0, 0, 0, 0, 0]);
        let on: Vec<String> =
            entries.keys().filter(first).map(|entry| entry.pf.to_string()).collect();
        assert_eq!(on, ["pf0", "pf1"]);
        let (admitted, crowded) = admit(&BTreeMap::new(), entries.clone(), BUDGET);
        assert_eq!((admitted.len(), crowded), (40, None));
        // Nor do they take from that of others.
        let present =
            entries.into_iter().map(|(entry, port)| (entry, Learned::now(port))).collect();
        let learned = (Entry { pf: "pf0".into(), mac: Mac([6, 0, 0, 0, 1, 0]) }, 7);
        assert_eq!(admit(&present, [learned].into(), BUDGET).0.len(), 1);
    }

    #[test]
    fn what_was_asked_for_is_known_after_a_restart() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut forwarding = Forwarding::new(directory.path(), BUDGET);
        let entry = Entry { pf: "pf0".into(), mac: GUEST };
        // A restart does not renew it.
        let learned = Learned { at_unix_ms: unix_ms() - 2 * REMEMBERED_MS, port: 7 };
        forwarding.entries.insert(entry.clone(), learned);
        forwarding.save().expect("written");
        let again = Forwarding::new(directory.path(), BUDGET);
        assert_eq!(again.entries.get(&entry), Some(&learned));
        assert!(learned.is_forgotten());
        // As it was written before ports were kept.
        let old = r#"[{"pf":"pf0","mac":"06:00:00:00:00:01"}]"#;
        std::fs::write(directory.path().join("forwarding.json"), old).expect("written");
        assert!(Forwarding::new(directory.path(), BUDGET).entries.contains_key(&entry));
    }

    const BUDGET: Budget = Budget { per_port: 4, per_pf: 8 };

    #[test]
    fn a_thousand_forged_addresses_take_no_more_filters_than_one_port_may_have() {
        let address = |number: u32| {
            let [a, b, c, d] = number.to_be_bytes();
            Entry { pf: "pf0".into(), mac: Mac([6, 0, a, b, c, d]) }
        };
        let forged = |from: u32, port| (from..from + 1000).map(|n| (address(n), port)).collect();
        let mut present = BTreeMap::new();
        let take = |present: &mut BTreeMap<Entry, Learned>, new, port| {
            let (admitted, crowded) = admit(present, new, BUDGET);
            assert_eq!(crowded, Some(port));
            let known = |(entry, port)| (entry, Learned::now(port));
            present.extend(admitted.into_iter().map(known));
            present.len()
        };
        assert_eq!(take(&mut present, forged(0, 2), 2), 4);
        // Others of the same port, after the bridge has forgotten the first ones: none.
        assert_eq!(take(&mut present, forged(5000, 2), 2), 4);
        // Another guest still has its own; three guests together no more than the PF's budget.
        assert_eq!(take(&mut present, forged(10_000, 3), 3), 8);
        assert_eq!(take(&mut present, forged(20_000, 4), 4), 8);
        // The bridge's own address always; what was asked for before is asked for again.
        let (admitted, _) = admit(&present, [(address(99_999), 0), (address(0), 2)].into(), BUDGET);
        assert_eq!(admitted.len(), 2);
    }
}
