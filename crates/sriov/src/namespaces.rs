//! The network namespaces of this machine: lists them and runs code inside one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pw_error::{Error, Result};

use crate::model::{Namespace, NetNs};

/// Inode of the namespace that this process is in.
pub fn current_inode() -> Result<u64> {
    inode_of_file("/proc/self/ns/net").map_err(|error| {
        Error::failed("cannot read /proc/self/ns/net", "mount /proc").caused_by(error)
    })
}

/// The namespace that the file `path` refers to; `name` is the user's name for it.
pub fn open(path: &str, name: &str) -> Result<NetNs> {
    let wrong = |why: &dyn std::fmt::Display| {
        Error::bad_input(
            format!("cannot open the network namespace {name} ({path}): {why}"),
            "give a name of `ip netns list`, a path that contains a '/', pid:N or container:NAME",
        )
    };
    let inode = inode_of_file(path).map_err(|error| wrong(&error))?;
    if inode == current_inode()? {
        return Ok(NetNs::Host);
    }
    let namespace = Namespace { inode, path: path.to_owned() };
    // Only entering it proves that it is a network namespace.
    run_in(&NetNs::Other(namespace.clone()), || Ok(()))?;
    Ok(NetNs::Other(namespace))
}

fn inode_of_file(path: impl AsRef<Path>) -> std::io::Result<u64> {
    fs::metadata(path).map(|stat| stat.ino())
}

/// The namespaces that a mount or a process holds, without the current one.
///
/// Those that only an open file holds are missing (`held_by_files`), and those that only a socket does.
pub fn list() -> Vec<Namespace> {
    let current = current_inode().ok();
    let mut paths = BTreeMap::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounted = mounts.lines().filter_map(mounted_namespace);
    let entered = processes().into_iter().filter_map(|pid| {
        let path = format!("/proc/{pid}/ns/net");
        Some((namespace_inode(fs::read_link(&path).ok()?.to_str()?)?, path))
    });
    for (inode, path) in mounted.chain(entered) {
        // A later mount may hide the file of an earlier one.
        if Some(inode) != current
            && !paths.contains_key(&inode)
            && inode_of_file(&path).is_ok_and(|opened| opened == inode)
        {
            paths.insert(inode, path);
        }
    }
    paths.into_iter().map(|(inode, path)| Namespace { inode, path }).collect()
}

/// The namespaces that open files of processes hold, without the current one. Slow: reads the link
/// of every open file of every process.
pub fn held_by_files() -> Vec<Namespace> {
    let current = current_inode().ok();
    let mut paths = BTreeMap::new();
    for pid in processes() {
        for file in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(file.path()) else { continue };
            let inode =
                target.to_str().and_then(namespace_inode).filter(|inode| Some(*inode) != current);
            if let (Some(inode), Some(path)) = (inode, file.path().to_str()) {
                paths.entry(inode).or_insert_with(|| path.to_owned());
            }
        }
    }
    paths.into_iter().map(|(inode, path)| Namespace { inode, path }).collect()
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
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

/// A path of mountinfo, which escapes characters as a backslash and three octal digits.
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

/// Opens the file of a namespace, which must still refer to it.
pub fn file(namespace: &Namespace) -> Result<fs::File> {
    let gone = |why: &dyn std::fmt::Display| {
        Error::failed(format!("the network namespace {} is gone: {why}", namespace.path), "")
    };
    let file = fs::File::open(&namespace.path).map_err(|error| gone(&error))?;
    let inode = file.metadata().map_err(|error| gone(&error))?.ino();
    if inode == namespace.inode { Ok(file) } else { Err(gone(&"its file is another one's now")) }
}

/// Runs `work` inside the namespace, on a thread of its own; on this thread if it is the host's.
pub fn run_in<T: Send>(netns: &NetNs, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let NetNs::Other(namespace) = netns else { return work() };
    pw_linux::netns::run_in_file(&file(namespace)?, &namespace.path, work)
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
        assert_eq!(open("/proc/self/ns/net", "own").expect("Linux"), NetNs::Host);
        let error = open("/run/netns/pw-no-such", "pw-no-such").expect_err("there is none");
        assert!(error.what.contains("pw-no-such"), "{}", error.what);
        let file = tempfile::NamedTempFile::new().expect("made");
        let path = file.path().to_str().expect("text").to_owned();
        assert!(open(&path, &path).is_err());
    }
}
