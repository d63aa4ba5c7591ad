//! Publishes the node's ResourceSlice, where it is configured.

use std::cell::RefCell;
use std::time::Duration;

use kube::api::{DynamicObject, Patch};
use kube::{Api, Client, ResourceExt};
use planewised::daemon::status::Status;
use serde_json::Value;
use tokio::time::Instant;

use crate::feeds::resource_slices;
use crate::node::Agent;
use crate::objects::Condition;
use crate::slices;
use crate::write::{Backoff, Failure, apply, node_as_owner, within};

/// The last write.
struct Published {
    devices: Value,
    uid: Option<String>,
    /// Generation of the object, which rises with each change of its spec.
    generation: i64,
    /// Generation of the pool.
    pool: i64,
    at: Instant,
}

#[derive(Default)]
struct State {
    owners: Option<Value>,
    published: Option<Published>,
    condition: Option<Condition>,
    backoff: Backoff,
}

/// The longest pause after failures is 2 to this power times `min_interval`.
const LONGEST_BACKOFF: u32 = 3;

/// Publishes for one agent.
pub struct Publisher<'a> {
    agent: &'a Agent,
    client: Client,
    api: Api<DynamicObject>,
    manager: &'static str,
    /// Least interval of writes.
    min_interval: Duration,
    state: RefCell<State>,
}

impl<'a> Publisher<'a> {
    /// Publishes by this client, as `manager`, no more often than `min_interval`.
    pub fn new(
        agent: &'a Agent,
        client: Client,
        manager: &'static str,
        min_interval: Duration,
    ) -> Self {
        let api = Api::all_with(client.clone(), &resource_slices());
        Self { agent, client, api, manager, min_interval, state: RefCell::default() }
    }

    /// The slice's condition; none: it is not configured, or was not tried yet.
    pub fn condition(&self) -> Option<Condition> {
        self.state.borrow().condition.clone()
    }

    /// Publishes the node's PFs, if they changed or somebody changed the slice. A failure becomes a
    /// condition, and prevents no other write.
    pub async fn publish(&self, status: &Status) {
        if !self.agent.publishes() {
            return;
        }
        if self.agent.slices().is_missing() {
            self.state.borrow_mut().condition = Some(slices::missing_kind());
            return;
        }
        // Unknown devices are not published as none.
        if self.state.borrow().backoff.is_pausing() || self.agent.unknown().is_some() {
            return;
        }
        let name = slices::name(&self.agent.node);
        let Ok(all) = self.agent.slices().all() else { return };
        let existing = all.iter().find(|slice| slice.name_any() == name).map(AsRef::as_ref);
        let devices = slices::devices(status);
        let pool = {
            let state = self.state.borrow();
            let before = state.published.as_ref();
            if before.is_some_and(|before| !self.is_due(before, &devices, existing)) {
                return;
            }
            1 + slices::generation(existing).max(before.map_or(0, |before| before.pool))
        };
        let answer = self.write(&name, pool, &devices).await;
        let mut state = self.state.borrow_mut();
        let condition = match &answer {
            Ok(answer) => slices::accepted(&answer.data),
            Err(Failure::Missing) => slices::missing_kind(),
            Err(Failure::Other(why)) => slices::refused(why),
        };
        if condition.status != "True" && state.condition.as_ref() != Some(&condition) {
            tracing::warn!("{}", condition.message);
        }
        state.condition = Some(condition);
        if let Ok(answer) = answer {
            let (uid, generation) = (answer.uid(), answer.metadata.generation.unwrap_or(0));
            let at = Instant::now();
            state.published = Some(Published { devices, uid, generation, pool, at });
            state.backoff.succeeded();
        } else {
            state.backoff.pause(self.min_interval, LONGEST_BACKOFF);
        }
    }

    fn is_due(
        &self,
        before: &Published,
        devices: &Value,
        existing: Option<&DynamicObject>,
    ) -> bool {
        let touched = || match existing {
            None => true,
            Some(existing) => {
                existing.uid() != before.uid
                    || existing.metadata.generation.unwrap_or(0) > before.generation
            }
        };
        // While the watch fails, it shows no change either.
        let watched = self.agent.slices().trouble().is_none();
        before.at.elapsed() >= self.min_interval
            && (before.devices != *devices || (watched && touched()))
    }

    async fn write(
        &self,
        name: &str,
        pool: i64,
        devices: &Value,
    ) -> Result<DynamicObject, Failure> {
        let node = self.agent.node.as_str();
        let cached = self.state.borrow().owners.clone();
        let owners = match cached {
            Some(owners) => owners,
            None => node_as_owner(&self.client, node).await?,
        };
        let object = slices::object(node, &owners, pool, devices);
        self.state.borrow_mut().owners = Some(owners);
        within(self.api.patch(name, &apply(self.manager), &Patch::Apply(&object))).await
    }
}
