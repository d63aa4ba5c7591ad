//! Runs commands and copies files in a guest for a client at the host's end of a virtio-serial
//! port.
//!
//! Speaks a part of the QEMU guest agent's protocol, so that the same client (libvirt) reaches this
//! agent in our tiny guests and QEMU's own in any other image.

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

/// How often the port is read while the host's end is closed, which reads as the end of a file.
const CLOSED_POLL: Duration = Duration::from_millis(100);

/// Longest wait for requests, so that a signal is seen [ms].
const WAIT_MS: u16 = 1000;

/// Runs the command.
///
/// # Errors
/// There is no such port, or it cannot be opened.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    let path = device(&args.port, Path::new(PORTS))?;
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
        let mut fds = [PollFd::new(port.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(WAIT_MS)) {
            Ok(0) | Err(nix::Error::EINTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(unreadable(path, errno)),
        }
        match port.read(&mut buffer) {
            Ok(0) => std::thread::sleep(CLOSED_POLL),
            Ok(count) => {
                for request in requests.feed(&buffer[..count]) {
                    let answer = service.answer(&request);
                    // A client that is gone is no reason to end: the next one syncs.
                    if port.write_all(&answer).and_then(|()| port.flush()).is_err() {
                        std::thread::sleep(CLOSED_POLL);
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(path, error)),
        }
    }
    Ok(())
}

fn unreadable(path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::failed(format!("cannot read {}", path.display()), "").caused_by(error)
}

/// The character device of a port, which `port` names or, with a slash, is.
fn device(port: &str, ports: &Path) -> Result<PathBuf> {
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
    let names = if names.is_empty() { "no port at all".into() } else { names.join(", ") };
    Err(Error::failed(
        format!("there is no virtio-serial port {port} (there is {names})"),
        "give the virtual machine a channel of that name, or name another with --port",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_found_by_its_name() {
        let ports = tempfile::tempdir().expect("a directory");
        for (port, name) in [("vport1p1", "other"), ("vport1p2", "wanted")] {
            fs::create_dir(ports.path().join(port)).expect("a directory");
            fs::write(ports.path().join(port).join("name"), format!("{name}\n")).expect("a file");
        }
        let path = device("wanted", ports.path()).expect("a port");
        assert_eq!(path, Path::new("/dev/vport1p2"));
        let error = device("missing", ports.path()).expect_err("no port");
        assert!(error.what.contains("wanted"), "{error}");
        assert!(device("missing", Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn a_path_is_taken_as_it_is() {
        assert_eq!(device("/dev/ttyS1", Path::new("")).expect("a path"), Path::new("/dev/ttyS1"));
    }
}
