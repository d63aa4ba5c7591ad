//! The one JSON object that a subcommand prints.

use std::io::Write;

use serde::Serialize;

use crate::error::{Error, Result};

/// Version of the JSON formats of this binary (docs/reference/probe-output.md).
pub const FORMAT: u32 = 1;

/// A subcommand's output: common fields, then the subcommand's own on the same level.
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

/// An error, in the JSON beside the results so far.
#[derive(Debug, Serialize)]
pub struct Failure {
    what: String,
    remedy: String,
}

impl Failure {
    /// The error as users read it.
    pub fn of(error: &Error) -> Self {
        Self { what: error.what.clone(), remedy: error.remedy.clone() }
    }
}

impl<T: Serialize> Output<T> {
    /// Wraps the result of `command`.
    pub fn new(command: &'static str, body: T) -> Self {
        Self { tool: "pw-probe", version: env!("CARGO_PKG_VERSION"), format: FORMAT, command, body }
    }

    /// Prints the object on stdout, as one line.
    ///
    /// # Errors
    /// stdout cannot be written: no space left, or its reader is gone.
    pub fn print(&self) -> Result<()> {
        let unwritten = |error: std::io::Error| {
            Error::failed("cannot write the result to stdout", "make space, or send it elsewhere")
                .caused_by(error)
        };
        let mut line = serde_json::to_vec(self).map_err(|error| unwritten(error.into()))?;
        line.push(b'\n');
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&line).and_then(|()| stdout.flush()).map_err(unwritten)
    }
}
