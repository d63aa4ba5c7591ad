//! The Linux interfaces that all of Planewise's binaries share: network namespaces, the rtnetlink
//! socket, nftables' rules on bridges. Knows nothing of packets, devices or planes.

pub mod netns;
pub mod nftables;
pub mod rtnetlink;
