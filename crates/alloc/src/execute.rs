//! Drives one operation, a move or a recovery: which line to write, which step to do, and what to do when a step
//! fails. The caller gets the next action, performs it, and reports its result.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pw_error::Error;

use crate::journal::{Ending, Entry};
use crate::model::{GuestId, Mac, VfId};
use crate::plan::{Direction, Move};
use crate::recover::Recovery;
use crate::step::{self, Join, Path, Step};
use crate::world::{HostState, VfPlace, VfPlacement};

/// The next action.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Write this line to the journal, and see that it is on the disk.
    Write(Entry),
    /// Do this step, then [`Operation::report`].
    Do(Step),
    /// Nothing more.
    Finished,
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

/// A move or a recovery under way.
#[derive(Debug, Clone)]
pub struct Operation {
    number: u64,
    goal: Goal,
    steps: VecDeque<Step>,
    /// The line that comes before the next step.
    line: Option<Entry>,
    /// The step that is announced and not reported yet.
    current: Option<Step>,
    over: bool,
}

#[derive(Debug, Clone)]
enum Goal {
    Move(Change),
    Recovery(Repair),
}

/// A move as far as it is done.
#[derive(Debug, Clone)]
struct Change {
    change: Move,
    join: Join,
    attached: bool,
    detached: bool,
    /// Why it is being turned round.
    undoing: Option<String>,
    ending: Option<Ending>,
}

/// A recovery as far as it is done.
#[derive(Debug, Clone)]
struct Repair {
    recovery: Recovery,
    /// The guests that had VFs when it began.
    attached: BTreeMap<VfId, GuestId>,
    /// VFs about which no step is to follow; with the reason where the VF itself is to blame.
    stopped: BTreeMap<VfId, Option<String>>,
}

impl Operation {
    /// The move `number`, of a guest with this address and this way of joining its paths.
    pub fn of_move(number: u64, change: Move, mac: Mac, join: Join) -> Self {
        let steps = match change.direction {
            Direction::Give => step::give(&change.guest, &change.vf, mac, join),
            Direction::Take => step::take(&change.guest, &change.vf, join),
        };
        let line = Entry::Begin { operation: number, change: change.clone() };
        let (attached, detached, undoing, ending) = (false, false, None, None);
        let change = Change { change, join, attached, detached, undoing, ending };
        Self::new(number, Goal::Move(change), steps, line)
    }

    /// The recovery `number` of this state.
    pub fn of_recovery(number: u64, mut recovery: Recovery, state: &HostState) -> Self {
        let holder = |(vf, placed): (&VfId, &VfPlacement)| match &placed.place {
            VfPlace::Guest(guest) if recovery.guests.contains(guest) => {
                Some((vf.clone(), guest.clone()))
            }
            _ => None,
        };
        let attached = state.vfs.iter().filter_map(holder).collect();
        let steps = std::mem::take(&mut recovery.steps);
        let line = Entry::Recover { operation: number, vfs: recovery.vfs.clone() };
        let repair = Repair { recovery, attached, stopped: BTreeMap::new() };
        Self::new(number, Goal::Recovery(repair), steps, line)
    }

    fn new(number: u64, goal: Goal, steps: Vec<Step>, line: Entry) -> Self {
        Self { number, goal, steps: steps.into(), line: Some(line), current: None, over: false }
    }

    /// The move; none: it is a recovery.
    pub const fn change(&self) -> Option<&Move> {
        match &self.goal {
            Goal::Move(change) => Some(&change.change),
            Goal::Recovery(_) => None,
        }
    }

    /// How the move ended; none: it is a recovery, or under way.
    pub const fn ending(&self) -> Option<&Ending> {
        match &self.goal {
            Goal::Move(change) => change.ending.as_ref(),
            Goal::Recovery(_) => None,
        }
    }

    /// The step that is to be done and not reported yet.
    pub const fn step(&self) -> Option<&Step> {
        self.current.as_ref()
    }

    /// The VFs that it is about.
    pub fn vfs(&self) -> BTreeSet<&VfId> {
        match &self.goal {
            Goal::Move(change) => [&change.change.vf].into(),
            Goal::Recovery(repair) => repair.recovery.vfs.iter().collect(),
        }
    }

    /// Is it about this VF?
    pub fn is_about_vf(&self, vf: &VfId) -> bool {
        match &self.goal {
            Goal::Move(change) => change.change.vf == *vf,
            Goal::Recovery(repair) => repair.recovery.vfs.contains(vf),
        }
    }

    /// Is it about this guest?
    pub fn is_about_guest(&self, guest: &GuestId) -> bool {
        match &self.goal {
            Goal::Move(change) => change.change.guest == *guest,
            Goal::Recovery(repair) => repair.recovery.guests.contains(guest),
        }
    }

    /// The holders of VFs once a recovery is done.
    pub fn holders(&self) -> impl Iterator<Item = (&VfId, &GuestId)> {
        let holders = match &self.goal {
            Goal::Move(_) => None,
            Goal::Recovery(repair) => Some(&repair.recovery.holders),
        };
        holders.into_iter().flatten()
    }

    /// What it is, as `give pf0/1 to web`.
    pub fn words(&self) -> String {
        match self.change() {
            Some(change) => change.words(),
            None => {
                let vfs: Vec<String> = self.vfs().iter().map(ToString::to_string).collect();
                format!("recover {}", vfs.join(", "))
            }
        }
    }

    /// The next action. Every step is announced in the journal before it is to be done.
    pub fn next_action(&mut self) -> Action {
        if let Some(line) = self.line.take() {
            return Action::Write(line);
        }
        if let Some(step) = &self.current {
            return Action::Do(step.clone());
        }
        if self.over {
            return Action::Finished;
        }
        while let Some(step) = self.steps.pop_front() {
            if !self.is_stopped(&step) {
                self.current = Some(step.clone());
                return Action::Write(Entry::Intent { operation: self.number, step });
            }
        }
        self.over = true;
        Action::Write(match &mut self.goal {
            Goal::Recovery(repair) => repair.settled(self.number),
            Goal::Move(change) => {
                let ending = change.ending.get_or_insert_with(|| match change.undoing.take() {
                    Some(why) => Ending::Undone { why },
                    None => Ending::Completed,
                });
                Entry::End { operation: self.number, ending: ending.clone() }
            }
        })
    }

    /// Has a step of this step's guest or VF failed in a recovery?
    fn is_stopped(&self, step: &Step) -> bool {
        let Goal::Recovery(repair) = &self.goal else { return false };
        step.guest().is_some_and(|guest| repair.recovery.marked.contains_key(guest))
            || step.vf().is_some_and(|vf| repair.stopped.contains_key(vf))
    }

    /// Takes the result of the step; returns the message of a failure.
    pub fn report(&mut self, result: Performed) -> Option<String> {
        let step = self.current.take()?;
        if let Goal::Move(change) = &mut self.goal {
            // An attempt may have got half way.
            change.attached |= matches!(step, Step::Attach { .. });
            change.detached |= matches!(step, Step::Detach { .. }) && result.is_ok();
        }
        let Failure { why, guest_silent } = result.err()?;
        let why = format!("could not {step}: {why}");
        match &mut self.goal {
            Goal::Move(change) => self.steps = change.after(&step, why.clone(), guest_silent),
            Goal::Recovery(repair) => repair.stop(&step, &why),
        }
        Some(why)
    }
}

impl Change {
    /// The steps after this one failed: they undo the move, as far as that is safe.
    fn after(&mut self, step: &Step, why: String, guest_silent: bool) -> VecDeque<Step> {
        let (guest, vf) = (self.change.guest.clone(), self.change.vf.clone());
        let in_guest = match self.change.direction {
            Direction::Give => self.attached && !self.detached,
            Direction::Take => !self.detached,
        };
        if !in_guest && self.undoing.is_none() && self.change.direction == Direction::Give {
            // The VF has not reached the guest.
            self.undoing = Some(why);
            return step::into_pool(&vf).into();
        }
        if !in_guest {
            // The guest no longer has the VF, which is not fit for the pool.
            self.ending = Some(Ending::Quarantined { why });
            return VecDeque::new();
        }
        if self.undoing.is_some() || matches!(step, Step::Detach { .. }) || guest_silent {
            self.ending = Some(Ending::Stuck { why });
            return VecDeque::new();
        }
        self.undoing = Some(why);
        match self.change.direction {
            Direction::Give => step::leave(&guest, &vf, self.join).into(),
            // Only a take with net_failover has cleared the address by now: that cannot be
            // turned round in a running guest, so it goes on being without.
            Direction::Take if matches!(step, Step::Verify { .. }) => VecDeque::new(),
            Direction::Take => {
                let path = Path::Vf(vf);
                let prefer = Step::Prefer { guest: guest.clone(), path: path.clone() };
                [prefer, Step::Direct { guest, path }].into()
            }
        }
    }
}

impl Repair {
    /// After a failed step: its guest keeps its VFs, which no other guest gets, and is marked; a VF outside of
    /// guests is quarantined. No further step is done on either.
    fn stop(&mut self, step: &Step, why: &str) {
        let Some(guest) = step.guest() else {
            self.stopped.extend(step.vf().map(|vf| (vf.clone(), Some(why.to_owned()))));
            return;
        };
        for (vf, _) in self.attached.iter().filter(|(_, holder)| *holder == guest) {
            self.recovery.holders.insert(vf.clone(), guest.clone());
            self.stopped.insert(vf.clone(), None);
        }
        self.stopped.extend(step.vf().map(|vf| (vf.clone(), None)));
        self.recovery.marked.insert(guest.clone(), why.to_owned());
    }

    /// The journal's line of the result.
    fn settled(&mut self, number: u64) -> Entry {
        let Self { recovery, stopped, .. } = self;
        for (vf, why) in std::mem::take(stopped) {
            if let Some(why) = why.filter(|_| !recovery.holders.contains_key(&vf)) {
                recovery.quarantined.insert(vf, why);
            }
        }
        recovery.settled(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Ledger;
    use crate::recover::recover;
    use crate::world::GuestState;

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
        let mut repair = Operation::of_recovery(7, part, &state);
        assert!(matches!(repair.next_action(), Action::Write(Entry::Recover { .. })));
        assert!(matches!(repair.next_action(), Action::Write(Entry::Intent { .. })));
        assert_eq!(repair.step().and_then(Step::guest), Some(&web));
        assert!(repair.report(Err(Failure::silent("it does not answer"))).is_some());
        // Its VF is not cleared in its hands.
        let Action::Write(Entry::Settled { holders, marks, .. }) = repair.next_action() else {
            panic!("a step on it follows: {repair:?}")
        };
        assert_eq!(holders.get(&vf), Some(&web));
        assert!(marks[&web].is_some());
        assert_eq!(repair.next_action(), Action::Finished);
    }
}
