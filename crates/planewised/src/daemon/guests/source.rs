//! Who tells which network namespaces of the host are to be managed: Docker, or a cluster's API server.
//! What is not known is never *none*.

use std::collections::BTreeMap;
use std::fmt::Debug;

use pw_alloc::model::{GuestId, Mac, Wish};

/// A container or a pod that is to be managed.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// Its name.
    pub id: GuestId,
    /// Its identity and the moment at which it was started: another run is another guest.
    pub run: String,
    /// A process in its network namespace.
    pub pid: u32,
    /// Its interface, if somebody names it.
    pub interface: Option<String>,
    /// The addresses that it was given; empty: nobody says.
    pub macs: Vec<Mac>,
    /// What is wished for it.
    pub wish: Wish,
}

/// Which containers are to be managed.
#[derive(Debug, Clone, PartialEq)]
pub enum Containing {
    /// These and no others.
    All(Vec<Container>),
    /// It cannot be told, and why not: the source has not answered yet, or does not any more.
    Unknown(String),
}

/// What was seen last.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// The containers.
    pub containers: Containing,
    /// What is amiss.
    pub trouble: Option<String>,
}

/// A source of containers, watched by a thread of its own. No call waits.
pub trait Source: Debug + Send + Sync {
    /// What was seen last.
    fn seen(&self) -> Seen;

    /// Why the containers are not known; none: they are.
    fn gap(&self) -> Option<String> {
        match self.seen().containers {
            Containing::All(_) => None,
            Containing::Unknown(why) => Some(why),
        }
    }

    /// Is the source on this host, whether or not it answers?
    fn is_there(&self) -> bool;

    /// Takes the containers that cannot be managed, with the reasons.
    fn tell_refused(&self, _refused: BTreeMap<GuestId, String>) {}
}
