//! Network namespaces: parses `IF@NETNS`, runs code inside a namespace.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::str::FromStr;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::getsockopt;
use nix::{getsockopt_impl, sockopt_impl};

use pw_error::{Error, Result};

/// A network namespace, as a user names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Netns {
    /// `NAME`: a namespace that `ip netns add NAME` made, at /run/netns/NAME.
    Name(String),
    /// `/PATH` (or `./PATH`): a file that a namespace is mounted on.
    Path(PathBuf),
    /// `pid:N`: the namespace of process N.
    Pid(u32),
}

impl FromStr for Netns {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::bad_input(
                format!("'{text}' names no network namespace: {why}"),
                "give a name of `ip netns list`, a path that contains a '/', or pid:N",
            )
        };
        if let Some(pid) = text.strip_prefix("pid:") {
            return match pid.parse() {
                Ok(pid) if pid > 0 && pid <= i32::MAX as u32 => Ok(Self::Pid(pid)),
                _ => Err(wrong("what follows 'pid:' is not a process id")),
            };
        }
        if text.is_empty() {
            return Err(wrong("it is empty"));
        }
        if text.contains('\0') {
            return Err(wrong("it contains a zero byte"));
        }
        if text.contains('/') {
            return Ok(Self::Path(text.into()));
        }
        if text == "." || text == ".." {
            return Err(wrong("it is a directory"));
        }
        Ok(Self::Name(text.into()))
    }
}

impl fmt::Display for Netns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Pid(pid) => write!(f, "pid:{pid}"),
        }
    }
}

impl Netns {
    /// The file that refers to the namespace.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Name(name) => ["/run/netns", name].iter().collect(),
            Self::Path(path) => path.clone(),
            Self::Pid(pid) => format!("/proc/{pid}/ns/net").into(),
        }
    }

    /// Is it the interface below another, as `ip link` prints it (`eth0.10@eth0`, `veth0@if7`)?
    fn is_interface(&self) -> bool {
        let Self::Name(name) = self else { return false };
        let number = name.strip_prefix("if").is_some_and(|rest| rest.parse::<u32>().is_ok());
        number || PathBuf::from("/sys/class/net").join(name).exists()
    }

    /// Moves the calling thread (not the process) into the namespace.
    ///
    /// # Errors
    /// There is no such namespace, or entering it is not allowed (needs CAP_SYS_ADMIN over it).
    pub fn enter(&self) -> Result<()> {
        let path = self.path();
        let file = File::open(&path).map_err(|error| {
            if self.is_interface() {
                return Error::bad_input(
                    format!("there is no network namespace '{self}', which is an interface"),
                    format!(
                        "leave '@{self}' out: `ip link` prints the interface below behind the @"
                    ),
                );
            }
            Error::bad_input(
                format!("cannot open network namespace '{self}' ({})", path.display()),
                "list them with `ip netns list`, or give a path or pid:N",
            )
            .caused_by(error)
        })?;
        enter(&file, self)
    }
}

/// Moves the calling thread into the namespace of an open file.
fn enter(file: &File, name: &dyn fmt::Display) -> Result<()> {
    setns(file, CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
        nix::Error::EPERM => Error::failed(
            format!("not allowed to enter network namespace '{name}'"),
            "run as root, or inside the user namespace that owns it (unshare --user \
             --map-root-user --net)",
        ),
        nix::Error::EINVAL => Error::bad_input(
            format!("{name} is not a network namespace"),
            "give a name of `ip netns list`, a path, or pid:N",
        ),
        _ => Error::failed(format!("cannot enter network namespace '{name}'"), "").caused_by(errno),
    })
}

/// The cookie of the calling thread's network namespace (`SO_NETNS_COOKIE`, Linux 5.14), unique in this
/// boot, whereas inode numbers are reused. None where the kernel does not have it.
pub fn cookie() -> Result<Option<u64>> {
    let socket = std::os::unix::net::UnixDatagram::unbound()
        .map_err(|error| Error::failed("cannot open a socket", "").caused_by(error))?;
    Ok(getsockopt(&socket, NetnsCookie).ok())
}

/// asm-generic/socket.h; the libc crate has no name for it on every target.
const SO_NETNS_COOKIE: libc::c_int = 71;

sockopt_impl!(
    /// The cookie of a socket's network namespace.
    NetnsCookie,
    GetOnly,
    libc::SOL_SOCKET,
    SO_NETNS_COOKIE,
    u64
);

/// Runs `work` inside `netns`, on a thread of its own; without `netns` on this one.
///
/// A socket keeps the namespace it was opened in: `work` may return one.
pub fn run_in<T: Send>(
    netns: Option<&Netns>,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let Some(netns) = netns else { return work() };
    crate::threads::run(|| {
        netns.enter()?;
        work()
    })
}

/// Runs `work` inside the namespace of this open file, on a thread of its own.
pub fn run_in_file<T: Send>(
    file: &File,
    name: &str,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    crate::threads::run(|| {
        enter(file, &name)?;
        work()
    })
}

/// An interface and the namespace it is in: `IF` or `IF@NETNS`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IfSpec {
    /// Name of the interface.
    pub interface: String,
    /// Its namespace; none: this process's.
    pub netns: Option<Netns>,
}

impl FromStr for IfSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (interface, netns) = match text.split_once('@') {
            Some((interface, netns)) => (interface, Some(netns.parse()?)),
            None => (text, None),
        };
        // The kernel's own rule (dev_valid_name); IFNAMSIZ counts the closing zero byte.
        let valid = (1..libc::IFNAMSIZ).contains(&interface.len())
            && interface != "."
            && interface != ".."
            && !interface
                .bytes()
                .any(|b| b == b'/' || b == b':' || b == 0 || b.is_ascii_whitespace() || b == 0x0b);
        if !valid {
            return Err(Error::bad_input(
                format!("'{interface}' cannot be the name of an interface"),
                "write IF or IF@NETNS, for example eth0 or eth0@guest1 (`ip link` lists them)",
            ));
        }
        Ok(Self { interface: interface.into(), netns })
    }
}

impl fmt::Display for IfSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.netns {
            Some(netns) => write!(f, "{}@{netns}", self.interface),
            None => f.write_str(&self.interface),
        }
    }
}

impl serde::Serialize for IfSpec {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_may_name_its_namespace_in_three_ways() {
        let netns = |text: &str| text.parse::<IfSpec>().expect("valid").netns;
        assert_eq!(netns("eth0"), None);
        assert_eq!(netns("eth0@guest1"), Some(Netns::Name("guest1".into())));
        assert_eq!(netns("eth0@/run/docker/x"), Some(Netns::Path("/run/docker/x".into())));
        assert_eq!(netns("eth0@pid:42"), Some(Netns::Pid(42)));
    }

    #[test]
    fn what_cannot_be_a_name_is_refused() {
        for text in [
            "",
            "@x",
            "a b",
            "a/b",
            "..",
            "eth0@",
            "eth0@pid:",
            "eth0@pid:0",
            "eth0@..",
            "sixteen-letters-",
        ] {
            assert_eq!(
                text.parse::<IfSpec>().map_err(|error| error.kind),
                Err(pw_error::Kind::BadInput),
                "{text:?}"
            );
        }
    }

    #[test]
    fn every_spec_that_is_accepted_reads_back_as_itself() {
        pw_cases::check!().with_type::<String>().for_each(|text| {
            if let Ok(spec) = text.parse::<IfSpec>() {
                assert_eq!(spec.to_string().parse::<IfSpec>().ok(), Some(spec));
            }
        });
    }

    #[test]
    fn a_cookie_tells_namespaces_apart_whose_inodes_are_the_same() {
        let inode_and_cookie = || {
            let thread = std::thread::spawn(|| {
                nix::sched::unshare(CloneFlags::CLONE_NEWNET).ok()?;
                let file = std::fs::metadata("/proc/thread-self/ns/net").ok()?;
                Some((std::os::unix::fs::MetadataExt::ino(&file), cookie().ok()??))
            });
            thread.join().expect("no panic")
        };
        // Six namespaces, each gone before the next is made; without privileges none can be made.
        let ids: Vec<(u64, u64)> = (0..6).filter_map(|_| inode_and_cookie()).collect();
        let cookies: std::collections::BTreeSet<u64> =
            ids.iter().map(|(_, cookie)| *cookie).collect();
        assert_eq!(cookies.len(), ids.len(), "{ids:?}");
        // Not every kernel gives an inode again at once.
        assert!(ids.iter().all(|(inode, cookie)| inode != cookie), "{ids:?}");
        assert_eq!(cookie().expect("a socket"), cookie().expect("a socket"));
    }

    /// Set for the copy of this program that may begin no thread.
    const NO_THREADS: &str = "PW_TEST_NO_THREADS";

    #[test]
    fn without_a_thread_entering_a_namespace_fails_and_does_not_panic() {
        if std::env::var_os(NO_THREADS).is_none() {
            let name =
                "netns::tests::without_a_thread_entering_a_namespace_fails_and_does_not_panic";
            let mut copy = std::process::Command::new(std::env::current_exe().expect("a program"));
            let done = copy.args(["--exact", name]).env(NO_THREADS, "1").output().expect("runs");
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
            return;
        }
        let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        let pages: u64 = pages.split(' ').next().and_then(|text| text.parse().ok()).expect("pages");
        // No room for another stack.
        let most = pages * 4096 + (256 << 10);
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the argument lives during the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
        let error =
            run_in(Some(&Netns::Pid(std::process::id())), || Ok(())).expect_err("no thread");
        assert!(error.what.contains("cannot start a thread"), "{}", error.what);
    }

    #[test]
    fn an_interface_that_is_taken_for_a_namespace_is_said_to_be_one() {
        for text in ["eth0.10@lo", "veth0@if7"] {
            let spec: IfSpec = text.parse().expect("valid");
            let error = run_in(spec.netns.as_ref(), || Ok(())).expect_err("no namespace");
            assert!(error.what.contains("which is an interface"), "{}", error.what);
            assert!(error.remedy.contains("leave '@"), "{}", error.remedy);
        }
    }

    #[test]
    fn a_namespace_that_is_not_there_is_named_in_the_error() {
        let netns = Netns::Name("pw-no-such".into());
        let error = run_in(Some(&netns), || Ok(())).expect_err("there is none");
        assert!(error.what.contains("pw-no-such"), "{}", error.what);
    }
}
