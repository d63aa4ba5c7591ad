//! Reads a machine's PFs and VFs, as they are now. Changes nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pw_error::{Error, Result};

use crate::address::PciAddress;
use crate::driver;
use crate::kernel::{Holder, Kernel};
use crate::model::{Machine, NetNs, Netdev, Pf, Vf};
use crate::sysfs;

/// Reads all PFs with their VFs.
///
/// A VF's interface is looked up by PCI address: in this namespace, then, for VFs with a network
/// driver, in every other.
///
/// # Errors
/// There is no sysfs, or the kernel does not answer.
pub fn machine(kernel: &mut dyn Kernel) -> Result<Machine> {
    let addresses = kernel.tree().pfs()?;
    let pfs = read(kernel, &addresses, false)?;
    Ok(Machine { pfs })
}

/// Reads one PF with its VFs. Waits for the interface of a VF that has a network driver: the kernel
/// moves interfaces of a dying namespace to the host's.
///
/// # Errors
/// The kernel does not answer.
pub fn settled_pf(kernel: &mut dyn Kernel, address: PciAddress) -> Result<Pf> {
    let begun = Instant::now();
    loop {
        let waited = begun.elapsed();
        let pfs = read(kernel, &[address], waited > PATIENCE_WITHOUT_FILES)?;
        let Some(pf) = pfs.into_iter().next() else {
            return Err(Error::failed(format!("the PF {address} is gone"), ""));
        };
        let lost = pf.vfs.iter().any(|vf| vf.netdev.is_none() && has_network_driver(vf));
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

fn has_network_driver(vf: &Vf) -> bool {
    vf.driver.as_deref().is_some_and(|driver| driver != driver::VFIO)
}

fn read(kernel: &mut dyn Kernel, addresses: &[PciAddress], thorough: bool) -> Result<Vec<Pf>> {
    let mut netdevs = netdevs_in(kernel, &NetNs::Host)?;
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
            if missing.iter().all(|vf| netdevs.contains_key(vf)) {
                break;
            }
        }
    }
    addresses.iter().map(|address| pf(kernel, *address, &mut netdevs)).collect()
}

/// The interface of a function, looked up in `hint` first, then in every namespace. Waits for it, as
/// a driver may be about to make it or the kernel to move it out of a dying namespace.
///
/// # Errors
/// The kernel does not answer, or there is none.
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
    let mut netdevs = BTreeMap::new();
    for link in kernel.links(netns)? {
        if let Some(device) = link.device.filter(|_| !link.representor) {
            netdevs.entry(device).or_insert(link.netdev);
        }
    }
    Ok(netdevs)
}

fn pf(
    kernel: &mut dyn Kernel,
    address: PciAddress,
    netdevs: &mut BTreeMap<PciAddress, Netdev>,
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
        let iommu_group = group(&tree, vf);
        let driver = tree.link(vf, "driver");
        let holder = match driver.as_deref() {
            Some(driver::VFIO) => kernel.vfio_holder(vf, iommu_group),
            _ => Holder::Nobody,
        };
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
        iommu_group: group(&tree, address),
        total_vfs: tree.number(address, "sriov_totalvfs").unwrap_or(0),
        num_vfs: tree.number(address, "sriov_numvfs").unwrap_or(0),
        drivers_autoprobe: tree.number(address, "sriov_drivers_autoprobe").map(|value| value != 0),
        vf_offset: tree.number(address, "sriov_offset"),
        vf_stride: tree.number(address, "sriov_stride"),
        netdev,
        vfs,
        owner: None,
        address,
    })
}

fn group(tree: &sysfs::Tree, address: PciAddress) -> Option<u32> {
    sysfs::number(&tree.link(address, "iommu_group")?)
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
    (!netdev.addresses.is_empty())
        .then(|| format!("its interface {name} has the address {}", netdev.addresses[0]))
}
