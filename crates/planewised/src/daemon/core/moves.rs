//! What the core does: decides, and performs plans step by step, each step journalled before it is done.

use std::time::{Duration, Instant};

use pw_alloc::allocator::Decision;
use pw_alloc::evidence::User;
use pw_alloc::execute::{Action, Execution, Failure};
use pw_alloc::journal::Ending;
use pw_alloc::model::{GuestId, VfId};
use pw_alloc::plan::{Direction, Move, Plan};
use pw_alloc::step::Step;
use pw_linux::error::{Error, Result};

use super::{Core, bare, place};
use crate::daemon::failpoint;
use crate::daemon::request::Event;
use crate::daemon::status::{self, MoveRecord, StepRecord, unix_ms};

impl Core {
    pub(super) fn decide(&mut self, now_ms: u64) -> Decision {
        let begun = Instant::now();
        let snapshot = self.snapshot(now_ms);
        let decision = self.allocator.decide(&snapshot);
        let elapsed = begun.elapsed();
        self.status.counters.decision_durations.observe(elapsed.as_secs_f64());
        for verdict in &decision.verdicts {
            if let Some(guest) = self.guests.get_mut(&verdict.guest) {
                guest.why = verdict.reason.to_string();
            }
        }
        self.ends.tell(Event::Decided {
            moves: decision.plan.moves.len() as u64,
            deferred: decision.deferred as u64,
            duration_ms: elapsed.as_secs_f64() * 1e3,
        });
        decision
    }

    pub(super) fn perform(&mut self, plan: &Plan, now_ms: u64) {
        if plan.is_empty() {
            return;
        }
        for change in &plan.moves {
            if (self.stop)() || self.doubtful {
                return;
            }
            let ledger = self.journal.ledger();
            let free = !ledger.knows(&change.vf) && !self.doubts.contains_key(&change.vf);
            let held = ledger.holders.get(&change.vf) == Some(&change.guest);
            let stands = match change.direction {
                // The take before it did not come off.
                Direction::Give => free,
                Direction::Take => held,
            };
            if !stands {
                continue;
            }
            // A plan that does not come off has cost nobody's patience.
            self.allocator.commit(&Plan { moves: vec![change.clone()] }, now_ms);
            if let Err(error) = self.execute(change) {
                self.tell_error(&error, Some(&change.guest), Some(&change.vf));
                self.doubtful = true;
            }
            self.publish(now_ms);
        }
        // Places and addresses have changed.
        self.read_pool(now_ms);
    }

    /// One move. An error: the journal cannot be written, and nothing more was done.
    fn execute(&mut self, change: &Move) -> Result<()> {
        let Some(guest) = self.guests.get_mut(&change.guest) else { return Ok(()) };
        guest.moving = true;
        let (mac, join) = (guest.managed.mac, guest.managed.join);
        let operation = self.journal.ledger().next_operation;
        let mut execution = Execution::new(operation, change.clone(), mac, join);
        let mut record = MoveRecord::begun(operation, change);
        let begun = Instant::now();
        self.tell_move(&record, Event::MoveBegan);
        let result = loop {
            match execution.next_action() {
                Action::Write(entry) => {
                    if let Err(error) = self.journal.append(&entry) {
                        break Err(error);
                    }
                }
                Action::Do(step) => {
                    let name = || place(change.direction, &step);
                    failpoint::reached(|| format!("{}/before", name()));
                    let step_begun = Instant::now();
                    let done = self.step(&step);
                    failpoint::reached(|| format!("{}/after", name()));
                    record.steps.push(StepRecord {
                        step: step.to_string(),
                        duration_ms: step_begun.elapsed().as_secs_f64() * 1e3,
                    });
                    self.tell_move(&record, Event::MoveStepped);
                    execution.report(done);
                }
                Action::Finished(ending) => break Ok(ending),
            }
        };
        let seconds = begun.elapsed().as_secs_f64();
        if let Some(guest) = self.guests.get_mut(&change.guest) {
            guest.moving = false;
        }
        let ending = result?;
        record.duration_ms = Some(seconds * 1e3);
        record.ending = Some(status::Ending::from(&ending));
        self.ended(change, &ending, seconds);
        self.tell_move(&record, Event::MoveEnded);
        Ok(())
    }

    fn ended(&mut self, change: &Move, ending: &Ending, seconds: f64) {
        let how = status::Ending::from(ending).how;
        self.status.counters.count_move(change.direction, how, seconds);
        match ending {
            Ending::Completed => {
                self.allocator.measured(change.direction, seconds, None);
                if change.direction == Direction::Give {
                    self.allocator.given(&change.guest, &change.vf);
                }
                // The pool is read again after the last move; what is published until then is to be
                // right, too.
                if let Some(vf) = self.view.vfs.get_mut(&change.vf) {
                    vf.user = match change.direction {
                        Direction::Take => User::Nobody,
                        Direction::Give => User::Guest(format!("{} has it", change.guest)),
                    };
                }
                if let Some(guest) = self.guests.get_mut(&change.guest) {
                    guest.since_ms = self.now_ms;
                    guest.since_unix_ms = unix_ms();
                    guest.why = change.reason.to_string();
                }
            }
            Ending::Undone { why } => {
                if change.direction == Direction::Give {
                    let ended_ms = self.now_ms.saturating_add((seconds * 1e3) as u64);
                    self.allocator.undone(&change.guest, &change.vf, ended_ms);
                    if let Some(guest) = self.guests.get_mut(&change.guest) {
                        guest.why = format!("could not be given {}: {why}", change.vf);
                    }
                }
                let error = Error::failed(format!("cannot {}: {why}", bare(change)), "");
                self.tell_error(&error, Some(&change.guest), Some(&change.vf));
            }
            Ending::Stuck { why } => {
                let error = Error::failed(
                    format!("{} keeps what it has and is left alone: {why}", change.guest),
                    format!("when it is well again: planewise alloc unmark {}", change.guest),
                );
                self.tell_error(&error, Some(&change.guest), Some(&change.vf));
                let (guest, why) = (change.guest.clone(), why.clone());
                self.ends.tell(Event::GuestMarked { guest, why });
            }
            Ending::Quarantined { why } => {
                let error = Error::failed(
                    format!("{} is not given any more: {why}", change.vf),
                    "a restart of the daemon tries to reset it again",
                );
                self.tell_error(&error, Some(&change.guest), Some(&change.vf));
                let (vf, why) = (change.vf.clone(), why.clone());
                self.ends.tell(Event::VfQuarantined { vf, why });
            }
        }
    }

    pub(super) fn step(&mut self, step: &Step) -> std::result::Result<(), Failure> {
        let deadline = Instant::now() + Duration::from_secs_f64(self.config.step_timeout_s);
        match step {
            Step::Reserve { vf, guest } => {
                self.host.pool.perform(step, &self.view, deadline)?;
                match self.guests.get(guest) {
                    Some(tracked) => {
                        self.host.kinds[tracked.kind].prepare(vf, &self.view, deadline)
                    }
                    None => Ok(()),
                }
            }
            Step::SetMac { .. }
            | Step::ClearMac { .. }
            | Step::Recall { .. }
            | Step::Reset { .. }
            | Step::Release { .. } => self.host.pool.perform(step, &self.view, deadline),
            Step::Attach { guest, .. }
            | Step::AwaitPath { guest, .. }
            | Step::Prefer { guest, .. }
            | Step::Direct { guest, .. }
            | Step::Verify { guest, .. }
            | Step::Detach { guest, .. } => match self.guests.get(guest) {
                Some(tracked) => self.host.kinds[tracked.kind].perform(step, &self.view, deadline),
                None => Err(Failure {
                    why: format!("{guest} is not managed any more"),
                    guest_silent: true,
                }),
            },
        }
    }

    /// Lets guests go that are no longer to be managed, once they hold nothing.
    pub(super) fn let_go(&mut self) {
        let leaving: Vec<(GuestId, usize)> = self
            .guests
            .iter()
            .filter(|(id, guest)| guest.managed.leaving && self.held_by(id).is_none())
            .map(|(id, guest)| (id.clone(), guest.kind))
            .collect();
        for (id, kind) in leaving {
            match self.host.kinds[kind].release(&id) {
                Ok(()) => {
                    self.guests.remove(&id);
                    self.ends.tell(Event::GuestGone { guest: id });
                }
                Err(error) => self.tell_once(&error),
            }
        }
    }

    fn held_by(&self, id: &GuestId) -> Option<&VfId> {
        let holders = &self.journal.ledger().holders;
        holders.iter().find(|(_, holder)| *holder == id).map(|(vf, _)| vf)
    }
}
