//! What can go wrong, said to a person: what, where, and the way out.

/// An error that may reach a user. `Display` is one sentence; the remedy is printed below it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    /// One sentence: what is wrong, and where.
    pub what: String,
    /// What to do about it; may be empty.
    pub remedy: String,
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with its way out.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}
