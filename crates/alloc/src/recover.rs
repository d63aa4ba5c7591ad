//! After a crash: the journal says what was meant, the world what is. From both, the steps that bring
//! them together. Every VF ends in the pool or with one guest; a guest that does not answer keeps what
//! it has and is marked.

use std::collections::{BTreeMap, BTreeSet};

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
    /// VFs that stay unfit for the pool, and why.
    pub quarantined: BTreeMap<VfId, String>,
}

impl Recovery {
    /// The journal's line once the steps are done: with it all that was open is closed.
    pub fn checkpoint(&self) -> Entry {
        Entry::Checkpoint {
            format: FORMAT,
            holders: self.holders.clone(),
            marked: self.marked.clone(),
            quarantined: self.quarantined.clone(),
        }
    }

    /// The journal's line once the steps of a recovery of `vfs` alone are done.
    pub fn settled(&self, operation: u64, vfs: &BTreeSet<VfId>, ledger: &Ledger) -> Entry {
        let of = |id: &&VfId| vfs.contains(*id);
        let mut marks: BTreeMap<GuestId, Option<String>> = BTreeMap::new();
        for guest in ledger.marked.keys().filter(|guest| !self.marked.contains_key(*guest)) {
            marks.insert(guest.clone(), None);
        }
        for (guest, why) in &self.marked {
            if ledger.marked.get(guest) != Some(why) {
                marks.insert(guest.clone(), Some(why.clone()));
            }
        }
        Entry::Settled {
            operation,
            vfs: vfs.clone(),
            holders: self
                .holders
                .iter()
                .filter(|(id, _)| of(id))
                .map(|(id, guest)| (id.clone(), guest.clone()))
                .collect(),
            quarantined: self
                .quarantined
                .iter()
                .filter(|(id, _)| of(id))
                .map(|(id, why)| (id.clone(), why.clone()))
                .collect(),
            marks,
        }
    }
}

/// Compares journal and world. The world is believed where they differ: an empty journal (lost, or of
/// the first start) adopts what it finds. What the world does not say stays as the journal has it.
pub fn recover(ledger: &Ledger, found: &Found) -> Recovery {
    let all = found.vfs.keys().cloned().collect();
    let mut recovery = Recovery::default();
    recover_vfs(ledger, found, &all, &mut recovery);
    let guests: Vec<&GuestId> = found.guests.keys().collect();
    recover_guests(ledger, found, &guests, &mut recovery);
    recovery
}

/// The same for these VFs alone, and the guests that have or had them: everything else stays as the
/// journal has it.
pub fn recover_only(ledger: &Ledger, found: &Found, vfs: &BTreeSet<VfId>) -> Recovery {
    let open = ledger.open.values().filter(|open| vfs.contains(&open.change.vf));
    let mut concerned: BTreeSet<&GuestId> = open.map(|open| &open.change.guest).collect();
    concerned.extend(vfs.iter().filter_map(|vf| ledger.holders.get(vf)));
    concerned.extend(vfs.iter().filter_map(|vf| match &found.vfs.get(vf)?.place {
        Place::Guest(guest) => Some(guest),
        _ => None,
    }));
    let guests: Vec<&GuestId> =
        concerned.into_iter().filter(|guest| found.guests.contains_key(*guest)).collect();
    let mut recovery = Recovery {
        holders: ledger.holders.clone(),
        quarantined: ledger.quarantined.clone(),
        marked: ledger
            .marked
            .iter()
            .filter(|(guest, _)| !guests.contains(guest))
            .map(|(guest, why)| (guest.clone(), why.clone()))
            .collect(),
        ..Recovery::default()
    };
    recovery.holders.retain(|vf, holder| !vfs.contains(vf) && !guests.contains(&&*holder));
    recovery.quarantined.retain(|vf, _| !vfs.contains(vf));
    recover_vfs(ledger, found, vfs, &mut recovery);
    recover_guests(ledger, found, &guests, &mut recovery);
    recovery
}

fn recover_vfs(ledger: &Ledger, found: &Found, vfs: &BTreeSet<VfId>, recovery: &mut Recovery) {
    // First what keeps frames from guests: addresses of VFs that no guest has.
    for (id, vf) in found.vfs.iter().filter(|(id, _)| vfs.contains(*id)) {
        match &vf.place {
            Place::Guest(guest) if found.guests.contains_key(guest) => continue,
            Place::Foreign(why) => {
                if ledger.knows(id) {
                    recovery
                        .notes
                        .push(format!("{id} is in other hands ({why}): it is left alone"));
                }
                continue;
            }
            Place::Unknown(why) => {
                stays_unknown(id, why, ledger, recovery);
                continue;
            }
            Place::Guest(guest) => {
                recovery.notes.push(format!("{id} is not at home ({guest}, gone): it is fetched"));
                recovery.steps.push(Step::Recall { vf: id.clone() });
            }
            Place::Lost => {
                let whose = ledger
                    .holders
                    .get(id)
                    .map_or_else(|| "no guest".to_owned(), |guest| format!("{guest}, gone"));
                recovery.notes.push(format!("{id} is not at home ({whose}): it is fetched"));
                recovery.steps.push(Step::Recall { vf: id.clone() });
            }
            Place::Pool if vf.mac != Mac::ZERO => {
                let mac = vf.mac;
                recovery
                    .notes
                    .push(format!("{id} is in the pool with the address {mac}: it is cleared"));
            }
            Place::Pool if ledger.knows(id) => recovery
                .notes
                .push(format!("{id} is in the pool and may not be as new: it is reset")),
            Place::Pool => continue,
        }
        recovery.steps.extend(step::into_pool(id));
    }
}

/// Nothing is known of the VF: whoever may have it, by the journal, keeps it.
fn stays_unknown(id: &VfId, why: &str, ledger: &Ledger, recovery: &mut Recovery) {
    let open = ledger.open.values().find(|open| open.change.vf == *id);
    let holder = ledger.holders.get(id).or_else(|| open.map(|open| &open.change.guest));
    if let Some(holder) = holder {
        recovery.notes.push(format!("{id} stays with {holder}: who uses it is not known: {why}"));
        recovery.holders.insert(id.clone(), holder.clone());
    } else if let Some(fault) = ledger.quarantined.get(id) {
        recovery.quarantined.insert(id.clone(), fault.clone());
    }
}

fn recover_guests(ledger: &Ledger, found: &Found, guests: &[&GuestId], recovery: &mut Recovery) {
    for (guest, why) in &ledger.marked {
        // A mark stays while its guest has a VF or does not answer, or cannot be asked about: until
        // the operator lifts it, the guest releases what it kept, or it is started anew.
        let stays = match found.guests.get(guest) {
            Some(_) if !guests.contains(&guest) => false,
            Some(seen) => !seen.answers || found.attached(guest).next().is_some(),
            None => !found.gaps.is_empty(),
        };
        if stays {
            recovery.marked.insert(guest.clone(), why.clone());
        }
    }
    for id in guests {
        if let Some(guest) = found.guests.get(*id) {
            restore_guest(id, guest, ledger, found, recovery);
        }
    }
}

fn restore_guest(
    id: &GuestId,
    guest: &FoundGuest,
    ledger: &Ledger,
    found: &Found,
    recovery: &mut Recovery,
) {
    let attached: Vec<&VfId> = found.attached(id).collect();
    if !guest.answers || recovery.marked.contains_key(id) {
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
