//! Keeps the known domains up to date by libvirt's events, and reads all of them when events may have been
//! missed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pw_sriov::address::PciAddress;

use super::api::{Domain, Event, Libvirt, Refusal, Uuid, Why};
use super::domain::{self, Described};

/// Time limit of background queries.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two attempts to reach a libvirt that is away.
const PAUSE: Duration = Duration::from_secs(1);

/// A running domain and its live XML.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningDomain {
    /// The domain.
    pub domain: Domain,
    /// Its parsed XML, or why that failed.
    pub described: Result<Described, String>,
}

/// The known state.
#[derive(Debug, Clone, Default)]
pub struct Board {
    /// Domains that run.
    pub domains: BTreeMap<Uuid, Arc<RunningDomain>>,
    /// PCI functions that domains which do not run have in their configurations, with their names.
    pub reserved: BTreeMap<PciAddress, String>,
    /// Counts up with every change.
    pub version: u64,
    /// Why libvirt does not answer; none when it does.
    pub trouble: Option<Refusal>,
    /// Devices that guests refused to release, and how often.
    pub refusals: BTreeMap<(Uuid, String), u32>,
    /// Never read yet.
    pub empty: bool,
}

/// The watcher's shared part.
pub struct Watch {
    libvirt: Arc<dyn Libvirt>,
    board: Mutex<Board>,
    changed: Condvar,
    /// Domains to read; `None`: all.
    stale: Mutex<Option<BTreeSet<Uuid>>>,
    threaded: bool,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// Locks, also after a panic of another holder.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Watches in a thread of its own, which ends with the last owner.
    pub fn start(libvirt: Arc<dyn Libvirt>) -> Arc<Self> {
        let watch = Arc::new(Self::with(libvirt, true));
        let weak: Weak<Self> = Arc::downgrade(&watch);
        let run = move || {
            while let Some(watch) = weak.upgrade() {
                watch.turn(PAUSE);
                let away = lock(&watch.board).trouble.is_some();
                drop(watch);
                if away {
                    std::thread::sleep(PAUSE);
                }
            }
        };
        // Without the thread every query asks libvirt itself, which is slower.
        if std::thread::Builder::new().name("libvirt-watch".into()).spawn(run).is_err() {
            return Arc::new(Self::with(Arc::clone(&watch.libvirt), false));
        }
        watch
    }

    /// Watches only when it is queried.
    pub fn idle(libvirt: Arc<dyn Libvirt>) -> Arc<Self> {
        Arc::new(Self::with(libvirt, false))
    }

    fn with(libvirt: Arc<dyn Libvirt>, threaded: bool) -> Self {
        Self {
            libvirt,
            board: Mutex::new(Board { empty: true, ..Board::default() }),
            changed: Condvar::new(),
            stale: Mutex::new(None),
            threaded,
        }
    }

    /// The known state. Without a thread it is read first.
    pub fn board(&self) -> MutexGuard<'_, Board> {
        if !self.threaded {
            self.turn(Duration::ZERO);
        }
        lock(&self.board)
    }

    /// Waits for a change, at most this long.
    pub fn pause(&self, wait: Duration) {
        if self.threaded {
            let board = lock(&self.board);
            drop(self.changed.wait_timeout(board, wait));
        } else {
            self.turn(wait);
        }
    }

    /// One turn: waits for events, and reads their domains.
    fn turn(&self, wait: Duration) {
        if let Err(refusal) = self.libvirt.connect() {
            let mut board = lock(&self.board);
            if board.trouble.is_none() {
                board.version += 1;
            }
            board.trouble = Some(refusal);
            drop(board);
            *lock(&self.stale) = None;
            self.changed.notify_all();
            return;
        }
        let pending = lock(&self.stale).as_ref().is_none_or(|stale| !stale.is_empty());
        let events = self.libvirt.events(if pending { Duration::ZERO } else { wait });
        let quiet = events.is_empty();
        for event in events {
            self.note(event);
        }
        self.read_stale(quiet);
    }

    fn note(&self, event: Event) {
        let mut stale = lock(&self.stale);
        let uuid = match &event {
            Event::Connected | Event::Lost => {
                *stale = None;
                return;
            }
            Event::Changed(uuid)
            | Event::DeviceRemoved { uuid, .. }
            | Event::RemovalFailed { uuid, .. } => *uuid,
        };
        if let Some(stale) = stale.as_mut() {
            stale.insert(uuid);
        }
        drop(stale);
        if let Event::RemovalFailed { uuid, alias } = event {
            *lock(&self.board).refusals.entry((uuid, alias)).or_default() += 1;
        }
    }

    fn read_stale(&self, quiet: bool) {
        let stale = lock(&self.stale).replace(BTreeSet::new());
        if quiet && stale.as_ref().is_some_and(BTreeSet::is_empty) {
            return;
        }
        let read = read(&*self.libvirt, stale.as_ref())
            .and_then(|domains| Ok((domains, reserved(&*self.libvirt)?)));
        match read {
            Ok((domains, reserved)) => {
                let mut board = lock(&self.board);
                if stale.is_none() {
                    board.domains.clear();
                }
                for uuid in stale.iter().flatten() {
                    board.domains.remove(uuid);
                }
                board.domains.extend(domains);
                board.reserved = reserved;
                board.trouble = None;
                board.empty = false;
                board.version += 1;
                let running: BTreeSet<Uuid> = board.domains.keys().copied().collect();
                board.refusals.retain(|(uuid, _), _| running.contains(uuid));
            }
            Err(refusal) => {
                *lock(&self.stale) = None;
                let mut board = lock(&self.board);
                board.trouble = Some(refusal);
                board.version += 1;
            }
        }
        self.changed.notify_all();
    }
}

/// Reads these domains, or all.
fn read(
    libvirt: &dyn Libvirt,
    stale: Option<&BTreeSet<Uuid>>,
) -> Result<Vec<(Uuid, Arc<RunningDomain>)>, Refusal> {
    let deadline = Instant::now() + PATIENCE;
    let mut domains = libvirt.domains(deadline)?;
    if let Some(stale) = stale {
        domains.retain(|domain| stale.contains(&domain.uuid));
    }
    let running = describe(libvirt, domains, deadline)?;
    Ok(running.into_iter().map(|running| (running.domain.uuid, Arc::new(running))).collect())
}

/// The functions that domains which do not run will take when they start.
fn reserved(libvirt: &dyn Libvirt) -> Result<BTreeMap<PciAddress, String>, Refusal> {
    let mut reserved = BTreeMap::new();
    for (name, text) in libvirt.configured(Instant::now() + PATIENCE)? {
        let functions = domain::read(&text).map(|read| read.functions).unwrap_or_default();
        reserved.extend(functions.into_iter().map(|function| (function.address, name.clone())));
    }
    Ok(reserved)
}

/// Reads and parses the live XML of domains; those that are gone meanwhile are left out.
pub fn describe(
    libvirt: &dyn Libvirt,
    domains: Vec<Domain>,
    deadline: Instant,
) -> Result<Vec<RunningDomain>, Refusal> {
    let texts = libvirt.xml(&domains, deadline)?;
    Ok(domains
        .into_iter()
        .zip(texts)
        .filter_map(|(domain, text)| match text {
            Ok(text) => Some(RunningDomain { domain, described: domain::read(&text) }),
            Err(Refusal { why: Why::NoDomain, .. }) => None,
            Err(refusal) => Some(RunningDomain { domain, described: Err(refusal.words) }),
        })
        .collect())
}
