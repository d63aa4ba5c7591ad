//! The allocating daemon: observes guests and VFs, lets pw-alloc decide, performs its plans. The core is
//! one synchronous thread; HTTP (API, metrics, page) another.

pub mod cluster;
pub mod config;
pub mod core;
pub mod disk;
pub mod failpoint;
pub mod filters;
pub mod forwarding;
pub mod guests;
pub mod journal;
pub mod net;
pub mod pool;
pub mod profile;
pub mod request;
pub mod route;
pub mod run;
#[cfg(feature = "simulated")]
pub mod simulated;
pub mod status;
pub mod tasks;
#[cfg(test)]
mod testing;
pub mod wishes;
