//! Sums of all nodes' `VfPool`s, by fleet and by namespace, with advice where VFs are missing. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

/// Limits of the objects' size: pieces of advice of each sort, and holders of a namespace.
const MAX_ADVICE: usize = 20;
const MAX_HOLDERS: usize = 500;

/// A node's `VfPool`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pool {
    /// The node.
    pub node: String,
    /// Whether its agent stopped writing it; the status is then out of date.
    pub silent: bool,
    /// Its status, as its agent wrote it.
    pub status: PoolStatus,
}

/// The part of a `VfPool`'s status that the sums need.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PoolStatus {
    vfs: u32,
    held: u32,
    free: u32,
    unusable: u32,
    holders: Vec<Holder>,
    waiters: Vec<Waiter>,
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Holder {
    vf: String,
    guest: String,
    #[serde(default)]
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Waiter {
    guest: String,
    /// None: unknown.
    packets_per_second: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default)]
    reason: String,
}

impl Pool {
    fn ready(&self) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.kind == "Ready")
    }

    /// Can its VFs be given?
    fn is_ready(&self) -> bool {
        !self.silent && self.ready().is_some_and(|ready| ready.status == "True")
    }

    /// Would its waiting pods get a VF if the node had more? Not while VFs are free, which its daemon then
    /// holds back, nor while it gives none at all.
    fn lacks_vfs(&self) -> bool {
        let gives = self.ready().is_some_and(|ready| {
            ready.status == "True" || ready.reason.starts_with("No") && ready.reason.contains("Vf")
        });
        !self.silent && gives && self.status.free == 0
    }

    /// The waiting pods that would get a VF if the node had more.
    fn unmet(&self) -> &[Waiter] {
        if self.lacks_vfs() { &self.status.waiters } else { &[] }
    }
}

/// Pods without a VF because their nodes have too few, and their traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Unmet {
    /// Number of pods.
    pub pods: u32,
    /// Their known packets a second.
    pub pps: f64,
}

impl Unmet {
    fn add(&mut self, waiter: &Waiter) {
        self.pods += 1;
        self.pps += waiter.packets_per_second.unwrap_or(0.0);
    }
}

/// Sums of one namespace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Namespace {
    /// Pods that hold a VF, each with node and VF.
    holders: BTreeMap<String, (String, String)>,
    /// Managed pods without a VF that may have one.
    pub waiting: u32,
    /// Those of them whose nodes have too few VFs.
    pub unmet: Unmet,
    nodes: BTreeSet<String>,
}

impl Namespace {
    /// How many pods hold a VF.
    pub fn held(&self) -> usize {
        self.holders.len()
    }

    /// The status of its `VfUsage`.
    pub fn body(&self) -> Value {
        let holders = self.holders.iter().take(MAX_HOLDERS);
        let holders: Value =
            holders.map(|(pod, (node, vf))| json!({"pod": pod, "node": node, "vf": vf})).collect();
        json!({"nodes": self.nodes.len(), "held": self.held(), "waiting": self.waiting,
               "unmetPods": self.unmet.pods, "unmetPacketsPerSecond": rounded(self.unmet.pps),
               "holders": holders})
    }
}

/// Sums of all nodes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fleet {
    /// Nodes with a `VfPool`.
    pub nodes: u32,
    /// Nodes whose VFs can be given.
    pub ready: u32,
    /// Nodes whose agents no longer write.
    pub silent: Vec<String>,
    /// VFs held by guests.
    pub held: u32,
    /// VFs that can be given.
    pub free: u32,
    /// VFs that can neither be given nor taken.
    pub unusable: u32,
    vfs: u32,
    /// Pods that lack a VF.
    pub unmet: Unmet,
    /// By namespace.
    pub namespaces: BTreeMap<String, Namespace>,
    /// Advice: nodes that could do with more VFs.
    more_vfs: Vec<(String, Unmet)>,
    /// Advice: pods for which another node has a VF.
    other_node: Vec<Value>,
}

fn rounded(rate: f64) -> Value {
    json!(rate.round() as u64)
}

/// Sums up all pools.
pub fn sum(pools: &[Pool]) -> Fleet {
    let mut fleet = Fleet::default();
    for pool in pools {
        let status = &pool.status;
        fleet.nodes += 1;
        fleet.ready += u32::from(pool.is_ready());
        fleet.vfs += status.vfs;
        fleet.held += status.held;
        fleet.free += status.free;
        fleet.unusable += status.unusable;
        if pool.silent {
            fleet.silent.push(pool.node.clone());
        }
        for holder in status.holders.iter().filter(|holder| holder.kind == "pod") {
            let Some((namespace, pod)) = holder.guest.split_once('/') else { continue };
            let sums = fleet.namespaces.entry(namespace.to_owned()).or_default();
            sums.holders.insert(pod.to_owned(), (pool.node.clone(), holder.vf.clone()));
            sums.nodes.insert(pool.node.clone());
        }
        for waiter in &status.waiters {
            let Some((namespace, _)) = waiter.guest.split_once('/') else { continue };
            let sums = fleet.namespaces.entry(namespace.to_owned()).or_default();
            sums.waiting += 1;
            sums.nodes.insert(pool.node.clone());
            if pool.lacks_vfs() {
                sums.unmet.add(waiter);
            }
        }
        let mut unmet = Unmet::default();
        pool.unmet().iter().for_each(|waiter| {
            unmet.add(waiter);
            fleet.unmet.add(waiter);
        });
        if unmet.pps > 0.0 {
            fleet.more_vfs.push((pool.node.clone(), unmet));
        }
    }
    fleet.more_vfs.sort_by(|(_, a), (_, b)| b.pps.total_cmp(&a.pps));
    fleet.more_vfs.truncate(MAX_ADVICE);
    fleet.other_node = other_nodes(pools);
    fleet
}

/// Advice for pods by traffic, the busiest first, each to the node with most free VFs.
fn other_nodes(pools: &[Pool]) -> Vec<Value> {
    let mut free: Vec<(u32, Reverse<&str>)> = pools
        .iter()
        .filter(|pool| pool.is_ready() && pool.status.free > 0)
        .map(|pool| (pool.status.free, Reverse(pool.node.as_str())))
        .collect();
    let mut waiting: Vec<(&Pool, &Waiter, f64)> = pools
        .iter()
        .flat_map(|pool| pool.unmet().iter().map(move |waiter| (pool, waiter)))
        .filter_map(|(pool, waiter)| Some((pool, waiter, waiter.packets_per_second?)))
        .filter(|(_, _, pps)| *pps > 0.0)
        .collect();
    waiting.sort_by(|a, b| b.2.total_cmp(&a.2));
    let mut advice = Vec::new();
    for (pool, waiter, pps) in waiting.into_iter().take(MAX_ADVICE) {
        let Some(best) = free.iter_mut().max().filter(|(vfs, _)| *vfs > 0) else { break };
        best.0 -= 1;
        advice.push(json!({"pod": waiter.guest, "node": pool.node, "to": best.1.0,
                           "packetsPerSecond": rounded(pps)}));
    }
    advice
}

impl Fleet {
    /// The status of the `VfFleet`.
    pub fn body(&self) -> Value {
        let Self { nodes, ready, vfs, held, free, unusable, .. } = self;
        let more = self.more_vfs.iter().map(|(node, unmet)| {
            json!({"node": node, "vfs": unmet.pods, "packetsPerSecond": rounded(unmet.pps)})
        });
        let waiting: u32 = self.namespaces.values().map(|namespace| namespace.waiting).sum();
        let pods = self.namespaces.values().map(Namespace::held).sum::<usize>() + waiting as usize;
        json!({"nodes": nodes, "ready": ready, "silent": self.silent.len(), "vfs": vfs,
            "held": held, "free": free, "unusable": unusable, "pods": pods, "waiting": waiting,
            "unmetPods": self.unmet.pods, "unmetPacketsPerSecond": rounded(self.unmet.pps),
            "moreVfs": more.collect::<Value>(), "otherNode": self.other_node})
    }

    /// Do all nodes report?
    pub fn complete(&self) -> crate::objects::Condition {
        let (status, reason, message) = match &self.silent[..] {
            _ if self.nodes == 0 => (
                "False",
                "NoPools",
                "no node has a VfPool: does the agent run anywhere?".to_owned(),
            ),
            [] => ("True", "AllReport", format!("all {} nodes report", self.nodes)),
            [first, others @ ..] => {
                let more = if others.is_empty() {
                    String::new()
                } else {
                    format!(" and {} more", others.len())
                };
                ("False", "NodesSilent", format!("the agent of {first}{more} does not report"))
            }
        };
        crate::objects::Condition::new("Complete", status, reason, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::without_rates;

    fn pool(node: &str, ready: (&str, &str), fields: Value) -> Pool {
        let mut status =
            json!({"conditions": [{"type": "Ready", "status": ready.0, "reason": ready.1}]});
        if let (Some(status), Value::Object(fields)) = (status.as_object_mut(), fields) {
            status.extend(fields);
        }
        let status = serde_json::from_value(status).expect("a status");
        Pool { node: node.into(), silent: false, status }
    }

    const USABLE: (&str, &str) = ("True", "AllUsable");

    fn full(node: &str) -> Pool {
        let status = json!({"vfs": 1, "held": 1, "free": 0,
            "holders": [{"vf": "pf0/0", "guest": "shop/web", "kind": "pod"}],
            "waiters": [{"guest": "shop/db", "packetsPerSecond": 300.0},
                        {"guest": "bank/ledger", "packetsPerSecond": 5000.4},
                        {"guest": "bank/idle", "packetsPerSecond": 0.0}, {"guest": "bank/new"}]});
        pool(node, USABLE, status)
    }

    fn empty(node: &str, free: u32) -> Pool {
        pool(node, USABLE, json!({"vfs": free, "held": 0, "free": free}))
    }

    #[test]
    fn sums_are_by_fleet_and_by_namespace() {
        let fleet = sum(&[full("a"), empty("b", 2)]);
        let body = fleet.body();
        for (key, expected) in [
            ("nodes", 2),
            ("ready", 2),
            ("vfs", 3),
            ("held", 1),
            ("free", 2),
            ("pods", 5),
            ("waiting", 4),
            ("unmetPods", 4),
            ("unmetPacketsPerSecond", 5300),
        ] {
            assert_eq!(body[key], expected, "{key}");
        }
        let shop = fleet.namespaces["shop"].body();
        assert_eq!(shop["holders"], json!([{"pod": "web", "node": "a", "vf": "pf0/0"}]));
        assert_eq!(
            (&shop["held"], &shop["waiting"], &shop["unmetPacketsPerSecond"]),
            (&json!(1), &json!(1), &json!(300))
        );
        let bank = fleet.namespaces["bank"].body();
        assert_eq!(
            (&bank["held"], &bank["waiting"], &bank["unmetPods"]),
            (&json!(0), &json!(3), &json!(3))
        );
        assert_eq!(fleet.complete().reason, "AllReport");
    }

    #[test]
    fn who_sends_most_is_advised_first_and_no_vf_is_promised_twice() {
        let fleet = sum(&[full("a"), empty("b", 1), empty("c", 1)]);
        let body = without_rates(&fleet.body());
        assert_eq!(body["moreVfs"], json!([{"node": "a", "vfs": 4}]));
        assert_eq!(
            body["otherNode"],
            json!([
            {"pod": "bank/ledger", "node": "a", "to": "b"}, {"pod": "shop/db", "node": "a", "to": "c"}])
        );
        let body = sum(&[full("a"), empty("b", 1)]).body();
        assert_eq!(body["otherNode"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn pods_that_wait_beside_free_vfs_or_on_a_node_that_gives_none_lack_nothing() {
        let held_back =
            json!({"vfs": 2, "free": 1, "waiters": [{"guest": "a/b", "packetsPerSecond": 9.0}]});
        let none =
            json!({"vfs": 2, "free": 0, "waiters": [{"guest": "a/b", "packetsPerSecond": 9.0}]});
        for (pool, unmet) in [
            (pool("n", USABLE, held_back), 0),
            (pool("n", ("False", "Draining"), none.clone()), 0),
            (pool("n", ("Unknown", "NotKnown"), none.clone()), 0),
            (Pool { silent: true, ..pool("n", USABLE, none.clone()) }, 0),
            (pool("n", ("False", "NoVfs"), none.clone()), 1),
            (pool("n", ("False", "NoUsableVf"), none), 1),
        ] {
            let reason = pool.status.conditions[0].reason.clone();
            assert_eq!(sum(&[pool]).unmet.pods, unmet, "{reason}");
        }
    }

    #[test]
    fn a_node_whose_agent_is_silent_is_named_and_nobody_is_sent_there() {
        let silent = Pool { silent: true, ..empty("b", 2) };
        let fleet = sum(&[full("a"), silent]);
        assert_eq!(fleet.body()["otherNode"], json!([]));
        let complete = fleet.complete();
        assert_eq!((complete.status, complete.reason.as_str()), ("False", "NodesSilent"));
        assert!(complete.message.contains('b'));
        assert_eq!(sum(&[]).complete().reason, "NoPools");
    }

    #[test]
    fn rates_alone_need_no_writing() {
        let mut busier = full("a");
        busier.status.waiters[0].packets_per_second = Some(400.0);
        let (before, after) = (sum(&[full("a")]), sum(&[busier]));
        assert_eq!(without_rates(&before.body()), without_rates(&after.body()));
        assert_ne!(before.body(), after.body());
        let [before, after] = [before, after].map(|fleet| fleet.namespaces["shop"].body());
        assert_eq!(without_rates(&before), without_rates(&after));
    }
}
