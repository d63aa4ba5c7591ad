//! A simulated host: a pool and guests in one world (`pw_alloc::world`), with configured traffic, and with
//! guests and links that a test makes fail. Touches nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pw_alloc::evidence::User;
use pw_alloc::execute::{Failure, Performed};
use pw_alloc::model::{GuestId, Mac, Origin, PfId, VfId};
use pw_alloc::signal::{Counters, Reading, Sample};
use pw_alloc::step::{Join, Path, Step};
use pw_alloc::traffic::{Flow, Traffic};
use pw_alloc::world::{Found, FoundGuest, FoundVf, VfPlace};
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
pub struct World(Arc<Mutex<Made>>);

#[derive(Debug, Default)]
struct Made {
    found: Found,
    traffic: BTreeMap<GuestId, Sender>,
    link_down: bool,
    /// What a pod sends.
    pod_traffic: Option<Traffic>,
    /// Guests in which no VF comes up.
    refusing: BTreeSet<GuestId>,
    /// Guests that the host filters.
    barred: BTreeSet<GuestId>,
    /// How often whoever looks will find no VF at home.
    unseen: u32,
    /// Guests were added or removed, or something about them changed.
    changed: bool,
    samples_at_ms: Option<u64>,
    next_guest: u64,
    /// The number of each guest's run: none is given again.
    incarnations: BTreeMap<GuestId, u64>,
    runs: u64,
    /// Why the guests cannot be asked about.
    silent: Option<String>,
    /// The PF's driver is unloaded: there is neither PF nor VF.
    pf_away: bool,
    /// The fault that whoever looks at this host has.
    fault: Option<Fault>,
    /// What PFs were last told to take.
    addresses: Addresses,
}

impl Made {
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
    /// What the guest says that it sends, when it lies; the host then sees nothing of it.
    claims_pps: Option<f64>,
    claimed: f64,
}

impl World {
    /// The host of a configuration.
    pub fn new(config: &Simulated) -> Self {
        let world = Self::default();
        {
            let mut made = world.made();
            for index in 0..config.vfs {
                let vf = FoundVf { mac: Mac::ZERO, place: VfPlace::Pool };
                made.found.vfs.insert(VfId::new(PF, index), vf);
            }
        }
        for (name, traffic) in &config.guests {
            world.add(name, *traffic);
        }
        world.made().pod_traffic = config.pods;
        world
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guests whose addresses PFs were told to take, and those whose executors see to it.
    pub fn told(&self) -> [Vec<GuestId>; 2] {
        let made = self.made();
        let of = |told: &dyn Fn(&Mac) -> bool| {
            let guests = made.found.guests.iter().filter(|(_, guest)| told(&guest.mac));
            guests.map(|(id, _)| id.clone()).collect()
        };
        [
            of(&|mac| made.addresses.resting.contains_key(mac)),
            of(&|mac| made.addresses.cared_for.contains(mac)),
        ]
    }

    /// Its pool and its guests, for the core; whatever is done is done at once.
    pub fn host(&self) -> Host {
        self.host_with(Box::new(InlineRunner::default()))
    }

    /// The same, with others who perform steps.
    pub fn host_with(&self, tasks: Box<dyn TaskRunner>) -> Host {
        // Whoever asks first is to see all.
        self.made().changed = true;
        Host {
            pool: Box::new(SimulatedPool(self.clone())),
            kinds: vec![Box::new(SimulatedGuests::new(self.clone(), None))],
            tasks,
        }
    }

    /// The same host, whose guests are also the pods that this source tells of.
    pub fn host_of(&self, pods: Option<Arc<dyn Source>>) -> Host {
        Host { kinds: vec![Box::new(SimulatedGuests::new(self.clone(), pods))], ..self.host() }
    }

    /// A guest comes up; one that is up already only sends otherwise.
    pub fn add(&self, name: &str, traffic: Traffic) {
        if self.made().traffic.contains_key(&GuestId::from(name)) {
            return self.send(name, traffic);
        }
        let mut made = self.made();
        let number = made.next_guest;
        made.next_guest += 1;
        let [.., a, b, c, d] = number.to_be_bytes();
        let guest = FoundGuest {
            mac: Mac([2, 0x70, a, b, c, d]),
            join: Join::Bond,
            answers: true,
            paravirtual_up: true,
            vf_up: false,
            active: Path::Paravirtual,
            directed: Path::Paravirtual,
        };
        made.found.guests.insert(name.into(), guest);
        let source = Sender {
            flow: Flow::new(traffic, number),
            packets: 0.0,
            bytes: 0.0,
            claims_pps: None,
            claimed: 0.0,
        };
        made.traffic.insert(name.into(), source);
        made.started(name.into());
    }

    /// The host filters a guest's frames from now on.
    pub fn bars(&self, name: &str) {
        let mut made = self.made();
        made.barred.insert(name.into());
        made.changed = true;
    }

    /// A guest has another address from now on.
    pub fn address(&self, name: &str, mac: Mac) {
        let mut made = self.made();
        if let Some(guest) = made.found.guests.get_mut(&GuestId::from(name)) {
            guest.mac = mac;
            made.changed = true;
        }
    }

    /// A guest is started anew between two looks: same name, same address; its VF is back with the
    /// host, with the address on it.
    pub fn restart(&self, name: &str) {
        let mut made = self.made();
        let id = GuestId::from(name);
        made.found.restart(&id);
        made.started(id);
    }

    /// The same, and whoever tells of guests does not tell another run from the first one: an inode
    /// that was given again, an answer of before.
    pub fn restart_unheard(&self, name: &str) {
        self.made().found.restart(&GuestId::from(name));
    }

    /// Puts a VF in a place: a user other than a guest, an unknown one, or none.
    pub fn place(&self, vf: &VfId, place: VfPlace) {
        if let Some(found) = self.made().found.vfs.get_mut(vf) {
            found.place = place;
        }
    }

    /// The kind of guests cannot be asked about (its daemon is away), or can again.
    pub fn silence(&self, why: Option<&str>) {
        let mut made = self.made();
        made.silent = why.map(Into::into);
        made.changed = true;
    }

    /// The guest's paths are joined by this.
    pub fn join(&self, name: &str, join: Join) {
        let mut made = self.made();
        if let Some(guest) = made.found.guests.get_mut(&GuestId::from(name)) {
            guest.join = join;
            made.changed = true;
        }
    }

    /// A step is done, or only its first half, as when whoever does it is killed.
    pub fn does(&self, step: &Step, partly: bool) {
        let _ = self.made().found.perform_until(step, partly);
    }

    /// The PF's driver is unloaded, and with it all VFs are gone, or it is back.
    pub fn reload_driver(&self, away: bool) {
        let mut made = self.made();
        made.pf_away = away;
        let guests: Vec<GuestId> = made.found.guests.keys().cloned().collect();
        guests.iter().for_each(|guest| made.found.release(guest));
        for vf in made.found.vfs.values_mut() {
            *vf = FoundVf { mac: Mac::ZERO, place: VfPlace::Pool };
        }
    }

    /// Observation has this fault from now on.
    pub fn put_back(&self, fault: Fault) {
        self.made().fault = Some(fault);
    }

    /// A guest releases the VF that it has, whether it is asked or not; its address stays on the VF.
    pub fn releases(&self, name: &str) {
        self.made().found.release(&GuestId::from(name));
    }

    /// A guest is destroyed, whatever it holds.
    pub fn destroy(&self, name: &str, strands_vf: bool) {
        let mut made = self.made();
        made.found.destroy(&name.into(), strands_vf);
        made.traffic.remove(&GuestId::from(name));
        made.incarnations.remove(&GuestId::from(name));
        made.refusing.remove(&GuestId::from(name));
        made.changed = true;
    }

    /// A guest's traffic is another one from now on.
    pub fn send(&self, name: &str, traffic: Traffic) {
        let mut made = self.made();
        let now_s = made.samples_at_ms.unwrap_or(0) as f64 / 1e3;
        if let Some(source) = made.traffic.get_mut(&GuestId::from(name)) {
            source.flow.change(traffic, now_s);
        }
    }

    /// A guest whose packets the host does not see says that it sends so many.
    pub fn claim(&self, name: &str, pps: f64) {
        if let Some(source) = self.made().traffic.get_mut(&GuestId::from(name)) {
            source.claims_pps = Some(pps);
        }
    }

    /// A guest answers, or does not.
    pub fn answers(&self, name: &str, answers: bool) {
        let mut made = self.made();
        if let Some(guest) = made.found.guests.get_mut(&GuestId::from(name)) {
            guest.answers = answers;
        }
    }

    /// For this many samples VFs' interfaces are nowhere, as those of a dying namespace.
    pub fn hides_vfs(&self, looks: u32) {
        self.made().unseen = looks;
    }

    /// VFs come up in a guest, or do not, although it answers.
    pub fn refuses(&self, name: &str, refuses: bool) {
        let mut made = self.made();
        if refuses {
            made.refusing.insert(name.into());
        } else {
            made.refusing.remove(&GuestId::from(name));
        }
    }

    /// The PF gets or loses its link.
    pub fn link(&self, up: bool) {
        self.made().link_down = !up;
    }

    /// A copy of the world, to look at.
    pub fn found(&self) -> Found {
        self.made().found.clone()
    }

    fn do_step(&self, step: &Step) -> Performed {
        let mut made = self.made();
        if let Step::AwaitPath { guest, vf } = step
            && made.refusing.contains(guest)
        {
            return Err(Failure::new(format!("{vf} has no link in the guest")));
        }
        let result = made.found.perform(step);
        result.map_err(|why| Failure { guest_silent: why.contains("does not answer"), why })
    }
}

fn user_of(place: &VfPlace, hidden: bool, fault: Option<Fault>) -> User {
    match place {
        VfPlace::Unknown(_) if fault == Some(Fault::UnknownIsNobody) => User::Nobody,
        // A process has it by VFIO: there is no interface that could be looked for in vain.
        VfPlace::Foreign(why) => User::Host(why.clone()),
        VfPlace::Unknown(why) => User::Unknown(why.clone()),
        _ if hidden => User::Unknown("it is nowhere to be seen".to_owned()),
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
        let mut made = self.0.made();
        let hidden = made.unseen > 0;
        made.unseen = made.unseen.saturating_sub(1);
        if made.pf_away {
            return Ok(PoolView { missing: vec![PF.into()], ..PoolView::default() });
        }
        let pf = PoolPf {
            index: 1,
            address: "ffff:00:00.0".parse()?,
            numa: None,
            link_up: !made.link_down,
            bridge: Some("simulated".into()),
        };
        let mut view = PoolView { pfs: [(PfId::from(PF), pf)].into(), ..PoolView::default() };
        for (id, vf) in &made.found.vfs {
            let seen = PoolVf {
                address: "ffff:00:00.0".parse()?,
                mac: vf.mac,
                driver: None,
                user: user_of(&vf.place, hidden, made.fault),
                strayed: match vf.place {
                    VfPlace::Foreign(_) | VfPlace::Unknown(_) => false,
                    VfPlace::Lost | VfPlace::Guest(_) => true,
                    VfPlace::Pool => hidden,
                },
                counters: Reading::Unsupported,
            };
            view.vfs.insert(id.clone(), seen);
        }
        Ok(view)
    }

    fn sample(&mut self, view: &mut PoolView) -> Result<()> {
        let made = self.0.made();
        if made.pf_away {
            return Err(Error::failed(format!("the PF {PF} has changed"), ""));
        }
        view.pfs.values_mut().for_each(|pf| pf.link_up = !made.link_down);
        for (id, vf) in &made.found.vfs {
            if let Some(seen) = view.vfs.get_mut(id) {
                seen.user = user_of(&vf.place, made.unseen > 0, made.fault);
                seen.mac = vf.mac;
            }
        }
        Ok(())
    }

    fn settle(&mut self, _view: &PoolView, managed: &Addresses) -> Result<()> {
        self.0.made().addresses = managed.clone();
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
    /// The pods that are guests, as the source told of them.
    pods: BTreeMap<GuestId, Container>,
}

impl SimulatedGuests {
    fn new(world: World, source: Option<Arc<dyn Source>>) -> Self {
        Self { world, source, pods: BTreeMap::new() }
    }

    /// Pods come up and go as the source tells.
    fn follow(&mut self) {
        let Some(KnownContainers::All(told)) =
            self.source.as_ref().map(|source| source.state().containers)
        else {
            return;
        };
        let told: BTreeMap<GuestId, Container> =
            told.into_iter().map(|pod| (pod.id.clone(), pod)).collect();
        if told == self.pods {
            return;
        }
        let traffic = self.world.made().pod_traffic.unwrap_or(Traffic::Constant(0.0));
        for (id, pod) in &told {
            match self.pods.get(id) {
                None => self.world.add(id.as_str(), traffic),
                Some(known) if known.run != pod.run => self.world.restart(id.as_str()),
                Some(_) => self.world.made().changed = true,
            }
        }
        for id in self.pods.keys().filter(|id| !told.contains_key(*id)) {
            self.world.destroy(id.as_str(), false);
        }
        self.pods = told;
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
        let mut made = self.world.made();
        if made.silent.is_some() && made.fault == Some(Fault::SilentIsEmpty) {
            made.changed = true;
            return Ok(Discovery::Guests(Vec::new()));
        }
        if made.silent.is_some() || !std::mem::take(&mut made.changed) {
            return Ok(Discovery::Unchanged);
        }
        let managed = made.found.guests.iter().map(|(id, guest)| Managed {
            id: id.clone(),
            mac: guest.mac,
            join: guest.join,
            wish: self.pods.get(id).map(|pod| pod.wish.clone()).unwrap_or_default(),
            barred: made.barred.contains(id),
            paravirtual_up: guest.paravirtual_up,
            leaving: false,
            incarnation: made.incarnations.get(id).copied().unwrap_or_default().to_string(),
        });
        Ok(Discovery::Guests(managed.collect()))
    }

    fn sample(&mut self, now_ms: u64, _pool: &PoolView, into: &mut Vec<(GuestId, Sample)>) {
        let mut made = self.world.made();
        let made = &mut *made;
        let elapsed_ms = made.samples_at_ms.map_or(0, |last| now_ms.saturating_sub(last));
        let elapsed_s = elapsed_ms as f64 / 1e3;
        made.samples_at_ms = Some(now_ms);
        for (id, source) in &mut made.traffic {
            let Some(guest) = made.found.guests.get(id) else { continue };
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
                    let said = Sample {
                        origin: Origin::GuestReported,
                        reading: counted(source.claimed, 0.0),
                        ..host
                    };
                    let blind = Sample { reading: Reading::Unsupported, ..host };
                    into.extend([(id.clone(), blind), (id.clone(), said)]);
                }
            }
        }
    }

    fn holdings(&mut self, _pool: &PoolView) -> BTreeMap<GuestId, Option<BTreeSet<VfId>>> {
        let mut holdings: BTreeMap<GuestId, Option<BTreeSet<VfId>>> = BTreeMap::new();
        let made = self.world.made();
        for (id, vf) in &made.found.vfs {
            if let VfPlace::Guest(guest) = &vf.place {
                let has = holdings.entry(guest.clone()).or_insert_with(|| Some(BTreeSet::new()));
                has.get_or_insert_default().insert(id.clone());
            }
        }
        holdings
    }

    fn republish(&mut self) {
        self.world.made().changed = true;
    }

    fn gap(&self) -> Option<String> {
        if let Some(why) = self.source.as_ref().and_then(|source| source.gap()) {
            return Some(why);
        }
        let made = self.world.made();
        made.silent.clone().filter(|_| made.fault != Some(Fault::SilentIsEmpty))
    }

    fn find(&mut self, _pool: &PoolView) -> Finding {
        let world = self.world.clone();
        let mut gaps: Vec<String> = self.source.iter().filter_map(|source| source.gap()).collect();
        Finding::Later(Box::new(move || {
            let made = world.made();
            if let Some(why) = &made.silent {
                gaps.extend((made.fault != Some(Fault::SilentIsEmpty)).then(|| why.clone()));
                return Ok(Found { gaps, ..Found::default() });
            }
            let mut found = Found { gaps, ..made.found.clone() };
            let guests = found.guests.clone();
            found.vfs.retain(|_, vf| match &vf.place {
                VfPlace::Guest(guest) => guests.contains_key(guest),
                _ => false,
            });
            Ok(found)
        }))
    }

    fn executor(&mut self, _guest: &GuestId) -> Performed<Box<dyn Executor>> {
        Ok(Box::new(self.world.clone()))
    }

    fn release(&mut self, _guest: &GuestId) -> Result<()> {
        Ok(())
    }
}
