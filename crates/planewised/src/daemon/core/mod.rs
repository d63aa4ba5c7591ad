//! The daemon's core: observes, decides, performs, keeps the journal, publishes. One thread, no
//! locks; time is given to it. Knows guests and VFs by two traits only.

mod moves;
mod observe;
mod publish;
mod recovery;
mod requests;

use std::collections::{BTreeMap, BTreeSet};

use pw_alloc::Allocator;
use pw_alloc::model::{GuestId, VfId};
use pw_alloc::plan::{Direction, Move};
use pw_alloc::signal::{Sample, Tracker};
use pw_alloc::step::{Path, Step};
use pw_linux::error::{Error, Result};

use crate::daemon::config::Config;
use crate::daemon::guests::{Guests, Managed};
use crate::daemon::journal::Journal;
use crate::daemon::pool::{Pool, PoolView};
use crate::daemon::request::CoreEnds;
use crate::daemon::status::Status;
use crate::daemon::wishes::Wishes;

/// The longest wait between two recoveries of what cannot be recovered is 2 to this power seconds.
const LONGEST_BACKOFF: u32 = 6;

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

/// A VF about which journal and world disagree.
#[derive(Debug, Clone)]
struct Doubt {
    why: String,
    /// Recoveries that did not end it.
    tries: u32,
    /// It is recovered at this moment at the earliest [ms].
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
    /// The pool is read afresh at this moment at the latest [ms].
    next_read_ms: u64,
    /// Names under which guests of two kinds were found; the second one is not managed.
    name_clashes: BTreeSet<GuestId>,
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
            doubtful_tries: 0,
            doubts: BTreeMap::new(),
            suspects: BTreeMap::new(),
            next_read_ms: 0,
            name_clashes: BTreeSet::new(),
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
    pub fn is_settled(&self) -> bool {
        !self.doubtful && self.doubts.is_empty()
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
            match self.reconcile(now_ms, None) {
                Ok(()) => self.doubtful_tries = 0,
                Err(error) => {
                    self.doubtful_after_ms = now_ms + backoff_ms(self.doubtful_tries);
                    self.doubtful_tries += 1;
                    self.tell_once(&error);
                }
            }
        }
        if !self.doubtful && !self.dry_run {
            self.recover_doubted(now_ms);
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
}

/// How long it is waited after so many failures in a row [ms].
const fn backoff_ms(tries: u32) -> u64 {
    1000 << if tries < LONGEST_BACKOFF { tries } else { LONGEST_BACKOFF }
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
