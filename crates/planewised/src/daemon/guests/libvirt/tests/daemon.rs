//! A daemon over a made-up libvirt: what dies with a kill, and what a test asks of it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pw_alloc::evidence::User;
use pw_alloc::execute::{Action, Failure, Operation};
use pw_alloc::journal::{Ending, Entry, Ledger};
use pw_alloc::model::{GuestId, Mac};
use pw_alloc::plan::{Direction, Move, Reason};
use pw_alloc::recover::{Recovery, recover};
use pw_alloc::signal::Sample;
use pw_alloc::step::{Join, Step};
use pw_alloc::world::{HostState, VfPlace};

use super::super::agent::Agents;
use super::super::api::Libvirt;
use super::super::simulated::{Simulated, vf};
use super::super::watch::{Board, Watcher};
use super::super::{Guests, Machines};
use crate::daemon::guests::Managed;
use crate::daemon::pool::PoolView;
use crate::daemon::tasks::Executor;

/// A step has so long here; a guest that behaves needs none of it.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// And so long where a guest does not answer.
pub const BRIEFLY: Duration = Duration::from_millis(60);

/// A daemon's part of it all: what dies with a kill.
pub struct Daemon {
    pub simulated: Simulated,
    pub machines: Machines,
    pub agents: Arc<Agents>,
    watcher: Watcher,
    pub patience: Duration,
}

impl Daemon {
    pub fn on(simulated: &Simulated) -> Self {
        let (libvirt, host) = (simulated.another(), Box::new(simulated.clone()));
        let (board, agents) = (Arc::<Mutex<Board>>::default(), Arc::<Agents>::default());
        let watcher = Watcher::new(libvirt.another());
        let machines = Machines::with(libvirt, board, agents.clone(), host);
        let simulated = simulated.clone();
        Self { simulated, machines, agents, watcher, patience: PATIENCE }
    }

    /// The watcher reads what has changed.
    pub fn watch(&mut self) {
        self.watcher.turn(&self.machines.board, Duration::ZERO);
    }

    /// The agents are asked, all of them.
    pub fn ask_agents(&mut self) {
        self.agents.poll(&mut *self.simulated.another(), Instant::now() + PATIENCE);
    }

    pub fn pool(&mut self) -> PoolView {
        self.simulated.read().expect("a made-up pool")
    }

    pub fn managed(&mut self) -> Vec<Managed> {
        self.watch();
        let pool = self.pool();
        self.machines.discover(&pool).expect("it is there")
    }

    pub fn samples(&mut self) -> Vec<(GuestId, Sample)> {
        let pool = self.pool();
        let mut samples = Vec::new();
        self.machines.sample(1_000_000, &pool, &mut samples);
        samples
    }

    pub fn perform(&mut self, step: &Step) -> Result<(), Failure> {
        let pool = self.pool();
        let deadline = Instant::now() + self.patience;
        match step.guest() {
            None => self.simulated.perform(step, &pool, deadline),
            Some(guest) => self.executor(guest)?.perform(step, &pool, deadline),
        }
    }

    /// What moves a machine's VF, by what is known now.
    pub fn executor(&mut self, guest: &GuestId) -> Result<Box<dyn Executor>, Failure> {
        // A daemon looks before each sample; a libvirt that is away leaves what was known.
        self.watch();
        let pool = self.pool();
        drop(self.machines.discover(&pool));
        self.machines.executor(guest)
    }

    /// One move; the journal's lines.
    pub fn make(&mut self, change: Move, lines: &mut Vec<Entry>) -> Ending {
        self.make_until(change, lines, |_, _| false).expect("nobody kills it")
    }

    /// The same; none: it was killed before an action.
    pub fn make_until(
        &mut self,
        change: Move,
        lines: &mut Vec<Entry>,
        mut killed: impl FnMut(&Simulated, &Action) -> bool,
    ) -> Option<Ending> {
        let mac = self
            .simulated
            .world()
            .machines
            .values()
            .find(|one| GuestId::from(one.name.as_str()) == change.guest)
            .map_or(Mac::NONE, |one| one.mac);
        let mut execution = Operation::of_move(lines.len() as u64, change, mac, Join::Failover);
        loop {
            let action = execution.next_action();
            if killed(&self.simulated, &action) {
                return None;
            }
            match action {
                Action::Write(entry) => lines.push(entry),
                Action::Do(step) => {
                    let result = self.perform(&step);
                    drop(execution.report(result));
                }
                Action::Finished => return execution.ending().cloned(),
            }
        }
    }

    pub fn give(&mut self, n: u16, index: u16) -> Ending {
        self.make(change(Direction::Give, n, index), &mut Vec::new())
    }

    pub fn take(&mut self, n: u16, index: u16) -> Ending {
        self.make(change(Direction::Take, n, index), &mut Vec::new())
    }

    /// The whole world as a start of the daemon finds it.
    pub fn find(&mut self) -> HostState {
        self.watch();
        let pool = self.pool();
        let mut found = found(&mut self.machines, &pool);
        assert_eq!(found.gaps, Vec::<String>::new(), "libvirt is there");
        // As the core does: whoever released a VF meanwhile does not have it any more.
        let pool = self.pool();
        for (id, vf) in &pool.vfs {
            found.vfs.entry(id.clone()).or_insert(pw_alloc::world::VfPlacement {
                mac: vf.mac,
                place: match &vf.user {
                    User::Nobody => VfPlace::Pool,
                    User::Host(why) | User::Guest(why) => VfPlace::Foreign(why.clone()),
                    User::Unknown(why) => VfPlace::Unknown(why.clone()),
                },
            });
        }
        found
    }

    /// Recovers everything; `ledger` is as its lines have it afterwards.
    pub fn recover(&mut self, ledger: &mut Ledger) -> Vec<Recovery> {
        let recovered = recover(ledger, &self.find(), None);
        // The daemon's first look.
        drop(self.managed());
        for part in &recovered {
            for step in &part.steps {
                self.perform(step).expect("what recovery does can be done");
            }
            ledger.apply(&part.settled(0));
        }
        recovered
    }
}

/// What of the world is the machines'.
pub fn found(machines: &mut Machines, pool: &PoolView) -> HostState {
    machines.find(pool)().expect("a gap, if anything")
}

pub fn change(direction: Direction, n: u16, index: u16) -> Move {
    Move { direction, guest: format!("m{n}").into(), vf: vf(index), reason: Reason::Turn }
}

pub fn holder(simulated: &Simulated, index: u16) -> Option<String> {
    let world = simulated.world();
    let address = world.vfs[&vf(index)].address;
    let holds =
        |one: &&super::super::simulated::Machine| one.vfs.iter().any(|vf| vf.address == address);
    world.machines.values().find(holds).map(|one| one.name.clone())
}
