//! Performs a plan through a kernel. Decides nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use pw_error::{Error, Result};

use crate::address::PciAddress;
use crate::discover;
use crate::kernel::{Kernel, explain};
use crate::link::{Change, Outcome, Setting};
use crate::mac::Mac;
use crate::model::{NetNs, Netdev};
use crate::plan::{PROBE, Step};

/// How long the kernel may answer that a device is busy with its last change.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// How often a VF's driver is bound until it has heard from the PF which MAC the VF has.
const HEARINGS: u32 = 5;

/// What earlier steps of a plan did that later ones have to know.
#[derive(Default)]
struct Done {
    /// Where a function's interface was carried.
    places: BTreeMap<PciAddress, NetNs>,
    /// The MACs that VFs were told, by PF and number.
    told: BTreeMap<(PciAddress, u32), Mac>,
}

/// Performs the steps in order. A name at home that a step needs is taken from the interface of
/// one of `displaceable`, which gets another one meanwhile.
///
/// # Errors
/// A step failed; those before it are done, those after it are not. The sentence names it.
pub fn apply(kernel: &mut dyn Kernel, plan: &[Step], displaceable: &[PciAddress]) -> Result<()> {
    let mut done = Done::default();
    plan.iter().try_for_each(|step| {
        make_room(kernel, step, displaceable)
            .and_then(|()| perform(kernel, step, &mut done))
            .map_err(|error| error.at(format_args!("cannot {step}")))
    })
}

/// Two interfaces may have swapped names: the kernel names a new one as soon as a name is free.
fn make_room(kernel: &mut dyn Kernel, step: &Step, displaceable: &[PciAddress]) -> Result<()> {
    let (device, wanted) = match step {
        Step::Link { device, change: Change::Name(name) } => (device, name),
        Step::MoveToNetns { device, to: NetNs::Host, name } => (device, name),
        _ => return Ok(()),
    };
    let seen = kernel.links(&NetNs::Host)?;
    let Some(holder) = seen.iter().find(|seen| seen.netdev.name == *wanted) else { return Ok(()) };
    let of_another = holder.device.filter(|other| other != device);
    if of_another.is_none_or(|other| !displaceable.contains(&other)) {
        return Ok(());
    }
    let free = |name: &String| seen.iter().all(|seen| seen.netdev.name != *name);
    let Some(name) = (0..).map(|number| format!("vf{number}")).find(free) else { return Ok(()) };
    // A name changes while the interface is down.
    let up = holder.netdev.up;
    let steps = [Change::Up(false), Change::Name(name), Change::Up(true)];
    for change in steps.iter().filter(|change| up || matches!(change, Change::Name(_))) {
        until_settled(|| kernel.change(&holder.netdev, change))?;
    }
    Ok(())
}

fn perform(kernel: &mut dyn Kernel, step: &Step, done: &mut Done) -> Result<()> {
    match step {
        Step::Write { file, value } if file == PROBE => probe(kernel, value.parse()?, done),
        Step::Write { file, value } => write(kernel, file, value),
        Step::Set { pf, vf, setting } => {
            let netdev = netdev(kernel, *pf, done)?;
            until_settled(|| kernel.set_vf(&netdev, *vf, *setting))?;
            if let Setting::Mac(mac) = setting {
                done.told.insert((*pf, *vf), *mac);
            }
            Ok(())
        }
        Step::Link { device, change } => {
            let netdev = netdev(kernel, *device, done)?;
            if already(&netdev, change) {
                return Ok(());
            }
            until_settled(|| kernel.change(&netdev, change))
        }
        Step::MoveToNetns { device, to, name } => {
            let netdev = netdev(kernel, *device, done)?;
            if netdev.netns == *to {
                let rename = Change::Name(name.clone());
                return if already(&netdev, &rename) {
                    Ok(())
                } else {
                    until_settled(|| kernel.change(&netdev, &rename))
                };
            }
            until_settled(|| kernel.move_to_netns(&netdev, to, name))?;
            done.places.insert(*device, to.clone());
            Ok(())
        }
    }
}

fn netdev(kernel: &mut dyn Kernel, device: PciAddress, done: &Done) -> Result<Netdev> {
    discover::netdev(kernel, device, done.places.get(&device).unwrap_or(&NetNs::Host))
}

fn already(netdev: &Netdev, change: &Change) -> bool {
    match change {
        Change::Up(up) => netdev.up == *up,
        Change::Name(name) => netdev.name == *name,
        Change::Mac(mac) => netdev.mac == Some(*mac),
        Change::MtuBytes(mtu) => netdev.mtu_bytes == *mtu,
        Change::AddAddress(address) => netdev.addresses.contains(&address.to_string()),
        Change::DeleteAddress(address) => !netdev.addresses.contains(&address.to_string()),
    }
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

/// Lets a driver take a function; again and again, should a VF not hear its MAC.
///
/// The driver asks the PF for the VF's MAC when it takes the VF. Where the answer is late (igbvf waits
/// a millisecond) it makes one up, and the PF of a trusted VF then takes that for the VF's.
fn probe(kernel: &mut dyn Kernel, address: PciAddress, done: &Done) -> Result<()> {
    let told = told(kernel, address, done)?;
    for _ in 0..HEARINGS {
        write(kernel, PROBE, &address.to_string())?;
        bound(kernel, address)?;
        let seen = kernel.links(&NetNs::Host)?;
        let own = seen.iter().find(|seen| seen.device == Some(address) && !seen.representor);
        let Some((Told { pf, vf, mac }, own)) = told.as_ref().zip(own) else { return Ok(()) };
        // Without a PF that is up nobody can answer.
        if own.netdev.mac == Some(*mac) || !pf.up {
            return Ok(());
        }
        let unbind = format!("bus/pci/devices/{address}/driver/unbind");
        write(kernel, &unbind, &address.to_string())?;
        until_settled(|| kernel.set_vf(pf, *vf, Setting::Mac(*mac)))?;
    }
    Err(Error::failed(
        format!("its driver did not hear from the PF, in {HEARINGS} attempts, which MAC it has"),
        "the kernel's log (dmesg) may say why; a busy machine may be less so later",
    ))
}

/// What the PF was told of one of its VFs.
struct Told {
    pf: Netdev,
    vf: u32,
    mac: Mac,
}

fn told(kernel: &mut dyn Kernel, address: PciAddress, done: &Done) -> Result<Option<Told>> {
    let tree = kernel.tree();
    let Some(pf) = tree.pf_of(address) else { return Ok(None) };
    let index = tree.vfs(pf).into_iter().find(|(_, vf)| *vf == address).map(|(index, _)| index);
    let seen = kernel.links(&NetNs::Host)?;
    let netdev = seen.into_iter().find(|seen| seen.device == Some(pf) && !seen.representor);
    let Some((vf, netdev)) = index.zip(netdev.map(|seen| seen.netdev)) else { return Ok(None) };
    let mac = match done.told.get(&(pf, vf)) {
        Some(mac) => Some(*mac),
        None => kernel
            .vfs(&netdev)?
            .and_then(|infos| infos.into_iter().find(|info| info.index == vf)?.config.mac),
    };
    let mac = mac.filter(|mac| *mac != Mac::NONE);
    Ok(mac.map(|mac| Told { pf: netdev, vf, mac }))
}

/// A probe answers that it is done also when no driver took the device.
fn bound(kernel: &mut dyn Kernel, address: PciAddress) -> Result<()> {
    let tree = kernel.tree();
    let wanted = tree.text(address, "driver_override").unwrap_or_default();
    let has = tree.link(address, "driver");
    if has.as_deref() == Some(wanted.as_str()) || has.is_some() && wanted.is_empty() {
        return Ok(());
    }
    Err(Error::failed(
        format!("the driver {wanted} did not take {address}"),
        "the kernel's log (dmesg) says why; for vfio-pci an IOMMU is needed",
    ))
}
