//! Probes as whole frames: sent by a packet socket, answers read from a ring in memory shared with
//! the kernel. The shortest way between user and wire: user stamps lie closest to the kernel's.
//!
//! The same ring captures the probes as they leave, which gives their kernel transmit stamps: taken
//! as by any capture, when the stack hands the frame to the driver.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::net::if_::if_nametoindex;
use nix::sys::socket::{MsgFlags, send};

use super::record::Arrival;
use super::route::{Departure, ProbeRoute, check};
use super::session::Transport;
use super::watch::Watcher;
use crate::capture::{Ring, bind_packet_socket, packet_socket};
use crate::clock;
use crate::error::{Error, Result};
use crate::filter::{self, SNAP_BYTES};
use crate::sockets;

/// Bounds of the ring [bytes]. Between them it holds a quarter of a second and no more: in a ring that
/// fits into a cache the kernel has no cache miss a packet.
const RING_BYTES: (usize, usize) = (1 << 16, 8 << 20);

/// A packet socket that sends and a ring that receives, on one Ethernet interface.
#[derive(Debug)]
pub struct PacketTransport {
    /// Where probes leave.
    pub departure: Departure,
    route: ProbeRoute,
    sender: OwnedFd,
    ring: Ring,
    watcher: Option<Watcher>,
    frame: Vec<u8>,
    /// Transmit stamps that were read from the ring and not yet fetched.
    departed: VecDeque<(u64, i64)>,
}

impl PacketTransport {
    /// Takes the headers of `departure`, for up to `peak_pps` packets/s.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open(departure: Departure, route: ProbeRoute, peak_pps: f64) -> Result<Self> {
        let sender = packet_socket()?;
        bind_packet_socket(&sender, departure.index, 0).map_err(|error| {
            Error::failed(format!("cannot send on {}", departure.interface), "").caused_by(error)
        })?;
        let filter = filter::program(departure.probe.traffic(), SNAP_BYTES);
        // A quarter of a second of requests and answers, in slots of 256 bytes.
        let bytes = (peak_pps * 2.0 * 0.25 * 256.0) as usize;
        let bytes = bytes.clamp(RING_BYTES.0, RING_BYTES.1);
        let ring = Ring::on(departure.index, &departure.interface, &filter, bytes, false)?;
        let frame = departure.template.bytes().to_vec();
        let departed = VecDeque::with_capacity(1024);
        Ok(Self { departure, route, sender, ring, watcher: None, frame, departed })
    }

    /// Starts the thread that notes when answers come.
    pub fn watch(&mut self) {
        self.watcher = Watcher::start(self.ring.slots());
    }
}

impl Transport for PacketTransport {
    #[inline]
    fn transmit(&mut self, sequence: u64) -> io::Result<i64> {
        let user_tx_ns = clock::realtime_ns();
        self.departure.template.stamp(&mut self.frame, sequence, user_tx_ns);
        send(self.sender.as_raw_fd(), &self.frame, MsgFlags::MSG_DONTWAIT)?;
        Ok(user_tx_ns)
    }

    #[inline]
    fn receive(&mut self) -> io::Result<Option<Arrival>> {
        while let Some(captured) = self.ring.filled() {
            let (kernel_ns, now_ns) = (captured.stamp_ns, clock::realtime_ns());
            let user_rx_ns = match &self.watcher {
                Some(watcher) => watcher.take(self.ring.read(), kernel_ns, now_ns),
                None => now_ns,
            };
            let seen =
                self.departure.probe.find(captured.network, self.departure.target, user_rx_ns);
            self.ring.release();
            match seen {
                Some(seen) if seen.answer => {
                    return Ok(Some(Arrival {
                        sequence: seen.sequence,
                        kernel_rx_ns: kernel_ns,
                        user_rx_ns,
                        residence_ns: seen.residence_ns,
                    }));
                }
                Some(seen) => self.departed.push_back((seen.sequence, kernel_ns)),
                None => {}
            }
        }
        Ok(None)
    }

    fn departed(&mut self) -> Option<(u64, i64)> {
        self.departed.pop_front()
    }

    fn attend(&mut self, soon: bool) {
        if let Some(watcher) = &self.watcher {
            watcher.arm(soon);
        }
    }

    fn wait(&mut self, timeout_ns: i64) -> io::Result<()> {
        sockets::wait_readable(self.ring.socket(), timeout_ns);
        self.ring.check()
    }

    fn ended(&mut self) -> Option<Error> {
        let Departure { interface, index, .. } = &self.departure;
        if if_nametoindex(interface.as_str()).is_ok_and(|found| found == *index) {
            return None;
        }
        Some(Error::failed(
            format!("interface {} vanished", self.departure.interface),
            "what was measured until then is printed; repeat the run when it is back",
        ))
    }

    fn refused(&mut self) -> Result<()> {
        check(&self.departure.socket, &self.route)
    }

    fn dropped(&mut self) -> u64 {
        self.ring.stats().dropped
    }
}
