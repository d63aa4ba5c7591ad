//! Publishes the node's ResourceSlice, where the configuration wants one.

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
use crate::write::{Failure, apply, node_as_owner, within};

/// What was published last.
struct Published {
    devices: Value,
    uid: Option<String>,
    /// The object's own, which rises whenever anybody changes its spec.
    generation: i64,
    /// The pool's.
    pool: i64,
    at: Instant,
}

#[derive(Default)]
struct State {
    owners: Option<Value>,
    published: Option<Published>,
    condition: Option<Condition>,
    failures: u32,
    quiet_until: Option<Instant>,
}

/// The longest wait after failures is 2 to this power times that between two writings.
const LONGEST_BACKOFF: u32 = 3;

/// Publishes for one agent.
pub struct Publisher<'a> {
    agent: &'a Agent,
    client: Client,
    api: Api<DynamicObject>,
    manager: &'static str,
    /// Between two writings.
    apart: Duration,
    state: RefCell<State>,
}

impl<'a> Publisher<'a> {
    /// Publishes by this client, as `manager`, no more often than `apart`.
    pub fn new(agent: &'a Agent, client: Client, manager: &'static str, apart: Duration) -> Self {
        let api = Api::all_with(client.clone(), &resource_slices());
        Self { agent, client, api, manager, apart, state: RefCell::default() }
    }

    /// How the slice is; none: nobody wants one, or it was not tried yet.
    pub fn condition(&self) -> Option<Condition> {
        self.state.borrow().condition.clone()
    }

    /// Publishes the node's PFs, if they changed or somebody changed what was published. That it cannot
    /// is a condition: all else is written nevertheless.
    pub async fn publish(&self, status: &Status) {
        if !self.agent.publishes() {
            return;
        }
        if self.agent.slices().is_missing() {
            self.state.borrow_mut().condition = Some(slices::no_kind());
            return;
        }
        let quiet = self.state.borrow().quiet_until.is_some_and(|until| Instant::now() < until);
        // What is not known is not published as nothing.
        if quiet || self.agent.unknown().is_some() {
            return;
        }
        let name = slices::name(&self.agent.node);
        let Ok(all) = self.agent.slices().all() else { return };
        let there = all.iter().find(|slice| slice.name_any() == name).map(AsRef::as_ref);
        let devices = slices::devices(status);
        let pool = {
            let state = self.state.borrow();
            let before = state.published.as_ref();
            if before.is_some_and(|before| !self.is_due(before, &devices, there)) {
                return;
            }
            1 + slices::generation(there).max(before.map_or(0, |before| before.pool))
        };
        let answer = self.write(&name, pool, &devices).await;
        let mut state = self.state.borrow_mut();
        let condition = match &answer {
            Ok(answer) => slices::taken(&answer.data),
            Err(Failure::Missing) => slices::no_kind(),
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
            (state.failures, state.quiet_until) = (0, None);
        } else {
            state.quiet_until = Some(Instant::now() + self.apart * (1 << state.failures));
            state.failures = LONGEST_BACKOFF.min(state.failures + 1);
        }
    }

    fn is_due(&self, before: &Published, devices: &Value, there: Option<&DynamicObject>) -> bool {
        let touched = || match there {
            None => true,
            Some(there) => {
                there.uid() != before.uid
                    || there.metadata.generation.unwrap_or(0) > before.generation
            }
        };
        // While the watch does not tell, it tells of no change either.
        let told = self.agent.slices().trouble().is_none();
        before.at.elapsed() >= self.apart && (before.devices != *devices || (told && touched()))
    }

    async fn write(
        &self,
        name: &str,
        pool: i64,
        devices: &Value,
    ) -> Result<DynamicObject, Failure> {
        let node = self.agent.node.as_str();
        let known = self.state.borrow().owners.clone();
        let owners = match known {
            Some(owners) => owners,
            None => node_as_owner(&self.client, node).await?,
        };
        let object = slices::object(node, &owners, pool, devices);
        self.state.borrow_mut().owners = Some(owners);
        within(self.api.patch(name, &apply(self.manager), &Patch::Apply(&object))).await
    }
}
