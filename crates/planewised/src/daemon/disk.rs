//! Files that the daemon keeps: whole or not at all, and on the disk when a call returns.

use std::io::Write;
use std::path::Path;

use atomic_write_file::AtomicWriteFile;
use serde::Serialize;

/// Replaces the file by this value as JSON. After a crash at any moment it is the old one or the new.
///
/// # Errors
/// It cannot be written: the old one stands.
pub fn write_json(path: &Path, value: &impl Serialize) -> std::io::Result<()> {
    let mut file = AtomicWriteFile::open(path)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.commit()
}
