//! The steps that bring PFs and VFs from one state to another: as requested, or back to an earlier one. Pure.

use pw_error::{Error, Result};

use super::{Plan, Step, bind, refuse_vfs_in_use, unbind, vfio_held, write};
use crate::address::PciAddress;
use crate::link::{Change, Cidr, Setting};
use crate::mac::Mac;
use crate::model::{LinkState, NetNs, Netdev, Pf, Vf, VfConfig, Vlan, VlanProtocol};

/// Whether a VF's MAC was chosen by its driver, not set through the PF.
fn driver_chose_mac(vf: &Vf) -> bool {
    let on_pf = vf.config.as_ref().and_then(|config| config.mac);
    vf.netdev.as_ref().is_some_and(|netdev| {
        netdev.mac_is_permanent == Some(false) && (on_pf == netdev.mac || on_pf == Some(Mac::NONE))
    })
}

/// The MAC that the PF holds for a VF.
fn pf_mac(vf: &Vf) -> Option<Mac> {
    vf.config.as_ref().and_then(|config| config.mac)
}

/// Whether the PF has to be told a VF's MAC.
fn needs_mac(now: &Vf, wanted: &Vf) -> bool {
    pf_mac(wanted).is_some_and(|mac| pf_mac(now) != Some(mac))
}

/// Whether a VF's driver has to be bound on the way.
pub fn rebinds(now: &Vf, wanted: &Vf) -> bool {
    now.driver != wanted.driver || wanted.driver.is_some() && needs_mac(now, wanted)
}

/// Brings a VF from one state to another; without an interface in the other one, its interface is whatever
/// its driver makes.
///
/// # Errors
/// A process has the VF open whose driver would have to be unbound.
pub fn converge_vf(pf: PciAddress, now: &Vf, wanted: &Vf) -> Result<Plan> {
    let mut plan = Plan::new();
    // A MAC that the VF's driver chose is left to the driver: set through the PF, it would be fixed
    // for good.
    let mac = if driver_chose_mac(wanted) { Some(Mac::NONE) } else { pf_mac(wanted) };
    let rebind = rebinds(now, wanted);
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
    if let (Some(config), Some(wanted)) = (&now.config, &wanted.config) {
        push_settings(pf, now.index, config, wanted, &mut plan);
    }
    if let Some(mac) = mac.filter(|mac| needs_mac(now, wanted) && pf_mac(now) != Some(*mac)) {
        plan.push(Step::Set { pf, vf: now.index, setting: Setting::Mac(mac) });
    }
    let mut driver_override = now.driver_override.as_deref();
    if let Some(driver) = wanted.driver.as_deref().filter(|_| rebind) {
        bind(now.address, driver, driver_override, &mut plan);
        driver_override = Some(driver);
    }
    if driver_override != wanted.driver_override.as_deref() {
        let value = wanted.driver_override.as_deref().unwrap_or_default();
        plan.push(write(now.address, "driver_override", value));
    }
    if let Some(netdev) = &wanted.netdev {
        // The driver makes a new interface, whose name and, if it draws one, MAC are not known.
        let new = || Netdev {
            mtu_bytes: 1500,
            mac: mac.filter(|mac| *mac != Mac::NONE),
            ..Netdev::default()
        };
        let from = now.netdev.clone().filter(|_| !rebind).unwrap_or_else(new);
        converge_netdev(now.address, from, netdev, &mut plan);
    }
    Ok(plan)
}

/// Appends the steps for a VF's settings, without its MAC, that differ from the requested ones.
fn push_settings(pf: PciAddress, vf: u32, now: &VfConfig, requested: &VfConfig, plan: &mut Plan) {
    let mut push = |setting| plan.push(Step::Set { pf, vf, setting });
    if let Some(vlan) = requested.vlan.filter(|vlan| now.vlan != Some(*vlan)) {
        push(Setting::Vlan(vlan));
    }
    let rates = |config: &VfConfig| (config.min_tx_mbps, config.max_tx_mbps);
    let ((min, max), (min_now, max_now)) = (rates(requested), rates(now));
    let new_rates = (min.or(min_now), max.or(max_now));
    if new_rates != rates(now) {
        let (min_tx_mbps, max_tx_mbps) = (new_rates.0.unwrap_or(0), new_rates.1.unwrap_or(0));
        push(Setting::Rate { min_tx_mbps, max_tx_mbps });
    }
    if let Some(on) = requested.spoof_check.filter(|on| now.spoof_check != Some(*on)) {
        push(Setting::SpoofCheck(on));
    }
    if let Some(on) = requested.trust.filter(|on| now.trust != Some(*on)) {
        push(Setting::Trust(on));
    }
    if let Some(state) = requested.link_state.filter(|state| now.link_state != Some(*state)) {
        push(Setting::LinkState(state));
    }
}

/// Appends the steps that bring an interface from one state to another.
fn converge_netdev(device: PciAddress, mut now: Netdev, to: &Netdev, plan: &mut Plan) {
    if now.netns != to.netns {
        plan.push(Step::MoveToNetns { device, to: to.netns.clone(), name: to.name.clone() });
        now = Netdev { name: to.name.clone(), up: false, addresses: Vec::new(), ..now };
    }
    let mut change = |change| plan.push(Step::Link { device, change });
    let mac = to.mac.filter(|mac| now.mac != Some(*mac));
    if now.up && (now.name != to.name || mac.is_some() || !to.up) {
        change(Change::Up(false));
        // The kernel forgets IPv6 addresses of an interface that goes down.
        now.addresses.retain(|address| !address.contains(':'));
        now.up = false;
    }
    if now.name != to.name {
        change(Change::Name(to.name.clone()));
    }
    mac.map(Change::Mac).into_iter().for_each(&mut change);
    if now.mtu_bytes != to.mtu_bytes {
        change(Change::MtuBytes(to.mtu_bytes));
    }
    if to.up && !now.up {
        change(Change::Up(true));
    }
    let parsed = |address: &String| address.parse::<Cidr>().ok();
    let removed = now.addresses.iter().filter(|address| !to.addresses.contains(address));
    removed.filter_map(parsed).map(Change::DeleteAddress).for_each(&mut change);
    let added = to.addresses.iter().filter(|address| !now.addresses.contains(address));
    added.filter_map(parsed).map(Change::AddAddress).for_each(&mut change);
}

/// Brings a PF and its VFs from one state to another.
///
/// # Errors
/// As [`converge_vf`]; also where VFs that a process has open would be destroyed.
pub fn converge_pf(now: &Pf, wanted: &Pf) -> Result<Plan> {
    let mut plan = Plan::new();
    let recreates = now.num_vfs != wanted.num_vfs;
    if recreates {
        refuse_vfs_in_use(now, true)?;
    }
    let up = |pf: &Pf| pf.netdev.as_ref().map(|netdev| netdev.up);
    let link = up(wanted).filter(|_| up(now) != up(wanted));
    let link = link.map(|up| Step::Link { device: now.address, change: Change::Up(up) });
    // A PF that is down does not tell VFs their MACs.
    plan.extend(link.clone().filter(|_| up(wanted) == Some(true)));
    let mut autoprobe = now.drivers_autoprobe;
    let creates = recreates && wanted.num_vfs > 0;
    if autoprobe == Some(true) && (creates || wanted.drivers_autoprobe == Some(false)) {
        plan.push(write(now.address, "sriov_drivers_autoprobe", 0));
        autoprobe = Some(false);
    }
    if recreates && now.num_vfs > 0 {
        plan.push(write(now.address, "sriov_numvfs", 0));
    }
    if creates {
        plan.push(write(now.address, "sriov_numvfs", wanted.num_vfs));
    }
    for vf in &wanted.vfs {
        let present = now.vfs.iter().find(|present| present.index == vf.index);
        let present = present.filter(|_| !recreates).cloned().unwrap_or_else(|| new_vf(vf));
        plan.extend(converge_vf(now.address, &present, vf)?);
    }
    let on = wanted.drivers_autoprobe.filter(|_| autoprobe != wanted.drivers_autoprobe);
    plan.extend(on.map(|on| write(now.address, "sriov_drivers_autoprobe", u32::from(on))));
    plan.extend(link.filter(|_| up(wanted) == Some(false)));
    Ok(plan)
}

/// A VF after its PF has created its VFs again. Its settings are unknown, so all of them are set again,
/// except those that the earlier VF had at their defaults.
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
    let config = earlier.config.as_ref().map(|_| config);
    Vf { index: earlier.index, address: earlier.address, config, ..Vf::default() }
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
