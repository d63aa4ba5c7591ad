//! Drives one recovery: returns its steps one by one, and marks guests and quarantines VFs of which
//! a step fails. The caller journals each step before it performs it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::execute::Failure;
use crate::journal::{Entry, Ledger};
use crate::model::{GuestId, VfId};
use crate::recover::Recovery;
use crate::step::Step;
use crate::world::HostState;

/// A recovery under way.
#[derive(Debug, Clone)]
pub struct Repair {
    operation: u64,
    recovery: Recovery,
    steps: VecDeque<Step>,
    /// The step that is to be done and not reported yet.
    current: Option<Step>,
    /// The VFs of guests when the recovery began.
    attached: BTreeMap<GuestId, Vec<VfId>>,
    /// Guests of which a step failed: they keep their VFs.
    broken: BTreeSet<GuestId>,
    /// VFs about which no step is to follow; with the reason where the VF itself is to blame.
    stopped: BTreeMap<VfId, Option<String>>,
}

impl Repair {
    /// The recovery `operation` of this state.
    pub fn new(operation: u64, mut recovery: Recovery, state: &HostState) -> Self {
        let attached = recovery
            .guests
            .iter()
            .map(|guest| (guest.clone(), state.attached(guest).cloned().collect()))
            .collect();
        Self {
            operation,
            steps: std::mem::take(&mut recovery.steps).into(),
            recovery,
            current: None,
            attached,
            broken: BTreeSet::new(),
            stopped: BTreeMap::new(),
        }
    }

    /// The VFs that it is about.
    pub const fn vfs(&self) -> &BTreeSet<VfId> {
        &self.recovery.vfs
    }

    /// The guests that it is about.
    pub const fn guests(&self) -> &BTreeSet<GuestId> {
        &self.recovery.guests
    }

    /// The holders of VFs once it is done.
    pub const fn holders(&self) -> &BTreeMap<VfId, GuestId> {
        &self.recovery.holders
    }

    /// The line that announces the recovery.
    pub fn begin(&self) -> Entry {
        Entry::Recover { operation: self.operation, vfs: self.recovery.vfs.clone() }
    }

    /// The next step, with the line that announces it; none: all is done.
    pub fn next_step(&mut self) -> Option<(Entry, Step)> {
        while let Some(step) = self.steps.pop_front() {
            let skipped = step.guest().is_some_and(|guest| self.broken.contains(guest))
                || step.vf().is_some_and(|vf| self.stopped.contains_key(vf));
            if !skipped {
                self.current = Some(step.clone());
                let intent = Entry::Intent { operation: self.operation, step: step.clone() };
                return Some((intent, step));
            }
        }
        None
    }

    /// Takes the step's result; returns the message of a failure.
    pub fn report(&mut self, result: Result<(), Failure>) -> Option<String> {
        let step = self.current.take()?;
        let failure = result.err()?;
        let why = format!("could not {step}: {}", failure.why);
        match step.guest() {
            Some(guest) => {
                // It keeps its VF, which no other guest gets; no further step is done on either.
                self.broken.insert(guest.clone());
                for vf in self.attached.get(guest).into_iter().flatten() {
                    self.recovery.holders.insert(vf.clone(), guest.clone());
                    self.stopped.insert(vf.clone(), None);
                }
                self.recovery.marked.insert(guest.clone(), why.clone());
                if let Some(vf) = step.vf() {
                    self.stopped.insert(vf.clone(), None);
                }
            }
            None => {
                if let Some(vf) = step.vf() {
                    self.stopped.insert(vf.clone(), Some(why.clone()));
                }
            }
        }
        Some(why)
    }

    /// The journal's line of the recovery's result.
    pub fn settled(mut self, ledger: &Ledger) -> Entry {
        for (vf, why) in self.stopped {
            if let Some(why) = why.filter(|_| !self.recovery.holders.contains_key(&vf)) {
                self.recovery.quarantined.insert(vf, why);
            }
        }
        self.recovery.settled(self.operation, ledger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Mac;
    use crate::recover::recover;
    use crate::step::{Join, Path};
    use crate::world::{GuestState, VfPlace, VfPlacement};

    #[test]
    fn nothing_more_is_done_to_the_vf_of_a_guest_that_stopped_answering() {
        // A VF on its way into a guest is taken back; the guest falls silent at the first step.
        let (vf, web) = (VfId::new("pf0", 0), GuestId::from("web"));
        let guest = GuestState {
            mac: Mac([2, 0, 0, 0, 0, 1]),
            join: Join::Failover,
            answers: true,
            paravirtual_up: true,
            vf_up: false,
            active: Path::Paravirtual,
            directed: Path::Paravirtual,
        };
        let place = VfPlace::Guest(web.clone());
        let mut state = HostState::default();
        state.vfs.insert(vf.clone(), VfPlacement { mac: guest.mac, place });
        state.guests.insert(web.clone(), guest);
        let ledger = Ledger::default();
        let part = recover(&ledger, &state, None).remove(0);
        let mut repair = Repair::new(7, part, &state);
        assert!(repair.next_step().is_some_and(|(_, step)| step.guest() == Some(&web)));
        let silent = Failure { why: "it does not answer".into(), guest_silent: true };
        assert!(repair.report(Err(silent)).is_some());
        assert!(repair.next_step().is_none(), "its VF is not cleared in its hands");
        let Entry::Settled { holders, marks, .. } = repair.settled(&ledger) else { panic!("no") };
        assert_eq!(holders.get(&vf), Some(&web));
        assert!(marks[&web].is_some());
    }
}
