//! The network namespaces of this machine: which there are, and work inside one. Knows nothing of
//! what is done there.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sched::{CloneFlags, setns};
use pw_error::{Error, Result};

use crate::model::{Namespace, NetNs};

/// Inode of the namespace that this process is in.
///
/// # Errors
/// /proc cannot be read.
pub fn own() -> Result<u64> {
    inode_of_file("/proc/self/ns/net").map_err(|error| {
        Error::failed("cannot read /proc/self/ns/net", "mount /proc").caused_by(error)
    })
}

/// Where the namespace is that `path` opens: here, or another one.
///
/// # Errors
/// There is no such file, or it is not a namespace.
pub fn at(path: &str, called: &str) -> Result<NetNs> {
    let wrong = |why: &dyn std::fmt::Display| {
        Error::bad_input(
            format!("cannot open the network namespace {called} ({path}): {why}"),
            "give a name of `ip netns list`, a path that contains a '/', pid:N or container:NAME",
        )
    };
    let inode = inode_of_file(path).map_err(|error| wrong(&error))?;
    if inode == own()? {
        return Ok(NetNs::Host);
    }
    let namespace = Namespace { inode, path: path.to_owned() };
    // Entering is the only proof that it is a namespace of the network.
    run_at(&NetNs::Other(namespace.clone()), || Ok(()))?;
    Ok(NetNs::Other(namespace))
}

fn inode_of_file(path: impl AsRef<Path>) -> std::io::Result<u64> {
    fs::metadata(path).map(|found| found.ino())
}

/// Every other namespace that a mount or a process holds, each once.
///
/// One that only an open file holds is not seen (`held_by_files`), nor one that only a socket does.
pub fn others() -> Vec<Namespace> {
    let own = own().ok();
    let mut found = BTreeMap::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounted = mounts.lines().filter_map(mounted_namespace);
    let held = processes().into_iter().filter_map(|pid| {
        let path = format!("/proc/{pid}/ns/net");
        Some((namespace_inode(fs::read_link(&path).ok()?.to_str()?)?, path))
    });
    for (inode, path) in mounted.chain(held) {
        // A later mount may hide the file of an earlier one.
        if Some(inode) != own
            && !found.contains_key(&inode)
            && inode_of_file(&path).is_ok_and(|there| there == inode)
        {
            found.insert(inode, path);
        }
    }
    found.into_iter().map(|(inode, path)| Namespace { inode, path }).collect()
}

/// Namespaces that only an open file of a process holds. Looking is slow: every file of every
/// process is looked at.
pub fn held_by_files() -> Vec<Namespace> {
    let own = own().ok();
    let mut found = BTreeMap::new();
    for pid in processes() {
        for file in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(file.path()) else { continue };
            let inode =
                target.to_str().and_then(namespace_inode).filter(|inode| Some(*inode) != own);
            if let (Some(inode), Some(path)) = (inode, file.path().to_str()) {
                found.entry(inode).or_insert_with(|| path.to_owned());
            }
        }
    }
    found.into_iter().map(|(inode, path)| Namespace { inode, path }).collect()
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    found.sort_unstable();
    found
}

/// The inode in `net:[4026531840]`.
fn namespace_inode(text: &str) -> Option<u64> {
    text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// A network namespace in a line of mountinfo (proc(5)): its inode and where it is mounted.
fn mounted_namespace(line: &str) -> Option<(u64, String)> {
    let mut fields = line.split(' ').skip(3);
    let inode = namespace_inode(fields.next()?)?;
    Some((inode, unescaped(fields.next()?)))
}

/// A path of mountinfo, in which some characters stand as a backslash and three octal digits.
fn unescaped(path: &str) -> String {
    let mut parts = path.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..3).filter(|digits| !digits.starts_with('+'));
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => bytes.extend([&[byte], &part.as_bytes()[3..]].concat()),
            None => bytes.extend([b"\\", part.as_bytes()].concat()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs `work` on a thread of its own inside the namespace; at home, on this thread.
///
/// # Errors
/// The namespace is gone, or entering it is not allowed.
pub fn run_at<T: Send>(place: &NetNs, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let NetNs::Other(namespace) = place else { return work() };
    let gone = |why: &dyn std::fmt::Display| {
        Error::failed(format!("the network namespace {} is gone: {why}", namespace.path), "")
    };
    let file = fs::File::open(&namespace.path).map_err(|error| gone(&error))?;
    let there = file.metadata().map_err(|error| gone(&error))?.ino();
    if there != namespace.inode {
        return Err(gone(&"another one has taken its place"));
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(file, CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
                nix::Error::EPERM => Error::failed(
                    format!("not allowed to enter the network namespace {}", namespace.path),
                    "run as root",
                ),
                nix::Error::EINVAL => Error::bad_input(
                    format!("{} is not a network namespace", namespace.path),
                    "give a name of `ip netns list`, a path, pid:N or container:NAME",
                ),
                errno => Error::failed(
                    format!("cannot enter the network namespace {}: {errno}", namespace.path),
                    "",
                ),
            })?;
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_found_among_the_mounts() {
        let line = "402 26 0:4 net:[4026532345] /run/netns/pw\\040a rw shared:5 - nsfs nsfs rw";
        assert_eq!(mounted_namespace(line), Some((4_026_532_345, "/run/netns/pw a".into())));
        assert_eq!(mounted_namespace("26 1 0:25 / /run rw - tmpfs tmpfs rw"), None);
        assert_eq!(mounted_namespace("26 1 0:25 mnt:[4026532345] /x rw - nsfs nsfs rw"), None);
    }

    #[test]
    fn no_line_of_mountinfo_ends_in_a_panic() {
        pw_cases::check!().with_type::<String>().for_each(|text| {
            let _ = mounted_namespace(text);
            let _ = mounted_namespace(&format!("1 2 0:4 net:[7] {text} rw"));
            if !text.contains('\\') {
                assert_eq!(&unescaped(text), text);
            }
        });
    }

    #[test]
    fn this_namespace_is_home_and_no_file_is_another() {
        assert_eq!(at("/proc/self/ns/net", "own").expect("Linux"), NetNs::Host);
        let error = at("/run/netns/pw-no-such", "pw-no-such").expect_err("there is none");
        assert!(error.what.contains("pw-no-such"), "{}", error.what);
        let file = tempfile::NamedTempFile::new().expect("made");
        let path = file.path().to_str().expect("text").to_owned();
        assert!(at(&path, &path).is_err());
    }
}
