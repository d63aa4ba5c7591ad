//! Writing to the API server: time limits, failures, pauses after them.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::objects::VERSION;
use crate::policy::GROUP;

/// Time limit of an answer of the API server.
const PATIENCE: Duration = Duration::from_secs(10);

/// A failed request.
pub enum Failure {
    /// The object, or its kind, does not exist.
    Missing,
    /// Anything else, in a sentence.
    Other(String),
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 404 => Self::Missing,
            error => Self::Other(error.to_string()),
        }
    }
}

/// Waits for an answer of the API server, within its time limit.
pub async fn within<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(answer) => answer.map_err(Failure::from),
        Err(_) => Err(Failure::Other(format!("no answer within {} s", PATIENCE.as_secs()))),
    }
}

/// The node as ownerReference of objects that are removed with it; empty where it does not exist.
pub async fn node_as_owner(client: &Client, node: &str) -> Result<Value, Failure> {
    let nodes: Api<Node> = Api::all(client.clone());
    match within(nodes.get_metadata(node)).await {
        Ok(owner) => Ok(json!([{"apiVersion": "v1", "kind": "Node", "name": node,
                                "uid": owner.metadata.uid}])),
        Err(Failure::Missing) => Ok(json!([])),
        Err(failure) => Err(failure),
    }
}

/// The current time (RFC 3339), to the second.
pub fn now() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

/// Server-side apply by `manager`; forced, so that it keeps its fields.
pub fn apply(manager: &str) -> PatchParams {
    PatchParams::apply(manager).force()
}

/// Pauses after failures in a row, each twice the one before. A reason is logged once.
#[derive(Default)]
pub struct Backoff {
    failures: u32,
    until: Option<Instant>,
    logged: Option<String>,
}

impl Backoff {
    /// Is it too early for another attempt?
    pub fn is_pausing(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    /// Was this the last logged reason?
    pub fn has_logged(&self, why: &str) -> bool {
        self.logged.as_deref() == Some(why)
    }

    /// An attempt succeeded.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// An attempt failed: pauses 1 s, and up to 2 to the power of `longest`.
    pub fn failed(&mut self, why: String, longest: u32) {
        self.pause(Duration::from_secs(1), longest);
        if !self.has_logged(&why) {
            tracing::warn!("{why}");
            self.logged = Some(why);
        }
    }

    /// Pauses for `unit`, doubled by each failure in a row, `longest` times at most.
    pub fn pause(&mut self, unit: Duration, longest: u32) {
        self.until = Some(Instant::now() + unit * (1 << self.failures.min(longest)));
        self.failures = self.failures.saturating_add(1);
    }
}

/// Objects of one of this program's kinds, applied by one field manager.
pub struct Applied {
    /// Their API.
    pub api: Api<DynamicObject>,
    /// Their kind.
    pub kind: &'static str,
    /// The field manager.
    pub manager: &'static str,
}

impl Applied {
    fn object(&self, fields: Value) -> Value {
        let mut object = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": self.kind});
        if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
            object.extend(fields);
        }
        object
    }

    /// Creates the object, unless it exists; returns its uid.
    pub async fn make(&self, name: &str, owners: Value) -> Result<String, Failure> {
        let object = self.object(json!({"metadata": {"name": name, "ownerReferences": owners}}));
        let (parameters, patch) = (apply(self.manager), Patch::Apply(&object));
        let created = within(self.api.patch(name, &parameters, &patch)).await?;
        Ok(created.metadata.uid.unwrap_or_default())
    }

    /// Writes the status of an existing object.
    pub async fn status(&self, name: &str, status: &Value) -> Result<(), Failure> {
        let object = self.object(json!({"metadata": {"name": name}, "status": status}));
        let (parameters, patch) = (apply(self.manager), Patch::Apply(&object));
        within(self.api.patch_status(name, &parameters, &patch)).await.map(drop)
    }
}
