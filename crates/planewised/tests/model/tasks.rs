//! Simulated executors, journal and chance: what a step takes, what a kill leaves half done, and what no step
//! may ever do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use planewised::daemon::journal::Storage;
use planewised::daemon::simulated::World;
use planewised::daemon::tasks::{Outcome, Report, Task, TaskRunner, Work};
use pw_alloc::execute::Failure;
use pw_alloc::journal::{self, Entry};
use pw_alloc::model::{GuestId, VfId};
use pw_alloc::step::Step;
use pw_alloc::world::VfPlace;

/// How long a step may take [ms], as the core's configuration has it.
pub const STEP_TIMEOUT_MS: u64 = 30_000;
/// A VF that has been in other hands for so long must have been seen there [ms].
const SEEN_MS: u64 = 4_000;

/// The same numbers from the same seed (xorshift64*).
#[derive(Debug, Clone, Default)]
pub struct Chance(u64);

impl Chance {
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15))
    }

    /// A number below `limit`.
    pub const fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// What is shared by the core's crew, its journal and the test.
#[derive(Default)]
pub struct Shared {
    pub now_ms: u64,
    pub chance: Chance,
    pending: Vec<(u64, Waiting)>,
    /// The journal's bytes.
    pub text: Vec<u8>,
    /// The last step that the journal announces, by operation.
    intents: BTreeMap<u64, Step>,
    /// When the first step of each operation was begun [ms].
    begun_ms: BTreeMap<u64, u64>,
    /// The disk takes nothing more.
    pub full: bool,
    /// A fault put back: a full disk is taken for one that has written.
    pub full_is_unseen: bool,
    /// The kernel refuses every thread: what is to be begun waits.
    pub no_threads: bool,
    unbegun: Vec<Waiting>,
    /// Guests whose port no reading shows, since when [ms].
    pub unread_since_ms: BTreeMap<GuestId, u64>,
    /// Since when VFs are in other hands, or in hands of which nothing is known [ms].
    pub away_since_ms: BTreeMap<VfId, u64>,
    /// Guests that say that they have done what they have not.
    pub liars: BTreeSet<GuestId>,
    /// What must never be, in sentences.
    pub violations: Vec<String>,
    pub steps: u64,
    pub told: VecDeque<String>,
}

impl Shared {
    /// Can the daemon do nothing, whatever it decides?
    pub const fn is_stuck(&self) -> bool {
        self.full || self.no_threads
    }

    /// Keeps the last things that happened, to be told of when something breaks.
    pub fn tell(&mut self, what: String) {
        if self.told.len() >= 40 {
            self.told.pop_front();
        }
        self.told.push_back(what);
    }
}

/// A task on its way.
enum Waiting {
    /// Nobody has begun to perform it: the world changes when it ends.
    Task(Task),
    /// It has read the world, which may have changed when its report comes.
    Read(Report),
}

/// Simulated executors.
#[derive(Clone)]
pub struct Made {
    shared: Arc<Mutex<Shared>>,
    world: World,
}

impl Made {
    pub fn new(world: World, seed: u64) -> Self {
        let shared = Shared { chance: Chance::new(seed ^ 0x5eed), ..Shared::default() };
        Self { shared: Arc::new(Mutex::new(shared)), world }
    }

    pub fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The daemon is killed: of each step under way nothing is done, half of it, or all.
    pub fn kill(&self) {
        let pending = std::mem::take(&mut self.shared().pending);
        for (_, waiting) in pending {
            let Waiting::Task(task) = waiting else { continue };
            let Work::Step { step, .. } = &task.work else { continue };
            match self.shared().chance.below(3) {
                0 => {}
                1 => {
                    let _ = self.world.with(|host| host.host.perform_until(step, true));
                }
                _ => drop(task.perform()),
            }
        }
        let mut shared = self.shared();
        shared.intents.clear();
        shared.begun_ms.clear();
        shared.unbegun.clear();
    }

    /// Does a task, as far as its guest does not lie and executors that look first let it be done.
    fn perform(&self, task: Task) -> Report {
        let Work::Step { step, .. } = &task.work else { return task.perform() };
        let outcome = match step {
            Step::Detach { guest, .. } | Step::AwaitPath { guest, .. }
                if self.shared().liars.contains(guest) =>
            {
                Ok(())
            }
            Step::Reserve { vf, .. }
            | Step::SetMac { vf, .. }
            | Step::ClearMac { vf }
            | Step::Reset { vf } => match self.world.state().vfs.get(vf).map(|vf| &vf.place) {
                Some(VfPlace::Guest(guest)) => {
                    let why = format!("{vf} is left alone: {guest} has it");
                    Err(Failure { why, guest_silent: false })
                }
                _ => return self.perform_on_pool(task),
            },
            _ => return task.perform(),
        };
        Report { number: task.number, outcome: Outcome::Step(outcome), took: Duration::ZERO }
    }

    /// Does a step of a VF that no guest has.
    fn perform_on_pool(&self, task: Task) -> Report {
        let reserved = match &task.work {
            Work::Step { step: Step::Reserve { vf, .. }, .. } => Some(vf.clone()),
            _ => None,
        };
        let report = task.perform();
        if let Some(vf) = reserved
            && matches!(report.outcome, Outcome::Step(Ok(())))
            && self.world.with(|host| host.tagged.contains(&vf))
        {
            let what = format!("{vf} is given with the operator's VLAN");
            self.shared().violations.push(what);
        }
        report
    }

    /// What no step may do, as it is about to change the world.
    fn check(&self, number: u64, step: &Step) {
        let found = self.world.state();
        let mut shared = self.shared();
        shared.steps += 1;
        let told = format!("{} ms, operation {number}: {step}", shared.now_ms);
        shared.tell(told);
        let now_ms = shared.now_ms;
        let begun_ms = *shared.begun_ms.entry(number).or_insert(now_ms);
        if shared.intents.get(&number) != Some(step) {
            shared.violations.push(format!("to {step} is not in the journal"));
        }
        if let Step::Reserve { guest, .. } = step
            && let Some(since_ms) = shared.unread_since_ms.get(guest)
            && begun_ms.saturating_sub(*since_ms) > SEEN_MS
            && self.world.with(|host| host.unread.contains(guest) && host.silent.is_none())
        {
            shared.violations.push(format!("{step}, of whose network nothing is known"));
        }
        let Some(vf) = step.vf() else { return };
        let Some(place) = found.vfs.get(vf).map(|vf| vf.place.clone()) else { return };
        match (step, &place) {
            (Step::Attach { guest, .. }, VfPlace::Guest(other)) if guest != other => {
                shared.violations.push(format!("{vf} of {other} is given to {guest}"));
            }
            (
                Step::Reserve { .. }
                | Step::SetMac { .. }
                | Step::ClearMac { .. }
                | Step::Reset { .. }
                | Step::Recall { .. },
                VfPlace::Guest(guest),
            ) if !shared.liars.contains(guest) => {
                shared.violations.push(format!("{step}, which {guest} has"));
            }
            // A move or a recovery that was under way before meets executors that refuse; one that is begun
            // when it has long been seen should not have been.
            (
                Step::Reserve { .. }
                | Step::SetMac { .. }
                | Step::ClearMac { .. }
                | Step::Reset { .. }
                | Step::Recall { .. }
                | Step::Attach { .. },
                VfPlace::Foreign(_) | VfPlace::Unknown(_),
            ) => {
                let since = shared.away_since_ms.get(vf).copied().unwrap_or(u64::MAX);
                if begun_ms.saturating_sub(since) > SEEN_MS {
                    shared.violations.push(format!("{step}, which is not ours: {place:?}"));
                }
            }
            _ => {}
        }
    }
}

impl TaskRunner for Made {
    fn begin(&mut self, task: Task) {
        if let Work::Step { step, .. } = &task.work {
            self.check(task.number, step);
        }
        if self.shared().no_threads {
            return self.shared().unbegun.push(Waiting::Task(task));
        }
        self.start(task);
    }

    fn ended(&mut self, now_ms: u64) -> Vec<Report> {
        if !self.shared().no_threads {
            let unbegun = std::mem::take(&mut self.shared().unbegun);
            for waiting in unbegun {
                if let Waiting::Task(task) = waiting {
                    self.start(task);
                }
            }
        }
        let due: Vec<Waiting> = {
            let mut shared = self.shared();
            let pending = std::mem::take(&mut shared.pending);
            let (mut due, later): (Vec<_>, Vec<_>) =
                pending.into_iter().partition(|(end_ms, _)| *end_ms <= now_ms);
            shared.pending = later;
            due.sort_by_key(|(end_ms, _)| *end_ms);
            due.into_iter().map(|(_, waiting)| waiting).collect()
        };
        due.into_iter()
            .map(|waiting| match waiting {
                Waiting::Task(task) => {
                    Report { took: Duration::from_millis(300), ..self.perform(task) }
                }
                Waiting::Read(report) => report,
            })
            .collect()
    }
}

impl Made {
    /// A thread begins a task.
    fn start(&self, task: Task) {
        let takes_ms = match &task.work {
            Work::Step { step, .. } => {
                let found = self.world.state();
                let silent = step.guest().and_then(|guest| found.guests.get(guest));
                match silent {
                    Some(guest) if !guest.answers => STEP_TIMEOUT_MS,
                    // Now and then one takes almost until its deadline, and is done all the same.
                    _ if self.shared().chance.below(50) == 0 => {
                        self.shared().chance.below(STEP_TIMEOUT_MS)
                    }
                    _ => self.shared().chance.below(900),
                }
            }
            Work::Find(_) | Work::Adopt(_) => self.shared().chance.below(3_000),
            // Now and then a namespace has ten thousand interfaces.
            Work::Read(_) if self.shared().chance.below(50) == 0 => 6_000,
            Work::Read(_) => self.shared().chance.below(1_000),
        };
        let waiting = match task.work {
            Work::Read(_) => Waiting::Read(task.perform()),
            _ => Waiting::Task(task),
        };
        let mut shared = self.shared();
        let end_ms = shared.now_ms + takes_ms;
        shared.pending.push((end_ms, waiting));
    }
}

/// A journal in memory, on a disk that may be full.
pub struct Disk(pub Made);

impl Storage for Disk {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut shared = self.0.shared();
        if shared.full {
            if shared.full_is_unseen {
                return Ok(());
            }
            shared.text.extend(&bytes[..bytes.len() / 2]);
            return Err(io::ErrorKind::StorageFull.into());
        }
        shared.text.extend(bytes);
        for entry in journal::read(bytes).entries {
            if let Entry::Intent { operation, step } = entry {
                shared.intents.insert(operation, step);
            }
        }
        Ok(())
    }

    fn truncate(&mut self, length_bytes: u64) -> io::Result<()> {
        self.0.shared().text.truncate(usize::try_from(length_bytes).unwrap_or(usize::MAX));
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut shared = self.0.shared();
        if shared.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        shared.text = bytes.to_vec();
        Ok(())
    }
}
