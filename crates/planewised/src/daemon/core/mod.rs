//! The daemon's core: observes, plans, starts moves, keeps ledger and journal, publishes. One thread, no
//! locks; time is an argument. It never waits: whatever may block is a task (`crate::daemon::tasks`),
//! whose report is one more observation.

mod moves;
mod observe;
mod publish;
mod recording;
mod recovery;
mod requests;

use std::collections::{BTreeMap, VecDeque};

use pw_alloc::Allocator;
use pw_alloc::execute::Failure;
use pw_alloc::model::{GuestId, VfId};
use pw_alloc::plan::Move;
use pw_alloc::signal::{Sample, Tracker};
use pw_error::{Error, Result};

use crate::daemon::config::Config;
use crate::daemon::guests::{Guests, Managed};
use crate::daemon::journal::Journal;
use crate::daemon::pool::{Pool, PoolView};
use crate::daemon::request::CoreEnds;
use crate::daemon::status::Status;
use crate::daemon::tasks::{Outcome, TaskRunner};
use crate::daemon::wishes::Wishes;

use self::moves::Active;
use self::observe::Reading;
use self::recovery::{Doubt, Subject, Survey};

/// How long recovery waits at first for kinds of guests that have not answered yet [ms].
const FIRST_LOOK_MS: u64 = 30_000;
/// A task is reported as overdue this long after its deadline [ms].
const OVERDUE_MS: u64 = 10_000;

/// The parts of a host that the daemon works with.
pub struct Host {
    /// The VFs.
    pub pool: Box<dyn Pool>,
    /// The kinds of guests.
    pub kinds: Vec<Box<dyn Guests>>,
    /// Performs steps.
    pub tasks: Box<dyn TaskRunner>,
}

/// A managed guest.
struct Tracked {
    /// Its kind, as an index of the list of kinds.
    kind: usize,
    managed: Managed,
    tracker: Tracker,
    /// When its VF was given or taken.
    since_unix_ms: u64,
    why: String,
}

/// The core.
pub struct Core {
    config: Config,
    host: Host,
    view: PoolView,
    journal: Journal,
    wishes: Wishes,
    allocator: Allocator,
    recording: Option<recording::File>,
    guests: BTreeMap<GuestId, Tracked>,
    status: Status,
    ends: CoreEnds,
    dry_run: bool,
    /// On what journal and host may disagree.
    doubts: BTreeMap<Subject, Doubt>,
    /// Latest time of the next reading of the pool [ms].
    next_read_ms: u64,
    reading: Reading,
    /// VFs that guests which do not run will take when they start, with the reasons.
    reserved: BTreeMap<VfId, String>,
    /// Moves and recoveries under way, by number of the operation.
    active: BTreeMap<u64, Active>,
    /// Moves that wait for another of the same guest or VF.
    queue: VecDeque<Move>,
    /// Steps that could not be begun.
    failed_at_once: Vec<(u64, Failure)>,
    /// The survey under way.
    survey: Option<Survey>,
    /// An adoption is under way: there is one at a time.
    adopting: bool,
    /// The journal is to be compacted once nothing is under way.
    checkpoint_due: bool,
    decide_now: bool,
    next_sample_ms: u64,
    next_decision_ms: u64,
    /// Errors that have been reported, and when each was last seen [ms], so that one that lasts is
    /// reported once.
    reported: BTreeMap<String, u64>,
    samples: Vec<(GuestId, Sample)>,
    stop: Box<dyn Fn() -> bool + Send>,
    now_ms: u64,
}

impl Core {
    /// A core without observations.
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
        let mut allocator = Allocator::new(settings).map_err(|error| error.at("alloc"))?;
        let recording = recording::File::open(config.recording.as_deref(), &mut allocator)?;
        Ok(Self {
            config,
            host,
            view: PoolView::default(),
            journal,
            wishes,
            allocator,
            recording,
            guests: BTreeMap::new(),
            status,
            ends,
            dry_run,
            doubts: [(Subject::Host, Doubt::default())].into(),
            next_read_ms: 0,
            reading: Reading::default(),
            reserved: BTreeMap::new(),
            active: BTreeMap::new(),
            queue: VecDeque::new(),
            failed_at_once: Vec::new(),
            survey: None,
            adopting: false,
            checkpoint_due: false,
            decide_now: false,
            next_sample_ms: 0,
            // A rate needs two readings.
            next_decision_ms: first_decision_ms,
            reported: BTreeMap::new(),
            samples: Vec::new(),
            stop,
            now_ms: 0,
        })
    }

    /// The core's ends of the channels, to wait for requests.
    pub const fn ends(&self) -> &CoreEnds {
        &self.ends
    }

    /// The published status.
    pub const fn status(&self) -> &Status {
        &self.status
    }

    /// Do journal and host agree, and is nothing under way?
    pub fn is_settled(&self) -> bool {
        let exists = |vf: &VfId| self.view.vfs.contains_key(vf);
        self.doubts.is_empty()
            && self.is_idle()
            && self.survey.is_none()
            && self.journal.ledger().vfs().all(exists)
    }

    /// Is no move, recovery or adoption under way?
    pub fn is_idle(&self) -> bool {
        self.active.is_empty() && self.queue.is_empty() && !self.adopting
    }

    /// When the next tick is due, unless something happens before [ms].
    pub fn next_ms(&self) -> u64 {
        if self.decide_now { 0 } else { self.next_sample_ms.min(self.next_decision_ms) }
    }

    /// Does what is due: processes reports, samples, decides, begins moves.
    pub fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.take_reports();
        if now_ms >= self.next_sample_ms {
            self.observe();
            // Samples missed by a suspended machine are not made up for.
            self.next_sample_ms = now_ms + (self.config.sample_s * 1e3) as u64;
        }
        if !self.dry_run {
            self.recover_what_is_due();
            self.take_reports();
        }
        if self.decide_now || now_ms >= self.next_decision_ms {
            self.decide_now = false;
            self.next_decision_ms = now_ms + (self.allocator.settings().interval_s * 1e3) as u64;
            let decision = self.decide();
            if !self.dry_run && !self.is_doubtful() {
                self.queue.extend(decision.plan.moves);
            }
        }
        self.begin_queued();
        self.take_reports();
        if !self.dry_run && !self.is_doubtful() {
            self.release_leaving();
            self.compact_journal();
        }
        self.write_recording();
        self.publish();
    }

    /// Processes reports only: operations under way end, and none is begun.
    pub fn finish(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.queue.clear();
        self.take_reports();
        self.publish();
    }

    /// Processes the reports of ended tasks, and of those that end meanwhile.
    fn take_reports(&mut self) {
        loop {
            let failed = std::mem::take(&mut self.failed_at_once);
            let reports = self.host.tasks.ended(self.now_ms);
            if failed.is_empty() && reports.is_empty() {
                return;
            }
            for (operation, failure) in failed {
                self.step_ended(operation, Err(failure), 0.0);
            }
            for report in reports {
                let seconds = report.took.as_secs_f64();
                match report.outcome {
                    Outcome::Step(result) => self.step_ended(report.number, result, seconds),
                    Outcome::Survey(found) => self.finish_survey(found),
                    Outcome::Read(result) => self.reading_ended(*result),
                    Outcome::Adopted => self.adoption_ended(),
                }
            }
            self.begin_queued();
        }
    }

    /// Compacts the journal after a full recovery, once nothing is under way.
    fn compact_journal(&mut self) {
        if self.checkpoint_due && self.active.is_empty() && self.survey.is_none() {
            match self.journal.compact() {
                Ok(()) => self.checkpoint_due = false,
                Err(error) => self.report_once(&error),
            }
        }
    }

    /// Stops all moves until journal and host are reconciled: the journal cannot be written.
    fn journal_failed(&mut self, error: &Error) {
        self.report_once(error);
        self.queue.clear();
        self.doubts.entry(Subject::Host).or_default().postpone(self.now_ms);
    }
}
