//! A made-up host: a pool and guests in one world (`pw_alloc::world`), with traffic as configured,
//! and with guests and links that a test makes fail. Touches nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pw_alloc::execute::Failure;
use pw_alloc::model::{GuestId, Mac, Origin, PfId, VfId, Wish};
use pw_alloc::signal::{Counters, Reading, Sample};
use pw_alloc::step::{Join, Path, Step};
use pw_alloc::traffic::{Flow, Traffic};
use pw_alloc::world::{Found, FoundGuest, FoundVf, Place};
use pw_linux::error::Result;

use crate::daemon::config::Simulated;
use crate::daemon::guests::{Discovery, Guests, Managed};
use crate::daemon::pool::{Pool, PoolPf, PoolVf, PoolView};
use crate::daemon::status::GuestKind;

/// The PF of a made-up host.
pub const PF: &str = "simulated0";

/// The made-up host, shared by its pool and its guests, and by the test that disturbs it.
#[derive(Debug, Clone, Default)]
pub struct World(Arc<Mutex<Made>>);

#[derive(Debug, Default)]
struct Made {
    found: Found,
    traffic: BTreeMap<GuestId, Source>,
    link_down: bool,
    /// Guests in which no VF comes up.
    refusing: BTreeSet<GuestId>,
    /// How often whoever looks will find no VF at home.
    unseen: u32,
    /// Guests were added or removed, or something about them changed.
    changed: bool,
    samples_at_ms: Option<u64>,
    next_guest: u64,
}

#[derive(Debug)]
struct Source {
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
                let vf = FoundVf { mac: Mac::ZERO, place: Place::Pool };
                made.found.vfs.insert(VfId::new(PF, index), vf);
            }
        }
        for (name, traffic) in &config.guests {
            world.add(name, *traffic);
        }
        world
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its pool and its guests, for the core.
    pub fn host(&self) -> crate::daemon::core::Host {
        // Whoever asks first is to see all.
        self.made().changed = true;
        crate::daemon::core::Host {
            pool: Box::new(SimulatedPool(self.clone())),
            kinds: vec![Box::new(SimulatedGuests(self.clone()))],
        }
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
        let source = Source {
            flow: Flow::new(traffic, number),
            packets: 0.0,
            bytes: 0.0,
            claims_pps: None,
            claimed: 0.0,
        };
        made.traffic.insert(name.into(), source);
        made.changed = true;
    }

    /// A guest is destroyed, whatever it holds.
    pub fn destroy(&self, name: &str, strands_vf: bool) {
        let mut made = self.made();
        made.found.destroy(&name.into(), strands_vf);
        made.traffic.remove(&GuestId::from(name));
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

    /// So many looks find VFs nowhere, as those of a namespace that is dying.
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

    fn perform(&self, step: &Step) -> std::result::Result<(), Failure> {
        let mut made = self.made();
        if let Step::AwaitPath { guest, vf } = step
            && made.refusing.contains(guest)
        {
            let why = format!("{vf} has no link in the guest");
            return Err(Failure { why, guest_silent: false });
        }
        let result = made.found.perform(step);
        result.map_err(|why| Failure { guest_silent: why.contains("does not answer"), why })
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
        let pf = PoolPf {
            index: 1,
            address: "ffff:00:00.0".parse()?,
            numa: None,
            link_up: !made.link_down,
            bridge: Some("simulated".into()),
        };
        let mut view = PoolView { pfs: [(PfId::from(PF), pf)].into(), vfs: BTreeMap::new() };
        for (id, vf) in &made.found.vfs {
            let seen = PoolVf {
                address: "ffff:00:00.0".parse()?,
                mac: vf.mac,
                driver: None,
                at_home: vf.place == Place::Pool && !hidden,
                counters: Reading::Unsupported,
            };
            view.vfs.insert(id.clone(), seen);
        }
        Ok(view)
    }

    fn sample(&mut self, view: &mut PoolView) -> Result<()> {
        let link_up = !self.0.made().link_down;
        view.pfs.values_mut().for_each(|pf| pf.link_up = link_up);
        Ok(())
    }

    fn perform(
        &mut self,
        step: &Step,
        _view: &PoolView,
        _deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        self.0.perform(step)
    }
}

/// The guests of a made-up host.
#[derive(Debug)]
pub struct SimulatedGuests(World);

impl Guests for SimulatedGuests {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn kind(&self) -> GuestKind {
        GuestKind::Simulated
    }

    fn discover(&mut self, _pool: &PoolView) -> Result<Discovery> {
        let mut made = self.0.made();
        if !std::mem::take(&mut made.changed) {
            return Ok(Discovery::Unchanged);
        }
        let managed = made.found.guests.iter().map(|(id, guest)| Managed {
            id: id.clone(),
            mac: guest.mac,
            join: guest.join,
            wish: Wish::default(),
            paravirtual_up: guest.paravirtual_up,
            leaving: false,
        });
        Ok(Discovery::Guests(managed.collect()))
    }

    fn sample(&mut self, now_ms: u64, _pool: &PoolView, into: &mut Vec<(GuestId, Sample)>) {
        let mut made = self.0.made();
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

    fn find(&mut self, _pool: &PoolView) -> Result<Found> {
        let mut found = self.0.made().found.clone();
        let guests = found.guests.clone();
        found.vfs.retain(|_, vf| match &vf.place {
            Place::Guest(guest) => guests.contains_key(guest),
            _ => false,
        });
        Ok(found)
    }

    fn perform(
        &mut self,
        step: &Step,
        _pool: &PoolView,
        _deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        self.0.perform(step)
    }

    fn release(&mut self, _guest: &GuestId) -> Result<()> {
        Ok(())
    }
}
