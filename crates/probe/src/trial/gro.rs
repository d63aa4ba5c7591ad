//! Generic receive offload of an interface, on for a trial with the user's consent: a veth takes
//! XDP frames only while its peer has NAPI, which an XDP program or GRO gives it.
//!
//! A keeper process switches GRO off when the pipe from this process closes, however this one ends. It
//! notes the interface in a locked file, by which `planewise clean` finds the interfaces of keepers
//! that were killed.

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

/// Directory of the keepers' notes; a note without a lock is a dead keeper's.
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
    // Waits for the pipe to close. The interface may be gone by then.
    let ready = std::io::stdout().write_all(b"\n").and_then(|()| std::io::stdout().flush());
    let _ = ready.and_then(|()| pipe.read_to_end(&mut Vec::new()));
    let _ = set(&args.interface, false);
    if let Some((path, _locked)) = note {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// Notes the interface in a file that is locked while this process lives. None where the directory
/// cannot be written, as in a guest that nobody cleans up.
fn note(at: &IfSpec) -> Option<(String, Flock<File>)> {
    fs::create_dir_all(NOTES).ok()?;
    let path = format!("{NOTES}/{}", std::process::id());
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).ok()?;
    let mut locked = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
    locked.write_all(at.to_string().as_bytes()).ok()?;
    Some((path, locked))
}

/// Checks that there is such an interface; only its absence is bad input.
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
            .process_group(0) // no Ctrl-C for the keeper, which ends after this process
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let mut ready = [0];
        let is_ready = keeper.stdout.as_mut().map(|pipe| pipe.read_exact(&mut ready));
        if !matches!(is_ready, Some(Ok(()))) {
            let mut message = String::new();
            let _ = keeper.stderr.as_mut().map(|pipe| pipe.read_to_string(&mut message));
            let _ = keeper.wait();
            return Err(failed(message.lines().next().unwrap_or("no reason given").to_owned()));
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

/// Performs an ethtool request for an interface; returns the value that the kernel wrote.
fn ethtool(at: &IfSpec, command: u32, data: u32) -> Result<u32> {
    run_in(at.netns.as_ref(), || {
        let failed = |error: std::io::Error| {
            Error::failed(format!("the ethtool request for {at} failed"), "").caused_by(error)
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
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
        if result != 0 {
            return Err(failed(std::io::Error::last_os_error()));
        }
        Ok(value.data)
    })
}
