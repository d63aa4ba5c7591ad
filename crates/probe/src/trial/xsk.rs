//! Generator in user space, on AF_XDP: the driver reads the frames from shared memory (zero-copy), or
//! the kernel copies them where the driver cannot, as that of a veth. One queue.
//!
//! There is no AF_XDP sink: an interface that supports it runs the sink `xdp-native`, which counts
//! frames before they would reach a socket.

use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};
use xdp::nic::NicIndex;
use xdp::slab::{HeapSlab, Slab};
use xdp::socket::{XdpSocket, XdpSocketBuilder};
use xdp::umem::{FrameSize, UmemCfgBuilder};
use xdp::{CompletionRing, FillRing, RingConfigBuilder, TxRing};

use super::kernel::os_reason;
use super::order::{GRACE_NS, Generated, Generator, Order};
use super::packet::{Sent, down_or_gone, paced};
use crate::error::{Error, Result};
use crate::frame::Template;
use crate::netlink::Netlink;
use crate::netns::{IfSpec, run_in};
use crate::{clock, timestamping};

/// Its names in results.
const COPY: &str = "xsk-copy";
const ZERO_COPY: &str = "xsk-zero-copy";
/// Frames in flight at most, and slots of the rings.
const FRAMES: u32 = 2048;
/// Default batch: the kernel copies 32 frames a call.
const BATCH: u16 = 32;
/// The longest frame: a page less the headroom of XDP [bytes without FCS].
const MOST_BYTES: usize = 3_840;
/// Most wake-ups of the kernel for one batch.
const KICKS: usize = 64;
/// Of linux/if_xdp.h.
const XDP_OPTIONS: libc::c_int = 8;
const XDP_OPTIONS_ZEROCOPY: libc::c_int = 1;

/// Sends by an AF_XDP socket on queue 0.
pub struct XskGenerator {
    // Declared before the memory that it reads, so that it is closed first.
    socket: XdpSocket,
    tx: TxRing,
    completions: CompletionRing,
    _fill: FillRing,
    slab: HeapSlab,
    umem: xdp::Umem,
    template: Template,
    label: String,
    backend: &'static str,
    batch: u16,
    cpu: Option<usize>,
    /// Frames handed over that the kernel has not completed.
    outstanding: u64,
}

// SAFETY: the rings and frames are mappings that this value owns and that any thread may use; it is
// used by one thread at a time.
unsafe impl Send for XskGenerator {}

impl XskGenerator {
    /// Opens the generator on `tx`.
    ///
    /// # Errors
    /// There is no such interface, it is down, the user may not, the frame is too long.
    pub fn open(
        tx: &IfSpec,
        template: &Template,
        batch: Option<u16>,
        cpu: Option<usize>,
    ) -> Result<Self> {
        run_in(tx.netns.as_ref(), || {
            let link = Netlink::open()?.link_at(&tx.interface, tx)?;
            if template.frame_bytes() > MOST_BYTES {
                return Err(Error::bad_input(
                    format!("frames of {} bytes do not fit into a page", template.frame_bytes()),
                    "the backend af_packet sends longer ones",
                ));
            }
            link.must_be_up(tx)?;
            let failed = |error: &(dyn std::error::Error + 'static)| refused(tx, error);
            let config = UmemCfgBuilder {
                frame_size: FrameSize::FourK,
                frame_count: FRAMES,
                ..UmemCfgBuilder::default()
            };
            let config = config.build().map_err(|error| failed(&error))?;
            let umem = xdp::Umem::map(config).map_err(|error| failed(&error))?;
            let rings = RingConfigBuilder {
                rx_count: 0,
                tx_count: FRAMES,
                fill_count: 64,
                completion_count: FRAMES,
            };
            let rings = rings.build().map_err(|error| failed(&error))?;
            let mut socket = XdpSocketBuilder::new().map_err(|error| failed(&error))?;
            let (rings, flags) =
                socket.build_rings(&umem, rings).map_err(|error| failed(&error))?;
            let index = NicIndex::new(link.index);
            let socket = socket.bind(index, 0, flags).map_err(|error| failed(&error))?;
            let Some(ring) = rings.tx_ring else {
                return Err(Error::failed("AF_XDP gave no ring to send by", ""));
            };
            // SAFETY: the socket is open as long as this is used.
            let fd = unsafe { BorrowedFd::borrow_raw(socket.raw_fd()) };
            let options: libc::c_int =
                timestamping::get_option(fd, libc::SOL_XDP, XDP_OPTIONS).unwrap_or(0);
            let zero_copy = options & XDP_OPTIONS_ZEROCOPY != 0;
            let batch = batch.unwrap_or(BATCH);
            Ok(Self {
                socket,
                tx: ring,
                completions: rings.completion_ring,
                _fill: rings.fill_ring,
                slab: HeapSlab::with_capacity(usize::from(batch)),
                umem,
                template: template.clone(),
                label: tx.to_string(),
                backend: if zero_copy { ZERO_COPY } else { COPY },
                batch,
                cpu,
                outstanding: 0,
            })
        })
    }

    /// Stamps and sends `count` frames from `sequence` on, fewer while too many are in flight.
    fn send(&mut self, sequence: u64, count: usize) -> Result<Sent> {
        self.complete();
        let tx_ns = clock::realtime_ns();
        for index in 0..count.min(self.slab.available()) {
            // SAFETY: the socket, which is closed before the memory is freed, owns the packet until its
            // completion.
            let Some(mut packet) = (unsafe { self.umem.alloc() }) else { break };
            packet.append(self.template.bytes()).map_err(|error| refused(&self.label, &error))?;
            self.template.stamp(&mut packet, sequence + index as u64, tx_ns);
            self.slab.push_front(packet);
        }
        // SAFETY: as above.
        let frames = unsafe { self.tx.send(&mut self.slab) } as u64;
        while let Some(packet) = self.slab.pop_back() {
            self.umem.free_packet(packet);
        }
        self.outstanding += frames;
        Ok(Sent { frames, refused: self.kick()? })
    }

    /// Frees the packets of completed frames.
    fn complete(&mut self) {
        let done = self.completions.dequeue(&mut self.umem, FRAMES as usize);
        self.outstanding = self.outstanding.saturating_sub(done as u64);
    }

    /// Waits until the ring is empty, for as long as a generator may be behind: at overload the kernel
    /// has not taken all of it when the order ends. Frames that remain are not sent.
    fn drain(&mut self, generated: &mut Generated) {
        let until_ns = clock::monotonic_ns() + GRACE_NS;
        self.complete();
        while self.outstanding > 0 && clock::monotonic_ns() < until_ns {
            match self.kick() {
                Ok(refused) => generated.refused += refused,
                Err(error) => {
                    generated.error.get_or_insert(error);
                    break;
                }
            }
            self.complete();
        }
        generated.sent = generated.sent.saturating_sub(self.outstanding);
    }

    /// Wakes the kernel until it has taken the whole ring; returns the number of frames that the
    /// interface dropped for lack of room.
    fn kick(&self) -> Result<u64> {
        let mut refused = 0;
        for _ in 0..KICKS {
            match send(self.socket.raw_fd(), &[], MsgFlags::MSG_DONTWAIT) {
                Ok(_) => break,
                Err(Errno::EBUSY) => refused += 1,
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS) => {}
                Err(Errno::ENETDOWN | Errno::ENXIO | Errno::ENODEV) => {
                    return Err(down_or_gone(&self.label));
                }
                Err(errno) => {
                    let error = std::io::Error::from(errno);
                    let what = format!("cannot send frames on {}: {error}", self.label);
                    return Err(Error::failed(what, ""));
                }
            }
        }
        Ok(refused)
    }
}

/// The error for a socket or frame that the kernel refuses.
fn refused(interface: impl std::fmt::Display, error: &(dyn std::error::Error + 'static)) -> Error {
    let remedy = match os_reason(error) {
        Some(libc::EPERM | libc::EACCES) => "run as root; af_packet sends without, in a namespace",
        Some(libc::ENOMEM | libc::ENOBUFS) => "raise RLIMIT_MEMLOCK (ulimit -l)",
        Some(libc::EBUSY) => "another AF_XDP socket has queue 0 of the interface: end it",
        Some(libc::EAFNOSUPPORT) => "this kernel has no AF_XDP; af_packet works everywhere",
        _ => "af_packet works everywhere",
    };
    // The library's messages are for debugging.
    let why = match os_reason(error) {
        Some(code) => std::io::Error::from_raw_os_error(code).to_string(),
        None => error.to_string(),
    };
    Error::failed(format!("cannot send by AF_XDP on {interface}: {why}"), remedy)
}

impl Generator for XskGenerator {
    fn backend(&self) -> &'static str {
        self.backend
    }

    fn batch(&self) -> u16 {
        self.batch
    }

    fn send_one(&mut self, sequence: u64) -> Result<u64> {
        Ok(self.send(sequence, 1)?.frames)
    }

    fn run(&mut self, order: &Order, sent_so_far: &AtomicU64) -> Generated {
        let pace = (self.cpu, self.batch);
        let mut generated =
            paced(order, sent_so_far, pace, |sequence, count| self.send(sequence, count));
        self.drain(&mut generated);
        generated
    }
}
