//! The one JSON object that a subcommand prints (docs/reference/probe-output.md).

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// Version of the JSON formats of this binary.
const FORMAT: u32 = 1;

/// Prints the result of `command` on stdout, as one line: common fields, then those of `body`.
///
/// # Errors
/// stdout cannot be written: no space left, or its reader is gone.
pub fn print(command: &str, body: impl Serialize) -> Result<()> {
    #[derive(Serialize)]
    struct Output<'a, T: Serialize> {
        tool: &'a str,
        version: &'a str,
        format: u32,
        command: &'a str,
        #[serde(flatten)]
        body: T,
    }
    let version = env!("CARGO_PKG_VERSION");
    let output = Output { tool: "pw-probe", version, format: FORMAT, command, body };
    let line = serde_json::to_string(&output).map_err(|error| unwritten(error.into()))?;
    text(&(line + "\n"))
}

/// Prints text on stdout.
///
/// # Errors
/// As [`print`].
pub fn text(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(unwritten)
}

fn unwritten(error: io::Error) -> Error {
    Error::failed("cannot write the result to stdout", "make space, or send it elsewhere")
        .caused_by(error)
}

/// The fields of several objects as one.
pub fn merged(parts: impl IntoIterator<Item = Value>) -> Value {
    let parts = parts.into_iter().filter_map(|part| match part {
        Value::Object(fields) => Some(fields),
        _ => None,
    });
    Value::Object(parts.flatten().collect())
}

/// The field `error` for the JSON beside the results so far; no field without an error.
pub fn failure(error: Option<&Error>) -> Value {
    error.map_or(json!({}), |error| json!({ "error": reason(error) }))
}

/// An error as an object.
pub fn reason(error: &Error) -> Value {
    json!({ "what": error.what, "remedy": error.remedy })
}

/// A CSV file with a row for each packet.
pub struct PacketsFile {
    out: BufWriter<File>,
    path: PathBuf,
}

impl PacketsFile {
    /// Creates the file: before the run, so that a bad path costs no measurement.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|error| {
            Error::bad_input(
                format!("cannot write {}", path.display()),
                "give --packets a file in a directory that exists and is writable",
            )
            .caused_by(error)
        })?;
        Ok(Self { out: BufWriter::with_capacity(1 << 16, file), path: path.to_owned() })
    }

    /// Writes the rows.
    ///
    /// # Errors
    /// There is no space.
    pub fn write(
        mut self,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<()> {
        write(&mut self.out).and_then(|()| self.out.flush()).map_err(|error| {
            Error::failed(
                format!("cannot write {}", self.path.display()),
                "the file is incomplete; the summary on stdout is not. Make space and measure again",
            )
            .caused_by(error)
        })
    }
}
