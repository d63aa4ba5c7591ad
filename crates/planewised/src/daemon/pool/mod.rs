//! The VFs that are given and taken, behind one trait: this machine's, or made-up ones. Knows nothing
//! of guests.

pub mod machine;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use pw_alloc::execute::Failure;
use pw_alloc::model::{Mac, PfId, VfId};
use pw_alloc::signal::Reading;
use pw_alloc::step::Step;
use pw_linux::error::Result;
use pw_sriov::address::PciAddress;

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

/// A VF of the pool, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolVf {
    /// Its PCI address.
    pub address: PciAddress,
    /// The address that the NIC delivers to it; zero: none.
    pub mac: Mac,
    /// Its driver.
    pub driver: Option<String>,
    /// Is it with the host: not in another namespace, not with a process through VFIO?
    pub at_home: bool,
    /// What the PF counts for it.
    pub counters: Reading,
}

/// The pool as it was last read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolView {
    /// PFs by interface name.
    pub pfs: BTreeMap<PfId, PoolPf>,
    /// Their VFs.
    pub vfs: BTreeMap<VfId, PoolVf>,
}

/// The VFs of a host.
pub trait Pool: Send {
    /// Reads it all afresh: links, places, addresses.
    ///
    /// # Errors
    /// The kernel does not answer.
    fn read(&mut self) -> Result<PoolView>;

    /// Reads only what changes all the time, into `view`: counters and links.
    ///
    /// # Errors
    /// The kernel does not answer.
    fn sample(&mut self, view: &mut PoolView) -> Result<()>;

    /// Sees that whoever else is on the host's bridges stays reachable for guests on VFs. `managed`:
    /// addresses of guests, for which their kind cares.
    ///
    /// # Errors
    /// The kernel refuses.
    fn settle(&mut self, _view: &PoolView, _managed: &BTreeSet<Mac>) -> Result<()> {
        Ok(())
    }

    /// Does one step about a VF that is in no guest: `SetMac`, `ClearMac`, `Recall`, `Reset` or
    /// `Release`. May be done twice.
    ///
    /// # Errors
    /// Why it is not done.
    fn perform(
        &mut self,
        step: &Step,
        view: &PoolView,
        deadline: Instant,
    ) -> std::result::Result<(), Failure>;
}
