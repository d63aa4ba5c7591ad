//! Objects of the API server that concern this node: pods, policies, devices. Watches keep them up to date,
//! and restart whenever they end (a restart, a compacted history).

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::hash::Hash;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{Store, store::Writer};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use crate::objects::VERSION;
use crate::policy::GROUP;

/// Pause between attempts at a kind that the API server does not have.
const MISSING: Duration = Duration::from_secs(60);

/// The pause after this many failures in a row: up to 16 s, randomised, so that the agents of all nodes do
/// not come back at once.
fn pause(failures: u32) -> Duration {
    let part = k8s_openapi::jiff::Timestamp::now().subsec_microsecond().unsigned_abs() % 1000;
    Duration::from_millis(500 << failures.min(4)) * (1000 + part) / 1000
}

/// An error in one sentence.
fn sentence(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => format!("{} {}", status.code, status.message),
        error => error.to_string(),
    }
}

/// Objects of one kind.
pub struct Feed<K: Resource + Clone + 'static>
where
    K::DynamicType: Eq + Hash + Clone,
{
    store: Store<K>,
    writer: RefCell<Option<Writer<K>>>,
    api: Api<K>,
    config: watcher::Config,
    /// Their name in messages.
    label: &'static str,
    /// Whether there are no objects where the API server does not have the kind (of newer Kubernetes).
    optional: bool,
    /// Whether they were listed completely once.
    listed: Cell<bool>,
    /// Whether the API server does not have the kind.
    missing: Cell<bool>,
    trouble: RefCell<Option<String>>,
}

impl<K> Feed<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    /// A feed that has not begun.
    pub fn new(
        label: &'static str,
        api: Api<K>,
        kind: K::DynamicType,
        config: watcher::Config,
        optional: bool,
    ) -> Self {
        let writer = Writer::new(kind);
        Self {
            store: writer.as_reader(),
            writer: RefCell::new(Some(writer)),
            api,
            config,
            label,
            optional,
            listed: Cell::new(false),
            missing: Cell::new(false),
            trouble: RefCell::new(None),
        }
    }

    /// All objects; while the API server does not answer, the last known ones.
    pub fn all(&self) -> Result<Vec<Arc<K>>, String> {
        if self.missing.get() && self.optional {
            return Ok(Vec::new());
        }
        if self.listed.get() {
            return Ok(self.store.state());
        }
        Err(self
            .trouble()
            .unwrap_or_else(|| format!("the API server has not listed {} yet", self.label)))
    }

    /// Is the kind missing in the API server?
    pub fn is_missing(&self) -> bool {
        self.missing.get()
    }

    /// The current failure.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    /// Watches for ever, and notifies `changed` of every change.
    pub async fn follow(&self, changed: &Notify) {
        let Some(writer) = self.writer.borrow_mut().take() else { return };
        let events = watcher(self.api.clone(), self.config.clone())
            .modify(|object| object.meta_mut().managed_fields = None)
            .reflect(writer);
        let mut events = pin!(events);
        let mut failures = 0;
        while let Some(event) = events.next().await {
            match event {
                // A request has begun, without an answer yet.
                Ok(Event::Init) => {}
                Ok(event) => {
                    failures = 0;
                    self.trouble.replace(None);
                    if matches!(event, Event::InitDone) {
                        self.listed.set(true);
                        self.missing.set(false);
                    }
                }
                Err(error) => {
                    self.missing.set(is_missing(&error));
                    let why = if self.missing.get() && !self.optional {
                        missing(self.label)
                    } else {
                        format!("the API server does not list {}: {}", self.label, sentence(&error))
                    };
                    if self.trouble.replace(Some(why.clone())).is_none() {
                        tracing::warn!("{why}");
                    }
                    changed.notify_one();
                    let pause = if self.missing.get() { MISSING } else { pause(failures) };
                    failures = failures.saturating_add(1);
                    tokio::time::sleep(pause).await;
                }
            }
            changed.notify_one();
        }
    }
}

/// Does the API server not have the kind?
fn is_missing(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    }
}

/// The message where the API server does not have one of this program's kinds.
pub fn missing(what: &str) -> String {
    format!(
        "the API server knows no {what} of {GROUP}/{VERSION}: apply packaging/kubernetes/chart/crds"
    )
}

/// All watches.
pub struct Feeds {
    /// The node's pods.
    pub pods: Feed<Pod>,
    /// All policies.
    pub policies: Feed<DynamicObject>,
    /// The node's devices, as DRA drivers publish them.
    pub slices: Feed<DynamicObject>,
}

/// One of this program's kinds.
pub fn kind(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind), plural)
}

/// The kind that DRA drivers publish.
pub fn resource_slices() -> ApiResource {
    let kind = GroupVersionKind::gvk("resource.k8s.io", "v1", "ResourceSlice");
    ApiResource::from_gvk_with_plural(&kind, "resourceslices")
}

impl Feeds {
    /// The watches of this node.
    pub fn new(client: &Client, node: &str) -> Self {
        let of_node = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        let policies = kind("VfPolicy", "vfpolicies");
        let slices = resource_slices();
        let all = |kind: &ApiResource| Api::all_with(client.clone(), kind);
        let everything = watcher::Config::default();
        let pods = Api::all(client.clone());
        Self {
            pods: Feed::new("this node's pods", pods, (), of_node.clone(), false),
            policies: Feed::new("VfPolicies", all(&policies), policies, everything, false),
            slices: Feed::new("this node's ResourceSlices", all(&slices), slices, of_node, true),
        }
    }

    /// Watches all for ever, and notifies `changed` of every change.
    pub async fn follow(&self, changed: &Notify) {
        tokio::join!(
            self.pods.follow(changed),
            self.policies.follow(changed),
            self.slices.follow(changed)
        );
    }
}
