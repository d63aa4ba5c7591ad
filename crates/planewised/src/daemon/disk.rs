//! The daemon's files, written atomically and durably.

use std::io::Write;
use std::path::Path;

use atomic_write_file::AtomicWriteFile;
use serde::Serialize;

/// Replaces the file by this value as JSON. After a crash it is either the old one or the new.
pub fn write_json(path: &Path, value: &impl Serialize) -> std::io::Result<()> {
    let mut file = AtomicWriteFile::open(path)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.commit()
}
