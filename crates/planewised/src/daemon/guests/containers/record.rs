//! Records, on disk, of guests' state before they were managed.

use std::fs;
use std::path::{Path, PathBuf};

use pw_alloc::model::{GuestId, Mac};
use pw_error::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize};

use crate::daemon::disk::{read_json, write_json};
use crate::daemon::net::Identity;
use crate::daemon::route::Route;

/// A guest before it was managed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub guest: GuestId,
    /// Name or path of its namespace.
    pub netns: String,
    /// The namespace's inode: another one is another guest.
    pub inode: u64,
    /// The namespace's cookie, which no other namespace of this boot has; none before Linux 5.14.
    #[serde(default)]
    pub cookie: Option<u64>,
    /// Its container, by Docker's id; none: a namespace of the configuration.
    #[serde(default)]
    pub container: Option<String>,
    /// The bond has taken over addresses and routes, which are the guest's own from then on. True in
    /// records of earlier versions.
    #[serde(default = "yes")]
    pub taken_over: bool,
    /// The boot that it was in.
    pub boot: String,
    /// Its interface.
    pub interface: String,
    /// That interface's address.
    pub mac: Mac,
    /// Its MTU [bytes].
    pub mtu_bytes: u32,
    /// Was it up?
    pub up: bool,
    /// Its addresses, as 198.18.0.1/24.
    pub addresses: Vec<String>,
    /// The routes by it, until the bond has taken them over; those of earlier versions are not read.
    #[serde(default, deserialize_with = "as_far_as_known")]
    pub routes: Vec<Route>,
    /// Index of the host's end of its veth.
    pub port: u32,
}

fn as_far_as_known<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Vec<Route>, D::Error> {
    let routes = Vec::<serde_json::Value>::deserialize(from)?.into_iter();
    Ok(routes.filter_map(|route| serde_json::from_value(route).ok()).collect())
}

const fn yes() -> bool {
    true
}

impl Record {
    /// Is it the record of this namespace?
    pub fn is_of(&self, namespace: Identity) -> bool {
        let same = match (self.cookie, namespace.cookie) {
            (Some(recorded), Some(cookie)) => recorded == cookie,
            _ => true,
        };
        same && self.inode == namespace.inode && self.boot == boot()
    }
}

/// This boot.
pub fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Path of a guest's record.
pub fn path(directory: &Path, guest: &GuestId) -> PathBuf {
    // A name may hold anything; what is no plain character is written as its bytes.
    let mut name = String::new();
    for byte in guest.as_str().bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02x}"));
        }
    }
    if name.is_empty() {
        // A file called .json would be hidden, and be no JSON file by its name.
        name.push('%');
    }
    directory.join(format!("{name}.json"))
}

fn failed(what: &str, path: &Path) -> Error {
    Error::failed(
        format!("cannot {what} {}", path.display()),
        "without it a guest cannot be restored to its former state: make space, or remove it",
    )
}

/// A guest's record; none: it is not managed.
pub fn read(directory: &Path, guest: &GuestId) -> Result<Option<Record>> {
    let path = path(directory, guest);
    read_json(&path).map_err(|error| failed("read", &path).caused_by(error))
}

/// All records of this boot, and what is wrong with those that cannot be read; older ones no longer apply
/// and are removed.
pub fn all(directory: &Path) -> (Vec<Record>, Vec<String>) {
    let (mut records, mut unreadable) = (Vec::new(), Vec::new());
    let boot = boot();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        // `.json`, of a guest without a name, is no extension to Path.
        if !entry.file_name().as_encoded_bytes().ends_with(b".json") {
            continue;
        }
        match read_json::<Record>(&path) {
            Ok(Some(record)) if record.boot == boot => records.push(record),
            Ok(_) => drop(fs::remove_file(&path)),
            Err(error) => {
                let error = failed("read", &path).caused_by(error);
                unreadable.push(format!("{error}; its guest is left as it is"));
            }
        }
    }
    (records, unreadable)
}

/// Writes a record durably.
pub fn write(directory: &Path, record: &Record) -> Result<()> {
    let path = path(directory, &record.guest);
    fs::create_dir_all(directory)
        .and_then(|()| write_json(&path, record))
        .map_err(|error| failed("write", &path).caused_by(error))
}

/// Removes a guest's record.
pub fn remove(directory: &Path, guest: &GuestId) -> Result<()> {
    let path = path(directory, guest);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(failed("remove", &path).caused_by(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> Record {
        Record {
            guest: name.into(),
            netns: "web".into(),
            inode: 7,
            cookie: Some(70),
            container: None,
            taken_over: true,
            boot: boot(),
            interface: "eth0".into(),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            mtu_bytes: 1500,
            up: true,
            addresses: vec!["198.18.0.1/24".into()],
            routes: Vec::new(),
            port: 4,
        }
    }

    #[test]
    fn a_record_of_any_name_is_read_again_and_stays_in_its_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        for name in ["web", "../x", "a/b", "ä b", ""] {
            let record = record(name);
            write(directory.path(), &record).expect("written");
            assert_eq!(read(directory.path(), &record.guest).expect("read"), Some(record.clone()));
            assert_eq!(path(directory.path(), &record.guest).parent(), Some(directory.path()));
        }
        assert_eq!(all(directory.path()).0.len(), 5);
        remove(directory.path(), &"web".into()).expect("removed");
        remove(directory.path(), &"web".into()).expect("again");
        assert_eq!(read(directory.path(), &"web".into()).expect("read"), None);
    }

    #[test]
    fn a_namespace_that_got_the_inode_of_another_is_another() {
        let record = record("web");
        assert!(record.is_of(Identity { inode: 7, cookie: Some(70) }));
        assert!(!record.is_of(Identity { inode: 7, cookie: Some(71) }));
        assert!(!record.is_of(Identity { inode: 8, cookie: Some(70) }));
        // Before Linux 5.14 the inode is all there is.
        assert!(record.is_of(Identity { inode: 7, cookie: None }));
        assert!(
            !Record { boot: "another".into(), ..record }.is_of(Identity { inode: 7, cookie: None })
        );
    }

    #[test]
    fn a_record_of_before_cookies_is_read() {
        let mut text = serde_json::to_value(record("web")).expect("JSON");
        let fields = text.as_object_mut().expect("an object");
        for field in ["cookie", "container", "taken_over"] {
            assert!(fields.remove(field).is_some());
        }
        let read: Record = serde_json::from_value(text).expect("still a record");
        assert!(read.taken_over && read.cookie.is_none());
    }

    #[test]
    fn a_record_of_an_earlier_boot_is_dropped() {
        let directory = tempfile::tempdir().expect("a directory");
        let old = Record { boot: "another".into(), ..record("web") };
        write(directory.path(), &old).expect("written");
        assert_eq!(all(directory.path()), (Vec::new(), Vec::new()));
        assert!(!path(directory.path(), &old.guest).exists());
    }

    #[test]
    fn a_record_that_cannot_be_read_costs_its_own_guest_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        write(directory.path(), &record("web")).expect("written");
        fs::write(directory.path().join("db.json"), "{").expect("written");
        let (records, unreadable) = all(directory.path());
        assert_eq!((records.len(), unreadable.len()), (1, 1));
        assert!(unreadable[0].contains("db.json"), "{unreadable:?}");
    }
}
