//! A command's result: text for people, or one JSON object for programs.

use std::io::Write;

use pw_error::{Error, Result};
use serde::Serialize;

/// Version of the JSON formats of this binary (docs/reference/vf.md).
pub const FORMAT: u32 = 1;

/// First fields of every command's JSON; the command's own follow on the same level.
#[derive(Debug, Serialize)]
struct Output<'a, T: Serialize> {
    tool: &'static str,
    version: &'static str,
    format: u32,
    command: &'a str,
    #[serde(flatten)]
    body: &'a T,
}

/// Prints the result of `command`: `body` as JSON, or as `text`.
pub fn print<T: Serialize>(
    command: &str,
    body: &T,
    json: bool,
    text: impl FnOnce(&T) -> String,
) -> Result<()> {
    let unwritten =
        || Error::failed("cannot write the result to stdout", "make space, or send it elsewhere");
    let mut bytes = if json {
        let version = env!("CARGO_PKG_VERSION");
        let output = Output { tool: "planewised", version, format: FORMAT, command, body };
        serde_json::to_vec(&output).map_err(|error| unwritten().caused_by(error))?
    } else {
        text(body).trim_end().as_bytes().to_vec()
    };
    bytes.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(&bytes)
        .and_then(|()| stdout.flush())
        .map_err(|error| unwritten().caused_by(error))
}
