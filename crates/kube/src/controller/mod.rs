//! `planewised-kubernetes controller`: one view of all nodes' `VfPool`s, written by the one of its
//! replicas that leads. Keeps nothing that it could not sum up again.

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
use crate::objects::Condition;
use crate::write::{Applied, Failure, now};
use fleet::{Fleet, Pool};
use lease::{Candidate, Leads};

/// Who writes.
const MANAGER: &str = "planewise-controller";
/// The one `VfFleet`, and each namespace's `VfUsage`.
const FLEET: &str = "fleet";
const USAGE: &str = "usage";
/// Between two sums.
const APART: Duration = Duration::from_secs(2);
/// Between two writings of what changed in nothing but rates.
const RATES: Duration = Duration::from_secs(60);
/// A pool that was not written for so long is of an agent that does not run: two heartbeats are missing.
const SILENT: Duration = Duration::from_secs(150);
/// The longest wait after failures is 2 to this power seconds.
const LONGEST_BACKOFF: u32 = 4;

/// Sums up what the agents of all nodes report: a VfFleet, a VfUsage a namespace, metrics.
///
/// Any number of replicas may run; one writes. SIGTERM hands over to another one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How the API server is reached; without it as a pod of the cluster
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The namespace of the Lease; without it that of the pod or of the kubeconfig's context
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// This replica's name, which no other one has
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    identity: String,
    /// Where /metrics and /readyz are answered
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9469")]
    listen: SocketAddr,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// The API's access is not known, or the address is in use. An API server that does not answer is no error.
pub fn run(args: &Args) -> Result<()> {
    planewised::face::log::start(planewised::daemon::config::Config::default().log);
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
        let (leads, led) = watch::channel(None);
        let (summed, shown) = watch::channel(None);
        let changed = Notify::new();
        let controller = Controller::new(client);
        tokio::select! {
            () = controller.pools.follow(&changed) => {}
            () = candidate.run(&leads) => {}
            () = controller.sum_up(&changed, &led, &summed) => {}
            ended = metrics::serve(listener, shown, led.clone()) => {
                let failed = |error| Error::failed("the metrics cannot be served", "").caused_by(error);
                return ended.map_err(failed);
            }
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
        candidate.release().await;
        Ok(())
    })
}

/// What was written last of an object.
struct Written {
    bare: Value,
    rates: Value,
    at: Instant,
}

/// An object is to be written if more than its rates changed, or if these are old.
fn is_due(written: Option<&Written>, bare: &Value, rates: &Value) -> bool {
    written.is_none_or(|written| {
        written.bare != *bare || (written.rates != *rates && written.at.elapsed() >= RATES)
    })
}

/// What one leader has written; another one begins anew.
#[derive(Default)]
struct Led {
    fleet: Option<Written>,
    fleet_is_old: bool,
    /// The fleet's condition, and since when it is so.
    complete: Option<(Condition, String)>,
    usages: BTreeMap<String, Written>,
    /// The namespaces whose `VfUsage` is there, once they were asked for.
    there: Option<BTreeSet<String>>,
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

    async fn sum_up(
        &self,
        changed: &Notify,
        leads: &watch::Receiver<Leads>,
        summed: &watch::Sender<Option<Arc<Fleet>>>,
    ) {
        let mut seen = BTreeMap::new();
        let mut led = Led::default();
        let (mut failures, mut trouble, mut quiet_until) = (0_u32, None, Instant::now());
        loop {
            let _ = tokio::time::timeout(RATES / 10, changed.notified()).await;
            tokio::time::sleep(APART).await;
            // What is known while the API server does not answer is old: it is neither written nor aged.
            let pools = match (self.pools.all(), self.pools.trouble()) {
                (Ok(pools), None) => pools,
                _ => {
                    seen.clear();
                    continue;
                }
            };
            let fleet = Arc::new(fleet::sum(&read(&pools, &mut seen)));
            summed.send_replace(Some(Arc::clone(&fleet)));
            if leads.borrow().is_none_or(|until| until <= Instant::now()) {
                led = Led::default();
                continue;
            }
            if Instant::now() < quiet_until {
                continue;
            }
            match self.write(&fleet, &mut led, leads).await {
                Ok(()) => (failures, trouble) = (0, None),
                Err(why) => {
                    quiet_until =
                        Instant::now() + Duration::from_secs(1 << failures.min(LONGEST_BACKOFF));
                    failures = failures.saturating_add(1);
                    if trouble.as_ref() != Some(&why) {
                        tracing::warn!("{why}");
                        trouble = Some(why);
                    }
                }
            }
        }
    }

    async fn write(
        &self,
        fleet: &Fleet,
        led: &mut Led,
        leads: &watch::Receiver<Leads>,
    ) -> std::result::Result<(), String> {
        let (bare, rates) = (fleet.body(false), fleet.body(true));
        let (complete, at) = (fleet.complete(), now());
        if led.complete.as_ref().is_none_or(|(before, _)| *before != complete) {
            led.complete = Some((complete, at.clone()));
            // It is a change like any other.
            led.fleet_is_old = true;
        }
        let heartbeat = led.fleet.as_ref().is_none_or(|written| written.at.elapsed() >= RATES);
        if led.fleet_is_old || heartbeat || is_due(led.fleet.as_ref(), &bare, &rates) {
            let conditions = led.complete.iter().map(|(complete, since)| complete.json(since));
            let mut status = rates.clone();
            status["conditions"] = conditions.collect();
            status["reportedAt"] = json!(at);
            led.fleet_is_old = true;
            match put(&self.fleets, FLEET, led.fleet.is_none(), &status).await {
                Ok(()) => {
                    led.fleet = Some(Written { bare, rates, at: Instant::now() });
                    led.fleet_is_old = false;
                }
                Err(Failure::Missing) => {
                    led.fleet = None;
                    return Err(feeds::missing("VfFleets"));
                }
                Err(Failure::Other(why)) => {
                    return Err(format!("the VfFleet cannot be written: {why}"));
                }
            }
        }
        if led.there.is_none() {
            led.there = Some(self.namespaces_with_usage().await?);
        }
        let there = led.there.get_or_insert_default();
        for (namespace, sums) in &fleet.namespaces {
            if leads.borrow().is_none_or(|until| until <= Instant::now()) {
                return Ok(());
            }
            let (bare, rates) = (sums.body(false), sums.body(true));
            if !is_due(led.usages.get(namespace), &bare, &rates) {
                continue;
            }
            match put(&self.usage(namespace), USAGE, !led.usages.contains_key(namespace), &rates)
                .await
            {
                Ok(()) => {
                    let written = Written { bare, rates, at: Instant::now() };
                    led.usages.insert(namespace.clone(), written);
                    there.insert(namespace.clone());
                }
                // It, or its namespace, was deleted.
                Err(Failure::Missing) => drop(led.usages.remove(namespace)),
                Err(Failure::Other(why)) => {
                    return Err(format!("the VfUsage of {namespace} cannot be written: {why}"));
                }
            }
        }
        let over: Vec<String> =
            there.iter().filter(|name| !fleet.namespaces.contains_key(*name)).cloned().collect();
        for namespace in over {
            let delete = self.usage(&namespace);
            match crate::write::within(delete.api.delete(USAGE, &Default::default())).await {
                Ok(_) | Err(Failure::Missing) => {}
                Err(Failure::Other(why)) => {
                    return Err(format!("the VfUsage of {namespace} cannot be deleted: {why}"));
                }
            }
            there.remove(&namespace);
            led.usages.remove(&namespace);
        }
        Ok(())
    }

    fn usage(&self, namespace: &str) -> Applied {
        let kind = feeds::kind("VfUsage", "vfusages");
        let api = Api::namespaced_with(self.client.clone(), namespace, &kind);
        Applied { api, kind: "VfUsage", manager: MANAGER }
    }

    /// Those of an earlier leader, which may be over.
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

/// The pools with which of them are silent. `seen` has when each was seen to change: nobody's clock is
/// compared with this one's.
fn read(
    pools: &[Arc<DynamicObject>],
    seen: &mut BTreeMap<String, (Option<String>, Instant)>,
) -> Vec<Pool> {
    let now = Instant::now();
    let mut before = std::mem::take(seen);
    pools
        .iter()
        .map(|pool| {
            let (node, version) = (pool.name_any(), pool.resource_version());
            let known = before.remove(&node).filter(|(known, _)| *known == version);
            let since = known.map_or(now, |(_, since)| since);
            seen.insert(node.clone(), (version, since));
            // The schema was checked by the API server; what a later version says otherwise is left out.
            let status = pool.data.get("status").cloned().unwrap_or_default();
            let status = serde_json::from_value(status).unwrap_or_default();
            Pool { node, silent: now.duration_since(since) >= SILENT, status }
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
        let mut seen = BTreeMap::new();
        assert!(!read(&pool("1"), &mut seen)[0].silent);
        tokio::time::advance(SILENT - Duration::from_secs(1)).await;
        assert!(!read(&pool("1"), &mut seen)[0].silent);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(read(&pool("1"), &mut seen)[0].silent);
        assert!(!read(&pool("2"), &mut seen)[0].silent);
        read(&[], &mut seen);
        assert!(seen.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn rates_are_written_once_a_minute_and_all_else_at_once() {
        let written = Written { bare: json!(1), rates: json!([1, 5]), at: Instant::now() };
        assert!(is_due(None, &json!(1), &json!([1, 5])));
        assert!(is_due(Some(&written), &json!(2), &json!([2, 5])));
        assert!(!is_due(Some(&written), &json!(1), &json!([1, 6])));
        tokio::time::advance(RATES).await;
        assert!(is_due(Some(&written), &json!(1), &json!([1, 6])));
        assert!(!is_due(Some(&written), &json!(1), &json!([1, 5])));
    }
}
