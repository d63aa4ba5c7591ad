//! Keeps the known domains up to date by libvirt's events, and reads all of them when events may have been
//! missed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pw_error::{Error, Result};
use pw_sriov::address::PciAddress;

use super::api::{Answer, Domain, Libvirt, Refusal, Uuid, Why};
use super::domain::{self, Described};

/// Time limit of background queries.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two attempts to reach a libvirt that is away; the longest wait for an event.
const PAUSE: Duration = Duration::from_secs(1);

/// A running domain and its live XML.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningDomain {
    /// The domain.
    pub domain: Domain,
    /// Its parsed XML, or why that failed.
    pub described: std::result::Result<Described, String>,
}

/// The known state.
#[derive(Debug, Clone, Default)]
pub struct Board {
    /// Domains that run.
    pub domains: BTreeMap<Uuid, Arc<RunningDomain>>,
    /// PCI functions that domains which do not run have in their configurations, with their names.
    pub reserved: BTreeMap<PciAddress, String>,
    /// Why libvirt does not answer; none when it does.
    pub trouble: Option<Refusal>,
    /// It was read at least once.
    pub read: bool,
}

/// Locks, also after a panic of another holder.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches in a thread of its own, which ends with the last owner of the board.
pub(super) fn start(libvirt: Box<dyn Libvirt>) -> Result<Arc<Mutex<Board>>> {
    let board = Arc::new(Mutex::new(Board::default()));
    let (weak, mut watcher) = (Arc::downgrade(&board), Watcher::new(libvirt));
    let run = move || {
        while let Some(board) = weak.upgrade() {
            watcher.turn(&board, PAUSE);
            let away = lock(&board).trouble.is_some();
            drop(board);
            if away {
                std::thread::sleep(PAUSE);
            }
        }
    };
    std::thread::Builder::new().name("libvirt".into()).spawn(run).map_err(|error| {
        Error::failed("cannot start the thread that watches libvirt", "free memory or processes")
            .caused_by(error)
    })?;
    Ok(board)
}

/// Reads domains as they change.
pub(super) struct Watcher {
    libvirt: Box<dyn Libvirt>,
    /// Domains to read; `None`: all.
    stale: Option<BTreeSet<Uuid>>,
}

impl Watcher {
    pub(super) fn new(libvirt: Box<dyn Libvirt>) -> Self {
        Self { libvirt, stale: None }
    }

    /// One turn: waits for events, and reads their domains.
    pub(super) fn turn(&mut self, board: &Mutex<Board>, wait: Duration) {
        if let Err(refusal) = self.update(board, wait) {
            self.stale = None;
            lock(board).trouble = Some(refusal);
        }
    }

    fn update(&mut self, board: &Mutex<Board>, wait: Duration) -> Answer<()> {
        if self.libvirt.connect()? {
            self.stale = None;
        }
        let wait = if self.stale.is_none() { Duration::ZERO } else { wait };
        let events = self.libvirt.events(wait)?;
        if let Some(stale) = &mut self.stale {
            stale.extend(events.iter().map(|event| event.uuid));
            if stale.is_empty() {
                return Ok(());
            }
        }
        let deadline = Instant::now() + PATIENCE;
        let mut domains = self.libvirt.domains(deadline)?;
        if let Some(stale) = &self.stale {
            domains.retain(|domain| stale.contains(&domain.uuid));
        }
        let running = describe(&mut *self.libvirt, domains, deadline)?;
        // What domains which do not run will take when they start.
        let mut reserved = BTreeMap::new();
        for (name, text) in self.libvirt.configured(deadline)? {
            let functions = domain::read(&text).map(|read| read.functions).unwrap_or_default();
            reserved.extend(functions.into_iter().map(|function| (function.address, name.clone())));
        }
        let mut board = lock(board);
        match self.stale.replace(BTreeSet::new()) {
            Some(stale) => board.domains.retain(|uuid, _| !stale.contains(uuid)),
            None => board.domains.clear(),
        }
        let running = running.into_iter().map(|one| (one.domain.uuid, Arc::new(one)));
        board.domains.extend(running);
        (board.reserved, board.trouble, board.read) = (reserved, None, true);
        Ok(())
    }
}

/// Reads and parses the live XML of domains; those that are gone meanwhile are left out.
pub(super) fn describe(
    libvirt: &mut dyn Libvirt,
    domains: Vec<Domain>,
    deadline: Instant,
) -> Answer<Vec<RunningDomain>> {
    let mut running = Vec::with_capacity(domains.len());
    for domain in domains {
        let described = match libvirt.xml(&domain, deadline) {
            Ok(text) => domain::read(&text),
            Err(Refusal { why: Why::NoDomain, .. }) => continue,
            Err(refusal) if matches!(refusal.why, Why::Gone | Why::Late) => return Err(refusal),
            Err(refusal) => Err(refusal.words),
        };
        running.push(RunningDomain { domain, described });
    }
    Ok(running)
}
