//! Containers and network namespaces as guests: a bond in the guest's namespace joins the veth that it
//! had with a VF, while it has one. Knows nothing of who deserves a VF.

mod adopt;
mod docker;
mod record;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path as FilePath, PathBuf};
use std::time::{Duration, Instant};

use pw_alloc::execute::Failure;
use pw_alloc::model::{GuestId, Mac, Origin, PfId, VfId, Wish};
use pw_alloc::signal::{Reading, Sample};
use pw_alloc::step::{Join, Path, Step};
use pw_alloc::world::{Found, FoundGuest, FoundVf, Place};
use pw_linux::error::{Error, Result};
use pw_linux::netns::Netns;
use pw_sriov::link::{Change, Links, Setting};

use crate::daemon::config;
use crate::daemon::failpoint;
use crate::daemon::guests::{Discovery, Guests, Managed};
use crate::daemon::net::{Link, Net};
use crate::daemon::pool::{PoolPf, PoolView};
use crate::daemon::status::GuestKind;

use adopt::Adopted;
use docker::Docker;

/// What a VF's interface is called in a guest.
const VF_NAME: &str = "pw-vf";
/// How long it waits before it tries again to manage a guest that could not be.
const AGAIN: Duration = Duration::from_secs(5);
/// How long both paths of a guest are heard while it goes from one to the other: longer than a frame
/// takes through the host.
const OVERLAP: Duration = Duration::from_millis(10);
/// Between two looks at something that is waited for.
const PAUSE: Duration = Duration::from_millis(10);

/// A guest as somebody asked for it.
#[derive(Debug, Clone, PartialEq)]
struct Spec {
    netns: Netns,
    /// Its interface; none: its only veth.
    interface: Option<String>,
    wish: Wish,
}

/// A guest that is known.
#[derive(Debug)]
struct Known {
    spec: Spec,
    adopted: Option<Adopted>,
    /// Nobody asks for it any more.
    leaving: bool,
    again: Option<Instant>,
}

/// The containers and namespaces of a host.
#[derive(Debug)]
pub struct Containers {
    config: config::Containers,
    docker: Option<Docker>,
    records: PathBuf,
    dry_run: bool,
    home: Net,
    known: BTreeMap<GuestId, Known>,
    /// What was told last.
    told: Vec<Managed>,
    troubles: Vec<String>,
    /// The host's interfaces, as of the last sample.
    links: BTreeMap<u32, Link>,
}

impl Containers {
    /// The guests of this configuration; what is known of them is kept in this directory.
    ///
    /// # Errors
    /// The kernel gives no socket.
    pub fn new(
        config: &config::Containers,
        state_directory: &FilePath,
        dry_run: bool,
    ) -> Result<Self> {
        let records = state_directory.join("guests");
        let mut known = BTreeMap::new();
        // Guests that were managed, and that nobody may ask for any more.
        for record in record::all(&records)? {
            let spec = Spec {
                netns: record.netns.parse()?,
                interface: Some(record.interface.clone()),
                wish: Wish::default(),
            };
            let id = record.guest.clone();
            known.insert(id, Known { spec, adopted: None, leaving: true, again: None });
        }
        Ok(Self {
            docker: Docker::watch(&config.docker),
            config: config.clone(),
            records,
            dry_run,
            home: Net::here()?,
            known,
            told: Vec::new(),
            troubles: Vec::new(),
            links: BTreeMap::new(),
        })
    }

    /// Who is asked for now.
    fn wanted(&mut self) -> BTreeMap<GuestId, Spec> {
        let mut wanted = BTreeMap::new();
        for (name, namespace) in &self.config.namespaces {
            let netns = namespace.netns.as_deref().unwrap_or(name);
            // The configuration has been checked.
            let Ok(netns) = netns.parse::<Netns>() else { continue };
            let interface = namespace.interface.clone();
            let spec = Spec { netns, interface, wish: Wish::default() };
            wanted.insert(GuestId::from(name.as_str()), spec);
        }
        if let Some(docker) = &self.docker {
            let seen = docker.seen();
            self.troubles.extend(seen.trouble);
            for container in seen.containers {
                let spec = Spec {
                    netns: Netns::Pid(container.pid),
                    interface: container.interface,
                    wish: container.wish,
                };
                wanted.entry(container.id).or_insert(spec);
            }
        }
        wanted
    }

    fn look(&mut self, pool: &PoolView) {
        self.troubles.clear();
        let wanted = self.wanted();
        for (id, known) in &mut self.known {
            known.leaving = !wanted.contains_key(id);
        }
        for (id, spec) in wanted {
            match self.known.get_mut(&id) {
                Some(known) if known.spec == spec => {}
                Some(known) => {
                    // Another namespace under the same name is another guest; the bond goes with the
                    // old one.
                    if known.spec.netns != spec.netns {
                        known.adopted = None;
                    }
                    known.spec = spec;
                }
                None => {
                    let known = Known { spec, adopted: None, leaving: false, again: None };
                    self.known.insert(id, known);
                }
            }
        }
        let mut gone = Vec::new();
        for (id, known) in &mut self.known {
            let inode = inode(&known.spec.netns);
            if known.adopted.as_ref().is_some_and(|adopted| Some(adopted.inode) != inode) {
                // Nothing of ours must keep the namespace alive: the kernel sends its VF home.
                known.adopted = None;
                known.again = None;
            }
            let recorded = record::path(&self.records, id).exists();
            if inode.is_none() {
                if known.leaving || recorded {
                    gone.push(id.clone());
                }
                continue;
            }
            if known.leaving && !recorded {
                gone.push(id.clone());
                continue;
            }
            let due = known.again.is_none_or(|again| again <= Instant::now());
            if known.adopted.is_some() || !due {
                continue;
            }
            let taken =
                adopt::adopt(id, &known.spec, &self.records, &mut self.home, pool, self.dry_run);
            match taken {
                Ok(adopted) => {
                    known.adopted = Some(adopted);
                    known.again = None;
                }
                Err(error) => {
                    self.troubles.push(format!("{id} cannot be managed: {}", error.what));
                    known.again = Some(Instant::now() + AGAIN);
                }
            }
        }
        for id in gone {
            if let Err(error) = self.forget(&id, pool) {
                self.troubles.push(error.what);
            }
            if self.known.get(&id).is_some_and(|known| known.leaving) {
                self.known.remove(&id);
            }
        }
    }

    /// A guest is gone with its namespace: what NICs and bridges know of it goes, too.
    fn forget(&mut self, id: &GuestId, pool: &PoolView) -> Result<()> {
        if self.dry_run {
            return Ok(());
        }
        if let Some(record) = record::read(&self.records, id)? {
            for pf in pool.pfs.values() {
                self.home.nic_takes(record.mac, pf.index, false)?;
                self.home.bridge_forgets(record.mac, pf.index)?;
            }
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
                mac: adopted.record.mac,
                join: Join::Bond,
                wish,
                paravirtual_up: port.is_none_or(|port| port.up && port.carrier),
                leaving: known.leaving,
            });
        }
        all
    }

    fn adopted(&mut self, id: &GuestId) -> std::result::Result<(&mut Adopted, &mut Net), Failure> {
        let known = self.known.get_mut(id);
        match known.and_then(|known| known.adopted.as_mut()) {
            Some(adopted) => Ok((adopted, &mut self.home)),
            None => Err(Failure { why: format!("{id} is gone"), guest_silent: true }),
        }
    }
}

/// The namespace's inode; none: it is not there.
fn inode(netns: &Netns) -> Option<u64> {
    std::fs::metadata(netns.path()).ok().map(|found| found.ino())
}

fn failed(error: Error) -> Failure {
    Failure { why: error.what, guest_silent: false }
}

fn silent(why: String) -> Failure {
    Failure { why, guest_silent: true }
}

/// The PFs that are ports of this bridge.
fn pfs_of<'a>(
    pool: &'a PoolView,
    bridge: Option<&'a str>,
) -> impl Iterator<Item = (&'a PfId, &'a PoolPf)> {
    pool.pfs.iter().filter(move |(_, pf)| bridge.is_some() && pf.bridge.as_deref() == bridge)
}

/// The address of a member that the guest does not send by: nobody else's, and the same each time.
fn resting(of: &str) -> Mac {
    // FNV-1a.
    let hash = of
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let [_, a, b, c] = hash.to_be_bytes();
    Mac([0x06, 0x70, 0x76, a, b, c])
}

impl Adopted {
    /// The interface of a VF in the guest.
    fn vf_link(&mut self, pool: &PoolView, vf: &VfId) -> Result<Option<Link>> {
        let Some(address) = pool.vfs.get(vf).map(|vf| vf.address.to_string()) else {
            return Ok(None);
        };
        let links = self.net.all()?;
        Ok(links.into_iter().find(|link| link.device.as_deref() == Some(&address)))
    }

    fn bond(&mut self) -> Result<Link> {
        let gone = format!("its bond {} is gone", self.record.interface);
        self.net.indexed(self.bond)?.ok_or_else(|| Error::failed(gone, ""))
    }

    fn veth(&mut self) -> Result<Link> {
        let gone = format!("its veth {} is gone", adopt::VETH_NAME);
        self.net.indexed(self.veth)?.ok_or_else(|| Error::failed(gone, ""))
    }

    fn attach(&mut self, home: &mut Net, pool: &PoolView, vf: &VfId) -> Result<()> {
        let bond = self.bond()?;
        let known = pool.vfs.get(vf).ok_or_else(|| {
            Error::failed(format!("the VF {vf} is not known"), "`planewised vf list` shows them")
        })?;
        if self.vf_link(pool, vf)?.is_none() {
            let address = known.address.to_string();
            let here = home.all()?;
            let link = here
                .iter()
                .find(|link| link.device.as_deref() == Some(&address))
                .ok_or_else(|| {
                    let driver = known.driver.as_deref().unwrap_or("none");
                    Error::failed(
                        format!("the VF {vf} has no interface here: its driver is {driver}"),
                        format!("planewised vf bind {vf} netdev"),
                    )
                })?;
            if let Some(pf) = pool.pfs.get(&vf.pf) {
                // An address that the PF was told could not be replaced by the bond's.
                let none = Setting::Mac(pw_sriov::mac::Mac::NONE);
                let told = Links::open()?.set_vf(pf.index, u32::from(vf.index), none)?;
                told.map_err(|code| {
                    let why = pw_sriov::kernel::explain(code);
                    Error::failed(format!("cannot clear the address of {vf}: {why}"), "")
                })?;
            }
            home.change(link, &Change::Up(false))?;
            let netns = self.open()?;
            home.carry(link, netns.as_fd(), VF_NAME)?;
        }
        failpoint::reached(|| "inside/attach".to_owned());
        let link = self.vf_link(pool, vf)?.ok_or_else(|| {
            Error::failed(format!("{vf} did not arrive in the guest's namespace"), "")
        })?;
        if link.master != Some(bond.index) {
            self.net.change(&link, &Change::Up(false))?;
            if link.mtu_bytes != bond.mtu_bytes {
                self.net.change(&link, &Change::MtuBytes(bond.mtu_bytes))?;
            }
            self.net.enslave(&link, Some(bond.index))?;
        }
        Ok(())
    }

    /// Opens the guest's namespace.
    fn open(&self) -> Result<File> {
        let gone = |why: String| Error::failed(format!("the guest's namespace is gone: {why}"), "");
        let file = File::open(self.netns.path()).map_err(|error| gone(error.to_string()))?;
        let inode = file.metadata().map_err(|error| gone(error.to_string()))?.ino();
        if inode != self.inode {
            return Err(gone("another one has its name".to_owned()));
        }
        Ok(file)
    }

    fn await_path(
        &mut self,
        pool: &PoolView,
        vf: &VfId,
        deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        loop {
            let link = self.vf_link(pool, vf).map_err(failed)?;
            let Some(link) = link else { return Err(silent(format!("{vf} left the guest"))) };
            if link.up && link.carrier && link.member_up == Some(true) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let what = if link.up { "has no link" } else { "is down" };
                return Err(failed(Error::failed(format!("{vf} {what} in the guest"), "")));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn give_mac(&mut self, link: &Link, mac: Mac) -> Result<()> {
        match self.net.indexed(link.index)? {
            Some(now) if now.mac == Some(mac) => Ok(()),
            _ => self.net.change(link, &Change::Mac(pw_sriov::mac::Mac(mac.0))),
        }
    }

    /// The guest sends by `path` and is reached by it. For a moment both members hear the guest's
    /// frames and both have its address, so that none falls between them: some come twice.
    fn prefer(&mut self, home: &mut Net, pool: &PoolView, path: &Path) -> Result<()> {
        let bond = self.bond()?;
        let veth = self.veth()?;
        let mac = self.record.mac;
        self.net.hear_all(&bond, true)?;
        let done = match path {
            Path::Vf(vf) => self.go_to_vf(home, pool, vf, &bond, &veth),
            Path::Paravirtual => self.go_to_veth(home, pool, &bond, &veth),
        };
        self.net.hear_all(&bond, false)?;
        done?;
        self.on_vf = None;
        if let Path::Vf(vf) = path {
            let link = self.vf_link(pool, vf)?;
            let Some(link) = link.filter(|link| link.mac == Some(mac)) else {
                return Err(Error::failed(
                    format!("{vf} did not take the guest's address {mac}"),
                    "its PF must let it: ip link set PF vf N trust on",
                ));
            };
            self.on_vf = Some((vf.clone(), link.index));
        }
        Ok(())
    }

    fn go_to_vf(
        &mut self,
        home: &mut Net,
        pool: &PoolView,
        vf: &VfId,
        bond: &Link,
        veth: &Link,
    ) -> Result<()> {
        let mac = self.record.mac;
        let link = self
            .vf_link(pool, vf)?
            .ok_or_else(|| Error::failed(format!("{vf} is not in the guest"), ""))?;
        // The NIC sends to the VF from here on, and the VF is heard.
        self.give_mac(&link, mac)?;
        failpoint::reached(|| "inside/prefer-vf".to_owned());
        self.net.set_active(bond, &link)?;
        self.direct(home, pool, &Path::Vf(vf.clone()))?;
        // What is still on its way by the bridge arrives while the veth has the address, too.
        std::thread::sleep(OVERLAP);
        self.give_mac(veth, resting(&mac.to_string()))
    }

    fn go_to_veth(
        &mut self,
        home: &mut Net,
        pool: &PoolView,
        bond: &Link,
        veth: &Link,
    ) -> Result<()> {
        let mac = self.record.mac;
        self.give_mac(veth, mac)?;
        if bond.active != Some(veth.index) {
            self.net.set_active(bond, veth)?;
        }
        failpoint::reached(|| "inside/prefer-veth".to_owned());
        self.direct(home, pool, &Path::Paravirtual)?;
        // What the VF has received and not handed on yet has come by the PF, too, by then.
        std::thread::sleep(OVERLAP);
        for link in self.net.all()? {
            if link.master == Some(bond.index)
                && link.mac == Some(mac)
                && let Some(device) = &link.device
            {
                let rest = resting(device);
                self.give_mac(&link, rest)?;
            }
        }
        Ok(())
    }

    fn direct(&mut self, home: &mut Net, pool: &PoolView, path: &Path) -> Result<()> {
        let mac = self.record.mac;
        match path {
            Path::Vf(vf) => {
                let Some(pf) = pool.pfs.get(&vf.pf) else { return Ok(()) };
                if pf.bridge == self.bridge && pf.bridge.is_some() {
                    home.bridge_sends(mac, pf.index, true)?;
                }
                home.nic_takes(mac, pf.index, false)?;
            }
            Path::Paravirtual => {
                for (_, pf) in pfs_of(pool, self.bridge.as_deref()) {
                    home.nic_takes(mac, pf.index, true)?;
                }
                if self.bridge.is_some() {
                    home.bridge_sends(mac, self.port, true)?;
                }
            }
        }
        Ok(())
    }

    fn verify(&mut self, home: &mut Net, pool: &PoolView, path: &Path) -> Result<()> {
        let mac = self.record.mac;
        let no = |what: String| Err(Error::failed(what, ""));
        match path {
            Path::Paravirtual => {
                let veth = self.veth()?;
                let port = home.indexed(self.port)?;
                if !(veth.up && veth.carrier) || veth.master != Some(self.bond) {
                    return no(format!("{} in the guest is down", veth.name));
                }
                if port.is_none_or(|port| !port.up || !port.carrier) {
                    return no("the host's end of its veth is down".to_owned());
                }
            }
            Path::Vf(vf) => {
                let bond = self.bond()?;
                let Some(link) = self.vf_link(pool, vf)? else {
                    return no(format!("{vf} is not in the guest"));
                };
                if bond.active != Some(link.index) {
                    return no(format!("the guest does not send by {vf}"));
                }
                if !link.carrier || link.mac != Some(mac) {
                    return no(format!("{vf} has no link or not the guest's address"));
                }
                let told = Links::open()?.vfs(vf.pf.as_str())?.unwrap_or_default();
                let told = told
                    .iter()
                    .find(|info| info.index == u32::from(vf.index))
                    .and_then(|info| info.config.mac);
                // A PF that does not say (zeros) has not said otherwise.
                if told.is_some_and(|told| told.0 != mac.0 && told.0 != Mac::ZERO.0) {
                    return no(format!("the NIC does not send {mac} to {vf}"));
                }
            }
        }
        Ok(())
    }

    fn detach(&mut self, home: &mut Net, pool: &PoolView, vf: &VfId) -> Result<()> {
        let Some(link) = self.vf_link(pool, vf)? else { return Ok(()) };
        if link.master.is_some() {
            self.net.enslave(&link, None)?;
        }
        failpoint::reached(|| "inside/detach".to_owned());
        self.net.change(&link, &Change::Up(false))?;
        let taken: Vec<String> = home.all()?.into_iter().map(|link| link.name).collect();
        let name = (0..).map(|number| format!("vf{number}")).find(|name| !taken.contains(name));
        let here = File::open("/proc/thread-self/ns/net")
            .map_err(|error| Error::failed(format!("cannot open this namespace: {error}"), ""))?;
        self.net.carry(&link, here.as_fd(), &name.unwrap_or_default())?;
        self.on_vf = None;
        Ok(())
    }

    /// What is of it in the world.
    fn find(
        &mut self,
        id: &GuestId,
        pool: &PoolView,
        home: &mut Net,
    ) -> Result<(FoundGuest, BTreeMap<VfId, FoundVf>)> {
        let mac = self.record.mac;
        let links = self.net.all()?;
        let bond = links.iter().find(|link| link.index == self.bond);
        let veth = links.iter().find(|link| link.index == self.veth);
        let port = home.indexed(self.port)?;
        let mut found = FoundGuest {
            mac,
            join: Join::Bond,
            answers: bond.is_some(),
            paravirtual_up: veth.is_some_and(|veth| veth.up && veth.carrier)
                && port.is_some_and(|port| port.up && port.carrier),
            vf_up: false,
            active: Path::Paravirtual,
            directed: Path::Paravirtual,
        };
        let mut vfs = BTreeMap::new();
        self.on_vf = None;
        let forwards = home.forwards()?;
        for (vf, seen) in &pool.vfs {
            let address = seen.address.to_string();
            let Some(link) = links.iter().find(|link| link.device.as_deref() == Some(&address))
            else {
                continue;
            };
            let has = seen.mac == mac || link.mac == Some(mac);
            let place = Place::Guest(id.clone());
            vfs.insert(vf.clone(), FoundVf { mac: if has { mac } else { Mac::ZERO }, place });
            let member = link.master == Some(self.bond);
            found.vf_up |= member && link.up && link.carrier && link.member_up == Some(true);
            if bond.is_some_and(|bond| bond.active == Some(link.index)) && has {
                found.active = Path::Vf(vf.clone());
                self.on_vf = Some((vf.clone(), link.index));
            }
            let Some(pf) = pool.pfs.get(&vf.pf) else { continue };
            let on_pf = |own: bool| {
                forwards
                    .iter()
                    .any(|entry| entry.mac == mac && entry.index == pf.index && entry.own == own)
            };
            let bridged = pf.bridge == self.bridge && pf.bridge.is_some();
            if !on_pf(true) && (!bridged || on_pf(false)) {
                found.directed = Path::Vf(vf.clone());
            }
        }
        Ok((found, vfs))
    }
}

impl Guests for Containers {
    fn name(&self) -> &'static str {
        "containers"
    }

    fn kind(&self) -> GuestKind {
        GuestKind::Container
    }

    fn discover(&mut self, pool: &PoolView) -> Result<Discovery> {
        self.look(pool);
        let managed = self.managed();
        if managed == self.told {
            return Ok(Discovery::Unchanged);
        }
        self.told.clone_from(&managed);
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
            let (source, reading) = match adopted.on_vf.clone() {
                None => {
                    let Some(port) = self.links.get(&adopted.port) else { continue };
                    (u64::from(port.index), Reading::Counted(port.counters))
                }
                Some((vf, index)) => {
                    let source = 1 << 32 | u64::from(index);
                    match pool.vfs.get(&vf).map(|vf| vf.counters) {
                        Some(Reading::Counted(counters)) => (source, Reading::Counted(counters)),
                        // The kernel's own, in the guest's namespace: as good as the host's.
                        _ => match adopted.net.indexed(index) {
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

    fn find(&mut self, pool: &PoolView) -> Result<Found> {
        let mut found = Found::default();
        for (id, known) in &mut self.known {
            let Some(adopted) = &mut known.adopted else { continue };
            let (guest, vfs) = adopted.find(id, pool, &mut self.home)?;
            found.guests.insert(id.clone(), guest);
            found.vfs.extend(vfs);
        }
        Ok(found)
    }

    fn perform(
        &mut self,
        step: &Step,
        pool: &PoolView,
        deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        let Some(id) = step.guest() else { return Ok(()) };
        let (adopted, home) = self.adopted(id)?;
        match step {
            Step::Attach { vf, .. } => adopted.attach(home, pool, vf).map_err(failed),
            Step::AwaitPath { vf, .. } => adopted.await_path(pool, vf, deadline),
            Step::Prefer { path, .. } => adopted.prefer(home, pool, path).map_err(failed),
            Step::Direct { path, .. } => adopted.direct(home, pool, path).map_err(failed),
            Step::Verify { path, .. } => adopted.verify(home, pool, path).map_err(failed),
            Step::Detach { vf, .. } => adopted.detach(home, pool, vf).map_err(failed),
            _ => Ok(()),
        }
    }

    fn release(&mut self, guest: &GuestId) -> Result<()> {
        if let Some(known) = self.known.get_mut(guest)
            && let Some(adopted) = &mut known.adopted
        {
            adopt::give_back(adopted, &mut self.home)?;
            record::remove(&self.records, guest)?;
        }
        self.known.remove(guest);
        self.told.retain(|told| told.id != *guest);
        Ok(())
    }

    fn configure(&mut self, config: &config::Config) {
        if config.containers.docker != self.config.docker {
            self.docker = Docker::watch(&config.containers.docker);
        }
        self.config = config.containers.clone();
    }

    fn troubles(&self) -> Vec<String> {
        self.troubles.clone()
    }
}
