//! Writes the node's `VfPool`, conditions of pods, and events; seldom, as nothing waits for them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::api::Patch;
use kube::runtime::events::{self, EventType, Recorder};
use kube::{Api, Client, Resource, ResourceExt};
use planewised::daemon::status::Status;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::feeds::{kind, missing};
use crate::node::Agent;
use crate::objects::{self, Condition, VERSION};
use crate::policy::GROUP;
use crate::publish::Publisher;
use crate::write::{Applied, Backoff, Failure, apply, node_as_owner, now, within};

/// The field manager.
const MANAGER: &str = "planewised";
/// Between two checks for something to write.
const POLL: Duration = Duration::from_secs(1);
/// Between two writes of the pool where something changed.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// Between two writes of the pool where nothing changed: an older pool's agent does not run.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// The longest wait after failures is 2 to this power seconds.
const LONGEST_BACKOFF: u32 = 5;

/// The last write of the pool.
struct Written {
    body: Value,
    /// Each with the time of its last transition.
    conditions: Vec<(Condition, String)>,
    at: Instant,
}

/// The last write of a pod's condition.
struct ReportedCondition {
    condition: Condition,
    at: Instant,
}

/// Writes for one agent.
pub struct Reporter<'a> {
    agent: &'a Agent,
    client: Client,
    status: watch::Receiver<Arc<Status>>,
    recorder: Recorder,
    pools: Applied,
    publisher: Publisher<'a>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// The uid of the pool's object, once it exists.
    pool_uid: Option<String>,
    written: Option<Written>,
    /// By uid of the pod.
    reported: BTreeMap<String, ReportedCondition>,
    backoff: Backoff,
}

impl<'a> Reporter<'a> {
    /// Reports the daemon's status and the agent's conditions by this client.
    pub fn new(agent: &'a Agent, client: Client, status: watch::Receiver<Arc<Status>>) -> Self {
        let reporter = events::Reporter {
            controller: format!("{GROUP}/planewised"),
            instance: Some(agent.node.clone()),
        };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            publisher: Publisher::new(agent, client.clone(), MANAGER, MIN_INTERVAL),
            pools: Applied {
                api: Api::all_with(client.clone(), &kind("VfPool", "vfpools")),
                kind: "VfPool",
                manager: MANAGER,
            },
            agent,
            client,
            status,
            state: RefCell::default(),
        }
    }

    /// Writes until the daemon ends.
    pub async fn run(&self) {
        while self.status.has_changed().is_ok() {
            tokio::time::sleep(POLL).await;
            if self.state.borrow().backoff.is_pausing() {
                continue;
            }
            // A failed write does not prevent the others.
            let pods = self.report_pods().await;
            self.publish_slice().await;
            let pool = self.report_pool().await;
            let backoff = &mut self.state.borrow_mut().backoff;
            match pods.and(pool) {
                Ok(()) => backoff.succeeded(),
                Err(why) => backoff.failed(why, LONGEST_BACKOFF),
            }
        }
    }

    /// Writes the conditions of pods that changed.
    async fn report_pods(&self) -> Result<(), String> {
        let due: Vec<(Arc<Pod>, Condition)> = {
            let state = self.state.borrow();
            self.agent
                .judged()
                .iter()
                .filter_map(|judged| {
                    let condition = due(&judged.pod, judged.condition.as_ref())?;
                    let reported = judged.pod.uid().and_then(|uid| state.reported.get(&uid));
                    // The watch may not have delivered a written condition yet.
                    let is_due = reported.is_none_or(|reported| {
                        reported.condition != condition || reported.at.elapsed() >= MIN_INTERVAL
                    });
                    is_due.then(|| (Arc::clone(&judged.pod), condition))
                })
                .collect()
        };
        let mut result = Ok(());
        for (pod, condition) in due {
            if let Err(why) = self.report_pod(&pod, condition).await {
                result = Err(why);
            }
        }
        let present: Vec<String> =
            self.agent.judged().iter().filter_map(|judged| judged.pod.uid()).collect();
        self.state.borrow_mut().reported.retain(|uid, _| present.contains(uid));
        result
    }

    async fn report_pod(&self, pod: &Pod, condition: Condition) -> Result<(), String> {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let uid = pod.uid().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let patch = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "uid": uid},
            "status": {"conditions": [condition.json(&now())]}});
        match within(pods.patch_status(&name, &apply(MANAGER), &Patch::Apply(&patch))).await {
            // The pod is gone.
            Ok(_) | Err(Failure::Missing) => {}
            Err(Failure::Other(why)) => {
                return Err(format!(
                    "the condition of the pod {namespace}/{name} cannot be written: {why}"
                ));
            }
        }
        let new = {
            let mut state = self.state.borrow_mut();
            let reported = ReportedCondition { condition: condition.clone(), at: Instant::now() };
            let before = state.reported.insert(uid, reported);
            before.is_none_or(|before| before.condition != condition)
        };
        if new && condition.reason != "AsAsked" {
            self.event(&condition, &pod.object_ref(&())).await?;
        }
        Ok(())
    }

    async fn event(&self, condition: &Condition, about: &ObjectReference) -> Result<(), String> {
        let event = events::Event {
            type_: EventType::Warning,
            reason: condition.reason.clone(),
            // A note has 1 kB at most.
            note: Some(condition.message.chars().take(250).collect()),
            action: "Manage".to_owned(),
            secondary: None,
        };
        match within(self.recorder.publish(&event, about)).await {
            Ok(()) | Err(Failure::Missing) => Ok(()),
            Err(Failure::Other(why)) => Err(format!("an event cannot be written: {why}")),
        }
    }

    async fn publish_slice(&self) {
        let status = Arc::clone(&self.status.borrow());
        if status.counters.samples > 0 {
            self.publisher.publish(&status).await;
        }
    }

    /// Writes the node's pool, if it is due.
    async fn report_pool(&self) -> Result<(), String> {
        let status = Arc::clone(&self.status.borrow());
        if status.counters.samples == 0 {
            return Ok(());
        }
        // Rates change all the time: they are written along with other changes or the heartbeat.
        let rates = objects::pool_status(&status);
        let body = objects::without_rates(&rates);
        let ready = objects::readiness(&status, self.agent.unknown().as_deref());
        let now = now();
        let mut new = Vec::new();
        let (due, conditions) = {
            let state = self.state.borrow();
            let written = state.written.as_ref();
            let before = written.map(|written| written.conditions.as_slice()).unwrap_or_default();
            let mut conditions = Vec::new();
            for condition in std::iter::once(ready).chain(self.publisher.condition()) {
                let unchanged = before.iter().find(|(written, _)| *written == condition);
                if unchanged.is_none() {
                    new.push(condition.clone());
                }
                let since = unchanged.map_or_else(|| now.clone(), |(_, since)| since.clone());
                conditions.push((condition, since));
            }
            let due = written.is_none_or(|written| {
                let changed = written.conditions != conditions || written.body != body;
                written.at.elapsed() >= if changed { MIN_INTERVAL } else { HEARTBEAT }
            });
            (due, conditions)
        };
        if !due {
            return Ok(());
        }
        match self.write_pool(&objects::applied(rates, &conditions, &now)).await {
            Ok(()) => {}
            Err(Failure::Missing) => {
                self.state.borrow_mut().pool_uid = None;
                return self.report_missing_kind().await;
            }
            Err(Failure::Other(why)) => {
                return Err(format!("the VfPool {} cannot be written: {why}", self.agent.node));
            }
        }
        for condition in new.iter().filter(|condition| condition.status != "True") {
            self.event(condition, &self.reference("VfPool")).await?;
        }
        let written = Written { body, conditions, at: Instant::now() };
        self.state.borrow_mut().written = Some(written);
        Ok(())
    }

    async fn write_pool(&self, status: &Value) -> Result<(), Failure> {
        let node = self.agent.node.as_str();
        if self.state.borrow().pool_uid.is_none() {
            // The pool is removed with its node.
            let owners = node_as_owner(&self.client, node).await?;
            let uid = self.pools.make(node, owners).await?;
            self.state.borrow_mut().pool_uid = Some(uid);
        }
        self.pools.status(node, status).await
    }

    /// Reports on the node that the API server does not have the kind VfPool.
    async fn report_missing_kind(&self) -> Result<(), String> {
        let what = missing("VfPools");
        let condition = Condition::new("Ready", "Unknown", "NoVfPoolKind", what.clone());
        if !self.state.borrow().backoff.has_logged(&what) {
            self.event(&condition, &self.reference("Node")).await?;
        }
        Err(what)
    }

    fn reference(&self, kind: &str) -> ObjectReference {
        let name = self.agent.node.clone();
        // Events of a node have its name as uid, as the kubelet's do: `kubectl describe node` expects it.
        let (group, uid) = match kind {
            "Node" => ("v1".to_owned(), Some(name.clone())),
            _ => (format!("{GROUP}/{VERSION}"), self.state.borrow().pool_uid.clone()),
        };
        ObjectReference {
            api_version: Some(group),
            kind: Some(kind.to_owned()),
            name: Some(name),
            uid,
            ..ObjectReference::default()
        }
    }
}

/// The condition to write on a pod; none: the pod has it already, or needs none.
fn due(pod: &Pod, condition: Option<&Condition>) -> Option<Condition> {
    let kind = format!("{GROUP}/Managed");
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let written = conditions
        .into_iter()
        .flatten()
        .find(|written| written.type_ == kind)
        .and_then(|written| serde_json::to_value(written).ok());
    let condition = match (condition, &written) {
        (Some(condition), _) => condition.clone(),
        (None, Some(_)) => Condition::of_pod("True", "AsAsked", "no problem is left"),
        (None, None) => return None,
    };
    written.is_none_or(|written| !condition.is(&written)).then_some(condition)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(conditions: Value) -> Pod {
        let pod = json!({"metadata": {"name": "web"}, "status": {"conditions": conditions}});
        serde_json::from_value(pod).expect("a pod")
    }

    #[test]
    fn a_pod_is_told_only_what_it_does_not_have_already() {
        let refused = Condition::of_pod("False", "NoPolicy", "none");
        assert_eq!(due(&pod(json!([])), None), None);
        assert_eq!(due(&pod(json!([])), Some(&refused)), Some(refused.clone()));
        let reported = pod(json!([refused.json("2026-01-01T00:00:00Z")]));
        assert_eq!(due(&reported, Some(&refused)), None);
        // The problem is over.
        let over = due(&reported, None).expect("to be told");
        assert_eq!((over.status, over.reason.as_str()), ("True", "AsAsked"));
        assert_eq!(due(&pod(json!([over.json("2026-01-01T00:00:00Z")])), None), None);
    }
}
