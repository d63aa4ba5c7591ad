//! Surveys libvirt's machines: their VFs of the pool. May block.

use std::collections::BTreeSet;
use std::time::Instant;

use pw_alloc::model::{GuestId, Mac, VfId};
use pw_alloc::step::{Join, Path};
use pw_alloc::world::{GuestState, HostState, VfPlace, VfPlacement};
use pw_error::Result;

use super::api::{Libvirt, Refusal, Uuid, Why};
use super::host::Host;
use super::{FIND, agent, has_managed_vf, holds, unavailable, watch};
use crate::daemon::pool::PoolView;

/// One survey.
pub(super) struct Finder {
    pub(super) libvirt: Box<dyn Libvirt>,
    pub(super) host: Box<dyn Host>,
    /// Machines that were managed once and may still hold a VF.
    pub(super) leaving: BTreeSet<Uuid>,
    /// There may be no libvirt, which is no gap.
    pub(super) may_be_missing: bool,
}

impl Finder {
    /// The machines that are managed, and where the VFs are that machines have.
    pub(super) fn find(&mut self, pool: &PoolView) -> Result<HostState> {
        let deadline = Instant::now() + FIND;
        let mut state = HostState::default();
        let answer = self
            .libvirt
            .domains(deadline)
            .and_then(|domains| watch::describe(&mut *self.libvirt, domains, deadline));
        let machines = match answer {
            Ok(machines) => machines,
            Err(Refusal { why: Why::Gone, .. }) if self.may_be_missing => return Ok(state),
            Err(refusal) => {
                state.gaps.push(unavailable(&refusal).what);
                return Ok(state);
            }
        };
        let taps = self.host.taps()?;
        let directed = self.host.directed(pool)?;
        for machine in machines {
            let id = GuestId::from(machine.domain.name.as_str());
            let described = match machine.described {
                Ok(described) => described,
                Err(why) => {
                    state.gaps.push(format!("the XML of {id} cannot be read: {why}"));
                    continue;
                }
            };
            let held = holds(&described.functions, pool);
            let managed = described.mark.as_ref().is_some_and(|mark| mark.wrong.is_none());
            if !managed && held.is_empty() {
                continue;
            }
            let movable = managed
                || self.leaving.contains(&machine.domain.uuid)
                || has_managed_vf(&described.functions, pool);
            let nic = match described.nic {
                Ok(nic) if movable => nic,
                // VFs that others plugged in, or that cannot be moved, are never taken.
                _ => {
                    for vf in held {
                        let place = VfPlace::Foreign(format!("the machine {id} has it"));
                        let mac = Mac::NONE;
                        state.vfs.insert(vf, VfPlacement { mac, place });
                    }
                    continue;
                }
            };
            for vf in &held {
                let mac = pool.vfs.get(vf).map_or(Mac::NONE, |vf| vf.mac);
                state
                    .vfs
                    .insert(vf.clone(), VfPlacement { mac, place: VfPlace::Guest(id.clone()) });
            }
            let tap = taps.get(&nic.tap);
            let mut drives = |vf: &&VfId| {
                pool.vfs.get(*vf).is_some_and(|vf| self.host.in_use(vf.address) == Some(true))
                    || described.agent
                        && agent::drives(&mut *self.libvirt, &machine.domain, nic.mac)
            };
            let up = held.iter().find(|vf| drives(vf));
            // Of a VF that it released by itself only the PF is known: any VF of the PF represents it.
            let by_pf = directed.get(&nic.mac);
            let of_pf = |vf: &&VfId| by_pf == Some(&vf.pf);
            let by_vf = held.iter().find(of_pf).or_else(|| pool.vfs.keys().find(of_pf));
            let guest = GuestState {
                mac: nic.mac,
                join: Join::Failover,
                answers: true,
                paravirtual_up: nic.plugged && tap.is_some_and(|tap| tap.works),
                vf_up: up.is_some(),
                active: up.map_or(Path::Paravirtual, |vf| Path::Vf((*vf).clone())),
                directed: by_vf.map_or(Path::Paravirtual, |vf| Path::Vf(vf.clone())),
            };
            state.guests.insert(id, guest);
        }
        Ok(state)
    }
}
