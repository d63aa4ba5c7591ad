//! The guests of a simulated host.

use std::collections::BTreeMap;
use std::sync::Arc;

use pw_alloc::execute::Performed;
use pw_alloc::model::{GuestId, Origin, VfId};
use pw_alloc::signal::{Counters, Reading, Sample};
use pw_alloc::step::{Join, Path};
use pw_alloc::traffic::Traffic;
use pw_alloc::world::{HostState, VfPlace};
use pw_error::Result;

use super::{Fault, PF, World};
use crate::daemon::guests::source::{Container, KnownContainers, Source};
use crate::daemon::guests::{Guests, Managed, Network};
use crate::daemon::pool::PoolView;
use crate::daemon::status::GuestKind;
use crate::daemon::tasks::{Adoption, Executor, Search};

/// The guests of a simulated host.
#[derive(Debug)]
pub struct SimulatedGuests {
    world: World,
    source: Option<Arc<dyn Source>>,
    /// The pods that are guests, by the source's last state.
    pods: BTreeMap<GuestId, Container>,
    /// The guests as last known.
    known: Vec<Managed>,
}

impl SimulatedGuests {
    /// Those of this world, and the pods of this source.
    pub fn new(world: World, source: Option<Arc<dyn Source>>) -> Self {
        Self { world, source, pods: BTreeMap::new(), known: Vec::new() }
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
                Some(_) => {}
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

    fn discover(&mut self, _pool: &PoolView) -> Result<Vec<Managed>> {
        self.follow();
        let state = self.world.lock();
        if state.silent.is_some() && state.fault == Some(Fault::SilentIsEmpty) {
            return Ok(Vec::new());
        }
        if state.silent.is_some() {
            return Ok(self.known.clone());
        }
        let adopted = state.host.guests.iter().filter(|(id, _)| !state.to_adopt.contains(*id));
        let managed = adopted.map(|(id, guest)| Managed {
            id: id.clone(),
            mac: guest.mac,
            join: guest.join,
            wish: self.pods.get(id).map(|pod| pod.wish.clone()).unwrap_or_default(),
            network: match () {
                () if state.barred.contains(id) => Network::Barred,
                () if state.fault == Some(Fault::UnreadIsAny) => Network::Pfs([PF.into()].into()),
                () if state.unread.contains(id) => Network::Unread,
                () => Network::Pfs([PF.into()].into()),
            },
            paravirtual_up: guest.paravirtual_up,
            leaving: false,
            incarnation: state.incarnations.get(id).copied().unwrap_or_default().to_string(),
        });
        self.known = managed.collect();
        Ok(self.known.clone())
    }

    fn adoption(&mut self, _pool: &PoolView) -> Option<Adoption> {
        let (world, id) = (self.world.clone(), self.world.lock().to_adopt.first().cloned()?);
        Some(Box::new(move || world.with(|host| host.to_adopt.retain(|one| *one != id))))
    }

    fn is_pending(&self) -> bool {
        !self.world.lock().to_adopt.is_empty()
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

    fn holdings(&mut self, _pool: &PoolView) -> BTreeMap<GuestId, Option<BTreeMap<VfId, bool>>> {
        let mut holdings: BTreeMap<GuestId, Option<BTreeMap<VfId, bool>>> = BTreeMap::new();
        let state = self.world.lock();
        for (id, vf) in &state.host.vfs {
            if let VfPlace::Guest(guest) = &vf.place {
                let sends = state.host.guests.get(guest).is_none_or(|guest| {
                    guest.join == Join::Failover || guest.active == Path::Vf(id.clone())
                });
                let unseen = state.fault == Some(Fault::FallbackUnseen);
                let has = holdings.entry(guest.clone()).or_default();
                has.get_or_insert_default().insert(id.clone(), sends || unseen);
            }
        }
        holdings
    }

    fn reserved(&self, _pool: &PoolView) -> BTreeMap<VfId, String> {
        let state = self.world.lock();
        let why = "the machine db has it in its configuration";
        state.reserved.iter().map(|vf| (vf.clone(), why.to_owned())).collect()
    }

    fn gap(&self) -> Option<String> {
        if let Some(why) = self.source.as_ref().and_then(|source| source.gap()) {
            return Some(why);
        }
        self.world.lock().gap()
    }

    fn find(&mut self, _pool: &PoolView) -> Search {
        let world = self.world.clone();
        let mut gaps: Vec<String> = self.source.iter().filter_map(|source| source.gap()).collect();
        Box::new(move || {
            let state = world.lock();
            gaps.extend(state.gap());
            if state.silent.is_some() {
                return Ok(HostState { gaps, ..HostState::default() });
            }
            let mut host = HostState { gaps, ..state.host.clone() };
            host.guests.retain(|id, _| !state.to_adopt.contains(id));
            let guests = host.guests.clone();
            host.vfs.retain(|_, vf| match &vf.place {
                VfPlace::Guest(guest) => guests.contains_key(guest),
                _ => false,
            });
            Ok(host)
        })
    }

    fn executor(&mut self, _guest: &GuestId) -> Performed<Box<dyn Executor>> {
        Ok(Box::new(self.world.clone()))
    }
}
