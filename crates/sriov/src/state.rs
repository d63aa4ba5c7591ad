//! The state directory: records of functions before their first change, and locks. Its owner's alone.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use atomic_write_file::AtomicWriteFile;
use atomic_write_file::unix::OpenOptionsExt as _;
use nix::fcntl::{Flock, FlockArg};
use pw_error::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::address::PciAddress;
use crate::model::{Pf, Vf};

/// The state of a PF or VF before its first change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Version of this format.
    pub format: u32,
    /// The boot it belongs to: another boot loses all that it describes.
    pub boot_id: String,
    /// Who made the change.
    pub owner: Option<String>,
    /// Process that made the record.
    pub pid: u32,
    /// Time of the record [seconds since the epoch].
    pub since_s: u64,
    /// Whether the change disregarded the default route and the SSH session.
    pub forced: bool,
    /// The state.
    pub before: Before,
}

/// The recorded state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Before {
    /// A PF and all its VFs.
    Pf(Box<Pf>),
    /// One VF.
    Vf {
        /// Its PF.
        pf: PciAddress,
        /// Its state before the first change.
        first: Box<Vf>,
        /// Its state before its interface was moved; none when it was not.
        before_move: Option<Box<Vf>>,
    },
}

impl Record {
    /// A record made now.
    pub fn new(before: Before, owner: Option<String>, forced: bool) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            format: FORMAT,
            boot_id: boot_id(),
            owner,
            pid: std::process::id(),
            since_s: now.as_secs(),
            forced,
            before,
        }
    }

    /// The recorded function.
    pub fn address(&self) -> PciAddress {
        match &self.before {
            Before::Pf(pf) => pf.address,
            Before::Vf { first, .. } => first.address,
        }
    }
}

const FORMAT: u32 = 1;

/// What the names of records begin with. No address is of a VF and of a PF.
const KINDS: [&str; 2] = ["vf", "pf"];

/// The state directory.
#[derive(Debug, Clone)]
pub struct State {
    directory: PathBuf,
}

/// A lock that is held until it is dropped, or the process ends.
pub type Lock = Flock<fs::File>;

impl State {
    /// The state in this directory, which need not exist yet.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// The directory for a user who names none.
    pub fn default_directory() -> PathBuf {
        if nix::unistd::geteuid().is_root() {
            return "/run/planewise/vf".into();
        }
        std::env::var_os("XDG_RUNTIME_DIR").filter(|run| Path::new(run).is_dir()).map_or_else(
            || format!("/tmp/planewise-{}/vf", nix::unistd::geteuid()).into(),
            |run| Path::new(&run).join("planewise/vf"),
        )
    }

    /// Makes the directory.
    pub fn make(&self) -> Result<()> {
        let wrong = |why: &dyn std::fmt::Display| {
            Error::failed(
                format!("the state directory {} cannot be used: {why}", self.directory.display()),
                "name another one with --state",
            )
        };
        let parent = self.directory.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(parent).map_err(|error| wrong(&error))?;
        match fs::DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(wrong(&error));
            }
            _ => {}
        }
        let owner = fs::metadata(&self.directory).map_err(|error| wrong(&error))?.uid();
        if owner != nix::unistd::geteuid().as_raw() {
            return Err(wrong(&"it is another user's"));
        }
        // Whoever can open a lock can hold it: an earlier version left the directory to everybody.
        fs::set_permissions(&self.directory, fs::Permissions::from_mode(0o700))
            .map_err(|error| wrong(&error))
    }

    fn files(&self, address: PciAddress) -> [PathBuf; 2] {
        KINDS.map(|kind| self.directory.join(format!("{kind}-{address}.json")))
    }

    /// The record of a function; none when there is none of this boot.
    pub fn record(&self, address: PciAddress) -> Result<Option<Record>> {
        self.files(address).iter().find_map(|file| self.read(file).transpose()).transpose()
    }

    fn read(&self, file: &Path) -> Result<Option<Record>> {
        let wrong = |why: &dyn std::fmt::Display| {
            Error::failed(
                format!("the record {} cannot be read: {why}", file.display()),
                "it holds a device's earlier state; remove it once the device is as you want it",
            )
        };
        let content = match fs::read(file) {
            Ok(content) => content,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(&error)),
        };
        let record = parse(&content).map_err(|error| wrong(&error))?;
        Ok((record.boot_id == boot_id()).then_some(record))
    }

    /// All records of this boot; VFs before PFs.
    pub fn all(&self) -> Result<Vec<Record>> {
        let is_record = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let kind = name.strip_suffix(".json").and_then(|name| name.split_once('-'));
            kind.is_some_and(|(kind, _)| KINDS.contains(&kind))
        };
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_record).collect();
        files.sort_unstable();
        files.iter().rev().filter_map(|file| self.read(file).transpose()).collect()
    }

    /// Writes a record atomically.
    pub fn write(&self, record: &Record) -> Result<()> {
        let [of_vf, of_pf] = self.files(record.address());
        let path = if matches!(record.before, Before::Pf(_)) { of_pf } else { of_vf };
        let write = || -> std::io::Result<()> {
            let mut file =
                AtomicWriteFile::options().preserve_mode(false).mode(0o600).open(&path)?;
            file.write_all(&serde_json::to_vec_pretty(record)?)?;
            file.commit()
        };
        write().map_err(|error| {
            Error::failed(
                format!(
                    "the record {} cannot be written: {error}; nothing was changed",
                    path.display()
                ),
                "make space there, or name another directory with --state",
            )
        })
    }

    /// Removes the record of a function.
    pub fn remove(&self, address: PciAddress) -> Result<()> {
        self.files(address).iter().try_for_each(|file| match fs::remove_file(file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::failed(format!("the record {} cannot be removed", file.display()), "")
                    .caused_by(error))
            }
            _ => Ok(()),
        })
    }

    /// Locks a function against every other planewised with this state directory.
    pub fn lock(&self, address: PciAddress, shared: bool, wait: Duration) -> Result<Lock> {
        let path = self.directory.join(format!("lock-{address}"));
        let mut file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|error| {
                Error::failed(
                    format!("the lock {} cannot be made", path.display()),
                    "name another directory with --state",
                )
                .caused_by(error)
            })?;
        let operation =
            if shared { FlockArg::LockSharedNonblock } else { FlockArg::LockExclusiveNonblock };
        let begun = Instant::now();
        loop {
            match Flock::lock(file, operation) {
                Ok(lock) => return Ok(lock),
                Err((returned, nix::Error::EWOULDBLOCK)) if begun.elapsed() < wait => {
                    file = returned
                }
                Err((_, nix::Error::EWOULDBLOCK)) => {
                    return Err(Error::failed(
                        format!("another planewised works on {address}"),
                        "try again when it is done, or wait longer with --wait",
                    ));
                }
                Err((_, errno)) => {
                    return Err(Error::failed(
                        format!("the lock {} cannot be taken: {errno}", path.display()),
                        "",
                    ));
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Fills in the owners of PFs and their VFs.
    pub fn annotate(&self, pfs: &mut [Pf]) -> Result<()> {
        let records = self.all()?;
        let owner = |address: PciAddress| {
            let record = records.iter().find(|record| record.address() == address);
            record.map(|record| record.owner.clone().unwrap_or_else(|| NOBODY.into()))
        };
        for pf in pfs {
            pf.owner = owner(pf.address);
            pf.vfs.iter_mut().for_each(|vf| vf.owner = owner(vf.address));
        }
        Ok(())
    }
}

/// The owner of changes that named none.
pub const NOBODY: &str = "-";

/// Reads a record.
pub fn parse(content: &[u8]) -> std::result::Result<Record, String> {
    let record: Record = serde_json::from_slice(content).map_err(|error| error.to_string())?;
    if record.format == FORMAT {
        return Ok(record);
    }
    Err(format!("its format is {}, and this planewised knows {FORMAT}", record.format))
}

fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn no_other_user_can_hold_a_lock() {
        let outer = tempfile::tempdir().expect("a directory");
        fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o755)).expect("set");
        let directory = outer.path().join("vf");
        // As an earlier version left it.
        fs::create_dir(&directory).expect("made");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("set");
        let state = State::new(&directory);
        state.make().expect("ours");
        let pf = "0000:01:00.0".parse().expect("valid");
        drop(state.lock(pf, true, Duration::ZERO).expect("free"));
        let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
        let lock = directory.join(format!("lock-{pf}"));
        assert_eq!((mode(&directory), mode(&lock)), (0o700, 0o600));
        if nix::unistd::geteuid().is_root() {
            let mut theirs = Command::new("flock");
            let done = theirs.arg("-n").arg(&lock).arg("true").uid(65_534).gid(65_534).output();
            assert!(!done.expect("flock runs").status.success(), "nobody took the lock");
        }
    }
}
