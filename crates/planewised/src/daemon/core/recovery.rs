//! Reconciles journal and host: at the start all of it, later only the VFs on which they disagree. The
//! survey of the host may take long; repairs are made in parts, so that a guest that does not answer
//! delays no other.

use std::collections::BTreeSet;

use pw_alloc::evidence::User;
use pw_alloc::execute::Operation;
use pw_alloc::model::{GuestId, Mac, VfId};
use pw_alloc::recover::{Recovery, recover};
use pw_alloc::world::{HostState, VfPlace, VfPlacement};
use pw_error::Result;

use super::moves::{Active, log_holders};
use super::{Core, FIRST_LOOK_MS};
use crate::daemon::guests::Guests;
use crate::daemon::tasks::{Task, Work};

/// The longest wait between two surveys of what cannot be recovered is 2 to this power seconds.
const LONGEST_BACKOFF: u32 = 6;

/// On what journal and host may disagree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// All of it: nothing is moved.
    Host,
    /// A guest, with or without a VF.
    Guest(GuestId),
    Vf(VfId),
}

/// A doubt about it, until a survey has resolved it.
#[derive(Debug, Clone)]
pub(super) struct Doubt {
    pub why: String,
    /// Surveys since it arose.
    pub tries: u32,
    /// Earliest time of the next one [ms]; 0: at once, whatever samples show; none: another sample is to
    /// confirm the doubt.
    pub due_ms: Option<u64>,
}

impl Default for Doubt {
    fn default() -> Self {
        Self { why: String::new(), tries: 0, due_ms: Some(0) }
    }
}

impl Doubt {
    /// Pauses, longer after each survey.
    pub fn postpone(&mut self, now_ms: u64) {
        self.due_ms = Some(now_ms + (1000 << self.tries.min(LONGEST_BACKOFF)));
        self.tries = self.tries.saturating_add(1);
    }
}

/// Number of the survey's task; operations count up from 0.
const SURVEY: u64 = u64::MAX;

/// A survey of the host.
pub(super) struct Survey {
    scope: BTreeSet<Subject>,
    /// The reading of the pool that it waits for, by number; none: it has asked the guests.
    awaits: Option<u64>,
}

impl Core {
    /// Are journal and host to be reconciled before anything is moved?
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubts.contains_key(&Subject::Host)
    }

    /// Begins a survey where journal and host may disagree, if one is due: a reading of the pool, then of the
    /// guests.
    pub(super) fn recover_what_is_due(&mut self) {
        let scope: BTreeSet<Subject> =
            self.doubts.keys().filter(|subject| self.is_due(subject)).cloned().collect();
        if self.survey.is_some() || scope.is_empty() {
            return;
        }
        if scope.contains(&Subject::Host) {
            self.doubts.retain(|subject, _| *subject == Subject::Host);
        }
        for (_, doubt) in self.doubts.iter_mut().filter(|(subject, _)| scope.contains(subject)) {
            if !doubt.why.is_empty() {
                tracing::warn!("{}", doubt.why);
            }
            doubt.postpone(self.now_ms);
        }
        self.survey = Some(Survey { scope, awaits: Some(self.reading.begun + 1) });
        self.begin_reading();
        self.take_reports();
    }

    fn is_due(&self, subject: &Subject) -> bool {
        let due_ms = self.doubts.get(subject).and_then(|doubt| doubt.due_ms);
        due_ms.is_some_and(|due_ms| due_ms <= self.now_ms)
            && match subject {
                // Kinds that answer later would be recovered twice.
                Subject::Host => {
                    let mut kinds = self.host.kinds.iter();
                    let pending =
                        self.now_ms < FIRST_LOOK_MS && kinds.any(|kind| kind.is_pending());
                    !pending && self.active.values().all(Active::is_overdue)
                }
                Subject::Guest(guest) => !self.is_doubtful() && !self.is_guest_under_way(guest),
                Subject::Vf(vf) => !self.is_doubtful() && !self.is_vf_under_way(vf),
            }
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
            // What is doubted stays so, and is due again.
            self.survey = None;
            return self.report_once(&error);
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
            Err(error) => return self.report_once(&error),
        };
        let (mut vfs, mut guests) = (BTreeSet::new(), BTreeSet::new());
        for subject in &scope {
            match subject {
                Subject::Vf(vf) => drop(vfs.insert(vf.clone())),
                Subject::Guest(guest) => drop(guests.insert(guest.clone())),
                Subject::Host => {}
            }
        }
        let whole = scope.contains(&Subject::Host);
        let host = if whole { self.doubts.remove(&Subject::Host) } else { None };
        self.checkpoint_due |= whole;
        let names = (!whole).then_some((&vfs, &guests));
        let parts = recover(self.journal.ledger(), &state, names);
        guests.extend(parts.iter().flat_map(|part| &part.guests).cloned());
        if whole {
            guests.extend(self.guests.keys().cloned());
        }
        for guest in guests {
            self.surveyed(guest, &state);
        }
        for part in parts {
            // A move that was begun meanwhile goes first; a doubt that it leaves is surveyed again.
            let busy = part.vfs.iter().any(|vf| self.is_vf_under_way(vf))
                || part.guests.iter().any(|guest| self.is_guest_under_way(guest));
            if busy || self.is_doubtful() {
                let guests = part.guests.into_iter();
                self.doubts.extend(guests.map(|guest| (Subject::Guest(guest), Doubt::default())));
            } else {
                self.begin_recovery(part, &state);
            }
        }
        // The journal could not be written: the pauses go on growing.
        if let (Some(again), Some(before)) = (self.doubts.get_mut(&Subject::Host), host) {
            *again = before;
        }
        self.next_read_ms = 0;
    }

    /// Ends the doubt about a guest, unless it is managed and was not found, or something happened to it since
    /// the survey began: its VFs may never become doubtful again.
    fn surveyed(&mut self, guest: GuestId, state: &HostState) {
        let unseen = !state.guests.contains_key(&guest) && self.guests.contains_key(&guest);
        let subject = Subject::Guest(guest);
        let tries = self.doubts.get(&subject).map(|doubt| doubt.tries);
        if unseen && tries.is_none_or(|tries| tries == 0) {
            self.doubts.entry(subject).or_default().postpone(self.now_ms);
        } else if !unseen && tries > Some(0) {
            self.doubts.remove(&subject);
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
