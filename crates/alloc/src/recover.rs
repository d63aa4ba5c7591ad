//! Recovery after a crash: compares the journal, which says what was intended, with the host's state, and
//! derives the steps that reconcile them. Every VF ends in the pool or with one guest; a guest that does not answer keeps what
//! it has and is marked.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::journal::{Entry, Ledger};
use crate::model::{GuestId, Mac, VfId};
use crate::plan::{Direction, Move};
use crate::step::{self, Join, Path, Step};
use crate::world::{GuestState, HostState, VfPlace};

/// A recovery: after a crash, or where ledger and host disagree.
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
    /// Those of the guests that do not answer, with the reason of the mark.
    pub marked: BTreeMap<GuestId, String>,
    /// Those of the guests whose mark has ended.
    pub unmarked: BTreeSet<GuestId>,
    /// The holders of the VFs once the steps are done.
    pub holders: BTreeMap<VfId, GuestId>,
    /// Those of the VFs that stay unfit for the pool, and why.
    pub quarantined: BTreeMap<VfId, String>,
}

impl Recovery {
    /// Does the recovery change the ledger?
    pub fn changes(&self, ledger: &Ledger) -> bool {
        let differs = |vf: &VfId| {
            ledger.holders.get(vf) != self.holders.get(vf)
                || ledger.quarantined.get(vf) != self.quarantined.get(vf)
        };
        self.vfs.iter().any(differs)
            || !self.unmarked.is_empty()
            || self.marked.iter().any(|(guest, why)| ledger.marked.get(guest) != Some(why))
            || ledger.open.values().any(|open| self.vfs.contains(&open.vf))
    }

    /// The journal's line once the steps are done. It changes the entries of these VFs and guests alone.
    pub fn settled(&self, operation: u64) -> Entry {
        let ended = self.unmarked.iter().map(|guest| (guest.clone(), None));
        let mut marks: BTreeMap<GuestId, Option<String>> = ended.collect();
        marks.extend(self.marked.iter().map(|(guest, why)| (guest.clone(), Some(why.clone()))));
        Entry::Settled {
            operation,
            vfs: self.vfs.clone(),
            holders: self.holders.clone(),
            quarantined: self.quarantined.clone(),
            marks,
        }
    }
}

/// Compares the journal with the host's state, which takes precedence: an empty journal (lost, or of the
/// first start) adopts it. What is unknown of the host stays as the journal has it.
///
/// Recovers in parts that have neither a VF nor a guest in common, so that a guest that does not answer
/// delays no other. `scope`: these VFs and guests, and VFs of the same guests; none: all.
pub fn recover(
    ledger: &Ledger,
    state: &HostState,
    scope: Option<(&BTreeSet<VfId>, &BTreeSet<GuestId>)>,
) -> Vec<Recovery> {
    // VFs that are gone for good are forgotten.
    let all = || state.vfs.keys().chain(ledger.vfs());
    let mut remaining: BTreeSet<&VfId> = match scope {
        Some((vfs, guests)) => {
            let of_guests = |vf: &&VfId| {
                concerned(ledger, state, vf).iter().any(|guest| guests.contains(*guest))
            };
            vfs.iter().chain(all().filter(of_guests)).collect()
        }
        None => all().collect(),
    };
    let mut parts = Vec::new();
    let mut done: BTreeSet<GuestId> = BTreeSet::new();
    while let Some(first) = remaining.pop_first() {
        let mut vfs: BTreeSet<VfId> = [first.clone()].into();
        let mut guests = BTreeSet::new();
        loop {
            let sizes = (vfs.len(), guests.len());
            guests.extend(vfs.iter().flat_map(|vf| concerned(ledger, state, vf)).cloned());
            let of_guests = |vf: &&VfId| {
                concerned(ledger, state, vf).iter().any(|guest| guests.contains(*guest))
            };
            vfs.extend(state.vfs.keys().filter(of_guests).cloned());
            if (vfs.len(), guests.len()) == sizes {
                break;
            }
        }
        remaining.retain(|vf| !vfs.contains(*vf));
        done.extend(guests.iter().cloned());
        parts.push(recover_part(ledger, state, vfs, guests));
    }
    let guests: BTreeSet<&GuestId> = match scope {
        Some((_, guests)) => guests.iter().collect(),
        None => state.guests.keys().chain(ledger.marked.keys()).collect(),
    };
    for guest in guests.into_iter().filter(|guest| !done.contains(*guest)) {
        parts.push(recover_part(ledger, state, BTreeSet::new(), [guest.clone()].into()));
    }
    parts
}

/// The guests that have this VF, or had it by the journal.
fn concerned<'a>(ledger: &'a Ledger, state: &'a HostState, vf: &VfId) -> Vec<&'a GuestId> {
    let open = ledger.open.values().filter(|open| open.vf == *vf);
    let mut guests: Vec<&GuestId> = open.map(|open| &open.guest).collect();
    guests.extend(ledger.holders.get(vf));
    if let Some(VfPlace::Guest(guest)) = state.vfs.get(vf).map(|vf| &vf.place) {
        guests.push(guest);
    }
    guests
}

fn recover_part(
    ledger: &Ledger,
    state: &HostState,
    vfs: BTreeSet<VfId>,
    guests: BTreeSet<GuestId>,
) -> Recovery {
    let mut recovery = Recovery { vfs, guests, ..Recovery::default() };
    recover_vfs(ledger, state, &mut recovery);
    recover_guests(ledger, state, &mut recovery);
    recovery
}

fn recover_vfs(ledger: &Ledger, state: &HostState, recovery: &mut Recovery) {
    // First what keeps frames from guests: addresses of VFs that no guest has.
    let vfs = recovery.vfs.clone();
    for (id, vf) in state.vfs.iter().filter(|(id, _)| vfs.contains(*id)) {
        match &vf.place {
            VfPlace::Guest(guest) if state.guests.contains_key(guest) => continue,
            VfPlace::Foreign(why) => {
                if ledger.knows(id) {
                    recovery.notes.push(format!("{id} has another user ({why}): it is left alone"));
                }
                continue;
            }
            VfPlace::Unknown(why) => {
                stays_unknown(id, why, ledger, recovery);
                continue;
            }
            VfPlace::Guest(guest) => {
                recovery.notes.push(format!("{id} is in {guest}, which is gone: it is recalled"));
                recovery.steps.push(Step::Recall { vf: id.clone() });
            }
            VfPlace::Lost => {
                let holder = ledger.holders.get(id).map_or("unknown", GuestId::as_str);
                let note =
                    format!("{id} is lost (its holder by the journal: {holder}): it is recalled");
                recovery.notes.push(note);
                recovery.steps.push(Step::Recall { vf: id.clone() });
            }
            VfPlace::Pool if vf.mac != Mac::NONE => {
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

/// Leaves a VF of unknown use with its holder by the journal.
fn stays_unknown(id: &VfId, why: &str, ledger: &Ledger, recovery: &mut Recovery) {
    let open = ledger.open.values().find(|open| open.vf == *id);
    let holder = ledger.holders.get(id).or_else(|| open.map(|open| &open.guest));
    if let Some(holder) = holder {
        recovery.notes.push(format!("{id} stays with {holder}: who uses it is not known: {why}"));
        recovery.holders.insert(id.clone(), holder.clone());
    } else if let Some(fault) = ledger.quarantined.get(id) {
        recovery.quarantined.insert(id.clone(), fault.clone());
    }
}

fn recover_guests(ledger: &Ledger, state: &HostState, recovery: &mut Recovery) {
    let guests = recovery.guests.clone();
    for (guest, why) in ledger.marked.iter().filter(|(guest, _)| guests.contains(*guest)) {
        // A mark stays while its guest has a VF, does not answer or cannot be surveyed: until the operator
        // lifts it, the guest releases its VF, or it is restarted.
        let stays = match state.guests.get(guest).map(|guest| guest.answers) {
            Some(answers) => !answers || state.attached(guest).next().is_some(),
            None => !state.gaps.is_empty(),
        };
        if stays {
            recovery.marked.insert(guest.clone(), why.clone());
        } else {
            recovery.unmarked.insert(guest.clone());
        }
    }
    for id in &guests {
        if let Some(guest) = state.guests.get(id) {
            restore_guest(id, guest, ledger, state, recovery);
        }
    }
}

fn restore_guest(
    id: &GuestId,
    guest: &GuestState,
    ledger: &Ledger,
    state: &HostState,
    recovery: &mut Recovery,
) {
    let attached: Vec<&VfId> = state.attached(id).collect();
    if !guest.answers || recovery.marked.contains_key(id) {
        // It keeps its VF, which no other guest gets.
        for vf in &attached {
            recovery.holders.insert((*vf).clone(), id.clone());
        }
        let why =
            if attached.is_empty() { "does not answer" } else { "keeps its VF: does not answer" };
        recovery.marked.entry(id.clone()).or_insert_with(|| why.to_owned());
        return;
    }
    // Of several, the one that the journal knows stays, else the one in use, else the first.
    let recorded = |vf: &VfId| ledger.holders.get(vf) == Some(id);
    let kept = attached
        .iter()
        .find(|vf| recorded(vf))
        .or_else(|| attached.iter().find(|vf| guest.active == Path::Vf((**vf).clone())))
        .or(attached.first());
    let mut on_paravirtual = kept.is_none();
    for vf in &attached {
        let open = ledger.open.values().find(|open| open.vf == **vf);
        if Some(vf) == kept && stays(id, guest, vf, open, state) {
            recovery.holders.insert((*vf).clone(), id.clone());
            forward(id, guest, vf, recovery);
        } else if guest.paravirtual_up {
            recovery
                .notes
                .push(format!("{vf} was on its way into or out of {id}: it is taken back"));
            recovery.steps.extend(step::leave(id, vf, guest.join));
            on_paravirtual = false;
        } else {
            // The guest has no other path.
            recovery.notes.push(format!("{vf} stays with {id}, whose other path is down"));
            recovery.holders.insert((*vf).clone(), id.clone());
            forward(id, guest, vf, recovery);
        }
    }
    if on_paravirtual {
        restore_path(id, guest, &Path::Paravirtual, recovery);
    }
}

/// Does this VF stay with the guest that it is attached to?
fn stays(
    id: &GuestId,
    guest: &GuestState,
    vf: &VfId,
    open: Option<&Move>,
    state: &HostState,
) -> bool {
    let has_address = state.vfs.get(vf).is_some_and(|vf| vf.mac == guest.mac);
    let taken = open.is_some_and(|open| open.guest == *id && open.direction == Direction::Take);
    // Of a give that has come so far the rest is quickly done. With net_failover the VF must have the address,
    // too; one that is down cuts the guest off, since the NIC sends to it all the same.
    !taken && guest.vf_up && (has_address || guest.join == Join::Bond)
}

/// Finishes what `give` began, as far as it is not done.
fn forward(id: &GuestId, guest: &GuestState, vf: &VfId, recovery: &mut Recovery) {
    if guest.vf_up {
        restore_path(id, guest, &Path::Vf(vf.clone()), recovery);
    } else if guest.paravirtual_up {
        restore_path(id, guest, &Path::Paravirtual, recovery);
    }
}

fn restore_path(id: &GuestId, guest: &GuestState, path: &Path, recovery: &mut Recovery) {
    if guest.active == *path && guest.directed == *path {
        return;
    }
    recovery.notes.push(format!("{id} is only partly on {path}: the switch is completed"));
    let prefer = Step::Prefer { guest: id.clone(), path: path.clone() };
    let direct = Step::Direct { guest: id.clone(), path: path.clone() };
    recovery.steps.extend([prefer, direct]);
}
