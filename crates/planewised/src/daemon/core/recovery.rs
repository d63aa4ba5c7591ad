//! Brings journal and world together: at the start all of it, later the VFs alone about which they disagree.

use std::collections::{BTreeMap, BTreeSet};

use pw_alloc::evidence::User;
use pw_alloc::journal::Entry;
use pw_alloc::model::{GuestId, Mac, VfId};
use pw_alloc::recover::{Recovery, recover, recover_only};
use pw_alloc::world::{Found, FoundVf, Place};
use pw_linux::error::{Error, Result};

use super::{Core, backoff_ms, vf_of, word};
use crate::daemon::failpoint;

impl Core {
    /// Journal and world as one: what is, as recovery needs it.
    fn found(&mut self) -> Result<Found> {
        self.view = self.host.pool.read()?;
        let mut found = Found::default();
        for (at, kind) in self.host.kinds.iter_mut().enumerate() {
            // A kind that cannot be asked fails alone.
            let mut part = match kind.find(&self.view) {
                Ok(part) => part,
                Err(error) => Found { gaps: vec![error.what], ..Found::default() },
            };
            // Of two guests of one name and two kinds the first one known is meant.
            let another = |id: &GuestId| self.guests.get(id).is_some_and(|guest| guest.kind != at);
            part.guests.retain(|id, _| !another(id));
            for vf in part.vfs.values_mut() {
                if let Place::Guest(guest) = &vf.place
                    && another(guest)
                {
                    let kind = kind.name();
                    vf.place = Place::Foreign(format!("{guest} of {kind} has it, not managed"));
                }
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
                (User::Nobody, _) => Place::Pool,
                (User::Host(why), _) => Place::Foreign(why.clone()),
                (_, None) if left_behind => Place::Lost,
                (User::Guest(why), None) => Place::Foreign(why.clone()),
                // Somebody has it, and who that may be could not be asked.
                (User::Guest(why), Some(gap)) => Place::Unknown(format!("{why}; {gap}")),
                (User::Unknown(why), _) => Place::Unknown(why.clone()),
            };
            let mac = if addresses.contains(&vf.mac) { vf.mac } else { Mac::ZERO };
            found.vfs.insert(id.clone(), FoundVf { mac, place });
        }
        Ok(found)
    }

    /// Recovers the VFs that are doubted, each as soon as it is due.
    pub(super) fn recover_doubted(&mut self, now_ms: u64) {
        let due: BTreeSet<VfId> = self
            .doubts
            .iter()
            .filter(|(_, doubt)| doubt.next_ms <= now_ms)
            .map(|(vf, _)| vf.clone())
            .collect();
        if due.is_empty() {
            return;
        }
        for vf in &due {
            if let Some(doubt) = self.doubts.get_mut(vf) {
                tracing::warn!("{}", doubt.why);
                doubt.next_ms = now_ms + backoff_ms(doubt.tries);
                doubt.tries += 1;
            }
        }
        match self.reconcile(now_ms, Some(&due)) {
            Ok(()) => self.decide_now = true,
            Err(error) => self.tell_once(&error),
        }
    }

    /// Brings journal and world together: of these VFs, or of all. Every step is written to the
    /// journal before it is done.
    ///
    /// # Errors
    /// The journal cannot be written, and nothing more was done; or the pool cannot be read.
    pub(super) fn reconcile(&mut self, now_ms: u64, only: Option<&BTreeSet<VfId>>) -> Result<()> {
        let found = self.found()?;
        let ledger = self.journal.ledger();
        let operation = ledger.next_operation;
        let mut recovery = match only {
            None => recover(ledger, &found),
            Some(vfs) => recover_only(ledger, &found, vfs),
        };
        for note in &recovery.notes {
            tracing::warn!("{note}");
        }
        let vfs = only.cloned().unwrap_or_else(|| found.vfs.keys().cloned().collect());
        self.journal.append(&Entry::Recover { operation, vfs: vfs.clone() })?;
        self.perform_recovery(operation, &found, &mut recovery)?;
        let line = match only {
            None => recovery.checkpoint(),
            Some(_) => recovery.settled(operation, &vfs, self.journal.ledger()),
        };
        self.journal.append(&line)?;
        self.read_pool(now_ms);
        if only.is_none() {
            self.doubtful = false;
        }
        for (vf, guest) in recovery.holders.iter().filter(|(vf, _)| vfs.contains(*vf)) {
            if let Some(tracked) = self.guests.get_mut(guest) {
                tracing::info!("{guest} holds {vf}");
                tracked.since_ms = tracked.since_ms.min(now_ms);
            }
        }
        Ok(())
    }

    fn perform_recovery(
        &mut self,
        operation: u64,
        found: &Found,
        recovery: &mut Recovery,
    ) -> Result<()> {
        let mut quarantined: BTreeMap<VfId, String> = BTreeMap::new();
        let mut broken: BTreeMap<GuestId, String> = BTreeMap::new();
        for step in std::mem::take(&mut recovery.steps) {
            let vf = vf_of(&step);
            let skip = step.guest().is_some_and(|guest| broken.contains_key(guest))
                || vf.is_some_and(|vf| quarantined.contains_key(vf));
            if skip {
                continue;
            }
            self.journal.append(&Entry::Intent { operation, step: step.clone() })?;
            failpoint::reached(|| format!("recover/{}/before", word(&step)));
            tracing::info!("recovery: {step}");
            let Err(failure) = self.step(&step) else { continue };
            failpoint::reached(|| format!("recover/{}/failed", word(&step)));
            let why = format!("could not {step}: {}", failure.why);
            self.tell_error(&Error::failed(why.clone(), ""), step.guest(), vf);
            match step.guest() {
                Some(guest) => {
                    broken.insert(guest.clone(), why.clone());
                    // It keeps what it has; nobody else gets it.
                    for held in found.attached(guest) {
                        recovery.holders.insert(held.clone(), guest.clone());
                    }
                    recovery.marked.insert(guest.clone(), why);
                    // Steps about that VF alone must not follow.
                    if let Some(vf) = vf {
                        quarantined.insert(vf.clone(), String::new());
                    }
                }
                None => {
                    if let Some(vf) = vf {
                        quarantined.insert(vf.clone(), why);
                    }
                }
            }
        }
        quarantined.retain(|vf, why| !why.is_empty() && !recovery.holders.contains_key(vf));
        recovery.quarantined.extend(quarantined);
        Ok(())
    }
}
