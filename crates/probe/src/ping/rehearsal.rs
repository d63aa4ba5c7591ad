//! A stage to rehearse on: a veth pair in a namespace of its own, which ends with this value.
//!
//! A packet that is sent after a millisecond of rest finds its path through the kernel gone from the
//! CPU's caches, and pays for that before the kernel stamps it. Frames that are sent here shortly
//! before it go the same way and end at the private pair: nothing of them is on any interface of
//! the user's.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{MsgFlags, send};

use crate::capture::{bind_packet_socket, packet_socket};
use crate::netlink::Netlink;

const NAMES: (&str, &str) = ("pw-reh0", "pw-reh1");
const MTU_BYTES: u32 = 9000;

/// The private pair, and a frame that fits it.
#[derive(Debug)]
pub struct Stage {
    sender: OwnedFd,
    /// Listens as the ring does, so that the kernel stamps and copies here, too.
    _listener: OwnedFd,
    frame: Vec<u8>,
}

impl Stage {
    /// A stage for frames like `frame`; none where namespaces may not be made.
    pub fn open(frame: &[u8]) -> Option<Self> {
        let mut frame = frame.to_vec();
        let opened = std::thread::scope(|scope| {
            // Entering a namespace is a property of a thread: this one ends afterwards, and the
            // sockets keep the namespace.
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
        let (sender, listener, mac) = opened.ok()??;
        frame.get_mut(..6)?.copy_from_slice(&mac);
        Some(Self { sender, _listener: listener, frame })
    }

    /// Sends the frame the whole way.
    pub fn send(&self) {
        let _ = send(self.sender.as_raw_fd(), &self.frame, MsgFlags::MSG_DONTWAIT);
    }
}

fn socket(interface: u32, protocol: u16) -> Option<OwnedFd> {
    let socket = packet_socket().ok()?;
    bind_packet_socket(&socket, interface, protocol).ok()?;
    Some(socket)
}
