//! Keeps stations on the host's bridges reachable for guests on VFs: the NIC's embedded switch delivers to the
//! PF only addresses in its filter, so those that the host's bridge has learned are added to it, and those of
//! managed machines without a VF. Addresses that executors set are left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pw_alloc::model::{Mac, PfId};
use pw_error::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::daemon::disk::write_json;
use crate::daemon::net::{FdbEntry, Link, Net};
use crate::daemon::pool::{Addresses, PoolView};

/// Between two updates.
const PAUSE: Duration = Duration::from_secs(1);
/// How long an address stays in the filter after the bridge has forgotten it, as bridges do after five
/// minutes of silence.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// The same after a managed machine is gone: long enough for a restarted daemon to find it again.
const REMEMBERED_RESTING: Duration = Duration::from_secs(60);
/// In place of a port: the address is that of a managed machine, which no budget limits.
const RESTING: u32 = u32::MAX;

/// An address in the filter of a PF.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Entry {
    pf: PfId,
    mac: Mac,
}

/// When and where the bridge learned an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Learned {
    /// When the bridge last had the address.
    at: Instant,
    /// The index of the port behind which it was learned; 0: the bridge itself; or [`RESTING`].
    port: u32,
}

impl Learned {
    fn is_forgotten(&self, now: Instant) -> bool {
        now - self.at > if self.port == RESTING { REMEMBERED_RESTING } else { REMEMBERED }
    }
}

/// An address on disk.
#[derive(Serialize, Deserialize)]
struct Saved {
    #[serde(flatten)]
    entry: Entry,
    #[serde(default)]
    port: u32,
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
    budget: Budget,
    next: Instant,
}

impl Forwarding {
    /// Reads the addresses of an earlier daemon.
    pub fn new(state_directory: &Path, budget: Budget) -> Self {
        let path = state_directory.join("forwarding.json");
        let saved: Vec<Saved> = std::fs::read(&path)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        let at = Instant::now();
        let entries = saved.into_iter().map(|Saved { entry, port }| (entry, Learned { at, port }));
        Self { path, entries: entries.collect(), budget, next: at }
    }

    /// Adds new addresses to the PFs' filters, and removes old ones.
    ///
    /// # Errors
    /// The kernel refuses: a NIC has no room for more addresses.
    pub fn settle(&mut self, view: &PoolView, managed: &Addresses) -> Result<()> {
        let now = Instant::now();
        if now < self.next || view.pfs.values().all(|pf| pf.bridge.is_none()) {
            return Ok(());
        }
        self.next = now + PAUSE;
        let mut net = Net::open()?;
        let (links, forwards) = (net.all()?, net.fdb_entries()?);
        let mut required = learned_entries(view, &links, &forwards, managed);
        required.extend(resting_entries(managed, view));
        for (entry, port) in &required {
            self.entries
                .entry(entry.clone())
                .and_modify(|learned| *learned = Learned { at: now, port: *port });
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
            .filter(|(entry, port)| !in_filter(entry) || left_by_executor(entry, *port))
            .collect();
        let (new, crowded) = admit(&self.entries, required, self.budget);
        let expired: Vec<Entry> = self
            .entries
            .iter()
            .filter(|(entry, learned)| {
                learned.is_forgotten(now) || managed.cared_for.contains(&entry.mac)
            })
            .map(|(entry, _)| entry.clone())
            .collect();
        let crowded = crowded.map_or(Ok(()), |port| {
            let name = links.iter().find(|link| link.index == port).map(|link| link.name.as_str());
            let Budget { per_port, per_pf } = self.budget;
            Err(Error::failed(
                format!(
                    "more addresses are behind {} than PFs may take: guests on VFs do not reach the \
                     others by the NIC",
                    name.unwrap_or("a port of a bridge")
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
        self.entries.extend(
            new.iter().map(|(entry, port)| (entry.clone(), Learned { at: now, port: *port })),
        );
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
        let saved = |(entry, learned): (&Entry, &Learned)| Saved {
            entry: entry.clone(),
            port: learned.port,
        };
        let all: Vec<Saved> = self.entries.iter().map(saved).collect();
        write_json(&self.path, &all).map_err(|error| {
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

/// Entries for PFs' filters, with their ports: the bridge's own address, and those learned on other ports.
fn learned_entries(
    view: &PoolView,
    links: &[Link],
    forwards: &[FdbEntry],
    managed: &Addresses,
) -> BTreeMap<Entry, u32> {
    let mut entries = BTreeMap::new();
    for (name, pf) in &view.pfs {
        let bridge = links.iter().find(|link| {
            link.kind.as_deref() == Some("bridge") && Some(&link.name) == pf.bridge.as_ref()
        });
        let Some(bridge) = bridge else { continue };
        let pf_mac = links.iter().find(|link| link.index == pf.index).and_then(|link| link.mac);
        let is_pf = |index: u32| view.pfs.values().any(|pf| pf.index == index);
        let port = |index: u32| {
            let link = links.iter().find(|link| link.index == index);
            !is_pf(index) && link.is_some_and(|link| link.master == Some(bridge.index))
        };
        let learned = forwards
            .iter()
            .filter(|entry| !entry.is_self && !entry.permanent && port(entry.index))
            .map(|entry| (entry.mac, entry.index));
        for (mac, port) in learned.chain(bridge.mac.map(|mac| (mac, 0))) {
            if Some(mac) != pf_mac && !managed.contains(mac) && mac.0[0] & 1 == 0 {
                entries.insert(Entry { pf: name.clone(), mac }, port);
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::net::tests::link;
    use crate::daemon::pool::PoolPf;

    fn learned(index: u32, last: u8) -> FdbEntry {
        let mac = Mac([6, 0, 0, 0, 0, last]);
        FdbEntry { index, mac, is_self: false, permanent: false, learned: true }
    }

    #[test]
    fn a_pf_asks_for_what_its_bridge_learned_elsewhere_and_for_nobody_who_is_managed() {
        let links = [
            link(1, "pf0", None, Some(5)),
            link(2, "tap0", Some("tun"), Some(5)),
            link(3, "other", Some("veth"), Some(6)),
            link(5, "br0", Some("bridge"), None),
            link(6, "br1", Some("bridge"), None),
        ];
        let pf = PoolPf {
            index: 1,
            address: "0000:01:00.0".parse().expect("valid"),
            numa: None,
            link_up: true,
            bridge: Some("br0".into()),
        };
        let view = PoolView { pfs: [("pf0".into(), pf)].into(), ..PoolView::default() };
        let group = FdbEntry { mac: Mac([1, 0, 0x5e, 0, 0, 1]), ..learned(2, 0) };
        let forwards = [
            learned(2, 1),
            learned(2, 2),
            learned(1, 3),
            learned(3, 4),
            FdbEntry { is_self: true, ..learned(2, 5) },
            FdbEntry { permanent: true, ..learned(2, 6) },
            group,
        ];
        let cared_for = BTreeSet::from([Mac([6, 0, 0, 0, 0, 2])]);
        let managed = Addresses { cared_for, ..Addresses::default() };
        let entries = learned_entries(&view, &links, &forwards, &managed);
        let macs: Vec<Mac> = entries.into_keys().map(|entry| entry.mac).collect();
        assert_eq!(macs, [Mac([2, 0, 0, 0, 0, 5]), Mac([6, 0, 0, 0, 0, 1])]);
    }

    #[test]
    fn all_pfs_of_its_bridge_take_a_machine_that_never_had_a_vf_and_no_budget_limits_that() {
        let pf = |index, bridge: Option<&str>| PoolPf {
            index,
            address: "0000:01:00.0".parse().expect("valid"),
            numa: None,
            link_up: true,
            bridge: bridge.map(Into::into),
        };
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
        let at = Instant::now();
        let present =
            entries.into_iter().map(|(entry, port)| (entry, Learned { at, port })).collect();
        let learned = (Entry { pf: "pf0".into(), mac: Mac([6, 0, 0, 0, 1, 0]) }, 7);
        assert_eq!(admit(&present, [learned].into(), BUDGET).0.len(), 1);
    }

    #[test]
    fn what_was_asked_for_is_known_after_a_restart() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut forwarding = Forwarding::new(directory.path(), BUDGET);
        let entry = Entry { pf: "pf0".into(), mac: Mac([6, 0, 0, 0, 0, 1]) };
        forwarding.entries.insert(entry.clone(), Learned { at: Instant::now(), port: 7 });
        forwarding.save().expect("written");
        let again = Forwarding::new(directory.path(), BUDGET);
        assert_eq!(again.entries.get(&entry).map(|known| known.port), Some(7));
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
            let known = |port| Learned { at: Instant::now(), port };
            present.extend(admitted.into_iter().map(|(entry, port)| (entry, known(port))));
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
