//! What is to be done, as values: steps, made from what is and what shall be. Pure.

mod restore;

use std::fmt;

use pw_error::{Error, Result};
use serde::Serialize;

use crate::address::PciAddress;
use crate::driver;
use crate::link::{Change, Cidr, Setting};
use crate::mac::Mac;
use crate::model::{NetNs, Netdev, Pf, Vf, VfConfig};

pub use self::restore::{differences, differences_of_vf, restore_pf, restore_vf};

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// Writes a value into a file of sysfs, named relative to its root. Nothing clears the file.
    Write {
        /// The file.
        file: String,
        /// The value.
        value: String,
    },
    /// Tells a PF about one of its VFs.
    Set {
        /// The PF.
        pf: PciAddress,
        /// The VF's number.
        vf: u32,
        /// What it is told.
        setting: Setting,
    },
    /// Changes a function's interface, wherever it is.
    Link {
        /// The function.
        device: PciAddress,
        /// The change.
        change: Change,
    },
    /// Moves a function's interface into a namespace; it is down and without addresses there.
    MoveToNetns {
        /// The function.
        device: PciAddress,
        /// Where to.
        to: NetNs,
        /// What it is called there.
        name: String,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { file, value } if value.is_empty() => write!(f, "clear {file}"),
            Self::Write { file, value } => write!(f, "write {value} to {file}"),
            Self::Set { pf, vf, setting } => {
                write!(f, "tell {pf} for VF {vf}: ")?;
                match setting {
                    Setting::Mac(mac) => write!(f, "MAC {mac}"),
                    Setting::Vlan(vlan) => write!(f, "VLAN {} priority {}", vlan.id, vlan.qos),
                    Setting::Rate { min_tx_mbps, max_tx_mbps } => {
                        write!(f, "rate {min_tx_mbps} to {max_tx_mbps} Mbit/s (0: none)")
                    }
                    Setting::SpoofCheck(on) => write!(f, "spoof check {}", switch(*on)),
                    Setting::Trust(on) => write!(f, "trust {}", switch(*on)),
                    Setting::LinkState(state) => write!(f, "link state {state:?}"),
                }
            }
            Self::Link { device, change } => {
                write!(f, "change the interface of {device}: ")?;
                match change {
                    Change::Up(true) => f.write_str("up"),
                    Change::Up(false) => f.write_str("down"),
                    Change::Name(name) => write!(f, "name {name}"),
                    Change::Mac(mac) => write!(f, "MAC {mac}"),
                    Change::MtuBytes(mtu) => write!(f, "MTU {mtu} bytes"),
                    Change::AddAddress(address) => write!(f, "add the address {address}"),
                    Change::DeleteAddress(address) => write!(f, "remove the address {address}"),
                }
            }
            Self::MoveToNetns { device, to, name } => {
                write!(f, "move the interface of {device} to {to} as {name}")
            }
        }
    }
}

fn switch(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Steps in order.
pub type Plan = Vec<Step>;

/// Writes into a file of a function.
pub(crate) fn write(address: PciAddress, file: &str, value: impl ToString) -> Step {
    Step::Write { file: format!("bus/pci/devices/{address}/{file}"), value: value.to_string() }
}

/// The file by which a function is given a driver.
pub(crate) const PROBE: &str = "bus/pci/drivers_probe";

/// Takes a function from its driver.
pub fn unbind(vf: PciAddress) -> Step {
    write(vf, "driver/unbind", vf)
}

/// Lets `driver` take a function that has none. A plain bind is refused while drivers_autoprobe is
/// off; a function with a driver_override may be probed.
pub fn bind(vf: PciAddress, driver: &str, now: Option<&str>, plan: &mut Plan) {
    if now != Some(driver) {
        plan.push(write(vf, "driver_override", driver));
    }
    plan.push(Step::Write { file: PROBE.into(), value: vf.to_string() });
}

/// The driver that somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Driver {
    /// The network driver that belongs to the PF's.
    Network,
    /// None at all.
    None,
    /// This one.
    Named(String),
}

impl std::str::FromStr for Driver {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        match text {
            "netdev" => Ok(Self::Network),
            "none" => Ok(Self::None),
            _ if !text.is_empty() && text.bytes().all(plain) => Ok(Self::Named(text.into())),
            _ => Err(Error::bad_input(
                format!("'{text}' is not a name of a driver"),
                "netdev, vfio-pci, none, or a name below /sys/bus/pci/drivers",
            )),
        }
    }
}

impl Driver {
    /// Its name on VFs of `pf`; none for none.
    ///
    /// # Errors
    /// The network driver of such VFs is not known.
    pub fn name(&self, pf: &Pf) -> Result<Option<String>> {
        match self {
            Self::None => Ok(None),
            Self::Named(name) => Ok(Some(name.clone())),
            Self::Network => {
                let of = pf.driver.as_deref().unwrap_or("none");
                let name = driver::network_driver_of_vfs(of).ok_or_else(|| {
                    Error::failed(
                        format!("the network driver for VFs of the driver {of} is not known"),
                        "name it: a directory below /sys/bus/pci/drivers",
                    )
                })?;
                Ok(Some(name.into()))
            }
        }
    }
}

/// What `setup` is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// VFs.
    pub count: u32,
    /// MAC of VF 0, the others follow; none: those that are there, or ones made from the PF's.
    pub first_mac: Option<Mac>,
    /// Their driver.
    pub driver: Driver,
    /// Also when VFs are in use.
    pub force: bool,
}

/// Gives a PF its VFs.
///
/// # Errors
/// The PF cannot have them, or VFs that would be destroyed are in use.
pub fn setup(pf: &Pf, wanted: &Setup) -> Result<Plan> {
    let label = pf.label();
    if wanted.count > pf.total_vfs {
        return Err(Error::bad_input(
            format!("{label} cannot have {} VFs: at most {}", wanted.count, pf.total_vfs),
            "`planewised vf list` shows how many each PF can have",
        ));
    }
    if pf.driver.is_none() {
        return Err(Error::failed(
            format!("{label} has no driver, which VFs need"),
            "bind its network driver first",
        ));
    }
    let fresh = wanted.count != pf.num_vfs;
    let mut plan = Plan::new();
    if fresh {
        refuse_used(pf, wanted.force)?;
    }
    if wanted.count > 0 && pf.netdev.as_ref().is_some_and(|netdev| !netdev.up) {
        plan.push(Step::Link { device: pf.address, change: Change::Up(true) });
    }
    if pf.drivers_autoprobe == Some(true) && wanted.count > 0 {
        plan.push(write(pf.address, "sriov_drivers_autoprobe", 0));
    }
    if fresh {
        if pf.num_vfs > 0 {
            plan.push(write(pf.address, "sriov_numvfs", 0));
        }
        if wanted.count > 0 {
            plan.push(write(pf.address, "sriov_numvfs", wanted.count));
        }
    }
    let driver = wanted.driver.name(pf)?;
    let pf_mac = pf.netdev.as_ref().and_then(|netdev| netdev.mac);
    let first = wanted.first_mac.or_else(|| pf_mac.map(Mac::first_of_pool));
    for index in 0..wanted.count {
        let now = if fresh { None } else { pf.vfs.iter().find(|vf| vf.index == index) };
        let address = vf_address(pf, index)?;
        let mac = first.map(|first| first.plus(index));
        let has = now.and_then(|vf| vf.config.as_ref()?.mac).filter(|mac| *mac != Mac::NONE);
        let keeps = wanted.first_mac.is_none() && has.is_some();
        let mac = mac.filter(|mac| !keeps && has != Some(*mac));
        if let Some(mac) = mac
            && !mac.is_station()
        {
            return Err(Error::bad_input(format!("VF {index} cannot have the MAC {mac}"), ""));
        }
        let rebind = now.is_some_and(|vf| vf.driver != driver)
            || mac.is_some() && now.is_some_and(|vf| vf.driver.is_some());
        if let Some(vf) = now.filter(|_| rebind || mac.is_some()) {
            refuse_one_used(vf, wanted.force)?;
            if vf.driver.is_some() {
                plan.push(unbind(address));
            }
        }
        if let Some(mac) = mac {
            plan.push(Step::Set { pf: pf.address, vf: index, setting: Setting::Mac(mac) });
        }
        if let Some(driver) = driver.as_deref().filter(|_| now.is_none() || rebind) {
            let now = now.and_then(|vf| vf.driver_override.as_deref());
            bind(address, driver, now, &mut plan);
        }
    }
    Ok(plan)
}

fn vf_address(pf: &Pf, index: u32) -> Result<PciAddress> {
    pf.vf_address(index).ok_or_else(|| {
        Error::failed(
            format!("the kernel does not say where VF {index} of {} will be", pf.label()),
            "kernels since 4.14 do (sriov_offset, sriov_stride)",
        )
    })
}

/// Refuses to destroy VFs that are in use.
fn refuse_used(pf: &Pf, force: bool) -> Result<()> {
    for vf in &pf.vfs {
        let Some(used) = vf.used_by.as_ref().filter(|_| !force || vfio_held(vf)) else { continue };
        let remedy = if vfio_held(vf) {
            "end it first: the kernel would wait for it without end"
        } else {
            "release them first (`planewised vf release`), or add --force, which takes them away"
        };
        return Err(Error::failed(
            format!(
                "the number of VFs of {} cannot be changed, which destroys all of them: VF {} is \
                 in use: {used}",
                pf.label(),
                vf.index
            ),
            remedy,
        ));
    }
    Ok(())
}

fn refuse_one_used(vf: &Vf, force: bool) -> Result<()> {
    match vf.used_by.as_ref().filter(|_| !force || vfio_held(vf)) {
        None => Ok(()),
        Some(used) => Err(Error::failed(
            format!("the VF {} cannot be changed: {used}", vf.address),
            "release it first (`planewised vf release`), or add --force",
        )),
    }
}

/// Whether a process has the VF open: taking it away would block in the kernel.
fn vfio_held(vf: &Vf) -> bool {
    vf.driver.as_deref() == Some(driver::VFIO) && vf.used_by.is_some()
}

/// What `set` is asked for; none leaves a setting as it is.
pub type Settings = VfConfig;

/// Tells a PF about a VF what it does not know yet.
///
/// # Errors
/// The PF cannot be told, or the driver would have to be bound again while the VF is in use.
pub fn set(pf: &Pf, vf: &Vf, wanted: &Settings, force: bool) -> Result<Plan> {
    let config = config(pf, vf)?;
    let mut plan = Plan::new();
    tell(pf.address, vf.index, config, wanted, &mut plan);
    if let Some(mac) = wanted.mac.filter(|mac| !carries(vf, *mac)) {
        if vf.driver.is_some() {
            refuse_one_used(vf, force)?;
        }
        with_new_mac(pf, vf, mac, &mut plan);
        // The driver made a new interface.
        if let Some(netdev) = &vf.netdev {
            let from = Netdev { mac: Some(mac), ..fresh() };
            reach(vf.address, &from, Netdev { mac: Some(mac), ..netdev.clone() }, &mut plan);
        }
    }
    Ok(plan)
}

/// The steps that tell a PF all settings of a VF but its MAC that are wanted and are not there.
fn tell(pf: PciAddress, vf: u32, now: &VfConfig, wanted: &VfConfig, plan: &mut Plan) {
    let mut tell = |setting| plan.push(Step::Set { pf, vf, setting });
    if let Some(vlan) = wanted.vlan.filter(|vlan| now.vlan != Some(*vlan)) {
        tell(Setting::Vlan(vlan));
    }
    let rates = |config: &VfConfig| (config.min_tx_mbps, config.max_tx_mbps);
    let ((min, max), (min_now, max_now)) = (rates(wanted), rates(now));
    let wanted_rates = (min.or(min_now), max.or(max_now));
    if wanted_rates != rates(now) {
        let (min_tx_mbps, max_tx_mbps) = (wanted_rates.0.unwrap_or(0), wanted_rates.1.unwrap_or(0));
        tell(Setting::Rate { min_tx_mbps, max_tx_mbps });
    }
    if let Some(on) = wanted.spoof_check.filter(|on| now.spoof_check != Some(*on)) {
        tell(Setting::SpoofCheck(on));
    }
    if let Some(on) = wanted.trust.filter(|on| now.trust != Some(*on)) {
        tell(Setting::Trust(on));
    }
    if let Some(state) = wanted.link_state.filter(|state| now.link_state != Some(*state)) {
        tell(Setting::LinkState(state));
    }
}

fn config<'a>(pf: &Pf, vf: &'a Vf) -> Result<&'a VfConfig> {
    vf.config.as_ref().ok_or_else(|| {
        Error::failed(
            format!("{} cannot be told about its VFs: it has no interface here", pf.label()),
            "bind its network driver, and bring its interface into this namespace",
        )
    })
}

/// Whether PF and VF agree on this MAC already.
fn carries(vf: &Vf, mac: Mac) -> bool {
    let known = vf.config.as_ref().and_then(|config| config.mac) == Some(mac);
    known && vf.netdev.as_ref().is_none_or(|netdev| netdev.mac == Some(mac))
}

/// The PF is told a MAC, around which the driver is bound anew: some drivers (igbvf) learn it only
/// when they are bound, and drop unicast otherwise.
fn with_new_mac(pf: &Pf, vf: &Vf, mac: Mac, plan: &mut Plan) {
    if vf.driver.is_some() {
        plan.push(unbind(vf.address));
    }
    plan.push(Step::Set { pf: pf.address, vf: vf.index, setting: Setting::Mac(mac) });
    if let Some(driver) = &vf.driver {
        bind(vf.address, driver, vf.driver_override.as_deref(), plan);
    }
}

/// Gives a VF another driver.
///
/// # Errors
/// The VF is in use, or the driver is not known.
pub fn rebind(pf: &Pf, vf: &Vf, wanted: &Driver, force: bool) -> Result<Plan> {
    let driver = wanted.name(pf)?;
    let mut plan = Plan::new();
    if vf.driver == driver {
        return Ok(plan);
    }
    refuse_one_used(vf, force)?;
    if vf.driver.is_some() {
        plan.push(unbind(vf.address));
    }
    if let Some(driver) = driver {
        bind(vf.address, &driver, vf.driver_override.as_deref(), &mut plan);
    }
    Ok(plan)
}

/// What `move` is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Where to.
    pub to: NetNs,
    /// What the interface is called there; none: as it is now.
    pub name: Option<String>,
    /// Its MAC; none: as it is now.
    pub mac: Option<Mac>,
    /// Its MTU [bytes]; none: as it is now.
    pub mtu_bytes: Option<u32>,
    /// Its addresses.
    pub addresses: Vec<Cidr>,
    /// Whether it is set up.
    pub up: bool,
    /// Also when it is in use.
    pub force: bool,
}

/// Moves a VF's interface into a namespace, in which there are interfaces named `taken`.
///
/// # Errors
/// The VF has no interface, it is in use, or the name is taken.
pub fn move_to_netns(pf: &Pf, vf: &Vf, wanted: &Move, taken: &[String]) -> Result<Plan> {
    let Some(netdev) = &vf.netdev else {
        let driver = vf.driver.as_deref().unwrap_or("none");
        return Err(Error::failed(
            format!("the VF {} has no interface to move: its driver is {driver}", vf.address),
            format!("bind its network driver: planewised vf bind {} netdev", vf.address),
        ));
    };
    let name = wanted.name.as_ref().unwrap_or(&netdev.name);
    let there = netdev.netns == wanted.to;
    if !there {
        refuse_one_used(vf, wanted.force)?;
        if taken.contains(name) {
            return Err(Error::failed(
                format!("{} has an interface {name} already", wanted.to),
                "name the new one otherwise with --name",
            ));
        }
    }
    let mut plan = Plan::new();
    let mut from = netdev.clone();
    if let Some(mac) = wanted.mac.filter(|mac| !carries(vf, *mac)) {
        config(pf, vf)?;
        with_new_mac(pf, vf, mac, &mut plan);
        from = Netdev { mac: Some(mac), ..fresh() };
    }
    let target = Netdev {
        name: name.clone(),
        mac: wanted.mac.or(netdev.mac),
        mtu_bytes: wanted.mtu_bytes.unwrap_or(netdev.mtu_bytes),
        up: wanted.up,
        addresses: wanted.addresses.iter().map(Cidr::to_string).collect(),
        netns: wanted.to.clone(),
        ..netdev.clone()
    };
    reach(vf.address, &from, target, &mut plan);
    Ok(plan)
}

/// An interface that a driver has just made: where and with which MAC is not known yet.
fn fresh() -> Netdev {
    Netdev { mtu_bytes: 1500, ..Netdev::default() }
}

/// Brings an interface from one state to another.
fn reach(device: PciAddress, from: &Netdev, to: Netdev, plan: &mut Plan) {
    let mut now = from.clone();
    if now.netns != to.netns {
        plan.push(Step::MoveToNetns { device, to: to.netns.clone(), name: to.name.clone() });
        now = Netdev { name: to.name.clone(), up: false, addresses: Vec::new(), ..now };
    }
    let mut changes = Vec::new();
    let quiet = now.name != to.name || to.mac.is_some() && now.mac != to.mac;
    if now.up && (quiet || !to.up) {
        changes.push(Change::Up(false));
        // The kernel forgets IPv6 addresses of an interface that goes down.
        now.addresses.retain(|address| !address.contains(':'));
        now.up = false;
    }
    if now.name != to.name {
        changes.push(Change::Name(to.name));
    }
    changes.extend(to.mac.filter(|mac| now.mac != Some(*mac)).map(Change::Mac));
    if now.mtu_bytes != to.mtu_bytes {
        changes.push(Change::MtuBytes(to.mtu_bytes));
    }
    if to.up && !now.up {
        changes.push(Change::Up(true));
    }
    let parsed = |address: &String| address.parse::<Cidr>().ok();
    let gone = now.addresses.iter().filter(|one| !to.addresses.contains(one));
    changes.extend(gone.filter_map(parsed).map(Change::DeleteAddress));
    let new = to.addresses.iter().filter(|one| !now.addresses.contains(one));
    changes.extend(new.filter_map(parsed).map(Change::AddAddress));
    plan.extend(changes.into_iter().map(|change| Step::Link { device, change }));
}

/// Brings home an interface of which nothing is recorded, under a name that is free there.
pub fn return_to_host(vf: &Vf, taken: &[String]) -> Plan {
    let Some(netdev) = vf.netdev.as_ref().filter(|netdev| !netdev.netns.is_host()) else {
        return Plan::new();
    };
    let numbered = (0..).map(|number| format!("vf{number}"));
    let name =
        std::iter::once(netdev.name.clone()).chain(numbered).find(|name| !taken.contains(name));
    let name = name.unwrap_or_default();
    vec![Step::MoveToNetns { device: vf.address, to: NetNs::Host, name }]
}
