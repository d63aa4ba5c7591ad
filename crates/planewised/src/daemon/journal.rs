//! The journal's file: a line is on the disk before what it announces is done. Knows nothing of what
//! the lines mean beyond adding them up.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use pw_alloc::journal::{self, Entry, Ledger};
use pw_linux::error::{Error, Result};

/// A journal that is longer is begun anew as soon as no move is open [bytes].
const LONG_BYTES: u64 = 1 << 20;

/// An open journal. One process has it at a time.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Flock<File>,
    length_bytes: u64,
    ledger: Ledger,
}

impl Journal {
    /// Opens the journal in this directory, or begins one. Also says, in sentences, what of it could
    /// not be read: after that the world decides.
    ///
    /// # Errors
    /// The directory or the file cannot be used, or another process has it.
    pub fn open(directory: &Path) -> Result<(Self, Vec<String>)> {
        let path = directory.join("journal");
        let cannot = |what: &str, error: &std::io::Error| failed(what, &path, error);
        std::fs::create_dir_all(directory).map_err(|error| cannot("open", &error))?;
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .map_err(|error| cannot("open", &error))?;
        let file = lock(file, &path)?;
        let mut text = Vec::new();
        (&*file).read_to_end(&mut text).map_err(|error| cannot("read", &error))?;
        let read = journal::read(&text);
        let mut notes: Vec<String> = read
            .damaged
            .iter()
            .map(|line| format!("{}:{line}: the line is damaged and left out", path.display()))
            .collect();
        let mut length_bytes = text.len() as u64;
        if read.torn {
            // The next line must not be glued to half a line.
            let body = text.strip_suffix(b"\n").unwrap_or(&text);
            let whole = body.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            length_bytes = whole as u64;
            file.set_len(length_bytes)
                .and_then(|()| file.sync_all())
                .map_err(|error| cannot("write", &error))?;
            notes.push(format!("{}: the last line was cut short by a crash", path.display()));
        }
        sync_directory(directory).map_err(|error| cannot("open", &error))?;
        let ledger = Ledger::replay(&read.entries);
        Ok((Self { path, file, length_bytes, ledger }, notes))
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
        let written = (&*self.file).write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // Half a line would spoil the next one.
            let _ = self.file.set_len(self.length_bytes);
            return Err(failed("write", &self.path, &error));
        }
        self.length_bytes += line.len() as u64;
        self.ledger.take_in(entry);
        if self.length_bytes > LONG_BYTES
            && let Some(checkpoint) = self.ledger.checkpoint()
        {
            self.begin_anew(&checkpoint)?;
        }
        Ok(())
    }

    /// Replaces the file by one that holds this line alone.
    ///
    /// # Errors
    /// It cannot be written; the old one stands then.
    pub fn begin_anew(&mut self, checkpoint: &Entry) -> Result<()> {
        let line = journal::line(checkpoint);
        let next = self.path.with_extension("new");
        let replaced = (|| {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(&next)?;
            file.set_len(0)?;
            file.write_all(line.as_bytes())?;
            file.sync_all()?;
            Ok(file)
        })();
        let file = replaced.map_err(|error: std::io::Error| failed("write", &next, &error))?;
        let file = lock(file, &next)?;
        std::fs::rename(&next, &self.path)
            .and_then(|()| sync_directory(self.path.parent().unwrap_or(Path::new("."))))
            .map_err(|error| failed("replace", &self.path, &error))?;
        self.file = file;
        self.length_bytes = line.len() as u64;
        self.ledger.take_in(checkpoint);
        Ok(())
    }
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::failed(
        format!("cannot {what} the journal {}: {error}", path.display()),
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
        std::fs::write(&path, text).expect("torn");
        let (mut journal, notes) = Journal::open(directory.path()).expect("opened again");
        assert_eq!((notes.len(), journal.ledger().open.len()), (1, 1));
        journal.append(&one_move(0)[1]).expect("written");
        drop(journal);
        let (journal, notes) = Journal::open(directory.path()).expect("opened again");
        assert!(notes.is_empty() && journal.ledger().open.is_empty());
    }

    #[test]
    fn a_long_journal_begins_anew_and_stays_locked() {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut journal, _) = Journal::open(directory.path()).expect("begun");
        for entry in one_move(0) {
            journal.append(&entry).expect("written");
        }
        journal.length_bytes = LONG_BYTES;
        journal.append(&Entry::Unmark { guest: "web".into() }).expect("written");
        let path = directory.path().join("journal");
        assert_eq!(std::fs::read_to_string(&path).expect("read").lines().count(), 1);
        assert!(Journal::open(directory.path()).is_err());
        assert_eq!(journal.ledger().holders.len(), 1);
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_named() {
        let error = Journal::open(Path::new("/proc/nosuch")).expect_err("no such place");
        assert!(error.what.contains("/proc/nosuch/journal") && !error.remedy.is_empty());
    }
}
