//! The node's PFs as devices of a ResourceSlice, for the scheduler. Pure.

use std::collections::BTreeSet;

use kube::api::DynamicObject;
use planewised::daemon::status::{GuestKind, Status, Vf, VfState};
use pw_alloc::model::Stance;
use serde_json::{Value, json};

use crate::objects::Condition;
use crate::policy::GROUP;

/// The DRA driver's name.
pub const DRIVER: &str = GROUP;
/// Most devices of a ResourceSlice.
const MAX_DEVICES: usize = 128;
/// Type of the slice's condition.
const PUBLISHED: &str = "SlicePublished";

/// The name of a node's slice.
pub fn name(node: &str) -> String {
    format!("{node}-{DRIVER}")
}

/// Was it published by an agent of this program?
pub fn is_ours(slice: &Value) -> bool {
    slice.pointer("/spec/driver").and_then(Value::as_str) == Some(DRIVER)
}

/// One device for each PF with usable VFs, shared by as many claims as it has VFs.
pub fn devices(status: &Status) -> Value {
    let waiting = status.guests.iter().filter(|guest| {
        guest.kind == GuestKind::Pod && guest.vf.is_none() && guest.stance != Stance::Excluded
    });
    let waiting = waiting.count();
    let mut names = BTreeSet::new();
    let devices = status.pools.iter().filter_map(|pool| {
        let vfs: Vec<&Vf> = status.vfs.iter().filter(|vf| vf.id.pf == pool.pf).collect();
        let usable = vfs.iter().filter(|vf| vf.place != VfState::Quarantined).count();
        let free = vfs.iter().filter(|vf| vf.place == VfState::Pool).count();
        if usable == 0 {
            return None;
        }
        let pf = pool.pf.to_string();
        let mut device = json!({
            "name": label(&pf, &mut names),
            "attributes": {"pf": {"string": pf}, "free": {"int": free}, "waiting": {"int": waiting}},
            "allowMultipleAllocations": true,
            "capacity": {"vfs": {"value": usable.to_string(), "requestPolicy": {
                "default": "1", "validRange": {"min": "1"}}}},
        });
        // The API server refuses a step where the range has one value.
        if usable > 1 {
            device["capacity"]["vfs"]["requestPolicy"]["validRange"]["step"] = json!("1");
        }
        if let Some(numa) = pool.numa {
            device["attributes"]["numaNode"] = json!({"int": numa});
        }
        let taint_keys = [(status.draining, "draining"), (!pool.link_up, "no-link")];
        let taints = taint_keys.iter().filter(|(holds, _)| *holds).map(
            |(_, key)| json!({"key": format!("{GROUP}/{key}"), "effect": "NoSchedule"}),
        );
        let taints: Vec<Value> = taints.collect();
        if !taints.is_empty() {
            device["taints"] = json!(taints);
        }
        Some(device)
    });
    devices.take(MAX_DEVICES).collect()
}

/// An interface's name as a DNS label, unique among the node's devices.
fn label(interface: &str, names: &mut BTreeSet<String>) -> String {
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' }
    };
    let plain: String = interface.chars().map(plain).collect();
    let plain = match plain.trim_matches('-') {
        "" => "pf",
        label => label,
    };
    let numbered = (2..).map(|number| format!("{plain}-{number}"));
    let mut candidates = std::iter::once(plain.to_owned()).chain(numbered);
    let name = candidates.find(|name| !names.contains(name)).unwrap_or_default();
    names.insert(name.clone());
    name
}

/// The slice as applied.
pub fn object(node: &str, owners: &Value, generation: i64, devices: &Value) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": name(node), "ownerReferences": owners},
        "spec": {"driver": DRIVER, "nodeName": node, "devices": devices,
                 "pool": {"name": node, "generation": generation, "resourceSliceCount": 1}},
    })
}

/// The generation of the pool in a slice; 0 where there is none.
pub fn generation(slice: Option<&DynamicObject>) -> i64 {
    let generation = slice.and_then(|slice| slice.data.pointer("/spec/pool/generation"));
    generation.and_then(Value::as_i64).unwrap_or(0)
}

fn condition(status: &'static str, reason: &str, message: impl Into<String>) -> Condition {
    Condition::new(PUBLISHED, status, reason, message)
}

/// The condition of an accepted slice, from the API server's answer, which lacks fields it does not know.
pub fn accepted(answer: &Value) -> Condition {
    let devices = answer.pointer("/spec/devices").and_then(Value::as_array);
    let devices = devices.map(Vec::as_slice).unwrap_or_default();
    let shared = |device: &&Value| device.get("allowMultipleAllocations") == Some(&json!(true));
    let count = devices.len();
    match devices.iter().filter(shared).count() {
        shared if shared == count => condition("True", "Published", format!("{count} PFs")),
        _ => condition(
            "True",
            "NotShared",
            "the API server does not let claims share a device (feature gate \
             DRAConsumableCapacity): a claim takes a whole PF",
        ),
    }
}

/// The condition where the API server does not have the kind.
pub fn missing_kind() -> Condition {
    condition(
        "False",
        "NoResourceSliceKind",
        "the API server has no ResourceSlices of resource.k8s.io/v1, as Kubernetes has from 1.34 \
         on: upgrade it, or set resource_slices = false",
    )
}

/// The condition of a slice that the API server refused.
pub fn refused(why: &str) -> Condition {
    condition("False", "Refused", format!("the ResourceSlice cannot be written: {why}"))
}

#[cfg(test)]
mod tests {
    use planewised::daemon::status::Pool;
    use pw_alloc::model::VfId;
    use pw_alloc::settings::PolicyKind;

    use super::*;

    fn pool(pf: &str, link_up: bool) -> Pool {
        Pool { pf: pf.into(), vfs: 0, free: 0, quarantined: 0, link_up, numa: Some(1) }
    }

    fn vf(pf: &str, index: u16, place: VfState) -> Vf {
        Vf { id: VfId::new(pf, index), place, holder: None, why: None }
    }

    #[test]
    fn a_pf_is_one_device_that_as_many_claims_share_as_it_has_usable_vfs() {
        let mut status = Status::new(PolicyKind::Benefit, 10.0, 1.0);
        status.pools = vec![pool("Eth0", true), pool("eth0", false), pool("eth1", true)];
        status.vfs = vec![
            vf("Eth0", 0, VfState::Held),
            vf("Eth0", 1, VfState::Pool),
            vf("Eth0", 2, VfState::Quarantined),
            vf("eth0", 0, VfState::Pool),
            vf("eth1", 0, VfState::Quarantined),
        ];
        let devices = devices(&status);
        let names: Vec<&Value> =
            devices.as_array().into_iter().flatten().map(|d| &d["name"]).collect();
        assert_eq!(names, ["eth0", "eth0-2"], "a PF without usable VFs is none");
        assert_eq!(devices[0]["capacity"]["vfs"]["value"], "2");
        assert_eq!(devices[0]["attributes"]["free"], json!({"int": 1}));
        assert_eq!(devices[0]["attributes"]["numaNode"], json!({"int": 1}));
        assert!(devices[0].get("taints").is_none());
        assert_eq!(devices[1]["taints"][0]["key"], "planewise.io/no-link");
        let ranges =
            [0, 1].map(|index| &devices[index]["capacity"]["vfs"]["requestPolicy"]["validRange"]);
        assert_eq!(ranges, [&json!({"min": "1", "step": "1"}), &json!({"min": "1"})]);
    }

    #[test]
    fn interfaces_of_any_name_are_labels_of_their_own() {
        let mut names = BTreeSet::new();
        let labels = ["enp1s0f0", "a.b@c", "..", "__"].map(|name| label(name, &mut names));
        assert_eq!(labels, ["enp1s0f0", "a-b-c", "pf", "pf-2"]);
    }

    #[test]
    fn what_the_api_server_dropped_is_told() {
        let mut slice = json!({"spec": {"devices": [{"allowMultipleAllocations": true}]}});
        assert_eq!(accepted(&slice).reason, "Published");
        slice["spec"]["devices"][0] = json!({"name": "eth0"});
        assert_eq!(accepted(&slice).reason, "NotShared");
        assert_eq!(accepted(&json!({"spec": {}})).message, "0 PFs");
    }
}
