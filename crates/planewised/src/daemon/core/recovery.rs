//! Reconciles journal and host: at the start all of it, later only the VFs on which they disagree. The
//! survey of the host may take long; repairs are made in parts, so that a guest that does not answer
//! delays no other.

use std::collections::{BTreeMap, BTreeSet};

use pw_alloc::evidence::User;
use pw_alloc::execute::Operation;
use pw_alloc::model::{GuestId, Mac, VfId};
use pw_alloc::recover::{Recovery, recover};
use pw_alloc::world::{HostState, VfPlace, VfPlacement};
use pw_error::{Error, Result};

use super::moves::{Active, log_holders};
use super::{Core, FIRST_LOOK_MS, Suspected, backoff_ms};
use crate::daemon::guests::Guests;
use crate::daemon::tasks::{Task, Work};

/// VFs and guests, with the surveys that did not find them before; none: all.
type Scope = Option<(BTreeSet<VfId>, BTreeMap<GuestId, u32>)>;

/// Number of the survey's task; operations count up from 0.
const SURVEY: u64 = u64::MAX;

/// A survey of the host.
pub(super) struct Survey {
    scope: Scope,
    /// The reading of the pool that it waits for, by number; none: it has asked the guests.
    awaits: Option<u64>,
}

impl Core {
    /// Begins a survey where journal and host may disagree, if one is due.
    pub(super) fn recover_what_is_due(&mut self) {
        if self.survey.is_some() {
            return;
        }
        if self.doubtful {
            // Kinds that answer later would be recovered twice.
            let pending =
                self.now_ms < FIRST_LOOK_MS && self.host.kinds.iter().any(|kind| kind.is_pending());
            let idle = self.active.values().all(Active::is_overdue);
            if self.now_ms >= self.doubtful_after_ms && idle && !pending {
                self.suspected.clear();
                self.begin_survey(None);
            }
            return;
        }
        let due: BTreeSet<VfId> = self
            .doubts
            .iter()
            .filter(|(_, doubt)| doubt.next_ms <= self.now_ms && doubt.samples > 1)
            .filter(|(vf, _)| !self.is_vf_under_way(vf))
            .map(|(vf, _)| vf.clone())
            .collect();
        let guests: BTreeMap<GuestId, u32> = self
            .suspected
            .iter()
            .filter(|(id, guest)| guest.next_ms <= self.now_ms && !self.is_guest_under_way(id))
            .map(|(id, guest)| (id.clone(), guest.tries))
            .collect();
        if due.is_empty() && guests.is_empty() {
            return;
        }
        self.suspected.retain(|guest, _| !guests.contains_key(guest));
        for vf in &due {
            if let Some(doubt) = self.doubts.get_mut(vf) {
                tracing::warn!("{}", doubt.why);
                doubt.next_ms = self.now_ms + backoff_ms(doubt.tries);
                doubt.tries += 1;
            }
        }
        self.begin_survey(Some((due, guests)));
    }

    /// Schedules another survey after one failed.
    fn survey_failed(&mut self, error: &Error, scope: Scope) {
        self.report_once(error);
        for (guest, tries) in scope.into_iter().flat_map(|(_, guests)| guests) {
            self.suspected.entry(guest).or_insert(Suspected { tries, next_ms: 0 });
        }
        self.postpone_recovery();
    }

    /// Begins a survey: a reading of the pool, then of the guests.
    fn begin_survey(&mut self, scope: Scope) {
        let awaits = Some(self.reading.begun + 1);
        self.survey = Some(Survey { scope, awaits });
        self.begin_reading();
        self.take_reports();
    }

    /// A reading has ended: a survey that waits for one goes on.
    pub(super) fn survey_has_read(&mut self, result: Result<()>) {
        let Some(survey) = &mut self.survey else { return };
        match survey.awaits {
            None => return,
            // It had begun before.
            Some(number) if self.reading.begun < number => return self.begin_reading(),
            Some(_) => survey.awaits = None,
        }
        if let Err(error) = result {
            let scope = self.survey.take().and_then(|survey| survey.scope);
            return self.survey_failed(&error, scope);
        }
        let find = |kind: &mut Box<dyn Guests>| kind.find(&self.view);
        let searches = self.host.kinds.iter_mut().map(find).collect();
        self.host.tasks.begin(Task { number: SURVEY, work: Work::Find(searches) });
    }

    /// The survey is complete: begins the repairs.
    pub(super) fn finish_survey(&mut self, found: Vec<Result<HostState>>) {
        let Some(Survey { scope, .. }) = self.survey.take() else { return };
        let state = match self.merge(found) {
            Ok(state) => state,
            Err(error) => return self.survey_failed(&error, scope),
        };
        if scope.is_none() {
            (self.doubtful, self.checkpoint_due) = (false, true);
        }
        let names = scope.as_ref().map(|(vfs, guests)| (vfs, guests.keys().cloned().collect()));
        let names = names.as_ref().map(|(vfs, guests)| (*vfs, guests));
        let parts = recover(self.journal.ledger(), &state, names);
        let mut recovered: BTreeSet<GuestId> =
            parts.iter().flat_map(|part| &part.guests).cloned().collect();
        if scope.is_none() {
            recovered.extend(self.guests.keys().cloned());
        }
        let tries = scope.map(|(_, guests)| guests).unwrap_or_default();
        self.retry_unseen(recovered, &tries, &state);
        for part in parts {
            // A move that was begun meanwhile goes first; a doubt that it leaves is surveyed again.
            let busy = part.vfs.iter().any(|vf| self.is_vf_under_way(vf))
                || part.guests.iter().any(|guest| self.is_guest_under_way(guest));
            if busy || self.doubtful {
                let guests = part.guests.into_iter();
                self.suspected.extend(guests.map(|guest| (guest, Suspected::default())));
            } else {
                self.begin_recovery(part, &state);
            }
        }
        if !self.doubtful {
            self.doubtful_tries = 0;
        }
        self.next_read_ms = 0;
    }

    /// Schedules surveys, at growing intervals, of recovered guests that are managed and were not found: their
    /// VFs may never become doubtful again.
    fn retry_unseen(
        &mut self,
        recovered: BTreeSet<GuestId>,
        tries: &BTreeMap<GuestId, u32>,
        state: &HostState,
    ) {
        let unseen = recovered
            .into_iter()
            .filter(|guest| !state.guests.contains_key(guest) && self.guests.contains_key(guest));
        for guest in unseen {
            let tries = tries.get(&guest).copied().unwrap_or(0);
            let next_ms = self.now_ms + backoff_ms(tries);
            let again = Suspected { tries: tries.saturating_add(1), next_ms };
            self.suspected.entry(guest).or_insert(again);
        }
    }

    fn begin_recovery(&mut self, part: Recovery, state: &HostState) {
        for note in &part.notes {
            tracing::warn!("{note}");
        }
        if part.steps.is_empty() && !part.changes(self.journal.ledger()) {
            return log_holders(part.holders.iter());
        }
        let number = self.journal.ledger().next_operation;
        let operation = Operation::of_recovery(number, part, state);
        self.begin(number, Active::new(operation, None));
    }

    /// Merges the surveys of all kinds of guests with the pool.
    fn merge(&mut self, found: Vec<Result<HostState>>) -> Result<HostState> {
        let mut found = found.into_iter();
        let mut state = HostState::default();
        for (index, kind) in self.host.kinds.iter().enumerate() {
            // A kind that does not answer is a gap, and fails no other.
            let name = kind.name();
            let mut part = match found.next() {
                Some(Ok(part)) => part,
                Some(Err(error)) => HostState::unknown(error.what),
                None => HostState::unknown(format!("{name} could not be surveyed")),
            };
            // Of two guests of the same name, only the first is managed.
            let of_kind = |id: &GuestId| self.guests.get(id).map(|guest| guest.kind == index);
            part.guests.retain(|id, _| of_kind(id) == Some(true));
            for vf in part.vfs.values_mut() {
                let VfPlace::Guest(guest) = &vf.place else { continue };
                vf.place = match of_kind(guest) {
                    Some(true) => continue,
                    Some(false) => {
                        VfPlace::Foreign(format!("{guest} of {name} has it, not managed"))
                    }
                    None => {
                        VfPlace::Unknown(format!("{guest} has it, which has not been reported yet"))
                    }
                };
            }
            state.vfs.extend(part.vfs);
            state.guests.extend(part.guests);
            state.gaps.extend(part.gaps);
        }
        // A VF may have been released during the survey.
        self.host.pool.sample(&mut self.view)?;
        let ledger = self.journal.ledger();
        let addresses: BTreeSet<Mac> = state.guests.values().map(|guest| guest.mac).collect();
        for (id, vf) in &self.view.vfs {
            if state.vfs.contains_key(id) {
                continue;
            }
            let left_behind = vf.strayed && ledger.knows(id);
            let place = match (&vf.user, state.gaps.first()) {
                (User::Nobody, _) => VfPlace::Pool,
                (User::Host(why), _) => VfPlace::Foreign(why.clone()),
                (_, None) if left_behind => VfPlace::Lost,
                (User::Guest(why), None) => VfPlace::Foreign(why.clone()),
                // Its user may be a guest of the kind that did not answer.
                (User::Guest(why), Some(gap)) => VfPlace::Unknown(format!("{why}; {gap}")),
                (User::Unknown(why), _) => VfPlace::Unknown(why.clone()),
            };
            let mac = if addresses.contains(&vf.mac) { vf.mac } else { Mac::NONE };
            state.vfs.insert(id.clone(), VfPlacement { mac, place });
        }
        Ok(state)
    }
}
