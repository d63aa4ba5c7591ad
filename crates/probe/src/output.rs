//! The one JSON object that a subcommand prints.

use serde::Serialize;

/// Version of the JSON formats of this binary (docs/formats.md).
pub const FORMAT: u32 = 1;

/// What every subcommand's output begins with; the subcommand's own fields follow on the same level.
#[derive(Debug, Serialize)]
pub struct Output<T: Serialize> {
    /// Always `pw-probe`.
    pub tool: &'static str,
    /// Version of the binary.
    pub version: &'static str,
    /// Version of this format.
    pub format: u32,
    /// The subcommand.
    pub command: &'static str,
    /// The subcommand's own fields.
    #[serde(flatten)]
    pub body: T,
}

impl<T: Serialize> Output<T> {
    /// Wraps the result of `command`.
    pub fn new(command: &'static str, body: T) -> Self {
        Self { tool: "pw-probe", version: env!("CARGO_PKG_VERSION"), format: FORMAT, command, body }
    }
}
