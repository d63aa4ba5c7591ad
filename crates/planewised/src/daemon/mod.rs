//! The allocating daemon: observes guests and VFs, lets pw-alloc decide, performs its plans.

pub mod config;
pub mod guests;
pub mod journal;
pub mod pool;
