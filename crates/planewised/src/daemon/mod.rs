//! What the allocating daemon needs that is not pure; so far its configuration and its journal.

pub mod config;
pub mod journal;
