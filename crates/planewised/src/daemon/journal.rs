//! The journal's file, a write-ahead log: a line is on disk before the action that it announces.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use pw_alloc::journal::{self, Entry, Ledger};
use pw_error::{Error, Result};

/// Length from which the journal is compacted [bytes].
const LONG_BYTES: u64 = 1 << 20;

/// Storage of the lines: a file, or a test's replacement.
pub trait Storage: Send {
    /// Appends these bytes durably.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Truncates it to this length.
    fn truncate(&mut self, length_bytes: u64) -> io::Result<()>;

    /// Replaces all of it atomically.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// An open journal, locked for one process.
pub struct Journal {
    /// Its name in messages.
    name: String,
    /// None: it is only read.
    storage: Option<Box<dyn Storage>>,
    length_bytes: u64,
    ledger: Ledger,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal in this directory, or begins one. Also returns, as sentences, which lines could not
    /// be read.
    pub fn open(directory: &Path) -> Result<(Self, Vec<String>)> {
        let (storage, text) = LogFile::open(directory)?;
        let name = directory.join("journal").display().to_string();
        Self::with_storage(&name, Some(Box::new(storage)), &text)
    }

    /// Reads it, without a lock: a daemon may be using it. Nothing can be written.
    pub fn open_read_only(directory: &Path) -> Result<(Self, Vec<String>)> {
        let path = directory.join("journal");
        let text = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(|error| failed("read", &path).caused_by(error))?,
        };
        Self::with_storage(&path.display().to_string(), None, &text)
    }

    /// A journal of this name in this storage, which holds this text.
    pub fn with_storage(
        name: &str,
        mut storage: Option<Box<dyn Storage>>,
        text: &[u8],
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
            // The next line must not be appended to half a line.
            let body = text.strip_suffix(b"\n").unwrap_or(text);
            let newline = body.iter().rposition(|byte| *byte == b'\n');
            length_bytes = newline.map_or(0, |index| index as u64 + 1);
            if let Some(storage) = &mut storage {
                storage
                    .truncate(length_bytes)
                    .map_err(|error| failed("write", Path::new(name)).caused_by(error))?;
            }
            notes.push(format!("{name}: the last line was cut short by a crash"));
        }
        let ledger = Ledger::replay(&read.entries);
        Ok((Self { name: name.to_owned(), storage, length_bytes, ledger }, notes))
    }

    /// The state that the lines add up to.
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Appends one line durably.
    pub fn append(&mut self, entry: &Entry) -> Result<()> {
        let line = journal::line(entry);
        let storage = Self::writable(&mut self.storage, &self.name)?;
        if let Err(error) = storage.append(line.as_bytes()) {
            // Half a line would damage the next one.
            let _ = storage.truncate(self.length_bytes);
            return Err(failed("write", Path::new(&self.name)).caused_by(error));
        }
        self.length_bytes += line.len() as u64;
        self.ledger.apply(entry);
        if self.length_bytes > LONG_BYTES {
            self.compact()?;
        }
        Ok(())
    }

    /// Replaces all lines by those that still count.
    pub fn compact(&mut self) -> Result<()> {
        let lines: String = self.ledger.digest().iter().map(journal::line).collect();
        Self::writable(&mut self.storage, &self.name)?
            .replace(lines.as_bytes())
            .map_err(|error| failed("replace", Path::new(&self.name)).caused_by(error))?;
        self.length_bytes = lines.len() as u64;
        Ok(())
    }

    fn writable<'a>(
        storage: &'a mut Option<Box<dyn Storage>>,
        name: &str,
    ) -> Result<&'a mut Box<dyn Storage>> {
        storage.as_mut().ok_or_else(|| failed("write", Path::new(name)))
    }
}

/// The journal's file.
struct LogFile {
    path: PathBuf,
    file: Flock<File>,
}

impl LogFile {
    /// Opens the file in this directory; returns its content, too.
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
        // The lock belongs to the file: the new one is locked before it gets the name.
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
        // Whoever only looks needs no lock.
        let (looked, _) = Journal::open_read_only(directory.path()).expect("looked at");
        assert_eq!(*looked.ledger(), before);
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
        drop(Journal::open_read_only(directory.path()).expect("looked at"));
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
        let (mut journal, _) = Journal::with_storage("j", Some(storage), &before).expect("read");
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
