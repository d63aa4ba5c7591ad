//! What all writing to the API server shares: how long it may take, and how it can fail.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::objects::VERSION;
use crate::policy::GROUP;

/// The API server has so long to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why something was not written.
pub enum Failure {
    /// The API server knows no such objects.
    Missing,
    /// Anything else, in words.
    Other(String),
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 404 => Self::Missing,
            other => Self::Other(other.to_string()),
        }
    }
}

/// Asks the API server, for so long as it has.
///
/// # Errors
/// It refused, or did not answer in time.
pub async fn within<T>(ask: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Failure> {
    match tokio::time::timeout(PATIENCE, ask).await {
        Ok(answer) => answer.map_err(Failure::from),
        Err(_) => Err(Failure::Other(format!("no answer within {} s", PATIENCE.as_secs()))),
    }
}

/// The node as the owner of what goes with it; nobody where it is not there.
///
/// # Errors
/// The API server does not tell.
pub async fn node_as_owner(client: &Client, node: &str) -> Result<Value, Failure> {
    let nodes: Api<Node> = Api::all(client.clone());
    match within(nodes.get_metadata(node)).await {
        Ok(owner) => Ok(json!([{"apiVersion": "v1", "kind": "Node", "name": node,
                                "uid": owner.metadata.uid}])),
        Err(Failure::Missing) => Ok(json!([])),
        Err(other) => Err(other),
    }
}

/// The time for an object's field, to the second.
pub fn now() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

/// How `manager` applies: what others wrote into its fields is put right.
pub fn apply(manager: &str) -> PatchParams {
    PatchParams::apply(manager).force()
}

/// Objects of one of our kinds that one manager applies.
pub struct Applied {
    /// Where they are.
    pub api: Api<DynamicObject>,
    /// Their kind.
    pub kind: &'static str,
    /// Who applies them.
    pub manager: &'static str,
}

impl Applied {
    fn object(&self, rest: Value) -> Value {
        let mut object = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": self.kind});
        if let (Some(object), Value::Object(rest)) = (object.as_object_mut(), rest) {
            object.extend(rest);
        }
        object
    }

    /// Makes the object, unless it is there; its uid.
    ///
    /// # Errors
    /// It cannot be made.
    pub async fn make(&self, name: &str, owners: Value) -> Result<String, Failure> {
        let bare = self.object(json!({"metadata": {"name": name, "ownerReferences": owners}}));
        let (parameters, patch) = (apply(self.manager), Patch::Apply(&bare));
        let made = within(self.api.patch(name, &parameters, &patch)).await?;
        Ok(made.metadata.uid.unwrap_or_default())
    }

    /// Writes the status of an object that is there.
    ///
    /// # Errors
    /// It cannot be written; it is missing.
    pub async fn status(&self, name: &str, status: &Value) -> Result<(), Failure> {
        let whole = self.object(json!({"metadata": {"name": name}, "status": status}));
        let (parameters, patch) = (apply(self.manager), Patch::Apply(&whole));
        within(self.api.patch_status(name, &parameters, &patch)).await.map(drop)
    }
}
