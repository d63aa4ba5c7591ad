//! Containers, pods and network namespaces as guests: a bond in the guest's namespace joins the veth that it
//! had with a VF, while it has one. Knows no policy.

mod address;
mod adopt;
mod docker;
mod executor;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pw_alloc::execute::{Failure, Performed};
use pw_alloc::model::{GuestId, Mac, Origin, PfId, VfId, Wish};
use pw_alloc::signal::{Reading, Sample};
use pw_alloc::step::Join;
use pw_alloc::world::Found;
use pw_error::Result;
use pw_linux::netns::Netns;

use crate::daemon::config;
use crate::daemon::guests::source::{KnownContainers, Source};
use crate::daemon::guests::{Discovery, Finding, Guests, Managed};
use crate::daemon::net::{Identity, Link, Net};
use crate::daemon::pool::{PoolPf, PoolView};
use crate::daemon::status::GuestKind;
use crate::daemon::tasks::Executor;

use adopt::{Adopted, AdoptionSettings};
use docker::Docker;
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

/// A guest that is known.
#[derive(Debug)]
struct Known {
    spec: Spec,
    adopted: Option<Adopted>,
    /// It is no longer wanted.
    leaving: bool,
    retry_at: Option<Instant>,
    /// Why it could not be adopted.
    refused: Option<String>,
    /// The filter on the host that a VF would bypass.
    bypassed: Option<String>,
}

impl Known {
    const fn new(spec: Spec, leaving: bool) -> Self {
        Self { spec, adopted: None, leaving, retry_at: None, refused: None, bypassed: None }
    }
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
    home: Net,
    known: BTreeMap<GuestId, Known>,
    /// The guests as last published.
    published: Vec<Managed>,
    /// They are to be published again, changed or not.
    unpublished: bool,
    troubles: Vec<String>,
    /// The host's interfaces, as of the last sample.
    links: BTreeMap<u32, Link>,
}

impl Containers {
    /// Docker's containers and the namespaces of this configuration; records are kept in the state
    /// directory.
    ///
    /// # Errors
    /// The kernel gives no socket.
    pub fn new(config: &config::Config, dry_run: bool) -> Result<Self> {
        let docker = Docker::watch(&config.containers.docker);
        let source = docker.map(|docker| -> Arc<dyn Source> { Arc::new(docker) });
        Self::of(source, GuestKind::Container, "guests", config, dry_run)
    }

    /// The pods of this source.
    ///
    /// # Errors
    /// The kernel gives no socket.
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
        let mut known = BTreeMap::new();
        // Guests that were managed, and may no longer be wanted.
        for record in record::all(&records)? {
            let spec = Spec {
                netns: record.netns.parse()?,
                interface: Some(record.interface.clone()),
                container: record.container.clone(),
                macs: Vec::new(),
                wish: Wish::default(),
            };
            let id = record.guest.clone();
            known.insert(id, Known::new(spec, true));
        }
        Ok(Self {
            source,
            kind,
            config: config.containers.clone(),
            records,
            dry_run,
            bypass_filters: config.pool.bypass_filters,
            home: Net::here()?,
            known,
            published: Vec::new(),
            unpublished: true,
            troubles: Vec::new(),
            links: BTreeMap::new(),
        })
    }

    /// The wanted guests. Containers are left out while they are unknown.
    fn wanted(&mut self) -> BTreeMap<GuestId, Spec> {
        let mut wanted = BTreeMap::new();
        for (name, namespace) in &self.config.namespaces {
            let netns = namespace.netns.as_deref().unwrap_or(name);
            // The configuration has been checked.
            let Ok(netns) = netns.parse::<Netns>() else { continue };
            let interface = namespace.interface.clone();
            let (macs, wish) = (namespace.mac.into_iter().collect(), Wish::default());
            let spec = Spec { netns, interface, container: None, macs, wish };
            wanted.insert(GuestId::from(name.as_str()), spec);
        }
        if let Some(source) = &self.source {
            let seen = source.state();
            self.troubles.extend(seen.trouble);
            let containers = match seen.containers {
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
                wanted.entry(container.id).or_insert(spec);
            }
        }
        wanted
    }

    fn refresh(&mut self, pool: &PoolView) {
        self.troubles.clear();
        let wanted = self.wanted();
        let unanswered = self.source.as_ref().is_some_and(|source| source.gap().is_some());
        for (id, known) in &mut self.known {
            // Of containers nothing is known while the source does not answer: they stay as they are.
            let unknown = unanswered && known.spec.container.is_some();
            known.leaving = !wanted.contains_key(id) && !unknown;
        }
        for (id, spec) in wanted {
            match self.known.get_mut(&id) {
                Some(known) if known.spec == spec => {}
                Some(known) => {
                    // Another namespace under the same name is another guest; the bond goes with the
                    // old one.
                    if known.spec.netns != spec.netns || known.spec.container != spec.container {
                        known.adopted = None;
                        known.retry_at = None;
                    }
                    known.spec = spec;
                }
                None => {
                    self.known.insert(id, Known::new(spec, false));
                }
            }
        }
        let mut gone = Vec::new();
        let mut guests = self.addresses();
        for (id, known) in &mut self.known {
            let inode = inode(&known.spec.netns);
            if known.adopted.as_ref().is_some_and(|adopted| Some(adopted.inode) != inode) {
                // Nothing of ours must keep the namespace alive: the kernel sends its VF home.
                known.adopted = None;
                known.retry_at = None;
            }
            let recorded = record::path(&self.records, id).exists();
            match fate(known.leaving, known.spec.container.is_some(), inode.is_some(), recorded) {
                Fate::Gone => {
                    gone.push(id.clone());
                    continue;
                }
                Fate::Unknown => continue,
                Fate::There => {}
            }
            let due = known.retry_at.is_none_or(|again| again <= Instant::now());
            if known.adopted.is_some() || !due {
                continue;
            }
            let settings = AdoptionSettings {
                records: &self.records,
                dry_run: self.dry_run,
                enforce_mac: self.config.enforce_mac,
                guests: &guests,
            };
            match adopt::adopt(id, &known.spec, &settings, &mut self.home, pool) {
                Ok(adopted) => {
                    guests.push((id.clone(), adopted.record.mac));
                    known.adopted = Some(adopted);
                    (known.retry_at, known.refused) = (None, None);
                }
                Err(error) => {
                    known.refused = Some(error.what);
                    known.retry_at = Some(Instant::now() + RETRY_AFTER);
                }
            }
        }
        self.look_at_filters(pool);
        self.set_refused();
        for id in gone {
            if let Err(error) = self.forget(&id, pool) {
                self.troubles.push(error.what);
            }
            if self.known.get(&id).is_some_and(|known| known.leaving) {
                self.known.remove(&id);
            }
        }
    }

    /// The guests that are managed, with their addresses.
    fn addresses(&self) -> Vec<(GuestId, Mac)> {
        let adopted = |known: &Known| known.adopted.as_ref().map(|adopted| adopted.record.mac);
        self.known.iter().filter_map(|(id, known)| Some((id.clone(), adopted(known)?))).collect()
    }

    /// Sees whose frames the host filters: that may begin and end at any moment.
    fn look_at_filters(&mut self, pool: &PoolView) {
        for known in self.known.values_mut() {
            let adopted = known.adopted.as_ref().filter(|_| !self.bypass_filters);
            known.bypassed = adopted.and_then(|adopted| {
                let pfs: Vec<&str> = adopted.pfs.iter().map(PfId::as_str).collect();
                pool.filters.bypassed(adopted.bridge.as_deref()?, &adopted.port_name, &pfs, false)
            });
        }
    }

    /// Tells the source, and the status, who cannot be given a VF.
    fn set_refused(&mut self) {
        let mut refused = BTreeMap::new();
        for (id, known) in &self.known {
            if known.leaving {
                continue;
            }
            let (verb, why) = match (&known.bypassed, &known.refused) {
                (Some(filter), _) => {
                    ("gets no VF", format!("it would bypass {filter} ([pool] bypass_filters)"))
                }
                (None, Some(why)) => ("cannot be managed", why.clone()),
                (None, None) => continue,
            };
            self.troubles.push(format!("{id} {verb}: {why}"));
            refused.insert(id.clone(), why);
        }
        if let Some(source) = &self.source {
            source.set_refused(refused);
        }
    }

    /// Removes the entries in NICs and bridges of a guest that is gone with its namespace.
    fn forget(&mut self, id: &GuestId, pool: &PoolView) -> Result<()> {
        if self.dry_run {
            return Ok(());
        }
        if let Some(record) = record::read(&self.records, id)? {
            adopt::forget_address(record.mac, &mut self.home, pool)?;
            record::remove(&self.records, id)?;
        }
        Ok(())
    }

    fn managed(&self) -> Vec<Managed> {
        let mut all = Vec::new();
        for (id, known) in &self.known {
            let Some(adopted) = &known.adopted else { continue };
            let port = self.links.get(&adopted.port);
            let mut wish = known.spec.wish.clone();
            if wish.pfs.is_empty() {
                wish.pfs.clone_from(&adopted.pfs);
            }
            all.push(Managed {
                id: id.clone(),
                incarnation: incarnation(known.spec.container.as_deref(), adopted.net.identity()),
                mac: adopted.record.mac,
                join: Join::Bond,
                wish,
                barred: known.bypassed.is_some(),
                paravirtual_up: port.is_none_or(|port| port.up && port.carrier),
                leaving: known.leaving,
            });
        }
        all
    }
}

/// Whether a guest is still there.
#[derive(Debug, PartialEq)]
enum Fate {
    There,
    /// Neither seen nor known to be gone.
    Unknown,
    Gone,
}

/// Whether a guest is still there, whose namespace is `there` or not. A source names a namespace by a
/// process, which may end while others of its pod keep the namespace: a guest that the source still has is
/// gone only once it names another namespace.
const fn fate(leaving: bool, container: bool, there: bool, recorded: bool) -> Fate {
    match (leaving, there) {
        (true, true) if !recorded => Fate::Gone,
        (_, true) => Fate::There,
        (true, false) => Fate::Gone,
        (false, false) if recorded && !container => Fate::Gone,
        (false, false) => Fate::Unknown,
    }
}

/// Identity of a run of a guest: that of its container, if any, in that namespace.
fn incarnation(run: Option<&str>, namespace: Identity) -> String {
    let Identity { inode, cookie } = namespace;
    format!("{}/{}", run.unwrap_or_default(), cookie.unwrap_or(inode))
}

/// The namespace's inode; none: it is not there.
fn inode(netns: &Netns) -> Option<u64> {
    std::fs::metadata(netns.path()).ok().map(|found| found.ino())
}

/// The PFs that are ports of this bridge.
fn pfs_of<'a>(
    pool: &'a PoolView,
    bridge: Option<&'a str>,
) -> impl Iterator<Item = (&'a PfId, &'a PoolPf)> {
    pool.pfs.iter().filter(move |(_, pf)| bridge.is_some() && pf.bridge.as_deref() == bridge)
}

impl Guests for Containers {
    fn name(&self) -> &'static str {
        if self.kind == GuestKind::Pod { "pods" } else { "containers" }
    }

    fn kind(&self) -> GuestKind {
        self.kind
    }

    fn discover(&mut self, pool: &PoolView) -> Result<Discovery> {
        self.refresh(pool);
        let managed = self.managed();
        if managed == self.published && !std::mem::take(&mut self.unpublished) {
            return Ok(Discovery::Unchanged);
        }
        self.published.clone_from(&managed);
        Ok(Discovery::Guests(managed))
    }

    fn sample(&mut self, now_ms: u64, pool: &PoolView, into: &mut Vec<(GuestId, Sample)>) {
        if self.known.is_empty() {
            return;
        }
        let Ok(links) = self.home.all() else { return };
        self.links = links.into_iter().map(|link| (link.index, link)).collect();
        for (id, known) in &mut self.known {
            let Some(adopted) = &mut known.adopted else { continue };
            let on_vf = adopted.paths().on_vf.clone();
            let (source, reading) = match on_vf {
                None => {
                    let Some(port) = self.links.get(&adopted.port) else { continue };
                    (u64::from(port.index), Reading::Counted(port.counters))
                }
                Some((vf, index)) => {
                    let source = 1 << 32 | u64::from(index);
                    match pool.vfs.get(&vf).map(|vf| vf.counters) {
                        Some(Reading::Counted(counters)) => (source, Reading::Counted(counters)),
                        // The kernel's own, in the guest's namespace: as good as the host's. The bond's,
                        // since the VF's own count what the NIC delivers for others, too.
                        _ => match adopted.net.indexed(adopted.bond) {
                            Ok(Some(link)) => (source | 1 << 33, Reading::Counted(link.counters)),
                            _ => (source, Reading::Unsupported),
                        },
                    }
                }
            };
            let sample = Sample { at_ms: now_ms, source, origin: Origin::HostSide, reading };
            into.push((id.clone(), sample));
        }
    }

    fn holdings(&mut self, _pool: &PoolView) -> BTreeMap<GuestId, Option<BTreeSet<VfId>>> {
        let mut holdings = BTreeMap::new();
        for (id, known) in &mut self.known {
            let Some(adopted) = &mut known.adopted else { continue };
            let there = adopted.paths().has.clone();
            if there.is_empty() {
                continue;
            }
            let mut has = Some(BTreeSet::new());
            for (vf, index) in &there {
                match adopted.net.indexed(*index) {
                    Ok(None) => {}
                    Ok(Some(_)) => {
                        has.as_mut().map(|has| has.insert(vf.clone()));
                    }
                    Err(_) => has = None,
                }
            }
            holdings.insert(id.clone(), has);
        }
        holdings
    }

    fn gap(&self) -> Option<String> {
        let recorded = |id: &GuestId| record::path(&self.records, id).exists();
        let missing = self.known.iter().find(|(id, known)| {
            let there = inode(&known.spec.netns).is_some();
            let container = known.spec.container.is_some();
            known.adopted.is_none()
                && recorded(id)
                && fate(known.leaving, container, there, true) != Fate::Gone
        });
        // A host whose Docker was never there has no containers.
        let containers = || self.known.values().any(|known| known.spec.container.is_some());
        let source = self.source.as_ref().filter(|source| source.is_present() || containers());
        source
            .and_then(|source| source.gap())
            .or_else(|| missing.map(|(id, _)| format!("{id} could not be taken in again yet")))
    }

    fn republish(&mut self) {
        self.published.clear();
        self.unpublished = true;
    }

    fn find(&mut self, pool: &PoolView) -> Finding {
        let mut found = Found::default();
        for (id, known) in &mut self.known {
            let Some(adopted) = &mut known.adopted else { continue };
            match adopted.find(id, pool, &mut self.home) {
                Ok((guest, vfs)) => {
                    found.guests.insert(id.clone(), guest);
                    found.vfs.extend(vfs);
                }
                Err(error) => found.gaps.push(format!("{id} cannot be looked at: {}", error.what)),
            }
        }
        found.gaps.extend(self.gap());
        Finding::Found(found)
    }

    fn executor(&mut self, id: &GuestId) -> Performed<Box<dyn Executor>> {
        let adopted = self.known.get(id).and_then(|known| known.adopted.as_ref());
        let Some(adopted) = adopted else {
            return Err(Failure::silent(format!("{id} is gone")));
        };
        Ok(Box::new(adopted.try_clone().and_then(ContainerExecutor::new)?))
    }

    fn release(&mut self, guest: &GuestId) -> Result<()> {
        if let Some(known) = self.known.get_mut(guest)
            && let Some(adopted) = &mut known.adopted
        {
            adopt::restore(adopted, &mut self.home, &self.records)?;
            record::remove(&self.records, guest)?;
        }
        self.known.remove(guest);
        self.published.retain(|told| told.id != *guest);
        Ok(())
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
mod tests {
    use super::*;

    #[test]
    fn another_namespace_of_the_same_inode_and_another_start_of_a_container_are_other_guests() {
        let namespace = |inode, cookie| Identity { inode, cookie };
        let first = incarnation(Some("0a1b 10:00"), namespace(7, Some(70)));
        assert_eq!(first, incarnation(Some("0a1b 10:00"), namespace(7, Some(70))));
        assert_ne!(first, incarnation(Some("0a1b 10:00"), namespace(7, Some(71))));
        assert_ne!(first, incarnation(Some("0a1b 10:05"), namespace(7, Some(70))));
        // Before Linux 5.14 the inode is all there is.
        assert_ne!(incarnation(None, namespace(7, None)), incarnation(None, namespace(8, None)));
    }
    #[test]
    fn a_container_whose_named_process_ended_is_not_taken_for_gone_while_it_is_told_of() {
        let (leaving, container, there, recorded) = (true, true, true, true);
        assert_eq!(fate(!leaving, container, !there, recorded), Fate::Unknown);
        assert_eq!(fate(leaving, container, !there, recorded), Fate::Gone);
        assert_eq!(fate(!leaving, container, there, recorded), Fate::There);
        // A name of the configuration names its namespace itself.
        assert_eq!(fate(!leaving, !container, !there, recorded), Fate::Gone);
        assert_eq!(fate(!leaving, !container, !there, !recorded), Fate::Unknown);
        // To be given back first.
        assert_eq!(fate(leaving, container, there, recorded), Fate::There);
        assert_eq!(fate(leaving, container, there, !recorded), Fate::Gone);
    }
}
