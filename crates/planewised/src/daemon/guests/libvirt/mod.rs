//! libvirt's virtual machines as guests. A machine is managed when its metadata has the mark
//! (`<planewise:managed>`); a virtio NIC is its paravirtual path, and the kernel's net_failover in the
//! guest, or a bond of the guest's own, joins it with the VF. Knows no policy.

pub mod agent;
pub mod api;
pub mod domain;
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
use std::sync::Arc;
use std::time::{Duration, Instant};

use pw_alloc::execute::Failure;
use pw_alloc::model::{GuestId, Origin, PfId, Stance, VfId};
use pw_alloc::signal::{Reading, Sample};
use pw_alloc::step::{Join, Path, Step};
use pw_alloc::world::{Found, FoundGuest, FoundVf, Place};
use pw_linux::error::{Error, Result};
use pw_sriov::address::PciAddress;

use self::agent::Agents;
use self::api::{Domain, Libvirt, Refusal, Uuid, Why};
use self::domain::{Described, Function, Nic};
use self::host::{Host, Linux, Tap};
use self::socket::Socket;
use self::watch::{Known, Watch};
use crate::daemon::guests::{Discovery, Guests, Managed};
use crate::daemon::pool::PoolView;
use crate::daemon::status::GuestKind;

/// Between two looks at what is waited for.
const LOOK: Duration = Duration::from_millis(20);
/// Between two attempts to reach a libvirt that is being restarted.
const RETRY: Duration = Duration::from_millis(200);
/// A guest that has not released a device is asked again after this. Native PCIe hotplug takes a
/// second request within five seconds for a withdrawal of the first.
const ASK_AGAIN: Duration = Duration::from_secs(7);
/// The first look at all machines may take so long.
const FIRST_LOOK: Duration = Duration::from_secs(30);
/// Libvirt has so long for a look after the deadline.
const LAST_LOOK: Duration = Duration::from_secs(1);
/// Libvirt has so long to tell what is.
const FIND: Duration = Duration::from_secs(60);

/// What was last known of a guest.
#[derive(Debug, Clone)]
struct Guest {
    domain: Domain,
    nic: Nic,
    functions: Vec<Function>,
    agent: bool,
    /// As told to the daemon.
    managed: Managed,
}

/// The virtual machines of a libvirt.
pub struct Machines {
    libvirt: Arc<dyn Libvirt>,
    watch: Arc<Watch>,
    agents: Arc<Agents>,
    host: Box<dyn Host>,
    guests: BTreeMap<GuestId, Guest>,
    /// What the guests were made from.
    version: Option<u64>,
    taps: BTreeMap<String, Tap>,
    /// Paths have changed since the guests were made.
    paths_changed: bool,
    /// The guests have changed since the daemon was told.
    untold: bool,
    troubles: Vec<String>,
    /// Guests that were managed once and may still hold a VF.
    leaving: BTreeSet<Uuid>,
}

impl std::fmt::Debug for Machines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machines").field("guests", &self.guests.len()).finish_non_exhaustive()
    }
}

impl Machines {
    /// The machines of the libvirt at the first of these sockets that answers; of the usual ones when
    /// none is given. It need not be there.
    ///
    /// # Errors
    /// The kernel gives no socket for netlink.
    pub fn new(sockets: Vec<PathBuf>) -> Result<Self> {
        let paths = if sockets.is_empty() {
            socket::SOCKETS.iter().map(PathBuf::from).collect()
        } else {
            sockets
        };
        let libvirt: Arc<dyn Libvirt> = Arc::new(Socket::new(paths.clone(), true));
        // Agents have a connection of their own: those that do not answer would fill the other's.
        let agents = Agents::start(Arc::new(Socket::new(paths, false)));
        let watch = Watch::start(Arc::clone(&libvirt));
        Ok(Self::with(libvirt, watch, agents, Box::new(Linux::here()?)))
    }

    fn with(
        libvirt: Arc<dyn Libvirt>,
        watch: Arc<Watch>,
        agents: Arc<Agents>,
        host: Box<dyn Host>,
    ) -> Self {
        Self {
            libvirt,
            watch,
            agents,
            host,
            guests: BTreeMap::new(),
            version: None,
            taps: BTreeMap::new(),
            paths_changed: false,
            untold: true,
            troubles: Vec::new(),
            leaving: BTreeSet::new(),
        }
    }

    /// A guest of that name; none when it does not run or is not managed.
    fn guest(&self, id: &GuestId) -> std::result::Result<&Guest, Failure> {
        self.guests.get(id).ok_or_else(|| failure(format!("there is no machine {id} that runs")))
    }

    /// Its live XML, now. Waits for a libvirt that is being restarted. None: it does not run any more.
    fn now(
        &self,
        domain: &Domain,
        deadline: Instant,
    ) -> std::result::Result<Option<Described>, Failure> {
        let texts = self
            .patiently(deadline, |libvirt| libvirt.xml(std::slice::from_ref(domain), deadline))
            .map_err(|refusal| failure(refusal.words))?;
        match texts.into_iter().next() {
            Some(Ok(text)) => domain::read(&text).map(Some).map_err(failure),
            None | Some(Err(Refusal { why: Why::NoDomain, .. })) => Ok(None),
            Some(Err(refusal)) => Err(failure(refusal.words)),
        }
    }

    /// Asks until there is a libvirt that answers.
    fn patiently<T>(
        &self,
        deadline: Instant,
        ask: impl Fn(&dyn Libvirt) -> api::Answer<T>,
    ) -> api::Answer<T> {
        loop {
            match ask(&*self.libvirt) {
                Err(Refusal { why: Why::Gone, .. }) if Instant::now() + RETRY < deadline => {
                    std::thread::sleep(RETRY);
                }
                answer => return answer,
            }
        }
    }

    fn attach(
        &mut self,
        id: &GuestId,
        vf_id: &VfId,
        pool: &PoolView,
        deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        let vf = address_of(pool, vf_id)?;
        let (domain, nic) = {
            let guest = self.guest(id)?;
            (guest.domain.clone(), guest.nic.clone())
        };
        let gone = || failure(format!("{id} does not run any more"));
        // Its frames are the VF's from now on, those from the host's bridge not before it is up.
        self.host.yield_address(nic.mac, vf_id, pool).map_err(|error| failure(error.what))?;
        if let Some(vlan) = nic.vlan {
            self.host.tag(vf_id, vlan, pool).map_err(|error| failure(error.what))?;
        }
        let device = domain::hostdev(vf, nic.teams.as_deref());
        loop {
            let described = self.now(&domain, deadline)?.ok_or_else(gone)?;
            if described.functions.iter().any(|one| one.address == vf) {
                return Ok(());
            }
            match self.libvirt.attach(&domain, &device, deadline) {
                Ok(()) => return Ok(()),
                // It may have been done all the same: the live XML tells.
                Err(Refusal { why: Why::Gone, .. }) if Instant::now() + RETRY < deadline => {
                    std::thread::sleep(RETRY);
                }
                Err(Refusal { why: Why::NoDomain, .. }) => return Err(gone()),
                Err(refusal) => return Err(failure(refusal.words)),
            }
        }
    }

    fn detach(
        &mut self,
        id: &GuestId,
        vf_id: &VfId,
        pool: &PoolView,
        deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        let vf = address_of(pool, vf_id)?;
        // A machine that is gone has left everything behind.
        let Some(guest) = self.guests.get(id) else { return Ok(()) };
        let (domain, nic) = (guest.domain.clone(), guest.nic.clone());
        let mut asked: Option<Instant> = None;
        let mut silenced = self.host.in_use(vf) != Some(true);
        let mut why = String::new();
        loop {
            // What was asked for at the last moment is looked for once more.
            let last = asked.is_some() && Instant::now() >= deadline;
            let look_by = deadline.max(Instant::now() + LAST_LOOK);
            let Some(described) = self.now(&domain, look_by)? else { return Ok(()) };
            let Some(function) = described.functions.into_iter().find(|one| one.address == vf)
            else {
                return Ok(());
            };
            let Some(alias) = function.alias else {
                return Err(failure("libvirt gives the device no alias".into()));
            };
            if last {
                let why = format!("{id} has not released it in time{why}");
                return Err(Failure { why, guest_silent: true });
            }
            if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
                match self.libvirt.detach(&domain, &alias, deadline) {
                    Ok(()) => asked = Some(Instant::now()),
                    // The next look tells.
                    Err(Refusal { why: Why::NoDevice | Why::NoDomain, .. }) => {
                        asked = Some(Instant::now());
                    }
                    Err(Refusal { why: Why::Gone, .. }) => std::thread::sleep(RETRY),
                    Err(refusal) if matches!(refusal.why, Why::Unplugging | Why::Late) => {
                        asked = Some(Instant::now());
                        why = format!(" ({refusal})");
                    }
                    Err(refusal) => return Err(failure(refusal.words)),
                }
            } else {
                self.watch.pause(LOOK);
            }
            if !silenced && self.host.in_use(vf) == Some(false) {
                // Its driver has let go, its device is still there. Until address and forwarding
                // follow, which are the next steps, whatever is sent to it is lost.
                silenced = true;
                let _ = self.host.silence(vf_id, pool);
                if let Some(tap) = self.taps.get(&nic.tap) {
                    let _ = self.host.direct(nic.mac, tap, &Path::Paravirtual, pool);
                }
            }
        }
    }

    /// Does the guest drive the VF, as far as can be seen?
    fn drives(&self, guest: &Guest, vf: PciAddress) -> bool {
        self.host.in_use(vf) == Some(true)
            || (guest.agent && self.agents.drives(&guest.domain, guest.nic.mac))
    }

    fn await_path(
        &self,
        id: &GuestId,
        vf: PciAddress,
        deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        let guest = self.guest(id)?;
        loop {
            if self.drives(guest, vf) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let why = format!(
                    "{id} has not brought it up in time: its kernel may lack the VF's driver"
                );
                return Err(failure(why));
            }
            if self.now(&guest.domain, deadline)?.is_none() {
                return Err(failure(format!("{id} does not run any more")));
            }
            self.watch.pause(LOOK);
        }
    }

    fn verify(
        &mut self,
        id: &GuestId,
        path: &Path,
        pool: &PoolView,
        deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        match path {
            Path::Vf(vf) => {
                let address = address_of(pool, vf)?;
                let guest = self.guest(id)?;
                if self.drives(guest, address) {
                    return Ok(());
                }
                Err(failure(format!("{id} does not drive {vf}")))
            }
            Path::Paravirtual => {
                let guest = self.guest(id)?.clone();
                let described = self
                    .now(&guest.domain, deadline)?
                    .ok_or_else(|| failure(format!("{id} does not run any more")))?;
                let nic = described.nic.map_err(failure)?;
                self.taps = self.host.taps().map_err(|error| failure(error.what))?;
                match self.taps.get(&nic.tap) {
                    Some(tap) if tap.works && nic.plugged => Ok(()),
                    _ => Err(failure(format!("its tap {} has no link", nic.tap))),
                }
            }
        }
    }

    fn direct(
        &mut self,
        id: &GuestId,
        path: &Path,
        pool: &PoolView,
    ) -> std::result::Result<(), Failure> {
        let nic = match self.guests.get(id) {
            Some(guest) => guest.nic.clone(),
            // Nobody is left to send anything to.
            None => return Ok(()),
        };
        self.taps = self.host.taps().map_err(|error| failure(error.what))?;
        match self.taps.get(&nic.tap) {
            Some(tap) => {
                self.host.direct(nic.mac, tap, path, pool).map_err(|error| failure(error.what))
            }
            None => Err(failure(format!("its tap {} is gone", nic.tap))),
        }
    }

    /// Makes the guests from what the watcher knows.
    fn refresh(&mut self, pool: &PoolView) {
        let (version, known): (u64, Vec<Arc<Known>>) = {
            let board = self.watch.board();
            if self.version == Some(board.version) && !self.paths_changed {
                return;
            }
            (board.version, board.domains.values().cloned().collect())
        };
        self.version = Some(version);
        self.paths_changed = false;
        let before = std::mem::take(&mut self.guests);
        self.troubles.clear();
        let mut still_leaving = BTreeSet::new();
        for known in known {
            let Some(guest) = self.guest_of(&known, &before, pool) else { continue };
            if guest.managed.leaving {
                still_leaving.insert(guest.domain.uuid);
            }
            self.guests.insert(guest.managed.id.clone(), guest);
        }
        self.leaving = still_leaving;
        self.agents.want(
            self.guests
                .values()
                .filter(|guest| guest.agent && !holds(&guest.functions, pool).is_empty())
                .map(|guest| (guest.domain.clone(), guest.nic.mac)),
        );
        self.untold |= self.guests.len() != before.len()
            || before
                .iter()
                .any(|(id, was)| self.guests.get(id).is_none_or(|is| is.managed != was.managed));
    }

    fn guest_of(
        &mut self,
        known: &Known,
        before: &BTreeMap<GuestId, Guest>,
        pool: &PoolView,
    ) -> Option<Guest> {
        let name = &known.domain.name;
        let id = GuestId::from(name.as_str());
        let described = match &known.described {
            Ok(described) => described.clone(),
            Err(why) => {
                self.troubles.push(format!("the XML of {name} cannot be read: {why}"));
                // What is known of it stands until it can be read again.
                return before.get(&id).filter(|one| one.domain == known.domain).cloned();
            }
        };
        let wrong = described.mark.as_ref().and_then(|mark| mark.wrong.clone());
        let held = holds(&described.functions, pool);
        let was = before.get(&id).is_some_and(|one| one.domain.uuid == known.domain.uuid)
            || self.leaving.contains(&known.domain.uuid);
        let managed = described.mark.is_some() && wrong.is_none();
        // What it got from us is taken before it is let go.
        let leaving = !managed && !held.is_empty() && was;
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
        let works = tap.is_none_or(|tap| tap.works);
        let mut wish = described.mark.map(|mark| mark.wish).unwrap_or_default();
        if let Some(bridge) = tap.and_then(|tap| tap.bridge.as_ref()) {
            // Only by a PF of its bridge does a VF lead to the same network.
            let beside =
                |pf: &PfId| pool.pfs.get(pf).is_some_and(|pf| pf.bridge.as_ref() == Some(bridge));
            let asked = !wish.pfs.is_empty();
            if !asked {
                wish.pfs = pool.pfs.keys().cloned().collect();
            }
            wish.pfs.retain(beside);
            if wish.pfs.is_empty() {
                wish.stance = Stance::Excluded;
                self.troubles.push(format!(
                    "{name} gets no VF: no PF {}is a port of its bridge {bridge}",
                    if asked { "that its mark names " } else { "of the pool " }
                ));
            }
        }
        let managed = Managed {
            id,
            mac: nic.mac,
            join: Join::Failover,
            wish,
            paravirtual_up: nic.plugged && works,
            leaving,
        };
        let functions = described.functions;
        let agent = described.agent;
        Some(Guest { domain: known.domain.clone(), nic, functions, agent, managed })
    }
}

/// The VFs of the pool among these functions.
fn holds(functions: &[Function], pool: &PoolView) -> Vec<VfId> {
    let mut found = Vec::new();
    for (id, vf) in &pool.vfs {
        if functions.iter().any(|one| one.address == vf.address) {
            found.push(id.clone());
        }
    }
    found
}

fn address_of(pool: &PoolView, vf: &VfId) -> std::result::Result<PciAddress, Failure> {
    let found = pool.vfs.get(vf).map(|vf| vf.address);
    found.ok_or_else(|| failure(format!("there is no VF {vf}")))
}

/// The guest is not to blame.
const fn failure(why: String) -> Failure {
    Failure { why, guest_silent: false }
}

fn away(refusal: &Refusal) -> Error {
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

    fn prepare(
        &mut self,
        vf: &VfId,
        pool: &PoolView,
        _: Instant,
    ) -> std::result::Result<(), Failure> {
        self.host.prepare(address_of(pool, vf)?).map_err(|error| failure(error.what))
    }

    fn discover(&mut self, pool: &PoolView) -> Result<Discovery> {
        if self.version.is_none() {
            // What is recovered at the start is about machines that have to be known.
            self.watch.await_first(FIRST_LOOK);
        }
        {
            let board = self.watch.board();
            // A host without libvirt has no machines, which is no error.
            if let Some(trouble) = board.trouble.as_ref().filter(|_| !board.empty) {
                return Err(away(trouble));
            }
        }
        self.refresh(pool);
        if !std::mem::take(&mut self.untold) {
            return Ok(Discovery::Unchanged);
        }
        Ok(Discovery::Guests(self.guests.values().map(|guest| guest.managed.clone()).collect()))
    }

    fn sample(&mut self, now_ms: u64, pool: &PoolView, into: &mut Vec<(GuestId, Sample)>) {
        if self.guests.is_empty() {
            return;
        }
        let Ok(taps) = self.host.taps() else { return };
        let bridge_of = |taps: &BTreeMap<String, Tap>, tap: &str| {
            taps.get(tap).and_then(|tap| tap.bridge.clone())
        };
        self.paths_changed |= self
            .guests
            .values()
            .any(|guest| bridge_of(&taps, &guest.nic.tap) != bridge_of(&self.taps, &guest.nic.tap));
        self.taps = taps;
        let by_address: BTreeMap<PciAddress, &VfId> =
            pool.vfs.iter().map(|(id, vf)| (vf.address, id)).collect();
        for (id, guest) in &self.guests {
            let tap = self.taps.get(&guest.nic.tap);
            let up = guest.nic.plugged && tap.is_some_and(|tap| tap.works);
            self.paths_changed |= up != guest.managed.paravirtual_up;
            let held = guest.functions.iter().find_map(|one| by_address.get(&one.address));
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

    fn find(&mut self, pool: &PoolView) -> Result<Found> {
        let deadline = Instant::now() + FIND;
        let mut found = Found::default();
        let asked = self
            .libvirt
            .domains(deadline)
            .and_then(|domains| watch::describe(&*self.libvirt, domains, deadline));
        let known = match asked {
            Ok(known) => known,
            // A host that never had a libvirt has no machines. One whose libvirt is being restarted
            // may have some, and a VF in other hands may be in theirs.
            Err(Refusal { why: Why::Gone, .. })
                if self.watch.board().empty
                    && !(self.libvirt.installed() && pool.vfs.values().any(|vf| !vf.at_home)) =>
            {
                return Ok(found);
            }
            Err(refusal) => return Err(away(&refusal)),
        };
        self.taps = self.host.taps()?;
        let directed = self.host.directed(pool)?;
        for known in known {
            let id = GuestId::from(known.domain.name.as_str());
            let described = known.described.map_err(|why| {
                Error::failed(
                    format!("the XML of {id} cannot be read: {why}"),
                    "what it holds cannot be told without",
                )
            })?;
            let held = holds(&described.functions, pool);
            let managed = described.mark.as_ref().is_some_and(|mark| mark.wrong.is_none());
            if !managed && held.is_empty() {
                continue;
            }
            for vf in &held {
                let mac = pool.vfs.get(vf).map_or(pw_alloc::model::Mac::ZERO, |vf| vf.mac);
                found.vfs.insert(vf.clone(), FoundVf { mac, place: Place::Guest(id.clone()) });
            }
            let guest = match described.nic {
                Ok(nic) => {
                    let tap = self.taps.get(&nic.tap);
                    let agent = described.agent;
                    let up = held.iter().find(|vf| {
                        let address = pool.vfs.get(*vf).map(|vf| vf.address);
                        address.is_some_and(|address| {
                            self.host.in_use(address) == Some(true)
                                || agent && self.agents.drives(&known.domain, nic.mac)
                        })
                    });
                    let by_pf = directed.get(&nic.mac);
                    FoundGuest {
                        mac: nic.mac,
                        join: Join::Failover,
                        // What somebody else plugged in is not ours to take.
                        answers: managed || self.leaving.contains(&known.domain.uuid),
                        paravirtual_up: nic.plugged && tap.is_some_and(|tap| tap.works),
                        vf_up: up.is_some(),
                        active: up.map_or(Path::Paravirtual, |vf| Path::Vf((*vf).clone())),
                        directed: held
                            .iter()
                            .find(|vf| by_pf == Some(&vf.pf))
                            .map_or(Path::Paravirtual, |vf| Path::Vf(vf.clone())),
                    }
                }
                Err(_) => FoundGuest {
                    mac: pw_alloc::model::Mac::ZERO,
                    join: Join::Failover,
                    answers: false,
                    paravirtual_up: false,
                    vf_up: false,
                    active: Path::Paravirtual,
                    directed: Path::Paravirtual,
                },
            };
            found.guests.insert(id, guest);
        }
        Ok(found)
    }

    fn perform(
        &mut self,
        step: &Step,
        pool: &PoolView,
        deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        self.refresh(pool);
        match step {
            Step::Attach { guest, vf } => self.attach(guest, vf, pool, deadline),
            Step::AwaitPath { guest, vf } => {
                self.await_path(guest, address_of(pool, vf)?, deadline)
            }
            // The guest sends by the VF while it has it and drives it: that is the guest's kernel.
            Step::Prefer { guest, path: path @ Path::Vf(_) } => {
                self.verify(guest, path, pool, deadline)
            }
            Step::Prefer { .. } => Ok(()),
            Step::Direct { guest, path } => self.direct(guest, path, pool),
            Step::Verify { guest, path } => self.verify(guest, path, pool, deadline),
            Step::Detach { guest, vf } => self.detach(guest, vf, pool, deadline),
            Step::Reserve { .. }
            | Step::SetMac { .. }
            | Step::Recall { .. }
            | Step::ClearMac { .. }
            | Step::Reset { .. }
            | Step::Release { .. } => Ok(()),
        }
    }

    fn release(&mut self, _: &GuestId) -> Result<()> {
        // Nothing of a machine was changed but what it held.
        Ok(())
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
