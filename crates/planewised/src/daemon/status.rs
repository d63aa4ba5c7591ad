//! The daemon's status, one value that is published as a whole (docs/reference/alloc.md).

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use pw_alloc::journal;
use pw_alloc::model::{self, GuestId, Mac, Origin, PfId, Stance, VfId};
use pw_alloc::plan::{Direction, Move, Plan};
use pw_alloc::settings::PolicyKind;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Version of this format.
pub const FORMAT: u32 = 1;
/// Most moves kept, the latest last.
pub const MOVES_KEPT: usize = 64;
/// Most errors kept, the latest last.
pub const ERRORS_KEPT: usize = 64;

/// Time of the wall clock: milliseconds since 1970. For people; nothing is computed from it.
pub fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// The daemon's state at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of this format.
    pub format: u32,
    /// Version of the daemon.
    pub version: String,
    /// When it was published [ms since 1970].
    pub at_unix_ms: u64,
    /// When the daemon started [ms since 1970].
    pub started_unix_ms: u64,
    /// The policy.
    #[schema(value_type = String, pattern = "^(fair|activity|benefit|static)$")]
    pub policy: PolicyKind,
    /// Time between two decisions [s].
    pub interval_s: f64,
    /// Time between two readings of all counters [s].
    pub sample_s: f64,
    /// Every VF goes back to its pool, and none is given.
    pub draining: bool,
    /// The guests that are managed, by name.
    pub guests: Vec<Guest>,
    /// The VFs that are managed, by PF and number.
    pub vfs: Vec<Vf>,
    /// The PFs whose VFs are managed, by name.
    pub pools: Vec<Pool>,
    /// The latest moves, begun last at the end.
    #[schema(value_type = Vec<MoveRecord>)]
    pub moves: VecDeque<MoveRecord>,
    /// The latest errors, the last at the end.
    #[schema(value_type = Vec<ErrorRecord>)]
    pub errors: VecDeque<ErrorRecord>,
    /// Counters since the daemon started.
    pub counters: Counters,
}

impl Status {
    /// The status of a daemon that has just started.
    pub fn new(policy: PolicyKind, interval_s: f64, sample_s: f64) -> Self {
        let now = unix_ms();
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            at_unix_ms: now,
            started_unix_ms: now,
            policy,
            interval_s,
            sample_s,
            draining: false,
            guests: Vec::new(),
            vfs: Vec::new(),
            pools: Vec::new(),
            moves: VecDeque::new(),
            errors: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Adds the record of a move, or replaces that of the same operation.
    pub fn record_move(&mut self, record: MoveRecord) {
        match self.moves.iter_mut().rfind(|kept| kept.operation == record.operation) {
            Some(kept) => *kept = record,
            None => push_bounded(&mut self.moves, record, MOVES_KEPT),
        }
    }

    /// Adds an error.
    pub fn record_error(&mut self, record: ErrorRecord) {
        self.counters.errors += 1;
        push_bounded(&mut self.errors, record, ERRORS_KEPT);
    }
}

fn push_bounded<T>(ring: &mut VecDeque<T>, item: T, most: usize) {
    while ring.len() >= most {
        ring.pop_front();
    }
    ring.push_back(item);
}

/// The kind of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GuestKind {
    /// A container or network namespace.
    Container,
    /// A pod of this node.
    Pod,
    /// A virtual machine.
    Vm,
    /// A guest of a made-up host.
    Simulated,
}

/// One guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Guest {
    /// Its name.
    #[schema(value_type = String)]
    pub id: GuestId,
    /// Its kind.
    pub kind: GuestKind,
    /// Its address, if it is known.
    #[schema(value_type = Option<String>)]
    pub mac: Option<Mac>,
    /// The VF that it holds; none: it sends by its paravirtual path.
    #[schema(value_type = Option<String>)]
    pub vf: Option<VfId>,
    /// Since when it has that VF, or none [ms since 1970].
    pub since_unix_ms: u64,
    /// Why it has a VF or none: one sentence without a full stop.
    pub why: String,
    /// Its traffic.
    pub rate: Rate,
    /// The operator's stance on it.
    #[schema(value_type = String, pattern = "^(free|pinned|excluded)$")]
    pub stance: Stance,
    /// Its priority.
    pub class: u8,
    /// A move of it is under way.
    pub moving: bool,
    /// Does its paravirtual path work?
    pub paravirtual_up: bool,
    /// The step that it did not answer; none: it is not marked.
    pub marked: Option<String>,
}

/// Where packets were counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// On the host.
    HostSide,
    /// In the guest, which may lie.
    GuestReported,
    /// Nowhere: the rate is unknown, which is not zero.
    Unsupported,
}

/// A guest's traffic, both directions together, smoothed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Rate {
    /// Packets per second; none: unknown.
    pub pps: Option<f64>,
    /// Bytes per second; none: unknown.
    pub bytes_per_s: Option<f64>,
    /// Where packets were counted.
    pub source: Source,
    /// Since when nothing has been counted [ms]; 0: the rate is of now.
    pub blind_ms: u64,
}

impl From<Option<model::Rate>> for Rate {
    fn from(rate: Option<model::Rate>) -> Self {
        rate.map_or(
            Self { pps: None, bytes_per_s: None, source: Source::Unsupported, blind_ms: 0 },
            |rate| Self {
                pps: Some(rate.pps),
                bytes_per_s: Some(rate.bytes_per_s),
                source: match rate.origin {
                    Origin::HostSide => Source::HostSide,
                    Origin::GuestReported => Source::GuestReported,
                },
                blind_ms: rate.blind_ms,
            },
        )
    }
}

/// Where a VF is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VfState {
    /// In the pool.
    Pool,
    /// Held by a guest, or on its way to one.
    Held,
    /// Something is wrong with it: neither given nor taken.
    Quarantined,
}

/// One VF.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Vf {
    /// Its PF and number, as `enp1s0f0/3`.
    #[schema(value_type = String)]
    pub id: VfId,
    /// Where it is.
    pub place: VfState,
    /// Its holder.
    #[schema(value_type = Option<String>)]
    pub holder: Option<GuestId>,
    /// What is wrong with it.
    pub why: Option<String>,
}

/// The VFs of one PF.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// The PF's interface.
    #[schema(value_type = String)]
    pub pf: PfId,
    /// VFs that are managed.
    pub vfs: u32,
    /// VFs that can be given now.
    pub free: u32,
    /// VFs that are quarantined.
    pub quarantined: u32,
    /// Does the PF have a link? Without one its holders fall back.
    pub link_up: bool,
    /// The NUMA node of the PF, if it has one.
    pub numa: Option<u16>,
}

/// How a move ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// As planned.
    Completed,
    /// It could not be done and was undone.
    Undone,
    /// The guest did not answer and keeps its present path.
    Stuck,
    /// The guest no longer has the VF, and the VF is not fit for the pool.
    Quarantined,
}

impl How {
    /// Its name, as it is written in JSON and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Undone => "undone",
            Self::Stuck => "stuck",
            Self::Quarantined => "quarantined",
        }
    }
}

/// How a move ended, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ending {
    /// How.
    pub how: How,
    /// Why, unless it went as planned.
    pub why: Option<String>,
}

impl From<&journal::Ending> for Ending {
    fn from(ending: &journal::Ending) -> Self {
        let (how, why) = match ending {
            journal::Ending::Completed => (How::Completed, None),
            journal::Ending::Undone { why } => (How::Undone, Some(why.clone())),
            journal::Ending::Stuck { why } => (How::Stuck, Some(why.clone())),
            journal::Ending::Quarantined { why } => (How::Quarantined, Some(why.clone())),
        };
        Self { how, why }
    }
}

/// One step of a move that is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepRecord {
    /// The step, in words.
    pub step: String,
    /// How long it took [ms].
    pub duration_ms: f64,
}

/// One move, under way or ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MoveRecord {
    /// Its number in the journal.
    pub operation: u64,
    /// Given to the guest or taken from it.
    #[schema(value_type = String, pattern = "^(give|take)$")]
    pub direction: Direction,
    /// The guest.
    #[schema(value_type = String)]
    pub guest: GuestId,
    /// The VF.
    #[schema(value_type = String)]
    pub vf: VfId,
    /// Why: one sentence without a full stop.
    pub why: String,
    /// When it began [ms since 1970].
    pub started_unix_ms: u64,
    /// How long it took [ms]; none while it is under way.
    pub duration_ms: Option<f64>,
    /// The steps done so far.
    pub steps: Vec<StepRecord>,
    /// How it ended; none while it is under way.
    pub ending: Option<Ending>,
}

impl MoveRecord {
    /// A move that begins now.
    pub fn begun(operation: u64, change: &Move) -> Self {
        Self {
            operation,
            direction: change.direction,
            guest: change.guest.clone(),
            vf: change.vf.clone(),
            why: change.reason.to_string(),
            started_unix_ms: unix_ms(),
            duration_ms: None,
            steps: Vec::new(),
            ending: None,
        }
    }
}

/// Something that went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorRecord {
    /// When [ms since 1970].
    pub at_unix_ms: u64,
    /// One sentence: what could not be done, and where.
    pub what: String,
    /// What to do about it; may be empty.
    pub remedy: String,
    /// The guest that it concerns.
    #[schema(value_type = Option<String>)]
    pub guest: Option<GuestId>,
    /// The VF that it concerns.
    #[schema(value_type = Option<String>)]
    pub vf: Option<VfId>,
}

/// Upper bounds of the classes in which durations are counted [s]; one more class has no bound.
/// They reach from a fast unplug to a guest that is waited for.
pub const DURATION_BOUNDS_S: [f64; 14] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

/// Durations, counted by class.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Durations {
    /// Number of durations.
    pub count: u64,
    /// Sum of all [s].
    pub sum_s: f64,
    /// By class: how many were not longer than its bound, and longer than the bound before.
    pub classes: [u64; DURATION_BOUNDS_S.len() + 1],
}

impl Durations {
    /// Counts one duration.
    pub fn observe(&mut self, duration_s: f64) {
        let class = DURATION_BOUNDS_S.partition_point(|bound| *bound < duration_s);
        self.classes[class] += 1;
        self.count += 1;
        self.sum_s += duration_s;
    }
}

/// How many moves ended how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Endings {
    /// As planned.
    pub completed: u64,
    /// Undone.
    pub undone: u64,
    /// The guest did not answer.
    pub stuck: u64,
    /// The VF is not fit for the pool.
    pub quarantined: u64,
}

impl Endings {
    const fn of_mut(&mut self, how: How) -> &mut u64 {
        match how {
            How::Completed => &mut self.completed,
            How::Undone => &mut self.undone,
            How::Stuck => &mut self.stuck,
            How::Quarantined => &mut self.quarantined,
        }
    }
}

/// Counters since the daemon started.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Counters {
    /// VFs given, by ending.
    pub given: Endings,
    /// VFs taken, by ending.
    pub taken: Endings,
    /// How long gives took that ended as planned.
    pub give_durations: Durations,
    /// How long takes took that ended as planned.
    pub take_durations: Durations,
    /// Readings of all counters.
    pub samples: u64,
    /// How long decisions took.
    pub decision_durations: Durations,
    /// How long readings of all counters took.
    pub sample_durations: Durations,
    /// Errors reported.
    pub errors: u64,
    /// Requests that changed something, and were done.
    pub requests: u64,
}

impl Counters {
    /// Counts a move that ended.
    pub fn count_move(&mut self, direction: Direction, how: How, duration_s: f64) {
        let (endings, durations) = match direction {
            Direction::Give => (&mut self.given, &mut self.give_durations),
            Direction::Take => (&mut self.taken, &mut self.take_durations),
        };
        *endings.of_mut(how) += 1;
        if how == How::Completed {
            durations.observe(duration_s);
        }
    }
}

/// One move of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedMove {
    /// Given to the guest or taken from it.
    #[schema(value_type = String, pattern = "^(give|take)$")]
    pub direction: Direction,
    /// The guest.
    #[schema(value_type = String)]
    pub guest: GuestId,
    /// The VF.
    #[schema(value_type = String)]
    pub vf: VfId,
    /// Why: one sentence without a full stop.
    pub why: String,
}

/// A plan: what would be done now, or is being done.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Planned {
    /// The moves, in order.
    pub moves: Vec<PlannedMove>,
    /// VFs that would be given too, were the moves of this interval not used up.
    pub deferred: u64,
    /// The moves are being made: this answers `rebalance`, not `plan`.
    pub performed: bool,
}

impl Planned {
    /// This plan, in words.
    pub fn new(plan: &Plan, deferred: usize, performed: bool) -> Self {
        let planned = |change: &Move| PlannedMove {
            direction: change.direction,
            guest: change.guest.clone(),
            vf: change.vf.clone(),
            why: change.reason.to_string(),
        };
        Self {
            moves: plan.moves.iter().map(planned).collect(),
            deferred: deferred as u64,
            performed,
        }
    }
}
