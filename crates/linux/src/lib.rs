//! What all of Planewise's binaries need of Linux: errors said to a person, network namespaces, the
//! rtnetlink socket. Knows nothing of packets, devices or planes.

pub mod error;
pub mod netns;
pub mod rtnetlink;
pub mod text;
