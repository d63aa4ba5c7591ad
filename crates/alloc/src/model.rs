//! The types of allocation: guests, VFs, wishes, and one observation of all of them.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use pw_error::Error;
pub use pw_linux::mac::Mac;

/// A guest's name, unique on its host.
#[derive(Debug, Clone, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GuestId(Arc<str>);

/// A physical function's name: its interface, as `enp1s0f0`.
#[derive(Debug, Clone, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PfId(Arc<str>);

macro_rules! name {
    ($type:ident) => {
        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Is this the same name in the same memory? Quicker than to compare names.
            pub fn is_clone_of(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.0, &other.0)
            }
        }
        // Names are compared for every guest in every interval, nearly always with a clone of themselves.
        impl PartialEq for $type {
            fn eq(&self, other: &Self) -> bool {
                self.is_clone_of(other) || self.0 == other.0
            }
        }
        impl Ord for $type {
            fn cmp(&self, other: &Self) -> Ordering {
                if self.is_clone_of(other) { Ordering::Equal } else { self.0.cmp(&other.0) }
            }
        }
        impl PartialOrd for $type {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }
        impl Hash for $type {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }
        impl From<&str> for $type {
            fn from(name: &str) -> Self {
                Self(name.into())
            }
        }
        impl From<String> for $type {
            fn from(name: String) -> Self {
                Self(name.into())
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}
name!(GuestId);
name!(PfId);

/// A virtual function: `enp1s0f0/3` is VF 3 of the PF `enp1s0f0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VfId {
    /// Its PF.
    pub pf: PfId,
    /// Its number on that PF, from 0.
    pub index: u16,
}

impl VfId {
    /// VF `index` of `pf`.
    pub fn new(pf: impl Into<PfId>, index: u16) -> Self {
        Self { pf: pf.into(), index }
    }
}

impl fmt::Display for VfId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.pf, self.index))
    }
}

impl FromStr for VfId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.rsplit_once('/')
            .filter(|(pf, _)| !pf.is_empty())
            .and_then(|(pf, index)| Some(Self::new(pf, index.parse().ok()?)))
            .ok_or_else(|| {
                Error::bad_input(
                    format!("{text:?} names no VF"),
                    "write the PF's interface and the VF's number, as enp1s0f0/3",
                )
            })
    }
}

pw_error::serde_as_text!(VfId);

/// Where packets were counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The guest itself. It may lie: such a rate never takes a VF from a guest with a rate of the
    /// host's own.
    GuestReported,
    /// The host: tap, veth, VF or namespace counters.
    HostSide,
}

/// A guest's traffic, both directions together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Packets per second, smoothed.
    pub pps: f64,
    /// Bytes per second, smoothed.
    pub bytes_per_s: f64,
    /// Who counted.
    pub origin: Origin,
    /// Since when nothing has been counted [ms]; 0 when the rate is of now. Rates of the past weigh
    /// less the older they are.
    pub blind_ms: u64,
}

/// What the operator wishes for a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stance {
    /// The policy decides.
    #[default]
    Free,
    /// It has a VF, whatever its traffic.
    Pinned,
    /// It has none.
    Excluded,
}

/// The constraints on one guest.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wish {
    /// Pinned, excluded, or left to the policy.
    pub stance: Stance,
    /// Priority: among guests with traffic, one of a higher class goes before all of lower ones.
    pub class: u8,
    /// Share of time, 0 to 1, for which it holds a VF at least, whatever its class and traffic.
    pub min_share: f64,
    /// PFs that it may hold a VF of; empty: any.
    pub pfs: Vec<PfId>,
    /// NUMA node that it runs on: VFs of PFs there are preferred.
    pub numa: Option<u16>,
}

/// Whether a guest can be moved.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// It can be moved.
    #[default]
    Ready,
    /// A move of it is under way.
    Busy,
    /// It did not answer: it keeps its VF, if it has one, and is left alone.
    Stuck(String),
}

/// One guest, as observed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GuestView {
    /// Its name.
    pub id: GuestId,
    /// Its traffic; none when unknown, which is not zero.
    pub rate: Option<Rate>,
    /// Its constraints.
    pub wish: Wish,
    /// The VF that it holds.
    #[serde(deserialize_with = "held")]
    pub holds: Option<VfId>,
    /// Can it be moved?
    pub health: Health,
    /// Does its paravirtual path work? While it does not, its VF is never taken from it.
    pub paravirtual_up: bool,
}

/// A VF; in earlier recordings with the time since when it was held.
fn held<'de, D: Deserializer<'de>>(from: D) -> Result<Option<VfId>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Held {
        Vf(VfId),
        Since { vf: VfId },
    }
    let held = Option::<Held>::deserialize(from)?;
    Ok(held.map(|(Held::Vf(vf) | Held::Since { vf })| vf))
}

impl GuestView {
    /// A guest that can be moved, of unknown traffic.
    pub fn new(id: impl Into<GuestId>) -> Self {
        Self {
            id: id.into(),
            rate: None,
            wish: Wish::default(),
            holds: None,
            health: Health::Ready,
            paravirtual_up: true,
        }
    }

    /// May it hold VFs of this PF?
    pub fn allows(&self, pf: &PfId) -> bool {
        self.wish.pfs.is_empty() || self.wish.pfs.contains(pf)
    }
}

/// What a VF is good for now.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VfState {
    /// It can be given.
    #[default]
    Usable,
    /// Its PF has no link: its holder falls back.
    LinkDown,
    /// Something is wrong with it: not given, not taken.
    Quarantined(String),
}

/// One VF of the pool, as observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfView {
    /// Which one.
    pub id: VfId,
    /// The NUMA node of its PF.
    pub numa: Option<u16>,
    /// Can it be given?
    pub state: VfState,
}

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// The moment, on a clock that is never set back [ms].
    pub now_ms: u64,
    /// All guests that are managed, each once.
    pub guests: Vec<GuestView>,
    /// All VFs of the pool, held or not, each once.
    pub vfs: Vec<VfView>,
}

impl Snapshot {
    /// The guest of that name.
    pub fn guest(&self, id: &GuestId) -> Option<&GuestView> {
        self.guests.iter().find(|guest| guest.id == *id)
    }

    /// The holder of this VF.
    pub fn holder(&self, vf: &VfId) -> Option<&GuestView> {
        self.guests.iter().find(|guest| guest.holds.as_ref() == Some(vf))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_vfs_survive_writing_and_reading() {
        pw_cases::check!().with_type::<(u16, String)>().for_each(|(index, pf)| {
            if !pf.is_empty() {
                let vf = VfId::new(pf.as_str(), *index);
                assert_eq!(vf.to_string().parse().ok(), Some(vf));
            }
        });
    }

    #[test]
    fn what_names_nothing_is_refused_in_a_sentence() {
        for text in ["", "/1", "eth0", "eth0/", "eth0/65536", "eth0/-1"] {
            let error = text.parse::<VfId>().expect_err(text);
            assert!(error.what.contains("names no VF") && !error.remedy.is_empty());
        }
    }
}
