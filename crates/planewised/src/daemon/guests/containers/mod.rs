//! Containers, pods and network namespaces as guests: a bond in the guest's namespace joins the veth that it
//! had with a VF, while it has one.

mod address;
mod adopt;
mod docker;
mod executor;
mod groups;
mod record;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use pw_alloc::execute::{Failure, Performed};
use pw_alloc::model::{GuestId, Mac, Origin, VfId, Wish};
use pw_alloc::signal::{COUNTS_FRAMES, Reading, Sample};
use pw_alloc::step::Join;
use pw_alloc::world::HostState;
use pw_error::{Error, Result};
use pw_linux::netns::Netns;

use crate::daemon::config;
use crate::daemon::guests::source::{KnownContainers, Source};
use crate::daemon::guests::{Guests, Managed, Network};
use crate::daemon::net::{Identity, Net, counters};
use crate::daemon::pool::PoolView;
use crate::daemon::status::GuestKind;
use crate::daemon::tasks::{Adoption, Executor, Search};

use adopt::{Adopted, AdoptionSettings};
use docker::Docker;
pub use docker::process;
use executor::ContainerExecutor;

/// Name of a VF's interface in a guest.
pub const VF_NAME: &str = "pw-vf";
/// Pause before another attempt to adopt a guest.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A guest as configured, or as its source describes it.
#[derive(Debug, Clone, PartialEq)]
struct Spec {
    netns: Netns,
    /// Its interface; none: its only veth.
    interface: Option<String>,
    /// The run of its container or pod; none: a namespace of the configuration.
    container: Option<String>,
    /// MAC addresses that it was assigned; empty: unknown.
    macs: Vec<Mac>,
    wish: Wish,
}

impl Spec {
    /// Is it of the same run of a guest?
    fn is_of_run(&self, other: &Self) -> bool {
        (&self.netns, &self.container) == (&other.netns, &other.container)
    }
}

/// A guest of the configuration, of the source, or of a record.
#[derive(Debug)]
struct Guest {
    spec: Spec,
    adopted: Option<Adopted>,
    /// It was adopted, and waits for the task that restores it.
    released: Option<Adopted>,
    /// It is no longer to be managed.
    leaving: bool,
    retry_at: Option<Instant>,
    /// Why it could not be adopted.
    refused: Option<String>,
    /// The filter on the host that a VF would bypass.
    bypassed: Option<String>,
}

impl Guest {
    const fn new(spec: Spec, leaving: bool) -> Self {
        Self {
            spec,
            adopted: None,
            released: None,
            leaving,
            retry_at: None,
            refused: None,
            bypassed: None,
        }
    }

    /// Forgets the namespace that it had: an open handle would keep it alive.
    fn forget_namespace(&mut self) {
        (self.adopted, self.released, self.retry_at) = (None, None, None);
    }

    fn presence(&self, id: &GuestId, records: &Path) -> Presence {
        let (exists, recorded) =
            (inode(&self.spec.netns).is_some(), record::path(records, id).exists());
        presence(self.leaving, self.spec.container.is_some(), exists, recorded)
    }
}

/// An adoption or a release under way.
#[derive(Debug)]
struct Adopting {
    id: GuestId,
    /// The guest as it was when the task began.
    spec: Spec,
    /// The adopted guest; none: it was restored.
    result: Receiver<Result<Option<Adopted>>>,
}

/// The containers and namespaces of a host, or its pods.
#[derive(Debug)]
pub struct Containers {
    config: config::Containers,
    source: Option<Arc<dyn Source>>,
    kind: GuestKind,
    records: PathBuf,
    dry_run: bool,
    bypass_filters: bool,
    guests: BTreeMap<GuestId, Guest>,
    adopting: Option<Adopting>,
    troubles: Vec<String>,
    /// Records that cannot be read: their guests stay as they are.
    unreadable: Vec<String>,
}

impl Containers {
    /// Docker's containers and the namespaces of this configuration; records are kept in the state
    /// directory.
    pub fn new(config: &config::Config, dry_run: bool) -> Result<Self> {
        let docker = Docker::watch(&config.containers.docker);
        let source = docker.map(|docker| -> Arc<dyn Source> { Arc::new(docker) });
        Self::of(source, GuestKind::Container, "guests", config, dry_run)
    }

    /// The pods of this source.
    pub fn pods(source: Arc<dyn Source>, config: &config::Config, dry_run: bool) -> Result<Self> {
        let mut config = config.clone();
        config.containers = config::Containers::default();
        Self::of(Some(source), GuestKind::Pod, "pods", &config, dry_run)
    }

    fn of(
        source: Option<Arc<dyn Source>>,
        kind: GuestKind,
        directory: &str,
        config: &config::Config,
        dry_run: bool,
    ) -> Result<Self> {
        let records = config.state_directory.join(directory);
        let mut guests = BTreeMap::new();
        // Guests that were managed, and may no longer be.
        let (known, unreadable) = record::all(&records);
        for record in known {
            let spec = Spec {
                netns: record.netns.parse()?,
                interface: Some(record.interface.clone()),
                container: record.container.clone(),
                macs: Vec::new(),
                wish: Wish::default(),
            };
            let id = record.guest.clone();
            guests.insert(id, Guest::new(spec, true));
        }
        Ok(Self {
            source,
            kind,
            config: config.containers.clone(),
            records,
            dry_run,
            bypass_filters: config.pool.bypass_filters,
            guests,
            adopting: None,
            troubles: Vec::new(),
            unreadable,
        })
    }

    /// The guests to be managed. Containers are left out while they are unknown.
    fn specs(&mut self) -> BTreeMap<GuestId, Spec> {
        let mut specs = BTreeMap::new();
        for (name, namespace) in &self.config.namespaces {
            let netns = namespace.netns.as_deref().unwrap_or(name);
            // The configuration has been checked.
            let Ok(netns) = netns.parse::<Netns>() else { continue };
            let interface = namespace.interface.clone();
            let (macs, wish) = (namespace.mac.into_iter().collect(), Wish::default());
            let spec = Spec { netns, interface, container: None, macs, wish };
            specs.insert(GuestId::from(name.as_str()), spec);
        }
        if let Some(source) = &self.source {
            let state = source.state();
            self.troubles.extend(state.trouble);
            let containers = match state.containers {
                KnownContainers::All(containers) => containers,
                KnownContainers::Unknown(_) => Vec::new(),
            };
            for container in containers {
                let spec = Spec {
                    netns: Netns::Pid(container.pid),
                    interface: container.interface,
                    container: Some(container.run),
                    macs: container.macs,
                    wish: container.wish,
                };
                specs.entry(container.id).or_insert(spec);
            }
        }
        specs
    }

    fn refresh(&mut self, pool: &PoolView) {
        self.troubles.clone_from(&self.unreadable);
        let specs = self.specs();
        let unanswered = self.source.as_ref().is_some_and(|source| source.gap().is_some());
        for (id, guest) in &mut self.guests {
            // Containers are unknown while the source does not answer: they stay as they are.
            let unknown = unanswered && guest.spec.container.is_some();
            guest.leaving = !specs.contains_key(id) && !unknown;
        }
        for (id, spec) in specs {
            match self.guests.get_mut(&id) {
                Some(guest) if guest.spec == spec => {}
                Some(guest) => {
                    // Another namespace under the same name is another guest; the bond goes with the
                    // old one.
                    if !guest.spec.is_of_run(&spec) {
                        guest.forget_namespace();
                    }
                    guest.spec = spec;
                }
                None => {
                    self.guests.insert(id, Guest::new(spec, false));
                }
            }
        }
        let (records, dry_run) = (&self.records, self.dry_run);
        let adopting = self.adopting.as_ref().map(|adopting| &adopting.id);
        self.guests.retain(|id, guest| {
            let inode = inode(&guest.spec.netns);
            let known = guest.adopted.as_ref().or(guest.released.as_ref());
            if known.is_some_and(|known| Some(known.inode) != inode) {
                // Without an open handle the kernel returns its VF.
                guest.forget_namespace();
            }
            // One with a record stays until a task has removed its entries in NICs and bridges.
            let remains = || !dry_run && record::path(records, id).exists();
            !guest.leaving
                || adopting == Some(id)
                || guest.presence(id, records) != Presence::Absent
                || remains()
        });
        self.check_filters(pool);
        self.set_refused();
    }

    /// The next guest that is there and is to be adopted, or is gone and to be forgotten.
    fn next_of(&self, presence: &Presence) -> Option<(&GuestId, &Guest)> {
        self.guests.iter().find(|(id, guest)| {
            guest.adopted.is_none()
                && guest.released.is_none()
                && guest.retry_at.is_none_or(|again| again <= Instant::now())
                && guest.presence(id, &self.records) == *presence
        })
    }

    /// Takes the result of an adoption or release that has ended.
    fn take_adopted(&mut self) {
        let Some(adopting) = self.adopting.take() else { return };
        let result = match adopting.result.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Empty) => return self.adopting = Some(adopting),
            Err(TryRecvError::Disconnected) => {
                Err(Error::failed("a fault of planewised ended the task", "please report it"))
            }
        };
        let same = |guest: &&mut Guest| guest.spec.is_of_run(&adopting.spec);
        let Some(guest) = self.guests.get_mut(&adopting.id).filter(same) else { return };
        match result {
            Ok(None) if guest.leaving => drop(self.guests.remove(&adopting.id)),
            Ok(adopted) => {
                guest.adopted = adopted;
                (guest.retry_at, guest.refused) = (None, None);
            }
            Err(error) => {
                guest.refused = Some(error.what);
                guest.retry_at = Some(Instant::now() + RETRY_AFTER);
            }
        }
    }

    /// The guests that are managed, with their addresses.
    fn addresses(&self) -> Vec<(GuestId, Mac)> {
        let adopted = |guest: &Guest| guest.adopted.as_ref().map(|adopted| adopted.record.mac);
        self.guests.iter().filter_map(|(id, guest)| Some((id.clone(), adopted(guest)?))).collect()
    }

    /// Updates whose frames the host filters.
    fn check_filters(&mut self, pool: &PoolView) {
        for guest in self.guests.values_mut() {
            let adopted = guest.adopted.as_ref().filter(|_| !self.bypass_filters);
            guest.bypassed = adopted.and_then(|adopted| {
                let (port, bridge) = (adopted.port_in(pool)?, adopted.bridge_in(pool)?);
                let pfs: Vec<&str> = pool.pfs_of(Some(bridge)).map(|(pf, _)| pf.as_str()).collect();
                pool.filters.bypassed(bridge, &port.name, &pfs, false)
            });
        }
    }

    /// Reports the guests that cannot be given a VF, or not be restored, to the source and the status.
    fn set_refused(&mut self) {
        let mut refused = BTreeMap::new();
        for (id, guest) in &self.guests {
            let (verb, why) = match (guest.leaving, &guest.bypassed, &guest.refused) {
                (true, _, Some(why)) => ("cannot be restored", why.clone()),
                (false, Some(filter), _) => {
                    ("gets no VF", format!("it would bypass {filter} ([pool] bypass_filters)"))
                }
                (false, None, Some(why)) => ("cannot be managed", why.clone()),
                (true, _, None) | (false, None, None) => continue,
            };
            self.troubles.push(format!("{id} {verb}: {why}"));
            if !guest.leaving {
                refused.insert(id.clone(), why);
            }
        }
        if let Some(source) = &self.source {
            source.set_refused(refused);
        }
    }

    fn managed(&self, pool: &PoolView) -> Vec<Managed> {
        let mut all = Vec::new();
        for (id, guest) in &self.guests {
            let Some(adopted) = &guest.adopted else { continue };
            let port = adopted.port_in(pool);
            let network = match port {
                Some(_) if guest.bypassed.is_some() => Network::Barred,
                Some(port) if pool.filters.read.contains(&port.index) => {
                    let pfs = pool.pfs_of(adopted.bridge_in(pool));
                    Network::Pfs(pfs.map(|(pf, _)| pf.clone()).collect())
                }
                _ => Network::Unread,
            };
            all.push(Managed {
                id: id.clone(),
                incarnation: incarnation(guest.spec.container.as_deref(), adopted.net.identity()),
                mac: adopted.record.mac,
                join: Join::Bond,
                wish: guest.spec.wish.clone(),
                network,
                paravirtual_up: port.is_some_and(|port| port.works()),
                leaving: guest.leaving,
            });
        }
        all
    }
}

/// Whether a guest still exists.
#[derive(Debug, PartialEq)]
enum Presence {
    Present,
    /// Neither present nor known to be gone.
    Unknown,
    Absent,
}

/// Whether a guest still exists, whose namespace exists or not. A source names a namespace by a
/// process, which may end while others of its pod keep the namespace: a guest that the source still has is
/// gone only once it names another namespace.
const fn presence(leaving: bool, container: bool, exists: bool, recorded: bool) -> Presence {
    match (leaving, exists) {
        (true, true) if !recorded => Presence::Absent,
        (_, true) => Presence::Present,
        (true, false) => Presence::Absent,
        (false, false) if recorded && !container => Presence::Absent,
        (false, false) => Presence::Unknown,
    }
}

/// Identity of a run of a guest: that of its container, if any, in that namespace.
fn incarnation(run: Option<&str>, namespace: Identity) -> String {
    let Identity { inode, cookie } = namespace;
    format!("{}/{}", run.unwrap_or_default(), cookie.unwrap_or(inode))
}

/// The namespace's inode; none: it does not exist.
fn inode(netns: &Netns) -> Option<u64> {
    std::fs::metadata(netns.path()).ok().map(|metadata| metadata.ino())
}

impl Guests for Containers {
    fn name(&self) -> &'static str {
        if self.kind == GuestKind::Pod { "pods" } else { "containers" }
    }

    fn kind(&self) -> GuestKind {
        self.kind
    }

    fn discover(&mut self, pool: &PoolView) -> Result<Vec<Managed>> {
        self.take_adopted();
        self.refresh(pool);
        Ok(self.managed(pool))
    }

    fn adoption(&mut self, pool: &PoolView) -> Option<Adoption> {
        self.take_adopted();
        if self.adopting.is_some() {
            return None;
        }
        let (send, result) = mpsc::sync_channel(1);
        let mut guests = self.guests.iter_mut();
        let released =
            guests.find_map(|(id, guest)| Some((id, &guest.spec, guest.released.take()?)));
        if let Some((id, spec, released)) = released {
            let (id, spec, records) = (id.clone(), spec.clone(), self.records.clone());
            self.adopting = Some(Adopting { id, spec, result });
            let restore = move || adopt::restore(released, &records).map(|()| None);
            return Some(Box::new(move || drop(send.send(restore()))));
        }
        let gone = self.next_of(&Presence::Absent).filter(|_| !self.dry_run);
        if let Some((id, guest)) = gone {
            let (id, spec) = (id.clone(), guest.spec.clone());
            let (records, pool) = (self.records.clone(), pool.clone());
            self.adopting = Some(Adopting { id: id.clone(), spec, result });
            let forget = move || adopt::forget(&id, &records, &pool).map(|()| None);
            return Some(Box::new(move || drop(send.send(forget()))));
        }
        let (id, guest) = self.next_of(&Presence::Present)?;
        let (id, spec, pool) = (id.clone(), guest.spec.clone(), pool.clone());
        let settings = AdoptionSettings {
            records: self.records.clone(),
            dry_run: self.dry_run,
            enforce_mac: self.config.enforce_mac,
            guests: self.addresses(),
        };
        self.adopting = Some(Adopting { id: id.clone(), spec: spec.clone(), result });
        let adopt = move || adopt::adopt(&id, &spec, &settings, &pool).map(Some);
        Some(Box::new(move || drop(send.send(adopt()))))
    }

    fn is_pending(&self) -> bool {
        self.adopting.is_some() || self.next_of(&Presence::Present).is_some()
    }

    fn sample(&mut self, now_ms: u64, pool: &PoolView, into: &mut Vec<(GuestId, Sample)>) {
        for (id, guest) in &mut self.guests {
            let Some(adopted) = &mut guest.adopted else { continue };
            let on_vf = adopted.paths().on_vf.clone();
            let (source, reading) = match on_vf {
                None => {
                    let Some(port) = adopted.port_in(pool) else { continue };
                    (u64::from(port.index), Reading::Counted(counters(port)))
                }
                Some((vf, index)) => {
                    let source = 1 << 32 | u64::from(index);
                    match pool.vfs.get(&vf).map(|vf| vf.counters) {
                        Some(Reading::Counted(counters)) => (source, Reading::Counted(counters)),
                        // The kernel's counters in the guest's namespace are as good as the host's. The
                        // bond's, since the VF's include what the NIC delivers for others; of its bytes nobody
                        // can tell those apart.
                        _ => match adopted.bond() {
                            Ok(link) => {
                                (source | COUNTS_FRAMES.start, Reading::Counted(counters(&link)))
                            }
                            _ => (source, Reading::Unsupported),
                        },
                    }
                }
            };
            let sample = Sample { at_ms: now_ms, source, origin: Origin::HostSide, reading };
            into.push((id.clone(), sample));
        }
    }

    fn holdings(&mut self, _pool: &PoolView) -> BTreeMap<GuestId, Option<BTreeMap<VfId, bool>>> {
        let mut holdings = BTreeMap::new();
        for (id, guest) in &mut self.guests {
            let Some(adopted) = &mut guest.adopted else { continue };
            let vfs = adopted.paths().has.clone();
            if vfs.is_empty() {
                continue;
            }
            let has = (|| {
                let active = adopted.bond().ok()?.active;
                let mut has = BTreeMap::new();
                for (vf, index) in &vfs {
                    if adopted.net.indexed(*index).ok()?.is_some() {
                        has.insert(vf.clone(), active == Some(*index));
                    }
                }
                Some(has)
            })();
            if let Some(has) = &has {
                // Its traffic is counted where it is.
                let on_vf = vfs.into_iter().find(|(vf, _)| has.get(vf) == Some(&true));
                adopted.paths().on_vf = on_vf;
            }
            holdings.insert(id.clone(), has);
        }
        holdings
    }

    fn gap(&self) -> Option<String> {
        let missing = self.guests.iter().find(|(id, guest)| {
            guest.adopted.is_none()
                && record::path(&self.records, id).exists()
                && guest.presence(id, &self.records) != Presence::Absent
        });
        // A host whose Docker was never there has no containers.
        let containers = || self.guests.values().any(|guest| guest.spec.container.is_some());
        let source = self.source.as_ref().filter(|source| source.is_present() || containers());
        source
            .and_then(|source| source.gap())
            .or_else(|| missing.map(|(id, _)| format!("{id} could not be adopted again yet")))
    }

    fn find(&mut self, pool: &PoolView) -> Search {
        let adopted =
            |(id, guest): (&GuestId, &Guest)| Some((id.clone(), guest.adopted.as_ref()?.facts()));
        let guests: Vec<_> = self.guests.iter().filter_map(adopted).collect();
        let (pool, gap) = (pool.clone(), self.gap());
        Box::new(move || {
            let mut state = HostState::default();
            let mut host = Net::open()?;
            for (id, facts) in guests {
                let found = facts.open().and_then(|mut guest| guest.find(&id, &pool, &mut host));
                match found {
                    Ok((guest, vfs)) => {
                        state.guests.insert(id.clone(), guest);
                        state.vfs.extend(vfs);
                    }
                    Err(error) => {
                        state.gaps.push(format!("{id} cannot be surveyed: {}", error.what));
                    }
                }
            }
            state.gaps.extend(gap);
            Ok(state)
        })
    }

    fn executor(&mut self, id: &GuestId) -> Performed<Box<dyn Executor>> {
        let adopted = self.guests.get(id).and_then(|guest| guest.adopted.as_ref());
        let Some(adopted) = adopted else {
            return Err(Failure::silent(format!("{id} is gone")));
        };
        Ok(Box::new(ContainerExecutor(adopted.facts())))
    }

    fn release(&mut self, id: &GuestId) {
        if let Some(guest) = self.guests.get_mut(id) {
            guest.released = guest.adopted.take();
        }
    }

    fn configure(&mut self, config: &config::Config) {
        if self.kind == GuestKind::Pod {
            return;
        }
        if config.containers.docker != self.config.docker {
            let docker = Docker::watch(&config.containers.docker);
            self.source = docker.map(|docker| -> Arc<dyn Source> { Arc::new(docker) });
        }
        self.config = config.containers.clone();
    }

    fn troubles(&self) -> Vec<String> {
        self.troubles.clone()
    }
}

#[cfg(test)]
mod tests;
