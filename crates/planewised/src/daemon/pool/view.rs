//! The last reading of the pool's VFs and PFs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pw_alloc::evidence::User;
use pw_alloc::model::{Mac, PfId, VfId};
use pw_alloc::signal::Reading;
use pw_alloc::step::Path;
use pw_error::Result;
use pw_sriov::address::PciAddress;

use crate::daemon::filters::Filters;
use crate::daemon::net::{Link, Net};

/// A PF whose VFs are in the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolPf {
    /// Its interface's index in the host's namespace.
    pub index: u32,
    /// Its PCI address.
    pub address: PciAddress,
    /// Its NUMA node.
    pub numa: Option<u16>,
    /// Does it have a link?
    pub link_up: bool,
    /// The bridge that it is a port of.
    pub bridge: Option<String>,
}

/// A VF of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolVf {
    /// Its PCI address.
    pub address: PciAddress,
    /// The MAC address whose frames the NIC delivers to it; zero: none.
    pub mac: Mac,
    /// Its driver.
    pub driver: Option<String>,
    /// Its user.
    pub user: User,
    /// A setting that its PF has for it and that is not the default: the operator's, unless a guest has it.
    pub changed: Option<String>,
    /// Does it have a link, as far as the PF decides that?
    pub link_up: bool,
    /// A managed guest may have left it behind: its interface is in another namespace under the name that
    /// it has in guests, or in none that can be seen. False once a sample shows another user.
    pub strayed: bool,
    /// The PF's counters of it.
    pub counters: Reading,
}

impl PoolVf {
    /// A VF that has a link and that nobody uses.
    pub const fn unused(address: PciAddress) -> Self {
        Self {
            address,
            mac: Mac::NONE,
            driver: None,
            user: User::Nobody,
            changed: None,
            link_up: true,
            strayed: false,
            counters: Reading::Unsupported,
        }
    }
}

/// The last reading of the pool.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PoolView {
    /// PFs by interface name.
    pub pfs: BTreeMap<PfId, PoolPf>,
    /// Their VFs.
    pub vfs: BTreeMap<VfId, PoolVf>,
    /// PFs of the configuration that this host does not have, or not at the moment.
    pub missing: Vec<PfId>,
    /// The host's interfaces by index, at the last sample.
    pub links: Arc<BTreeMap<u32, Link>>,
    /// Filters on the host's bridges.
    pub filters: Arc<Filters>,
}

impl PoolView {
    /// Lets the host's bridge and the PFs send frames for `mac` by that path; the guest's paravirtual one is the
    /// port `port` of this bridge, on which the bridge keeps it with `lasting`.
    pub fn direct(
        &self,
        net: &mut Net,
        mac: Mac,
        (port, bridge): (u32, Option<&str>),
        path: &Path,
        lasting: bool,
    ) -> Result<()> {
        for (name, pf) in &self.pfs {
            let by_vf = matches!(path, Path::Vf(VfId { pf, .. }) if pf == name);
            let same_bridge = bridge.is_some() && pf.bridge.as_deref() == bridge;
            if by_vf {
                if same_bridge {
                    net.set_bridge_fdb(mac, pf.index, true)?;
                }
                // Both would receive the frames.
                net.set_nic_filter(mac, pf.index, false)?;
            } else if same_bridge {
                // Frames from other VFs of this PF arrive by the bridge.
                net.set_nic_filter(mac, pf.index, true)?;
            }
        }
        if *path == Path::Paravirtual && bridge.is_some() {
            net.set_bridge_fdb(mac, port, lasting)?;
        }
        Ok(())
    }

    /// The bridge that this interface is a port of.
    pub fn bridge_of(&self, port: &Link) -> Option<&Link> {
        let master = self.links.get(&port.controller?)?;
        (master.kind == "bridge").then_some(master)
    }

    /// The PFs that are ports of this bridge: only their VFs lead to its network.
    pub fn pfs_of<'a>(
        &'a self,
        bridge: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a PfId, &'a PoolPf)> {
        self.pfs.iter().filter(move |(_, pf)| bridge.is_some() && pf.bridge.as_deref() == bridge)
    }
}

/// The addresses of managed guests.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    /// Addresses that executors set in filters.
    pub cared_for: BTreeSet<Mac>,
    /// Addresses of guests without a VF, with the PFs that lead to their networks.
    pub resting: BTreeMap<Mac, Vec<PfId>>,
}

impl Addresses {
    /// Does a managed guest have this address?
    pub fn contains(&self, mac: Mac) -> bool {
        self.cared_for.contains(&mac) || self.resting.contains_key(&mac)
    }
}
