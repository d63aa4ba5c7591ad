//! The receive ring of a run's requests and their answers (TPACKET_V2), frame by frame. Knows the
//! probes only by the filter.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use nix::sys::mman::MapFlags;

use super::record::MISSING;
use super::watch::Statuses;
use crate::capture::{self, attach_filter, bind_packet_socket};
use crate::clock;
use crate::filter::{self, Traffic};
use crate::mapping::Mapping;
use crate::timestamping::{self, get_option, set_option};

/// Length of a slot: an answer needs 66 bytes of kernel headers and address, 106 of frame.
const SLOT_BYTES: usize = 256;
/// Bounds of the number of slots. Between them the ring holds a quarter of a second and no more: in
/// a ring that fits into a cache the kernel has no cache miss a packet.
const MOST_SLOTS: usize = 32_768;
const FEWEST_SLOTS: usize = 256;
const BLOCK_BYTES: usize = 1 << 16;
/// Socket option of linux/if_packet.h, since Linux 4.20.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Slots of a ring for requests and answers at `peak_pps`.
fn slots(peak_pps: f64) -> usize {
    let packets = (peak_pps * 2.0 * 0.25) as usize;
    packets.next_power_of_two().clamp(FEWEST_SLOTS, MOST_SLOTS)
}

/// A receive ring (TPACKET_V2).
#[derive(Debug)]
pub struct AnswerRing {
    socket: OwnedFd,
    memory: Mapping,
    /// A power of two.
    slots: usize,
    /// Number of slots read so far; modulo `slots` the next one.
    pub next: u64,
}

impl AnswerRing {
    /// Opens a ring on interface number `interface` for `traffic` at `peak_pps`.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open(interface: u32, ipv6: bool, traffic: Traffic, peak_pps: f64) -> io::Result<Self> {
        let slots = slots(peak_pps);
        let socket = capture::packet_socket().map_err(io::Error::other)?;
        let fd = socket.as_fd();
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        set_option(fd, libc::SOL_PACKET, libc::PACKET_VERSION, version)?;
        attach_filter(&socket, &filter::in_frames(ipv6, traffic))?;
        // Makes the kernel stamp packets when the driver hands them over, not at this socket.
        timestamping::enable(fd, false)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: (slots * SLOT_BYTES / BLOCK_BYTES) as u32,
            tp_frame_size: SLOT_BYTES as u32,
            tp_frame_nr: slots as u32,
        };
        set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, request)?;
        let memory = Mapping::of(fd, slots * SLOT_BYTES, MapFlags::MAP_POPULATE)?;
        let ring = Self { socket, memory, slots, next: 0 };
        // Sockets for all protocols get outgoing packets, and incoming ones before the IP stack.
        bind_packet_socket(&ring.socket, interface, libc::ETH_P_ALL as u16)?;
        Ok(ring)
    }

    /// Header of the slot that comes `ahead` slots after the next one.
    fn header(&self, ahead: u64) -> *mut libc::tpacket2_hdr {
        let slot = (self.next + ahead) as usize % self.slots;
        // SAFETY: `slot` is below `slots`, so that it lies within the mapping; slots are aligned to 16
        // bytes and more.
        unsafe { self.memory.start().as_ptr().add(slot * SLOT_BYTES).cast() }
    }

    fn status(&self, ahead: u64) -> &AtomicU32 {
        // SAFETY: the status is an aligned 32-bit word in the mapping, shared with the kernel,
        // which both sides access whole.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.header(ahead)).tp_status) }
    }

    /// Addresses of the slots' status words, for another thread to watch.
    pub fn statuses(&self) -> Statuses {
        let first = self.memory.start().as_ptr().cast::<libc::tpacket2_hdr>();
        Statuses {
            // SAFETY: slot 0 lies within the mapping; the address alone is taken.
            first: unsafe { &raw const (*first).tp_status },
            stride_bytes: SLOT_BYTES,
            slots: self.slots,
        }
    }

    /// Whether the slot that comes `ahead` slots after the next one is filled.
    #[inline]
    pub fn is_filled(&self, ahead: u64) -> bool {
        self.status(ahead).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// The packet in the next slot, if the kernel has filled it: receive stamp and frame.
    #[inline]
    pub fn filled(&self) -> Option<(i64, &[u8])> {
        if !self.is_filled(0) {
            return None;
        }
        // SAFETY: the slot is the user's until it is released; the kernel keeps `tp_mac` and
        // `tp_snaplen` within the slot.
        let (header, frame) = unsafe {
            let header = self.header(0).read();
            let mac = usize::from(header.tp_mac).min(SLOT_BYTES);
            let length = (header.tp_snaplen as usize).min(SLOT_BYTES - mac);
            let start = self.header(0).cast::<u8>().add(mac);
            (header, std::slice::from_raw_parts(start, length))
        };
        let stamp = i64::from(header.tp_sec) * clock::NANOS_PER_SECOND + i64::from(header.tp_nsec);
        let software = header.tp_status & libc::TP_STATUS_TS_SOFTWARE != 0;
        Some((if software { stamp } else { MISSING }, frame))
    }

    /// Gives the slot back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        fence(Ordering::Release);
        self.status(0).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next += 1;
    }

    /// Leaves out packets that this host sends.
    pub fn ignore_outgoing(&self) -> io::Result<()> {
        set_option(self.socket(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    }

    /// Its socket, which is readable when a slot is filled.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Packets that found the ring full since the last call.
    pub fn drops(&self) -> u64 {
        let stats = get_option(&self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS);
        stats.map_or(0, |stats: libc::tpacket_stats| u64::from(stats.tp_drops))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_holds_a_quarter_of_a_second_within_bounds() {
        assert_eq!(slots(1.0), FEWEST_SLOTS);
        assert_eq!(slots(1_000.0), 512);
        assert_eq!(slots(1e9), MOST_SLOTS);
        assert_eq!(FEWEST_SLOTS * SLOT_BYTES % BLOCK_BYTES, 0);
    }
}
