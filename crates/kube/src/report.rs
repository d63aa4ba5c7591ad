//! What the agent writes: the node's `VfPool`, conditions of pods, events. Little, and late rather than
//! often: nothing waits for it.

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
use crate::write::{Applied, Failure, apply, node_as_owner, now, within};

/// Who writes.
const MANAGER: &str = "planewised";
/// Between two looks at whether there is something to write.
const LOOK: Duration = Duration::from_secs(1);
/// Between two writings of the pool, if something changed.
const APART: Duration = Duration::from_secs(10);
/// Between two writings of the pool if nothing changed: an older one is of an agent that does not run.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// The longest wait after failures is 2 to this power seconds.
const LONGEST_BACKOFF: u32 = 5;

/// What was written last of the pool.
struct Written {
    body: Value,
    /// Each with when it became that.
    conditions: Vec<(Condition, String)>,
    at: Instant,
}

/// What a pod was told last.
struct Said {
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
    /// The uid of the pool's object, once it is there.
    made: Option<String>,
    written: Option<Written>,
    /// By the pods' uids.
    said: BTreeMap<String, Said>,
    failures: u32,
    quiet_until: Option<Instant>,
    /// What failed last, so that it is logged once.
    trouble: Option<String>,
}

impl<'a> Reporter<'a> {
    /// Writes by this client what the daemon's status and the agent tell.
    pub fn new(agent: &'a Agent, client: Client, status: watch::Receiver<Arc<Status>>) -> Self {
        let who = events::Reporter {
            controller: format!("{GROUP}/planewised"),
            instance: Some(agent.node.clone()),
        };
        Self {
            recorder: Recorder::new(client.clone(), who),
            publisher: Publisher::new(agent, client.clone(), MANAGER, APART),
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
            tokio::time::sleep(LOOK).await;
            if self.state.borrow().quiet_until.is_some_and(|until| Instant::now() < until) {
                continue;
            }
            // What cannot be written keeps nothing else from being written.
            let pods = self.tell_pods().await;
            self.tell_slice().await;
            let pool = self.tell_pool().await;
            self.take_result(pods.and(pool));
        }
    }

    fn take_result(&self, result: Result<(), String>) {
        let mut state = self.state.borrow_mut();
        match result {
            Ok(()) => (state.failures, state.quiet_until, state.trouble) = (0, None, None),
            Err(why) => {
                let seconds = 1_u64 << state.failures.min(LONGEST_BACKOFF);
                state.failures = state.failures.saturating_add(1);
                state.quiet_until = Some(Instant::now() + Duration::from_secs(seconds));
                if state.trouble.as_ref() != Some(&why) {
                    tracing::warn!("{why}");
                    state.trouble = Some(why);
                }
            }
        }
    }

    /// Conditions of pods that are to be told something else than they were.
    async fn tell_pods(&self) -> Result<(), String> {
        let due: Vec<(Arc<Pod>, Condition)> = {
            let state = self.state.borrow();
            self.agent
                .ruled()
                .iter()
                .filter_map(|ruled| {
                    let condition = due(&ruled.pod, ruled.condition.as_ref())?;
                    let said = ruled.pod.uid().and_then(|uid| state.said.get(&uid));
                    // What was written has not come back by the watch yet.
                    let again = said.is_none_or(|said| {
                        said.condition != condition || said.at.elapsed() >= APART
                    });
                    again.then(|| (Arc::clone(&ruled.pod), condition))
                })
                .collect()
        };
        let mut result = Ok(());
        for (pod, condition) in due {
            if let Err(why) = self.tell_pod(&pod, condition).await {
                result = Err(why);
            }
        }
        let there: Vec<String> =
            self.agent.ruled().iter().filter_map(|ruled| ruled.pod.uid()).collect();
        self.state.borrow_mut().said.retain(|uid, _| there.contains(uid));
        result
    }

    async fn tell_pod(&self, pod: &Pod, condition: Condition) -> Result<(), String> {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let uid = pod.uid().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let patch = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "uid": uid},
            "status": {"conditions": [condition.json(&now())]}});
        match within(pods.patch_status(&name, &apply(MANAGER), &Patch::Apply(&patch))).await {
            // It has gone since.
            Ok(_) | Err(Failure::Missing) => {}
            Err(Failure::Other(why)) => {
                return Err(format!(
                    "the condition of the pod {namespace}/{name} cannot be written: {why}"
                ));
            }
        }
        let anew = {
            let mut state = self.state.borrow_mut();
            let said = Said { condition: condition.clone(), at: Instant::now() };
            let before = state.said.insert(uid, said);
            before.is_none_or(|before| before.condition != condition)
        };
        if anew && condition.reason != "AsAsked" {
            self.event(&condition, &pod.object_ref(&())).await?;
        }
        Ok(())
    }

    async fn event(&self, condition: &Condition, about: &ObjectReference) -> Result<(), String> {
        let event = events::Event {
            type_: EventType::Warning,
            reason: condition.reason.clone(),
            // A note of an event has 1 kB at most.
            note: Some(condition.message.chars().take(250).collect()),
            action: "Manage".to_owned(),
            secondary: None,
        };
        match within(self.recorder.publish(&event, about)).await {
            Ok(()) => Ok(()),
            Err(Failure::Missing) => Ok(()),
            Err(Failure::Other(why)) => Err(format!("an event cannot be written: {why}")),
        }
    }

    async fn tell_slice(&self) {
        let status = Arc::clone(&self.status.borrow());
        if status.counters.samples > 0 {
            self.publisher.publish(&status).await;
        }
    }

    /// The node's pool, if it is due.
    async fn tell_pool(&self) -> Result<(), String> {
        let status = Arc::clone(&self.status.borrow());
        if status.counters.samples == 0 {
            return Ok(());
        }
        // Rates differ all the time: they are written whenever something else is, or the heartbeat.
        let body = objects::pool_status(&status, false);
        let ready = objects::readiness(&status, self.agent.unknown().as_deref());
        let now = now();
        let mut anew = Vec::new();
        let (due, conditions) = {
            let state = self.state.borrow();
            let written = state.written.as_ref();
            let before = written.map(|written| written.conditions.as_slice()).unwrap_or_default();
            let mut conditions = Vec::new();
            for condition in std::iter::once(ready).chain(self.publisher.condition()) {
                let same = before.iter().find(|(told, _)| *told == condition);
                if same.is_none() {
                    anew.push(condition.clone());
                }
                let since = same.map_or_else(|| now.clone(), |(_, since)| since.clone());
                conditions.push((condition, since));
            }
            let due = written.is_none_or(|written| {
                let changed = written.conditions != conditions || written.body != body;
                written.at.elapsed() >= if changed { APART } else { HEARTBEAT }
            });
            (due, conditions)
        };
        if !due {
            return Ok(());
        }
        let rates = objects::pool_status(&status, true);
        let result = self.write_pool(&objects::applied(rates, &conditions, &now)).await;
        if let Err(Failure::Missing) = result {
            self.state.borrow_mut().made = None;
        }
        match result {
            Ok(()) => {}
            Err(Failure::Missing) => return self.no_kind().await,
            Err(Failure::Other(why)) => {
                return Err(format!("the VfPool {} cannot be written: {why}", self.agent.node));
            }
        }
        for condition in anew.iter().filter(|condition| condition.status != "True") {
            self.event(condition, &self.reference("VfPool")).await?;
        }
        let written = Written { body, conditions, at: Instant::now() };
        self.state.borrow_mut().written = Some(written);
        Ok(())
    }

    async fn write_pool(&self, status: &Value) -> Result<(), Failure> {
        let node = self.agent.node.as_str();
        if self.state.borrow().made.is_none() {
            // A pool goes with its node.
            let owners = node_as_owner(&self.client, node).await?;
            let uid = self.pools.make(node, owners).await?;
            self.state.borrow_mut().made = Some(uid);
        }
        self.pools.status(node, status).await
    }

    /// There is no object that could be told: the node is.
    async fn no_kind(&self) -> Result<(), String> {
        let what = missing("VfPools");
        let condition = Condition {
            kind: "Ready".into(),
            status: "Unknown",
            reason: "NoVfPoolKind".into(),
            message: what.clone(),
        };
        if self.state.borrow().trouble.as_ref() != Some(&what) {
            self.event(&condition, &self.reference("Node")).await?;
        }
        Err(what)
    }

    fn reference(&self, kind: &str) -> ObjectReference {
        let name = self.agent.node.clone();
        // Events of a node bear its name as uid, as the kubelet's do: `kubectl describe node` asks for it.
        let (group, uid) = match kind {
            "Node" => ("v1".to_owned(), Some(name.clone())),
            _ => (format!("{GROUP}/{VERSION}"), self.state.borrow().made.clone()),
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

/// What a pod is to be told; none: it was told already, or there is nothing to tell.
fn due(pod: &Pod, condition: Option<&Condition>) -> Option<Condition> {
    let kind = format!("{GROUP}/Managed");
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let told = conditions
        .into_iter()
        .flatten()
        .find(|told| told.type_ == kind)
        .and_then(|told| serde_json::to_value(told).ok());
    let wanted = match (condition, &told) {
        (Some(condition), _) => condition.clone(),
        (None, Some(_)) => Condition::of_pod("True", "AsAsked", "nothing is amiss any more"),
        (None, None) => return None,
    };
    told.is_none_or(|told| !wanted.is(&told)).then_some(wanted)
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
        let told = pod(json!([refused.json("2026-01-01T00:00:00Z")]));
        assert_eq!(due(&told, Some(&refused)), None);
        // What was amiss is over.
        let over = due(&told, None).expect("to be told");
        assert_eq!((over.status, over.reason.as_str()), ("True", "AsAsked"));
        assert_eq!(due(&pod(json!([over.json("2026-01-01T00:00:00Z")])), None), None);
    }
}
