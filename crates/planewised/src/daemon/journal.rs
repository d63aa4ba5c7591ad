//! The journal's file: a line is on the disk before what it announces is done. Knows nothing of what
//! the lines mean beyond adding them up.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use pw_alloc::journal::{self, Entry, Ledger};
use pw_error::{Error, Result};

/// A journal that is longer is begun anew [bytes].
const LONG_BYTES: u64 = 1 << 20;

/// Where the lines are kept: a file, or what a test has in its place.
pub trait Storage: Send {
    /// Adds these bytes; when this returns they are on the disk.
    ///
    /// # Errors
    /// They are not there, or not all of them.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Cuts it to this length.
    ///
    /// # Errors
    /// It is as long as it was.
    fn truncate(&mut self, length_bytes: u64) -> io::Result<()>;

    /// Replaces all of it, at once.
    ///
    /// # Errors
    /// The old content stands.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// An open journal. One process has it at a time.
pub struct Journal {
    /// What it is called in sentences.
    name: String,
    storage: Box<dyn Storage>,
    length_bytes: u64,
    ledger: Ledger,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal in this directory, or begins one. Also says, in sentences, what of it could
    /// not be read: after that the world decides.
    ///
    /// # Errors
    /// The directory or the file cannot be used, or another process has it.
    pub fn open(directory: &Path) -> Result<(Self, Vec<String>)> {
        let (storage, text) = LogFile::open(directory)?;
        Self::over(
            &directory.join("journal").display().to_string(),
            Box::new(storage),
            &text,
            false,
        )
    }

    /// The same for somebody who only looks: a line that a crash cut short stays as it is.
    ///
    /// # Errors
    /// As for [`Journal::open`].
    pub fn look(directory: &Path) -> Result<(Self, Vec<String>)> {
        let (storage, text) = LogFile::open(directory)?;
        Self::over(&directory.join("journal").display().to_string(), Box::new(storage), &text, true)
    }

    /// A journal of this name that is kept here, and has this text.
    ///
    /// # Errors
    /// A newer planewised wrote it, or it cannot be written.
    pub fn over(
        name: &str,
        mut storage: Box<dyn Storage>,
        text: &[u8],
        only_look: bool,
    ) -> Result<(Self, Vec<String>)> {
        let read = journal::read(text);
        if let Some(line) = read.newer {
            return Err(Error::failed(
                format!("{name}:{line} was written by a newer planewised"),
                format!(
                    "install that version again (this one knows format {}), or move the file away \
                     once no guest holds a VF",
                    journal::FORMAT
                ),
            ));
        }
        let mut notes: Vec<String> = read
            .damaged
            .iter()
            .map(|line| format!("{name}:{line}: the line is damaged and left out"))
            .collect();
        let mut length_bytes = text.len() as u64;
        if read.torn {
            // The next line must not be glued to half a line.
            let body = text.strip_suffix(b"\n").unwrap_or(text);
            let whole = body.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            length_bytes = whole as u64;
            if !only_look {
                storage
                    .truncate(length_bytes)
                    .map_err(|error| failed("write", Path::new(name)).caused_by(error))?;
            }
            notes.push(format!("{name}: the last line was cut short by a crash"));
        }
        let ledger = Ledger::replay(&read.entries);
        Ok((Self { name: name.to_owned(), storage, length_bytes, ledger }, notes))
    }

    /// What the lines come to.
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Writes one line; when this returns it is on the disk.
    ///
    /// # Errors
    /// It cannot be written. What it announces must not be done then.
    pub fn append(&mut self, entry: &Entry) -> Result<()> {
        let line = journal::line(entry);
        if let Err(error) = self.storage.append(line.as_bytes()) {
            // Half a line would spoil the next one.
            let _ = self.storage.truncate(self.length_bytes);
            return Err(failed("write", Path::new(&self.name)).caused_by(error));
        }
        self.length_bytes += line.len() as u64;
        self.ledger.take_in(entry);
        if self.length_bytes > LONG_BYTES {
            self.begin_anew()?;
        }
        Ok(())
    }

    /// Replaces all lines by those that still count.
    ///
    /// # Errors
    /// They cannot be written; the old ones stand then.
    pub fn begin_anew(&mut self) -> Result<()> {
        let lines: String = self.ledger.digest().iter().map(journal::line).collect();
        self.storage
            .replace(lines.as_bytes())
            .map_err(|error| failed("replace", Path::new(&self.name)).caused_by(error))?;
        self.length_bytes = lines.len() as u64;
        Ok(())
    }
}

/// The file.
struct LogFile {
    path: PathBuf,
    file: Flock<File>,
}

impl LogFile {
    /// The file in this directory, and what is in it.
    fn open(directory: &Path) -> Result<(Self, Vec<u8>)> {
        let path = directory.join("journal");
        let cannot = |what| failed(what, &path);
        std::fs::create_dir_all(directory).map_err(|error| cannot("open").caused_by(error))?;
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .map_err(|error| cannot("open").caused_by(error))?;
        let file = lock(file, &path)?;
        let mut text = Vec::new();
        (&*file).read_to_end(&mut text).map_err(|error| cannot("read").caused_by(error))?;
        sync_directory(directory).map_err(|error| cannot("open").caused_by(error))?;
        Ok((Self { path, file }, text))
    }
}

impl Storage for LogFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        (&*self.file).write_all(bytes)?;
        self.file.sync_data()
    }

    fn truncate(&mut self, length_bytes: u64) -> io::Result<()> {
        self.file.set_len(length_bytes)?;
        self.file.sync_all()
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let next = self.path.with_extension("new");
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&next)?;
        file.set_len(0)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        // The lock goes with the file: it is had before the name changes.
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, why)| why)?;
        std::fs::rename(&next, &self.path)?;
        sync_directory(self.path.parent().unwrap_or(Path::new(".")))?;
        self.file = file;
        Ok(())
    }
}

fn failed(what: &str, path: &Path) -> Error {
    Error::failed(
        format!("cannot {what} the journal {}", path.display()),
        "nothing is moved without it: make space, or name another state_directory",
    )
}

fn lock(file: File, path: &Path) -> Result<Flock<File>> {
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
        Error::failed(
            format!("the journal {} is in use", path.display()),
            "another planewised runs on this host: stop it first",
        )
    })
}

fn sync_directory(directory: &Path) -> std::io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pw_alloc::journal::Ending;
    use pw_alloc::model::VfId;
    use pw_alloc::plan::{Direction, Move, Reason};

    fn one_move(operation: u64) -> [Entry; 2] {
        let change = Move {
            direction: Direction::Give,
            guest: "web".into(),
            vf: VfId::new("pf0", 1),
            reason: Reason::Turn,
        };
        [Entry::Begin { operation, change }, Entry::End { operation, ending: Ending::Completed }]
    }

    #[test]
    fn what_was_appended_is_there_after_a_restart() {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut journal, notes) = Journal::open(directory.path()).expect("begun");
        assert!(notes.is_empty());
        for entry in one_move(4) {
            journal.append(&entry).expect("written");
        }
        let before = journal.ledger().clone();
        assert!(Journal::open(directory.path()).is_err_and(|error| error.what.ends_with("in use")));
        drop(journal);
        let (journal, _) = Journal::open(directory.path()).expect("opened again");
        assert_eq!(*journal.ledger(), before);
        assert_eq!(before.holders.len(), 1);
    }

    #[test]
    fn half_a_line_is_cut_off_before_the_next_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut journal, _) = Journal::open(directory.path()).expect("begun");
        for entry in one_move(0) {
            journal.append(&entry).expect("written");
        }
        drop(journal);
        let path = directory.path().join("journal");
        let mut text = std::fs::read(&path).expect("read");
        text.truncate(text.len() - 9);
        std::fs::write(&path, &text).expect("torn");
        // Whoever only looks leaves it as it is.
        drop(Journal::look(directory.path()).expect("looked at"));
        assert_eq!(std::fs::read(&path).expect("read"), text);
        let (mut journal, notes) = Journal::open(directory.path()).expect("opened again");
        assert_eq!((notes.len(), journal.ledger().open.len()), (1, 1));
        journal.append(&one_move(0)[1]).expect("written");
        drop(journal);
        let (journal, notes) = Journal::open(directory.path()).expect("opened again");
        assert!(notes.is_empty() && journal.ledger().open.is_empty());
    }

    #[test]
    fn a_newer_journal_is_refused_and_stays_as_it_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("journal");
        let body = r#"{"entry":"of-a-later-version"}"#;
        let text = format!("{:08x} {body}\n", crc32fast::hash(body.as_bytes()));
        std::fs::write(&path, &text).expect("written");
        let error = Journal::open(directory.path()).expect_err("newer");
        assert!(error.what.contains("newer planewised") && !error.remedy.is_empty());
        assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
    }

    #[test]
    fn a_long_journal_begins_anew_and_stays_locked() {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut journal, _) = Journal::open(directory.path()).expect("begun");
        for entry in one_move(0) {
            journal.append(&entry).expect("written");
        }
        journal.length_bytes = LONG_BYTES;
        journal.append(&one_move(1)[0]).expect("written");
        let path = directory.path().join("journal");
        // What holds, and the move that is under way.
        assert_eq!(std::fs::read_to_string(&path).expect("read").lines().count(), 2);
        assert!(Journal::open(directory.path()).is_err());
        assert_eq!(journal.ledger().holders.len(), 1);
    }

    /// A disk that takes half of a line and says that it is full.
    struct Full(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

    impl Storage for Full {
        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.0.lock().expect("no panic").extend(&bytes[..bytes.len() / 2]);
            Err(io::ErrorKind::StorageFull.into())
        }

        fn truncate(&mut self, length_bytes: u64) -> io::Result<()> {
            self.0.lock().expect("no panic").truncate(length_bytes as usize);
            Ok(())
        }

        fn replace(&mut self, _: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn on_a_full_disk_nothing_is_taken_in_and_no_half_line_stays() {
        let before: Vec<u8> =
            one_move(0).iter().flat_map(|entry| journal::line(entry).into_bytes()).collect();
        let text = std::sync::Arc::new(std::sync::Mutex::new(before.clone()));
        let storage = Box::new(Full(text.clone()));
        let (mut journal, _) = Journal::over("j", storage, &before, false).expect("read");
        let ledger = journal.ledger().clone();
        let error = journal.append(&one_move(1)[0]).expect_err("full");
        assert!(error.what.contains("cannot write the journal j"), "{}", error.what);
        assert_eq!((&*text.lock().expect("no panic"), journal.ledger()), (&before, &ledger));
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_named() {
        let error = Journal::open(Path::new("/proc/nosuch")).expect_err("no such place");
        assert!(error.what.contains("/proc/nosuch/journal") && !error.remedy.is_empty());
    }
}
