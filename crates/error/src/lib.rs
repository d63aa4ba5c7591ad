//! The error type of every crate: a sentence for a person, and a remedy.

mod text;

use std::error::Error as Cause;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

/// The kind of an error, by which programs choose the exit code and APIs the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The operation failed.
    Failed,
    /// The user's input is wrong.
    BadInput,
}

impl Kind {
    /// The exit code for this kind of error.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::BadInput => 2,
        }
    }
}

/// An error that may reach a user. `Display` is one sentence; the remedy is printed below it.
#[derive(Debug, Clone)]
pub struct Error {
    /// Its kind.
    pub kind: Kind,
    /// One sentence: what failed, on what, and why.
    pub what: String,
    /// What to do about it; may be empty.
    pub remedy: String,
    source: Option<Arc<dyn Cause + Send + Sync>>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Cause for Error {
    fn source(&self) -> Option<&(dyn Cause + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Cause + 'static))
    }
}

/// The result of an operation that may fail.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An operation that failed.
    pub fn failed(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { kind: Kind::Failed, what: what.into(), remedy: remedy.into(), source: None }
    }

    /// The user's input is wrong.
    pub fn bad_input(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { kind: Kind::BadInput, what: what.into(), remedy: remedy.into(), source: None }
    }

    /// The same error with its cause, which ends its sentence.
    #[must_use]
    pub fn caused_by(mut self, source: impl Cause + Send + Sync + 'static) -> Self {
        let _ = write!(self.what, ": {source}");
        self.source = Some(Arc::new(source));
        self
    }

    /// The same error with `place` before its sentence.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.what = format!("{place}: {}", self.what);
        self
    }
}

/// Ends `program`: prints an error on stderr, its remedy below it, and returns the exit code.
pub fn exit(program: &str, result: Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    // A full or closed stderr is no reason to panic.
    let _ = writeln!(io::stderr(), "{program}: {error}");
    if !error.remedy.is_empty() {
        let _ = writeln!(io::stderr(), "  {}", error.remedy);
    }
    ExitCode::from(error.kind.exit_code())
}

/// Ends `program` with `code` after clap printed help on stdout, or (`code` is not 0) what is wrong with
/// the arguments on stderr. An error only if stdout is full.
pub fn exit_printed(program: &str, printed: io::Result<()>, code: i32) -> ExitCode {
    match printed.and_then(|()| io::stdout().flush()) {
        Err(error) if code == 0 && error.kind() != io::ErrorKind::BrokenPipe => {
            let what = Error::failed("cannot write to stdout", "make space, or send it elsewhere");
            exit(program, Err(what.caused_by(error)))
        }
        _ => ExitCode::from(code as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errors_sentence_ends_with_its_cause_and_the_cause_is_kept() {
        let error = Error::failed("cannot open the door", "knock")
            .caused_by(std::io::Error::from_raw_os_error(2))
            .at("house");
        assert_eq!(
            error.to_string(),
            "house: cannot open the door: No such file or directory (os error 2)"
        );
        let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
        assert_eq!(cause.map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound));
        assert_eq!((error.kind.exit_code(), Kind::BadInput.exit_code()), (1, 2));
    }
}
