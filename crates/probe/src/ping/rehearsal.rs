//! Keeps the kernel's transmit path in the CPU's caches: sends frames on a private veth pair, in a
//! namespace that ends with the value, shortly before each packet.
//!
//! After a millisecond of rest the path is gone from the caches, which delays a packet before the
//! kernel stamps it. The frames take the same path and never reach an interface of the user.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{MsgFlags, send};

use crate::capture::{bind_packet_socket, packet_socket};
use crate::netlink::Netlink;

const NAMES: (&str, &str) = ("pw-reh0", "pw-reh1");
const MTU_BYTES: u32 = 9000;

/// The private pair, and a frame for it.
#[derive(Debug)]
pub struct Rehearsal {
    sender: OwnedFd,
    /// Listens as the ring does, so that the kernel stamps and copies here, too.
    _listener: OwnedFd,
    frame: Vec<u8>,
}

impl Rehearsal {
    /// Opens a pair for frames like `frame`; none where namespaces may not be made.
    pub fn open(frame: &[u8]) -> Option<Self> {
        let mut frame = frame.to_vec();
        let sockets = std::thread::scope(|scope| {
            // A namespace is a thread's property: this thread ends, and the sockets keep the namespace.
            scope
                .spawn(|| -> Option<(OwnedFd, OwnedFd, [u8; 6])> {
                    unshare(CloneFlags::CLONE_NEWNET).ok()?;
                    let mut netlink = Netlink::open().ok()?;
                    netlink.add_veth(NAMES.0, NAMES.1, MTU_BYTES).ok()?;
                    let mut ends = Vec::new();
                    for name in [NAMES.0, NAMES.1] {
                        let link = netlink.link(name).ok()??;
                        netlink.set_up(link.index).ok()?;
                        ends.push(link);
                    }
                    let sender = socket(ends[0].index, 0)?;
                    let listener = socket(ends[0].index, libc::ETH_P_ALL as u16)?;
                    Some((sender, listener, ends[1].mac?))
                })
                .join()
        });
        let (sender, listener, mac) = sockets.ok()??;
        frame.get_mut(..6)?.copy_from_slice(&mac);
        Some(Self { sender, _listener: listener, frame })
    }

    /// Sends the frame.
    pub fn send(&self) {
        let _ = send(self.sender.as_raw_fd(), &self.frame, MsgFlags::MSG_DONTWAIT);
    }
}

fn socket(interface: u32, protocol: u16) -> Option<OwnedFd> {
    let socket = packet_socket().ok()?;
    bind_packet_socket(&socket, interface, protocol).ok()?;
    Some(socket)
}
