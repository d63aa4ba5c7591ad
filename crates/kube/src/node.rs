//! The node agent: makes guests of pods, by policies and processes, whenever one of these changes. Runs on
//! a thread of its own, so that the daemon never waits for an API server.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use kube::{Client, ResourceExt};
use planewised::daemon::cluster::Devices;
use planewised::daemon::config;
use planewised::daemon::guests::source::{Container, KnownContainers, Source, SourceState};
use planewised::daemon::status::Status;
use pw_alloc::model::GuestId;
use tokio::sync::{Notify, watch};

use crate::devices::{self, HandedOut};
use crate::feeds::{Feed, Feeds};
use crate::objects::Condition;
use crate::policy::{self, Managed, Policy, Refusal, Ruling};
use crate::{process, slices};

/// Interval at which processes and the kubelet's record, which notify of no changes, are read.
const POLL: Duration = Duration::from_secs(1);

/// State shared by the daemon and this thread.
#[derive(Debug)]
pub struct Shared(Mutex<Exchange>);

#[derive(Debug)]
struct Exchange {
    source: SourceState,
    handed_out: Result<HandedOut, String>,
    /// Pods that the daemon cannot manage, and why.
    refused: BTreeMap<GuestId, String>,
}

impl Default for Shared {
    fn default() -> Self {
        let unanswered = "the API server has not answered yet".to_owned();
        Self(Mutex::new(Exchange {
            source: SourceState {
                containers: KnownContainers::Unknown(unanswered.clone()),
                trouble: None,
            },
            handed_out: Err(unanswered),
            refused: BTreeMap::new(),
        }))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Exchange> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why pods or devices are unknown.
    pub fn unknown(&self) -> Option<String> {
        let exchange = self.lock();
        match (&exchange.source.containers, &exchange.handed_out) {
            (KnownContainers::Unknown(why), _) | (_, Err(why)) => Some(why.clone()),
            _ => None,
        }
    }
}

impl Source for Shared {
    fn state(&self) -> SourceState {
        self.lock().source.clone()
    }

    fn is_present(&self) -> bool {
        true
    }

    fn set_refused(&self, refused: BTreeMap<GuestId, String>) {
        self.lock().refused = refused;
    }
}

impl Devices for Shared {
    fn handed_out(&self) -> Result<HandedOut, String> {
        self.lock().handed_out.clone()
    }
}

/// A pod and its condition; none: there is nothing to report.
pub struct JudgedPod {
    /// The pod.
    pub pod: Arc<Pod>,
    /// The condition.
    pub condition: Option<Condition>,
}

/// The agent of one node.
pub struct Agent {
    /// The node's name.
    pub node: String,
    config: config::Kubernetes,
    shared: Arc<Shared>,
    feeds: Feeds,
    /// A process of each managed pod, by the uid in its control group's path.
    processes: RefCell<BTreeMap<String, u32>>,
    judged: RefCell<Vec<JudgedPod>>,
}

impl Agent {
    /// An agent that has not begun.
    pub fn new(
        node: String,
        client: &Client,
        config: config::Kubernetes,
        shared: Arc<Shared>,
    ) -> Self {
        let feeds = Feeds::new(client, &node);
        let (processes, judged) = (RefCell::default(), RefCell::default());
        Self { node, config, shared, feeds, processes, judged }
    }

    /// Runs until the daemon ends, which closes `status`.
    pub async fn run(&self, status: &watch::Receiver<Arc<Status>>) {
        let changed = Notify::new();
        tokio::select! {
            () = self.feeds.follow(&changed) => {}
            () = self.update(&changed, status) => {}
        }
    }

    async fn update(&self, changed: &Notify, status: &watch::Receiver<Arc<Status>>) {
        while status.has_changed().is_ok() {
            let _ = tokio::time::timeout(POLL, changed.notified()).await;
            let source = self.judge_pods();
            let handed_out = self.handed_out();
            let mut exchange = self.shared.lock();
            exchange.source = source;
            exchange.handed_out = handed_out;
        }
    }

    /// The pods, each with its condition.
    pub fn judged(&self) -> std::cell::Ref<'_, Vec<JudgedPod>> {
        self.judged.borrow()
    }

    /// Why pods or devices are not known.
    pub fn unknown(&self) -> Option<String> {
        self.shared.unknown()
    }

    /// Whether the node's PFs are to be published.
    pub fn publishes(&self) -> bool {
        self.config.resource_slices
    }

    /// The node's ResourceSlices.
    pub fn slices(&self) -> &Feed<DynamicObject> {
        &self.feeds.slices
    }

    fn handed_out(&self) -> Result<HandedOut, String> {
        let mut handed_out = devices::registered(&self.config.device_plugins)?;
        let slices = self.feeds.slices.all()?;
        for slice in slices.iter().filter(|slice| !slices::is_ours(&slice.data)) {
            handed_out.extend(devices::published(&slice.data));
        }
        Ok(handed_out)
    }

    /// Makes guests of the managed pods, and keeps the conditions of all.
    fn judge_pods(&self) -> SourceState {
        let trouble = self.feeds.pods.trouble().or_else(|| self.feeds.policies.trouble());
        let listed = self.feeds.pods.all().and_then(|pods| Ok((pods, self.feeds.policies.all()?)));
        let (pods, policies) = match listed {
            Ok(listed) => listed,
            Err(why) => return SourceState { containers: KnownContainers::Unknown(why), trouble },
        };
        let policies: Vec<Policy> = policies
            .iter()
            .map(|policy| {
                let nothing = serde_json::json!({});
                let spec = policy.data.get("spec").unwrap_or(&nothing);
                Policy::new(&policy.namespace().unwrap_or_default(), &policy.name_any(), spec)
            })
            .collect();
        let rulings: Vec<(Arc<Pod>, Ruling)> = pods
            .iter()
            .filter(|pod| !has_ended(pod))
            .map(|pod| (Arc::clone(pod), policy::rule(&facts(pod), &policies)))
            .collect();
        let groups: BTreeMap<String, String> = rulings
            .iter()
            .filter(|(_, ruling)| matches!(ruling, Ruling::Managed(_)))
            .filter_map(|(pod, _)| Some((pod.uid()?, group_uid(pod, &pods)?)))
            .collect();
        let managed: BTreeSet<String> = groups.values().cloned().collect();
        let by_group = process::find(&self.config.proc, &managed, &self.processes.borrow());
        let by_group = match by_group {
            Ok(by_group) => by_group,
            Err(error) => {
                let proc = self.config.proc.display();
                let why = format!("the node's processes cannot be read in {proc}: {error}");
                return SourceState { containers: KnownContainers::Unknown(why), trouble };
            }
        };
        let processes =
            groups.into_iter().filter_map(|(uid, group)| Some((uid, *by_group.get(&group)?)));
        let processes = processes.collect();
        let refused = self.shared.lock().refused.clone();
        let mut containers = Vec::new();
        let mut judged = Vec::new();
        for (pod, ruling) in rulings {
            let (container, condition) = judge(&pod, ruling, &processes, &refused);
            containers.extend(container);
            judged.push(JudgedPod { pod, condition });
        }
        self.processes.replace(by_group);
        self.judged.replace(judged);
        SourceState { containers: KnownContainers::All(containers), trouble }
    }
}

/// A pod as a guest, and its condition.
fn judge(
    pod: &Pod,
    ruling: Ruling,
    processes: &BTreeMap<String, u32>,
    refused: &BTreeMap<GuestId, String>,
) -> (Option<Container>, Option<Condition>) {
    let condition =
        |status, reason: &str, message: &str| Some(Condition::of_pod(status, reason, message));
    let (wish, interface, notes) = match ruling {
        Ruling::Ignored => return (None, None),
        Ruling::Refused(Refusal { reason, message }) => {
            return (None, condition("False", reason, &message));
        }
        Ruling::Managed(Managed { wish, interface, notes }) => (wish, interface, notes),
    };
    let id = GuestId::from(format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()));
    let uid = pod.uid().unwrap_or_default();
    let Some(pid) = processes.get(&uid).copied() else {
        let runs = phase(pod) == Some("Running");
        let message = "it is running, but no process of it was found: the agent needs the node's \
                       /proc, and the kubelet's cgroupRoot must be /";
        return (None, runs.then(|| Condition::of_pod("False", "NoProcess", message)));
    };
    let condition = match refused.get(&id) {
        Some(why) => condition("False", "CannotBeManaged", why),
        None if notes.is_empty() => None,
        None => condition("True", "AnnotationsNotFollowed", &notes.join("; ")),
    };
    (Some(Container { id, run: uid, pid, interface, macs: Vec::new(), wish }), condition)
}

/// The uid in the path of the pod's control group. A static pod's object is a mirror with a uid of its own;
/// the kubelet uses the hash in the mirror's annotation. As anybody who creates pods can write that
/// annotation, a hash that another of the node's `pods` has, too, is refused.
fn group_uid(pod: &Pod, pods: &[Arc<Pod>]) -> Option<String> {
    let Some(mirrored) = mirrored(pod) else { return pod.uid() };
    let others = pods.iter().filter(|other| other.uid() != pod.uid());
    let of_other = |other: &Arc<Pod>| {
        other.uid().as_deref() == Some(mirrored) || self::mirrored(other) == Some(mirrored)
    };
    (!others.into_iter().any(of_other)).then(|| mirrored.to_owned())
}

/// The uid of the static pod that this one mirrors.
fn mirrored(pod: &Pod) -> Option<&str> {
    pod.annotations().get("kubernetes.io/config.mirror").map(String::as_str)
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), Some("Succeeded" | "Failed"))
}

fn facts(pod: &Pod) -> policy::Pod {
    policy::Pod {
        namespace: pod.namespace().unwrap_or_default(),
        labels: pod.labels().clone(),
        annotations: pod.annotations().clone(),
        host_network: pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(phase: &str) -> Pod {
        let pod = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
                         "status": {"phase": phase}});
        serde_json::from_value(pod).expect("a pod")
    }

    fn managed(notes: &[&str]) -> Ruling {
        let notes = notes.iter().map(|note| (*note).to_owned()).collect();
        Ruling::Managed(Managed { wish: Default::default(), interface: None, notes })
    }

    fn reason(condition: Option<Condition>) -> Option<(&'static str, String)> {
        condition.map(|condition| (condition.status, condition.reason))
    }

    #[test]
    fn a_pod_is_a_guest_once_a_process_of_it_is_seen() {
        let processes = [("u1".to_owned(), 42)].into();
        let (container, condition) =
            judge(&pod("Running"), managed(&[]), &processes, &BTreeMap::new());
        let container = container.expect("a guest");
        assert_eq!(
            (container.id.as_str(), container.pid, container.run.as_str()),
            ("shop/web", 42, "u1")
        );
        assert_eq!(condition, None);
        let none = BTreeMap::new();
        let (container, condition) = judge(&pod("Pending"), managed(&[]), &none, &BTreeMap::new());
        assert_eq!((container, condition), (None, None));
        let (container, condition) = judge(&pod("Running"), managed(&[]), &none, &BTreeMap::new());
        assert_eq!((container, reason(condition)), (None, Some(("False", "NoProcess".into()))));
    }

    #[test]
    fn a_static_pods_processes_are_found_by_the_hash_that_its_mirror_bears_unless_another_has_it() {
        let pod = |uid: &str, annotations: Value| -> Arc<Pod> {
            let pod = json!({"metadata": {"name": uid, "namespace": "shop", "uid": uid,
                                          "annotations": annotations}});
            Arc::new(serde_json::from_value(pod).expect("a pod"))
        };
        let mirror = |uid: &str, of: &str| pod(uid, json!({"kubernetes.io/config.mirror": of}));
        let (plain, first, second) =
            (pod("u1", json!({})), mirror("u2", "abc"), mirror("u3", "abc"));
        let group = |of: &Arc<Pod>, pods: &[&Arc<Pod>]| {
            group_uid(of, &pods.iter().copied().cloned().collect::<Vec<_>>())
        };
        assert_eq!(group(&plain, &[&plain, &first]).as_deref(), Some("u1"));
        assert_eq!(group(&first, &[&plain, &first]).as_deref(), Some("abc"));
        assert_eq!(group(&first, &[&first, &second]), None);
        let forged = mirror("u4", "u1");
        assert_eq!(group(&forged, &[&plain, &forged]), None);
        assert_eq!(group(&plain, &[&plain, &forged]).as_deref(), Some("u1"));
    }

    #[test]
    fn a_pod_is_told_what_the_daemon_refuses_before_what_its_annotations_got_wrong() {
        let processes = [("u1".to_owned(), 42)].into();
        let refused = [(GuestId::from("shop/web"), "it has no veth".to_owned())].into();
        let (container, condition) = judge(&pod("Running"), managed(&["x"]), &processes, &refused);
        assert!(container.is_some());
        assert_eq!(reason(condition), Some(("False", "CannotBeManaged".into())));
        let (_, condition) = judge(&pod("Running"), managed(&["x"]), &processes, &BTreeMap::new());
        assert_eq!(reason(condition), Some(("True", "AnnotationsNotFollowed".into())));
    }

    #[test]
    fn nothing_is_known_before_the_api_server_has_answered() {
        let shared = Shared::default();
        assert!(matches!(shared.state().containers, KnownContainers::Unknown(_)));
        assert!(shared.handed_out().is_err() && shared.unknown().is_some());
    }
}
