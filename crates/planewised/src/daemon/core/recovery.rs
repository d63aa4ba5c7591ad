//! Brings journal and world together: at the start all of it, later the VFs alone about which they
//! disagree. What the world is may take its time to find; what is to be done is done in parts, so that a
//! guest that does not answer delays nobody else.

use std::collections::{BTreeMap, BTreeSet};

use pw_alloc::evidence::User;
use pw_alloc::model::{GuestId, Mac, VfId};
use pw_alloc::recover::{Recovery, recover_in_parts};
use pw_alloc::repair::Repair;
use pw_alloc::world::{Found, FoundVf, VfPlace};
use pw_error::Result;

use super::moves::Active;
use super::{Core, FIRST_LOOK_MS, backoff_ms};
use crate::daemon::crew::{Task, Work};
use crate::daemon::guests::Finding;

/// The number of the task that looks; operations count up from 0.
const FIND: u64 = u64::MAX;

/// A look for what journal and world come to.
pub(super) struct Find {
    /// The VFs and guests that it is about; none: everything.
    only: Option<(BTreeSet<VfId>, BTreeSet<GuestId>)>,
    /// What has been found, by kind.
    parts: Vec<(usize, Result<Found>)>,
}

impl Core {
    /// Begins to look where journal and world may disagree, as soon as that is due.
    pub(super) fn recover_what_is_due(&mut self, now_ms: u64) {
        if self.finding.is_some() {
            return;
        }
        if self.doubtful {
            // What is known by halves at the start would be recovered twice.
            let unasked =
                now_ms < FIRST_LOOK_MS && self.host.kinds.iter().any(|kind| kind.is_pending());
            let idle = self.active.values().all(Active::is_overdue);
            if now_ms >= self.doubtful_after_ms && idle && !unasked {
                self.begin_find(None, now_ms);
            }
            return;
        }
        let due: BTreeSet<VfId> = self
            .doubts
            .iter()
            .filter(|(_, doubt)| doubt.next_ms <= now_ms && doubt.samples > 1)
            .filter(|(vf, _)| !self.is_vf_under_way(vf))
            .map(|(vf, _)| vf.clone())
            .collect();
        let guests: BTreeSet<GuestId> = self
            .suspected
            .iter()
            .chain(self.unseen.iter().filter(|(_, one)| one.next_ms <= now_ms).map(|(id, _)| id))
            .filter(|guest| !self.is_guest_under_way(guest))
            .cloned()
            .collect();
        if due.is_empty() && guests.is_empty() {
            return;
        }
        self.suspected.retain(|guest| !guests.contains(guest));
        for vf in &due {
            if let Some(doubt) = self.doubts.get_mut(vf) {
                tracing::warn!("{}", doubt.why);
                doubt.next_ms = now_ms + backoff_ms(doubt.tries);
                doubt.tries += 1;
            }
        }
        self.begin_find(Some((due, guests)), now_ms);
    }

    fn begin_find(&mut self, only: Option<(BTreeSet<VfId>, BTreeSet<GuestId>)>, now_ms: u64) {
        match self.host.pool.read() {
            Ok(view) => self.view = view,
            Err(error) => {
                self.tell_once(&error);
                self.suspected.extend(only.into_iter().flat_map(|(_, guests)| guests));
                self.doubtful_after_ms = now_ms + backoff_ms(self.doubtful_tries);
                self.doubtful_tries = self.doubtful_tries.saturating_add(1);
                return;
            }
        }
        let (mut parts, mut later) = (Vec::new(), Vec::new());
        for (at, kind) in self.host.kinds.iter_mut().enumerate() {
            match kind.find(&self.view) {
                Finding::Found(found) => parts.push((at, Ok(found))),
                Finding::Later(search) => later.push((at, search)),
            }
        }
        self.finding = Some(Find { only, parts });
        if later.is_empty() {
            self.found(Vec::new(), now_ms);
        } else {
            self.host.crew.begin(Task { number: FIND, work: Work::Find(later) });
        }
    }

    /// Everything has been looked for: what is to be done about it is begun.
    pub(super) fn found(&mut self, parts: Vec<(usize, Result<Found>)>, now_ms: u64) {
        let Some(mut find) = self.finding.take() else { return };
        find.parts.extend(parts);
        let found = match self.merge(find.parts) {
            Ok(found) => found,
            Err(error) => {
                self.tell_once(&error);
                self.suspected.extend(find.only.into_iter().flat_map(|(_, guests)| guests));
                self.doubtful_after_ms = now_ms + backoff_ms(self.doubtful_tries);
                self.doubtful_tries = self.doubtful_tries.saturating_add(1);
                return;
            }
        };
        if find.only.is_none() {
            (self.doubtful, self.checkpoint_due) = (false, true);
        }
        let only = find.only.as_ref().map(|(vfs, guests)| (vfs, guests));
        let parts = recover_in_parts(self.journal.ledger(), &found, only);
        let mut meant: BTreeSet<GuestId> =
            parts.iter().flat_map(|part| &part.guests).cloned().collect();
        if find.only.is_none() {
            meant.extend(self.guests.keys().chain(self.unseen.keys()).cloned());
        }
        self.look_again_for(meant, &found, now_ms);
        for part in parts {
            // A move that was begun meanwhile goes before; if it leaves a doubt, that is looked into.
            let busy = part.vfs.iter().any(|vf| self.is_vf_under_way(vf))
                || part.guests.iter().any(|guest| self.is_guest_under_way(guest));
            if busy || self.doubtful {
                self.suspected.extend(part.guests);
            } else {
                self.begin_recovery(part, &found, now_ms);
            }
        }
        if !self.doubtful {
            self.doubtful_tries = 0;
        }
        self.next_read_ms = 0;
    }

    /// These guests are being recovered. Of those that are managed and were not found nothing can be put
    /// right now, and their VFs may never be doubted again: they are looked for again, ever more seldom.
    fn look_again_for(&mut self, meant: BTreeSet<GuestId>, found: &Found, now_ms: u64) {
        for guest in meant {
            if found.guests.contains_key(&guest) || !self.guests.contains_key(&guest) {
                self.unseen.remove(&guest);
            } else {
                let unseen = self.unseen.entry(guest).or_default();
                unseen.next_ms = now_ms + backoff_ms(unseen.tries);
                unseen.tries = unseen.tries.saturating_add(1);
            }
        }
    }

    fn begin_recovery(&mut self, part: Recovery, found: &Found, now_ms: u64) {
        for note in &part.notes {
            tracing::warn!("{note}");
        }
        if part.steps.is_empty() && !part.changes(self.journal.ledger()) {
            return self.taken_over(&part.holders, now_ms);
        }
        let operation = self.journal.ledger().next_operation;
        let repair = Repair::new(operation, part, found);
        if let Err(error) = self.journal.append(&repair.begin()) {
            return self.journal_failed(&error);
        }
        self.begin(operation, Active::recovery(repair), now_ms);
    }

    /// These guests have these VFs, and have had them.
    pub(super) fn taken_over(&mut self, holders: &BTreeMap<VfId, GuestId>, now_ms: u64) {
        for (vf, guest) in holders {
            if let Some(tracked) = self.guests.get_mut(guest) {
                tracing::info!("{guest} holds {vf}");
                tracked.since_ms = tracked.since_ms.min(now_ms);
            }
        }
    }

    /// What is, as recovery needs it.
    fn merge(&mut self, mut parts: Vec<(usize, Result<Found>)>) -> Result<Found> {
        parts.sort_by_key(|(kind, _)| *kind);
        let mut found = Found::default();
        for at in 0..self.host.kinds.len() {
            let part = parts.iter().position(|(kind, _)| *kind == at).map(|at| parts.remove(at).1);
            // A kind that cannot be asked fails alone.
            let name = self.host.kinds[at].name();
            let mut part = match part {
                Some(Ok(part)) => part,
                Some(Err(error)) => Found { gaps: vec![error.what], ..Found::default() },
                None => {
                    let gap = format!("{name} could not be looked at");
                    Found { gaps: vec![gap], ..Found::default() }
                }
            };
            // Of two guests of one name and two kinds the first one known is meant.
            let of_kind = |id: &GuestId| self.guests.get(id).map(|guest| guest.kind == at);
            part.guests.retain(|id, _| of_kind(id) == Some(true));
            for vf in part.vfs.values_mut() {
                let VfPlace::Guest(guest) = &vf.place else { continue };
                vf.place = match of_kind(guest) {
                    Some(true) => continue,
                    Some(false) => {
                        VfPlace::Foreign(format!("{guest} of {name} has it, not managed"))
                    }
                    None => {
                        VfPlace::Unknown(format!("{guest} has it, which has not been told yet"))
                    }
                };
            }
            found.vfs.extend(part.vfs);
            found.guests.extend(part.guests);
            found.gaps.extend(part.gaps);
        }
        // A VF that was released while the kinds were asked is nobody's, and not somebody else's.
        self.host.pool.sample(&mut self.view)?;
        let ledger = self.journal.ledger();
        let addresses: BTreeSet<Mac> = found.guests.values().map(|guest| guest.mac).collect();
        for (id, vf) in &self.view.vfs {
            if found.vfs.contains_key(id) {
                continue;
            }
            let left_behind = vf.strayed && ledger.knows(id);
            let place = match (&vf.user, found.gaps.first()) {
                (User::Nobody, _) => VfPlace::Pool,
                (User::Host(why), _) => VfPlace::Foreign(why.clone()),
                (_, None) if left_behind => VfPlace::Lost,
                (User::Guest(why), None) => VfPlace::Foreign(why.clone()),
                // Somebody has it, and who that may be could not be asked.
                (User::Guest(why), Some(gap)) => VfPlace::Unknown(format!("{why}; {gap}")),
                (User::Unknown(why), _) => VfPlace::Unknown(why.clone()),
            };
            let mac = if addresses.contains(&vf.mac) { vf.mac } else { Mac::ZERO };
            found.vfs.insert(id.clone(), FoundVf { mac, place });
        }
        Ok(found)
    }
}
