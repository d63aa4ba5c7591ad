//! Decisions, and operations under way: each move and each recovery advances from report to report, each
//! step journalled before it is begun. Nothing here waits.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pw_alloc::Decision;
use pw_alloc::execute::{Action, Failure, Operation, Performed};
use pw_alloc::journal::Ending;
use pw_alloc::model::{GuestId, VfId};
use pw_alloc::plan::{Direction, Move, Plan};
use pw_alloc::step::{Path, Step};
use pw_error::Error;

use super::{Core, OVERDUE_MS, Tracked};
use crate::daemon::failpoint;
use crate::daemon::request::Event;
use crate::daemon::status::{self, MoveRecord, StepRecord, unix_ms};
use crate::daemon::tasks::{Executor, Task, Work};

/// A move or a recovery under way.
pub(super) struct Active {
    operation: Operation,
    /// What is published of a move.
    record: Option<Box<MoveRecord>>,
    begun: Instant,
    /// Deadline of its step [ms].
    due_ms: u64,
    overdue_reported: bool,
}

impl Active {
    pub(super) fn new(operation: Operation, record: Option<Box<MoveRecord>>) -> Self {
        let (begun, due_ms) = (Instant::now(), u64::MAX);
        Self { operation, record, begun, due_ms, overdue_reported: false }
    }

    /// The guest that it gives this VF to.
    pub(super) fn gives(&self, vf: &VfId) -> Option<&GuestId> {
        let change = self.operation.change()?;
        let gives = change.direction == Direction::Give && change.vf == *vf;
        gives.then_some(&change.guest)
    }

    /// Is its step long overdue?
    pub(super) const fn is_overdue(&self) -> bool {
        self.overdue_reported
    }

    /// Its name in failpoints.
    fn word(&self) -> &'static str {
        self.operation.change().map_or("recover", |change| change.direction.as_str())
    }
}

impl Core {
    pub(super) fn decide(&mut self) -> Decision {
        let begun = Instant::now();
        let snapshot = self.snapshot();
        let decision = self.allocator.decide(&snapshot);
        self.record_decision(&snapshot, &decision.plan);
        let elapsed = begun.elapsed();
        self.status.counters.decision_durations.observe(elapsed.as_secs_f64());
        for verdict in &decision.verdicts {
            if let Some(guest) = self.guests.get_mut(&verdict.guest) {
                guest.why = if self.status.draining {
                    "every VF goes back to its pool".to_owned()
                } else {
                    verdict.reason.to_string()
                };
            }
        }
        self.ends.emit(Event::Decided {
            moves: decision.plan.moves.len() as u64,
            deferred: decision.deferred as u64,
            duration_ms: elapsed.as_secs_f64() * 1e3,
        });
        decision
    }

    /// Is a move of this VF under way or queued, or a recovery of it under way?
    pub(super) fn is_vf_under_way(&self, vf: &VfId) -> bool {
        self.active.values().any(|active| active.operation.is_about_vf(vf))
            || self.queue.iter().any(|change| change.vf == *vf)
    }

    /// The VFs of moves and recoveries under way.
    pub(super) fn vfs_under_way(&self) -> BTreeSet<VfId> {
        self.active.values().flat_map(|active| active.operation.vfs()).cloned().collect()
    }

    /// Is a move of this guest under way or queued, or a recovery of it under way?
    pub(super) fn is_guest_under_way(&self, guest: &GuestId) -> bool {
        self.active.values().any(|active| active.operation.is_about_guest(guest))
            || self.queue.iter().any(|change| change.guest == *guest)
    }

    /// Begins queued moves of which neither guest nor VF is under way. A plan leaves out guests and VFs under
    /// way, so that queued moves stay valid.
    pub(super) fn begin_queued(&mut self) {
        let mut waiting = VecDeque::new();
        let (mut vfs, mut guests) = (BTreeSet::new(), BTreeSet::new());
        for change in std::mem::take(&mut self.queue) {
            if (self.stop)() || self.is_doubtful() {
                continue;
            }
            let waits = vfs.contains(&change.vf)
                || guests.contains(&change.guest)
                || self.active.values().any(|Active { operation, .. }| {
                    operation.is_about_vf(&change.vf) || operation.is_about_guest(&change.guest)
                });
            if waits {
                vfs.insert(change.vf.clone());
                guests.insert(change.guest.clone());
                waiting.push_back(change);
                continue;
            }
            let ledger = self.journal.ledger();
            let is_valid = match change.direction {
                // Things may have changed since: the take before it failed, the VF is in doubt, the guest
                // is on another network.
                Direction::Give => {
                    let plan = Plan { moves: vec![change.clone()] };
                    !ledger.knows(&change.vf) && plan.try_on(&self.snapshot()).is_ok()
                }
                Direction::Take => ledger.holders.get(&change.vf) == Some(&change.guest),
            };
            if is_valid {
                self.begin_move(change);
            }
        }
        // Moves that waited go first.
        waiting.append(&mut self.queue);
        self.queue = waiting;
    }

    fn begin_move(&mut self, change: Move) {
        let Some(guest) = self.guests.get(&change.guest) else { return };
        let (mac, join) = (guest.managed.mac, guest.managed.join);
        let plan = Plan { moves: vec![change.clone()] };
        let number = self.journal.ledger().next_operation;
        let record = Box::new(MoveRecord::begun(number, &change));
        self.record_move(&record, Event::MoveBegan);
        let operation = Operation::of_move(number, change, mac, join);
        self.begin(number, Active::new(operation, Some(record)));
        // Only a move that was begun counts for the policy.
        if self.active.contains_key(&number) {
            self.allocator.commit(&plan, self.now_ms);
        }
    }

    /// Begins a move or a recovery.
    pub(super) fn begin(&mut self, number: u64, active: Active) {
        self.active.insert(number, active);
        self.drive(number);
    }

    /// Advances an operation until a task has been begun or it has ended.
    fn drive(&mut self, number: u64) {
        while let Some(active) = self.active.get_mut(&number) {
            match active.operation.next_action() {
                Action::Write(line) => {
                    if let Err(error) = self.journal.append(&line) {
                        self.journal_failed(&error);
                        self.active.remove(&number);
                        return;
                    }
                }
                Action::Do(step) => return self.begin_step(number, step),
                Action::Finished => return self.operation_ended(number),
            }
        }
    }

    fn begin_step(&mut self, number: u64, step: Step) {
        let Some(active) = self.active.get_mut(&number) else { return };
        active.due_ms = self.now_ms + (self.config.step_timeout_s * 1e3) as u64;
        failpoint::reached(|| format!("{}/{}/before", active.word(), step.word()));
        if active.record.is_none() {
            tracing::info!("recovery: {step}");
        }
        match self.executors(&step) {
            Ok(executors) => {
                let pool = Arc::new(self.view.clone());
                let within = Duration::from_secs_f64(self.config.step_timeout_s);
                let work = Work::Step { step, executors, pool, within };
                self.host.tasks.begin(Task { number, work });
            }
            Err(failure) => self.failed_at_once.push((number, failure)),
        }
    }

    /// The executors of this step, in order.
    fn executors(&mut self, step: &Step) -> Performed<Vec<Box<dyn Executor>>> {
        let mut executors = Vec::new();
        if matches!(step, Step::Reserve { .. }) || step.guest().is_none() {
            executors.push(self.host.pool.executor());
        }
        if let Some(guest) = step.guest() {
            match self.guests.get(guest) {
                Some(tracked) => executors.push(self.host.kinds[tracked.kind].executor(guest)?),
                // The guest is gone: its frames need no path.
                None if matches!(
                    step,
                    Step::Direct { .. } | Step::Prefer { path: Path::Paravirtual, .. }
                ) => {}
                None => {
                    return Err(Failure::silent(format!("{guest} is not managed any more")));
                }
            }
        }
        Ok(executors)
    }

    /// Continues an operation after a step was done or failed.
    pub(super) fn step_ended(&mut self, number: u64, result: Performed, seconds: f64) {
        let Some(active) = self.active.get_mut(&number) else { return };
        let Some(step) = active.operation.step().cloned() else { return };
        active.due_ms = u64::MAX;
        let place = match (&active.record, &result) {
            (None, Ok(())) => None,
            (None, Err(_)) => Some("failed"),
            (Some(_), _) => Some("after"),
        };
        if let Some(place) = place {
            failpoint::reached(|| format!("{}/{}/{place}", active.word(), step.word()));
        }
        let failure = active.operation.report(result);
        match &mut active.record {
            Some(record) => {
                let duration_ms = seconds * 1e3;
                record.steps.push(StepRecord { step: step.to_string(), duration_ms });
                let record = record.clone();
                self.record_move(&record, Event::MoveStepped);
            }
            // It is retried, and reported once.
            None => {
                if let Some(why) = failure.filter(|why| self.is_new(why)) {
                    self.report_error(&Error::failed(why, ""), step.guest(), step.vf());
                }
            }
        }
        self.touch(step.vf());
        if self.is_doubtful() {
            // The journal cannot be written: a recovery surveys the result later.
            self.active.remove(&number);
            return;
        }
        self.drive(number);
    }

    /// A move or a recovery has ended.
    fn operation_ended(&mut self, number: u64) {
        let Some(Active { operation, record, begun, .. }) = self.active.remove(&number) else {
            return;
        };
        let (Some(change), Some(ending), Some(mut record)) =
            (operation.change(), operation.ending(), record)
        else {
            log_holders(operation.holders());
            (self.next_read_ms, self.decide_now) = (0, true);
            return;
        };
        let seconds = begun.elapsed().as_secs_f64();
        record.duration_ms = Some(seconds * 1e3);
        record.ending = Some(status::Ending::from(ending));
        self.report_ending(change, ending, seconds);
        self.record_move(&record, Event::MoveEnded);
        // Places and addresses have changed, and another user may have taken the VF meanwhile.
        self.begin_reading();
    }

    fn report_ending(&mut self, change: &Move, ending: &Ending, seconds: f64) {
        let how = status::Ending::from(ending).how;
        self.status.counters.count_move(change.direction, how, seconds);
        match ending {
            Ending::Completed => {
                self.allocator.measured(change.direction, seconds);
                if change.direction == Direction::Give {
                    self.allocator.given(&change.guest, &change.vf);
                }
                if let Some(guest) = self.guests.get_mut(&change.guest) {
                    guest.since_unix_ms = unix_ms();
                    guest.why = change.reason.to_string();
                }
            }
            Ending::Undone { why } => {
                if change.direction == Direction::Give {
                    self.allocator.undone(&change.guest, &change.vf, self.now_ms);
                    if let Some(guest) = self.guests.get_mut(&change.guest) {
                        guest.why = format!("could not be given {}: {why}", change.vf);
                    }
                }
                let error = Error::failed(format!("cannot {}: {why}", change.words()), "");
                self.report_error(&error, Some(&change.guest), Some(&change.vf));
            }
            Ending::Stuck { why } => {
                let error = Error::failed(
                    format!("{} keeps its present path and is left alone: {why}", change.guest),
                    format!("when it is well again: planewise alloc unmark {}", change.guest),
                );
                self.report_error(&error, Some(&change.guest), Some(&change.vf));
                let (guest, why) = (change.guest.clone(), why.clone());
                self.ends.emit(Event::GuestMarked { guest, why });
            }
            Ending::Quarantined { why } => {
                let error = Error::failed(
                    format!("{} is not given any more: {why}", change.vf),
                    "it is reset again once it is unused, at growing intervals",
                );
                self.report_error(&error, Some(&change.guest), Some(&change.vf));
                let (vf, why) = (change.vf.clone(), why.clone());
                self.ends.emit(Event::VfQuarantined { vf, why });
            }
        }
    }

    /// Reports tasks that are long overdue.
    pub(super) fn report_overdue(&mut self) {
        let mut overdue = Vec::new();
        for active in self.active.values_mut() {
            if active.overdue_reported || self.now_ms <= active.due_ms.saturating_add(OVERDUE_MS) {
                continue;
            }
            active.overdue_reported = true;
            let step = active.operation.step().map(ToString::to_string).unwrap_or_default();
            let words = active.operation.words();
            overdue.push(format!("cannot {words}: the step `{step}` does not end"));
        }
        for what in overdue {
            let remedy = "the kernel may wait for whoever uses the device; everything else goes on";
            self.report_error(&Error::failed(what, remedy), None, None);
        }
    }

    /// Releases guests that are no longer to be managed, once they hold no VF.
    pub(super) fn release_leaving(&mut self) {
        let done = |(id, guest): &(&GuestId, &Tracked)| {
            guest.managed.leaving && self.held_by(id).is_none() && !self.is_guest_under_way(id)
        };
        let leaving: Vec<GuestId> =
            self.guests.iter().filter(done).map(|(id, _)| id.clone()).collect();
        for id in leaving {
            if let Some(guest) = self.guests.remove(&id) {
                self.host.kinds[guest.kind].release(&id);
                self.ends.emit(Event::GuestGone { guest: id });
            }
        }
        self.begin_adoption();
    }

    pub(super) fn held_by(&self, id: &GuestId) -> Option<&VfId> {
        let holders = &self.journal.ledger().holders;
        holders.iter().find(|(_, holder)| *holder == id).map(|(vf, _)| vf)
    }
}

/// Logs that these guests keep their VFs.
pub(super) fn log_holders<'a>(holders: impl Iterator<Item = (&'a VfId, &'a GuestId)>) {
    holders.for_each(|(vf, guest)| tracing::info!("{guest} holds {vf}"));
}
