//! Content of the node's `VfPool`, and conditions. Pure.

use planewised::daemon::status::{Guest, GuestKind, Status, Vf, VfState};
use pw_alloc::model::Stance;
use serde_json::{Value, json};

use crate::policy::GROUP;

/// Version of this program's kinds.
pub const VERSION: &str = "v1alpha1";

/// A condition without its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub kind: String,
    /// Whether it holds: `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// One word in camel case.
    pub reason: String,
    /// One sentence.
    pub message: String,
}

impl Condition {
    /// A condition of this kind.
    pub fn new(
        kind: impl Into<String>,
        status: &'static str,
        reason: &str,
        message: impl Into<String>,
    ) -> Self {
        Self { kind: kind.into(), status, reason: reason.to_owned(), message: message.into() }
    }

    /// The condition of a pod.
    pub fn of_pod(status: &'static str, reason: &str, message: &str) -> Self {
        Self::new(format!("{GROUP}/Managed"), status, reason, message)
    }

    /// As JSON, with this time of its last transition (RFC 3339).
    pub fn json(&self, now: &str) -> Value {
        let Self { kind, status, reason, message } = self;
        json!({"type": kind, "status": status, "reason": reason, "message": message,
               "lastTransitionTime": now})
    }

    /// Does it equal this JSON, apart from times?
    pub fn is(&self, other: &Value) -> bool {
        let same = |key: &str, value: &str| other.get(key).and_then(Value::as_str) == Some(value);
        same("type", &self.kind)
            && same("status", self.status)
            && same("reason", &self.reason)
            && same("message", &self.message)
    }
}

/// The node's `Ready` condition: can its pods get VFs? `trouble`: why pods or devices are unknown.
pub fn readiness(status: &Status, trouble: Option<&str>) -> Condition {
    let unusable: Vec<&Vf> =
        status.vfs.iter().filter(|vf| vf.place == VfState::Quarantined).collect();
    let first = || unusable.iter().find_map(|vf| Some(format!("{}: {}", vf.id, vf.why.as_ref()?)));
    let (status, reason, message) = if let Some(trouble) = trouble {
        ("Unknown", "NotKnown", trouble.to_owned())
    } else if status.vfs.is_empty() {
        let message = "no PF of this node has VFs: `planewised vf list` shows its PFs";
        ("False", "NoVfs", message.to_owned())
    } else if unusable.len() == status.vfs.len() {
        ("False", "NoUsableVf", first().unwrap_or_default())
    } else if status.draining {
        ("False", "Draining", "all VFs are returned to their PFs, and none is given".to_owned())
    } else if unusable.is_empty() {
        ("True", "AllUsable", "all VFs can be given".to_owned())
    } else {
        ("True", "SomeUnusable", first().unwrap_or_default())
    };
    Condition::new("Ready", status, reason, message)
}

/// A status without its rates, which change all the time: two that are equal need no writing.
pub fn without_rates(status: &Value) -> Value {
    let is_rate = |key: &str| key.ends_with("acketsPerSecond");
    match status {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, _)| !is_rate(key));
            kept.map(|(key, value)| (key.clone(), without_rates(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_rates).collect(),
        value => value.clone(),
    }
}

/// The status of a `VfPool` without times.
pub fn pool_status(status: &Status) -> Value {
    let count = |vfs: &[&Vf], place: VfState| vfs.iter().filter(|vf| vf.place == place).count();
    let counts = |vfs: &[&Vf]| {
        json!({"vfs": vfs.len(), "held": count(vfs, VfState::Held), "free": count(vfs, VfState::Pool),
               "unusable": count(vfs, VfState::Quarantined)})
    };
    let all: Vec<&Vf> = status.vfs.iter().collect();
    let pfs = status.pools.iter().map(|pool| {
        let vfs: Vec<&Vf> = all.iter().copied().filter(|vf| vf.id.pf == pool.pf).collect();
        let mut pf = counts(&vfs);
        pf["name"] = json!(pool.pf);
        pf["linkUp"] = json!(pool.link_up);
        if let Some(why) = vfs.iter().find_map(|vf| vf.why.as_ref()) {
            pf["message"] = json!(why);
        }
        pf
    });
    let holders = status.guests.iter().filter_map(|guest| {
        let vf = guest.vf.as_ref()?.to_string();
        Some(json!({"vf": vf, "guest": guest.id, "kind": guest.kind}))
    });
    let pods = || status.guests.iter().filter(|guest| guest.kind == GuestKind::Pod);
    let waits = |guest: &&Guest| guest.vf.is_none() && guest.stance != Stance::Excluded;
    let waiters: Vec<Value> = pods()
        .filter(waits)
        .map(|guest| {
            let mut waiter = json!({"guest": guest.id});
            if let Some(pps) = guest.rate.pps {
                waiter["packetsPerSecond"] = json!(pps.round() as u64);
            }
            waiter
        })
        .collect();
    let mut body = counts(&all);
    body["pfs"] = pfs.collect();
    body["holders"] = holders.collect();
    body["pods"] = json!(pods().count());
    body["waiting"] = json!(waiters.len());
    body["waiters"] = json!(waiters);
    body["policy"] = json!(status.policy);
    body
}

/// The status as applied, with conditions, each with the time of its last transition.
pub fn applied(mut body: Value, conditions: &[(Condition, String)], now: &str) -> Value {
    body["conditions"] =
        conditions.iter().map(|(condition, since)| condition.json(since)).collect();
    body["reportedAt"] = json!(now);
    body
}

#[cfg(test)]
mod tests {
    use planewised::daemon::status::{Pool, Rate};
    use pw_alloc::settings::PolicyKind;

    use super::*;

    fn vf(index: u16, place: VfState, why: Option<&str>) -> Vf {
        let id = pw_alloc::model::VfId::new("pf0", index);
        Vf { id, place, holder: None, why: why.map(str::to_owned) }
    }

    fn guest(name: &str, vf: Option<u16>, stance: Stance) -> Guest {
        Guest {
            id: name.into(),
            kind: GuestKind::Pod,
            mac: None,
            vf: vf.map(|index| pw_alloc::model::VfId::new("pf0", index)),
            since_unix_ms: 0,
            why: String::new(),
            rate: Rate::from(None),
            stance,
            class: 0,
            moving: false,
            paravirtual_up: true,
            marked: None,
        }
    }

    fn status(vfs: Vec<Vf>, guests: Vec<Guest>) -> Status {
        let pool =
            Pool { pf: "pf0".into(), vfs: 0, free: 0, quarantined: 0, link_up: true, numa: None };
        let mut status = Status::new(PolicyKind::Benefit, 10.0, 1.0);
        (status.vfs, status.guests, status.pools) = (vfs, guests, vec![pool]);
        status
    }

    #[test]
    fn a_pool_tells_who_holds_what_and_how_many_wait() {
        let vfs = vec![
            vf(0, VfState::Held, None),
            vf(1, VfState::Pool, None),
            vf(2, VfState::Quarantined, Some("the host uses it")),
        ];
        let guests = vec![
            guest("shop/web", Some(0), Stance::Free),
            guest("shop/db", None, Stance::Free),
            guest("shop/batch", None, Stance::Excluded),
        ];
        let status = status(vfs, guests);
        let ready = readiness(&status, None);
        assert_eq!((ready.status, ready.reason.as_str()), ("True", "SomeUnusable"));
        let body = pool_status(&status);
        assert_eq!((&body["vfs"], &body["held"], &body["free"]), (&json!(3), &json!(1), &json!(1)));
        assert_eq!((&body["pods"], &body["waiting"]), (&json!(3), &json!(1)));
        assert_eq!(body["waiters"], json!([{"guest": "shop/db"}]), "its rate is not known");
        assert_eq!(body["holders"], json!([{"vf": "pf0/0", "guest": "shop/web", "kind": "pod"}]));
        assert_eq!(body["pfs"][0]["message"], "the host uses it");
    }

    #[test]
    fn a_pool_without_vfs_or_without_usable_ones_says_so() {
        let none = readiness(&status(Vec::new(), Vec::new()), None);
        assert_eq!((none.status, none.reason.as_str()), ("False", "NoVfs"));
        let all = vec![vf(0, VfState::Quarantined, Some("the device plugin of a/b hands out it"))];
        let refused = readiness(&status(all, Vec::new()), None);
        assert_eq!((refused.status, refused.reason.as_str()), ("False", "NoUsableVf"));
        assert!(refused.message.contains("the device plugin of a/b"), "{}", refused.message);
        let unknown = readiness(&status(Vec::new(), Vec::new()), Some("no answer yet"));
        assert_eq!((unknown.status, unknown.message.as_str()), ("Unknown", "no answer yet"));
    }

    #[test]
    fn what_only_time_changes_needs_no_writing() {
        let mut now =
            status(vec![vf(0, VfState::Pool, None)], vec![guest("a/b", None, Stance::Free)]);
        let before = (without_rates(&pool_status(&now)), readiness(&now, None));
        now.at_unix_ms += 10_000;
        now.counters.samples += 10;
        now.guests[0].rate = Rate { pps: Some(1e6), ..now.guests[0].rate };
        assert_eq!((without_rates(&pool_status(&now)), readiness(&now, None)), before);
        let waiter = json!([{"guest": "a/b", "packetsPerSecond": 1_000_000}]);
        assert_eq!(pool_status(&now)["waiters"], waiter);
    }

    #[test]
    fn a_condition_is_told_from_another_by_all_but_its_times() {
        let condition = Condition::of_pod("False", "TwoPolicies", "a and b");
        let json = condition.json("2026-01-01T00:00:00Z");
        assert!(condition.is(&json));
        assert!(!Condition::of_pod("False", "TwoPolicies", "a and c").is(&json));
        assert!(!condition.is(&json!({})));
    }
}
