//! The steps that a move is made of: each can be journalled, tried again, and most turned round.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::{GuestId, Mac, VfId};

/// A way from a guest to the network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// By virtio or veth through the host's bridge.
    Paravirtual,
    /// By this VF.
    Vf(VfId),
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paravirtual => f.write_str("its paravirtual path"),
            Self::Vf(vf) => write!(f, "{vf}"),
        }
    }
}

/// What joins the two paths in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Join {
    /// A bond in active-backup mode whose MAC follows the active member: the VF comes with an address
    /// of its own and takes over the guest's in the moment of the switch.
    #[default]
    Bond,
    /// The kernel's net_failover: the VF must have the guest's MAC before it is attached, and from
    /// then on the NIC sends it the guest's frames. While it has the VF and drives it, it sends by it
    /// and takes nothing in by its other path, whatever the host would like.
    Failover,
}

/// One step. Each may be done twice without harm.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "step")]
pub enum Step {
    /// The VF leaves the pool for this guest: no other guest gets it from here on.
    Reserve {
        /// Which VF.
        vf: VfId,
        /// For whom.
        guest: GuestId,
    },
    /// The PF gives the VF the guest's address, and the guest's VLAN, spoof check and trust.
    SetMac {
        /// Which VF.
        vf: VfId,
        /// The guest's address.
        mac: Mac,
    },
    /// The device goes into the guest and joins its bond or failover pair.
    Attach {
        /// Into which guest.
        guest: GuestId,
        /// Which VF.
        vf: VfId,
    },
    /// Waits until the guest has brought the VF up.
    AwaitPath {
        /// Which guest.
        guest: GuestId,
        /// Which VF.
        vf: VfId,
    },
    /// The guest sends by this path.
    Prefer {
        /// Which guest.
        guest: GuestId,
        /// By which path.
        path: Path,
    },
    /// The bridge and the PF send the guest's frames by this path: their forwarding entries.
    Direct {
        /// Which guest.
        guest: GuestId,
        /// By which path.
        path: Path,
    },
    /// Looks whether this path works.
    Verify {
        /// Which guest.
        guest: GuestId,
        /// Which path.
        path: Path,
    },
    /// The device leaves the guest; waits until it has.
    Detach {
        /// Which guest.
        guest: GuestId,
        /// Which VF.
        vf: VfId,
    },
    /// Returns the device to the host from the namespace of a guest that is gone.
    Recall {
        /// Which VF.
        vf: VfId,
    },
    /// The VF has no guest's address any more.
    ClearMac {
        /// Which VF.
        vf: VfId,
    },
    /// The VF is as new: driver bound again, VLAN, rate, spoof check and trust as in the pool.
    Reset {
        /// Which VF.
        vf: VfId,
    },
    /// The VF is back in the pool.
    Release {
        /// Which VF.
        vf: VfId,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserve { vf, guest } => write!(f, "reserve {vf} for {guest}"),
            Self::SetMac { vf, mac } => write!(f, "set the address of {vf} to {mac}"),
            Self::Attach { guest, vf } => write!(f, "attach {vf} to {guest}"),
            Self::AwaitPath { guest, vf } => write!(f, "wait until {guest} has brought {vf} up"),
            Self::Prefer { guest, path } => write!(f, "let {guest} send by {path}"),
            Self::Direct { guest, path } => write!(f, "send {guest} its frames by {path}"),
            Self::Verify { guest, path } => write!(f, "see that {guest} is reached by {path}"),
            Self::Detach { guest, vf } => write!(f, "detach {vf} from {guest}"),
            Self::Recall { vf } => write!(f, "recall {vf}"),
            Self::ClearMac { vf } => write!(f, "clear the address of {vf}"),
            Self::Reset { vf } => write!(f, "reset {vf}"),
            Self::Release { vf } => write!(f, "release {vf} to the pool"),
        }
    }
}

impl Step {
    /// The guest that it is about, if it is about one.
    pub const fn guest(&self) -> Option<&GuestId> {
        match self {
            Self::Reserve { guest, .. }
            | Self::Attach { guest, .. }
            | Self::AwaitPath { guest, .. }
            | Self::Prefer { guest, .. }
            | Self::Direct { guest, .. }
            | Self::Verify { guest, .. }
            | Self::Detach { guest, .. } => Some(guest),
            Self::SetMac { .. }
            | Self::Recall { .. }
            | Self::ClearMac { .. }
            | Self::Reset { .. }
            | Self::Release { .. } => None,
        }
    }

    /// The VF that it is about, if it is about one.
    pub const fn vf(&self) -> Option<&VfId> {
        match self {
            Self::Reserve { vf, .. }
            | Self::SetMac { vf, .. }
            | Self::Attach { vf, .. }
            | Self::AwaitPath { vf, .. }
            | Self::Detach { vf, .. }
            | Self::Recall { vf }
            | Self::ClearMac { vf }
            | Self::Reset { vf }
            | Self::Release { vf } => Some(vf),
            Self::Prefer { path, .. } | Self::Direct { path, .. } | Self::Verify { path, .. } => {
                match path {
                    Path::Vf(vf) => Some(vf),
                    Path::Paravirtual => None,
                }
            }
        }
    }

    /// Its name in the journal.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Reserve { .. } => "reserve",
            Self::SetMac { .. } => "set-mac",
            Self::Attach { .. } => "attach",
            Self::AwaitPath { .. } => "await-path",
            Self::Prefer { .. } => "prefer",
            Self::Direct { .. } => "direct",
            Self::Verify { .. } => "verify",
            Self::Detach { .. } => "detach",
            Self::Recall { .. } => "recall",
            Self::ClearMac { .. } => "clear-mac",
            Self::Reset { .. } => "reset",
            Self::Release { .. } => "release",
        }
    }
}

/// The steps that give a VF to a guest. With a bond the guest can send, and be reached from the wire,
/// after every one of them; with net_failover, too, where the NIC delivers what is for an address that
/// both PF and VF have to both of them. Where it prefers the VF, frames from the wire are lost from
/// `SetMac` on until the guest has brought it up.
pub fn give(guest: &GuestId, vf: &VfId, mac: Mac, join: Join) -> Vec<Step> {
    let path = Path::Vf(vf.clone());
    let (guest, vf) = (guest.clone(), vf.clone());
    let mut steps = vec![Step::Reserve { vf: vf.clone(), guest: guest.clone() }];
    if join == Join::Failover {
        steps.push(Step::SetMac { vf: vf.clone(), mac });
    }
    steps.extend([
        Step::Attach { guest: guest.clone(), vf: vf.clone() },
        Step::AwaitPath { guest: guest.clone(), vf },
        // In one go: between the two, frames from guests on the host's bridge miss it.
        Step::Prefer { guest: guest.clone(), path: path.clone() },
        Step::Direct { guest: guest.clone(), path: path.clone() },
        Step::Verify { guest, path },
    ]);
    steps
}

/// The steps that take a VF from a guest: its paravirtual path is seen to work first.
pub fn take(guest: &GuestId, vf: &VfId, join: Join) -> Vec<Step> {
    let mut steps = vec![Step::Verify { guest: guest.clone(), path: Path::Paravirtual }];
    steps.extend(leave(guest, vf, join));
    steps
}

/// The steps that take a VF from a guest, from any stage of a move.
pub(crate) fn leave(guest: &GuestId, vf: &VfId, join: Join) -> Vec<Step> {
    let (guest, vf) = (guest.clone(), vf.clone());
    let prefer = Step::Prefer { guest: guest.clone(), path: Path::Paravirtual };
    let direct = Step::Direct { guest: guest.clone(), path: Path::Paravirtual };
    let detach = Step::Detach { guest, vf: vf.clone() };
    let mut steps = match join {
        Join::Bond => vec![prefer, direct, detach],
        // As long as it has the VF, net_failover takes nothing in by the other path: address and
        // forwarding follow the device, and a guest that never releases it stays reachable.
        Join::Failover => vec![prefer, detach, Step::ClearMac { vf: vf.clone() }, direct],
    };
    steps.extend(into_pool(&vf));
    steps
}

/// The steps that make a VF outside of any guest one of the pool.
pub(crate) fn into_pool(vf: &VfId) -> Vec<Step> {
    vec![
        Step::ClearMac { vf: vf.clone() },
        Step::Reset { vf: vf.clone() },
        Step::Release { vf: vf.clone() },
    ]
}
