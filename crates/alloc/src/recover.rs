//! After a crash: the journal says what was meant, the world what is. From both, the steps that bring
//! them together. Every VF ends in the pool or with one guest; a guest that does not answer keeps what
//! it has and is marked.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::journal::{Entry, FORMAT, Ledger, Open};
use crate::model::{GuestId, Mac, VfId};
use crate::plan::Direction;
use crate::step::{self, Join, Path, Step};
use crate::world::{Found, FoundGuest, Place};

/// What is to be done after a crash.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Recovery {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Why, one sentence for each thing found amiss.
    pub notes: Vec<String>,
    /// Guests that do not answer, and what is to be said of them.
    pub marked: BTreeMap<GuestId, String>,
    /// Who holds what once the steps are done.
    pub holders: BTreeMap<VfId, GuestId>,
}

impl Recovery {
    /// The journal's line once the steps are done: with it all that was open is closed.
    pub fn checkpoint(&self) -> Entry {
        Entry::Checkpoint {
            format: FORMAT,
            holders: self.holders.clone(),
            marked: self.marked.clone(),
            quarantined: BTreeMap::new(),
        }
    }
}

/// Compares journal and world. The world is believed where they differ: an empty journal (lost, or of
/// the first start) adopts what it finds.
pub fn recover(ledger: &Ledger, found: &Found) -> Recovery {
    let mut recovery = Recovery::default();
    for (guest, why) in &ledger.marked {
        // Marked stays marked while it is there and has not been cleared by the operator.
        if found.guests.get(guest).is_some_and(|guest| !guest.answers) {
            recovery.marked.insert(guest.clone(), why.clone());
        }
    }
    // First what keeps frames from guests: addresses of VFs that no guest has.
    for (id, vf) in &found.vfs {
        let owner = match &vf.place {
            Place::Guest(guest) if found.guests.contains_key(guest) => continue,
            Place::Guest(guest) => Some(guest.to_string()),
            Place::Lost => ledger.holders.get(id).map(ToString::to_string),
            Place::Pool => None,
        };
        let touched = ledger.holders.contains_key(id)
            || ledger.quarantined.contains_key(id)
            || ledger.open.values().any(|open| open.change.vf == *id);
        if vf.place != Place::Pool {
            let whose =
                owner.map_or_else(|| "no guest".to_owned(), |guest| format!("{guest}, gone"));
            recovery.notes.push(format!("{id} is not at home ({whose}): it is fetched"));
            recovery.steps.push(Step::Recall { vf: id.clone() });
        } else if vf.mac != Mac::ZERO {
            let mac = vf.mac;
            recovery
                .notes
                .push(format!("{id} is in the pool with the address {mac}: it is cleared"));
        } else if touched {
            recovery.notes.push(format!("{id} is in the pool and may not be as new: it is reset"));
        } else {
            continue;
        }
        recovery.steps.extend(step::into_pool(id));
    }
    for (id, guest) in &found.guests {
        restore_guest(id, guest, ledger, found, &mut recovery);
    }
    recovery
}

fn restore_guest(
    id: &GuestId,
    guest: &FoundGuest,
    ledger: &Ledger,
    found: &Found,
    recovery: &mut Recovery,
) {
    let attached: Vec<&VfId> = found.attached(id).collect();
    if !guest.answers {
        // It keeps what it has; the VF is nobody else's.
        for vf in &attached {
            recovery.holders.insert((*vf).clone(), id.clone());
        }
        let why =
            if attached.is_empty() { "does not answer" } else { "keeps its VF: does not answer" };
        recovery.marked.entry(id.clone()).or_insert_with(|| why.to_owned());
        return;
    }
    // Of several, the one that the journal knows stays, else the one in use, else the first.
    let meant = |vf: &VfId| ledger.holders.get(vf) == Some(id);
    let kept = attached
        .iter()
        .find(|vf| meant(vf))
        .or_else(|| attached.iter().find(|vf| guest.active == Path::Vf((**vf).clone())))
        .or(attached.first());
    let mut on_paravirtual = kept.is_none();
    for vf in &attached {
        let open = ledger.open.values().find(|open| open.change.vf == **vf);
        if Some(vf) == kept && stays(id, guest, vf, open, found) {
            recovery.holders.insert((*vf).clone(), id.clone());
            forward(id, guest, vf, recovery);
        } else if guest.paravirtual_up {
            recovery
                .notes
                .push(format!("{vf} was on its way into or out of {id}: it is taken back"));
            recovery.steps.extend(step::leave(id, vf, guest.join));
            on_paravirtual = false;
        } else {
            // Its only path: it stays, wanted or not.
            recovery.notes.push(format!("{vf} stays with {id}, whose other path is down"));
            recovery.holders.insert((*vf).clone(), id.clone());
            forward(id, guest, vf, recovery);
        }
    }
    if on_paravirtual {
        put_right(id, guest, &Path::Paravirtual, recovery);
    }
}

/// Does this VF stay with the guest that it is attached to?
fn stays(id: &GuestId, guest: &FoundGuest, vf: &VfId, open: Option<&Open>, found: &Found) -> bool {
    let has_address = found.vfs.get(vf).is_some_and(|vf| vf.mac == guest.mac);
    match open.filter(|open| open.change.guest == *id).map(|open| open.change.direction) {
        Some(Direction::Take) => false,
        // Attached and up: the rest is quickly done. With net_failover it must have the address too.
        Some(Direction::Give) => guest.vf_up && (has_address || guest.join == Join::Bond),
        // The NIC sends to the VF that has the address, up or not: with net_failover one that is down
        // cuts the guest off. A bond has taken the address to its other member.
        None => guest.join == Join::Bond || (has_address && guest.vf_up),
    }
}

/// Finishes what `give` began, as far as it is not done.
fn forward(id: &GuestId, guest: &FoundGuest, vf: &VfId, recovery: &mut Recovery) {
    if guest.vf_up {
        put_right(id, guest, &Path::Vf(vf.clone()), recovery);
    } else if guest.paravirtual_up {
        put_right(id, guest, &Path::Paravirtual, recovery);
    }
}

fn put_right(id: &GuestId, guest: &FoundGuest, path: &Path, recovery: &mut Recovery) {
    if guest.active == *path && guest.directed == *path {
        return;
    }
    recovery.notes.push(format!("{id} is not wholly on {path}: it is put right"));
    let prefer = Step::Prefer { guest: id.clone(), path: path.clone() };
    let direct = Step::Direct { guest: id.clone(), path: path.clone() };
    recovery.steps.extend([prefer, direct]);
}
