//! Plans: the steps from the present state of a function to the requested one, as values. Pure.
//!
//! Each request makes the state that is wanted of the present one; `converge` has the steps between any two.

mod converge;

use std::fmt;

use pw_error::{Error, Result};
use serde::Serialize;

use crate::address::PciAddress;
use crate::driver;
use crate::link::{Change, Cidr, Setting};
use crate::mac::Mac;
use crate::model::{NetNs, Netdev, Pf, Vf, VfConfig};

use self::converge::rebinds;
pub use self::converge::{converge_pf, converge_vf, differences, differences_of_vf};

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
    /// Sets a VF's setting through its PF.
    Set {
        /// The PF.
        pf: PciAddress,
        /// The VF's number.
        vf: u32,
        /// The setting.
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
        /// The namespace.
        to: NetNs,
        /// Its name there.
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

/// The file by which drivers are probed for a function.
pub(crate) const PROBE: &str = "bus/pci/drivers_probe";

/// Unbinds a function from its driver.
pub fn unbind(vf: PciAddress) -> Step {
    write(vf, "driver/unbind", vf)
}

/// Binds `driver` to a function without one; `driver_override` is the present one. The kernel refuses
/// a plain bind while drivers_autoprobe is off, but probes a function with a driver_override.
pub fn bind(vf: PciAddress, driver: &str, driver_override: Option<&str>, plan: &mut Plan) {
    if driver_override != Some(driver) {
        plan.push(write(vf, "driver_override", driver));
    }
    plan.push(Step::Write { file: PROBE.into(), value: vf.to_string() });
}

/// A requested driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Driver {
    /// The network driver that belongs to the PF's.
    Network,
    /// No driver.
    None,
    /// The driver of this name.
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
    /// The driver's name on VFs of `pf`.
    pub fn name(&self, pf: &Pf) -> Result<Option<String>> {
        match self {
            Self::None => Ok(None),
            Self::Named(name) => Ok(Some(name.clone())),
            Self::Network => {
                let pf_driver = pf.driver.as_deref().unwrap_or("none");
                let name = driver::network_driver_of_vfs(pf_driver).ok_or_else(|| {
                    Error::failed(
                        format!(
                            "the network driver for VFs of the driver {pf_driver} is not known"
                        ),
                        "name it: a directory below /sys/bus/pci/drivers",
                    )
                })?;
                Ok(Some(name.into()))
            }
        }
    }
}

/// A request to `setup`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// Number of VFs.
    pub count: u32,
    /// MAC of VF 0, the others follow; none: the present ones, or ones made from the PF's.
    pub first_mac: Option<Mac>,
    /// Their driver.
    pub driver: Driver,
    /// Whether to disregard VFs in use.
    pub force: bool,
}

/// Gives a PF the requested VFs.
pub fn setup(pf: &Pf, request: &Setup) -> Result<Plan> {
    let label = pf.label();
    if request.count > pf.total_vfs {
        return Err(Error::bad_input(
            format!("{label} cannot have {} VFs: at most {}", request.count, pf.total_vfs),
            "`planewised vf list` shows how many each PF can have",
        ));
    }
    if pf.driver.is_none() {
        return Err(Error::failed(
            format!("{label} has no driver, which VFs need"),
            "bind its network driver first",
        ));
    }
    let recreates = request.count != pf.num_vfs;
    if recreates {
        refuse_vfs_in_use(pf, request.force)?;
    }
    let mut wanted = Pf { num_vfs: request.count, vfs: Vec::new(), ..pf.clone() };
    if request.count > 0 {
        wanted.drivers_autoprobe = pf.drivers_autoprobe.map(|_| false);
        wanted.netdev.iter_mut().for_each(|netdev| netdev.up = true);
    }
    let driver = request.driver.name(pf)?;
    let pf_mac = pf.netdev.as_ref().and_then(|netdev| netdev.mac);
    let first = request.first_mac.or_else(|| pf_mac.map(Mac::first_of_pool));
    for index in 0..request.count {
        let kept = pf.vfs.iter().find(|vf| vf.index == index).filter(|_| !recreates);
        let now = match kept {
            Some(vf) => vf.clone(),
            None => Vf { index, address: vf_address(pf, index)?, ..Vf::default() },
        };
        let mut config = now.config.clone().unwrap_or_default();
        let has_mac = config.mac.is_some_and(|mac| mac != Mac::NONE);
        if request.first_mac.is_some() || !has_mac {
            config.mac = first.map(|first| first.plus(index)).or(config.mac);
        }
        if let Some(mac) = config.mac.filter(|mac| first.is_some() && !mac.is_station()) {
            return Err(Error::bad_input(format!("VF {index} cannot have the MAC {mac}"), ""));
        }
        let config = Some(config);
        let vf = Vf { config, driver: driver.clone(), netdev: None, ..now.clone() };
        wanted.vfs.push(permitted(&now, vf, request.force)?);
    }
    converge_pf(pf, &wanted)
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
fn refuse_vfs_in_use(pf: &Pf, force: bool) -> Result<()> {
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

fn refuse_in_use(vf: &Vf, force: bool) -> Result<()> {
    match vf.used_by.as_ref().filter(|_| !force || vfio_held(vf)) {
        None => Ok(()),
        Some(used) => Err(Error::failed(
            format!("the VF {} cannot be changed: {used}", vf.address),
            "release it first (`planewised vf release`), or add --force",
        )),
    }
}

/// Whether a process has the VF open: unbinding it would block in the kernel.
fn vfio_held(vf: &Vf) -> bool {
    vf.driver.as_deref() == Some(driver::VFIO) && vf.used_by.is_some()
}

/// A request to `set`; none leaves a setting as it is.
pub type Settings = VfConfig;

/// Sets those settings of a VF that differ from the requested ones.
///
/// # Errors
/// The PF has no interface, or the driver would have to be bound again while the VF is in use.
pub fn set(pf: &Pf, vf: &Vf, settings: &Settings, force: bool) -> Result<Plan> {
    let (now, mut wanted) = with_mac(pf, vf, settings.mac)?;
    let now_config = config(pf, vf)?;
    wanted.config = Some(VfConfig {
        mac: settings.mac.or(now_config.mac),
        vlan: settings.vlan.or(now_config.vlan),
        min_tx_mbps: settings.min_tx_mbps.or(now_config.min_tx_mbps),
        max_tx_mbps: settings.max_tx_mbps.or(now_config.max_tx_mbps),
        spoof_check: settings.spoof_check.or(now_config.spoof_check),
        trust: settings.trust.or(now_config.trust),
        link_state: settings.link_state.or(now_config.link_state),
    });
    converge_vf(pf.address, &now, &permitted(&now, wanted, force)?)
}

fn config<'a>(pf: &Pf, vf: &'a Vf) -> Result<&'a VfConfig> {
    vf.config.as_ref().ok_or_else(|| {
        Error::failed(
            format!("the VFs of {} cannot be set: it has no interface here", pf.label()),
            "bind its network driver, and bring its interface into this namespace",
        )
    })
}

/// Two states of a VF: the present one, and the one with this MAC at its PF and on its interface. If either lacks
/// it, it is set at the PF again, because some drivers (igbvf) learn it only when bound and drop unicast otherwise.
fn with_mac(pf: &Pf, vf: &Vf, mac: Option<Mac>) -> Result<(Vf, Vf)> {
    let (mut now, mut wanted) = (vf.clone(), vf.clone());
    let Some(mac) = mac else { return Ok((now, wanted)) };
    let on_interface = vf.netdev.as_ref().is_none_or(|netdev| netdev.mac == Some(mac));
    let config = config(pf, vf)?;
    wanted.config = Some(VfConfig { mac: Some(mac), ..config.clone() });
    if !on_interface {
        now.config = Some(VfConfig { mac: None, ..config.clone() });
    }
    if let Some(netdev) = &mut wanted.netdev {
        (netdev.mac, netdev.mac_is_permanent) = (Some(mac), None);
    }
    Ok((now, wanted))
}

/// The state that a user asks for, with the driver_override by which the VF's driver is bound.
///
/// # Errors
/// The VF is in use, and its driver would have to be bound again.
fn permitted(now: &Vf, mut wanted: Vf, force: bool) -> Result<Vf> {
    if rebinds(now, &wanted) {
        refuse_in_use(now, force)?;
        wanted.driver_override = wanted.driver.clone().or(wanted.driver_override);
    }
    Ok(wanted)
}

/// Binds another driver to a VF.
pub fn rebind(pf: &Pf, vf: &Vf, request: &Driver, force: bool) -> Result<Plan> {
    let driver = request.name(pf)?;
    if vf.driver == driver {
        return Ok(Plan::new());
    }
    let wanted = permitted(vf, Vf { driver, netdev: None, ..vf.clone() }, force)?;
    converge_vf(pf.address, vf, &wanted)
}

/// A request to `move`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The namespace to move to.
    pub to: NetNs,
    /// Its name there; none: as it is now.
    pub name: Option<String>,
    /// Its MAC; none: as it is now.
    pub mac: Option<Mac>,
    /// Its MTU [bytes]; none: as it is now.
    pub mtu_bytes: Option<u32>,
    /// Its addresses.
    pub addresses: Vec<Cidr>,
    /// Whether it is set up.
    pub up: bool,
    /// Whether to disregard its use.
    pub force: bool,
}

/// Moves a VF's interface into a namespace, in which there are interfaces named `taken`.
pub fn move_to_netns(pf: &Pf, vf: &Vf, request: &Move, taken: &[String]) -> Result<Plan> {
    let Some(netdev) = &vf.netdev else {
        let driver = vf.driver.as_deref().unwrap_or("none");
        return Err(Error::failed(
            format!("the VF {} has no interface to move: its driver is {driver}", vf.address),
            format!("bind its network driver: planewised vf bind {} netdev", vf.address),
        ));
    };
    let name = request.name.as_ref().unwrap_or(&netdev.name);
    if netdev.netns != request.to {
        refuse_in_use(vf, request.force)?;
        if taken.contains(name) {
            return Err(Error::failed(
                format!("{} has an interface {name} already", request.to),
                "name the new one otherwise with --name",
            ));
        }
    }
    let (now, mut wanted) = with_mac(pf, vf, request.mac)?;
    wanted.netdev = wanted.netdev.map(|there| Netdev {
        name: name.clone(),
        mtu_bytes: request.mtu_bytes.unwrap_or(netdev.mtu_bytes),
        up: request.up,
        addresses: request.addresses.iter().map(Cidr::to_string).collect(),
        netns: request.to.clone(),
        ..there
    });
    // Whether it may be taken from its user was asked above.
    converge_vf(pf.address, &now, &permitted(&now, wanted, true)?)
}

/// Moves an interface without a record to the host's namespace, under a name that is free there.
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
