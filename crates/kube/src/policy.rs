//! Rules for pods: those of their namespace's `VfPolicy`, and their annotations within its limits. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use pw_alloc::model::{Stance, Wish};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// API group of this program's objects; prefix of its annotations and conditions.
pub const GROUP: &str = "planewise.io";
/// Known annotations of pods, without the group.
const ANNOTATIONS: [&str; 4] = ["class", "interface", "min-share-percent", "stance"];

/// Reads Kubernetes' label selector.
fn selector<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Selector, D::Error> {
    LabelSelector::deserialize(deserializer)?.try_into().map_err(D::Error::custom)
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Defaults {
    class: u8,
    stance: Stance,
    min_share_percent: u8,
    interface: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Limits {
    max_class: u8,
    allow_pinned: bool,
    max_min_share_percent: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    #[serde(deserialize_with = "selector")]
    pod_selector: Selector,
    defaults: Defaults,
    limits: Limits,
}

/// A `VfPolicy` of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    namespace: String,
    name: String,
    /// Its content, or why it is invalid.
    spec: Result<Spec, String>,
}

impl Policy {
    /// Reads a `spec`. It is validated again, as the API server's schema may be older.
    pub fn new(namespace: &str, name: &str, spec: &Value) -> Self {
        let read = serde_json::from_value::<Spec>(spec.clone()).map_err(|error| error.to_string());
        let spec = read.and_then(|spec| match spec.contradiction() {
            Some(what) => Err(what),
            None => Ok(spec),
        });
        Self { namespace: namespace.to_owned(), name: name.to_owned(), spec }
    }

    /// Does it select this pod? An invalid policy selects all pods of its namespace, so that no other policy
    /// applies to its own.
    fn selects(&self, pod: &Pod) -> bool {
        self.namespace == pod.namespace
            && self.spec.as_ref().map_or(true, |spec| spec.pod_selector.matches(&pod.labels))
    }
}

impl Spec {
    /// Why the defaults exceed the limits; none where they do not.
    fn contradiction(&self) -> Option<String> {
        let Self { defaults, limits, .. } = self;
        if defaults.class > limits.max_class {
            return Some("defaults.class is beyond limits.maxClass".to_owned());
        }
        if defaults.stance == Stance::Pinned && !limits.allow_pinned {
            return Some("defaults.stance is pinned, and limits.allowPinned is false".to_owned());
        }
        if defaults.min_share_percent > limits.max_min_share_percent {
            let what = "defaults.minSharePercent is beyond limits.maxMinSharePercent";
            return Some(what.to_owned());
        }
        (limits.max_min_share_percent > 100)
            .then(|| "limits.maxMinSharePercent is beyond 100".to_owned())
    }
}

/// The part of a pod that rules depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether it shares the node's network namespace.
    pub host_network: bool,
}

/// Why a pod is not managed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// One word in camel case, for programs.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
}

impl Refusal {
    fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message }
    }
}

/// The decision on a pod from policies and annotations.
#[derive(Debug, Clone, PartialEq)]
pub enum Ruling {
    /// No policy selects it, and it asks for nothing.
    Ignored,
    /// It has annotations, or is selected, and cannot be managed.
    Refused(Refusal),
    /// It is managed.
    Managed(Managed),
}

/// Decides on a pod.
pub fn rule(pod: &Pod, policies: &[Policy]) -> Ruling {
    let annotations = annotations(pod);
    let selecting: Vec<&Policy> = policies.iter().filter(|policy| policy.selects(pod)).collect();
    let refused = |reason, message| Ruling::Refused(Refusal::new(reason, message));
    let (policy, spec) = match selecting[..] {
        [] if annotations.is_empty() => return Ruling::Ignored,
        [] => {
            let message = format!(
                "no VfPolicy of the namespace {} selects it: its annotations count for nothing",
                pod.namespace
            );
            return refused("NoPolicy", message);
        }
        [policy] => match &policy.spec {
            Ok(spec) => (policy, spec),
            Err(what) => {
                let message = format!("the VfPolicy {} cannot be followed: {what}", policy.name);
                return refused("PolicyInvalid", message);
            }
        },
        [first, second, ..] => {
            let message = format!(
                "the VfPolicies {} and {} both select it: change one's podSelector",
                first.name, second.name
            );
            return refused("TwoPolicies", message);
        }
    };
    if pod.host_network {
        let message = "it shares the node's network, and has no interface of its own".to_owned();
        return refused("HostNetwork", message);
    }
    let mut managed = Managed {
        wish: Wish {
            class: spec.defaults.class,
            stance: spec.defaults.stance,
            min_share: f64::from(spec.defaults.min_share_percent) / 100.0,
            ..Wish::default()
        },
        interface: spec.defaults.interface.clone(),
        notes: Vec::new(),
    };
    for (name, value) in annotations {
        managed.apply_annotation(name, value, &spec.limits, &policy.name);
    }
    managed.resolve_exclusion();
    Ruling::Managed(managed)
}

/// The pod's annotations of this program, without the group.
fn annotations(pod: &Pod) -> Vec<(&str, &str)> {
    pod.annotations
        .iter()
        .filter_map(|(key, value)| {
            let name = key.strip_prefix(GROUP)?.strip_prefix('/')?;
            Some((name, value.as_str()))
        })
        .collect()
}

/// A managed pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Managed {
    /// The service that it is to get.
    pub wish: Wish,
    /// Its interface; none: its only veth.
    pub interface: Option<String>,
    /// Annotations that were not followed, a sentence each.
    pub notes: Vec<String>,
}

impl Managed {
    /// Applies one annotation within the limits.
    fn apply_annotation(&mut self, name: &str, value: &str, limits: &Limits, policy: &str) {
        let wrong = |why: &str| format!("annotation {name}: {value:?} is {why}: ignored");
        let beyond = |limit: &str| {
            format!("annotation {name}: {value} is asked for, {policy} allows {limit}")
        };
        match name {
            "class" => match value.parse::<u8>() {
                Ok(class) if class > limits.max_class => {
                    self.notes.push(beyond(&limits.max_class.to_string()));
                    self.wish.class = limits.max_class;
                }
                Ok(class) => self.wish.class = class,
                Err(_) => self.notes.push(wrong("not a number from 0 to 255")),
            },
            "min-share-percent" => match value.parse::<u8>() {
                Ok(share) if share > 100 => self.notes.push(wrong("not a number from 0 to 100")),
                Ok(share) => {
                    let most = limits.max_min_share_percent;
                    if share > most {
                        self.notes.push(beyond(&most.to_string()));
                    }
                    self.wish.min_share = f64::from(share.min(most)) / 100.0;
                }
                Err(_) => self.notes.push(wrong("not a number from 0 to 100")),
            },
            "stance" => match value {
                "free" => self.wish.stance = Stance::Free,
                "excluded" => self.wish.stance = Stance::Excluded,
                "pinned" if limits.allow_pinned => self.wish.stance = Stance::Pinned,
                "pinned" => self.notes.push(beyond("free and excluded")),
                _ => self.notes.push(wrong("none of free, pinned, excluded")),
            },
            "interface" => match pw_sriov::lookup::interface_name(value) {
                Ok(_) => self.interface = Some(value.to_owned()),
                Err(_) => self.notes.push(wrong("not an interface name")),
            },
            _ => {
                let names = ANNOTATIONS.join(", ");
                self.notes.push(format!("annotation {GROUP}/{name} is unknown: ignored ({names})"));
            }
        }
    }

    /// An excluded pod has no minimum share.
    fn resolve_exclusion(&mut self) {
        if self.wish.stance == Stance::Excluded && self.wish.min_share > 0.0 {
            let note = "stance excluded contradicts a minimum share, which is ignored";
            self.notes.push(note.to_owned());
            self.wish.min_share = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn pod(annotations: &[(&str, &str)]) -> Pod {
        let annotations = annotations
            .iter()
            .map(|(key, value)| (format!("planewise.io/{key}"), (*value).to_owned()))
            .collect();
        Pod {
            namespace: "shop".into(),
            labels: map(&[("app", "web")]),
            annotations,
            host_network: false,
        }
    }

    fn policy(name: &str, spec: &Value) -> Policy {
        Policy::new("shop", name, spec)
    }

    fn limits() -> Value {
        json!({"limits": {"maxClass": 3, "maxMinSharePercent": 20}, "defaults": {"class": 1}})
    }

    fn managed(ruling: Ruling) -> (Wish, Option<String>, Vec<String>) {
        match ruling {
            Ruling::Managed(Managed { wish, interface, notes }) => (wish, interface, notes),
            ruling => panic!("{ruling:?}"),
        }
    }

    fn refused(ruling: Ruling) -> Refusal {
        match ruling {
            Ruling::Refused(refusal) => refusal,
            ruling => panic!("{ruling:?}"),
        }
    }

    #[test]
    fn a_pod_that_lies_about_its_annotations_gets_no_more_than_its_policy_allows() {
        let asking = pod(&[("class", "255"), ("stance", "pinned"), ("min-share-percent", "100")]);
        let (wish, _, notes) = managed(rule(&asking, &[policy("p", &limits())]));
        assert_eq!((wish.class, wish.stance, wish.min_share), (3, Stance::Free, 0.2));
        assert_eq!(notes.len(), 3, "{notes:?}");
        // Whatever it asks for: nothing is beyond the limits.
        for class in 0..=u8::MAX {
            for share in [0, 20, 21, 100, 101, 255_u8] {
                let (class, share) = (class.to_string(), share.to_string());
                let asking = pod(&[("class", &class), ("min-share-percent", &share)]);
                let (wish, ..) = managed(rule(&asking, &[policy("p", &limits())]));
                assert!(wish.class <= 3 && wish.min_share <= 0.2);
            }
        }
    }

    #[test]
    fn annotations_within_the_limits_are_followed_and_without_any_the_defaults() {
        let asking = pod(&[("class", "2"), ("stance", "excluded"), ("interface", "net1")]);
        let (wish, interface, notes) = managed(rule(&asking, &[policy("p", &limits())]));
        assert_eq!((wish.class, wish.stance), (2, Stance::Excluded));
        assert_eq!((interface.as_deref(), notes.len()), (Some("net1"), 0));
        let (wish, interface, notes) = managed(rule(&pod(&[]), &[policy("p", &limits())]));
        assert_eq!((wish.class, wish.min_share, interface, notes.len()), (1, 0.0, None, 0));
    }

    #[test]
    fn annotations_that_make_no_sense_are_named_and_count_for_nothing() {
        for (name, value, expected) in [
            ("class", "256", "not a number from 0 to 255"),
            ("class", "-1", "not a number from 0 to 255"),
            ("min-share-percent", "all", "not a number from 0 to 100"),
            ("stance", "Pinned", "none of free, pinned, excluded"),
            ("interface", "a b", "not an interface name"),
            ("clas", "1", "planewise.io/clas is unknown"),
        ] {
            let (wish, interface, notes) =
                managed(rule(&pod(&[(name, value)]), &[policy("p", &limits())]));
            assert!(notes.len() == 1 && notes[0].contains(expected), "{notes:?}");
            assert_eq!((wish.class, wish.stance, interface), (1, Stance::Free, None));
        }
    }

    #[test]
    fn a_minimum_share_and_exclusion_contradict_and_exclusion_holds() {
        let asking = pod(&[("stance", "excluded"), ("min-share-percent", "10")]);
        let (wish, _, notes) = managed(rule(&asking, &[policy("p", &limits())]));
        assert_eq!((wish.stance, wish.min_share, notes.len()), (Stance::Excluded, 0.0, 1));
    }

    #[test]
    fn who_no_policy_or_two_select_is_not_managed() {
        assert_eq!(rule(&pod(&[]), &[]), Ruling::Ignored);
        let of_bank = Policy::new("bank", "p", &limits());
        assert_eq!(rule(&pod(&[]), std::slice::from_ref(&of_bank)), Ruling::Ignored);
        assert_eq!(refused(rule(&pod(&[("class", "1")]), &[of_bank])).reason, "NoPolicy");
        let both = [policy("a", &limits()), policy("b", &limits())];
        let refusal = refused(rule(&pod(&[]), &both));
        assert_eq!(refusal.reason, "TwoPolicies");
        assert!(refusal.message.contains("a and b"), "{}", refusal.message);
    }

    #[test]
    fn selectors_select_as_kubernetes_does() {
        for (selector, selected) in [
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "db"}}), false),
            (
                json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}),
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}),
                false,
            ),
            (
                json!({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["web"]}]}),
                true,
            ),
            (json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}), false),
        ] {
            let ruling = rule(&pod(&[]), &[policy("p", &json!({"podSelector": selector}))]);
            assert_eq!(ruling != Ruling::Ignored, selected, "{selector}");
        }
    }

    #[test]
    fn a_policy_that_contradicts_itself_or_has_unknown_fields_refuses_its_pods() {
        for (spec, expected) in [
            (json!({"defaults": {"class": 1}}), "beyond limits.maxClass"),
            (json!({"defaults": {"stance": "pinned"}}), "limits.allowPinned is false"),
            (json!({"defaults": {"minSharePercent": 1}}), "beyond limits.maxMinSharePercent"),
            (json!({"limits": {"maxMinSharePercent": 101}}), "beyond 100"),
            (json!({"limit": {}}), "unknown field"),
            (json!({"limits": {"maxClass": 256}}), "256"),
            (
                json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}),
                "operator",
            ),
        ] {
            let refusal = refused(rule(&pod(&[]), &[policy("p", &spec)]));
            assert_eq!(refusal.reason, "PolicyInvalid");
            assert!(refusal.message.contains(expected), "{}", refusal.message);
        }
    }

    #[test]
    fn a_pod_with_the_nodes_network_is_refused() {
        let ruling = rule(&Pod { host_network: true, ..pod(&[]) }, &[policy("p", &limits())]);
        assert_eq!(refused(ruling).reason, "HostNetwork");
    }
}
