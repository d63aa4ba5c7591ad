//! Observations of VFs and guests, and their contradictions to the ledger. Pure: no clock, no I/O.
//!
//! What could not be observed is [`User::Unknown`] or `None`, and never counts as *nobody* or *nothing*.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::journal::Ledger;
use crate::model::{GuestId, Mac, PfId, VfId};
use crate::step::Join;

/// The user of a VF.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "user", content = "why")]
pub enum User {
    /// Nobody: it is with the host, and nothing of the host uses it.
    Nobody,
    /// The host itself, and how: "its interface eth3 is a port of br0".
    Host(String),
    /// A process through VFIO or another network namespace, and which: a guest, of ours or not.
    Guest(String),
    /// Unknown, and why. Such a VF never counts as free.
    Unknown(String),
}

impl User {
    /// Is the VF certainly unused?
    pub const fn is_nobody(&self) -> bool {
        matches!(self, Self::Nobody)
    }

    /// Why the VF cannot be given; none when it is unused.
    pub fn unavailable_reason(&self) -> Option<String> {
        match self {
            Self::Nobody => None,
            Self::Host(why) => Some(format!("the host uses it: {why}")),
            Self::Guest(why) => Some(format!("somebody else uses it: {why}")),
            Self::Unknown(why) => Some(format!("it is not known who uses it: {why}")),
        }
    }
}

/// A VF as one sample shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedVf {
    /// Its user.
    pub user: User,
    /// The address that the NIC delivers to it; zero: none.
    pub mac: Mac,
}

/// A guest as one sample shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedGuest {
    /// Its address.
    pub mac: Mac,
    /// What joins its paths. A bond gives its address to the member in use; with net_failover the VF
    /// that it has is the one that the NIC must deliver its frames to.
    pub join: Join,
    /// The VFs of the pool that it has, and whether it sends by each, as far as the host can tell; none:
    /// unknown at the moment.
    pub has: Option<BTreeMap<VfId, bool>>,
}

/// One sample of everything that the ledger is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Observation {
    /// The PFs that are there.
    pub pfs: BTreeSet<PfId>,
    /// The VFs of the pool.
    pub vfs: BTreeMap<VfId, ObservedVf>,
    /// The guests that are managed.
    pub guests: BTreeMap<GuestId, ObservedGuest>,
    /// `guests` has all guests. False while a kind of guests cannot be surveyed.
    pub complete: bool,
}

/// The VFs on which ledger and observation disagree, each with the reason. VFs with a move under
/// way are left out: they are between two states.
pub fn doubt(ledger: &Ledger, observed: &Observation) -> BTreeMap<VfId, String> {
    let moving: BTreeSet<&VfId> = ledger.open.values().map(|open| &open.vf).collect();
    let guest_macs: BTreeSet<Mac> = observed.guests.values().map(|guest| guest.mac).collect();
    let has = |guest: &GuestId, vf: &VfId| {
        let guest = observed.guests.get(guest)?;
        Some(guest.has.as_ref()?.get(vf).copied())
    };
    let mut doubts = BTreeMap::new();
    // A PF without this VF. While the PF itself is away, its driver may be on its way back.
    let missing = |vf: &&VfId| observed.pfs.contains(&vf.pf) && !observed.vfs.contains_key(*vf);
    for vf in ledger.holders.keys().chain(ledger.quarantined.keys()).filter(missing) {
        doubts.insert(vf.clone(), format!("{vf} is in the journal, and {} lacks it", vf.pf));
    }
    for (id, vf) in observed.vfs.iter().filter(|(id, _)| !moving.contains(id)) {
        let why = match (ledger.holders.get(id), &vf.user) {
            (Some(holder), User::Nobody) => {
                Some(format!("{holder} holds {id} by the journal, and nobody uses it"))
            }
            (Some(holder), User::Host(why)) => {
                Some(format!("{holder} holds {id} by the journal, and the host uses it: {why}"))
            }
            (Some(_), User::Unknown(_)) => None,
            (Some(holder), User::Guest(_)) => match observed.guests.get(holder) {
                None => observed.complete.then(|| format!("{holder}, who holds {id}, is gone")),
                Some(guest) => match has(holder, id) {
                    Some(None) => {
                        Some(format!("{holder} holds {id} by the journal, and does not have it"))
                    }
                    // Its bond fell back by itself, or somebody switched it.
                    Some(Some(false)) => {
                        Some(format!("{holder} holds {id}, and does not send by it"))
                    }
                    // The PF's driver was reloaded during the move, or somebody set another address.
                    Some(Some(true)) if guest.join == Join::Failover && vf.mac != guest.mac => {
                        Some(format!(
                            "{holder} has {id}, and its PF delivers {} to it in place of {}",
                            vf.mac, guest.mac
                        ))
                    }
                    _ => None,
                },
            },
            // The user that prevented its reset may have released it.
            (None, User::Nobody) if ledger.quarantined.contains_key(id) => {
                Some(format!("{id} is quarantined, and nobody uses it: it is reset again"))
            }
            (None, User::Nobody) => guest_macs
                .contains(&vf.mac)
                .then(|| format!("{id} is nobody's and has the address {} of a guest", vf.mac)),
            (None, _) if ledger.quarantined.contains_key(id) => None,
            (None, _) => observed
                .guests
                .keys()
                .find(|guest| matches!(has(guest, id), Some(Some(_))))
                .map(|guest| format!("{guest} has {id}, and the journal does not say so")),
        };
        if let Some(why) = why {
            doubts.insert(id.clone(), why);
        }
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vf() -> VfId {
        VfId::new("pf0", 0)
    }

    fn ledger(holder: Option<&str>) -> Ledger {
        let holders = holder.map(|guest| (vf(), guest.into())).into_iter().collect();
        Ledger { holders, ..Ledger::default() }
    }

    fn seen(user: User, has: Option<bool>) -> Observation {
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let has = has.map(|has| has.then(|| (vf(), true)).into_iter().collect());
        Observation {
            pfs: ["pf0".into()].into(),
            vfs: [(vf(), ObservedVf { user, mac: Mac::NONE })].into(),
            guests: [("web".into(), ObservedGuest { mac, join: Join::Bond, has })].into(),
            complete: true,
        }
    }

    fn used() -> User {
        User::Guest("process 7 (qemu) holds it".into())
    }

    #[test]
    fn what_agrees_is_not_doubted() {
        assert!(doubt(&ledger(Some("web")), &seen(used(), Some(true))).is_empty());
        assert!(doubt(&ledger(None), &seen(User::Nobody, Some(false))).is_empty());
    }

    #[test]
    fn a_vf_that_left_its_holder_is_doubted_at_once() {
        for user in [User::Nobody, User::Host("it is a port of br0".into()), used()] {
            let doubts = doubt(&ledger(Some("web")), &seen(user.clone(), Some(false)));
            assert_eq!(doubts.len(), 1, "{user:?}");
        }
    }

    #[test]
    fn a_machines_vf_that_its_pf_knows_by_another_address_is_doubted() {
        let mut seen = seen(used(), Some(true));
        let web = seen.guests.get_mut(&GuestId::from("web")).expect("there");
        web.join = Join::Failover;
        let mac = web.mac;
        assert_eq!(doubt(&ledger(Some("web")), &seen).len(), 1);
        seen.vfs.insert(vf(), ObservedVf { user: used(), mac });
        assert!(doubt(&ledger(Some("web")), &seen).is_empty());
    }

    #[test]
    fn what_cannot_be_seen_is_no_contradiction() {
        let unknown = User::Unknown("its processes cannot be read".into());
        assert!(doubt(&ledger(Some("web")), &seen(unknown, Some(false))).is_empty());
        assert!(doubt(&ledger(Some("web")), &seen(used(), None)).is_empty());
        // A holder that nobody has heard of, while its kind cannot be asked.
        let mut partial = seen(used(), None);
        partial.complete = false;
        assert!(doubt(&ledger(Some("other")), &partial).is_empty());
        partial.complete = true;
        assert_eq!(doubt(&ledger(Some("other")), &partial).len(), 1);
    }

    #[test]
    fn a_foreign_users_vf_that_the_ledger_does_not_know_is_nobodys_business() {
        assert!(doubt(&ledger(None), &seen(used(), Some(false))).is_empty());
        assert_eq!(doubt(&ledger(None), &seen(used(), Some(true))).len(), 1);
    }

    #[test]
    fn a_vf_that_its_pf_no_longer_has_is_doubted_and_one_whose_pf_is_away_is_not() {
        let mut gone = seen(used(), Some(true));
        gone.vfs.clear();
        assert_eq!(doubt(&ledger(Some("web")), &gone).len(), 1);
        gone.pfs.clear();
        assert!(doubt(&ledger(Some("web")), &gone).is_empty());
    }

    #[test]
    fn a_quarantined_vf_is_looked_at_again_once_nobody_uses_it() {
        let mut ledger = ledger(None);
        ledger.quarantined.insert(vf(), "could not be reset".into());
        assert_eq!(doubt(&ledger, &seen(User::Nobody, Some(false))).len(), 1);
        assert!(doubt(&ledger, &seen(used(), Some(false))).is_empty());
    }
}
