//! Captures the packets that pass an interface, with the kernel's nanosecond stamps: a TPACKET_V3
//! ring with a filter in the kernel. Knows nothing of what the packets mean.
//!
//! The ring disturbs the measured path little: the filter drops other packets before they are
//! copied, its return value bounds the bytes copied, and the reader wakes once a block, not once a
//! packet.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::MapFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::error::{Error, Result};
use crate::mapping::Mapping;
use crate::netlink::Netlink;
use crate::netns::{IfSpec, run_in};
use crate::timestamping::{get_option, set_option};

/// A classic BPF program; its return value is the number of bytes to keep.
pub type Filter = Vec<libc::sock_filter>;

/// The ring's layout.
#[derive(Debug, Clone, Copy)]
pub struct RingOptions {
    /// Size of one block [bytes], a multiple of the page size.
    pub block_bytes: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// A block is handed over after this time even if it is not full [ms].
    pub retire_ms: u32,
    /// Leave out packets that this machine sends by the interface.
    pub incoming_only: bool,
}

/// One captured packet.
#[derive(Debug, Clone, Copy)]
pub struct Captured<'a> {
    /// The kernel's stamp [CLOCK_REALTIME, ns].
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

/// An open ring.
#[derive(Debug)]
pub struct Ring {
    socket: OwnedFd,
    map: Mapping,
    options: RingOptions,
    next_block: u32,
    stats: RingStats,
    label: String,
}

/// The remedy for a user who may not capture.
pub const NEEDS_RAW: &str = "run as root, or with CAP_NET_RAW, or inside a user namespace of your \
                             own (unshare --user --map-root-user --net)";

fn os_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

/// Attaches a filter in the kernel to a socket.
pub fn attach_filter(socket: impl AsFd, filter: &[libc::sock_filter]) -> std::io::Result<()> {
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
        errno => {
            Error::failed("cannot open a packet socket", "").caused_by(std::io::Error::from(errno))
        }
    })
}

/// Binds a packet socket to one interface and protocol (host byte order; 0 receives nothing).
pub fn bind_packet_socket(socket: &OwnedFd, index: u32, protocol: u16) -> std::io::Result<()> {
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
    if result == 0 { Ok(()) } else { Err(os_error()) }
}

impl Ring {
    /// Opens a ring on `at`. Every packet that passes `filter` from the return on is captured.
    ///
    /// # Errors
    /// No such interface or namespace, it is down, no CAP_NET_RAW, no memory for the ring, or a
    /// filter that the kernel refuses.
    pub fn open(at: &IfSpec, filter: &Filter, options: RingOptions) -> Result<Self> {
        run_in(at.netns.as_ref(), || Self::open_in_current(at, filter, options))
    }

    fn open_in_current(at: &IfSpec, filter: &Filter, options: RingOptions) -> Result<Self> {
        let link = Netlink::open()?.link_at(&at.interface, at)?;
        let failed =
            |what: &str| Error::failed(format!("cannot {what} on {at}: {}", os_error()), "");
        let socket = packet_socket()?;
        attach_filter(&socket, filter).map_err(|error| {
            Error::bad_input(
                format!("the kernel refuses the filter for {at}"),
                "make it with `tcpdump -ddd -i IF EXPRESSION`",
            )
            .caused_by(error)
        })?;
        let set = |name, value: libc::c_int| set_option(&socket, libc::SOL_PACKET, name, value);
        set(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V3 as libc::c_int)
            .map_err(|_| failed("use a TPACKET_V3 ring"))?;
        if options.incoming_only {
            set(libc::PACKET_IGNORE_OUTGOING, 1)
                .map_err(|_| failed("leave out outgoing packets (Linux 4.20)"))?;
        }
        let request = libc::tpacket_req3 {
            tp_block_size: options.block_bytes,
            tp_block_nr: options.blocks,
            // Unused by V3 beyond its check that blocks hold whole frames.
            tp_frame_size: 2048,
            tp_frame_nr: options.block_bytes / 2048 * options.blocks,
            tp_retire_blk_tov: options.retire_ms,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        let map_bytes = options.block_bytes as usize * options.blocks as usize;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, request).map_err(|error| {
            Error::failed(
                format!("no memory for a capture ring of {} KiB on {at}", map_bytes >> 10),
                "give a smaller --ring-mib",
            )
            .caused_by(error)
        })?;
        let map = Mapping::of(&socket, map_bytes, MapFlags::empty())
            .map_err(|_| failed("map the capture ring"))?;
        let ring = Self {
            socket,
            map,
            options,
            next_block: 0,
            stats: RingStats::default(),
            label: at.to_string(),
        };
        bind_packet_socket(&ring.socket, link.index, libc::ETH_P_ALL as u16)
            .map_err(|_| failed("capture"))?;
        link.must_be_up(at)?;
        Ok(ring)
    }

    /// Waits up to `timeout` for packets and hands each to `on_packet`, in the order of the ring.
    ///
    /// Returns their number; 0 after the timeout or a signal.
    ///
    /// # Errors
    /// The interface vanished or was set down; `on_packet` got what had been captured.
    pub fn poll(
        &mut self,
        timeout: Duration,
        mut on_packet: impl FnMut(Captured<'_>),
    ) -> Result<u64> {
        let mut count = self.take_ready(&mut on_packet);
        if count > 0 {
            return Ok(count);
        }
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN | PollFlags::POLLERR)];
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut fds, timeout);
        let broken = fds[0].revents().is_some_and(|r| r.intersects(PollFlags::POLLERR));
        count += self.take_ready(&mut on_packet);
        if broken && count == 0 {
            let error =
                nix::sys::socket::getsockopt(&self.socket, nix::sys::socket::sockopt::SocketError);
            if error.unwrap_or(0) != 0 {
                // The last packets are still in a block that is not full.
                std::thread::sleep(2 * self.retire_time());
                self.take_ready(&mut on_packet);
                return Err(self.vanished());
            }
        }
        Ok(count)
    }

    /// Waits up to `timeout` for packets, or until `fd` is readable.
    pub fn wait(&self, fd: BorrowedFd<'_>, timeout: Duration) {
        let mut fds = [self.socket.as_fd(), fd].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let _ = poll(&mut fds, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX));
    }

    fn vanished(&self) -> Error {
        Error::failed(
            format!("the interface {} vanished or was set down while it was captured", self.label),
            "find out what removes it (`ip monitor link`), then measure again",
        )
    }

    fn take_ready(&mut self, on_packet: &mut impl FnMut(Captured<'_>)) -> u64 {
        let mut count = 0;
        // At most once around, so that the caller checks its clock under full load too.
        for _ in 0..self.options.blocks {
            let offset = self.next_block as usize * self.options.block_bytes as usize;
            // SAFETY: `next_block` is below the number of blocks, hence the block is inside the
            // mapping. The kernel aligns blocks to pages.
            let block = unsafe { self.map.start().add(offset) };
            let status_at = std::mem::offset_of!(libc::tpacket_block_desc, hdr)
                + std::mem::offset_of!(libc::tpacket_hdr_v1, block_status);
            // SAFETY: the status word is inside the block and aligned; kernel and process hand the
            // block over by it, so that it is read and written atomically.
            let status = unsafe { AtomicU32::from_ptr(block.add(status_at).cast().as_ptr()) };
            if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                break;
            }
            // SAFETY: while TP_STATUS_USER is set the kernel does not write to the block, which is
            // `block_bytes` long.
            let bytes = unsafe {
                std::slice::from_raw_parts(block.as_ptr(), self.options.block_bytes as usize)
            };
            count += read_block(bytes, on_packet);
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next_block = (self.next_block + 1) % self.options.blocks;
        }
        count
    }

    /// The counters since the ring was opened.
    pub fn stats(&mut self) -> RingStats {
        let stats = get_option(&self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS);
        if let Ok(libc::tpacket_stats_v3 { tp_packets, tp_drops, .. }) = stats {
            // Reading resets the kernel's counters.
            self.stats.packets += u64::from(tp_packets);
            self.stats.dropped += u64::from(tp_drops);
        }
        self.stats
    }

    /// How long a packet may stay in a block that is not full.
    pub fn retire_time(&self) -> Duration {
        Duration::from_millis(u64::from(self.options.retire_ms))
    }
}

/// Reads a structure of plain integers at `offset`; none when the bytes end before.
fn read_struct<T: Copy>(bytes: &[u8], offset: usize) -> Option<T> {
    let end = offset.checked_add(size_of::<T>())?;
    let source = bytes.get(offset..end)?;
    // SAFETY: `source` has the size of T, which callers choose among the kernel's structures of
    // integers: any bit pattern is valid, and the read needs no alignment.
    Some(unsafe { source.as_ptr().cast::<T>().read_unaligned() })
}

/// Hands each packet of a TPACKET_V3 block to `on_packet`; stops at a broken header.
fn read_block(block: &[u8], on_packet: &mut impl FnMut(Captured<'_>)) -> u64 {
    let header_at = std::mem::offset_of!(libc::tpacket_block_desc, hdr);
    let Some(header) = read_struct::<libc::tpacket_hdr_v1>(block, header_at) else { return 0 };
    let mut offset = header.offset_to_first_pkt as usize;
    for index in 0..header.num_pkts {
        let Some(packet) = read_struct::<libc::tpacket3_hdr>(block, offset) else {
            return u64::from(index);
        };
        let end = offset + usize::from(packet.tp_mac) + packet.tp_snaplen as usize;
        let network = offset + usize::from(packet.tp_net);
        if end <= block.len() {
            on_packet(Captured {
                stamp_ns: i64::from(packet.tp_sec) * 1_000_000_000 + i64::from(packet.tp_nsec),
                network: block.get(network..end).unwrap_or(&[]),
            });
        }
        if packet.tp_next_offset == 0 {
            return u64::from(index) + 1;
        }
        offset += packet.tp_next_offset as usize;
    }
    u64::from(header.num_pkts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_block_whatever_its_bytes_is_read_past_its_end() {
        pw_cases::check!().with_type::<Vec<u8>>().for_each(|block| {
            let mut bytes = 0;
            read_block(block, &mut |captured| bytes += captured.network.len());
            assert!(bytes <= block.len().saturating_mul(block.len()));
        });
    }
}
