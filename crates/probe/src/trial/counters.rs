//! Reads the drop counters along a path, which explain loss.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use serde::Serialize;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::netlink::{Link, Netlink};
use crate::netns::{IfSpec, Netns, run_in};

/// The role of an interface in a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The generator sends on it.
    Tx,
    /// The sink captures on it.
    Rx,
    /// It is on the path between them.
    Between,
}

/// The counters of an interface, by name.
pub type Counters = BTreeMap<&'static str, u64>;

/// One reading of one interface.
#[derive(Debug, Clone)]
struct Reading {
    link: Link,
    /// Number, in this interface's namespace, of each place's namespace.
    netns_numbers: Vec<Option<i32>>,
    same_netns: Vec<bool>,
    counters: Counters,
}

/// The counters of all places of a trial at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    readings: Vec<Reading>,
}

/// Part of the loss, with the counter that explains it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// The interface, `sink` or `host`.
    #[serde(rename = "where")]
    pub place: String,
    /// The counter.
    pub counter: String,
    /// Frames.
    pub count: u64,
}

/// The counters that count lost frames, each frame in one of them only. The kernel's finer ones
/// (rx_crc_errors, …) are parts of rx_errors and tx_errors (Documentation/networking/statistics).
const DROPS: [&str; 7] = [
    "rx_dropped",
    "rx_errors",
    "rx_missed_errors",
    "rx_nohandler",
    "tx_dropped",
    "tx_errors",
    "qdisc_drops",
];

fn counters(link: &Link, qdisc_drops: u64) -> Counters {
    let s = &link.stats;
    Counters::from([
        ("rx_packets", s.rx_packets),
        ("tx_packets", s.tx_packets),
        ("rx_dropped", s.rx_dropped),
        ("rx_errors", s.rx_errors),
        ("rx_missed_errors", s.rx_missed_errors),
        ("rx_nohandler", s.rx_nohandler),
        ("tx_dropped", s.tx_dropped),
        ("tx_errors", s.tx_errors),
        ("qdisc_drops", qdisc_drops),
    ])
}

/// The places of a trial.
#[derive(Debug, Clone)]
pub struct Places {
    places: Vec<(IfSpec, Role)>,
}

impl Places {
    /// The places `tx`, `rx` and `between`, those of this end; duplicates count once.
    pub fn new(tx: Option<&IfSpec>, rx: Option<&IfSpec>, between: &[IfSpec]) -> Self {
        let ends = tx.map(|tx| (tx, Role::Tx)).into_iter().chain(rx.map(|rx| (rx, Role::Rx)));
        let between = between.iter().map(|place| (place, Role::Between));
        let mut places: Vec<(IfSpec, Role)> = Vec::new();
        for (place, role) in ends.chain(between) {
            if !places.iter().any(|(listed, _)| listed == place) {
                places.push((place.clone(), role));
            }
        }
        Self { places }
    }

    /// Reads the counters of all places.
    ///
    /// # Errors
    /// One of them does not exist (any more).
    pub fn read(&self) -> Result<Snapshot> {
        let readings = self.places.iter().map(|(place, _)| self.read_place(place));
        Ok(Snapshot { readings: readings.collect::<Result<_>>()? })
    }

    fn read_place(&self, place: &IfSpec) -> Result<Reading> {
        run_in(place.netns.as_ref(), || {
            let mut netlink = Netlink::open()?;
            let link = netlink.link_at(&place.interface, place)?;
            let counters = counters(&link, netlink.qdisc_drops(link.index)?);
            let mut netns_numbers = Vec::new();
            for (other, _) in &self.places {
                let path = other.netns.as_ref().map_or("/proc/self/ns/net".into(), Netns::path);
                let file = std::fs::File::open(path).ok();
                netns_numbers.push(match file {
                    Some(file) => netlink.socket.netns_number(file.as_fd())?,
                    None => None,
                });
            }
            let same_netns = self.places.iter().map(|(other, _)| other.netns == place.netns);
            Ok(Reading { link, netns_numbers, same_netns: same_netns.collect(), counters })
        })
    }

    /// The counters of every place before and now, and the parts of a loss that those which rose
    /// explain; and the error by which they could not be read, as of an interface that is gone.
    pub fn since(
        &self,
        before: &Snapshot,
        sent_again: u64,
    ) -> (Vec<Value>, Vec<Explained>, Option<Error>) {
        let after = match self.read() {
            Ok(after) => after,
            Err(error) => return (Vec::new(), Vec::new(), Some(error)),
        };
        let readings = before.readings.iter().zip(&after.readings);
        let changes = self.places.iter().zip(readings).map(|((place, role), (before, after))| {
            json!({
                "where": place,
                "role": role,
                "kind": after.link.kind,
                "before": before.counters,
                "after": after.counters,
            })
        });
        (changes.collect(), self.drops(before, &after, sent_again), None)
    }

    /// The drop counters that rose. `sent_again` are frames that the sending interface counted as
    /// dropped, and that were sent again.
    ///
    /// A frame that a veth pair drops is counted at both ends (tx_dropped and rx_dropped): only the
    /// sending end counts where that is a place too.
    fn drops(&self, before: &Snapshot, after: &Snapshot, sent_again: u64) -> Vec<Explained> {
        let rise = |index: usize, counter: &str| {
            let get = |snapshot: &Snapshot| {
                snapshot.readings[index].counters.get(counter).copied().unwrap_or(0)
            };
            get(after).saturating_sub(get(before))
        };
        let mut drops = Vec::new();
        for (index, (place, role)) in self.places.iter().enumerate() {
            for counter in DROPS {
                let counted_already = match counter {
                    "tx_dropped" if *role == Role::Tx => sent_again,
                    "rx_dropped" => {
                        after.veth_peer(index).map_or(0, |peer| rise(peer, "tx_dropped"))
                    }
                    _ => 0,
                };
                let count = rise(index, counter).saturating_sub(counted_already);
                if count > 0 {
                    let (place, counter) = (place.to_string(), counter.to_string());
                    drops.push(Explained { place, counter, count });
                }
            }
        }
        drops
    }
}

impl Snapshot {
    /// Whether the sending interface, the first of the places, is a virtual one.
    pub fn is_virtual_tx(&self) -> bool {
        self.readings.first().is_some_and(|reading| !reading.link.kind.is_empty())
    }

    /// The index of the place that is the veth peer of place `index`.
    fn veth_peer(&self, index: usize) -> Option<usize> {
        let reading = &self.readings[index];
        (0..self.readings.len()).find(|&other| {
            let peer = &self.readings[other].link;
            let same_netns = match reading.link.lower_netns {
                None => reading.same_netns[other],
                Some(number) => reading.netns_numbers[other] == Some(number),
            };
            reading.link.kind == "veth"
                && peer.kind == "veth"
                && reading.link.lower == Some(peer.index)
                && same_netns
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn veth(
        index: u32,
        peer_index: u32,
        peer_netns: Option<i32>,
        other: [Option<i32>; 2],
    ) -> Reading {
        let link = Link {
            index,
            kind: "veth".into(),
            lower: Some(peer_index),
            lower_netns: peer_netns,
            ..Link::default()
        };
        let counters = counters(&link, 0);
        Reading { link, netns_numbers: other.into(), same_netns: vec![false, false], counters }
    }

    fn with(mut snapshot: Snapshot, place: usize, counter: &'static str, value: u64) -> Snapshot {
        snapshot.readings[place].counters.insert(counter, value);
        snapshot
    }

    fn pair() -> (Places, Snapshot) {
        let spec = |text: &str| text.parse().expect("valid");
        let places = Places::new(Some(&spec("v@a")), Some(&spec("v@b")), &[spec("v@a")]);
        let readings =
            vec![veth(2, 2, Some(7), [None, Some(7)]), veth(2, 2, Some(3), [Some(3), None])];
        (places, Snapshot { readings })
    }

    #[test]
    fn a_frame_lost_between_two_ends_of_a_veth_pair_counts_once() {
        let (places, before) = pair();
        let after = with(with(before.clone(), 0, "tx_dropped", 50), 1, "rx_dropped", 52);
        let drops = places.drops(&before, &after, 10);
        let parts: Vec<_> =
            drops.iter().map(|d| (d.place.as_str(), d.counter.as_str(), d.count)).collect();
        assert_eq!(parts, [("v@a", "tx_dropped", 40), ("v@b", "rx_dropped", 2)]);
    }

    #[test]
    fn a_place_named_twice_is_read_once_and_quiet_counters_explain_nothing() {
        let (places, before) = pair();
        assert_eq!(places.places.len(), 2);
        assert!(places.drops(&before, &before.clone(), 0).is_empty());
    }
}
