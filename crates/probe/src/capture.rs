//! Captures packets that pass an interface, with the kernel's nanosecond stamps: a ring in memory
//! shared with the kernel (TPACKET_V2), and a filter in the kernel that bounds the bytes copied.
//!
//! Readers look into the ring now and then, so that no packet wakes a thread on the measured path.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socket, sockopt};

use crate::clock;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::netlink::{Netlink, must_be_up};
use crate::netns::{IfSpec, run_in};
use crate::sockets::{self, get_option, set_option};
use crate::stop;

/// Length of a slot: the kernel's header and address, then what the filter keeps of a frame.
const SLOT_BYTES: usize = 256;
const BLOCK_BYTES: usize = 1 << 16;
/// How long [`Ring::poll`] sleeps between two looks [ns].
const NAP_NS: i64 = 5_000_000;

/// One captured packet.
#[derive(Debug, Clone, Copy)]
pub struct Captured<'a> {
    /// When the driver handed it to the kernel, or the kernel to the driver [CLOCK_REALTIME, ns].
    pub stamp_ns: i64,
    /// The packet from its network header (IP) on, as far as the filter kept it.
    pub network: &'a [u8],
}

/// The ring's own counters since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct RingStats {
    /// Packets that passed the filter, the dropped ones included.
    pub packets: u64,
    /// Packets that found the ring full.
    pub dropped: u64,
}

/// The slots of a ring, which kernel and process hand to one another.
#[derive(Debug, Clone)]
pub struct Slots {
    memory: Arc<MmapRaw>,
    /// A power of two.
    count: usize,
}

impl Slots {
    /// Number of slots.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the kernel has filled a slot.
    #[inline]
    pub fn is_filled(&self, slot: usize) -> bool {
        self.status(slot).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    fn at(&self, slot: usize) -> *mut u8 {
        let offset = slot % self.count * SLOT_BYTES;
        // SAFETY: the mapping has `count` slots.
        unsafe { self.memory.as_mut_ptr().add(offset) }
    }

    fn status(&self, slot: usize) -> &AtomicU32 {
        let header = self.at(slot).cast::<libc::tpacket2_hdr>();
        // SAFETY: the status is an aligned 32-bit word in the mapping, which kernel and process
        // access whole.
        unsafe { AtomicU32::from_ptr(&raw mut (*header).tp_status) }
    }
}

/// An open ring.
#[derive(Debug)]
pub struct Ring {
    socket: OwnedFd,
    slots: Slots,
    /// Number of slots that were read.
    read: usize,
    stats: RingStats,
    label: String,
}

/// The remedy for a user who may not capture.
pub const NEEDS_RAW: &str = "run as root, or with CAP_NET_RAW, or inside a user namespace of your \
                             own (unshare --user --map-root-user --net)";

/// Attaches a filter in the kernel to a socket.
pub fn attach_filter(socket: impl AsFd, filter: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        // The kernel only reads the program, though C declares the field mutable.
        filter: filter.as_ptr().cast_mut(),
    };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

/// Opens a packet socket, bound to nothing yet.
pub fn packet_socket() -> Result<OwnedFd> {
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None);
    socket.map_err(|errno| match errno {
        Errno::EPERM | Errno::EACCES => {
            Error::failed("not allowed to open a packet socket (CAP_NET_RAW is missing)", NEEDS_RAW)
        }
        errno => Error::failed("cannot open a packet socket", "").caused_by(io::Error::from(errno)),
    })
}

/// Binds a packet socket to one interface and protocol (host byte order; 0 receives nothing).
pub fn bind_packet_socket(socket: &OwnedFd, index: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: an all-zero sockaddr_ll is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index as i32;
    // SAFETY: `address` is a valid sockaddr_ll of the length given.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            std::ptr::from_ref(&address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Ring {
    /// Opens a ring of `mib` MiB on `at`. Every packet that passes `filter` from now on is captured;
    /// with `incoming_only` without those that this machine sends.
    ///
    /// # Errors
    /// No such interface or namespace, it is down, no CAP_NET_RAW, or no memory for the ring.
    pub fn open(at: &IfSpec, filter: &Filter, mib: u32, incoming_only: bool) -> Result<Self> {
        run_in(at.netns.as_ref(), || {
            let link = Netlink::open()?.link_at(&at.interface, at)?;
            let ring = Self::on(link.index, at, filter, (mib as usize) << 20, incoming_only)?;
            must_be_up(&link, at)?;
            Ok(ring)
        })
    }

    /// As [`open`](Self::open), on interface number `index` of the calling thread's namespace.
    pub fn on(
        index: u32,
        label: &dyn std::fmt::Display,
        filter: &Filter,
        bytes: usize,
        incoming_only: bool,
    ) -> Result<Self> {
        let failed = |what: &str, error: io::Error| {
            Error::failed(format!("cannot {what} on {label}"), "").caused_by(error)
        };
        let count = (bytes / SLOT_BYTES).next_power_of_two().max(BLOCK_BYTES / SLOT_BYTES);
        let bytes = count * SLOT_BYTES;
        let socket = packet_socket()?;
        let set = |name, value: libc::c_int| set_option(&socket, libc::SOL_PACKET, name, value);
        attach_filter(&socket, filter).map_err(|error| failed("filter packets", error))?;
        set(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as libc::c_int)
            // Makes the kernel stamp packets when the driver hands them over, not at this socket.
            .and_then(|()| sockets::stamp_receipts(socket.as_fd()))
            .and_then(|()| set(libc::PACKET_IGNORE_OUTGOING, incoming_only.into()))
            .map_err(|error| failed("set up a capture ring", error))?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: (bytes / BLOCK_BYTES) as u32,
            tp_frame_size: SLOT_BYTES as u32,
            tp_frame_nr: count as u32,
        };
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, request).map_err(|error| {
            let what = format!("no memory for a capture ring of {} KiB on {label}", bytes >> 10);
            Error::failed(what, "give a smaller --ring-mib").caused_by(error)
        })?;
        let memory = MmapOptions::new()
            .len(bytes)
            .populate()
            .map_raw(&socket)
            .map_err(|error| failed("map the capture ring", error))?;
        // Sockets for all protocols get outgoing packets, and incoming ones before the IP stack.
        bind_packet_socket(&socket, index, libc::ETH_P_ALL as u16)
            .map_err(|error| failed("capture", error))?;
        let (stats, label) = (RingStats::default(), label.to_string());
        let slots = Slots { memory: Arc::new(memory), count };
        Ok(Self { socket, slots, read: 0, stats, label })
    }

    /// The packet in the next slot, if the kernel has filled it. Stays until it is released.
    #[inline]
    pub fn filled(&self) -> Option<Captured<'_>> {
        if !self.slots.is_filled(self.read) {
            return None;
        }
        let slot = self.slots.at(self.read);
        // SAFETY: a filled slot is the user's until it is released, and SLOT_BYTES long.
        let (header, bytes) = unsafe {
            let header = slot.cast::<libc::tpacket2_hdr>().read();
            (header, std::slice::from_raw_parts(slot, SLOT_BYTES))
        };
        let end = usize::from(header.tp_mac) + header.tp_snaplen as usize;
        let stamp_ns =
            i64::from(header.tp_sec) * clock::NANOS_PER_SECOND + i64::from(header.tp_nsec);
        let network = bytes.get(usize::from(header.tp_net)..end).unwrap_or(&[]);
        Some(Captured { stamp_ns, network })
    }

    /// Gives the slot of [`filled`](Self::filled) back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        self.slots.status(self.read).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.read += 1;
    }

    /// Its slots, for another thread to watch.
    pub fn slots(&self) -> Slots {
        self.slots.clone()
    }

    /// Number of slots that were read.
    pub fn read(&self) -> usize {
        self.read
    }

    /// Waits up to `timeout` for packets and hands each to `on_packet`; returns their number, 0 after
    /// the timeout or a signal.
    ///
    /// # Errors
    /// The interface vanished or was set down; `on_packet` got what had been captured.
    pub fn poll(
        &mut self,
        timeout: Duration,
        mut on_packet: impl FnMut(Captured<'_>),
    ) -> Result<u64> {
        let end_ns = clock::end_ns(clock::monotonic_ns(), Some(timeout));
        loop {
            let mut count = 0;
            // At most once around, so that the caller checks its clock under full load too.
            while count < self.slots.count as u64
                && let Some(captured) = self.filled()
            {
                on_packet(captured);
                self.release();
                count += 1;
            }
            if count > 0 {
                return Ok(count);
            }
            self.check().map_err(|_| self.vanished())?;
            let now = clock::monotonic_ns();
            if now >= end_ns || stop::requested() {
                return Ok(0);
            }
            clock::sleep_until(end_ns.min(now + NAP_NS));
        }
    }

    /// Fetches the error that an interface leaves on the socket when it goes down or away.
    pub fn check(&self) -> io::Result<()> {
        match getsockopt(&self.socket, sockopt::SocketError) {
            Ok(0) => Ok(()),
            Ok(errno) => Err(io::Error::from_raw_os_error(errno)),
            Err(errno) => Err(errno.into()),
        }
    }

    fn vanished(&self) -> Error {
        Error::failed(
            format!("the interface {} vanished or was set down while it was captured", self.label),
            "find out what removes it (`ip monitor link`), then measure again",
        )
    }

    /// Its socket, which is readable when a slot is filled.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The counters since the ring was opened.
    pub fn stats(&mut self) -> RingStats {
        let stats = get_option(&self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS);
        if let Ok(libc::tpacket_stats { tp_packets, tp_drops }) = stats {
            // Reading resets the kernel's counters.
            self.stats.packets += u64::from(tp_packets);
            self.stats.dropped += u64::from(tp_drops);
        }
        self.stats
    }
}
