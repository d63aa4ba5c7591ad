//! What the allocating daemon needs that is not pure; so far its configuration and its journal, and
//! what its core and its face say to each other.

pub mod config;
pub mod journal;
pub mod request;
pub mod status;
