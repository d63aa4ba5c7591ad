//! The daemon: observes guests and VFs, lets the allocator decide, performs its plans. What it knows
//! of the host comes through one trait.

pub mod config;
