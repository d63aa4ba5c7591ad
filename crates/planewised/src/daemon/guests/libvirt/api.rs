//! The part of libvirt that is used, as a trait: the real one, or a simulated one.

use std::time::{Duration, Instant};

use pw_alloc::execute::Failure;

/// A domain's permanent identity.
pub type Uuid = [u8; 16];

/// A domain that runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Domain {
    /// Its identity.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Its number since libvirt started it.
    pub id: i32,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A domain started, stopped, changed its devices or its metadata.
    Changed(Uuid),
    /// A device has left a domain.
    DeviceRemoved {
        /// Which domain.
        uuid: Uuid,
        /// The device's alias.
        alias: String,
    },
    /// A guest refused to release a device.
    RemovalFailed {
        /// Which domain.
        uuid: Uuid,
        /// The device's alias.
        alias: String,
    },
    /// The connection was made: whatever happened before it is unknown.
    Connected,
    /// The connection is lost.
    Lost,
}

/// Kind of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// There is no libvirt, or its connection broke.
    Gone,
    /// It did not answer in time.
    Late,
    /// There is no such domain, or it does not run.
    NoDomain,
    /// The domain has no such device.
    NoDevice,
    /// The guest has been asked before and has not answered yet, or said that it is busy.
    Unplugging,
    /// Anything else.
    Refused,
}

/// Libvirt's refusal, or its absence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The kind.
    pub why: Why,
    /// In libvirt's words.
    pub words: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.words)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.words)
    }
}

impl Refusal {
    /// A refusal of that kind.
    pub fn new(why: Why, words: impl Into<String>) -> Self {
        Self { why, words: words.into() }
    }
}

/// Libvirt's answer.
pub type Answer<T> = Result<T, Refusal>;

/// A libvirt. A connection that is lost is made again by the next call.
pub trait Libvirt: Send + Sync {
    /// The domains that run.
    fn domains(&self, deadline: Instant) -> Answer<Vec<Domain>>;

    /// The live XML of each of these domains, in their order.
    ///
    /// # Errors
    /// Libvirt is gone or late; a domain that went away has an error of its own.
    fn xml(&self, domains: &[Domain], deadline: Instant) -> Answer<Vec<Answer<String>>>;

    /// Names and configurations of the domains that do not run.
    fn configured(&self, deadline: Instant) -> Answer<Vec<(String, String)>>;

    /// Plugs a device into a running domain.
    fn attach(&self, domain: &Domain, device: &str, deadline: Instant) -> Answer<()>;

    /// Asks a running domain's guest to release the device of this alias. The guest may take its time:
    /// the device is gone when the live XML no longer has it.
    fn detach(&self, domain: &Domain, alias: &str, deadline: Instant) -> Answer<()>;

    /// Sends a command to the agent in a guest. Its answer is the guest's claim.
    fn agent(&self, domain: &Domain, command: &str, deadline: Instant) -> Answer<String>;

    /// Waits for events, at most this long; returns all since the last call, in order. For one thread only.
    fn events(&self, wait: Duration) -> Vec<Event>;

    /// Is libvirt installed on this host, whether or not it runs?
    fn installed(&self) -> bool;

    /// Connects, unless connected.
    fn connect(&self) -> Answer<()>;
}
