//! libvirt's virtual machines as guests. A machine is managed when its metadata has the mark
//! (`<planewise:managed>`); a virtio NIC is its paravirtual path, and the kernel's net_failover in the
//! guest, or a bond of the guest's own, joins it with the VF.

pub mod agent;
pub mod api;
pub mod domain;
mod executor;
mod find;
pub mod host;
pub mod packet;
#[cfg(test)]
mod simulated;
pub mod socket;
#[cfg(test)]
mod tests;
pub mod watch;
pub mod xdr;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pw_alloc::execute::Performed;
use pw_alloc::model::{GuestId, Origin, VfId};
use pw_alloc::signal::{Reading, Sample};
use pw_alloc::step::Join;
use pw_error::{Error, Result};
use pw_sriov::address::PciAddress;

use self::agent::Agents;
use self::api::{Domain, Libvirt, Refusal, Uuid};
use self::domain::{Function, Nic};
use self::executor::{DomainExecutor, NoMachine, SETTLES, Settling};
use self::find::Finder;
use self::host::{Host, Linux, Tap};
use self::socket::Socket;
use self::watch::{Board, RunningDomain, lock};
use crate::daemon::guests::{Guests, Managed, Network};
use crate::daemon::pool::PoolView;
use crate::daemon::status::GuestKind;
use crate::daemon::tasks::{Executor, Search};

/// Time limit of a survey.
const FIND: Duration = Duration::from_secs(20);

/// A guest as last known.
#[derive(Debug, Clone)]
struct Guest {
    domain: Domain,
    nic: Nic,
    functions: Vec<Function>,
    agent: bool,
    /// As published to the core.
    managed: Managed,
}

/// The virtual machines of a libvirt.
pub struct Machines {
    /// Of which tasks have connections of their own.
    libvirt: Box<dyn Libvirt>,
    board: Arc<Mutex<Board>>,
    agents: Arc<Agents>,
    host: Box<dyn Host>,
    guests: BTreeMap<GuestId, Guest>,
    taps: BTreeMap<String, Tap>,
    troubles: Vec<String>,
    /// Guests that were managed once and may still hold a VF.
    leaving: BTreeSet<Uuid>,
    /// Guests get VFs although the host filters their frames.
    bypass_filters: bool,
    settling: Settling,
    /// How long a machine gets no device, for each request to release one.
    settles: Duration,
}

impl std::fmt::Debug for Machines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machines").field("guests", &self.guests.len()).finish_non_exhaustive()
    }
}

impl Machines {
    /// The machines of the libvirt at the first of these sockets that answers; of the usual ones when
    /// none is given. It need not exist.
    pub fn new(sockets: Vec<PathBuf>, bypass_filters: bool) -> Result<Self> {
        let paths = if sockets.is_empty() {
            socket::SOCKETS.iter().map(PathBuf::from).collect()
        } else {
            sockets
        };
        let libvirt = Box::new(Socket::new(paths));
        let board = watch::start(libvirt.another())?;
        let agents = Agents::start(libvirt.another());
        let machines = Self::with(libvirt, board, agents, Box::new(Linux::open()?));
        Ok(Self { bypass_filters, settles: SETTLES, ..machines })
    }

    fn with(
        libvirt: Box<dyn Libvirt>,
        board: Arc<Mutex<Board>>,
        agents: Arc<Agents>,
        host: Box<dyn Host>,
    ) -> Self {
        Self {
            libvirt,
            board,
            agents,
            host,
            guests: BTreeMap::new(),
            taps: BTreeMap::new(),
            troubles: Vec::new(),
            leaving: BTreeSet::new(),
            bypass_filters: false,
            settling: Settling::default(),
            settles: Duration::ZERO,
        }
    }

    /// Makes the guests from the watcher's state.
    fn refresh(&mut self, pool: &PoolView) {
        let domains: Vec<Arc<RunningDomain>> =
            lock(&self.board).domains.values().cloned().collect();
        let previous = std::mem::take(&mut self.guests);
        self.troubles.clear();
        let mut still_leaving = BTreeSet::new();
        for running in domains {
            let Some(guest) = self.guest_of(&running, &previous, pool) else { continue };
            if guest.managed.leaving {
                still_leaving.insert(guest.domain.uuid);
            }
            self.guests.insert(guest.managed.id.clone(), guest);
        }
        self.leaving = still_leaving;
        self.agents.set_agents(
            self.guests
                .values()
                .filter(|guest| guest.agent && !holds(&guest.functions, pool).is_empty())
                .map(|guest| (guest.domain.clone(), guest.nic.mac)),
        );
    }

    fn guest_of(
        &mut self,
        running: &RunningDomain,
        previous: &BTreeMap<GuestId, Guest>,
        pool: &PoolView,
    ) -> Option<Guest> {
        let name = &running.domain.name;
        let id = GuestId::from(name.as_str());
        let described = match &running.described {
            Ok(described) => described.clone(),
            Err(why) => {
                self.troubles.push(format!("the XML of {name} cannot be read: {why}"));
                // It stays as known until it can be read again.
                return previous.get(&id).filter(|guest| guest.domain == running.domain).cloned();
            }
        };
        let wrong = described.mark.as_ref().and_then(|mark| mark.wrong.clone());
        let held = holds(&described.functions, pool);
        let was_managed =
            previous.get(&id).is_some_and(|guest| guest.domain.uuid == running.domain.uuid)
                || self.leaving.contains(&running.domain.uuid)
                || has_managed_vf(&described.functions, pool);
        let managed = described.mark.is_some() && wrong.is_none();
        // Its VFs are taken before it is released.
        let leaving = !managed && !held.is_empty() && was_managed;
        if let Some(wrong) = wrong {
            self.troubles.push(format!("{name} is not managed: {wrong}"));
        }
        if !managed && !leaving {
            return None;
        }
        let nic = match described.nic {
            Ok(nic) => nic,
            Err(why) => {
                self.troubles.push(format!("{name} is not managed: {why}"));
                return None;
            }
        };
        let tap = self.taps.get(&nic.tap);
        let works = tap.is_some_and(|tap| tap.works);
        let wish = described.mark.map(|mark| mark.wish).unwrap_or_default();
        let bridge = tap.and_then(|tap| tap.bridge.as_deref());
        let pfs: BTreeSet<_> = pool.pfs_of(bridge).map(|(pf, _)| pf.clone()).collect();
        let filter =
            nic.filter.as_ref().map(|filter| format!("the nwfilter {filter}")).or_else(|| {
                let pfs: Vec<&str> = pfs.iter().map(|pf| pf.as_str()).collect();
                pool.filters.bypassed(bridge?, &nic.tap, &pfs, nic.vlan.is_some())
            });
        let network = match (tap, filter.filter(|_| !self.bypass_filters)) {
            (_, Some(filter)) => {
                self.troubles.push(format!(
                    "{name} gets no VF, which would bypass {filter} ([pool] bypass_filters)"
                ));
                Network::Barred
            }
            (Some(tap), None) if pool.filters.read.contains(&tap.index) => {
                if pfs.is_empty() {
                    let bridge = bridge.unwrap_or("none");
                    self.troubles.push(format!(
                        "no PF of the pool is a port of the bridge ({bridge}) of {name}: it gets VFs only of \
                         PFs that [guests.{name}] names"
                    ));
                }
                Network::Pfs(pfs)
            }
            _ => Network::Unread,
        };
        let managed = Managed {
            id,
            incarnation: incarnation(&running.domain),
            mac: nic.mac,
            join: Join::Failover,
            wish,
            network,
            paravirtual_up: nic.plugged && works,
            leaving,
        };
        let functions = described.functions;
        let agent = described.agent;
        Some(Guest { domain: running.domain.clone(), nic, functions, agent, managed })
    }
}

/// The VFs of the pool among these functions.
fn holds(functions: &[Function], pool: &PoolView) -> Vec<VfId> {
    let held = |address| functions.iter().any(|function| function.address == address);
    pool.vfs.iter().filter(|(_, vf)| held(vf.address)).map(|(id, _)| id.clone()).collect()
}

/// Is one of these functions a VF of the pool that this daemon plugged in?
fn has_managed_vf(functions: &[Function], pool: &PoolView) -> bool {
    let plugged = |function: &Function| {
        function.alias.as_deref() == Some(domain::ALIAS)
            && pool.vfs.values().any(|vf| vf.address == function.address)
    };
    functions.iter().any(plugged)
}

/// One run of a domain: libvirt assigns a new id at every start.
fn incarnation(domain: &Domain) -> String {
    let uuid: String = domain.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{uuid}/{}", domain.id)
}

fn unavailable(refusal: &Refusal) -> Error {
    Error::failed(
        format!("libvirt cannot be asked: {refusal}"),
        "its machines stay as they are until it is back",
    )
}

impl Guests for Machines {
    fn name(&self) -> &'static str {
        "machines"
    }

    fn kind(&self) -> GuestKind {
        GuestKind::Vm
    }

    fn needs_filters(&self) -> bool {
        true
    }

    fn discover(&mut self, pool: &PoolView) -> Result<Vec<Managed>> {
        {
            let board = lock(&self.board);
            // A host without libvirt has no machines, which is no error.
            if let Some(trouble) = board.trouble.as_ref().filter(|_| board.read) {
                return Err(unavailable(trouble));
            }
        }
        if let Ok(taps) = self.host.taps() {
            self.taps = taps;
        }
        self.refresh(pool);
        Ok(self.guests.values().map(|guest| guest.managed.clone()).collect())
    }

    fn sample(&mut self, now_ms: u64, pool: &PoolView, into: &mut Vec<(GuestId, Sample)>) {
        if self.guests.is_empty() {
            return;
        }
        let by_address: BTreeMap<PciAddress, &VfId> =
            pool.vfs.iter().map(|(id, vf)| (vf.address, id)).collect();
        for (id, guest) in &self.guests {
            let tap = self.taps.get(&guest.nic.tap);
            let held =
                guest.functions.iter().find_map(|function| by_address.get(&function.address));
            let Some(vf) = held.and_then(|id| pool.vfs.get(*id)) else {
                if let Some(tap) = tap {
                    let reading = Reading::Counted(tap.counters);
                    let source = u64::from(tap.index);
                    into.push((
                        id.clone(),
                        Sample { at_ms: now_ms, source, origin: Origin::HostSide, reading },
                    ));
                }
                continue;
            };
            // Sources of VFs are their addresses, beyond all indices of interfaces.
            let source = source_of(vf.address);
            let sample =
                Sample { at_ms: now_ms, source, origin: Origin::HostSide, reading: vf.counters };
            into.push((id.clone(), sample));
            if let Some((counters, age)) = self.agents.counters(&guest.domain.uuid) {
                let at_ms =
                    now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
                let reading = Reading::Counted(counters);
                let origin = Origin::GuestReported;
                into.push((id.clone(), Sample { at_ms, source, origin, reading }));
            }
        }
    }

    fn holdings(&mut self, pool: &PoolView) -> BTreeMap<GuestId, Option<BTreeMap<VfId, bool>>> {
        let unknown = self.gap().is_some();
        self.guests
            .iter()
            .filter(|(_, guest)| !guest.functions.is_empty())
            .map(|(id, guest)| {
                // Which path it sends by is its kernel's business.
                let sends = |vf| (vf, true);
                let has = || holds(&guest.functions, pool).into_iter().map(sends).collect();
                let has = (!unknown).then(has);
                (id.clone(), has)
            })
            .collect()
    }

    fn reserved(&self, pool: &PoolView) -> BTreeMap<VfId, String> {
        let board = lock(&self.board);
        let by = |(id, vf): (&VfId, &crate::daemon::pool::PoolVf)| {
            let machine = board.reserved.get(&vf.address)?;
            Some((id.clone(), format!("the machine {machine} has it in its configuration")))
        };
        pool.vfs.iter().filter_map(by).collect()
    }

    fn gap(&self) -> Option<String> {
        let board = lock(&self.board);
        match &board.trouble {
            // A host that never had a libvirt has no machines.
            Some(_) if !board.read && !self.libvirt.installed() => None,
            Some(trouble) => Some(unavailable(trouble).what),
            None => (!board.read).then(|| "libvirt has not answered yet".to_owned()),
        }
    }

    fn is_pending(&self) -> bool {
        let board = lock(&self.board);
        !board.read && board.trouble.is_none()
    }

    fn executor(&mut self, id: &GuestId) -> Performed<Box<dyn Executor>> {
        let Some(guest) = self.guests.get(id).cloned() else { return Ok(Box::new(NoMachine)) };
        Ok(Box::new(DomainExecutor {
            libvirt: self.libvirt.another(),
            host: self.host.try_clone()?,
            guest,
            settling: Arc::clone(&self.settling),
            settles: self.settles,
        }))
    }

    fn find(&mut self, pool: &PoolView) -> Search {
        let host = match self.host.try_clone() {
            Ok(host) => host,
            Err(error) => return Box::new(move || Err(error)),
        };
        let mut finder = Finder {
            libvirt: self.libvirt.another(),
            host,
            leaving: self.leaving.clone(),
            // A host that never had a libvirt has no machines. One whose libvirt is away may have some.
            may_be_missing: !lock(&self.board).read && !self.libvirt.installed(),
        };
        let pool = pool.clone();
        Box::new(move || finder.find(&pool))
    }

    fn troubles(&self) -> Vec<String> {
        self.troubles.clone()
    }
}

fn source_of(vf: PciAddress) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    vf.hash(&mut hasher);
    hasher.finish() | 1 << 63
}
