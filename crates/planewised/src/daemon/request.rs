//! Messages between the daemon's core and its http: requests one way, status and events the other. The
//! core is one synchronous thread, and never waits for a reader.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc;

use pw_alloc::model::{GuestId, PfId, Stance, VfId};
use pw_alloc::settings::PolicyKind;
use pw_error::Error;
use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, oneshot, watch};
use utoipa::ToSchema;

use super::status::{ErrorRecord, GuestKind, How, MoveRecord, Planned, Status};

/// Requests that may wait for the core; more are refused at once.
pub const REQUESTS_WAITING: usize = 64;
/// Events kept for slow readers; beyond, a reader learns how many it missed.
pub const EVENTS_KEPT: usize = 1024;

/// A request to the core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The plan as of now; changes nothing.
    Plan,
    /// Pin this guest, exclude it, or let the policy decide.
    Stance {
        /// Which guest.
        guest: GuestId,
        /// The operator's stance.
        stance: Stance,
    },
    /// Use this policy from now on.
    Policy {
        /// The policy.
        policy: PolicyKind,
    },
    /// Decide now, not at the end of the interval, and perform the plan.
    Rebalance,
    /// On: return every VF to its pool and give none. Off: give VFs again.
    Drain {
        /// On or off.
        on: bool,
    },
    /// Remove the mark of a guest that works again.
    Unmark {
        /// Which guest.
        guest: GuestId,
    },
    /// Read the configuration again.
    Reload,
}

impl Request {
    /// Its name, as it is written in paths, logs and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Stance { stance: Stance::Pinned, .. } => "pin",
            Self::Stance { stance: Stance::Excluded, .. } => "exclude",
            Self::Stance { stance: Stance::Free, .. } => "free",
            Self::Policy { .. } => "policy",
            Self::Rebalance => "rebalance",
            Self::Drain { .. } => "drain",
            Self::Unmark { .. } => "unmark",
            Self::Reload => "reload",
        }
    }

    /// The guest that it concerns.
    pub const fn guest(&self) -> Option<&GuestId> {
        match self {
            Self::Stance { guest, .. } | Self::Unmark { guest } => Some(guest),
            _ => None,
        }
    }
}

/// The caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// A process on this host, as the kernel names it.
    Local {
        /// Its user.
        uid: u32,
        /// Its process.
        pid: Option<i32>,
    },
    /// The holder of the token of this name.
    Token(String),
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { uid, pid: Some(pid) } => write!(f, "uid {uid}, pid {pid}"),
            Self::Local { uid, pid: None } => write!(f, "uid {uid}"),
            Self::Token(name) => write!(f, "token {name}"),
        }
    }
}

/// The core's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To [`Request::Plan`] and [`Request::Rebalance`].
    Plan(Planned),
    /// Done, or begun: one sentence without a full stop, as "web is pinned".
    Done(String),
}

/// The kind of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The request makes no sense.
    BadRequest,
    /// The caller is not permitted.
    Forbidden,
    /// There is no such guest, or no such path.
    NotFound,
    /// It conflicts with the present state.
    Conflict,
    /// It could not be done.
    Failed,
    /// Not now: the daemon is busy, starting or stopping.
    Unavailable,
}

/// A refused request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct Refused {
    /// The kind of refusal.
    pub fault: Fault,
    /// What failed, one sentence.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
    /// The status code of HTTP, where it is more specific than the kind.
    #[serde(skip)]
    pub status: Option<u16>,
}

impl Refused {
    /// A refusal of that kind.
    pub fn new(fault: Fault, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { fault, what: what.into(), remedy: remedy.into(), status: None }
    }

    /// The same with a more specific status code.
    #[must_use]
    pub const fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// There is no guest of that name.
    pub fn unknown_guest(guest: &GuestId) -> Self {
        Self::new(
            Fault::NotFound,
            format!("there is no guest {guest} on this host"),
            "`planewise alloc status` lists the guests that are managed",
        )
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let fault =
            if error.kind == pw_error::Kind::BadInput { Fault::BadRequest } else { Fault::Failed };
        Self::new(fault, error.what, error.remedy)
    }
}

/// A request on its way to the core.
#[derive(Debug)]
pub struct Envelope {
    /// The request.
    pub request: Request,
    /// Its caller.
    pub caller: Caller,
    /// Channel of the answer.
    pub reply: oneshot::Sender<Result<Answer, Refused>>,
}

impl Envelope {
    /// Has its caller given up? Then the request must not be performed: the caller expects that.
    pub fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    /// Answers. A caller that is gone is not an error.
    pub fn answer(self, answer: Result<Answer, Refused>) {
        drop(self.reply.send(answer));
    }
}

/// An event of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum Event {
    /// A move has begun.
    MoveBegan(MoveRecord),
    /// A move has made a step.
    MoveStepped(MoveRecord),
    /// A move has ended.
    MoveEnded(MoveRecord),
    /// A decision was made.
    Decided {
        /// Moves of the plan.
        moves: u64,
        /// VFs that would have been given too, had there been moves left.
        deferred: u64,
        /// How long it took [ms].
        duration_ms: f64,
    },
    /// A guest is managed from now on.
    GuestAppeared {
        /// Which.
        #[schema(value_type = String)]
        guest: GuestId,
        /// Its kind.
        kind: GuestKind,
    },
    /// A guest is gone.
    GuestGone {
        /// Which.
        #[schema(value_type = String)]
        guest: GuestId,
    },
    /// A guest did not answer and is left alone.
    GuestMarked {
        /// Which.
        #[schema(value_type = String)]
        guest: GuestId,
        /// The step that it did not answer.
        why: String,
    },
    /// The mark of a guest was removed.
    GuestUnmarked {
        /// Which.
        #[schema(value_type = String)]
        guest: GuestId,
    },
    /// A VF is neither given nor taken any more.
    VfQuarantined {
        /// Which.
        #[schema(value_type = String)]
        vf: VfId,
        /// What is wrong with it.
        why: String,
    },
    /// A PF has got or lost its link.
    Link {
        /// Which PF.
        #[schema(value_type = String)]
        pf: PfId,
        /// Got or lost.
        up: bool,
    },
    /// An error occurred.
    Error(ErrorRecord),
    /// A request was performed.
    Requested {
        /// Which, as `pin`.
        request: String,
        /// By whom.
        caller: String,
        /// The result: one sentence without a full stop.
        what: String,
    },
    /// The daemon stops; guests keep working as they are.
    Stopping {
        /// The state in which it leaves the guests: one sentence without a full stop.
        what: String,
    },
}

impl Event {
    /// Logs the event, unless the core logs it itself with more detail.
    fn log(&self) {
        match self {
            Self::MoveBegan(record) => log_move(record, "begun"),
            Self::MoveStepped(record) => {
                log_move(record, record.steps.last().map_or("", |at| &at.step))
            }
            Self::MoveEnded(record) => {
                let ending = record.ending.as_ref();
                let how = ending.map_or("ended", |ending| ending.how.as_str());
                let why = ending.and_then(|ending| ending.why.as_deref()).unwrap_or(&record.why);
                let (operation, guest, vf) = (record.operation, record.guest.as_str(), &record.vf);
                let (direction, ms) = (record.direction.as_str(), record.duration_ms);
                if how == How::Completed.as_str() {
                    tracing::info!(operation, direction, guest, %vf, duration_ms = ms, why, "{how}");
                } else {
                    tracing::warn!(operation, direction, guest, %vf, duration_ms = ms, why, "{how}");
                }
            }
            Self::Decided { moves, deferred, duration_ms } => {
                tracing::debug!(moves, deferred, duration_ms, "decided");
            }
            Self::GuestAppeared { guest, kind } => {
                tracing::info!(guest = guest.as_str(), ?kind, "managed from now on");
            }
            Self::GuestGone { guest } => tracing::info!(guest = guest.as_str(), "gone"),
            Self::GuestMarked { guest, why } => {
                tracing::warn!(guest = guest.as_str(), why, "marked");
            }
            Self::GuestUnmarked { guest } => tracing::info!(guest = guest.as_str(), "well again"),
            Self::VfQuarantined { vf, why } => tracing::warn!(%vf, why, "quarantined"),
            Self::Link { pf, up: true } => tracing::info!(pf = pf.as_str(), "has a link again"),
            Self::Link { pf, up: false } => tracing::warn!(pf = pf.as_str(), "has lost its link"),
            Self::Requested { request, caller, what } => tracing::info!(request, caller, "{what}"),
            Self::Error(_) | Self::Stopping { .. } => {}
        }
    }
}

fn log_move(record: &MoveRecord, what: &str) {
    let (operation, guest, vf) = (record.operation, record.guest.as_str(), &record.vf);
    tracing::debug!(operation, direction = record.direction.as_str(), guest, %vf, "{what}");
}

/// The core's ends.
#[derive(Debug)]
pub struct CoreEnds {
    /// Requests; `recv_timeout` is the core's sleep.
    pub requests: mpsc::Receiver<Envelope>,
    /// Where the status is published.
    pub status: watch::Sender<Arc<Status>>,
    /// Where events are emitted.
    pub events: broadcast::Sender<Event>,
}

impl CoreEnds {
    /// Publishes the status.
    pub fn publish(&self, status: Status) {
        self.status.send_replace(Arc::new(status));
    }

    /// Emits an event to the log and to all subscribers. Without subscribers it is dropped.
    pub fn emit(&self, event: Event) {
        event.log();
        drop(self.events.send(event));
    }
}

/// The HTTP server's ends.
#[derive(Debug, Clone)]
pub struct HttpEnds {
    /// Where requests go; full: the core is busy.
    pub requests: mpsc::SyncSender<Envelope>,
    /// The status.
    pub status: watch::Receiver<Arc<Status>>,
    /// Subscribe here to events.
    pub events: broadcast::Sender<Event>,
}

/// The channels between core and http: both ends.
pub fn ends(first: Status) -> (CoreEnds, HttpEnds) {
    let (ask, requests) = mpsc::sync_channel(REQUESTS_WAITING);
    let (publish, status) = watch::channel(Arc::new(first));
    let (events, _) = broadcast::channel(EVENTS_KEPT);
    let core = CoreEnds { requests, status: publish, events: events.clone() };
    (core, HttpEnds { requests: ask, status, events })
}
