//! The steps that restore PFs and VFs to an earlier state. Pure.

use pw_error::{Error, Result};

use super::{
    Plan, Step, bind, converge_netdev, new_netdev, push_settings, refuse_vfs_in_use, unbind,
    vfio_held, write,
};
use crate::address::PciAddress;
use crate::link::{Change, Setting};
use crate::mac::Mac;
use crate::model::{LinkState, NetNs, Netdev, Pf, Vf, VfConfig, Vlan, VlanProtocol};

/// Restores a VF to an earlier state.
pub fn restore_vf(pf: &Pf, now: &Vf, before: &Vf) -> Result<Plan> {
    let mut plan = Plan::new();
    converge_vf(pf.address, now, before, &mut plan)?;
    Ok(plan)
}

/// Whether a VF's MAC was chosen by its driver, not set through the PF.
fn driver_chose_mac(vf: &Vf) -> bool {
    let on_pf = vf.config.as_ref().and_then(|config| config.mac);
    vf.netdev.as_ref().is_some_and(|netdev| {
        netdev.mac_is_permanent == Some(false) && (on_pf == netdev.mac || on_pf == Some(Mac::NONE))
    })
}

fn converge_vf(pf: PciAddress, now: &Vf, before: &Vf, plan: &mut Plan) -> Result<()> {
    let mac_now = now.config.as_ref().and_then(|config| config.mac);
    let mac_before = before.config.as_ref().and_then(|config| config.mac);
    // A MAC that the VF's driver chose is left to the driver: set through the PF, it would be fixed
    // for good.
    let admin_mac = if driver_chose_mac(before) { Some(Mac::NONE) } else { mac_before };
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
    if let (Some(config), Some(earlier)) = (&now.config, &before.config) {
        push_settings(pf, now.index, config, earlier, plan);
    }
    if let Some(mac) = admin_mac.filter(|mac| new_mac && mac_now != Some(*mac)) {
        plan.push(Step::Set { pf, vf: now.index, setting: Setting::Mac(mac) });
    }
    let mut driver_override = now.driver_override.clone();
    if let Some(driver) = before.driver.as_deref().filter(|_| rebind) {
        bind(now.address, driver, driver_override.as_deref(), plan);
        driver_override = Some(driver.into());
    }
    if driver_override != before.driver_override {
        let value = before.driver_override.clone().unwrap_or_default();
        plan.push(write(now.address, "driver_override", value));
    }
    if let Some(netdev) = &before.netdev {
        let from = match &now.netdev {
            Some(netdev) if !rebind => netdev.clone(),
            _ => Netdev { mac: admin_mac.filter(|mac| *mac != Mac::NONE), ..new_netdev() },
        };
        converge_netdev(now.address, &from, netdev.clone(), plan);
    }
    Ok(())
}

/// Restores a PF and its VFs to an earlier state.
pub fn restore_pf(now: &Pf, before: &Pf) -> Result<Plan> {
    let mut plan = Plan::new();
    let recreates = now.num_vfs != before.num_vfs;
    let mut autoprobe = now.drivers_autoprobe;
    if recreates {
        refuse_vfs_in_use(now, true)?;
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
    for earlier in &before.vfs {
        let present = now.vfs.iter().find(|vf| vf.index == earlier.index);
        let present = present.filter(|_| !recreates).cloned();
        let vf = present.unwrap_or_else(|| new_vf(earlier));
        converge_vf(now.address, &vf, earlier, &mut plan)?;
    }
    if autoprobe != before.drivers_autoprobe
        && let Some(on) = before.drivers_autoprobe
    {
        plan.push(write(now.address, "sriov_drivers_autoprobe", u32::from(on)));
    }
    let up = |pf: &Pf| pf.netdev.as_ref().map(|netdev| netdev.up);
    if let Some(up) = up(before).filter(|_| up(now) != up(before)) {
        plan.push(Step::Link { device: now.address, change: Change::Up(up) });
    }
    Ok(plan)
}

/// The VF that a PF makes anew in place of an earlier one. Its settings are unknown, so that all are
/// set again but those that the earlier VF had by default.
fn new_vf(earlier: &Vf) -> Vf {
    let mut config = VfConfig { mac: Some(Mac::NONE), ..Default::default() };
    let old = earlier.config.clone().unwrap_or_default();
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
        config: earlier.config.as_ref().map(|_| config),
        netdev: None,
        used_by: None,
        use_is_unknown: false,
        owner: None,
        ..earlier.clone()
    }
}

/// The differences of a PF and its VFs from an earlier state, for a sentence; empty: restored.
pub fn differences(now: &Pf, before: &Pf) -> Vec<String> {
    let mut differences = Vec::new();
    let label = before.address;
    let mut differ = |what: &str, same: bool| {
        if !same {
            differences.push(format!("{what} of {label}"));
        }
    };
    differ("the number of VFs", now.num_vfs == before.num_vfs);
    differ("drivers_autoprobe", now.drivers_autoprobe == before.drivers_autoprobe);
    let up = |pf: &Pf| pf.netdev.as_ref().map(|netdev| netdev.up);
    differ("the interface", up(now) == up(before));
    for earlier in &before.vfs {
        match now.vfs.iter().find(|vf| vf.index == earlier.index) {
            Some(vf) => differences.extend(differences_of_vf(vf, earlier)),
            None if now.num_vfs == before.num_vfs => {
                differences.push(format!("VF {}", earlier.index));
            }
            None => {}
        }
    }
    differences
}

/// The differences of a VF from an earlier state, for a sentence.
pub fn differences_of_vf(now: &Vf, before: &Vf) -> Vec<String> {
    let shape = |netdev: &Netdev| {
        let mut addresses = netdev.addresses.clone();
        addresses.sort_unstable();
        (netdev.name.clone(), netdev.mac, netdev.mtu_bytes, netdev.up, addresses)
    };
    // Whether a PF reports a MAC that the VF's driver chose depends on the driver.
    let settings = |vf: &Vf| {
        let admin = !driver_chose_mac(before);
        vf.config.clone().map(|config| VfConfig { mac: config.mac.filter(|_| admin), ..config })
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
