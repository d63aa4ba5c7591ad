//! What all of Planewise's binaries need of Linux: network namespaces, the
//! rtnetlink socket. Knows nothing of packets, devices or planes.

pub mod netns;
pub mod rtnetlink;
pub mod text;
