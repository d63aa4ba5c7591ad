//! Runs commands and copies files in a guest for whoever sits at the other end of a virtio-serial
//! port. Knows no network and nothing of what the commands do.
//!
//! It speaks a part of the QEMU guest agent's protocol, so that the same client (libvirt) reaches
//! this agent in a tiny guest of ours and QEMU's own in anyone's image.

mod protocol;
mod service;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::{Error, Result};
use crate::stop::{self, Lifetime};
use protocol::Requests;
use service::Service;

/// Serves the QEMU guest agent's protocol on a virtio-serial port: exec, file and ping commands.
///
/// For guests that have nothing but pw-probe. Prints `ready` on stderr once the port is open.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe agent\n  \
    pw-probe agent --port /dev/ttyS1")]
pub struct Args {
    /// Name of a virtio-serial port, or the path of a character device
    #[arg(long, value_name = "NAME", default_value = "org.qemu.guest_agent.0")]
    pub port: String,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

/// Where Linux lists virtio-serial ports by device, each with its name.
const PORTS: &str = "/sys/class/virtio-ports";

/// While nobody has the host's end open, the port reads as ended: it is asked this often.
const NOBODY_THERE: Duration = Duration::from_millis(100);

/// How long one wait for requests lasts at most, so that a signal is seen [ms].
const WAIT_MS: u16 = 1000;

/// Runs the command.
///
/// # Errors
/// There is no such port, or it cannot be opened.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    let path = find(&args.port, Path::new(PORTS))?;
    let mut port = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::PermissionDenied => "run it as root",
            ErrorKind::ResourceBusy => "another agent has it open: end that first",
            _ => "",
        };
        Error::failed(format!("cannot open {}", path.display()), remedy).caused_by(error)
    })?;
    eprintln!("ready");
    serve(&mut port, &path)
}

fn serve(port: &mut File, path: &Path) -> Result<()> {
    let mut requests = Requests::default();
    let mut service = Service::default();
    let mut buffer = vec![0; 64 * 1024];
    while !stop::requested() {
        let mut wait = [PollFd::new(port.as_fd(), PollFlags::POLLIN)];
        match poll(&mut wait, PollTimeout::from(WAIT_MS)) {
            Ok(0) | Err(nix::Error::EINTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(lost(path, errno)),
        }
        match port.read(&mut buffer) {
            Ok(0) => std::thread::sleep(NOBODY_THERE),
            Ok(count) => {
                for request in requests.feed(&buffer[..count]) {
                    let answer = service.answer(&request);
                    // An answer that nobody takes is no reason to end: the next client syncs.
                    if port.write_all(&answer).and_then(|()| port.flush()).is_err() {
                        std::thread::sleep(NOBODY_THERE);
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(lost(path, error)),
        }
    }
    Ok(())
}

fn lost(path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::failed(format!("cannot read {}", path.display()), "").caused_by(error)
}

/// The character device of a port; `port` with a slash is one already.
fn find(port: &str, ports: &Path) -> Result<PathBuf> {
    if port.contains('/') {
        return Ok(port.into());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(ports).into_iter().flatten().flatten() {
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim_end() == port {
            return Ok(Path::new("/dev").join(entry.file_name()));
        }
        names.push(name.trim_end().to_owned());
    }
    let there = if names.is_empty() { "no port at all".into() } else { names.join(", ") };
    Err(Error::failed(
        format!("there is no virtio-serial port {port} (there is {there})"),
        "give the virtual machine a channel of that name, or name another with --port",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_found_by_its_name() {
        let ports = tempfile::tempdir().expect("a directory");
        for (device, name) in [("vport1p1", "other"), ("vport1p2", "wanted")] {
            fs::create_dir(ports.path().join(device)).expect("a directory");
            fs::write(ports.path().join(device).join("name"), format!("{name}\n")).expect("a file");
        }
        let found = find("wanted", ports.path()).expect("a port");
        assert_eq!(found, Path::new("/dev/vport1p2"));
        let error = find("missing", ports.path()).expect_err("no port");
        assert!(error.what.contains("wanted"), "{error}");
        assert!(find("missing", Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn a_path_is_taken_as_it_is() {
        assert_eq!(find("/dev/ttyS1", Path::new("")).expect("a path"), Path::new("/dev/ttyS1"));
    }
}
