//! `planewised-kubernetes controller`: one view of all nodes' `VfPool`s, written by the leading replica. All
//! its state can be computed again.

mod fleet;
mod lease;
mod metrics;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use pw_error::{Error, Result};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::feeds::{self, Feed};
use crate::objects::{Condition, without_rates};
use crate::write::{Applied, Backoff, Failure, now};
use fleet::{Fleet, Pool};
use lease::{Candidate, Leads};

/// The field manager.
const MANAGER: &str = "planewise-controller";
/// Names of the one `VfFleet`, and of each namespace's `VfUsage`.
const FLEET: &str = "fleet";
const USAGE: &str = "usage";
/// Between two sums.
const MIN_INTERVAL: Duration = Duration::from_secs(2);
/// Between two writes of objects of which only rates changed.
const RATES_INTERVAL: Duration = Duration::from_secs(60);
/// Time without a write after which a pool is silent: its agent missed two heartbeats.
const SILENT_AFTER: Duration = Duration::from_secs(150);
/// The longest wait after failures is 2 to this power seconds.
const LONGEST_BACKOFF: u32 = 4;

/// Sums up what the agents of all nodes report: a VfFleet, a VfUsage a namespace, metrics.
///
/// Any number of replicas may run; one writes. SIGTERM hands over to another one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Access to the API server [default: the service account of the pod it runs in]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease [default: that of the pod or of the kubeconfig's context]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// This replica's name, unique among the replicas
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    identity: String,
    /// Address of /metrics and /readyz
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9469")]
    listen: SocketAddr,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// There is no access to the API, or the address is in use. An API server that does not answer is no error.
pub fn run(args: &Args) -> Result<()> {
    planewised::http::log::start(planewised::daemon::config::Config::default().log);
    let runtime = crate::runtime()?;
    runtime.block_on(async {
        let client = crate::client(args.kubeconfig.as_deref()).await?;
        let listener = TcpListener::bind(args.listen).await.map_err(|error| {
            let what = format!("cannot listen at {}", args.listen);
            Error::failed(what, "choose another --listen").caused_by(error)
        })?;
        let signals = |kind| {
            signal(kind).map_err(|error| Error::failed("cannot listen to signals", "").caused_by(error))
        };
        let (mut terminated, mut interrupted) =
            (signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?);
        let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let mut candidate = Candidate::new(client.clone(), &namespace, "planewise-controller", &args.identity);
        let (leads, leading) = watch::channel(None);
        let (summed, sums) = watch::channel(None);
        let changed = Notify::new();
        let controller = Controller::new(client);
        tokio::select! {
            () = controller.pools.follow(&changed) => {}
            () = candidate.run(&leads) => {}
            () = controller.run(&changed, &leading, &summed) => {}
            result = metrics::serve(listener, sums, leading.clone()) => {
                let failed = |error| Error::failed("the metrics cannot be served", "").caused_by(error);
                return result.map_err(failed);
            }
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
        candidate.release().await;
        Ok(())
    })
}

/// The last write of an object.
struct Written {
    bare: Value,
    rates: Value,
    at: Instant,
}

/// Is an object to be written: did more than its rates change, or are these old?
fn is_due(written: Option<&Written>, bare: &Value, rates: &Value) -> bool {
    written.is_none_or(|written| {
        written.bare != *bare || (written.rates != *rates && written.at.elapsed() >= RATES_INTERVAL)
    })
}

/// Writes of one leadership.
#[derive(Default)]
struct Writes {
    fleet: Option<Written>,
    fleet_is_old: bool,
    /// The fleet's condition, with the time of its last transition.
    complete: Option<(Condition, String)>,
    usages: BTreeMap<String, Written>,
    /// Namespaces that have a `VfUsage`, once they were listed.
    existing: Option<BTreeSet<String>>,
}

struct Controller {
    client: Client,
    pools: Feed<DynamicObject>,
    fleets: Applied,
}

impl Controller {
    fn new(client: Client) -> Self {
        let pools = feeds::kind("VfPool", "vfpools");
        let all = Api::all_with(client.clone(), &pools);
        let config = kube::runtime::watcher::Config::default();
        let fleets = Api::all_with(client.clone(), &feeds::kind("VfFleet", "vffleets"));
        Self {
            pools: Feed::new("VfPools", all, pools, config, false),
            fleets: Applied { api: fleets, kind: "VfFleet", manager: MANAGER },
            client,
        }
    }

    async fn run(
        &self,
        changed: &Notify,
        leads: &watch::Receiver<Leads>,
        summed: &watch::Sender<Option<Arc<Fleet>>>,
    ) {
        let mut versions = BTreeMap::new();
        let mut writes = Writes::default();
        let mut backoff = Backoff::default();
        loop {
            let _ = tokio::time::timeout(RATES_INTERVAL / 10, changed.notified()).await;
            tokio::time::sleep(MIN_INTERVAL).await;
            // While the API server does not answer, the pools are out of date: nothing is written, and none
            // of them becomes silent.
            let pools = match (self.pools.all(), self.pools.trouble()) {
                (Ok(pools), None) => pools,
                _ => {
                    versions.clear();
                    continue;
                }
            };
            let fleet = Arc::new(fleet::sum(&read(&pools, &mut versions)));
            summed.send_replace(Some(Arc::clone(&fleet)));
            if !lease::is_leading(leads) {
                writes = Writes::default();
                continue;
            }
            if backoff.is_pausing() {
                continue;
            }
            match self.write(&fleet, &mut writes, leads).await {
                Ok(()) => backoff.succeeded(),
                Err(why) => backoff.failed(why, LONGEST_BACKOFF),
            }
        }
    }

    async fn write(
        &self,
        fleet: &Fleet,
        writes: &mut Writes,
        leads: &watch::Receiver<Leads>,
    ) -> std::result::Result<(), String> {
        let rates = fleet.body();
        let bare = without_rates(&rates);
        let (complete, at) = (fleet.complete(), now());
        if writes.complete.as_ref().is_none_or(|(before, _)| *before != complete) {
            writes.complete = Some((complete, at.clone()));
            writes.fleet_is_old = true;
        }
        let heartbeat =
            writes.fleet.as_ref().is_none_or(|written| written.at.elapsed() >= RATES_INTERVAL);
        if writes.fleet_is_old || heartbeat || is_due(writes.fleet.as_ref(), &bare, &rates) {
            let conditions = writes.complete.iter().map(|(complete, since)| complete.json(since));
            let mut status = rates.clone();
            status["conditions"] = conditions.collect();
            status["reportedAt"] = json!(at);
            writes.fleet_is_old = true;
            match put(&self.fleets, FLEET, writes.fleet.is_none(), &status).await {
                Ok(()) => {
                    writes.fleet = Some(Written { bare, rates, at: Instant::now() });
                    writes.fleet_is_old = false;
                }
                Err(Failure::Missing) => {
                    writes.fleet = None;
                    return Err(feeds::missing("VfFleets"));
                }
                Err(Failure::Other(why)) => {
                    return Err(format!("the VfFleet cannot be written: {why}"));
                }
            }
        }
        if writes.existing.is_none() {
            writes.existing = Some(self.namespaces_with_usage().await?);
        }
        let existing = writes.existing.get_or_insert_default();
        for (namespace, sums) in &fleet.namespaces {
            if !lease::is_leading(leads) {
                return Ok(());
            }
            let rates = sums.body();
            let bare = without_rates(&rates);
            if !is_due(writes.usages.get(namespace), &bare, &rates) {
                continue;
            }
            match put(&self.usage(namespace), USAGE, !writes.usages.contains_key(namespace), &rates)
                .await
            {
                Ok(()) => {
                    let written = Written { bare, rates, at: Instant::now() };
                    writes.usages.insert(namespace.clone(), written);
                    existing.insert(namespace.clone());
                }
                // The object or its namespace was deleted.
                Err(Failure::Missing) => drop(writes.usages.remove(namespace)),
                Err(Failure::Other(why)) => {
                    return Err(format!("the VfUsage of {namespace} cannot be written: {why}"));
                }
            }
        }
        let obsolete: Vec<String> =
            existing.iter().filter(|name| !fleet.namespaces.contains_key(*name)).cloned().collect();
        for namespace in obsolete {
            let usages = self.usage(&namespace);
            match crate::write::within(usages.api.delete(USAGE, &Default::default())).await {
                Ok(_) | Err(Failure::Missing) => {}
                Err(Failure::Other(why)) => {
                    return Err(format!("the VfUsage of {namespace} cannot be deleted: {why}"));
                }
            }
            existing.remove(&namespace);
            writes.usages.remove(&namespace);
        }
        Ok(())
    }

    fn usage(&self, namespace: &str) -> Applied {
        let kind = feeds::kind("VfUsage", "vfusages");
        let api = Api::namespaced_with(self.client.clone(), namespace, &kind);
        Applied { api, kind: "VfUsage", manager: MANAGER }
    }

    /// Namespaces that an earlier leader wrote a `VfUsage` for.
    async fn namespaces_with_usage(&self) -> std::result::Result<BTreeSet<String>, String> {
        let kind = feeds::kind("VfUsage", "vfusages");
        let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
        match crate::write::within(all.list_metadata(&ListParams::default())).await {
            Ok(usages) => Ok(usages.items.iter().filter_map(ResourceExt::namespace).collect()),
            Err(Failure::Missing) => Err(feeds::missing("VfUsages")),
            Err(Failure::Other(why)) => Err(format!("the VfUsages cannot be listed: {why}")),
        }
    }
}

async fn put(
    object: &Applied,
    name: &str,
    new: bool,
    status: &Value,
) -> std::result::Result<(), Failure> {
    if new {
        object.make(name, json!([])).await?;
    }
    object.status(name, status).await
}

/// The pools, and which of them are silent. `versions` holds the version of each pool and when it was
/// observed, by this clock, so that no clocks are compared.
fn read(
    pools: &[Arc<DynamicObject>],
    versions: &mut BTreeMap<String, (Option<String>, Instant)>,
) -> Vec<Pool> {
    let now = Instant::now();
    let mut before = std::mem::take(versions);
    pools
        .iter()
        .map(|pool| {
            let (node, version) = (pool.name_any(), pool.resource_version());
            let unchanged = before.remove(&node).filter(|(earlier, _)| *earlier == version);
            let since = unchanged.map_or(now, |(_, since)| since);
            versions.insert(node.clone(), (version, since));
            // The API server validated the schema; a status of a later version that differs counts as empty.
            let status = pool.data.get("status").cloned().unwrap_or_default();
            let status = serde_json::from_value(status).unwrap_or_default();
            Pool { node, silent: now.duration_since(since) >= SILENT_AFTER, status }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(version: &str) -> Vec<Arc<DynamicObject>> {
        let object = json!({"apiVersion": "planewise.io/v1alpha1", "kind": "VfPool",
            "metadata": {"name": "n", "resourceVersion": version}, "status": {"vfs": 1, "free": 1}});
        vec![Arc::new(serde_json::from_value(object).expect("a pool"))]
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_that_is_not_written_for_two_heartbeats_is_silent_until_it_is() {
        let mut versions = BTreeMap::new();
        assert!(!read(&pool("1"), &mut versions)[0].silent);
        tokio::time::advance(SILENT_AFTER - Duration::from_secs(1)).await;
        assert!(!read(&pool("1"), &mut versions)[0].silent);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(read(&pool("1"), &mut versions)[0].silent);
        assert!(!read(&pool("2"), &mut versions)[0].silent);
        read(&[], &mut versions);
        assert!(versions.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn rates_are_written_once_a_minute_and_all_else_at_once() {
        let written = Written { bare: json!(1), rates: json!([1, 5]), at: Instant::now() };
        assert!(is_due(None, &json!(1), &json!([1, 5])));
        assert!(is_due(Some(&written), &json!(2), &json!([2, 5])));
        assert!(!is_due(Some(&written), &json!(1), &json!([1, 6])));
        tokio::time::advance(RATES_INTERVAL).await;
        assert!(is_due(Some(&written), &json!(1), &json!([1, 6])));
        assert!(!is_due(Some(&written), &json!(1), &json!([1, 5])));
    }
}
