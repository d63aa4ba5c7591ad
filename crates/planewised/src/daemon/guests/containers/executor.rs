//! Moves a VF into a guest's namespace and out of it, and switches between the paths of its bond.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use pw_alloc::execute::{Failure, Performed};
use pw_alloc::model::{GuestId, Mac, VfId};
use pw_alloc::step::{Join, Path, Step};
use pw_alloc::world::{GuestState, VfPlace, VfPlacement};
use pw_error::{Error, Result};
use pw_sriov::link::{Change, Links, Setting};

use super::VF_NAME;
use super::adopt::{self, Adopted, Facts, Paths};
use crate::daemon::failpoint;
use crate::daemon::net::{Link, Net};
use crate::daemon::pool::host::apply_setting;
use crate::daemon::pool::{PoolPf, PoolView};
use crate::daemon::tasks::Executor;

/// How long both paths of a guest receive during a switch: longer than a frame takes through the host.
const OVERLAP: Duration = Duration::from_millis(10);
/// Polling interval.
const PAUSE: Duration = Duration::from_millis(10);

/// Performs steps of one guest.
pub(super) struct ContainerExecutor(pub(super) Facts);

impl Executor for ContainerExecutor {
    fn perform(&mut self, step: &Step, pool: &PoolView, deadline: Instant) -> Performed {
        let (adopted, host) = (&mut self.0.clone().open()?, &mut Net::open()?);
        match step {
            Step::Attach { vf, .. } => adopted.attach(host, pool, vf)?,
            Step::AwaitPath { vf, .. } => adopted.await_path(pool, vf, deadline)?,
            Step::Prefer { path, .. } => adopted.prefer(host, pool, path)?,
            Step::Direct { path, .. } => adopted.direct(host, pool, path)?,
            Step::Verify { path, .. } => adopted.verify(host, pool, path)?,
            Step::Detach { vf, .. } => adopted.detach(pool, vf)?,
            _ => {}
        }
        Ok(())
    }
}

/// The address of an inactive member: unique, and the same each time.
fn inactive_mac(device: &str) -> Mac {
    // FNV-1a.
    let hash = device
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let [_, a, b, c] = hash.to_be_bytes();
    Mac([0x06, 0x70, 0x76, a, b, c])
}

/// Sets the VF's address by its PF, so that it can have no other; None: the VF may choose.
fn set_vf_mac(pool: &PoolView, vf: &VfId, mac: Option<Mac>) -> Result<()> {
    apply_setting(vf, pool, Setting::Mac(mac.unwrap_or(Mac::NONE)), "set the address of")
}

impl Adopted {
    /// The interface of a VF in the guest.
    fn vf_link(&mut self, pool: &PoolView, vf: &VfId) -> Result<Option<Link>> {
        let Some(address) = pool.vfs.get(vf).map(|vf| vf.address.to_string()) else {
            return Ok(None);
        };
        let links = self.net.all()?;
        Ok(links.into_iter().find(|link| link.pci.as_deref() == Some(&address)))
    }

    pub(super) fn bond(&mut self) -> Result<Link> {
        let (bond, missing) = (self.bond, format!("its bond {} is gone", self.record.interface));
        self.net.indexed(bond)?.ok_or_else(|| Error::failed(missing, ""))
    }

    /// The host's end of its veth, if it still is that.
    fn port(&self, host: &mut Net) -> Result<Option<Link>> {
        let port = host.indexed(self.port)?;
        Ok(port.filter(|port| port.is_port_of(self.veth, self.netns_id)))
    }

    fn veth(&mut self) -> Result<Link> {
        let missing = format!("its veth {} is gone", adopt::VETH_NAME);
        let veth = self.veth;
        self.net.indexed(veth)?.ok_or_else(|| Error::failed(missing, ""))
    }

    fn attach(&mut self, host: &mut Net, pool: &PoolView, vf: &VfId) -> Result<()> {
        let bond = self.bond()?;
        let pool_vf = pool.vfs.get(vf).ok_or_else(|| {
            Error::failed(format!("the VF {vf} is not known"), "`planewised vf list` shows them")
        })?;
        if self.vf_link(pool, vf)?.is_none() {
            let address = pool_vf.address.to_string();
            let links = host.all()?;
            let link = links.iter().find(|link| link.pci.as_deref() == Some(&address)).ok_or_else(
                || {
                    let driver = pool_vf.driver.as_deref().unwrap_or("none");
                    Error::failed(
                        format!("the VF {vf} has no interface here: its driver is {driver}"),
                        format!("planewised vf bind {vf} netdev"),
                    )
                },
            )?;
            // From the first frame on the VF can have no other address, nor receive others' frames.
            let inactive = self.enforce_mac.then(|| inactive_mac(&address));
            set_vf_mac(pool, vf, inactive)?;
            host.change(link, &Change::Up(false))?;
            let netns = self.open_netns()?;
            host.move_to_netns(link, netns.as_fd(), VF_NAME)?;
        }
        failpoint::reached(|| "inside/attach".to_owned());
        let link = self.vf_link(pool, vf)?.ok_or_else(|| {
            Error::failed(format!("{vf} did not arrive in the guest's namespace"), "")
        })?;
        self.paths().has.insert(vf.clone(), link.index);
        if link.controller != Some(bond.index) {
            self.net.change(&link, &Change::Up(false))?;
            if link.mtu_bytes != bond.mtu_bytes {
                self.net.change(&link, &Change::MtuBytes(bond.mtu_bytes))?;
            }
            self.net.enslave(&link, Some(bond.index))?;
        }
        Ok(())
    }

    fn await_path(&mut self, pool: &PoolView, vf: &VfId, deadline: Instant) -> Performed {
        loop {
            let Some(link) = self.vf_link(pool, vf)? else {
                return Err(Failure::silent(format!("{vf} left the guest")));
            };
            if link.works() && link.member_up == Some(true) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let what = if link.up { "has no link" } else { "is down" };
                return Err(Failure::new(format!("{vf} {what} in the guest")));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn set_mac(&mut self, link: &Link, mac: Mac) -> Result<()> {
        match self.net.indexed(link.index)? {
            Some(current) if current.mac == Some(mac) => Ok(()),
            _ => self.net.change(link, &Change::Mac(mac)),
        }
    }

    /// Switches the guest to `path`. During the switch both members receive and have its address, so that
    /// no frame is lost; some arrive twice.
    fn prefer(&mut self, host: &mut Net, pool: &PoolView, path: &Path) -> Result<()> {
        let bond = self.bond()?;
        let veth = self.veth()?;
        let mac = self.record.mac;
        self.net.set_all_ports_active(&bond, true)?;
        let switched = match path {
            Path::Vf(vf) => self.switch_to_vf(host, pool, vf, &bond, &veth),
            Path::Paravirtual => self.switch_to_veth(host, pool, &bond, &veth),
        };
        self.net.set_all_ports_active(&bond, false)?;
        switched?;
        self.paths().on_vf = None;
        if let Path::Vf(vf) = path {
            let link = self.vf_link(pool, vf)?;
            let Some(link) = link.filter(|link| link.mac == Some(mac)) else {
                return Err(Error::failed(
                    format!("{vf} did not take the guest's address {mac}"),
                    "its driver lets no VF have the address of its choice",
                ));
            };
            self.paths().on_vf = Some((vf.clone(), link.index));
        }
        Ok(())
    }

    fn switch_to_vf(
        &mut self,
        host: &mut Net,
        pool: &PoolView,
        vf: &VfId,
        bond: &Link,
        veth: &Link,
    ) -> Result<()> {
        let mac = self.record.mac;
        let link = self
            .vf_link(pool, vf)?
            .ok_or_else(|| Error::failed(format!("{vf} is not in the guest"), ""))?;
        if self.enforce_mac && link.mac != Some(mac) {
            // The bond could not replace an address that the PF has set.
            set_vf_mac(pool, vf, None)?;
        }
        // From here on the NIC delivers to the VF, which receives.
        if let Err(error) = self.set_mac(&link, mac) {
            if !self.enforce_mac {
                return Err(error);
            }
            // Some drivers let a VF have only the address that its PF set.
            set_vf_mac(pool, vf, Some(mac))?;
            self.set_mac(&link, mac)?;
        }
        if self.enforce_mac {
            // Before the guest uses it: after a kill no VF in use may take another address.
            set_vf_mac(pool, vf, Some(mac))?;
        }
        failpoint::reached(|| "inside/prefer-vf".to_owned());
        self.net.set_active(bond, &link)?;
        self.direct(host, pool, &Path::Vf(vf.clone()))?;
        // Frames in flight by the bridge arrive while the veth has the address, too.
        std::thread::sleep(OVERLAP);
        self.set_mac(veth, inactive_mac(&mac.to_string()))
    }

    fn switch_to_veth(
        &mut self,
        host: &mut Net,
        pool: &PoolView,
        bond: &Link,
        veth: &Link,
    ) -> Result<()> {
        let mac = self.record.mac;
        self.set_mac(veth, mac)?;
        if bond.active != Some(veth.index) {
            self.net.set_active(bond, veth)?;
        }
        failpoint::reached(|| "inside/prefer-veth".to_owned());
        self.direct(host, pool, &Path::Paravirtual)?;
        // Frames that the VF received and has not delivered yet are delivered meanwhile.
        std::thread::sleep(OVERLAP);
        for link in self.net.all()? {
            if link.controller == Some(bond.index)
                && link.mac == Some(mac)
                && let Some(device) = &link.pci
            {
                let inactive = inactive_mac(device);
                let vf = pool.vfs.iter().find(|(_, vf)| vf.address.to_string() == *device);
                match vf.filter(|_| self.enforce_mac) {
                    Some((vf, _)) => {
                        set_vf_mac(pool, vf, None)?;
                        self.set_mac(&link, inactive)?;
                        set_vf_mac(pool, vf, Some(inactive))?;
                    }
                    None => self.set_mac(&link, inactive)?,
                }
            }
        }
        Ok(())
    }

    fn direct(&mut self, host: &mut Net, pool: &PoolView, path: &Path) -> Result<()> {
        pool.direct(host, self.record.mac, (self.port, self.bridge_in(pool)), path, true)
    }

    fn verify(&mut self, host: &mut Net, pool: &PoolView, path: &Path) -> Result<()> {
        let mac = self.record.mac;
        let failed = |what: String| Err(Error::failed(what, ""));
        match path {
            Path::Paravirtual => {
                let veth = self.veth()?;
                let port = self.port(host)?;
                if !veth.works() || veth.controller != Some(self.bond) {
                    return failed(format!("{} in the guest is down", veth.name));
                }
                if port.is_none_or(|port| !port.works()) {
                    return failed("the host's end of its veth is down".to_owned());
                }
            }
            Path::Vf(vf) => {
                let bond = self.bond()?;
                let Some(link) = self.vf_link(pool, vf)? else {
                    return failed(format!("{vf} is not in the guest"));
                };
                if bond.active != Some(link.index) {
                    return failed(format!("the guest does not send by {vf}"));
                }
                if !link.works() || link.mac != Some(mac) {
                    return failed(format!("{vf} has no link or not the guest's address"));
                }
                let infos = Links::open()?.vfs(vf.pf.as_str())?.unwrap_or_default();
                let by_pf = infos
                    .iter()
                    .find(|info| info.index == u32::from(vf.index))
                    .and_then(|info| info.config.mac);
                // Zeros: the PF has set no address.
                if by_pf.is_some_and(|set| set != mac && set != Mac::NONE) {
                    return failed(format!("the NIC does not send {mac} to {vf}"));
                }
            }
        }
        Ok(())
    }

    fn detach(&mut self, pool: &PoolView, vf: &VfId) -> Result<()> {
        let Some(link) = self.vf_link(pool, vf)? else { return Ok(()) };
        if link.controller.is_some() {
            self.net.enslave(&link, None)?;
        }
        failpoint::reached(|| "inside/detach".to_owned());
        self.net.change(&link, &Change::Up(false))?;
        return_to_host(&mut self.net, &link)?;
        let mut paths = self.paths();
        paths.on_vf = None;
        paths.has.remove(vf);
        Ok(())
    }

    /// Surveys the guest and the VFs in it.
    pub(super) fn find(
        &mut self,
        id: &GuestId,
        pool: &PoolView,
        host: &mut Net,
    ) -> Result<(GuestState, BTreeMap<VfId, VfPlacement>)> {
        let mac = self.record.mac;
        let links = self.net.all()?;
        let bond = links.iter().find(|link| link.index == self.bond);
        let veth = links.iter().find(|link| link.index == self.veth);
        let port = self.port(host)?;
        let bridge = self.bridge_in(pool);
        let mut guest = GuestState {
            mac,
            join: Join::Bond,
            answers: bond.is_some(),
            paravirtual_up: veth.is_some_and(|veth| veth.works())
                && port.is_some_and(|port| port.works()),
            vf_up: false,
            active: Path::Paravirtual,
            directed: Path::Paravirtual,
        };
        let mut vfs = BTreeMap::new();
        let mut paths = Paths::default();
        let forwards = host.fdb_entries()?;
        let on_pf = |pf: &PoolPf, is_self: bool| {
            forwards.iter().any(|entry| {
                entry.mac == mac && entry.index == pf.index && entry.is_self == is_self
            })
        };
        for (vf, pool_vf) in &pool.vfs {
            let address = pool_vf.address.to_string();
            let Some(link) = links.iter().find(|link| link.pci.as_deref() == Some(&address)) else {
                continue;
            };
            paths.has.insert(vf.clone(), link.index);
            let has_mac = pool_vf.mac == mac || link.mac == Some(mac);
            let place = VfPlace::Guest(id.clone());
            vfs.insert(
                vf.clone(),
                VfPlacement { mac: if has_mac { mac } else { Mac::NONE }, place },
            );
            let member = link.controller == Some(self.bond);
            guest.vf_up |= member && link.works() && link.member_up == Some(true);
            if bond.is_some_and(|bond| bond.active == Some(link.index)) && has_mac {
                guest.active = Path::Vf(vf.clone());
                paths.on_vf = Some((vf.clone(), link.index));
            }
            let Some(pf) = pool.pfs.get(&vf.pf) else { continue };
            let bridged = pf.bridge.is_some() && pf.bridge.as_deref() == bridge;
            if !on_pf(pf, true) && (!bridged || on_pf(pf, false)) {
                guest.directed = Path::Vf(vf.clone());
            }
        }
        if guest.directed == Path::Paravirtual {
            // Of a VF that has left the guest only the PF is known: any VF of the PF represents it.
            let pf = pool.pfs_of(bridge).find(|(_, pf)| on_pf(pf, false));
            let vf = pf.and_then(|(name, _)| pool.vfs.keys().find(|vf| vf.pf == *name));
            guest.directed = vf.map_or(Path::Paravirtual, |vf| Path::Vf(vf.clone()));
        }
        *self.paths() = paths;
        Ok((guest, vfs))
    }
}

/// Moves an interface into this thread's namespace. The kernel gives it the first free number there, as
/// several may come at once.
fn return_to_host(guest: &mut Net, link: &Link) -> Result<()> {
    let netns = File::open("/proc/thread-self/ns/net")
        .map_err(|error| Error::failed("cannot open the host's namespace", "").caused_by(error))?;
    guest.move_to_netns(link, netns.as_fd(), "vf%d")
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// What this thread and all that it begins see of the network is their own from now on.
    fn unshared() -> Option<File> {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
        File::open("/proc/thread-self/ns/net").ok()
    }

    #[test]
    fn interfaces_that_come_home_at_once_all_arrive() {
        const COUNT: usize = 8;
        let (arrive, leave) = (Barrier::new(COUNT), Barrier::new(COUNT));
        let Some(host) =
            std::thread::scope(|scope| scope.spawn(unshared).join().expect("no panic"))
        else {
            return eprintln!("skipped: needs root");
        };
        let leave_home = || {
            let _own = unshared()?;
            let mut ip = std::process::Command::new("ip");
            ip.args(["link", "add", VF_NAME, "type", "veth", "peer", "other"]);
            ip.status().ok().filter(std::process::ExitStatus::success)?;
            let mut net = Net::open().ok()?;
            let link = net.named(VF_NAME).ok()??;
            nix::sched::setns(&host, nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            Some((net, link, Net::open().ok()?))
        };
        // Nobody fails before all have met: the others would wait for ever.
        let come_home = || {
            let mut away = leave_home();
            arrive.wait();
            let moved = away.as_mut().map(|(net, link, _)| return_to_host(net, link));
            leave.wait();
            moved.expect("as root, with ip").expect("moved");
            away.and_then(|(_, _, mut there)| there.all().ok()).map_or(0, |links| links.len())
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..COUNT).map(|_| scope.spawn(come_home)).collect();
            for one in all {
                // The loopback interface is there, too.
                assert_eq!(one.join().expect("no panic"), COUNT + 1);
            }
        });
    }
}
