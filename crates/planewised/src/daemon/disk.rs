//! The daemon's files, written atomically and durably.

use std::io::Write;
use std::path::Path;

use atomic_write_file::AtomicWriteFile;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The value in this file of JSON; none: there is no such file.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> std::io::Result<Option<T>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        text => Ok(Some(serde_json::from_slice(&text?)?)),
    }
}

/// Replaces the file by this value as JSON. After a crash it is either the old one or the new.
pub fn write_json(path: &Path, value: &impl Serialize) -> std::io::Result<()> {
    let mut file = AtomicWriteFile::open(path)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.commit()
}
