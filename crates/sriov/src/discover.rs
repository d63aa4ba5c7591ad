//! Reads a machine's PFs and VFs, as they are now. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pw_error::{Error, Result};

use crate::address::PciAddress;
use crate::driver;
use crate::kernel::{Holder, Kernel};
use crate::link::Link;
use crate::model::{Machine, NetNs, Netdev, Pf, Vf};
use crate::sysfs;

/// Reads all PFs with their VFs.
///
/// A VF's interface is looked up by PCI address: in this namespace, then, for VFs with a network
/// driver, in every other.
pub fn machine(kernel: &mut dyn Kernel) -> Result<Machine> {
    let addresses = kernel.tree().pfs()?;
    let pfs = read(kernel, &addresses, false)?;
    Ok(Machine { pfs })
}

/// Reads one PF with its VFs. Waits for the interface of this VF, or of all, if it has a network driver:
/// the kernel moves interfaces of a dying namespace to the host's. Other VFs are not waited for, as their
/// guests can hide them.
pub fn settled_pf(
    kernel: &mut dyn Kernel,
    address: PciAddress,
    vf: Option<PciAddress>,
) -> Result<Pf> {
    let begun = Instant::now();
    loop {
        let waited = begun.elapsed();
        let pfs = read(kernel, &[address], waited > PATIENCE_WITHOUT_FILES)?;
        let Some(pf) = pfs.into_iter().next() else {
            return Err(Error::failed(format!("the PF {address} is gone"), ""));
        };
        let mut awaited = pf.vfs.iter().filter(|one| vf.is_none_or(|vf| one.address == vf));
        let lost = awaited.any(|vf| vf.netdev.is_none() && has_network_driver(vf));
        if !lost || waited > PATIENCE {
            return Ok(pf);
        }
        std::thread::sleep(PAUSE);
    }
}

/// How long an interface may be in no namespace. A dying namespace takes tens of milliseconds, more where
/// many die at once.
const PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE_WITHOUT_FILES: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(20);
/// How long a reading enters other namespaces: anybody may make any number of them, with any number of
/// interfaces. VFs that were not found by then are of unknown use.
const BUDGET: Duration = Duration::from_secs(5);

fn has_network_driver(vf: &Vf) -> bool {
    vf.driver.as_deref().is_some_and(|driver| driver != driver::VFIO)
}

fn read(kernel: &mut dyn Kernel, addresses: &[PciAddress], thorough: bool) -> Result<Vec<Pf>> {
    let begun = Instant::now();
    let links = kernel.links(&NetNs::Host)?;
    let switchdev: BTreeSet<PciAddress> =
        links.iter().filter(|link| link.representor).filter_map(|link| link.device).collect();
    let mut netdevs = by_device(links);
    let tree = kernel.tree();
    let missing: Vec<PciAddress> = addresses
        .iter()
        .flat_map(|pf| tree.vfs(*pf))
        .map(|(_, vf)| vf)
        .filter(|vf| !netdevs.contains_key(vf))
        .filter(|vf| tree.link(*vf, "driver").is_some_and(|driver| driver != driver::VFIO))
        .collect();
    if !missing.is_empty() {
        for namespace in kernel.namespaces(thorough) {
            // A namespace that ended meanwhile is empty: its interfaces are the host's.
            let Ok(inside) = netdevs_in(kernel, &NetNs::Other(namespace)) else { continue };
            for (address, netdev) in inside {
                netdevs.entry(address).or_insert(netdev);
            }
            if missing.iter().all(|vf| netdevs.contains_key(vf)) || begun.elapsed() > BUDGET {
                break;
            }
        }
    }
    let tree = kernel.tree();
    let vfs: Vec<PciAddress> =
        addresses.iter().flat_map(|pf| tree.vfs(*pf)).map(|(_, vf)| vf).collect();
    let mut holders = kernel.holders(&vfs);
    let read = |address: &PciAddress| {
        let pf = pf(kernel, *address, &mut netdevs, &mut holders)?;
        Ok(Pf { switchdev: switchdev.contains(address), ..pf })
    };
    addresses.iter().map(read).collect()
}

/// The interface of a function, looked up in `hint` first, then in every namespace. Waits for it, as
/// a driver may be about to make it or the kernel to move it out of a dying namespace.
pub fn netdev(kernel: &mut dyn Kernel, address: PciAddress, hint: &NetNs) -> Result<Netdev> {
    let find = |kernel: &mut dyn Kernel, netns: &NetNs| {
        netdevs_in(kernel, netns).ok().and_then(|mut netdevs| netdevs.remove(&address))
    };
    let begun = Instant::now();
    loop {
        if let Some(netdev) = find(kernel, hint) {
            return Ok(netdev);
        }
        let waited = begun.elapsed();
        let others = kernel.namespaces(waited > PATIENCE_WITHOUT_FILES).into_iter();
        let mut namespaces = std::iter::once(NetNs::Host).chain(others.map(NetNs::Other));
        if let Some(netdev) = namespaces.find_map(|netns| find(kernel, &netns)) {
            return Ok(netdev);
        }
        if waited > PATIENCE {
            return Err(Error::failed(
                format!("the interface of {address} is in no namespace that can be seen"),
                "its driver may have failed (see dmesg), or a process of a hidden namespace holds it",
            ));
        }
        std::thread::sleep(PAUSE);
    }
}

fn netdevs_in(kernel: &mut dyn Kernel, netns: &NetNs) -> Result<BTreeMap<PciAddress, Netdev>> {
    Ok(by_device(kernel.links(netns)?))
}

fn by_device(links: Vec<Link>) -> BTreeMap<PciAddress, Netdev> {
    let mut netdevs = BTreeMap::new();
    for link in links {
        if let Some(device) = link.device.filter(|_| !link.representor) {
            netdevs.entry(device).or_insert(link.netdev);
        }
    }
    netdevs
}

fn pf(
    kernel: &mut dyn Kernel,
    address: PciAddress,
    netdevs: &mut BTreeMap<PciAddress, Netdev>,
    holders: &mut BTreeMap<PciAddress, Holder>,
) -> Result<Pf> {
    let tree = kernel.tree().clone();
    let netdev = netdevs.remove(&address);
    let pf_driver = tree.link(address, "driver");
    let infos = match &netdev {
        Some(netdev) => kernel.vfs(netdev)?,
        None => None,
    };
    let counts_on_pf =
        infos.iter().flatten().any(|info| info.counters.is_some_and(|count| !count.is_zero()));
    let mut vfs = Vec::new();
    for (index, vf) in tree.vfs(address) {
        let info = infos.iter().flatten().find(|info| info.index == index);
        let netdev = netdevs.remove(&vf);
        let iommu_group = tree.iommu_group(vf);
        let driver = tree.link(vf, "driver");
        let holder = holders.remove(&vf).unwrap_or(Holder::Nobody);
        let use_is_unknown = matches!(holder, Holder::Unknown(_));
        let used_by = match holder {
            Holder::Nobody => used_by(netdev.as_ref()),
            Holder::Process(process) => Some(process),
            Holder::Unknown(why) => Some(format!("whether a process holds it is unknown: {why}")),
        };
        vfs.push(Vf {
            index,
            address: vf,
            driver,
            driver_override: tree
                .text(vf, "driver_override")
                .and_then(|text| sysfs::driver_override(&text)),
            numa_node: tree.number(vf, "numa_node"),
            iommu_group,
            config: info.map(|info| info.config.clone()),
            counters: driver::judge(
                pf_driver.as_deref(),
                kernel.version(),
                info.and_then(|info| info.counters),
                counts_on_pf,
            ),
            used_by,
            use_is_unknown,
            netdev,
            owner: None,
        });
    }
    Ok(Pf {
        driver: pf_driver,
        vendor: tree.text(address, "vendor"),
        device: tree.text(address, "device"),
        numa_node: tree.number(address, "numa_node"),
        iommu_group: tree.iommu_group(address),
        total_vfs: tree.number(address, "sriov_totalvfs").unwrap_or(0),
        num_vfs: tree.number(address, "sriov_numvfs").unwrap_or(0),
        drivers_autoprobe: tree.number(address, "sriov_drivers_autoprobe").map(|value| value != 0),
        vf_offset: tree.number(address, "sriov_offset"),
        vf_stride: tree.number(address, "sriov_stride"),
        netdev,
        vfs,
        switchdev: false,
        owner: None,
        address,
    })
}

/// Who uses a VF's interface, for a sentence.
fn used_by(netdev: Option<&Netdev>) -> Option<String> {
    let netdev = netdev?;
    let name = &netdev.name;
    if !netdev.netns.is_host() {
        return Some(format!("its interface {name} is in {}", netdev.netns));
    }
    if let Some(upper) = &netdev.attached_to {
        return Some(format!("its interface {name} is joined to {upper}"));
    }
    if let Some(taken) = &netdev.taken {
        return Some(format!("its interface {name} {taken}"));
    }
    netdev
        .addresses
        .first()
        .map(|address| format!("its interface {name} has the address {address}"))
}
