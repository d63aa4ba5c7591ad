//! The node agent: from pods, policies and processes to guests, whenever one of them changes. A thread
//! of its own, so that the daemon never waits for an API server.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use kube::{Client, ResourceExt};
use planewised::daemon::cluster::Devices;
use planewised::daemon::config;
use planewised::daemon::guests::source::{Container, Containing, Seen, Source};
use planewised::daemon::status::Status;
use pw_alloc::model::GuestId;
use tokio::sync::{Notify, watch};

use crate::devices::{self, HandedOut};
use crate::feeds::{Feed, Feeds};
use crate::objects::Condition;
use crate::policy::{self, Policy, Refusal, Ruling};
use crate::{process, slices};

/// Between two looks at processes and at the kubelet's record, which tell no changes.
const LOOK: Duration = Duration::from_secs(1);

/// What the daemon and this thread tell each other.
#[derive(Debug)]
pub struct Shared(Mutex<Told>);

#[derive(Debug)]
struct Told {
    seen: Seen,
    handed_out: Result<HandedOut, String>,
    /// The pods that the daemon cannot manage.
    refused: BTreeMap<GuestId, String>,
}

impl Default for Shared {
    fn default() -> Self {
        let unheard = "the API server has not answered yet".to_owned();
        Self(Mutex::new(Told {
            seen: Seen { containers: Containing::Unknown(unheard.clone()), trouble: None },
            handed_out: Err(unheard),
            refused: BTreeMap::new(),
        }))
    }
}

impl Shared {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why pods or devices are not known.
    pub fn unknown(&self) -> Option<String> {
        let told = self.told();
        match (&told.seen.containers, &told.handed_out) {
            (Containing::Unknown(why), _) | (_, Err(why)) => Some(why.clone()),
            _ => None,
        }
    }
}

impl Source for Shared {
    fn seen(&self) -> Seen {
        self.told().seen.clone()
    }

    fn is_there(&self) -> bool {
        true
    }

    fn tell_refused(&self, refused: BTreeMap<GuestId, String>) {
        self.told().refused = refused;
    }
}

impl Devices for Shared {
    fn handed_out(&self) -> Result<HandedOut, String> {
        self.told().handed_out.clone()
    }
}

/// A pod and what it is to be told; none: all is as it asked.
pub struct Ruled {
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
    /// A process of each managed pod, by the uid in its control group's name.
    processes: RefCell<BTreeMap<String, u32>>,
    ruled: RefCell<Vec<Ruled>>,
}

impl Agent {
    /// An agent that has not asked for anything yet.
    pub fn new(
        node: String,
        client: &Client,
        config: config::Kubernetes,
        shared: Arc<Shared>,
    ) -> Self {
        let feeds = Feeds::new(client, &node);
        let (processes, ruled) = (RefCell::default(), RefCell::default());
        Self { node, config, shared, feeds, processes, ruled }
    }

    /// Works until the daemon ends, which closes `status`.
    pub async fn run(&self, status: &watch::Receiver<Arc<Status>>) {
        let changed = Notify::new();
        tokio::select! {
            () = self.feeds.follow(&changed) => {}
            () = self.look(&changed, status) => {}
        }
    }

    async fn look(&self, changed: &Notify, status: &watch::Receiver<Arc<Status>>) {
        while status.has_changed().is_ok() {
            let _ = tokio::time::timeout(LOOK, changed.notified()).await;
            let seen = self.see();
            let handed_out = self.handed_out();
            let mut told = self.shared.told();
            told.seen = seen;
            told.handed_out = handed_out;
        }
    }

    /// The pods with what each is to be told.
    pub fn ruled(&self) -> std::cell::Ref<'_, Vec<Ruled>> {
        self.ruled.borrow()
    }

    /// Why pods or devices are not known.
    pub fn unknown(&self) -> Option<String> {
        self.shared.unknown()
    }

    /// Shall the node's PFs be published?
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

    /// The pods that are guests.
    fn see(&self) -> Seen {
        let trouble = self.feeds.pods.trouble().or_else(|| self.feeds.policies.trouble());
        let known = self.feeds.pods.all().and_then(|pods| Ok((pods, self.feeds.policies.all()?)));
        let (pods, policies) = match known {
            Ok(known) => known,
            Err(why) => return Seen { containers: Containing::Unknown(why), trouble },
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
            .filter(|(_, ruling)| matches!(ruling, Ruling::Managed { .. }))
            .filter_map(|(pod, _)| Some((pod.uid()?, group_uid(pod, &pods)?)))
            .collect();
        let managed: BTreeSet<String> = groups.values().cloned().collect();
        let found = process::find(&self.config.proc, &managed, &self.processes.borrow());
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                let proc = self.config.proc.display();
                let why = format!("the node's processes cannot be read in {proc}: {error}");
                return Seen { containers: Containing::Unknown(why), trouble };
            }
        };
        let processes =
            groups.into_iter().filter_map(|(uid, group)| Some((uid, *found.get(&group)?)));
        let processes = processes.collect();
        let refused = self.shared.told().refused.clone();
        let mut containers = Vec::new();
        let mut ruled = Vec::new();
        for (pod, ruling) in rulings {
            let (container, condition) = judge(&pod, ruling, &processes, &refused);
            containers.extend(container);
            ruled.push(Ruled { pod, condition });
        }
        self.processes.replace(found);
        self.ruled.replace(ruled);
        Seen { containers: Containing::All(containers), trouble }
    }
}

/// A pod as a guest, and what it is to be told.
fn judge(
    pod: &Pod,
    ruling: Ruling,
    processes: &BTreeMap<String, u32>,
    refused: &BTreeMap<GuestId, String>,
) -> (Option<Container>, Option<Condition>) {
    let told =
        |status, reason: &str, message: &str| Some(Condition::of_pod(status, reason, message));
    let (wish, interface, notes) = match ruling {
        Ruling::Ignored => return (None, None),
        Ruling::Refused(Refusal { reason, message }) => {
            return (None, told("False", reason, &message));
        }
        Ruling::Managed { wish, interface, notes } => (wish, interface, notes),
    };
    let id = GuestId::from(format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()));
    let uid = pod.uid().unwrap_or_default();
    let Some(pid) = processes.get(&uid).copied() else {
        let runs = phase(pod) == Some("Running");
        let message = "it runs, and no process of it is seen: the agent must see the node's processes, \
                       and the kubelet's cgroupRoot must be /";
        return (None, runs.then(|| Condition::of_pod("False", "NoProcess", message)));
    };
    let condition = match refused.get(&id) {
        Some(why) => told("False", "CannotBeManaged", why),
        None if notes.is_empty() => None,
        None => told("True", "AnnotationsNotFollowed", &notes.join("; ")),
    };
    (Some(Container { id, run: uid, pid, interface, macs: Vec::new(), wish }), condition)
}

/// The uid in the name of the pod's control group. The object of a static pod is a mirror with a uid of
/// its own: the kubelet's is the hash that the mirror bears. Whoever makes pods can write that, too: what
/// is another pod's as well, of `pods` of the node, is not believed.
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
        Ruling::Managed { wish: Default::default(), interface: None, notes }
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
        assert!(matches!(shared.seen().containers, Containing::Unknown(_)));
        assert!(shared.handed_out().is_err() && shared.unknown().is_some());
    }
}
