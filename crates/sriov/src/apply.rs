//! Performs a plan through a kernel. Decides nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use pw_error::{Error, Result};

use crate::address::PciAddress;
use crate::discover;
use crate::kernel::{Kernel, explain};
use crate::link::{Change, Link, Outcome, Setting};
use crate::mac::Mac;
use crate::model::{NetNs, Netdev};
use crate::plan::{PROBE, Step};

/// How long the kernel may answer that a device is busy with its last change.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// How often a VF's driver is bound until the VF has the MAC that the PF holds for it.
const PROBE_ATTEMPTS: u32 = 5;

/// Effects of earlier steps that later steps depend on.
#[derive(Default)]
struct Applied {
    /// The namespace that a function's interface was moved to.
    netns: BTreeMap<PciAddress, NetNs>,
    /// MACs set through the PF, by PF and VF number.
    macs: BTreeMap<(PciAddress, u32), Mac>,
}

/// Performs the steps in order. An interface of `displaceable` in the host's namespace whose name
/// a step needs is renamed.
///
/// # Errors
/// A step failed, which the message names; those before it are done, those after it are not.
pub fn apply(kernel: &mut dyn Kernel, plan: &[Step], displaceable: &[PciAddress]) -> Result<()> {
    let mut applied = Applied::default();
    plan.iter().try_for_each(|step| {
        free_name(kernel, step, displaceable)
            .and_then(|()| perform(kernel, step, &mut applied))
            .map_err(|error| error.at(format_args!("cannot {step}")))
    })
}

/// Renames the interface that has the name which a step needs: the kernel names new interfaces by
/// the first free number, so that two may have swapped names.
fn free_name(kernel: &mut dyn Kernel, step: &Step, displaceable: &[PciAddress]) -> Result<()> {
    let (device, name) = match step {
        Step::Link { device, change: Change::Name(name) } => (device, name),
        Step::MoveToNetns { device, to: NetNs::Host, name } => (device, name),
        _ => return Ok(()),
    };
    let links = kernel.links(&NetNs::Host)?;
    let Some(holder) = links.iter().find(|link| link.netdev.name == *name) else { return Ok(()) };
    if holder.device.is_none_or(|holder| holder == *device || !displaceable.contains(&holder)) {
        return Ok(());
    }
    let free = |name: &String| links.iter().all(|link| link.netdev.name != *name);
    let Some(name) = (0..).map(|number| format!("vf{number}")).find(free) else { return Ok(()) };
    // A name changes while the interface is down.
    let up = holder.netdev.up;
    let steps = [Change::Up(false), Change::Name(name), Change::Up(true)];
    for change in steps.iter().filter(|change| up || matches!(change, Change::Name(_))) {
        until_settled(|| kernel.change(&holder.netdev, change))?;
    }
    Ok(())
}

fn perform(kernel: &mut dyn Kernel, step: &Step, applied: &mut Applied) -> Result<()> {
    match step {
        Step::Write { file, value } if file == PROBE => probe(kernel, value.parse()?, applied),
        Step::Write { file, value } => write(kernel, file, value),
        Step::Set { pf, vf, setting } => {
            let netdev = netdev(kernel, *pf, applied)?;
            until_settled(|| kernel.set_vf(&netdev, *vf, *setting))?;
            if let Setting::Mac(mac) = setting {
                applied.macs.insert((*pf, *vf), *mac);
            }
            Ok(())
        }
        Step::Link { device, change } => {
            let netdev = netdev(kernel, *device, applied)?;
            change_unless_set(kernel, &netdev, change)
        }
        Step::MoveToNetns { device, to, name } => {
            let netdev = netdev(kernel, *device, applied)?;
            if netdev.netns == *to {
                return change_unless_set(kernel, &netdev, &Change::Name(name.clone()));
            }
            until_settled(|| kernel.move_to_netns(&netdev, to, name))?;
            applied.netns.insert(*device, to.clone());
            Ok(())
        }
    }
}

fn netdev(kernel: &mut dyn Kernel, device: PciAddress, applied: &Applied) -> Result<Netdev> {
    discover::netdev(kernel, device, applied.netns.get(&device).unwrap_or(&NetNs::Host))
}

fn change_unless_set(kernel: &mut dyn Kernel, netdev: &Netdev, change: &Change) -> Result<()> {
    let set = match change {
        Change::Up(up) => netdev.up == *up,
        Change::Name(name) => netdev.name == *name,
        Change::Mac(mac) => netdev.mac == Some(*mac),
        Change::MtuBytes(mtu) => netdev.mtu_bytes == *mtu,
        Change::AddAddress(address) => netdev.addresses.contains(&address.to_string()),
        Change::DeleteAddress(address) => !netdev.addresses.contains(&address.to_string()),
    };
    if set { Ok(()) } else { until_settled(|| kernel.change(netdev, change)) }
}

/// Repeats a change while the kernel answers that the device is busy.
fn until_settled(mut change: impl FnMut() -> Result<Outcome>) -> Result<()> {
    let begun = Instant::now();
    loop {
        match change()? {
            Ok(()) => return Ok(()),
            Err(libc::EBUSY | libc::EAGAIN) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE);
            }
            Err(code) => return Err(Error::failed(explain(code), "")),
        }
    }
}

fn write(kernel: &mut dyn Kernel, file: &str, value: &str) -> Result<()> {
    kernel.write(Path::new(file), value).map_err(|error| {
        let numvfs = file.ends_with("sriov_numvfs");
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
                Error::failed(error.to_string(), "run as root, where sysfs is writable")
            }
            Some(libc::EBUSY) if numvfs => Error::failed(
                "the PF is busy: it has VFs, or another program is changing their number",
                "`planewised vf list` shows what the PF has; `setup` with its present number \
                 keeps them",
            ),
            Some(libc::ENOENT) if numvfs => Error::failed(
                format!("{error}: the driver of the PF has no SR-IOV"),
                "load a driver that has, or enable SR-IOV in its firmware",
            ),
            Some(libc::ENOENT) => Error::failed(error.to_string(), "the device or driver is gone"),
            Some(libc::ENOMEM | libc::ENOSPC) if numvfs => Error::failed(
                format!("{error}: the platform has no room for so many VFs"),
                "try fewer; enable SR-IOV and 64-bit BARs in the firmware; boot with pci=realloc",
            ),
            _ => Error::failed(error.to_string(), ""),
        }
    })
}

/// Probes drivers for a function, repeatedly while a VF comes up without the MAC its PF holds.
///
/// A VF's driver asks the PF for the MAC when it is bound. Where the answer is late (igbvf waits a
/// millisecond) it draws a MAC, which the PF accepts if the VF is trusted.
fn probe(kernel: &mut dyn Kernel, address: PciAddress, applied: &Applied) -> Result<()> {
    let admin_mac = admin_mac(kernel, address, applied)?;
    for _ in 0..PROBE_ATTEMPTS {
        write(kernel, PROBE, &address.to_string())?;
        must_be_bound(kernel, address)?;
        let link = link_of(kernel, address)?;
        let Some(((pf, vf, mac), link)) = admin_mac.as_ref().zip(link) else { return Ok(()) };
        // A PF that is down does not answer.
        if link.netdev.mac == Some(*mac) || !pf.up {
            return Ok(());
        }
        let unbind = format!("bus/pci/devices/{address}/driver/unbind");
        write(kernel, &unbind, &address.to_string())?;
        until_settled(|| kernel.set_vf(pf, *vf, Setting::Mac(*mac)))?;
    }
    Err(Error::failed(
        format!(
            "its driver did not hear from the PF, in {PROBE_ATTEMPTS} attempts, which MAC it has"
        ),
        "the kernel's log (dmesg) may say why; a busy machine may be less so later",
    ))
}

/// The interface of a function in the host's namespace.
fn link_of(kernel: &mut dyn Kernel, address: PciAddress) -> Result<Option<Link>> {
    let links = kernel.links(&NetNs::Host)?;
    Ok(links.into_iter().find(|link| link.device == Some(address) && !link.representor))
}

/// The interface of a VF's PF, the VF's number, and the MAC that the PF holds for it.
fn admin_mac(
    kernel: &mut dyn Kernel,
    address: PciAddress,
    applied: &Applied,
) -> Result<Option<(Netdev, u32, Mac)>> {
    let tree = kernel.tree();
    let Some(pf) = tree.pf_of(address) else { return Ok(None) };
    let index = tree.vfs(pf).into_iter().find(|(_, vf)| *vf == address).map(|(index, _)| index);
    let Some((vf, link)) = index.zip(link_of(kernel, pf)?) else { return Ok(None) };
    let mac = match applied.macs.get(&(pf, vf)) {
        Some(mac) => Some(*mac),
        None => kernel
            .vfs(&link.netdev)?
            .and_then(|infos| infos.into_iter().find(|info| info.index == vf)?.config.mac),
    };
    let mac = mac.filter(|mac| *mac != Mac::NONE);
    Ok(mac.map(|mac| (link.netdev, vf, mac)))
}

/// Checks that a driver took a function: the kernel reports a probe as done also when none did.
fn must_be_bound(kernel: &mut dyn Kernel, address: PciAddress) -> Result<()> {
    let tree = kernel.tree();
    let driver = tree.text(address, "driver_override").unwrap_or_default();
    let bound = tree.link(address, "driver");
    if bound.as_deref() == Some(driver.as_str()) || bound.is_some() && driver.is_empty() {
        return Ok(());
    }
    Err(Error::failed(
        format!("the driver {driver} did not take {address}"),
        "the kernel's log (dmesg) says why; for vfio-pci an IOMMU is needed",
    ))
}
