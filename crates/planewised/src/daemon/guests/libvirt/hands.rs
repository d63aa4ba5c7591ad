//! Plugs a VF into one of libvirt's machines and out of it again, and waits for its guest. Knows one
//! machine, as it was when the step began.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pw_alloc::execute::Failure;
use pw_alloc::model::{GuestId, VfId};
use pw_alloc::step::{Path, Step};
use pw_sriov::address::PciAddress;

use super::Guest;
use super::agent::Agents;
use super::api::{self, Domain, Libvirt, Refusal, Uuid, Why};
use super::domain::{self, Described};
use super::host::Host;
use super::watch::{Watch, lock};
use crate::daemon::crew::Hands;
use crate::daemon::pool::PoolView;

/// Between two looks at what is waited for.
const LOOK: Duration = Duration::from_millis(20);
/// Between two attempts to reach a libvirt that is being restarted.
const RETRY: Duration = Duration::from_millis(200);
/// A guest that said that it keeps a device is asked again after this. Native PCIe hotplug takes a
/// second request within five seconds for a withdrawal of the first.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(7);
/// A guest that has said nothing is asked again after this, then after twice as long, and so on. With
/// ACPI hotplug every request is an event that the guest queues: one that it works off when the device
/// is gone already ejects whatever is in the slot by then.
const ASK_SILENT: Duration = Duration::from_secs(20);
/// A guest gets no device so soon after it released one, for each time that it was asked to: requests
/// that it has not worked off yet, or pciehp's five seconds after the attention button, would be about
/// the next device in that slot.
pub(super) const SETTLES: Duration = Duration::from_secs(5);
/// The same at most.
const SETTLES_MOST: Duration = Duration::from_secs(20);
/// Libvirt has so long for a look after the deadline.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// By machine: until when it is given no device, since it has just released one.
pub(super) type Settling = Arc<Mutex<BTreeMap<Uuid, Instant>>>;

/// What plugs and unplugs.
pub(super) struct MachineHands {
    pub(super) libvirt: Arc<dyn Libvirt>,
    pub(super) watch: Arc<Watch>,
    pub(super) agents: Arc<Agents>,
    pub(super) host: Box<dyn Host>,
    /// The machine.
    pub(super) guest: Guest,
    pub(super) settling: Settling,
    /// How long a machine is given no device, for each request to release one.
    pub(super) settles: Duration,
}

impl MachineHands {
    /// Waits until the slots of a machine that has just released a device are at rest.
    fn settle(&mut self, id: &GuestId, deadline: Instant) -> std::result::Result<(), Failure> {
        let uuid = self.guest.domain.uuid;
        let Some(until) = lock(&self.settling).remove(&uuid) else { return Ok(()) };
        let wait = until.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Ok(());
        }
        let why = format!(
            "{id} has just released a device: for {:.1} s its slot may still be cleared",
            wait.as_secs_f64()
        );
        if until > deadline {
            lock(&self.settling).insert(uuid, until);
            return Err(failure(why));
        }
        tracing::info!("{why}; the next one waits");
        std::thread::sleep(wait);
        Ok(())
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
        let (domain, nic) = (self.guest.domain.clone(), self.guest.nic.clone());
        let gone = || failure(format!("{id} does not run any more"));
        // The VF has its address by now, and is not up for long: until it is, the PF takes its frames
        // in, too, and the guest takes them from its tap.
        self.direct(&Path::Paravirtual, pool)?;
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
        let nic = &self.guest.nic;
        // net_failover takes nothing in by the tap while it has the VF, and everything from then on:
        // what comes by both ways meanwhile is neither lost nor taken twice. Where it cannot be arranged,
        // frames of the time in which the guest releases the VF are lost, and it is released all the same.
        if let Ok(taps) = self.host.taps()
            && let Some(tap) = taps.get(&nic.tap)
        {
            let _ = self.host.direct_both(nic.mac, tap, vf_id, pool);
        }
        let released = self.await_release(id, vf_id, vf, pool, deadline);
        if released.is_err() && self.host.in_use(vf) == Some(true) {
            let _ = self.direct(&Path::Vf(vf_id.clone()), pool);
        }
        released
    }

    /// Asks the guest to release the VF until it has done so, or in vain.
    fn await_release(
        &mut self,
        id: &GuestId,
        vf_id: &VfId,
        vf: PciAddress,
        pool: &PoolView,
        deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        let (domain, nic) = (self.guest.domain.clone(), self.guest.nic.clone());
        let mut asked: Option<Instant> = None;
        let (mut requests, mut refusals) = (0_u32, 0);
        let mut silenced = self.host.in_use(vf) != Some(true);
        let mut why = String::new();
        loop {
            // What was asked for at the last moment is looked for once more.
            let last = asked.is_some() && Instant::now() >= deadline;
            let look_by = deadline.max(Instant::now() + LAST_LOOK);
            // A machine that is gone has left everything behind.
            let Some(described) = self.now(&domain, look_by)? else { return Ok(()) };
            let Some(function) = described.functions.into_iter().find(|one| one.address == vf)
            else {
                let settles = (self.settles * requests.max(1)).min(SETTLES_MOST);
                lock(&self.settling).insert(domain.uuid, Instant::now() + settles);
                return Ok(());
            };
            let Some(alias) = function.alias else {
                return Err(failure("libvirt gives the device no alias".into()));
            };
            if last {
                let why = format!("{id} has not released it in time{why}");
                return Err(Failure { why, guest_silent: true });
            }
            let kept = self.refusals(&domain, &alias);
            let patience = if kept > refusals {
                ASK_AGAIN
            } else {
                ASK_SILENT * (1 << requests.saturating_sub(1).min(6))
            };
            if asked.is_none_or(|asked| asked.elapsed() >= patience) {
                refusals = kept;
                requests += 1;
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
                let taps = self.host.taps().unwrap_or_default();
                if let Some(tap) = taps.get(&nic.tap) {
                    let _ = self.host.direct(nic.mac, tap, &Path::Paravirtual, pool);
                }
            }
        }
    }

    /// How often the guest has said that it keeps this device.
    fn refusals(&self, domain: &Domain, alias: &str) -> u32 {
        let board = self.watch.board();
        board.kept.get(&(domain.uuid, alias.to_owned())).copied().unwrap_or(0)
    }

    /// Does the guest drive the VF, as far as can be seen?
    fn drives(&self, vf: PciAddress) -> bool {
        let guest = &self.guest;
        self.host.in_use(vf) == Some(true)
            || (guest.agent && self.agents.drives(&guest.domain, guest.nic.mac))
    }

    fn await_path(
        &self,
        id: &GuestId,
        vf: PciAddress,
        deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        loop {
            if self.drives(vf) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let why = format!(
                    "{id} has not brought it up in time: its kernel may lack the VF's driver"
                );
                return Err(failure(why));
            }
            match self.now(&self.guest.domain, deadline)? {
                None => return Err(failure(format!("{id} does not run any more"))),
                Some(seen) if seen.functions.iter().all(|function| function.address != vf) => {
                    return Err(failure(format!("{id} let it go before it had brought it up")));
                }
                Some(_) => self.watch.pause(LOOK),
            }
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
                if self.drives(address) {
                    return Ok(());
                }
                Err(failure(format!("{id} does not drive {vf}")))
            }
            Path::Paravirtual => {
                let described = self
                    .now(&self.guest.domain, deadline)?
                    .ok_or_else(|| failure(format!("{id} does not run any more")))?;
                let nic = described.nic.map_err(failure)?;
                let taps = self.host.taps().map_err(|error| failure(error.what))?;
                match taps.get(&nic.tap) {
                    Some(tap) if tap.works && nic.plugged => Ok(()),
                    _ => Err(failure(format!("its tap {} has no link", nic.tap))),
                }
            }
        }
    }

    fn direct(&mut self, path: &Path, pool: &PoolView) -> std::result::Result<(), Failure> {
        let nic = self.guest.nic.clone();
        let taps = self.host.taps().map_err(|error| failure(error.what))?;
        match taps.get(&nic.tap) {
            Some(tap) => {
                self.host.direct(nic.mac, tap, path, pool).map_err(|error| failure(error.what))
            }
            None => Err(failure(format!("its tap {} is gone", nic.tap))),
        }
    }
}

impl Hands for MachineHands {
    fn perform(
        &mut self,
        step: &Step,
        pool: &PoolView,
        deadline: Instant,
    ) -> std::result::Result<(), Failure> {
        match step {
            Step::Reserve { guest, vf } => {
                self.settle(guest, deadline)?;
                let vf = address_of(pool, vf)?;
                self.host.prepare(vf).map_err(|error| failure(error.what))
            }
            Step::Attach { guest, vf } => self.attach(guest, vf, pool, deadline),
            Step::AwaitPath { guest, vf } => {
                self.await_path(guest, address_of(pool, vf)?, deadline)
            }
            // The guest sends by the VF while it has it and drives it: that is the guest's kernel.
            Step::Prefer { guest, path: path @ Path::Vf(_) } => {
                self.verify(guest, path, pool, deadline)
            }
            Step::Prefer { .. } => Ok(()),
            Step::Direct { path, .. } => self.direct(path, pool),
            Step::Verify { guest, path } => self.verify(guest, path, pool, deadline),
            Step::Detach { guest, vf } => self.detach(guest, vf, pool, deadline),
            Step::SetMac { .. }
            | Step::Recall { .. }
            | Step::ClearMac { .. }
            | Step::Reset { .. }
            | Step::Release { .. } => Ok(()),
        }
    }
}

/// What there is to do about a machine that does not run, or is not managed and holds nothing.
pub(super) struct NoMachine;

impl Hands for NoMachine {
    fn perform(
        &mut self,
        step: &Step,
        _: &PoolView,
        _: Instant,
    ) -> std::result::Result<(), Failure> {
        match step {
            // It has left everything behind, and nobody is left to send anything to.
            Step::Detach { .. }
            | Step::Direct { .. }
            | Step::Prefer { path: Path::Paravirtual, .. } => Ok(()),
            _ => {
                let id = step.guest().map(ToString::to_string).unwrap_or_default();
                Err(failure(format!("there is no machine {id} that runs")))
            }
        }
    }
}

fn address_of(pool: &PoolView, vf: &VfId) -> std::result::Result<PciAddress, Failure> {
    let found = pool.vfs.get(vf).map(|vf| vf.address);
    found.ok_or_else(|| failure(format!("there is no VF {vf}")))
}

/// The guest is not to blame.
pub(super) const fn failure(why: String) -> Failure {
    Failure { why, guest_silent: false }
}
