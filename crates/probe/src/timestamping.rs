//! Kernel timestamps of packets: SO_TIMESTAMPING, control messages, the socket's error queue.
//! Knows no protocol.
//!
//! Software stamps are CLOCK_REALTIME. A packet's receive stamp is taken when the driver hands it to
//! the stack, its transmit stamp when the stack hands it to the driver; the latter comes back on the
//! error queue, with a number that counts the socket's packets (Linux,
//! Documentation/networking/timestamping.rst).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, RecvMsg, SockaddrStorage, Timestamps, recvmsg,
    sendmsg, setsockopt, sockopt,
};

use crate::clock;
use crate::error::{Error, Result};

/// Sets a socket option to a plain value.
pub fn set_option<T: Copy>(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: T,
) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, which lives through the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Types that the kernel may fill with any bytes.
///
/// # Safety
/// Any bytes of its size are a value of it, as of integers and C structures of them.
pub unsafe trait Plain: Copy {}

// SAFETY: an integer.
unsafe impl Plain for libc::c_int {}
// SAFETY: integers, without padding.
unsafe impl<const N: usize> Plain for [u32; N] {}
// SAFETY: a structure of integers.
unsafe impl Plain for libc::tpacket_stats {}
// SAFETY: a structure of integers.
unsafe impl Plain for libc::tpacket_stats_v3 {}

/// Reads a socket option; bytes that the kernel does not write are zero.
pub fn get_option<T: Plain>(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: pointers and length describe `value`, which lives through the call.
    let result =
        unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut length) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: any bytes are a value of such a type.
    Ok(unsafe { value.assume_init() })
}

/// Binds a socket to one interface (SO_BINDTODEVICE).
///
/// # Errors
/// There is no such interface.
pub fn bind_to_device(socket: BorrowedFd<'_>, interface: &str) -> Result<()> {
    setsockopt(&socket, sockopt::BindToDevice, &interface.into()).map_err(|errno| match errno {
        Errno::ENODEV => Error::bad_input(
            format!("there is no interface '{interface}' here"),
            "`ip link` lists them; one in another namespace is reached with `ip netns exec`",
        ),
        errno => Error::failed(format!("cannot use interface {interface}"), "")
            .caused_by(io::Error::from(errno)),
    })
}

/// Enables receive stamps and, if `transmit`, transmit stamps, which come without the packet and
/// count from 0 anew.
pub fn enable(socket: BorrowedFd<'_>, transmit: bool) -> io::Result<()> {
    let receive = libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_RX_SOFTWARE;
    let flags = if transmit {
        // Without OPT_ID first: only setting it anew restarts the count.
        set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, receive)?;
        receive
            | libc::SOF_TIMESTAMPING_TX_SOFTWARE
            | libc::SOF_TIMESTAMPING_OPT_ID
            | libc::SOF_TIMESTAMPING_OPT_TSONLY
    } else {
        receive
    };
    set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags)
}

/// Sets a socket's receive buffer, beyond the system's limit where that is allowed.
pub fn set_receive_buffer(socket: BorrowedFd<'_>, bytes: libc::c_int) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))
}

/// Waits until `socket` can be read (or has an entry on its error queue), at most `timeout_ns`.
/// Returns early when a signal arrives.
pub fn wait_readable(socket: BorrowedFd<'_>, timeout_ns: i64) {
    let mut sockets = [PollFd::new(socket, PollFlags::POLLIN)];
    let _ = ppoll(&mut sockets, Some(clock::to_timespec(timeout_ns)), None);
}

/// A received packet's length, addresses and control messages.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    /// Length of the packet; at most the buffer's.
    pub bytes: usize,
    /// When the driver handed it over [CLOCK_REALTIME ns].
    pub kernel_rx_ns: Option<i64>,
    /// TTL or hop limit, when the socket was asked for it (IP_RECVTTL, IPV6_RECVHOPLIMIT).
    pub ttl: Option<u8>,
    /// Packets that this socket has dropped for want of buffer (SO_RXQ_OVFL).
    pub dropped: Option<u32>,
    /// Source address.
    pub source: Option<SockaddrStorage>,
    /// Destination address, when the socket was asked for it (IP_PKTINFO, IPV6_RECVPKTINFO).
    pub destination: Option<IpAddr>,
    /// Index of the input interface, likewise.
    pub interface: u32,
}

/// An entry of the error queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueEntry {
    /// A transmit stamp.
    Stamp {
        /// Number of the packet, from 0 when stamps were enabled.
        id: u32,
        /// When the stack handed it to the driver [CLOCK_REALTIME ns].
        kernel_tx_ns: i64,
    },
    /// An error that the network or the neighbour table reported.
    Failure(i32),
    /// Something else.
    Other,
}

/// Room for control messages, which the kernel aligns.
#[repr(align(8))]
struct Control([u8; 512]);

/// Receives one packet without blocking; none when there is none.
#[inline]
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Received>> {
    let mut control = Control([0; 512]);
    let mut vector = [IoSliceMut::new(buffer)];
    let Some(message) = receive_message(socket, &mut vector, &mut control, MsgFlags::empty())?
    else {
        return Ok(None);
    };
    let mut received = Received {
        bytes: message.bytes,
        kernel_rx_ns: None,
        ttl: None,
        dropped: None,
        source: message.address,
        destination: None,
        interface: 0,
    };
    for part in message.cmsgs()? {
        match part {
            ControlMessageOwned::ScmTimestampsns(stamps) => received.kernel_rx_ns = stamp(&stamps),
            ControlMessageOwned::RxqOvfl(dropped) => received.dropped = Some(dropped),
            ControlMessageOwned::Ipv4Ttl(ttl) | ControlMessageOwned::Ipv6HopLimit(ttl) => {
                received.ttl = Some(ttl as u8);
            }
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                let address = u32::from_be(info.ipi_spec_dst.s_addr);
                received.destination = Some(Ipv4Addr::from(address).into());
                received.interface = info.ipi_ifindex as u32;
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                received.destination = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                received.interface = info.ipi6_ifindex;
            }
            _ => {}
        }
    }
    Ok(Some(received))
}

/// The IP address and port; none for other families.
pub fn ip_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::from(*v4));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::from(*v6)))
}

/// Sends `packet` to the source of `request`, from its destination address.
pub fn send_from(socket: BorrowedFd<'_>, packet: &[u8], request: &Received) -> io::Result<()> {
    let ipv6 = request.source.is_some_and(|source| source.as_sockaddr_in6().is_some());
    let (v4, v6);
    let from = match request.destination {
        Some(IpAddr::V4(address)) if !ipv6 => {
            v4 = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr { s_addr: u32::from(address).to_be() },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            Some(ControlMessage::Ipv4PacketInfo(&v4))
        }
        Some(IpAddr::V6(address)) if ipv6 => {
            v6 = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr { s6_addr: address.octets() },
                // A link-local address is valid on its interface only.
                ipi6_ifindex: if address.is_unicast_link_local() { request.interface } else { 0 },
            };
            Some(ControlMessage::Ipv6PacketInfo(&v6))
        }
        _ => None,
    };
    let (vector, to) = ([IoSlice::new(packet)], request.source.as_ref());
    sendmsg(socket.as_raw_fd(), &vector, from.as_slice(), MsgFlags::MSG_DONTWAIT, to)?;
    Ok(())
}

/// Takes one entry from the error queue without blocking; none when it is empty.
pub fn error_queue(socket: BorrowedFd<'_>) -> io::Result<Option<QueueEntry>> {
    let mut control = Control([0; 512]);
    let mut buffer = [0; 64];
    let mut vector = [IoSliceMut::new(&mut buffer)];
    let Some(message) = receive_message(socket, &mut vector, &mut control, MsgFlags::MSG_ERRQUEUE)?
    else {
        return Ok(None);
    };
    let mut kernel_tx_ns = None;
    let mut error: Option<libc::sock_extended_err> = None;
    for part in message.cmsgs()? {
        match part {
            ControlMessageOwned::ScmTimestampsns(stamps) => kernel_tx_ns = stamp(&stamps),
            ControlMessageOwned::Ipv4RecvErr(extended, _)
            | ControlMessageOwned::Ipv6RecvErr(extended, _) => error = Some(extended),
            _ => {}
        }
    }
    Ok(Some(match (error, kernel_tx_ns) {
        (Some(error), Some(kernel_tx_ns)) if error.ee_origin == libc::SO_EE_ORIGIN_TIMESTAMPING => {
            QueueEntry::Stamp { id: error.ee_data, kernel_tx_ns }
        }
        (Some(error), _) if error.ee_origin != libc::SO_EE_ORIGIN_TIMESTAMPING => {
            QueueEntry::Failure(error.ee_errno as i32)
        }
        _ => QueueEntry::Other,
    }))
}

/// One recvmsg without blocking; none when it would block or was interrupted.
#[inline]
fn receive_message<'a, 'b>(
    socket: BorrowedFd<'_>,
    vector: &'b mut [IoSliceMut<'_>],
    control: &'a mut Control,
    flags: MsgFlags,
) -> io::Result<Option<RecvMsg<'a, 'b, SockaddrStorage>>> {
    let flags = flags | MsgFlags::MSG_DONTWAIT;
    match recvmsg(socket.as_raw_fd(), vector, Some(&mut control.0), flags) {
        Ok(message) => Ok(Some(message)),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The software stamp; none when it is empty.
fn stamp(stamps: &Timestamps) -> Option<i64> {
    Some(clock::timespec_ns(stamps.system)).filter(|&ns| ns != 0)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn stamps_of_a_packet_lie_between_sending_and_receiving() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let address = socket.local_addr().expect("bound");
        enable(socket.as_fd(), true).expect("every kernel has software stamps");
        let mut buffer = [0; 64];
        // The kernel switches receive stamps on in the background: the first packets may lack them.
        for round in 0..200_u32 {
            let before = clock::realtime_ns();
            socket.send_to(b"probe", address).expect("loopback takes it");
            wait_readable(socket.as_fd(), 1_000_000_000);
            let packet = receive(socket.as_fd(), &mut buffer).expect("no error").expect("arrived");
            let after = clock::realtime_ns();
            assert_eq!(packet.bytes, 5);
            let entry = error_queue(socket.as_fd()).expect("no error");
            let Some(QueueEntry::Stamp { id, kernel_tx_ns }) = entry else {
                panic!("no transmit stamp but {entry:?}");
            };
            assert_eq!(id, round);
            assert!(before <= kernel_tx_ns && kernel_tx_ns <= after);
            let Some(kernel_rx_ns) = packet.kernel_rx_ns else {
                std::thread::sleep(std::time::Duration::from_millis(5));
                continue;
            };
            assert!(before <= kernel_rx_ns && kernel_rx_ns <= after);
            assert!(kernel_tx_ns <= kernel_rx_ns);
            return;
        }
        panic!("no packet had both stamps");
    }

    #[test]
    fn enabling_anew_restarts_the_count() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let address = socket.local_addr().expect("bound");
        for _ in 0..2 {
            enable(socket.as_fd(), true).expect("software stamps");
            socket.send_to(b"x", address).expect("loopback takes it");
            let entry = error_queue(socket.as_fd()).expect("no error");
            assert!(matches!(entry, Some(QueueEntry::Stamp { id: 0, .. })), "{entry:?}");
        }
    }

    #[test]
    fn an_empty_socket_has_nothing_and_does_not_block() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        assert!(receive(socket.as_fd(), &mut [0; 8]).expect("no error").is_none());
        assert!(error_queue(socket.as_fd()).expect("no error").is_none());
    }
}
