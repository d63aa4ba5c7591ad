//! A simulated host: a pool and guests on one state (`pw_alloc::world`), with configured traffic, and with
//! guests and links that tests make fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pw_alloc::evidence::User;
use pw_alloc::execute::{Failure, Performed};
use pw_alloc::model::{GuestId, Mac, Origin, PfId, VfId};
use pw_alloc::signal::{Counters, Reading, Sample};
use pw_alloc::step::{Join, Path, Step};
use pw_alloc::traffic::{Flow, Traffic};
use pw_alloc::world::{GuestState, HostState, VfPlace, VfPlacement};
use pw_error::{Error, Result};

use crate::daemon::config::Simulated;
use crate::daemon::core::Host;
use crate::daemon::guests::source::{Container, KnownContainers, Source};
use crate::daemon::guests::{Discovery, Finding, Guests, Managed};
use crate::daemon::pool::{Addresses, Pool, PoolPf, PoolVf, PoolView};
use crate::daemon::status::GuestKind;
use crate::daemon::tasks::{Executor, InlineRunner, TaskRunner};

/// The PF of a made-up host.
pub const PF: &str = "simulated0";

/// A simulated host, shared by its pool, its guests and the test that disturbs it.
#[derive(Debug, Clone, Default)]
pub struct World(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    host: HostState,
    traffic: BTreeMap<GuestId, Sender>,
    link_down: bool,
    /// What a pod sends.
    pod_traffic: Option<Traffic>,
    /// Guests in which no VF comes up.
    refusing: BTreeSet<GuestId>,
    /// Guests that the host filters.
    barred: BTreeSet<GuestId>,
    /// Samples in which no VF is visible on the host.
    unseen: u32,
    /// Guests were added or removed, or something about them changed.
    changed: bool,
    samples_at_ms: Option<u64>,
    next_guest: u64,
    /// The number of each guest's run; never reused.
    incarnations: BTreeMap<GuestId, u64>,
    runs: u64,
    /// Why the guests cannot be surveyed.
    silent: Option<String>,
    /// The PF's driver is unloaded: there is neither PF nor VF.
    pf_away: bool,
    /// The injected fault of observation.
    fault: Option<Fault>,
    /// The addresses last passed to the pool.
    addresses: Addresses,
}

impl State {
    /// A run of this guest begins.
    fn started(&mut self, guest: GuestId) {
        self.runs += 1;
        self.incarnations.insert(guest, self.runs);
        self.changed = true;
    }
}

/// A fault of observation, reintroduced to show that tests notice it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A VF with an unknown user counts as unused.
    UnknownIsNobody,
    /// Unknown guests count as none.
    SilentIsEmpty,
}

#[derive(Debug)]
struct Sender {
    flow: Flow,
    packets: f64,
    bytes: f64,
    /// The rate that the guest reports, when it lies; the host then counts nothing.
    claims_pps: Option<f64>,
    claimed: f64,
}

impl World {
    /// The host of a configuration.
    pub fn new(config: &Simulated) -> Self {
        let world = Self::default();
        {
            let mut state = world.lock();
            for index in 0..config.vfs {
                let vf = VfPlacement { mac: Mac::ZERO, place: VfPlace::Pool };
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
        // The first discovery returns all guests.
        self.lock().changed = true;
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

    /// Filters a guest's frames on the host from now on.
    pub fn bars(&self, name: &str) {
        let mut state = self.lock();
        state.barred.insert(name.into());
        state.changed = true;
    }

    /// Changes a guest's address.
    pub fn address(&self, name: &str, mac: Mac) {
        let mut state = self.lock();
        if let Some(guest) = state.host.guests.get_mut(&GuestId::from(name)) {
            guest.mac = mac;
            state.changed = true;
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

    /// Restarts a guest unnoticed: its incarnation stays the same, as with a reused inode or a stale answer.
    pub fn restart_unheard(&self, name: &str) {
        self.lock().host.restart(&GuestId::from(name));
    }

    /// Puts a VF in a place: a user other than a guest, an unknown one, or none.
    pub fn place(&self, vf: &VfId, place: VfPlace) {
        if let Some(vf) = self.lock().host.vfs.get_mut(vf) {
            vf.place = place;
        }
    }

    /// Lets the kind of guests not answer (its daemon is away), or answer again.
    pub fn silence(&self, why: Option<&str>) {
        let mut state = self.lock();
        state.silent = why.map(Into::into);
        state.changed = true;
    }

    /// Sets what joins the guest's paths.
    pub fn join(&self, name: &str, join: Join) {
        let mut state = self.lock();
        if let Some(guest) = state.host.guests.get_mut(&GuestId::from(name)) {
            guest.join = join;
            state.changed = true;
        }
    }

    /// Performs a step, or only its first half, as when the process is killed.
    pub fn does(&self, step: &Step, partly: bool) {
        let _ = self.lock().host.perform_until(step, partly);
    }

    /// Unloads the PF's driver, and with it all VFs, or loads it again.
    pub fn reload_driver(&self, away: bool) {
        let mut state = self.lock();
        state.pf_away = away;
        let guests: Vec<GuestId> = state.host.guests.keys().cloned().collect();
        guests.iter().for_each(|guest| state.host.release(guest));
        for vf in state.host.vfs.values_mut() {
            *vf = VfPlacement { mac: Mac::ZERO, place: VfPlace::Pool };
        }
    }

    /// Injects this fault of observation.
    pub fn inject(&self, fault: Fault) {
        self.lock().fault = Some(fault);
    }

    /// Lets a guest release its VF unasked; its address stays on the VF.
    pub fn releases(&self, name: &str) {
        self.lock().host.release(&GuestId::from(name));
    }

    /// Destroys a guest, with or without a VF.
    pub fn destroy(&self, name: &str, strands_vf: bool) {
        let mut state = self.lock();
        state.host.destroy(&name.into(), strands_vf);
        state.traffic.remove(&GuestId::from(name));
        state.incarnations.remove(&GuestId::from(name));
        state.refusing.remove(&GuestId::from(name));
        state.changed = true;
    }

    /// Changes a guest's traffic.
    pub fn send(&self, name: &str, traffic: Traffic) {
        let mut state = self.lock();
        let now_s = state.samples_at_ms.unwrap_or(0) as f64 / 1e3;
        if let Some(source) = state.traffic.get_mut(&GuestId::from(name)) {
            source.flow.change(traffic, now_s);
        }
    }

    /// Lets a guest, whose packets the host does not count, report this rate.
    pub fn claim(&self, name: &str, pps: f64) {
        if let Some(source) = self.lock().traffic.get_mut(&GuestId::from(name)) {
            source.claims_pps = Some(pps);
        }
    }

    /// Sets whether a guest answers.
    pub fn answers(&self, name: &str, answers: bool) {
        let mut state = self.lock();
        if let Some(guest) = state.host.guests.get_mut(&GuestId::from(name)) {
            guest.answers = answers;
        }
    }

    /// Hides VFs' interfaces for this many samples, as in a dying namespace.
    pub fn hides_vfs(&self, looks: u32) {
        self.lock().unseen = looks;
    }

    /// Sets whether VFs stay down in a guest, although it answers.
    pub fn refuses(&self, name: &str, refuses: bool) {
        let mut state = self.lock();
        if refuses {
            state.refusing.insert(name.into());
        } else {
            state.refusing.remove(&GuestId::from(name));
        }
    }

    /// Sets the PF's link.
    pub fn link(&self, up: bool) {
        self.lock().link_down = !up;
    }

    /// A copy of the host's state.
    pub fn state(&self) -> HostState {
        self.lock().host.clone()
    }

    fn do_step(&self, step: &Step) -> Performed {
        let mut state = self.lock();
        if let Step::AwaitPath { guest, vf } = step
            && state.refusing.contains(guest)
        {
            return Err(Failure::new(format!("{vf} has no link in the guest")));
        }
        let result = state.host.perform(step);
        result.map_err(|why| Failure { guest_silent: why.contains("does not answer"), why })
    }
}

fn user_of(place: &VfPlace, hidden: bool, fault: Option<Fault>) -> User {
    match place {
        VfPlace::Unknown(_) if fault == Some(Fault::UnknownIsNobody) => User::Nobody,
        // A process has it by VFIO: it has no interface that could be hidden.
        VfPlace::Foreign(why) => User::Host(why.clone()),
        VfPlace::Unknown(why) => User::Unknown(why.clone()),
        _ if hidden => {
            User::Unknown("its interface is in no namespace that can be seen".to_owned())
        }
        VfPlace::Pool => User::Nobody,
        VfPlace::Guest(guest) => User::Guest(format!("{guest} has it")),
        VfPlace::Lost => User::Guest("a namespace of nobody has it".to_owned()),
    }
}

impl Executor for World {
    fn perform(&mut self, step: &Step, _pool: &PoolView, _deadline: Instant) -> Performed {
        self.do_step(step)
    }
}

/// The VFs of a made-up host.
#[derive(Debug)]
pub struct SimulatedPool(World);

impl Pool for SimulatedPool {
    fn read(&mut self) -> Result<PoolView> {
        let mut state = self.0.lock();
        let hidden = state.unseen > 0;
        state.unseen = state.unseen.saturating_sub(1);
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
            let pool_vf = PoolVf {
                address: "ffff:00:00.0".parse()?,
                mac: vf.mac,
                driver: None,
                user: user_of(&vf.place, hidden, state.fault),
                strayed: match vf.place {
                    VfPlace::Foreign(_) | VfPlace::Unknown(_) => false,
                    VfPlace::Lost | VfPlace::Guest(_) => true,
                    VfPlace::Pool => hidden,
                },
                counters: Reading::Unsupported,
            };
            view.vfs.insert(id.clone(), pool_vf);
        }
        Ok(view)
    }

    fn sample(&mut self, view: &mut PoolView) -> Result<()> {
        let state = self.0.lock();
        if state.pf_away {
            return Err(Error::failed(format!("the PF {PF} has changed"), ""));
        }
        view.pfs.values_mut().for_each(|pf| pf.link_up = !state.link_down);
        for (id, vf) in &state.host.vfs {
            if let Some(pool_vf) = view.vfs.get_mut(id) {
                pool_vf.user = user_of(&vf.place, state.unseen > 0, state.fault);
                pool_vf.mac = vf.mac;
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

/// The guests of a made-up host.
#[derive(Debug)]
pub struct SimulatedGuests {
    world: World,
    source: Option<Arc<dyn Source>>,
    /// The pods that are guests, by the source's last state.
    pods: BTreeMap<GuestId, Container>,
}

impl SimulatedGuests {
    fn new(world: World, source: Option<Arc<dyn Source>>) -> Self {
        Self { world, source, pods: BTreeMap::new() }
    }

    /// Starts and destroys pods as the source lists them.
    fn follow(&mut self) {
        let Some(KnownContainers::All(pods)) =
            self.source.as_ref().map(|source| source.state().containers)
        else {
            return;
        };
        let pods: BTreeMap<GuestId, Container> =
            pods.into_iter().map(|pod| (pod.id.clone(), pod)).collect();
        if pods == self.pods {
            return;
        }
        let traffic = self.world.lock().pod_traffic.unwrap_or(Traffic::Constant(0.0));
        for (id, pod) in &pods {
            match self.pods.get(id) {
                None => self.world.add(id.as_str(), traffic),
                Some(former) if former.run != pod.run => self.world.restart(id.as_str()),
                Some(_) => self.world.lock().changed = true,
            }
        }
        for id in self.pods.keys().filter(|id| !pods.contains_key(*id)) {
            self.world.destroy(id.as_str(), false);
        }
        self.pods = pods;
    }
}

impl Guests for SimulatedGuests {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn kind(&self) -> GuestKind {
        if self.source.is_some() { GuestKind::Pod } else { GuestKind::Simulated }
    }

    fn needs_filters(&self) -> bool {
        true
    }

    fn discover(&mut self, _pool: &PoolView) -> Result<Discovery> {
        self.follow();
        let mut state = self.world.lock();
        if state.silent.is_some() && state.fault == Some(Fault::SilentIsEmpty) {
            state.changed = true;
            return Ok(Discovery::Guests(Vec::new()));
        }
        if state.silent.is_some() || !std::mem::take(&mut state.changed) {
            return Ok(Discovery::Unchanged);
        }
        let managed = state.host.guests.iter().map(|(id, guest)| Managed {
            id: id.clone(),
            mac: guest.mac,
            join: guest.join,
            wish: self.pods.get(id).map(|pod| pod.wish.clone()).unwrap_or_default(),
            barred: state.barred.contains(id),
            paravirtual_up: guest.paravirtual_up,
            leaving: false,
            incarnation: state.incarnations.get(id).copied().unwrap_or_default().to_string(),
        });
        Ok(Discovery::Guests(managed.collect()))
    }

    fn sample(&mut self, now_ms: u64, _pool: &PoolView, into: &mut Vec<(GuestId, Sample)>) {
        let mut state = self.world.lock();
        let state = &mut *state;
        let elapsed_ms = state.samples_at_ms.map_or(0, |last| now_ms.saturating_sub(last));
        let elapsed_s = elapsed_ms as f64 / 1e3;
        state.samples_at_ms = Some(now_ms);
        for (id, source) in &mut state.traffic {
            let Some(guest) = state.host.guests.get(id) else { continue };
            let sent =
                source.flow.pps(now_ms as f64 / 1e3 - elapsed_s, now_ms as f64 / 1e3) * elapsed_s;
            source.packets += sent;
            source.bytes += sent * 100.0;
            let counted = |packets: f64, bytes: f64| {
                Reading::Counted(Counters {
                    tx_packets: packets as u64,
                    tx_bytes: bytes as u64,
                    ..Counters::default()
                })
            };
            // A switch of paths is a switch of counters.
            let path = u64::from(guest.active != Path::Paravirtual);
            let host = Sample {
                at_ms: now_ms,
                source: path,
                origin: Origin::HostSide,
                reading: counted(source.packets, source.bytes),
            };
            match source.claims_pps {
                None => into.push((id.clone(), host)),
                Some(pps) => {
                    source.claimed += pps * elapsed_s;
                    let reported = Sample {
                        origin: Origin::GuestReported,
                        reading: counted(source.claimed, 0.0),
                        ..host
                    };
                    let blind = Sample { reading: Reading::Unsupported, ..host };
                    into.extend([(id.clone(), blind), (id.clone(), reported)]);
                }
            }
        }
    }

    fn holdings(&mut self, _pool: &PoolView) -> BTreeMap<GuestId, Option<BTreeSet<VfId>>> {
        let mut holdings: BTreeMap<GuestId, Option<BTreeSet<VfId>>> = BTreeMap::new();
        let state = self.world.lock();
        for (id, vf) in &state.host.vfs {
            if let VfPlace::Guest(guest) = &vf.place {
                let has = holdings.entry(guest.clone()).or_insert_with(|| Some(BTreeSet::new()));
                has.get_or_insert_default().insert(id.clone());
            }
        }
        holdings
    }

    fn republish(&mut self) {
        self.world.lock().changed = true;
    }

    fn gap(&self) -> Option<String> {
        if let Some(why) = self.source.as_ref().and_then(|source| source.gap()) {
            return Some(why);
        }
        let state = self.world.lock();
        state.silent.clone().filter(|_| state.fault != Some(Fault::SilentIsEmpty))
    }

    fn find(&mut self, _pool: &PoolView) -> Finding {
        let world = self.world.clone();
        let mut gaps: Vec<String> = self.source.iter().filter_map(|source| source.gap()).collect();
        Finding::Later(Box::new(move || {
            let state = world.lock();
            if let Some(why) = &state.silent {
                gaps.extend((state.fault != Some(Fault::SilentIsEmpty)).then(|| why.clone()));
                return Ok(HostState { gaps, ..HostState::default() });
            }
            let mut host = HostState { gaps, ..state.host.clone() };
            let guests = host.guests.clone();
            host.vfs.retain(|_, vf| match &vf.place {
                VfPlace::Guest(guest) => guests.contains_key(guest),
                _ => false,
            });
            Ok(host)
        }))
    }

    fn executor(&mut self, _guest: &GuestId) -> Performed<Box<dyn Executor>> {
        Ok(Box::new(self.world.clone()))
    }

    fn release(&mut self, _guest: &GuestId) -> Result<()> {
        Ok(())
    }
}
