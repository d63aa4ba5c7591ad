//! Plugs a VF into one of libvirt's machines and out of it, and waits for its guest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pw_alloc::execute::{Failure, Performed};
use pw_alloc::model::{GuestId, VfId};
use pw_alloc::step::{Path, Step};
use pw_sriov::address::PciAddress;

use super::api::{Domain, Event, Libvirt, Refusal, Uuid, Why};
use super::domain::{self, Described};
use super::host::Host;
use super::watch::lock;
use super::{Guest, agent};
use crate::daemon::pool::PoolView;
use crate::daemon::tasks::Executor;

/// Polling interval.
const POLL: Duration = Duration::from_millis(20);
/// Between two attempts to reach a libvirt that is being restarted.
const RETRY: Duration = Duration::from_millis(200);
/// A guest that refused to release a device is asked again after this. Native PCIe hotplug takes a second
/// request within five seconds as withdrawal of the first.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(7);
/// A silent guest is asked again after this, doubled each time. With ACPI hotplug the guest queues every
/// request: one processed after the device is gone ejects whatever is in the slot by then.
const ASK_SILENT: Duration = Duration::from_secs(20);
/// Pause before a guest that released a device gets another, for each request: queued requests, or
/// pciehp's five seconds after the attention button, would affect the next device in that slot.
pub(super) const SETTLES: Duration = Duration::from_secs(5);
/// Longest such pause.
const SETTLES_MOST: Duration = Duration::from_secs(20);
/// Time limit of the last query after the deadline.
const LAST_QUERY: Duration = Duration::from_secs(1);

/// By machine, the end of the pause after it released a device.
pub(super) type Settling = Arc<Mutex<BTreeMap<Uuid, Instant>>>;

/// Performs steps of one machine.
pub(super) struct DomainExecutor {
    pub(super) libvirt: Box<dyn Libvirt>,
    pub(super) host: Box<dyn Host>,
    /// The machine.
    pub(super) guest: Guest,
    pub(super) settling: Settling,
    /// How long a machine gets no device, for each request to release one.
    pub(super) settles: Duration,
}

impl DomainExecutor {
    /// Waits for the pause after a machine has released a device.
    fn settle(&mut self, id: &GuestId, deadline: Instant) -> Performed {
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
            return Err(Failure::new(why));
        }
        tracing::info!("{why}; the next one waits");
        std::thread::sleep(wait);
        Ok(())
    }

    /// The machine as its live XML describes it; none: it no longer runs. Waits for a restarting libvirt.
    fn describe(&mut self, domain: &Domain, deadline: Instant) -> Performed<Option<Described>> {
        loop {
            match self.libvirt.xml(domain, deadline) {
                Ok(text) => return domain::read(&text).map(Some).map_err(Failure::new),
                Err(Refusal { why: Why::NoDomain, .. }) => return Ok(None),
                Err(Refusal { why: Why::Gone, .. }) if Instant::now() + RETRY < deadline => {
                    std::thread::sleep(RETRY);
                }
                Err(refusal) => return Err(refusal.into()),
            }
        }
    }

    fn attach(
        &mut self,
        id: &GuestId,
        vf_id: &VfId,
        pool: &PoolView,
        deadline: Instant,
    ) -> Performed {
        let vf = address_of(pool, vf_id)?;
        let (domain, nic) = (self.guest.domain.clone(), self.guest.nic.clone());
        let stopped = || Failure::new(format!("{id} does not run any more"));
        // The VF has its address, and is not up yet: meanwhile the PF receives its frames, too, and the
        // guest receives by its tap.
        self.direct(&Path::Paravirtual, pool)?;
        if let Some(vlan) = nic.vlan {
            self.host.tag(vf_id, vlan, pool)?;
        }
        let device = domain::hostdev(vf, nic.teams.as_deref());
        loop {
            let described = self.describe(&domain, deadline)?.ok_or_else(stopped)?;
            if described.functions.iter().any(|function| function.address == vf) {
                return Ok(());
            }
            match self.libvirt.attach(&domain, &device, deadline) {
                Ok(()) => return Ok(()),
                // It may have succeeded all the same: the live XML shows it.
                Err(Refusal { why: Why::Gone, .. }) if Instant::now() + RETRY < deadline => {
                    std::thread::sleep(RETRY);
                }
                Err(Refusal { why: Why::NoDomain, .. }) => return Err(stopped()),
                Err(refusal) => return Err(refusal.into()),
            }
        }
    }

    fn detach(
        &mut self,
        id: &GuestId,
        vf_id: &VfId,
        pool: &PoolView,
        deadline: Instant,
    ) -> Performed {
        let vf = address_of(pool, vf_id)?;
        let nic = &self.guest.nic;
        // net_failover receives by the VF only while it has one, and by the tap afterwards: frames sent both
        // ways meanwhile are neither lost nor duplicated. Where that fails, frames during the release are
        // lost.
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

    /// Asks the guest to release the VF until it has, or the deadline.
    fn await_release(
        &mut self,
        id: &GuestId,
        vf_id: &VfId,
        vf: PciAddress,
        pool: &PoolView,
        deadline: Instant,
    ) -> Performed {
        let (domain, nic) = (self.guest.domain.clone(), self.guest.nic.clone());
        let mut asked_at: Option<Instant> = None;
        let (mut requests, mut refused) = (0_u32, false);
        // Events of what is asked below.
        let _ = self.libvirt.events(Duration::ZERO);
        let mut silenced = self.host.in_use(vf) != Some(true);
        let mut why = String::new();
        loop {
            // A request of the last moment gets one more query.
            let last = asked_at.is_some() && Instant::now() >= deadline;
            let query_deadline = deadline.max(Instant::now() + LAST_QUERY);
            // A machine that does not run holds nothing.
            let Some(described) = self.describe(&domain, query_deadline)? else { return Ok(()) };
            let Some(function) =
                described.functions.into_iter().find(|function| function.address == vf)
            else {
                let settles = (self.settles * requests.max(1)).min(SETTLES_MOST);
                lock(&self.settling).insert(domain.uuid, Instant::now() + settles);
                return Ok(());
            };
            let Some(alias) = function.alias else {
                return Err(Failure::new("libvirt gives the device no alias"));
            };
            if last {
                return Err(Failure::silent(format!("{id} has not released it in time{why}")));
            }
            let patience = if refused {
                ASK_AGAIN
            } else {
                ASK_SILENT * (1 << requests.saturating_sub(1).min(6))
            };
            if asked_at.is_none_or(|at| at.elapsed() >= patience) {
                refused = false;
                requests += 1;
                match self.libvirt.detach(&domain, &alias, deadline) {
                    Ok(()) => asked_at = Some(Instant::now()),
                    // The next query shows it.
                    Err(Refusal { why: Why::NoDevice | Why::NoDomain, .. }) => {
                        asked_at = Some(Instant::now());
                    }
                    Err(Refusal { why: Why::Gone, .. }) => std::thread::sleep(RETRY),
                    Err(refusal) if matches!(refusal.why, Why::Unplugging | Why::Late) => {
                        asked_at = Some(Instant::now());
                        why = format!(" ({refusal})");
                    }
                    Err(refusal) => return Err(refusal.into()),
                }
            } else {
                let events = self.libvirt.events(POLL).unwrap_or_else(|_| {
                    std::thread::sleep(POLL);
                    Vec::new()
                });
                let of_alias = |event: &Event| event.refused.as_ref() == Some(&alias);
                refused |= events.iter().any(|one| one.uuid == domain.uuid && of_alias(one));
            }
            if !silenced && self.host.in_use(vf) == Some(false) {
                // Its driver has released the device, which is still plugged: frames to it would be lost until
                // the next steps move address and forwarding.
                silenced = true;
                let _ = self.host.silence(vf_id, pool);
                let taps = self.host.taps().unwrap_or_default();
                if let Some(tap) = taps.get(&nic.tap) {
                    let _ = self.host.direct(nic.mac, tap, &Path::Paravirtual, pool);
                }
            }
        }
    }

    /// Does the guest drive the VF, by the host's or its agent's view?
    fn drives(&mut self, vf: PciAddress) -> bool {
        let guest = &self.guest;
        self.host.in_use(vf) == Some(true)
            || (guest.agent && agent::drives(&mut *self.libvirt, &guest.domain, guest.nic.mac))
    }

    fn await_path(&mut self, id: &GuestId, vf: PciAddress, deadline: Instant) -> Performed {
        let domain = self.guest.domain.clone();
        loop {
            if self.drives(vf) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let why = format!(
                    "{id} has not brought it up in time: its kernel may lack the VF's driver"
                );
                return Err(Failure::new(why));
            }
            match self.describe(&domain, deadline)? {
                None => return Err(Failure::new(format!("{id} does not run any more"))),
                Some(described)
                    if described.functions.iter().all(|function| function.address != vf) =>
                {
                    return Err(Failure::new(format!("{id} released it before bringing it up")));
                }
                Some(_) => std::thread::sleep(POLL),
            }
        }
    }

    fn verify(
        &mut self,
        id: &GuestId,
        path: &Path,
        pool: &PoolView,
        deadline: Instant,
    ) -> Performed {
        match path {
            Path::Vf(vf) => {
                let address = address_of(pool, vf)?;
                if self.drives(address) {
                    return Ok(());
                }
                Err(Failure::new(format!("{id} does not drive {vf}")))
            }
            Path::Paravirtual => {
                let domain = self.guest.domain.clone();
                let described = self
                    .describe(&domain, deadline)?
                    .ok_or_else(|| Failure::new(format!("{id} does not run any more")))?;
                let nic = described.nic.map_err(Failure::new)?;
                let taps = self.host.taps()?;
                match taps.get(&nic.tap) {
                    Some(tap) if tap.works && nic.plugged => Ok(()),
                    _ => Err(Failure::new(format!("its tap {} has no link", nic.tap))),
                }
            }
        }
    }

    fn direct(&mut self, path: &Path, pool: &PoolView) -> Performed {
        let nic = self.guest.nic.clone();
        let taps = self.host.taps()?;
        match taps.get(&nic.tap) {
            Some(tap) => Ok(self.host.direct(nic.mac, tap, path, pool)?),
            None => Err(Failure::new(format!("its tap {} is gone", nic.tap))),
        }
    }
}

impl Executor for DomainExecutor {
    fn perform(&mut self, step: &Step, pool: &PoolView, deadline: Instant) -> Performed {
        match step {
            Step::Reserve { guest, vf } => {
                self.settle(guest, deadline)?;
                let vf = address_of(pool, vf)?;
                Ok(self.host.prepare(vf)?)
            }
            Step::Attach { guest, vf } => self.attach(guest, vf, pool, deadline),
            Step::AwaitPath { guest, vf } => {
                self.await_path(guest, address_of(pool, vf)?, deadline)
            }
            // The guest sends by the VF while it has it and drives it: that is the guest's kernel.
            Step::Prefer { guest, path: path @ Path::Vf(_) } => {
                self.verify(guest, path, pool, deadline)
            }
            Step::Direct { path, .. } => self.direct(path, pool),
            Step::Verify { guest, path } => self.verify(guest, path, pool, deadline),
            Step::Detach { guest, vf } => self.detach(guest, vf, pool, deadline),
            Step::Prefer { .. }
            | Step::SetMac { .. }
            | Step::Recall { .. }
            | Step::ClearMac { .. }
            | Step::Reset { .. }
            | Step::Release { .. } => Ok(()),
        }
    }
}

/// Performs steps of a machine that does not run, or is not managed and holds nothing.
pub(super) struct NoMachine;

impl Executor for NoMachine {
    fn perform(&mut self, step: &Step, _: &PoolView, _: Instant) -> Performed {
        match step {
            // It holds no device, and its frames need no path.
            Step::Detach { .. }
            | Step::Direct { .. }
            | Step::Prefer { path: Path::Paravirtual, .. } => Ok(()),
            _ => {
                let id = step.guest().map(ToString::to_string).unwrap_or_default();
                Err(Failure::new(format!("there is no machine {id} that runs")))
            }
        }
    }
}

fn address_of(pool: &PoolView, vf: &VfId) -> Performed<PciAddress> {
    let address = pool.vfs.get(vf).map(|vf| vf.address);
    address.ok_or_else(|| Failure::new(format!("there is no VF {vf}")))
}
