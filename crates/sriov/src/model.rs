//! The state of a machine's SR-IOV functions, as values. Touches nothing.

use serde::{Deserialize, Serialize};

use crate::address::PciAddress;
use crate::mac::Mac;

/// All PFs of the machine, by address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// PCI functions that can have VFs.
    pub pfs: Vec<Pf>,
}

/// A physical function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pf {
    /// Its PCI address.
    pub address: PciAddress,
    /// Its driver; none when none is bound.
    pub driver: Option<String>,
    /// PCI vendor, as `0x8086`.
    pub vendor: Option<String>,
    /// PCI device, as `0x10c9`.
    pub device: Option<String>,
    /// Its NUMA node; none where the machine has none or does not say.
    pub numa_node: Option<u32>,
    /// Its IOMMU group; none without an IOMMU.
    pub iommu_group: Option<u32>,
    /// VFs that it can have (sriov_totalvfs).
    pub total_vfs: u32,
    /// VFs that it has (sriov_numvfs).
    pub num_vfs: u32,
    /// Whether new VFs get their driver at once; none where the kernel cannot be told (before 4.13).
    pub drivers_autoprobe: Option<bool>,
    /// Routing IDs from the PF to its first VF.
    pub vf_offset: Option<u32>,
    /// Routing IDs from one VF to the next.
    pub vf_stride: Option<u32>,
    /// Its interface; none when its driver made none.
    pub netdev: Option<Netdev>,
    /// Its VFs, by index.
    pub vfs: Vec<Vf>,
    /// Its embedded switch forwards by the host's rules (switchdev mode): it has representors.
    #[serde(skip)]
    pub switchdev: bool,
    /// Who set it up through Planewise.
    pub owner: Option<String>,
}

impl Pf {
    /// The address that VF `index` has or would have; none where the kernel does not say.
    pub fn vf_address(&self, index: u32) -> Option<PciAddress> {
        let present = self.vfs.iter().find(|vf| vf.index == index).map(|vf| vf.address);
        present.or_else(|| {
            self.address.plus(self.vf_stride?.checked_mul(index)?.checked_add(self.vf_offset?)?)
        })
    }

    /// Its name in messages: its interface, or its address.
    pub fn label(&self) -> String {
        self.netdev.as_ref().map_or_else(|| self.address.to_string(), |netdev| netdev.name.clone())
    }
}

/// A virtual function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vf {
    /// Its number on its PF.
    pub index: u32,
    /// Its PCI address.
    pub address: PciAddress,
    /// Its driver; none when none is bound.
    pub driver: Option<String>,
    /// The only driver that may bind to it; none: any that knows the device.
    pub driver_override: Option<String>,
    /// Its NUMA node.
    pub numa_node: Option<u32>,
    /// Its IOMMU group.
    pub iommu_group: Option<u32>,
    /// Its settings; none when the PF has no interface to ask.
    pub config: Option<VfConfig>,
    /// Its interface, in whichever namespace; none without a network driver.
    pub netdev: Option<Netdev>,
    /// Its counters in the PF's driver.
    pub counters: Counters,
    /// Who uses it now, as a sentence; none when nobody does. An unknown user is a user.
    pub used_by: Option<String>,
    /// Whether its user is unknown; `used_by` then has the reason.
    #[serde(default)]
    pub use_is_unknown: bool,
    /// Who moved or changed it through Planewise.
    pub owner: Option<String>,
}

/// A VF's settings on its PF. A field is none where the driver does not report it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfConfig {
    /// Its MAC address; zeros: none was set.
    pub mac: Option<Mac>,
    /// The VLAN of all its frames; id 0: none.
    pub vlan: Option<Vlan>,
    /// Least transmit rate [Mbit/s]; 0: none.
    pub min_tx_mbps: Option<u32>,
    /// Largest transmit rate [Mbit/s]; 0: no limit.
    pub max_tx_mbps: Option<u32>,
    /// Whether frames with another source MAC are dropped.
    pub spoof_check: Option<bool>,
    /// Whether the VF is trusted: it may set promiscuous mode and its own MAC.
    pub trust: Option<bool>,
    /// Whether its link follows the PF's.
    pub link_state: Option<LinkState>,
}

/// The VLAN that a PF puts a VF into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vlan {
    /// 1 to 4094; 0: none.
    pub id: u32,
    /// Priority, 0 to 7.
    pub qos: u32,
    /// The kind of tag.
    pub protocol: VlanProtocol,
}

/// The kind of a VLAN tag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum VlanProtocol {
    /// The customer's tag.
    #[default]
    #[serde(rename = "802.1Q")]
    Dot1q,
    /// The provider's tag.
    #[serde(rename = "802.1ad")]
    Dot1ad,
}

/// How a VF's link follows its PF's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// As the PF's.
    Auto,
    /// Always up.
    Enable,
    /// Always down.
    Disable,
}

/// What the PF's driver counts for a VF.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
pub enum Counters {
    /// It counts.
    Supported(VfCounters),
    /// It does not, or is not known to: its zeros mean nothing and are not shown.
    Unsupported {
        /// Why, as a sentence.
        reason: String,
    },
}

/// A VF's counters on its PF (IFLA_VF_STATS); the driver chooses when they start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the kernel's names, with units")]
pub struct VfCounters {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub broadcast_packets: u64,
    pub multicast_packets: u64,
    pub rx_dropped_packets: u64,
    pub tx_dropped_packets: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self::Unsupported { reason: "not asked".into() }
    }
}

impl VfCounters {
    /// Whether nothing was ever counted.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// An interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netdev {
    /// Its name in its namespace.
    pub name: String,
    /// Its index in its namespace.
    pub index: u32,
    /// Its MAC address.
    pub mac: Option<Mac>,
    /// Whether the address is the device's own, not one that was set or drawn.
    pub mac_is_permanent: Option<bool>,
    /// Largest IP packet [bytes].
    pub mtu_bytes: u32,
    /// Whether it is set up.
    pub up: bool,
    /// Whether it sees a link.
    pub carrier: Option<bool>,
    /// Its addresses with their prefix lengths; without those that the kernel makes itself.
    pub addresses: Vec<String>,
    /// The interface that it is a port of (a bridge, a bond), or that is stacked upon it (macvtap).
    pub attached_to: Option<String>,
    /// How somebody uses it who left no other trace: it is promiscuous, has an XDP program or a packet
    /// socket; for a sentence.
    #[serde(skip)]
    pub taken: Option<String>,
    /// The namespace it is in.
    pub netns: NetNs,
    /// Its own counters, since its driver was bound.
    pub counters: NetdevCounters,
}

/// An interface's own counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the kernel's names, with units")]
pub struct NetdevCounters {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
}

/// A network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NetNs {
    /// Another one.
    Other(Namespace),
    /// The one that planewised runs in: null in JSON.
    #[default]
    Host,
}

impl NetNs {
    /// Whether it is the namespace that planewised runs in.
    pub fn is_host(&self) -> bool {
        *self == Self::Host
    }
}

impl std::fmt::Display for NetNs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.write_str("this host"),
            Self::Other(namespace) => write!(f, "namespace {}", namespace.path),
        }
    }
}

/// A network namespace other than planewised's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Its inode, unique among the namespaces that exist.
    pub inode: u64,
    /// A file that opens it.
    pub path: String,
}
