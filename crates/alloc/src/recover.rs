//! After a crash: the journal says what was meant, the world what is. From both, the steps that bring
//! them together. Every VF ends in the pool or with one guest; a guest that does not answer keeps what
//! it has and is marked.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::journal::{Entry, FORMAT, Ledger, Open};
use crate::model::{GuestId, Mac, VfId};
use crate::plan::Direction;
use crate::step::{self, Join, Path, Step};
use crate::world::{Found, FoundGuest, VfPlace};

/// What is to be done after a crash, or where ledger and world disagree.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Recovery {
    /// The VFs that it is about.
    pub vfs: BTreeSet<VfId>,
    /// The guests that it is about.
    pub guests: BTreeSet<GuestId>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Why, one sentence for each thing found amiss.
    pub notes: Vec<String>,
    /// Those of the guests that do not answer, and what is to be said of them.
    pub marked: BTreeMap<GuestId, String>,
    /// Who holds which of the VFs once the steps are done.
    pub holders: BTreeMap<VfId, GuestId>,
    /// Those of the VFs that stay unfit for the pool, and why.
    pub quarantined: BTreeMap<VfId, String>,
}

impl Recovery {
    /// The journal's line once the steps of a recovery of everything are done: with it all that was
    /// open is closed.
    pub fn checkpoint(&self) -> Entry {
        Entry::Checkpoint {
            format: FORMAT,
            holders: self.holders.clone(),
            marked: self.marked.clone(),
            quarantined: self.quarantined.clone(),
        }
    }

    /// Does the ledger say anything else than what this recovery comes to?
    pub fn changes(&self, ledger: &Ledger) -> bool {
        let differs = |vf: &VfId| {
            ledger.holders.get(vf) != self.holders.get(vf)
                || ledger.quarantined.get(vf) != self.quarantined.get(vf)
        };
        self.vfs.iter().any(differs)
            || self.guests.iter().any(|guest| ledger.marked.get(guest) != self.marked.get(guest))
            || ledger.open.values().any(|open| self.vfs.contains(&open.change.vf))
    }

    /// The journal's line once the steps are done. It changes what is said of these VFs and guests, and
    /// nothing else, whatever has become of others meanwhile.
    pub fn settled(&self, operation: u64, ledger: &Ledger) -> Entry {
        let mut marks: BTreeMap<GuestId, Option<String>> = BTreeMap::new();
        let marked_before = ledger.marked.keys().filter(|guest| self.guests.contains(*guest));
        for guest in marked_before.filter(|guest| !self.marked.contains_key(*guest)) {
            marks.insert(guest.clone(), None);
        }
        for (guest, why) in &self.marked {
            if ledger.marked.get(guest) != Some(why) {
                marks.insert(guest.clone(), Some(why.clone()));
            }
        }
        Entry::Settled {
            operation,
            vfs: self.vfs.clone(),
            holders: self.holders.clone(),
            quarantined: self.quarantined.clone(),
            marks,
        }
    }
}

/// Compares journal and world. The world is believed where they differ: an empty journal (lost, or of
/// the first start) adopts what it finds. What the world does not say stays as the journal has it.
pub fn recover(ledger: &Ledger, found: &Found) -> Recovery {
    let vfs = found.vfs.keys().cloned().collect();
    let guests = found.guests.keys().chain(ledger.marked.keys()).cloned().collect();
    recover_part(ledger, found, vfs, guests)
}

/// The same in parts that have neither a VF nor a guest in common, so that a guest that does not answer
/// delays nobody else. `only`: of these VFs and guests, and of what belongs to the same guests; none: of
/// all VFs and guests.
pub fn recover_in_parts(
    ledger: &Ledger,
    found: &Found,
    only: Option<(&BTreeSet<VfId>, &BTreeSet<GuestId>)>,
) -> Vec<Recovery> {
    // VFs that are gone for good are forgotten.
    let all = || found.vfs.keys().chain(ledger.vfs());
    let mut left: BTreeSet<&VfId> = match only {
        Some((vfs, guests)) => {
            let theirs = |vf: &&VfId| {
                concerned(ledger, found, vf).iter().any(|guest| guests.contains(*guest))
            };
            vfs.iter().chain(all().filter(theirs)).collect()
        }
        None => all().collect(),
    };
    let mut parts = Vec::new();
    let mut done: BTreeSet<GuestId> = BTreeSet::new();
    while let Some(first) = left.pop_first() {
        let mut vfs: BTreeSet<VfId> = [first.clone()].into();
        let mut guests = BTreeSet::new();
        loop {
            let known = (vfs.len(), guests.len());
            guests.extend(vfs.iter().flat_map(|vf| concerned(ledger, found, vf)).cloned());
            let of_them =
                |vf: &&VfId| concerned(ledger, found, vf).iter().any(|one| guests.contains(*one));
            vfs.extend(found.vfs.keys().filter(of_them).cloned());
            if (vfs.len(), guests.len()) == known {
                break;
            }
        }
        left.retain(|vf| !vfs.contains(*vf));
        done.extend(guests.iter().cloned());
        parts.push(recover_part(ledger, found, vfs, guests));
    }
    let others: BTreeSet<&GuestId> = match only {
        Some((_, guests)) => guests.iter().collect(),
        None => found.guests.keys().chain(ledger.marked.keys()).collect(),
    };
    for guest in others.into_iter().filter(|guest| !done.contains(*guest)) {
        parts.push(recover_part(ledger, found, BTreeSet::new(), [guest.clone()].into()));
    }
    parts
}

/// The guests that have this VF, or had it by the journal.
fn concerned<'a>(ledger: &'a Ledger, found: &'a Found, vf: &VfId) -> Vec<&'a GuestId> {
    let open = ledger.open.values().filter(|open| open.change.vf == *vf);
    let mut guests: Vec<&GuestId> = open.map(|open| &open.change.guest).collect();
    guests.extend(ledger.holders.get(vf));
    if let Some(VfPlace::Guest(guest)) = found.vfs.get(vf).map(|vf| &vf.place) {
        guests.push(guest);
    }
    guests
}

fn recover_part(
    ledger: &Ledger,
    found: &Found,
    vfs: BTreeSet<VfId>,
    guests: BTreeSet<GuestId>,
) -> Recovery {
    let mut recovery = Recovery { vfs, guests, ..Recovery::default() };
    recover_vfs(ledger, found, &mut recovery);
    recover_guests(ledger, found, &mut recovery);
    recovery
}

fn recover_vfs(ledger: &Ledger, found: &Found, recovery: &mut Recovery) {
    // First what keeps frames from guests: addresses of VFs that no guest has.
    let vfs = recovery.vfs.clone();
    for (id, vf) in found.vfs.iter().filter(|(id, _)| vfs.contains(*id)) {
        match &vf.place {
            VfPlace::Guest(guest) if found.guests.contains_key(guest) => continue,
            VfPlace::Foreign(why) => {
                if ledger.knows(id) {
                    recovery
                        .notes
                        .push(format!("{id} is in other hands ({why}): it is left alone"));
                }
                continue;
            }
            VfPlace::Unknown(why) => {
                stays_unknown(id, why, ledger, recovery);
                continue;
            }
            VfPlace::Guest(guest) => {
                recovery.notes.push(format!("{id} is not at home ({guest}, gone): it is fetched"));
                recovery.steps.push(Step::Recall { vf: id.clone() });
            }
            VfPlace::Lost => {
                let whose = ledger
                    .holders
                    .get(id)
                    .map_or_else(|| "no guest".to_owned(), |guest| format!("{guest}, gone"));
                recovery.notes.push(format!("{id} is not at home ({whose}): it is fetched"));
                recovery.steps.push(Step::Recall { vf: id.clone() });
            }
            VfPlace::Pool if vf.mac != Mac::ZERO => {
                let mac = vf.mac;
                recovery
                    .notes
                    .push(format!("{id} is in the pool with the address {mac}: it is cleared"));
            }
            VfPlace::Pool if ledger.knows(id) => recovery
                .notes
                .push(format!("{id} is in the pool and may not be as new: it is reset")),
            VfPlace::Pool => continue,
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

fn recover_guests(ledger: &Ledger, found: &Found, recovery: &mut Recovery) {
    let guests = recovery.guests.clone();
    for (guest, why) in ledger.marked.iter().filter(|(guest, _)| guests.contains(*guest)) {
        // A mark stays while its guest has a VF or does not answer, or cannot be asked about: until
        // the operator lifts it, the guest releases what it kept, or it is started anew.
        let stays = match found.guests.get(guest) {
            Some(seen) => !seen.answers || found.attached(guest).next().is_some(),
            None => !found.gaps.is_empty(),
        };
        if stays {
            recovery.marked.insert(guest.clone(), why.clone());
        }
    }
    for id in &guests {
        if let Some(guest) = found.guests.get(id) {
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
