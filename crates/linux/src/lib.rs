//! What all of Planewise's binaries need of Linux: network namespaces, the rtnetlink socket, what
//! nftables filters on bridges. Knows nothing of packets, devices or planes.

pub mod netns;
pub mod nftables;
pub mod rtnetlink;
