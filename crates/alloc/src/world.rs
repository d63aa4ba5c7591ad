//! The state of a host's VFs and guests, as recovery needs it. Steps can be tried on it, with guests that do
//! not answer and crashes at any moment.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{GuestId, Mac, VfId};
use crate::step::{Join, Path, Step};

/// Where a VF is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VfPlace {
    /// With the host.
    Pool,
    /// In this guest.
    Guest(GuestId),
    /// In the namespace of a managed guest that is gone. It is recalled.
    Lost,
    /// Used by the host or by somebody who is not managed, and how. It is not touched.
    Foreign(String),
    /// Unknown, and why. It is not touched, and stays with its holder by the journal.
    Unknown(String),
}

/// A VF: where it is, and under which address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VfPlacement {
    /// The guest's address that it answers to; zero: none.
    pub mac: Mac,
    /// Where it is.
    pub place: VfPlace,
}

/// A guest and its paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestState {
    /// Its address.
    pub mac: Mac,
    /// What joins its paths.
    pub join: Join,
    /// Can it be asked to do anything?
    pub answers: bool,
    /// Does its paravirtual path work?
    pub paravirtual_up: bool,
    /// Is the VF that is attached to it up?
    pub vf_up: bool,
    /// By which path it sends.
    pub active: Path,
    /// By which path the bridge and the PF send to it.
    pub directed: Path,
}

/// All guests and VFs of a host, as far as they could be surveyed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostState {
    /// The pool's VFs.
    pub vfs: BTreeMap<VfId, VfPlacement>,
    /// The guests that are managed.
    pub guests: BTreeMap<GuestId, GuestState>,
    /// Kinds of guests that could not be surveyed, one sentence each: guests may be missing.
    pub gaps: Vec<String>,
}

impl HostState {
    /// A state of which nothing is known, for this reason.
    pub fn unknown(gap: String) -> Self {
        Self { gaps: vec![gap], ..Self::default() }
    }

    /// The VFs that are attached to this guest.
    pub fn attached<'a>(&'a self, guest: &'a GuestId) -> impl Iterator<Item = &'a VfId> {
        self.vfs
            .iter()
            .filter(move |(_, vf)| vf.place == VfPlace::Guest(guest.clone()))
            .map(|(id, _)| id)
    }

    fn path_works(&self, id: &GuestId, guest: &GuestState, path: &Path) -> bool {
        match path {
            Path::Paravirtual => guest.paravirtual_up,
            Path::Vf(vf) => {
                guest.vf_up
                    && self.vfs.get(vf).is_some_and(|vf| vf.place == VfPlace::Guest(id.clone()))
            }
        }
    }

    /// Do frames for this guest that come by `path` get through to it?
    fn receives(&self, id: &GuestId, guest: &GuestState, path: &Path) -> bool {
        self.path_works(id, guest, path)
            && match path {
                // A bond's address has left the standby member; net_failover ignores it.
                Path::Paravirtual => guest.active == Path::Paravirtual,
                Path::Vf(vf) => self.vfs.get(vf).is_some_and(|vf| vf.mac == guest.mac),
            }
    }

    /// Can this guest send?
    pub fn sends(&self, id: &GuestId) -> bool {
        self.guests.get(id).is_some_and(|guest| self.path_works(id, guest, &guest.active))
    }

    /// Is this guest reached from the wire? The NIC's bridge sends to the VF that has the address,
    /// else to the PF.
    pub fn reached_from_wire(&self, id: &GuestId) -> bool {
        let Some(guest) = self.guests.get(id) else { return false };
        let path = self
            .vfs
            .iter()
            .find(|(_, vf)| vf.mac == guest.mac)
            .map_or(Path::Paravirtual, |(vf, _)| Path::Vf(vf.clone()));
        self.receives(id, guest, &path)
    }

    /// Is this guest reached from the guests on the host's bridge?
    pub fn reached_from_host(&self, id: &GuestId) -> bool {
        self.guests.get(id).is_some_and(|guest| self.receives(id, guest, &guest.directed))
    }

    /// Can it send, and is it reached from the wire and from the host?
    pub fn reachable(&self, id: &GuestId) -> bool {
        self.sends(id) && self.reached_from_wire(id) && self.reached_from_host(id)
    }

    /// Inconsistencies, a sentence each.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut macs = BTreeSet::new();
        for (id, vf) in &self.vfs {
            if vf.mac != Mac::NONE && !macs.insert(vf.mac) {
                faults.push(format!("{} is the address of two VFs", vf.mac));
            }
            match &vf.place {
                VfPlace::Lost => faults.push(format!("{id} is lost")),
                VfPlace::Pool if vf.mac != Mac::NONE => {
                    faults.push(format!("{id} is in the pool with the address {}", vf.mac));
                }
                VfPlace::Guest(guest) if !self.guests.contains_key(guest) => {
                    faults.push(format!("{id} is in {guest}, which is gone"));
                }
                _ => {}
            }
        }
        for (id, guest) in &self.guests {
            if self.attached(id).count() > 1 {
                faults.push(format!("{id} holds two VFs"));
            }
            if guest.answers && !self.reachable(id) {
                faults.push(format!("{id} cannot be reached"));
            }
        }
        faults
    }

    /// Performs one step. `Err` when the guest refuses or does not answer.
    pub fn perform(&mut self, step: &Step) -> Result<(), String> {
        self.perform_until(step, false)
    }

    /// Performs one step; `partly`: only its first half, as when a crash interrupts it.
    pub fn perform_until(&mut self, step: &Step, partly: bool) -> Result<(), String> {
        if let Some(id) = step.guest() {
            let guest = self.guests.get(id).ok_or_else(|| format!("{id} is gone"))?;
            let asks = !matches!(step, Step::Reserve { .. } | Step::Direct { .. });
            if asks && !guest.answers {
                return Err(format!("{id} does not answer"));
            }
        }
        let unknown = |vf: &VfId| format!("there is no VF {vf}");
        if let Step::Reserve { vf, .. }
        | Step::SetMac { vf, .. }
        | Step::ClearMac { vf }
        | Step::Recall { vf }
        | Step::Reset { vf } = step
            && let Some(VfPlace::Foreign(why) | VfPlace::Unknown(why)) =
                self.vfs.get(vf).map(|vf| &vf.place)
        {
            return Err(format!("{vf} is left alone: {why}"));
        }
        match step {
            Step::Reserve { .. } | Step::Reset { .. } | Step::Release { .. } => {}
            Step::SetMac { vf, mac } => {
                self.vfs.get_mut(vf).ok_or_else(|| unknown(vf))?.mac = *mac;
            }
            Step::ClearMac { vf } => {
                self.vfs.get_mut(vf).ok_or_else(|| unknown(vf))?.mac = Mac::NONE;
            }
            Step::Attach { guest, vf } => {
                let place = &mut self.vfs.get_mut(vf).ok_or_else(|| unknown(vf))?.place;
                if *place != VfPlace::Pool && *place != VfPlace::Guest(guest.clone()) {
                    return Err(format!("{vf} is not in the pool"));
                }
                *place = VfPlace::Guest(guest.clone());
            }
            Step::AwaitPath { guest: id, vf } => {
                if let Some(guest) = self.guests.get_mut(id).filter(|_| !partly) {
                    guest.vf_up = true;
                    if guest.join == Join::Failover {
                        guest.active = Path::Vf(vf.clone());
                    }
                }
            }
            Step::Prefer { guest: id, path } => {
                let Some(guest) = self.guests.get(id) else { return Ok(()) };
                if !self.path_works(id, guest, path) {
                    return Err(format!("{path} of {id} does not work"));
                }
                let (join, mac) = (guest.join, guest.mac);
                let attached: Vec<VfId> = self.attached(id).cloned().collect();
                if join == Join::Failover && guest.vf_up && !attached.is_empty() {
                    // The guest's kernel decides, and prefers the VF.
                    let vf = attached.into_iter().find(|vf| *path == Path::Vf(vf.clone()));
                    if let (Some(vf), Some(guest)) = (vf, self.guests.get_mut(id)) {
                        guest.active = Path::Vf(vf);
                    }
                    return Ok(());
                }
                if let Some(guest) = self.guests.get_mut(id) {
                    guest.active = path.clone();
                }
                if join == Join::Bond {
                    // The bond's address follows its active member.
                    for id in attached {
                        let active = *path == Path::Vf(id.clone());
                        if let Some(vf) = self.vfs.get_mut(&id) {
                            vf.mac = if active { mac } else { Mac::NONE };
                        }
                    }
                }
            }
            Step::Direct { guest: id, path } => {
                if let Some(guest) = self.guests.get_mut(id) {
                    guest.directed = path.clone();
                }
            }
            Step::Verify { guest: id, path } => {
                let guest = self.guests.get(id);
                if !guest.is_some_and(|guest| self.path_works(id, guest, path)) {
                    return Err(format!("{path} of {id} does not work"));
                }
            }
            Step::Detach { guest: id, vf } => {
                if let Some(guest) = self.guests.get_mut(id) {
                    guest.vf_up = false;
                    if guest.active == Path::Vf(vf.clone()) {
                        // The kernel falls back when the active member leaves.
                        guest.active = Path::Paravirtual;
                    }
                }
                let place = &mut self.vfs.get_mut(vf).ok_or_else(|| unknown(vf))?.place;
                if *place == VfPlace::Guest(id.clone()) && !partly {
                    *place = VfPlace::Pool;
                }
            }
            Step::Recall { vf } => {
                self.vfs.get_mut(vf).ok_or_else(|| unknown(vf))?.place = VfPlace::Pool;
            }
        }
        Ok(())
    }

    /// The guest releases what it holds without being asked: the VF is back with the host, and its
    /// address still on it.
    pub fn release(&mut self, guest: &GuestId) {
        for vf in self.vfs.values_mut().filter(|vf| vf.place == VfPlace::Guest(guest.clone())) {
            vf.place = VfPlace::Pool;
        }
        if let Some(guest) = self.guests.get_mut(guest) {
            (guest.vf_up, guest.active) = (false, Path::Paravirtual);
        }
    }

    /// The guest is started anew under its name: what it held is released, frames come by its
    /// paravirtual path as far as the host's bridge is concerned.
    pub fn restart(&mut self, guest: &GuestId) {
        self.release(guest);
        if let Some(guest) = self.guests.get_mut(guest) {
            guest.directed = Path::Paravirtual;
        }
    }

    /// The guest goes away, whatever it holds; the kernel gives its VF back or strands it.
    pub fn destroy(&mut self, guest: &GuestId, strands: bool) {
        self.guests.remove(guest);
        for vf in self.vfs.values_mut().filter(|vf| vf.place == VfPlace::Guest(guest.clone())) {
            vf.place = if strands { VfPlace::Lost } else { VfPlace::Pool };
        }
    }
}
