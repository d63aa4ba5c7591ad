//! The host's side of a machine's network, as a trait: Linux, or a simulated one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pw_alloc::model::{Mac, PfId, VfId};
use pw_alloc::signal::Counters;
use pw_alloc::step::Path;
use pw_error::{Error, Result};
use pw_sriov::address::PciAddress;
use pw_sriov::apply::apply;
use pw_sriov::driver::VFIO;
use pw_sriov::kernel::{Kernel as _, Linux as Kernel};
use pw_sriov::link::Setting;
use pw_sriov::model::{Vlan, VlanProtocol};
use pw_sriov::plan;

use crate::daemon::net::{Link, Net, counters};
use crate::daemon::pool::PoolView;
use crate::daemon::pool::host::apply_setting;

/// A tap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tap {
    /// Its interface's index.
    pub index: u32,
    /// It is up, and the machine has opened it.
    pub works: bool,
    /// The bridge that it is a port of.
    pub bridge: Option<String>,
    /// The host's counters of it.
    pub counters: Counters,
}

/// The host's side.
pub trait Host: Send {
    /// A clone for another thread.
    fn try_clone(&self) -> Result<Box<dyn Host>>;

    /// All interfaces that may be taps, by name.
    fn taps(&mut self) -> Result<BTreeMap<String, Tap>>;

    /// Has the guest's driver taken the VF into use? None when the host cannot tell.
    fn in_use(&self, vf: PciAddress) -> Option<bool>;

    /// Gives the VF to the driver by which a machine can have it.
    fn prepare(&mut self, vf: PciAddress) -> Result<()>;

    /// Stops reception by the VF, which the guest no longer drives.
    fn silence(&mut self, vf: &VfId, pool: &PoolView) -> Result<()>;

    /// Puts the VF's frames into this VLAN, until `Step::Reset`.
    fn tag(&mut self, vf: &VfId, vlan: u16, pool: &PoolView) -> Result<()>;

    /// Delivers frames for `mac`, which has this VF, to its tap, too: the PF receives them beside the VF,
    /// and the bridge floods them.
    fn direct_both(&mut self, mac: Mac, tap: &Tap, vf: &VfId, pool: &PoolView) -> Result<()>;

    /// Lets the host's bridge and the PFs send frames for `mac`, whose tap is this, by that path.
    fn direct(&mut self, mac: Mac, tap: &Tap, path: &Path, pool: &PoolView) -> Result<()>;

    /// The path by which the bridges send frames for these addresses; those without an entry are left out.
    fn directed(&mut self, pool: &PoolView) -> Result<BTreeMap<Mac, PfId>>;
}

/// Linux.
#[derive(Debug)]
pub struct Linux {
    net: Net,
    sysfs: PathBuf,
}

impl Linux {
    /// This machine, in the calling thread's namespace.
    pub fn open() -> Result<Self> {
        Ok(Self { net: Net::open()?, sysfs: "/sys".into() })
    }
}

impl Host for Linux {
    fn try_clone(&self) -> Result<Box<dyn Host>> {
        Ok(Box::new(Self::open()?))
    }

    fn taps(&mut self) -> Result<BTreeMap<String, Tap>> {
        let links = self.net.all()?;
        let bridges: BTreeMap<u32, String> = links
            .iter()
            .filter(|link| link.kind == "bridge")
            .map(|link| (link.index, link.name.clone()))
            .collect();
        let tap = |link: Link| {
            let tap = Tap {
                index: link.index,
                works: link.works(),
                bridge: link.controller.and_then(|master| bridges.get(&master).cloned()),
                counters: counters(&link),
            };
            (link.name, tap)
        };
        // A device is of no kind.
        Ok(links.into_iter().filter(|link| !link.kind.is_empty()).map(tap).collect())
    }

    fn in_use(&self, vf: PciAddress) -> Option<bool> {
        // A guest's driver that sets the device up asks for its interrupts, one by one; QEMU asks the
        // host for as many, and for a single one when the driver has only switched them on.
        let device = self.sysfs.join("bus/pci/devices").join(vf.to_string());
        let driver = std::fs::read_link(device.join("driver")).ok()?;
        if driver.file_name()? != "vfio-pci" {
            return Some(false);
        }
        let interrupts = std::fs::read_dir(device.join("msi_irqs")).map_or(0, Iterator::count);
        Some(interrupts > 1)
    }

    fn prepare(&mut self, vf: PciAddress) -> Result<()> {
        let mut kernel = Kernel::new(&self.sysfs);
        if kernel.tree().link(vf, "driver").as_deref() == Some(VFIO) {
            return Ok(());
        }
        if !kernel.tree().has_driver(VFIO) {
            return Err(Error::failed(
                format!("the driver {VFIO} is not loaded, and a machine needs it"),
                "load it: modprobe vfio-pci",
            ));
        }
        let mut plan = plan::Plan::new();
        if kernel.tree().link(vf, "driver").is_some() {
            plan.push(plan::unbind(vf));
        }
        plan::bind(vf, VFIO, None, &mut plan);
        apply(&mut kernel, &plan, &[])
    }

    fn silence(&mut self, vf: &VfId, pool: &PoolView) -> Result<()> {
        apply_setting(vf, pool, Setting::Mac(Mac::NONE), "clear the address of")
    }

    fn tag(&mut self, vf: &VfId, vlan: u16, pool: &PoolView) -> Result<()> {
        let vlan = Vlan { id: u32::from(vlan), qos: 0, protocol: VlanProtocol::Dot1q };
        apply_setting(vf, pool, Setting::Vlan(vlan), "set the VLAN of")
    }

    fn direct(&mut self, mac: Mac, tap: &Tap, path: &Path, pool: &PoolView) -> Result<()> {
        pool.direct(&mut self.net, mac, (tap.index, tap.bridge.as_deref()), path, false)
    }

    fn direct_both(&mut self, mac: Mac, tap: &Tap, vf: &VfId, pool: &PoolView) -> Result<()> {
        let pf = pool.pfs.get(&vf.pf);
        match pf.filter(|pf| pf.bridge.is_some() && pf.bridge == tap.bridge) {
            Some(pf) => {
                self.net.set_nic_filter(mac, pf.index, true)?;
                self.net.delete_bridge_fdb(mac, pf.index)
            }
            None => Ok(()),
        }
    }

    fn directed(&mut self, pool: &PoolView) -> Result<BTreeMap<Mac, PfId>> {
        let by_index: BTreeMap<u32, &PfId> =
            pool.pfs.iter().map(|(name, pf)| (pf.index, name)).collect();
        let entries = self.net.fdb_entries()?;
        Ok(entries
            .into_iter()
            .filter(|entry| !entry.is_self && !entry.permanent)
            .filter_map(|entry| Some((entry.mac, (*by_index.get(&entry.index)?).clone())))
            .collect())
    }
}
