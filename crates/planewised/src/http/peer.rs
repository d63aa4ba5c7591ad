//! Access by the socket: root, the daemon's own user, and the members of one group.

use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use nix::unistd::{Gid, geteuid};
use pw_error::{Error, Result};
use tokio::net::UnixStream;

use crate::daemon::request::Caller;

/// Most supplementary groups of a process (NGROUPS_MAX).
const MOST_GROUPS: usize = 65_536;

/// Access rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// The daemon's own user.
    daemon_uid: u32,
    /// The group that may.
    pub group: Option<Gid>,
}

impl Gate {
    /// The gate for this group.
    pub fn new(group: Option<&str>) -> Result<Self> {
        let group = group.map(find_group).transpose()?;
        Ok(Self { daemon_uid: geteuid().as_raw(), group })
    }

    /// The caller of this connection.
    pub fn admit(self, stream: &UnixStream) -> std::result::Result<Caller, String> {
        let peer =
            stream.peer_cred().map_err(|error| format!("the kernel names no peer: {error}"))?;
        let uid = peer.uid();
        let groups = || supplementary_groups(stream);
        if self.permits(uid, peer.gid(), groups) {
            return Ok(Caller::Local { uid, pid: peer.pid() });
        }
        Err(format!("user {uid} is not permitted"))
    }

    fn permits(self, uid: u32, gid: u32, groups: impl FnOnce() -> Vec<u32>) -> bool {
        uid == 0
            || uid == self.daemon_uid
            || self
                .group
                .is_some_and(|group| gid == group.as_raw() || groups().contains(&group.as_raw()))
    }
}

/// Looks a group up. Not by the C library: this program is linked statically, and the library would
/// load modules of another one.
fn find_group(name: &str) -> Result<Gid> {
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        let matches = fields.next()? == name;
        fields.nth(1)?.parse().ok().filter(|_| matches).map(Gid::from_raw)
    };
    let of_host = || {
        let text = std::fs::read_to_string("/etc/group").ok()?;
        text.lines().find_map(of_line)
    };
    // Groups that a directory service knows.
    let of_service = || {
        let output = Command::new("getent").args(["group", "--", name]).output().ok()?;
        String::from_utf8_lossy(&output.stdout).lines().find_map(of_line)
    };
    of_host().or_else(of_service).ok_or_else(|| {
        let remedy =
            format!("`groupadd --system {name}`, or name another group in the configuration");
        Error::bad_input(format!("there is no group {name:?}"), remedy)
    })
}

/// The supplementary groups that the peer had when it connected; none when the kernel does not say.
fn supplementary_groups(stream: &UnixStream) -> Vec<u32> {
    let fd = stream.as_fd().as_raw_fd();
    let mut groups: Vec<nix::libc::gid_t> = vec![0; 64];
    loop {
        let mut length = (groups.len() * size_of::<nix::libc::gid_t>()) as nix::libc::socklen_t;
        // SAFETY: `fd` is open while `stream` lives, and `groups` has room for `length` bytes, which
        // the kernel never exceeds.
        let done = unsafe {
            nix::libc::getsockopt(
                fd,
                nix::libc::SOL_SOCKET,
                nix::libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<nix::libc::gid_t>();
        if done == 0 {
            groups.truncate(count);
            return groups;
        }
        // ERANGE: the length is what is needed.
        if count <= groups.len() || count > MOST_GROUPS {
            return Vec::new();
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_the_own_user_and_the_groups_members_come_in_and_nobody_else() {
        let gate = Gate { daemon_uid: 7, group: Some(Gid::from_raw(50)) };
        assert!(gate.permits(0, 1, Vec::new));
        assert!(gate.permits(7, 1, Vec::new));
        assert!(gate.permits(8, 50, Vec::new));
        assert!(gate.permits(8, 1, || vec![4, 50]));
        assert!(!gate.permits(8, 1, || vec![4, 5]));
        assert!(!Gate { daemon_uid: 7, group: None }.permits(8, 0, || vec![0]));
    }

    #[test]
    fn a_group_that_does_not_exist_is_named() {
        let error = Gate::new(Some("no-such-group")).expect_err("no such group");
        assert!(error.what.contains("no-such-group") && error.kind == pw_error::Kind::BadInput);
        assert_eq!(Gate::new(Some("root")).expect("root's").group, Some(Gid::from_raw(0)));
    }

    #[tokio::test]
    async fn the_kernel_tells_who_is_at_the_other_end() {
        let (here, _there) = UnixStream::pair().expect("a pair");
        let gate = Gate::new(None).expect("no group");
        let pid = Some(std::process::id() as i32);
        assert_eq!(gate.admit(&here), Ok(Caller::Local { uid: geteuid().as_raw(), pid }));
        let daemon_uid: Vec<u32> =
            nix::unistd::getgroups().expect("groups").iter().map(|gid| gid.as_raw()).collect();
        assert_eq!(supplementary_groups(&here), daemon_uid);
    }
}
