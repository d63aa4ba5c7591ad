//! What can go wrong, said to a person: what, where, and the way out.

/// An error that may reach a user. `Display` is one sentence; the remedy is printed below it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    /// One sentence: what could not be done, and where.
    pub what: String,
    /// What to do about it; may be empty.
    pub remedy: String,
    /// Process exit code: 1 it could not be done, 2 bad input.
    pub code: u8,
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// It could not be done (exit code 1).
    pub fn failed(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into(), code: 1 }
    }

    /// The user's input is wrong (exit code 2).
    pub fn bad_input(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into(), code: 2 }
    }
}
