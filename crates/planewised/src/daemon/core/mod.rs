//! The daemon's core: observes, plans, has moves made, keeps ledger and journal, publishes. One thread,
//! no locks; time is given to it. It never waits: what may take its time is a task (`crate::daemon::crew`),
//! whose report is one more observation. Knows guests and VFs by two traits only.

mod moves;
mod observe;
mod publish;
mod recording;
mod recovery;
mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pw_alloc::Allocator;
use pw_alloc::execute::Failure;
use pw_alloc::model::{GuestId, VfId};
use pw_alloc::plan::{Direction, Move};
use pw_alloc::signal::{Sample, Tracker};
use pw_alloc::step::Step;
use pw_error::{Error, Result};

use crate::daemon::config::Config;
use crate::daemon::crew::{Crew, Outcome};
use crate::daemon::guests::{Guests, Managed};
use crate::daemon::journal::Journal;
use crate::daemon::pool::{Pool, PoolView};
use crate::daemon::request::CoreEnds;
use crate::daemon::status::Status;
use crate::daemon::wishes::Wishes;

use self::moves::Active;
use self::recovery::Find;

/// The longest wait between two recoveries of what cannot be recovered is 2 to this power seconds.
const LONGEST_BACKOFF: u32 = 6;

/// A kind that has never answered is waited for so long before anything is recovered [ms].
const FIRST_LOOK_MS: u64 = 30_000;
/// A task that has not ended so long after its deadline is told of [ms].
const OVERDUE_MS: u64 = 10_000;

const RELOADED: &str = "the configuration was read again";

/// What the daemon was given to work with.
pub struct Host {
    /// The VFs.
    pub pool: Box<dyn Pool>,
    /// The kinds of guests.
    pub kinds: Vec<Box<dyn Guests>>,
    /// Who performs steps.
    pub crew: Box<dyn Crew>,
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
}

/// A VF about which journal and world disagree.
#[derive(Debug, Clone)]
struct Doubt {
    why: String,
    /// Samples in a row that showed it, or more where one is enough.
    samples: u32,
    /// Recoveries that did not end it.
    tries: u32,
    /// It is recovered at this moment at the earliest [ms].
    next_ms: u64,
}

/// A managed guest that was to be recovered and could not be looked at.
#[derive(Debug, Clone, Default)]
struct Unseen {
    /// Looks in a row that did not show it.
    tries: u32,
    /// It is looked for again at this moment at the earliest [ms].
    next_ms: u64,
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
    /// Journal and world are to be compared before anything is moved.
    doubtful: bool,
    /// Not before this moment again [ms].
    doubtful_after_ms: u64,
    /// Attempts in a row that failed to bring journal and world together.
    doubtful_tries: u32,
    /// VFs about which journal and world disagree.
    doubts: BTreeMap<VfId, Doubt>,
    /// VFs that are to be doubted with the next sample, whatever it shows.
    suspects: BTreeMap<VfId, String>,
    /// Guests that are to be recovered, whatever they hold.
    suspected: BTreeSet<GuestId>,
    /// Guests that were to be recovered and could not be looked at.
    unseen: BTreeMap<GuestId, Unseen>,
    /// The pool is read afresh at this moment at the latest [ms].
    next_read_ms: u64,
    /// Guests because of which another one, of their name or with their address, is not managed.
    clashes: BTreeSet<GuestId>,
    /// Moves and recoveries under way, by their operation.
    active: BTreeMap<u64, Active>,
    /// Moves that wait for another one of the same guest or VF.
    queue: VecDeque<Move>,
    /// Steps that could not even be begun.
    failed_at_once: Vec<(u64, Failure)>,
    /// It is being looked for what journal and world come to.
    finding: Option<Find>,
    /// Once nothing is under way the journal is begun anew.
    checkpoint_due: bool,
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
            doubtful: true,
            doubtful_after_ms: 0,
            doubtful_tries: 0,
            doubts: BTreeMap::new(),
            suspects: BTreeMap::new(),
            suspected: BTreeSet::new(),
            unseen: BTreeMap::new(),
            next_read_ms: 0,
            clashes: BTreeSet::new(),
            active: BTreeMap::new(),
            queue: VecDeque::new(),
            failed_at_once: Vec::new(),
            finding: None,
            checkpoint_due: false,
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

    /// Do journal and world agree, as far as is known, and is nothing under way?
    pub fn is_settled(&self) -> bool {
        let known = |vf: &VfId| self.view.vfs.contains_key(vf);
        !self.doubtful
            && self.doubts.is_empty()
            && self.is_idle()
            && self.finding.is_none()
            && self.suspected.is_empty()
            && self.unseen.is_empty()
            && self.journal.ledger().vfs().all(known)
    }

    /// Is no move and no recovery under way?
    pub fn is_idle(&self) -> bool {
        self.active.is_empty() && self.queue.is_empty()
    }

    /// When the core wants to be called again, if nothing happens before [ms].
    pub fn next_ms(&self) -> u64 {
        if self.decide_now { 0 } else { self.next_sample_ms.min(self.next_decision_ms) }
    }

    /// Does what is due at this moment: takes reports in, samples, decides, has moves begun.
    pub fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.take_reports(now_ms);
        if now_ms >= self.next_sample_ms {
            self.observe(now_ms);
            // What was missed (a suspended machine) is not made up for.
            self.next_sample_ms = now_ms + (self.config.sample_s * 1e3) as u64;
        }
        if !self.dry_run {
            self.recover_what_is_due(now_ms);
            self.take_reports(now_ms);
        }
        if self.decide_now || now_ms >= self.next_decision_ms {
            self.decide_now = false;
            self.next_decision_ms = now_ms + (self.allocator.settings().interval_s * 1e3) as u64;
            let decision = self.decide(now_ms);
            if !self.dry_run && !self.doubtful {
                self.plan_moves(decision.plan.moves);
            }
        }
        self.begin_queued(now_ms);
        self.take_reports(now_ms);
        if !self.dry_run && !self.doubtful {
            self.let_go();
            self.tidy();
        }
        self.write_recording();
        self.publish(now_ms);
    }

    /// Takes reports in and nothing else: what is under way comes to its end, and nothing is begun.
    pub fn finish(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.queue.clear();
        self.take_reports(now_ms);
        self.publish(now_ms);
    }

    /// Takes in what tasks have come to, until none has ended.
    fn take_reports(&mut self, now_ms: u64) {
        loop {
            let failed = std::mem::take(&mut self.failed_at_once);
            let reports = self.host.crew.ended(now_ms);
            if failed.is_empty() && reports.is_empty() {
                return;
            }
            for (operation, failure) in failed {
                self.stepped(operation, Err(failure), 0.0, now_ms);
            }
            for report in reports {
                let seconds = report.took.as_secs_f64();
                match report.outcome {
                    Outcome::Step(result) => self.stepped(report.number, result, seconds, now_ms),
                    Outcome::Found(parts) => self.found(parts, now_ms),
                }
            }
            self.begin_queued(now_ms);
        }
    }

    /// The journal is begun anew once nothing is under way after a recovery of everything.
    fn tidy(&mut self) {
        if self.checkpoint_due && self.active.is_empty() && self.finding.is_none() {
            match self.journal.begin_anew() {
                Ok(()) => self.checkpoint_due = false,
                Err(error) => self.tell_once(&error),
            }
        }
    }

    /// The journal cannot be written: nothing more is done until journal and world are compared anew.
    fn journal_failed(&mut self, error: &Error) {
        self.tell_once(error);
        self.doubtful = true;
        self.queue.clear();
        self.doubtful_after_ms = self.now_ms + backoff_ms(self.doubtful_tries);
        self.doubtful_tries = self.doubtful_tries.saturating_add(1);
    }
}

/// How long it is waited after so many failures in a row [ms].
const fn backoff_ms(tries: u32) -> u64 {
    1000 << if tries < LONGEST_BACKOFF { tries } else { LONGEST_BACKOFF }
}

/// A move without its reason.
fn bare(change: &Move) -> String {
    match change.direction {
        Direction::Take => format!("take {} from {}", change.vf, change.guest),
        Direction::Give => format!("give {} to {}", change.vf, change.guest),
    }
}

fn place(direction: Direction, step: &Step) -> String {
    let direction = match direction {
        Direction::Give => "give",
        Direction::Take => "take",
    };
    format!("{direction}/{}", step.word())
}
