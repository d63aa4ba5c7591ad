//! The Linux interfaces that all of Planewise's binaries share: network namespaces, threads, the
//! rtnetlink socket, nftables' rules on bridges, MAC addresses.

pub mod links;
pub mod mac;
pub mod netns;
pub mod nftables;
pub mod rtnetlink;
pub mod threads;
