//! Sources of containers to be managed: Docker, or a cluster's API server. Unknown is never *none*.

use std::collections::BTreeMap;
use std::fmt::Debug;

use pw_alloc::model::{GuestId, Mac, Wish};

/// A container or a pod that is to be managed.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// Its name.
    pub id: GuestId,
    /// Its identity and start time: another run is another guest.
    pub run: String,
    /// A process in its network namespace.
    pub pid: u32,
    /// Its interface, if it is named.
    pub interface: Option<String>,
    /// MAC addresses that it was assigned; empty: unknown.
    pub macs: Vec<Mac>,
    /// How it is to be served.
    pub wish: Wish,
}

/// The containers to be managed.
#[derive(Debug, Clone, PartialEq)]
pub enum KnownContainers {
    /// All of them.
    All(Vec<Container>),
    /// Unknown, and why: the source has not answered yet, or no longer does.
    Unknown(String),
}

/// The last state of a source.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceState {
    /// The containers.
    pub containers: KnownContainers,
    /// The current failure.
    pub trouble: Option<String>,
}

/// A source of containers, watched by a thread of its own. No call waits.
pub trait Source: Debug + Send + Sync {
    /// The last state.
    fn state(&self) -> SourceState;

    /// Why the containers are unknown; none where they are known.
    fn gap(&self) -> Option<String> {
        match self.state().containers {
            KnownContainers::All(_) => None,
            KnownContainers::Unknown(why) => Some(why),
        }
    }

    /// Is the source installed on this host, whether or not it answers?
    fn is_present(&self) -> bool;

    /// Takes the containers that cannot be managed, with the reasons.
    fn set_refused(&self, _refused: BTreeMap<GuestId, String>) {}
}
