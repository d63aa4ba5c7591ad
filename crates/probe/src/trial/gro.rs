//! Generic receive offload of an interface, on for a trial with the user's consent: a veth takes
//! XDP frames only while its peer has NAPI, which an XDP program or GRO gives it.
//!
//! A process of its own switches it off again when the pipe from this one closes, however this one
//! ends. It keeps a locked note of the interface, by which `planewise clean` finds what it left
//! behind where it was killed itself.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::error::{Error, Result};
use crate::netlink::Netlink;
use crate::netns::{IfSpec, run_in};

/// Where keepers note what they switched on; what is not locked there is a dead keeper's.
const NOTES: &str = "/run/planewise/gro";

/// Of linux/sockios.h and linux/ethtool.h.
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;

/// `struct ethtool_value` of the kernel.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Switches GRO off when its standard input ends.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Interface that GRO was switched on at
    interface: IfSpec,
}

/// Runs the command.
///
/// # Errors
/// GRO cannot be switched on.
pub fn run(args: &Args) -> Result<()> {
    check(&args.interface)?;
    let note = note(&args.interface);
    set(&args.interface, true)?;
    let mut pipe = std::io::stdin().lock();
    // The pipe says nothing; that it closes is what counts. The interface may be gone by then.
    let ready = std::io::stdout().write_all(b"\n").and_then(|()| std::io::stdout().flush());
    let _ = ready.and_then(|()| pipe.read_to_end(&mut Vec::new()));
    let _ = set(&args.interface, false);
    if let Some((path, _locked)) = note {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// Notes the interface in a file that is locked as long as this process lives. None where there is no
/// room for it, as in a guest that nobody cleans up.
fn note(at: &IfSpec) -> Option<(String, Flock<File>)> {
    fs::create_dir_all(NOTES).ok()?;
    let path = format!("{NOTES}/{}", std::process::id());
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).ok()?;
    let mut locked = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
    locked.write_all(at.to_string().as_bytes()).ok()?;
    Some((path, locked))
}

/// That there is such an interface: else bad input, and no other failure is.
fn check(at: &IfSpec) -> Result<()> {
    run_in(at.netns.as_ref(), || Netlink::open()?.link_at(&at.interface, at).map(|_| ()))
}

/// GRO on, until this value is dropped or the process ends.
#[derive(Debug)]
pub struct Gro {
    keeper: Child,
}

impl Gro {
    /// Switches GRO on at an interface; none where it is on already.
    ///
    /// # Errors
    /// There is no such interface, or the user may not change it.
    pub fn on(at: &IfSpec) -> Result<Option<Self>> {
        check(at)?;
        if get(at)? {
            return Ok(None);
        }
        let failed = |why: String| {
            Error::failed(
                format!("cannot switch GRO on at {at}: {why}"),
                format!("run as root, or do it yourself: ethtool -K {} gro on", at.interface),
            )
        };
        let mut keeper = Command::new("/proc/self/exe")
            .args(["keep-gro", &at.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0) // a Ctrl-C is for this process: the keeper ends after it
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let mut ready = [0];
        let answered = keeper.stdout.as_mut().map(|pipe| pipe.read_exact(&mut ready));
        if !matches!(answered, Some(Ok(()))) {
            let mut said = String::new();
            let _ = keeper.stderr.as_mut().map(|pipe| pipe.read_to_string(&mut said));
            let _ = keeper.wait();
            return Err(failed(said.lines().next().unwrap_or("it said nothing").to_owned()));
        }
        Ok(Some(Self { keeper }))
    }
}

impl Drop for Gro {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn get(at: &IfSpec) -> Result<bool> {
    ethtool(at, ETHTOOL_GGRO, 0).map(|value| value != 0)
}

fn set(at: &IfSpec, on: bool) -> Result<()> {
    ethtool(at, ETHTOOL_SGRO, u32::from(on)).map(|_| ())
}

/// One ethtool request about an interface; the value that the kernel leaves.
fn ethtool(at: &IfSpec, command: u32, data: u32) -> Result<u32> {
    run_in(at.netns.as_ref(), || {
        let failed = |error: std::io::Error| {
            Error::failed(format!("cannot ask ethtool about {at}"), "").caused_by(error)
        };
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None)
            .map_err(|errno| failed(errno.into()))?;
        let mut value = EthtoolValue { command, data };
        // SAFETY: an all-zero ifreq is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // The name fits: IfSpec refuses longer ones.
        for (to, from) in request.ifr_name.iter_mut().zip(at.interface.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // SAFETY: the request and the value that it points to live through the call; the kernel
        // reads and writes two words there for these commands.
        let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
        if done != 0 {
            return Err(failed(std::io::Error::last_os_error()));
        }
        Ok(value.data)
    })
}
