//! The steps that bring PFs and VFs back to what they were. Pure.

use pw_error::{Error, Result};

use super::{Plan, Step, bind, fresh, reach, refuse_used, tell, unbind, vfio_held, write};
use crate::address::PciAddress;
use crate::link::{Change, Setting};
use crate::mac::Mac;
use crate::model::{LinkState, NetNs, Netdev, Pf, Vf, VfConfig, Vlan, VlanProtocol};

/// Brings a VF from what it is to what it was.
///
/// # Errors
/// A process holds it through VFIO.
pub fn restore_vf(pf: &Pf, now: &Vf, before: &Vf) -> Result<Plan> {
    let mut plan = Plan::new();
    converge(pf.address, now, before, &mut plan)?;
    Ok(plan)
}

/// Whether a VF's driver had chosen its MAC, rather than the PF having been told one.
fn chose_itself(vf: &Vf) -> bool {
    let told = vf.config.as_ref().and_then(|config| config.mac);
    vf.netdev.as_ref().is_some_and(|netdev| {
        netdev.mac_is_permanent == Some(false) && (told == netdev.mac || told == Some(Mac::NONE))
    })
}

fn converge(pf: PciAddress, now: &Vf, before: &Vf, plan: &mut Plan) -> Result<()> {
    let mac_now = now.config.as_ref().and_then(|config| config.mac);
    let mac_before = before.config.as_ref().and_then(|config| config.mac);
    // A MAC that the VF's driver had chosen is the driver's to set again: to tell the PF would
    // forbid it to choose another ever after.
    let told = if chose_itself(before) { Some(Mac::NONE) } else { mac_before };
    let new_mac = mac_now != mac_before && mac_before.is_some();
    let rebind = now.driver != before.driver || new_mac && before.driver.is_some();
    if rebind && vfio_held(now) {
        let used = now.used_by.as_deref().unwrap_or_default();
        return Err(Error::failed(
            format!("the VF {} cannot be restored: {used}", now.address),
            "end it first: the kernel would wait for it without end",
        ));
    }
    if rebind && now.driver.is_some() {
        plan.push(unbind(now.address));
    }
    if let (Some(is), Some(was)) = (&now.config, &before.config) {
        tell(pf, now.index, is, was, plan);
    }
    if let Some(mac) = told.filter(|told| new_mac && mac_now != Some(*told)) {
        plan.push(Step::Set { pf, vf: now.index, setting: Setting::Mac(mac) });
    }
    let mut overridden = now.driver_override.clone();
    if let Some(driver) = before.driver.as_deref().filter(|_| rebind) {
        bind(now.address, driver, overridden.as_deref(), plan);
        overridden = Some(driver.into());
    }
    if overridden != before.driver_override {
        let value = before.driver_override.clone().unwrap_or_default();
        plan.push(write(now.address, "driver_override", value));
    }
    if let Some(netdev) = &before.netdev {
        let from = match &now.netdev {
            Some(netdev) if !rebind => netdev.clone(),
            _ => Netdev { mac: told.filter(|mac| *mac != Mac::NONE), ..fresh() },
        };
        reach(now.address, &from, netdev.clone(), plan);
    }
    Ok(())
}

/// Brings a PF and its VFs from what they are to what they were.
///
/// # Errors
/// A process holds a VF through VFIO that would have to go.
pub fn restore_pf(now: &Pf, before: &Pf) -> Result<Plan> {
    let mut plan = Plan::new();
    let recreate = now.num_vfs != before.num_vfs;
    let mut autoprobe = now.drivers_autoprobe;
    if recreate {
        refuse_used(now, true)?;
        if now.num_vfs > 0 {
            plan.push(write(now.address, "sriov_numvfs", 0));
        }
        if before.num_vfs > 0 {
            if autoprobe == Some(true) {
                plan.push(write(now.address, "sriov_drivers_autoprobe", 0));
                autoprobe = Some(false);
            }
            plan.push(write(now.address, "sriov_numvfs", before.num_vfs));
        }
    }
    for was in &before.vfs {
        let is = if recreate { None } else { now.vfs.iter().find(|vf| vf.index == was.index) };
        match is {
            Some(is) => converge(now.address, is, was, &mut plan)?,
            None => converge(now.address, &unborn(was), was, &mut plan)?,
        }
    }
    if autoprobe != before.drivers_autoprobe
        && let Some(on) = before.drivers_autoprobe
    {
        plan.push(write(now.address, "sriov_drivers_autoprobe", u32::from(on)));
    }
    let up = |pf: &Pf| pf.netdev.as_ref().map(|netdev| netdev.up);
    if let Some(was) = up(before).filter(|_| up(now) != up(before)) {
        plan.push(Step::Link { device: now.address, change: Change::Up(was) });
    }
    Ok(plan)
}

/// A VF as it is when its PF has just made it; its settings are those of the driver's choice, so
/// all are told again.
fn unborn(was: &Vf) -> Vf {
    let mut config = VfConfig { mac: Some(Mac::NONE), ..Default::default() };
    // What nobody told the old one, nobody needs to tell the new one.
    let old = was.config.clone().unwrap_or_default();
    let untagged = Vlan { id: 0, qos: 0, protocol: VlanProtocol::Dot1q };
    config.vlan = old.vlan.filter(|vlan| *vlan == untagged);
    if old.min_tx_mbps.unwrap_or(0) == 0 && old.max_tx_mbps.unwrap_or(0) == 0 {
        (config.min_tx_mbps, config.max_tx_mbps) = (old.min_tx_mbps, old.max_tx_mbps);
    }
    config.link_state = old.link_state.filter(|state| *state == LinkState::Auto);
    config.trust = old.trust.filter(|on| !on);
    Vf {
        driver: None,
        driver_override: None,
        config: was.config.as_ref().map(|_| config),
        netdev: None,
        used_by: None,
        use_is_unknown: false,
        owner: None,
        ..was.clone()
    }
}

/// In what a PF and its VFs are not what they were, for a sentence; empty: in nothing that counts.
pub fn differences(now: &Pf, before: &Pf) -> Vec<String> {
    let mut found = Vec::new();
    let label = before.address;
    let mut differ = |what: &str, same: bool| {
        if !same {
            found.push(format!("{what} of {label}"));
        }
    };
    differ("the number of VFs", now.num_vfs == before.num_vfs);
    differ("drivers_autoprobe", now.drivers_autoprobe == before.drivers_autoprobe);
    let up = |pf: &Pf| pf.netdev.as_ref().map(|netdev| netdev.up);
    differ("the interface", up(now) == up(before));
    for was in &before.vfs {
        match now.vfs.iter().find(|vf| vf.index == was.index) {
            Some(is) => found.extend(differences_of_vf(is, was)),
            None if now.num_vfs == before.num_vfs => found.push(format!("VF {}", was.index)),
            None => {}
        }
    }
    found
}

/// In what a VF is not what it was.
pub fn differences_of_vf(now: &Vf, before: &Vf) -> Vec<String> {
    let shape = |netdev: &Netdev| {
        let mut addresses = netdev.addresses.clone();
        addresses.sort_unstable();
        (netdev.name.clone(), netdev.mac, netdev.mtu_bytes, netdev.up, addresses)
    };
    // What the PF shows of a MAC that the VF's driver chose depends on the driver.
    let settings = |vf: &Vf| {
        let own = chose_itself(before);
        vf.config.clone().map(|config| VfConfig { mac: config.mac.filter(|_| !own), ..config })
    };
    let inode = |netdev: &Netdev| match &netdev.netns {
        NetNs::Host => 0,
        NetNs::Other(namespace) => namespace.inode,
    };
    let checks = [
        ("the driver", now.driver == before.driver),
        ("driver_override", now.driver_override == before.driver_override),
        ("the settings", settings(now) == settings(before)),
        ("the interface", now.netdev.as_ref().map(shape) == before.netdev.as_ref().map(shape)),
        ("the namespace", now.netdev.as_ref().map(inode) == before.netdev.as_ref().map(inode)),
    ];
    let differing = checks.into_iter().filter(|(_, same)| !same);
    differing.map(|(what, _)| format!("{what} of {}", before.address)).collect()
}
