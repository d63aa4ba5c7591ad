//! Planewise on a host: its SR-IOV functions, and who holds them. Every command prints its result on
//! stdout, as text or (`--json`) as one JSON object (docs/reference/vf.md).

pub mod cli;
pub mod daemon;
pub mod http;
pub mod output;
pub mod simulate;
pub mod vf;
