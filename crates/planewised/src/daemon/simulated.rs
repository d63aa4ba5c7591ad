//! A simulated host for tests: a pool and guests on one state (`pw_alloc::world`), with configured traffic,
//! and with guests and links that tests make fail.

mod guests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pw_alloc::evidence::User;
use pw_alloc::execute::{Failure, Performed};
use pw_alloc::model::{GuestId, Mac, PfId, VfId};
use pw_alloc::step::{Join, Path, Step};
use pw_alloc::traffic::{Flow, Traffic};
use pw_alloc::world::{GuestState, HostState, VfPlace, VfPlacement};
use pw_error::{Error, Result};

use crate::daemon::config::Simulated;
use crate::daemon::core::Host;
use crate::daemon::guests::source::Source;
use crate::daemon::pool::{Addresses, Pool, PoolPf, PoolVf, PoolView};
use crate::daemon::tasks::{Executor, InlineRunner, PoolReading, TaskRunner};

use self::guests::SimulatedGuests;

/// The PF of a simulated host.
pub const PF: &str = "simulated0";

/// A simulated host, shared by its pool, its guests and the test that disturbs it.
#[derive(Debug, Clone, Default)]
pub struct World(Arc<Mutex<State>>);

/// Its state, and what is wrong with it.
#[derive(Debug, Default)]
pub struct State {
    /// Guests and VFs.
    pub host: HostState,
    /// What guests send.
    pub traffic: BTreeMap<GuestId, Sender>,
    /// The PF has no link.
    pub link_down: bool,
    /// VFs whose link is down while their PF's is up.
    vf_links_down: BTreeSet<VfId>,
    /// VFs that the operator put into a VLAN.
    pub tagged: BTreeSet<VfId>,
    /// VFs in the configuration of a machine that does not run.
    pub reserved: BTreeSet<VfId>,
    /// Guests whose port no reading shows yet.
    pub unread: BTreeSet<GuestId>,
    /// What a pod sends.
    pod_traffic: Option<Traffic>,
    /// Guests that are still to be adopted.
    pub to_adopt: BTreeSet<GuestId>,
    /// Guests in which no VF comes up.
    pub refusing: BTreeSet<GuestId>,
    /// Guests that the host filters.
    pub barred: BTreeSet<GuestId>,
    /// Samples in which no VF is visible on the host.
    pub unseen: u32,
    samples_at_ms: Option<u64>,
    next_guest: u64,
    /// The number of each guest's run; never reused.
    incarnations: BTreeMap<GuestId, u64>,
    runs: u64,
    /// Why the guests cannot be surveyed.
    pub silent: Option<String>,
    /// The PF's driver is unloaded: there is neither PF nor VF.
    pf_away: bool,
    /// The injected fault of observation.
    pub fault: Option<Fault>,
    /// The addresses last passed to the pool.
    addresses: Addresses,
}

impl State {
    /// Why guests may be missing.
    fn gap(&self) -> Option<String> {
        if self.silent.is_some() {
            return self.silent.clone().filter(|_| self.fault != Some(Fault::SilentIsEmpty));
        }
        let missing = self.to_adopt.iter().find(|id| self.host.guests.contains_key(*id));
        missing.map(|id| format!("{id} could not be adopted again yet"))
    }

    /// A run of this guest begins.
    fn started(&mut self, guest: GuestId) {
        self.runs += 1;
        self.incarnations.insert(guest, self.runs);
    }
}

/// A fault of observation, reintroduced to show that tests notice it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A VF with an unknown user counts as unused.
    UnknownIsNobody,
    /// Unknown guests count as none.
    SilentIsEmpty,
    /// A bond that fell back by itself counts as one that sends by its VF, whose link nobody looks at.
    FallbackUnseen,
    /// Settings of the operator's count as defaults.
    TagUnseen,
    /// A guest whose network is not known yet may get any VF.
    UnreadIsAny,
}

/// A guest's traffic.
#[derive(Debug)]
pub struct Sender {
    flow: Flow,
    packets: f64,
    bytes: f64,
    /// The rate that the guest reports, when it lies; the host then counts nothing.
    pub claims_pps: Option<f64>,
    claimed: f64,
}

impl World {
    /// The host of a configuration.
    pub fn new(config: &Simulated) -> Self {
        let world = Self::default();
        {
            let mut state = world.lock();
            for index in 0..config.vfs {
                let vf = VfPlacement { mac: Mac::NONE, place: VfPlace::Pool };
                state.host.vfs.insert(VfId::new(PF, index), vf);
            }
        }
        for (name, traffic) in &config.guests {
            world.add(name, *traffic);
        }
        world.lock().pod_traffic = config.pods;
        world
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes the host.
    pub fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.lock())
    }

    /// Changes a guest, if it is there.
    pub fn guest(&self, name: &str, change: impl FnOnce(&mut GuestState)) {
        self.with(|state| state.host.guests.get_mut(&GuestId::from(name)).map(change));
    }

    /// The guests whose addresses the pool has PFs take, and those for which executors do.
    pub fn addresses(&self) -> [Vec<GuestId>; 2] {
        let state = self.lock();
        let guests_with = |selects: &dyn Fn(&Mac) -> bool| {
            let guests = state.host.guests.iter().filter(|(_, guest)| selects(&guest.mac));
            guests.map(|(id, _)| id.clone()).collect()
        };
        [
            guests_with(&|mac| state.addresses.resting.contains_key(mac)),
            guests_with(&|mac| state.addresses.cared_for.contains(mac)),
        ]
    }

    /// Its pool and its guests, for the core; steps are performed at once.
    pub fn host(&self) -> Host {
        self.host_with(Box::new(InlineRunner::default()))
    }

    /// Its pool and its guests, with this runner of tasks.
    pub fn host_with(&self, tasks: Box<dyn TaskRunner>) -> Host {
        Host {
            pool: Box::new(SimulatedPool(self.clone())),
            kinds: vec![Box::new(SimulatedGuests::new(self.clone(), None))],
            tasks,
        }
    }

    /// The same host, whose guests are also the pods of this source.
    pub fn host_of(&self, pods: Option<Arc<dyn Source>>) -> Host {
        Host { kinds: vec![Box::new(SimulatedGuests::new(self.clone(), pods))], ..self.host() }
    }

    /// Starts a guest; if it runs already, only its traffic changes.
    pub fn add(&self, name: &str, traffic: Traffic) {
        if self.lock().traffic.contains_key(&GuestId::from(name)) {
            return self.send(name, traffic);
        }
        let mut state = self.lock();
        let number = state.next_guest;
        state.next_guest += 1;
        let [.., a, b, c, d] = number.to_be_bytes();
        let guest = GuestState {
            mac: Mac([2, 0x70, a, b, c, d]),
            join: Join::Bond,
            answers: true,
            paravirtual_up: true,
            vf_up: false,
            active: Path::Paravirtual,
            directed: Path::Paravirtual,
        };
        state.host.guests.insert(name.into(), guest);
        let source = Sender {
            flow: Flow::new(traffic, number),
            packets: 0.0,
            bytes: 0.0,
            claims_pps: None,
            claimed: 0.0,
        };
        state.traffic.insert(name.into(), source);
        state.started(name.into());
    }

    /// Cuts or restores the link of one VF, as `ip link set PF vf N state disable` does.
    pub fn vf_link(&self, vf: &VfId, up: bool) {
        let mut state = self.lock();
        let changed = if up {
            state.vf_links_down.remove(vf)
        } else {
            state.vf_links_down.insert(vf.clone())
        };
        let Some(VfPlace::Guest(guest)) = state.host.vfs.get(vf).map(|vf| vf.place.clone()) else {
            return;
        };
        if let Some(guest) = state.host.guests.get_mut(&guest).filter(|_| changed) {
            guest.vf_up = up;
            if !up && guest.active == Path::Vf(vf.clone()) {
                // Its kernel falls back by itself, and nobody moves its address.
                guest.active = Path::Paravirtual;
            }
        }
    }

    /// Restarts a guest between two samples: same name, same address; its VF is back with the host, with the
    /// address on it.
    pub fn restart(&self, name: &str) {
        let mut state = self.lock();
        let id = GuestId::from(name);
        state.host.restart(&id);
        state.started(id);
    }

    /// Puts a VF in a place: a user other than a guest, an unknown one, or none.
    pub fn place(&self, vf: &VfId, place: VfPlace) {
        if let Some(vf) = self.lock().host.vfs.get_mut(vf) {
            vf.place = place;
        }
    }

    /// Lets the kind of guests not answer (its daemon is away), or answer again.
    pub fn silence(&self, why: Option<&str>) {
        self.with(|state| state.silent = why.map(Into::into));
    }

    /// Unloads the PF's driver, and with it all VFs, or loads it again.
    pub fn reload_driver(&self, away: bool) {
        let mut state = self.lock();
        state.pf_away = away;
        let guests: Vec<GuestId> = state.host.guests.keys().cloned().collect();
        guests.iter().for_each(|guest| state.host.release(guest));
        for vf in state.host.vfs.values_mut() {
            *vf = VfPlacement { mac: Mac::NONE, place: VfPlace::Pool };
        }
    }

    /// Destroys a guest, with or without a VF.
    pub fn destroy(&self, name: &str, strands_vf: bool) {
        let mut state = self.lock();
        state.host.destroy(&name.into(), strands_vf);
        state.traffic.remove(&GuestId::from(name));
        state.incarnations.remove(&GuestId::from(name));
        state.refusing.remove(&GuestId::from(name));
        state.unread.remove(&GuestId::from(name));
    }

    /// Changes a guest's traffic.
    pub fn send(&self, name: &str, traffic: Traffic) {
        let mut state = self.lock();
        let now_s = state.samples_at_ms.unwrap_or(0) as f64 / 1e3;
        if let Some(source) = state.traffic.get_mut(&GuestId::from(name)) {
            source.flow.change(traffic, now_s);
        }
    }

    /// A copy of the host's state.
    pub fn state(&self) -> HostState {
        self.lock().host.clone()
    }

    fn do_step(&self, step: &Step) -> Performed {
        let mut state = self.lock();
        if let Step::AwaitPath { guest, vf } = step
            && (state.refusing.contains(guest) || state.vf_links_down.contains(vf))
        {
            return Err(Failure::new(format!("{vf} has no link in the guest")));
        }
        if let Step::Reserve { vf, .. } = step
            && state.tagged.contains(vf)
            && state.fault != Some(Fault::TagUnseen)
        {
            return Err(Failure::new(format!("{vf} is left alone: its PF sets VLAN 7 for it")));
        }
        if let Step::Reset { vf } = step {
            state.tagged.remove(vf);
        }
        let result = state.host.perform(step);
        result.map_err(|why| Failure { guest_silent: why.contains("does not answer"), why })
    }
}

impl State {
    /// Who uses a VF, and whether a managed guest may have left it behind.
    fn user_of(&self, place: &VfPlace) -> (User, bool) {
        let hidden = self.unseen > 0;
        match place {
            VfPlace::Unknown(_) if self.fault == Some(Fault::UnknownIsNobody) => {
                (User::Nobody, false)
            }
            // A process has it by VFIO: it has no interface that could be hidden.
            VfPlace::Foreign(why) => (User::Host(why.clone()), false),
            VfPlace::Unknown(why) => (User::Unknown(why.clone()), false),
            _ if hidden => {
                let why = "its interface is in no namespace that can be seen";
                (User::Unknown(why.to_owned()), true)
            }
            VfPlace::Pool => (User::Nobody, false),
            VfPlace::Guest(guest) => (User::Guest(format!("{guest} has it")), true),
            VfPlace::Lost => (User::Guest("a namespace of nobody has it".to_owned()), true),
        }
    }
}

impl Executor for World {
    fn perform(&mut self, step: &Step, _pool: &PoolView, _deadline: Instant) -> Performed {
        self.do_step(step)
    }
}

/// The VFs of a simulated host.
#[derive(Debug)]
pub struct SimulatedPool(World);

impl Pool for SimulatedPool {
    fn reading(&mut self) -> PoolReading {
        let world = self.0.clone();
        Box::new(move || world.read())
    }

    fn sample(&mut self, view: &mut PoolView) -> Result<()> {
        let state = self.0.lock();
        if state.pf_away {
            return match view.pfs.is_empty() {
                true => Ok(()),
                false => Err(Error::failed(format!("the PF {PF} has changed"), "")),
            };
        }
        view.pfs.values_mut().for_each(|pf| pf.link_up = !state.link_down);
        for (id, vf) in &state.host.vfs {
            if let Some(pool_vf) = view.vfs.get_mut(id) {
                (pool_vf.user, pool_vf.strayed) = state.user_of(&vf.place);
                pool_vf.mac = vf.mac;
                let down = state.vf_links_down.contains(id);
                let unseen = state.fault == Some(Fault::FallbackUnseen);
                pool_vf.link_up = !state.link_down && (!down || unseen);
                let tagged = state.tagged.contains(id) && state.fault != Some(Fault::TagUnseen);
                pool_vf.changed = tagged.then(|| "its PF sets VLAN 7 for it".to_owned());
            }
        }
        Ok(())
    }

    fn settle(&mut self, _view: &PoolView, managed: &Addresses) -> Result<()> {
        self.0.lock().addresses = managed.clone();
        Ok(())
    }

    fn executor(&self) -> Box<dyn Executor> {
        Box::new(self.0.clone())
    }
}

impl World {
    /// A reading of the pool, which `sample` completes.
    fn read(&self) -> Result<PoolView> {
        let mut state = self.lock();
        if state.pf_away {
            return Ok(PoolView { missing: vec![PF.into()], ..PoolView::default() });
        }
        let pf = PoolPf {
            index: 1,
            address: "ffff:00:00.0".parse()?,
            numa: None,
            link_up: !state.link_down,
            bridge: Some("simulated".into()),
        };
        let mut view = PoolView { pfs: [(PfId::from(PF), pf)].into(), ..PoolView::default() };
        for (id, vf) in &state.host.vfs {
            let (user, strayed) = state.user_of(&vf.place);
            let unused = PoolVf::unused("ffff:00:00.0".parse()?);
            let pool_vf = PoolVf { mac: vf.mac, link_up: false, user, strayed, ..unused };
            view.vfs.insert(id.clone(), pool_vf);
        }
        state.unseen = state.unseen.saturating_sub(1);
        Ok(view)
    }
}
