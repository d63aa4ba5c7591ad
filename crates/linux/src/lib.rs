//! The Linux interfaces that all of Planewise's binaries share: network namespaces, threads, the
//! rtnetlink socket, nftables' rules on bridges.

pub mod netns;
pub mod nftables;
pub mod rtnetlink;
pub mod threads;
