//! Drives one move: which line to write, which step to do, and what to do when a step fails. The
//! caller gets the next action, performs it, and reports its result.

use std::collections::VecDeque;

use pw_error::Error;

use crate::journal::{Ending, Entry};
use crate::model::Mac;
use crate::plan::{Direction, Move};
use crate::step::{self, Join, Path, Step};

/// The next action.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Write this line to the journal, and see that it is on the disk.
    Write(Entry),
    /// Do this step, then [`Execution::report`].
    Do(Step),
    /// Nothing more.
    Finished(Ending),
}

/// Why a step was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// One sentence.
    pub why: String,
    /// The guest did not answer in time, or refused.
    pub guest_silent: bool,
}

/// What a step may fail with.
pub type Performed<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure that is not the guest's.
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), guest_silent: false }
    }

    /// A failure of a guest that did not answer in time, or refused.
    pub fn silent(why: impl Into<String>) -> Self {
        Self { why: why.into(), guest_silent: true }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.what)
    }
}

/// One move under way.
#[derive(Debug, Clone)]
pub struct Execution {
    operation: u64,
    change: Move,
    join: Join,
    steps: VecDeque<Step>,
    /// The line that comes before the next step.
    line: Option<Entry>,
    /// The step that is announced and not reported yet.
    current: Option<Step>,
    attached: bool,
    detached: bool,
    /// Why it is being turned round.
    undoing: Option<String>,
    ending: Option<Ending>,
}

impl Execution {
    /// The move `operation`, of a guest with this address and this way of joining its paths.
    pub fn new(operation: u64, change: Move, mac: Mac, join: Join) -> Self {
        let steps = match change.direction {
            Direction::Give => step::give(&change.guest, &change.vf, mac, join),
            Direction::Take => step::take(&change.guest, &change.vf, join),
        };
        let line = Some(Entry::Begin { operation, change: change.clone() });
        Self {
            operation,
            change,
            join,
            steps: steps.into(),
            line,
            current: None,
            attached: false,
            detached: false,
            undoing: None,
            ending: None,
        }
    }

    /// The move.
    pub const fn change(&self) -> &Move {
        &self.change
    }

    /// The next action. Every step is announced in the journal before it is to be done.
    pub fn next_action(&mut self) -> Action {
        if let Some(line) = self.line.take() {
            return Action::Write(line);
        }
        if let Some(step) = &self.current {
            return Action::Do(step.clone());
        }
        if let Some(ending) = &self.ending {
            return Action::Finished(ending.clone());
        }
        match self.steps.pop_front() {
            Some(step) => {
                self.current = Some(step.clone());
                Action::Write(Entry::Intent { operation: self.operation, step })
            }
            None => {
                let ending = match self.undoing.take() {
                    Some(why) => Ending::Undone { why },
                    None => Ending::Completed,
                };
                Action::Write(self.end(ending))
            }
        }
    }

    /// Takes the result of the step.
    pub fn report(&mut self, result: Performed) {
        let Some(step) = self.current.take() else { return };
        // An attempt may have got half way.
        self.attached |= matches!(step, Step::Attach { .. });
        match result {
            Ok(()) => self.detached |= matches!(step, Step::Detach { .. }),
            Err(failure) => self.handle_failure(&step, failure),
        }
    }

    fn end(&mut self, ending: Ending) -> Entry {
        self.steps.clear();
        self.ending = Some(ending.clone());
        Entry::End { operation: self.operation, ending }
    }

    /// Undoes a move of which a step failed, as far as that is safe.
    fn handle_failure(&mut self, step: &Step, failure: Failure) {
        let Failure { why, guest_silent } = failure;
        let why = format!("could not {step}: {why}");
        let (guest, vf) = (self.change.guest.clone(), self.change.vf.clone());
        let in_guest = match self.change.direction {
            Direction::Give => self.attached && !self.detached,
            Direction::Take => !self.detached,
        };
        if !in_guest && self.undoing.is_none() && self.change.direction == Direction::Give {
            // The VF has not reached the guest.
            self.undoing = Some(why);
            self.steps = step::into_pool(&vf).into();
        } else if !in_guest {
            // The guest no longer has the VF, which is not fit for the pool.
            self.end_later(Ending::Quarantined { why });
        } else if self.undoing.is_some() || matches!(step, Step::Detach { .. }) || guest_silent {
            self.end_later(Ending::Stuck { why });
        } else {
            self.undoing = Some(why);
            self.steps = match self.change.direction {
                Direction::Give => step::leave(&guest, &vf, self.join).into(),
                // Only a take with net_failover has cleared the address by now: that cannot be
                // turned round in a running guest, so it goes on being without.
                Direction::Take if matches!(step, Step::Verify { .. }) => VecDeque::new(),
                Direction::Take => {
                    let path = Path::Vf(vf);
                    [
                        Step::Prefer { guest: guest.clone(), path: path.clone() },
                        Step::Direct { guest, path },
                    ]
                    .into()
                }
            };
        }
    }

    fn end_later(&mut self, ending: Ending) {
        self.line = Some(self.end(ending));
    }
}
