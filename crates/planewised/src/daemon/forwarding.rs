//! Whoever else is on the host's bridges stays reachable for guests on VFs: the NIC's own bridge sends
//! to the host only what its PF asks for, so the PF asks for the addresses that the host's bridge has
//! learned. Knows nothing of who is managed, but for whom it is to leave alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pw_alloc::model::{Mac, PfId};
use pw_linux::error::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::daemon::net::{Forward, Link, Net};
use crate::daemon::pool::PoolView;

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// How long an address is asked for that the bridge has forgotten: bridges forget after five minutes
/// of silence, and who is silent may still be written to.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// One address that a PF was told to ask for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Asked {
    pf: PfId,
    mac: Mac,
}

/// The addresses that PFs ask for because of us.
#[derive(Debug)]
pub struct Forwarding {
    path: PathBuf,
    /// With the moment at which the bridge last knew it.
    asked: BTreeMap<Asked, Instant>,
    next: Instant,
}

impl Forwarding {
    /// Those that an earlier daemon asked for are ours, too.
    pub fn new(state_directory: &Path) -> Self {
        let path = state_directory.join("forwarding.json");
        let kept: Vec<Asked> = std::fs::read(&path)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        let now = Instant::now();
        Self { path, asked: kept.into_iter().map(|asked| (asked, now)).collect(), next: now }
    }

    /// Lets the PFs ask for what has come, and not for what is gone. `managed`: addresses of guests
    /// that somebody else cares for.
    ///
    /// # Errors
    /// The kernel refuses: a NIC has no room for more addresses.
    pub fn settle(&mut self, view: &PoolView, managed: &BTreeSet<Mac>) -> Result<()> {
        let now = Instant::now();
        if now < self.next || view.pfs.values().all(|pf| pf.bridge.is_none()) {
            return Ok(());
        }
        self.next = now + PAUSE;
        let mut net = Net::here()?;
        let (links, forwards) = (net.all()?, net.forwards()?);
        let wanted = wanted(view, &links, &forwards, managed);
        for asked in &wanted {
            self.asked.entry(asked.clone()).and_modify(|at| *at = now);
        }
        let has = |asked: &Asked| {
            let index = view.pfs.get(&asked.pf).map(|pf| pf.index);
            forwards
                .iter()
                .any(|entry| entry.own && Some(entry.index) == index && entry.mac == asked.mac)
        };
        // Addresses that somebody else asked for stay somebody else's.
        let new: Vec<Asked> = wanted.into_iter().filter(|asked| !has(asked)).collect();
        let gone: Vec<Asked> = self
            .asked
            .iter()
            .filter(|(asked, at)| now - **at > REMEMBERED || managed.contains(&asked.mac))
            .map(|(asked, _)| asked.clone())
            .collect();
        if new.is_empty() && gone.is_empty() {
            return Ok(());
        }
        self.asked.extend(new.iter().map(|asked| (asked.clone(), now)));
        // Written before it is done: what is written and not done does no harm.
        self.keep()?;
        let mut refused = Ok(());
        for asked in &new {
            if let Some(pf) = view.pfs.get(&asked.pf) {
                refused = refused.and(net.nic_takes(asked.mac, pf.index, true));
            }
        }
        for asked in gone {
            if let Some(pf) = view.pfs.get(&asked.pf).filter(|_| !managed.contains(&asked.mac)) {
                net.nic_takes(asked.mac, pf.index, false)?;
            }
            self.asked.remove(&asked);
        }
        self.keep()?;
        refused
    }

    fn keep(&self) -> Result<()> {
        let all: Vec<&Asked> = self.asked.keys().collect();
        let next = self.path.with_extension("new");
        let written = std::fs::write(&next, serde_json::to_vec(&all).unwrap_or_default())
            .and_then(|()| std::fs::rename(&next, &self.path));
        written.map_err(|error| {
            Error::failed(format!("cannot write {}: {error}", self.path.display()), "make space")
        })
    }
}

/// What PFs are to ask for: what their bridge has learned on its other ports, and the bridge itself.
fn wanted(
    view: &PoolView,
    links: &[Link],
    forwards: &[Forward],
    managed: &BTreeSet<Mac>,
) -> BTreeSet<Asked> {
    let mut wanted = BTreeSet::new();
    for (name, pf) in &view.pfs {
        let bridge = links.iter().find(|link| {
            link.kind.as_deref() == Some("bridge") && Some(&link.name) == pf.bridge.as_ref()
        });
        let Some(bridge) = bridge else { continue };
        let own = links.iter().find(|link| link.index == pf.index).and_then(|link| link.mac);
        let is_pf = |index: u32| view.pfs.values().any(|pf| pf.index == index);
        let port = |index: u32| {
            let link = links.iter().find(|link| link.index == index);
            !is_pf(index) && link.is_some_and(|link| link.master == Some(bridge.index))
        };
        let learned = forwards
            .iter()
            .filter(|entry| !entry.own && !entry.permanent && port(entry.index))
            .map(|entry| entry.mac);
        for mac in learned.chain(bridge.mac) {
            if Some(mac) != own && !managed.contains(&mac) && mac.0[0] & 1 == 0 {
                wanted.insert(Asked { pf: name.clone(), mac });
            }
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::pool::PoolPf;

    fn link(index: u32, name: &str, kind: Option<&str>, master: Option<u32>) -> Link {
        Link {
            index,
            name: name.into(),
            mac: Some(Mac([2, 0, 0, 0, 0, index as u8])),
            mtu_bytes: 1500,
            up: true,
            carrier: true,
            master,
            peer: None,
            kind: kind.map(Into::into),
            device: None,
            active: None,
            member_up: None,
            counters: pw_alloc::signal::Counters::default(),
        }
    }

    fn learned(index: u32, last: u8) -> Forward {
        let mac = Mac([6, 0, 0, 0, 0, last]);
        Forward { index, mac, own: false, permanent: false }
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
        let view = PoolView { pfs: [("pf0".into(), pf)].into(), vfs: BTreeMap::new() };
        let group = Forward { mac: Mac([1, 0, 0x5e, 0, 0, 1]), ..learned(2, 0) };
        let forwards = [
            learned(2, 1),
            learned(2, 2),
            learned(1, 3),
            learned(3, 4),
            Forward { own: true, ..learned(2, 5) },
            Forward { permanent: true, ..learned(2, 6) },
            group,
        ];
        let managed = BTreeSet::from([Mac([6, 0, 0, 0, 0, 2])]);
        let wanted = wanted(&view, &links, &forwards, &managed);
        let macs: Vec<Mac> = wanted.into_iter().map(|asked| asked.mac).collect();
        assert_eq!(macs, [Mac([2, 0, 0, 0, 0, 5]), Mac([6, 0, 0, 0, 0, 1])]);
    }

    #[test]
    fn what_was_asked_for_is_known_after_a_restart() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut forwarding = Forwarding::new(directory.path());
        let asked = Asked { pf: "pf0".into(), mac: Mac([6, 0, 0, 0, 0, 1]) };
        forwarding.asked.insert(asked.clone(), Instant::now());
        forwarding.keep().expect("written");
        assert!(Forwarding::new(directory.path()).asked.contains_key(&asked));
    }
}
