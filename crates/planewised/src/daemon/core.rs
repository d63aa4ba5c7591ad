//! The daemon's core: observes, decides, performs, keeps the journal, publishes. One thread, no
//! locks; time is given to it. Knows guests and VFs by two traits only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pw_alloc::Allocator;
use pw_alloc::allocator::Decision;
use pw_alloc::execute::{Action, Execution, Failure};
use pw_alloc::journal::{Ending, Entry, FORMAT};
use pw_alloc::model::{
    GuestId, GuestView, Health, Holding, Mac, Snapshot, Stance, VfId, VfState, VfView, Wish,
};
use pw_alloc::plan::{Direction, Move, Plan};
use pw_alloc::recover::recover;
use pw_alloc::settings::PolicyKind;
use pw_alloc::signal::{Sample, Tracker};
use pw_alloc::step::{Path, Step};
use pw_alloc::world::{Found, FoundVf, Place};
use pw_linux::error::{Error, Result};

use crate::daemon::config::Config;
use crate::daemon::failpoint;
use crate::daemon::guests::{Discovery, Guests, Managed};
use crate::daemon::journal::Journal;
use crate::daemon::pool::{Pool, PoolView};
use crate::daemon::request::{Answer, CoreEnds, Envelope, Event, Fault, Refused, Request};
use crate::daemon::status::{self, ErrorRecord, MoveRecord, Planned, Status, StepRecord, unix_ms};
use crate::daemon::wishes::Wishes;

/// Between two looks for VFs that are nowhere: looking everywhere costs more than a sample.
const ASTRAY_MS: u64 = 2000;

const RELOADED: &str = "the configuration was read again";

/// What the daemon was given to work with.
pub struct Host {
    /// The VFs.
    pub pool: Box<dyn Pool>,
    /// The kinds of guests.
    pub kinds: Vec<Box<dyn Guests>>,
}

/// A guest that is managed.
struct Tracked {
    /// Its kind, as a place in the list of kinds.
    kind: usize,
    managed: Managed,
    tracker: Tracker,
    /// Since when it has what it has.
    since_ms: u64,
    since_unix_ms: u64,
    why: String,
    moving: bool,
}

/// The core.
pub struct Core {
    config: Config,
    host: Host,
    view: PoolView,
    journal: Journal,
    wishes: Wishes,
    allocator: Allocator,
    guests: BTreeMap<GuestId, Tracked>,
    status: Status,
    ends: CoreEnds,
    dry_run: bool,
    /// Journal and world are to be compared before anything is moved.
    doubtful: bool,
    /// Not before this moment again [ms].
    doubtful_after_ms: u64,
    /// VFs that are nowhere to be seen are not looked for before this moment [ms].
    astray_after_ms: u64,
    decide_now: bool,
    next_sample_ms: u64,
    next_decision_ms: u64,
    /// Troubles that have been told, so that each is told once.
    told: BTreeSet<String>,
    samples: Vec<(GuestId, Sample)>,
    stop: Box<dyn Fn() -> bool + Send>,
    now_ms: u64,
}

impl Core {
    /// A core that has not observed anything yet.
    ///
    /// # Errors
    /// The settings make no sense, or the operator's wishes cannot be read.
    pub fn new(
        config: Config,
        host: Host,
        journal: Journal,
        ends: CoreEnds,
        dry_run: bool,
        stop: Box<dyn Fn() -> bool + Send>,
    ) -> Result<Self> {
        let wishes = Wishes::open(&config.state_directory)?;
        let mut settings = config.alloc.clone();
        settings.policy = wishes.policy().unwrap_or(settings.policy);
        let mut status = Status::new(settings.policy, settings.interval_s, config.sample_s);
        status.draining = wishes.draining();
        let first_decision_ms = (config.sample_s * 2e3).min(settings.interval_s * 1e3) as u64;
        let allocator = Allocator::new(settings).map_err(alloc_error)?;
        Ok(Self {
            config,
            host,
            view: PoolView::default(),
            journal,
            wishes,
            allocator,
            guests: BTreeMap::new(),
            status,
            ends,
            dry_run,
            doubtful: true,
            doubtful_after_ms: 0,
            astray_after_ms: 0,
            decide_now: false,
            next_sample_ms: 0,
            // A rate needs two readings.
            next_decision_ms: first_decision_ms,
            told: BTreeSet::new(),
            samples: Vec::new(),
            stop,
            now_ms: 0,
        })
    }

    /// The daemon's ends of the channels, to wait for requests.
    pub const fn ends(&self) -> &CoreEnds {
        &self.ends
    }

    /// What is published.
    pub const fn status(&self) -> &Status {
        &self.status
    }

    /// Do journal and world agree, as far as is known? While they may not, nothing is moved.
    pub const fn is_settled(&self) -> bool {
        !self.doubtful
    }

    /// When the core wants to be called again [ms].
    pub fn next_ms(&self) -> u64 {
        if self.decide_now { 0 } else { self.next_sample_ms.min(self.next_decision_ms) }
    }

    /// Does what is due at this moment: samples, decides, performs.
    pub fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        if now_ms >= self.next_sample_ms {
            self.observe(now_ms);
            // What was missed (a long move, a suspended machine) is not made up for.
            self.next_sample_ms = now_ms + (self.config.sample_s * 1e3) as u64;
        }
        if self.doubtful && now_ms >= self.doubtful_after_ms && !self.dry_run {
            self.doubtful_after_ms = now_ms + 1000;
            if let Err(error) = self.reconcile(now_ms) {
                self.tell_once(&error);
            }
        }
        if self.decide_now || now_ms >= self.next_decision_ms {
            self.decide_now = false;
            self.next_decision_ms = now_ms + (self.allocator.settings().interval_s * 1e3) as u64;
            let decision = self.decide(now_ms);
            if !self.dry_run && !self.doubtful {
                self.perform(&decision.plan, now_ms);
                self.let_go();
            }
        }
        self.publish(now_ms);
    }

    // ---------------------------------------------------------------- observing

    fn observe(&mut self, now_ms: u64) {
        let begun = Instant::now();
        self.observe_pool(now_ms);
        self.discover(now_ms);
        if !self.dry_run {
            let managed = self.guests.values().map(|guest| guest.managed.mac).collect();
            if let Err(error) = self.host.pool.settle(&self.view, &managed) {
                self.tell_once(&error);
            }
        }
        let mut samples = std::mem::take(&mut self.samples);
        samples.clear();
        for kind in &mut self.host.kinds {
            kind.sample(now_ms, &self.view, &mut samples);
        }
        let settings = self.allocator.settings().signal;
        for (id, sample) in &samples {
            if let Some(guest) = self.guests.get_mut(id) {
                guest.tracker.feed(sample, &settings);
            }
        }
        self.samples = samples;
        let snapshot = self.snapshot(now_ms);
        self.allocator.observe(&snapshot);
        self.status.counters.samples += 1;
        self.status.counters.sample_durations.observe(begun.elapsed().as_secs_f64());
    }

    fn observe_pool(&mut self, now_ms: u64) {
        let holders = &self.journal.ledger().holders;
        let astray: Vec<VfId> = self
            .view
            .vfs
            .iter()
            .filter(|(id, vf)| !vf.at_home && !holders.contains_key(id))
            .map(|(id, _)| id.clone())
            .collect();
        // One that came home with a dying namespace, or that somebody else gives back, is ours again.
        let look = !astray.is_empty() && now_ms >= self.astray_after_ms;
        let before: Vec<_> =
            self.view.pfs.iter().map(|(pf, seen)| (pf.clone(), seen.link_up)).collect();
        let read = if self.view.pfs.is_empty() || look {
            self.astray_after_ms = now_ms + ASTRAY_MS;
            self.host.pool.read().map(|view| self.view = view)
        } else {
            self.host.pool.sample(&mut self.view)
        };
        if let Err(error) = read {
            self.tell_once(&error);
        }
        let home = |id: &VfId| self.view.vfs.get(id).is_some_and(|vf| vf.at_home);
        self.decide_now |= astray.iter().any(home);
        for (pf, was_up) in before {
            let up = self.view.pfs.get(&pf).is_some_and(|seen| seen.link_up);
            if up != was_up {
                // Its holders fall back, or may have VFs again: that does not wait.
                self.decide_now = true;
                self.ends.tell(Event::Link { pf, up });
                if up {
                    self.allocator.retry(None);
                }
            }
        }
    }

    fn discover(&mut self, now_ms: u64) {
        for at in 0..self.host.kinds.len() {
            let kind = &mut self.host.kinds[at];
            let found = match kind.discover(&self.view) {
                Ok(Discovery::Unchanged) => None,
                Ok(Discovery::Guests(found)) => Some(found),
                Err(error) => {
                    self.tell_once(&error);
                    None
                }
            };
            for trouble in self.host.kinds[at].troubles() {
                self.tell_once(&Error::failed(trouble, ""));
            }
            if let Some(found) = found {
                self.take_in(at, found, now_ms);
            }
        }
    }

    fn take_in(&mut self, kind: usize, found: Vec<Managed>, now_ms: u64) {
        let names: BTreeSet<&GuestId> = found.iter().map(|guest| &guest.id).collect();
        let gone: Vec<GuestId> = self
            .guests
            .iter()
            .filter(|(id, guest)| guest.kind == kind && !names.contains(id))
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            self.guests.remove(&id);
            if self.journal.ledger().holders.values().any(|holder| *holder == id) {
                // It went with a VF in its hands.
                self.doubtful = true;
                self.decide_now = true;
            }
            self.ends.tell(Event::GuestGone { guest: id });
        }
        for managed in found {
            let id = managed.id.clone();
            match self.guests.get_mut(&id) {
                Some(known) if known.kind == kind => known.managed = managed,
                Some(known) => {
                    let other = self.host.kinds[known.kind].name();
                    let this = self.host.kinds[kind].name();
                    self.tell_once(&Error::failed(
                        format!("two guests are called {id}: one of {other}, one of {this}"),
                        "rename one: the second one is not managed",
                    ));
                }
                None => {
                    let tracked = Tracked {
                        kind,
                        managed,
                        tracker: Tracker::default(),
                        since_ms: now_ms,
                        since_unix_ms: unix_ms(),
                        why: "has just been found".to_owned(),
                        moving: false,
                    };
                    self.guests.insert(id.clone(), tracked);
                    // What another guest of that name could not do says nothing about this one.
                    self.allocator.retry(Some(&id));
                    let kind = self.host.kinds[kind].kind();
                    self.ends.tell(Event::GuestAppeared { guest: id, kind });
                }
            }
        }
    }

    /// What is wished for a guest: by the operator, else the configuration, else its labels.
    fn wish(&self, id: &GuestId, managed: &Managed) -> Wish {
        let mut wish = match self.config.guests.get(id.as_str()) {
            Some(configured) => {
                let mut wish = configured.clone();
                // Where it can be at all is a fact of the host, and no wish.
                if wish.pfs.is_empty() {
                    wish.pfs.clone_from(&managed.wish.pfs);
                }
                wish.numa = wish.numa.or(managed.wish.numa);
                wish
            }
            None => managed.wish.clone(),
        };
        if let Some(stance) = self.wishes.stance(id) {
            wish.stance = stance;
        }
        if managed.leaving || self.status.draining {
            wish.stance = Stance::Excluded;
        }
        wish
    }

    fn snapshot(&self, now_ms: u64) -> Snapshot {
        let ledger = self.journal.ledger();
        let held: BTreeMap<&GuestId, &VfId> =
            ledger.holders.iter().map(|(vf, guest)| (guest, vf)).collect();
        let settings = &self.allocator.settings().signal;
        let guests = self
            .guests
            .iter()
            .map(|(id, guest)| GuestView {
                id: id.clone(),
                rate: guest.tracker.rate(now_ms, settings),
                wish: self.wish(id, &guest.managed),
                holds: held
                    .get(id)
                    .map(|vf| Holding { vf: (*vf).clone(), since_ms: guest.since_ms }),
                health: match ledger.marked.get(id) {
                    Some(why) => Health::Stuck(why.clone()),
                    None => Health::Ready,
                },
                paravirtual_up: guest.managed.paravirtual_up,
            })
            .collect();
        let vfs = self
            .view
            .vfs
            .iter()
            .map(|(id, vf)| {
                let pf = self.view.pfs.get(&id.pf);
                let state = if let Some(why) = ledger.quarantined.get(id) {
                    VfState::Quarantined(why.clone())
                } else if !vf.at_home && !ledger.holders.contains_key(id) {
                    VfState::Quarantined("it is in use by somebody else".to_owned())
                } else if pf.is_none_or(|pf| !pf.link_up) {
                    VfState::LinkDown
                } else {
                    VfState::Usable
                };
                VfView { id: id.clone(), numa: pf.and_then(|pf| pf.numa), state }
            })
            .collect();
        Snapshot { now_ms, guests, vfs }
    }

    // ---------------------------------------------------------------- deciding

    fn decide(&mut self, now_ms: u64) -> Decision {
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

    // ---------------------------------------------------------------- performing

    fn perform(&mut self, plan: &Plan, now_ms: u64) {
        if plan.is_empty() {
            return;
        }
        self.allocator.commit(plan, now_ms);
        for change in &plan.moves {
            if (self.stop)() || self.doubtful {
                return;
            }
            let ledger = self.journal.ledger();
            let free = !ledger.holders.contains_key(&change.vf)
                && !ledger.quarantined.contains_key(&change.vf);
            let held = ledger.holders.get(&change.vf) == Some(&change.guest);
            let stands = match change.direction {
                // The take before it did not come off.
                Direction::Give => free,
                Direction::Take => held,
            };
            if stands && let Err(error) = self.execute(change) {
                self.tell_error(&error, Some(&change.guest), Some(&change.vf));
                self.doubtful = true;
            }
            self.publish(now_ms);
        }
        // Places and addresses have changed.
        match self.host.pool.read() {
            Ok(view) => self.view = view,
            Err(error) => self.tell_once(&error),
        }
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
                    vf.at_home = change.direction == Direction::Take;
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

    fn step(&mut self, step: &Step) -> std::result::Result<(), Failure> {
        let deadline = Instant::now() + Duration::from_secs_f64(self.config.step_timeout_s);
        match step {
            Step::Reserve { vf, guest } => match self.guests.get(guest) {
                Some(tracked) => self.host.kinds[tracked.kind].prepare(vf, &self.view, deadline),
                None => Ok(()),
            },
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
    fn let_go(&mut self) {
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

    // ---------------------------------------------------------------- recovering

    /// Journal and world as one: what is, as recovery needs it.
    fn found(&mut self) -> Result<Found> {
        self.view = self.host.pool.read()?;
        let mut found = Found::default();
        for kind in &mut self.host.kinds {
            let part = kind.find(&self.view)?;
            found.vfs.extend(part.vfs);
            found.guests.extend(part.guests);
        }
        let ledger = self.journal.ledger();
        let addresses: BTreeSet<Mac> = found.guests.values().map(|guest| guest.mac).collect();
        for (id, vf) in &self.view.vfs {
            let known = ledger.holders.contains_key(id)
                || ledger.quarantined.contains_key(id)
                || ledger.open.values().any(|open| open.change.vf == *id);
            let place = if vf.at_home { Place::Pool } else { Place::Lost };
            // Whatever somebody else does with a VF that was never ours is none of our business.
            if found.vfs.contains_key(id) || place == Place::Lost && !known {
                continue;
            }
            let mac = if addresses.contains(&vf.mac) { vf.mac } else { Mac::ZERO };
            found.vfs.insert(id.clone(), FoundVf { mac, place });
        }
        Ok(found)
    }

    /// Brings journal and world together: at the start, and whenever they may differ.
    fn reconcile(&mut self, now_ms: u64) -> Result<()> {
        let found = self.found()?;
        let mut recovery = recover(self.journal.ledger(), &found);
        for note in &recovery.notes {
            tracing::warn!("{note}");
        }
        let mut quarantined: BTreeMap<VfId, String> = BTreeMap::new();
        let mut broken: BTreeMap<GuestId, String> = BTreeMap::new();
        for step in std::mem::take(&mut recovery.steps) {
            let vf = vf_of(&step);
            let skip = step.guest().is_some_and(|guest| broken.contains_key(guest))
                || vf.is_some_and(|vf| quarantined.contains_key(vf));
            if skip {
                continue;
            }
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
        let checkpoint = Entry::Checkpoint {
            format: FORMAT,
            holders: recovery.holders.clone(),
            marked: recovery.marked.clone(),
            quarantined,
        };
        self.journal.append(&checkpoint)?;
        self.view = self.host.pool.read()?;
        self.doubtful = false;
        for (vf, guest) in &recovery.holders {
            if let Some(tracked) = self.guests.get_mut(guest) {
                tracing::info!("{guest} holds {vf}");
                tracked.since_ms = tracked.since_ms.min(now_ms);
            }
        }
        Ok(())
    }

    // ---------------------------------------------------------------- requests

    /// Performs one request and answers it.
    pub fn handle(&mut self, envelope: Envelope, now_ms: u64) {
        if envelope.is_abandoned() {
            return;
        }
        let request = envelope.request.clone();
        let caller = envelope.caller.to_string();
        let answer = self.answer(&request, now_ms);
        if let Ok(answer) = &answer
            && request != Request::Plan
        {
            self.status.counters.requests += 1;
            let what = match answer {
                Answer::Done(what) => what.clone(),
                Answer::Plan(plan) => format!("{} moves", plan.moves.len()),
            };
            let request = request.name().to_owned();
            self.ends.tell(Event::Requested { request, caller, what });
        }
        self.publish(now_ms);
        envelope.answer(answer);
    }

    fn answer(&mut self, request: &Request, now_ms: u64) -> std::result::Result<Answer, Refused> {
        if let Some(guest) = request.guest()
            && !self.guests.contains_key(guest)
        {
            return Err(Refused::unknown_guest(guest));
        }
        match request {
            Request::Plan => {
                let snapshot = self.snapshot(now_ms);
                let decision = self.allocator.decide(&snapshot);
                Ok(Answer::Plan(Planned::new(&decision.plan, decision.deferred, false)))
            }
            Request::Pin { guest } => self.set_stance(guest, Some(Stance::Pinned), "pinned"),
            Request::Exclude { guest } => {
                self.set_stance(guest, Some(Stance::Excluded), "excluded")
            }
            Request::Free { guest } => {
                self.set_stance(guest, Some(Stance::Free), "left to the policy")
            }
            Request::Policy { policy } => {
                self.wishes.set_policy(Some(*policy))?;
                self.use_policy(*policy)?;
                Ok(Answer::Done(format!("the policy is {}", policy.as_str())))
            }
            Request::Rebalance => {
                if self.doubtful || self.dry_run {
                    return Err(self.not_now());
                }
                self.allocator.retry(None);
                let decision = self.decide(now_ms);
                // The answer does not wait for the moves: the next tick makes them.
                self.decide_now = true;
                Ok(Answer::Plan(Planned::new(&decision.plan, decision.deferred, true)))
            }
            Request::Drain { on } => {
                self.wishes.set_draining(*on)?;
                self.allocator.retry(None);
                self.status.draining = *on;
                self.decide_now = true;
                Ok(Answer::Done(if *on {
                    "every VF goes back to its pool".to_owned()
                } else {
                    "VFs are given again".to_owned()
                }))
            }
            Request::Unmark { guest } => {
                if !self.journal.ledger().marked.contains_key(guest) {
                    return Err(Refused::new(
                        Fault::Conflict,
                        format!("{guest} is not marked"),
                        "`planewise alloc status` shows who is",
                    ));
                }
                self.journal.append(&Entry::Unmark { guest: guest.clone() })?;
                self.ends.tell(Event::GuestUnmarked { guest: guest.clone() });
                self.allocator.retry(Some(guest));
                // What it has become is for the world to say.
                self.doubtful = true;
                self.decide_now = true;
                Ok(Answer::Done(format!("{guest} is taken part of again")))
            }
            Request::Reload => Err(Refused::new(
                Fault::Unavailable,
                "the configuration is not read again here",
                "send SIGHUP to the daemon",
            )),
        }
    }

    fn not_now(&self) -> Refused {
        if self.dry_run {
            return Refused::new(
                Fault::Conflict,
                "this daemon only looks (--dry-run)",
                "start it without --dry-run",
            );
        }
        Refused::new(
            Fault::Unavailable,
            "journal and host are still being compared",
            "try again in a second",
        )
    }

    fn set_stance(
        &mut self,
        guest: &GuestId,
        stance: Option<Stance>,
        word: &str,
    ) -> std::result::Result<Answer, Refused> {
        self.wishes.set_stance(guest, stance)?;
        self.allocator.retry(Some(guest));
        self.decide_now = true;
        Ok(Answer::Done(format!("{guest} is {word}")))
    }

    fn use_policy(&mut self, policy: PolicyKind) -> Result<()> {
        let mut settings = self.allocator.settings().clone();
        settings.policy = policy;
        self.allocator.configure(settings).map_err(alloc_error)?;
        self.status.policy = policy;
        self.decide_now = true;
        Ok(())
    }

    /// Another configuration from now on. What cannot change while the daemon runs is said.
    ///
    /// # Errors
    /// The settings make no sense: the old ones stay.
    pub fn configure(&mut self, config: Config) -> Result<()> {
        let mut settings = config.alloc.clone();
        settings.policy = self.wishes.policy().unwrap_or(settings.policy);
        self.allocator.configure(settings.clone()).map_err(alloc_error)?;
        self.allocator.retry(None);
        self.status.policy = settings.policy;
        self.status.interval_s = settings.interval_s;
        self.status.sample_s = config.sample_s;
        for kind in &mut self.host.kinds {
            kind.configure(&config);
        }
        self.config = config;
        (self.next_sample_ms, self.decide_now) = (0, true);
        Ok(())
    }

    /// Says that a configuration was refused; the one in force stays.
    pub fn refuse(&mut self, error: &Error) {
        self.tell_error(error, None, None);
    }

    /// Answers a request to read the configuration again.
    pub fn reloaded(&mut self, envelope: Envelope, result: Result<()>, now_ms: u64) {
        if result.is_ok() {
            self.status.counters.requests += 1;
            self.ends.tell(Event::Requested {
                request: envelope.request.name().to_owned(),
                caller: envelope.caller.to_string(),
                what: RELOADED.to_owned(),
            });
        }
        self.publish(now_ms);
        let answer = result.map(|()| Answer::Done(RELOADED.to_owned()));
        envelope.answer(answer.map_err(Refused::from));
    }

    /// The configuration in force.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// What the daemon leaves when it stops, in a sentence.
    pub fn leaves(&self) -> String {
        let holders = &self.journal.ledger().holders;
        let held: Vec<String> =
            holders.iter().map(|(vf, guest)| format!("{guest} on {vf}")).collect();
        let others = self.guests.len().saturating_sub(holders.len());
        match held.len() {
            0 => format!("{others} guests stay on their paravirtual paths"),
            _ => format!(
                "stay as they are: {}; and {others} guests on their paravirtual paths",
                held.join(", ")
            ),
        }
    }

    /// Tells that the daemon stops.
    pub fn stopping(&mut self) {
        let what = self.leaves();
        self.ends.tell(Event::Stopping { what });
    }

    // ---------------------------------------------------------------- telling

    fn tell_move(&mut self, record: &MoveRecord, event: fn(MoveRecord) -> Event) {
        self.status.tell_move(record.clone());
        self.ends.tell(event(record.clone()));
    }

    fn tell_error(&mut self, error: &Error, guest: Option<&GuestId>, vf: Option<&VfId>) {
        tracing::error!("{error}");
        let record = ErrorRecord {
            at_unix_ms: unix_ms(),
            what: error.what.clone(),
            remedy: error.remedy.clone(),
            guest: guest.cloned(),
            vf: vf.cloned(),
        };
        self.status.tell_error(record.clone());
        self.ends.tell(Event::Error(record));
    }

    /// Tells a trouble that lasts, once.
    fn tell_once(&mut self, error: &Error) {
        if self.told.len() > 1000 {
            self.told.clear();
        }
        if self.told.insert(error.what.clone()) {
            self.tell_error(error, None, None);
        }
    }

    fn publish(&mut self, now_ms: u64) {
        let ledger = self.journal.ledger();
        let held: BTreeMap<&GuestId, &VfId> =
            ledger.holders.iter().map(|(vf, guest)| (guest, vf)).collect();
        let signal = &self.allocator.settings().signal;
        self.status.at_unix_ms = unix_ms();
        self.status.guests = self
            .guests
            .iter()
            .map(|(id, guest)| {
                let wish = self.wish(id, &guest.managed);
                status::Guest {
                    id: id.clone(),
                    kind: self.host.kinds[guest.kind].kind(),
                    mac: Some(guest.managed.mac),
                    vf: held.get(id).map(|vf| (*vf).clone()),
                    since_unix_ms: guest.since_unix_ms,
                    why: guest.why.clone(),
                    rate: guest.tracker.rate(now_ms, signal).into(),
                    stance: wish.stance,
                    class: wish.class,
                    moving: guest.moving,
                    paravirtual_up: guest.managed.paravirtual_up,
                    marked: ledger.marked.get(id).cloned(),
                }
            })
            .collect();
        self.status.vfs = self
            .view
            .vfs
            .iter()
            .map(|(id, vf)| {
                let holder = ledger.holders.get(id).cloned();
                let why = ledger.quarantined.get(id).cloned().or_else(|| {
                    let foreign = !vf.at_home && holder.is_none();
                    foreign.then(|| "it is in use by somebody else".to_owned())
                });
                let place = match (&holder, &why) {
                    (_, Some(_)) => status::Place::Quarantined,
                    (Some(_), None) => status::Place::Held,
                    (None, None) => status::Place::Pool,
                };
                status::Vf { id: id.clone(), place, holder, why }
            })
            .collect();
        self.status.pools = self
            .view
            .pfs
            .iter()
            .map(|(pf, seen)| {
                let count = |place: Option<status::Place>| {
                    let of = self.status.vfs.iter().filter(|vf| {
                        vf.id.pf == *pf && place.is_none_or(|place| vf.place == place)
                    });
                    u32::try_from(of.count()).unwrap_or(u32::MAX)
                };
                status::Pool {
                    pf: pf.clone(),
                    vfs: count(None),
                    free: count(Some(status::Place::Pool)),
                    quarantined: count(Some(status::Place::Quarantined)),
                    link_up: seen.link_up,
                    numa: seen.numa,
                }
            })
            .collect();
        self.ends.publish(self.status.clone());
    }
}

fn alloc_error(error: pw_alloc::Error) -> Error {
    Error::bad_input(format!("alloc: {}", error.what), error.remedy)
}

/// A move without its reason.
fn bare(change: &Move) -> String {
    match change.direction {
        Direction::Take => format!("take {} from {}", change.vf, change.guest),
        Direction::Give => format!("give {} to {}", change.vf, change.guest),
    }
}

/// A step's name as tests write it.
fn word(step: &Step) -> &'static str {
    match step {
        Step::Reserve { .. } => "reserve",
        Step::SetMac { .. } => "set-mac",
        Step::Attach { .. } => "attach",
        Step::AwaitPath { .. } => "await-path",
        Step::Prefer { .. } => "prefer",
        Step::Direct { .. } => "direct",
        Step::Verify { .. } => "verify",
        Step::Detach { .. } => "detach",
        Step::Recall { .. } => "recall",
        Step::ClearMac { .. } => "clear-mac",
        Step::Reset { .. } => "reset",
        Step::Release { .. } => "release",
    }
}

fn place(direction: Direction, step: &Step) -> String {
    let direction = match direction {
        Direction::Give => "give",
        Direction::Take => "take",
    };
    format!("{direction}/{}", word(step))
}

/// The VF that a step is about.
fn vf_of(step: &Step) -> Option<&VfId> {
    match step {
        Step::Reserve { vf, .. }
        | Step::SetMac { vf, .. }
        | Step::Attach { vf, .. }
        | Step::AwaitPath { vf, .. }
        | Step::Detach { vf, .. }
        | Step::Recall { vf }
        | Step::ClearMac { vf }
        | Step::Reset { vf }
        | Step::Release { vf } => Some(vf),
        Step::Prefer { path, .. } | Step::Direct { path, .. } | Step::Verify { path, .. } => {
            match path {
                Path::Vf(vf) => Some(vf),
                Path::Paravirtual => None,
            }
        }
    }
}
