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

/// An event: a domain started, stopped, changed its devices or its metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Which domain.
    pub uuid: Uuid,
    /// The alias of the device that its guest refused to release, if that is the event.
    pub refused: Option<String>,
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

/// A connection to libvirt. Once lost it is made again by the next call.
pub trait Libvirt: Send {
    /// Another connection to the same libvirt.
    fn another(&self) -> Box<dyn Libvirt>;

    /// Connects, unless connected. True after a new connection: whatever happened before is unknown.
    fn connect(&mut self) -> Answer<bool>;

    /// The domains that run.
    fn domains(&mut self, deadline: Instant) -> Answer<Vec<Domain>>;

    /// A domain's live XML.
    fn xml(&mut self, domain: &Domain, deadline: Instant) -> Answer<String>;

    /// Names and configurations of the domains that do not run.
    fn configured(&mut self, deadline: Instant) -> Answer<Vec<(String, String)>>;

    /// Plugs a device into a running domain.
    fn attach(&mut self, domain: &Domain, device: &str, deadline: Instant) -> Answer<()>;

    /// Asks a running domain's guest to release the device of this alias. The guest may take its time:
    /// the device is gone when the live XML no longer has it.
    fn detach(&mut self, domain: &Domain, alias: &str, deadline: Instant) -> Answer<()>;

    /// Sends a command to the agent in a guest. Its answer is the guest's claim.
    fn agent(&mut self, domain: &Domain, command: &str, deadline: Instant) -> Answer<String>;

    /// The events since the last call, in order; waits for one at most this long. The first call subscribes.
    fn events(&mut self, wait: Duration) -> Answer<Vec<Event>>;

    /// Is libvirt installed on this host, whether or not it runs?
    fn installed(&self) -> bool;
}
