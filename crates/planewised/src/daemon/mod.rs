//! What the allocating daemon needs that is not pure; so far its configuration.

pub mod config;
