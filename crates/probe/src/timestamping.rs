//! Kernel timestamps of packets: SO_TIMESTAMPING, control messages, the socket's error queue.
//! Knows no protocol.
//!
//! Software stamps are CLOCK_REALTIME. A packet's receive stamp is taken when the driver hands it to
//! the stack, its transmit stamp when the stack hands it to the driver; the latter comes back on the
//! error queue, with a number that counts the socket's packets (Linux,
//! Documentation/networking/timestamping.rst).

use std::io;
use std::mem::{MaybeUninit, size_of, size_of_val};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

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
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What the kernel may fill with any bytes.
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

/// Reads a socket option; what the kernel leaves out is zero.
pub fn get_option<T: Plain>(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: pointers and length describe `value`, which lives through the call.
    let done = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut length) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: any bytes are a value of such a type.
    Ok(unsafe { value.assume_init() })
}

/// Lets a socket send and receive through one interface alone.
///
/// # Errors
/// There is no such interface.
pub fn bind_to_device(socket: BorrowedFd<'_>, interface: &str) -> Result<()> {
    // SAFETY: pointer and length describe `interface`, which lives through the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            interface.as_ptr().cast(),
            interface.len() as libc::socklen_t,
        )
    };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::ENODEV) => Error::bad_input(
            format!("there is no interface '{interface}' here"),
            "`ip link` lists them; one in another namespace is reached with `ip netns exec`",
        ),
        _ => Error::failed(format!("cannot use interface {interface}"), "").caused_by(error),
    })
}

/// Asks for receive stamps, and for transmit stamps when `transmit`. Transmit stamps come without
/// the packet and count from 0 anew.
pub fn enable(socket: BorrowedFd<'_>, transmit: bool) -> io::Result<()> {
    let receive = libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_RX_SOFTWARE;
    let flags = if transmit {
        // Without OPT_ID first: setting it anew is what restarts the count.
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

/// Gives a socket `bytes` of receive buffer; beyond the system's limit where we may.
pub fn set_receive_buffer(socket: BorrowedFd<'_>, bytes: libc::c_int) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))
}

/// Waits until `socket` can be read (or has an entry on its error queue), at most `timeout_ns`.
/// Returns early when a signal arrives.
pub fn wait_readable(socket: BorrowedFd<'_>, timeout_ns: i64) {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let timeout = clock::to_timespec(timeout_ns);
    // SAFETY: one pollfd and a timespec, both alive through the call; no signal mask.
    unsafe { libc::ppoll(&mut poll, 1, &timeout, std::ptr::null()) };
}

/// What came with a received packet.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    /// Length of the packet; at most the buffer's.
    pub bytes: usize,
    /// When the driver handed it over [CLOCK_REALTIME ns].
    pub kernel_rx_ns: Option<i64>,
    /// TTL or hop limit, when the socket was asked for it (IP_RECVTTL, IPV6_RECVHOPLIMIT).
    pub ttl: Option<u8>,
    /// Packets that this socket has dropped so far for want of buffer (SO_RXQ_OVFL).
    pub dropped: Option<u32>,
    /// Who sent it, as the kernel writes it.
    pub source: libc::sockaddr_storage,
    /// Length of `source`.
    pub source_bytes: libc::socklen_t,
    /// Address that it was sent to, when asked for (IP_PKTINFO, IPV6_RECVPKTINFO).
    pub destination: Option<std::net::IpAddr>,
    /// Interface that it came by, when asked for.
    pub interface: u32,
}

/// An entry of the error queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueEntry {
    /// A transmit stamp: which packet (counted from when stamps were enabled) and when.
    Stamp {
        /// Count of the packet.
        id: u32,
        /// When the stack handed it to the driver [CLOCK_REALTIME ns].
        kernel_tx_ns: i64,
    },
    /// An error that the network or the neighbour table reported.
    Failure(i32),
    /// Something else.
    Other,
}

#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; 512]);

impl Control {
    const fn new() -> Self {
        Self([MaybeUninit::uninit(); 512])
    }
}

/// Receives one packet without blocking; none when there is none.
#[inline]
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Received>> {
    let mut control = Control::new();
    // SAFETY: sockaddr_storage is plain bytes, for which zero is a valid value.
    let mut source: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let Some((message, bytes)) =
        receive_message(socket, buffer, &mut control, Some(&mut source), libc::MSG_DONTWAIT)?
    else {
        return Ok(None);
    };
    let mut received = Received {
        bytes,
        kernel_rx_ns: None,
        ttl: None,
        dropped: None,
        source,
        source_bytes: message.msg_namelen,
        destination: None,
        interface: 0,
    };
    for_each_control(&message, |level, kind, data| match (level, kind) {
        (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) => received.kernel_rx_ns = stamp(data),
        (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => received.dropped = plain(data),
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
            received.ttl = plain::<libc::c_int>(data).map(|ttl| ttl as u8);
        }
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            if let Some(info) = plain::<libc::in_pktinfo>(data) {
                let address = u32::from_be(info.ipi_spec_dst.s_addr);
                received.destination = Some(std::net::Ipv4Addr::from(address).into());
                received.interface = info.ipi_ifindex as u32;
            }
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            if let Some(info) = plain::<libc::in6_pktinfo>(data) {
                let address = std::net::Ipv6Addr::from(info.ipi6_addr.s6_addr);
                received.destination = Some(address.into());
                received.interface = info.ipi6_ifindex;
            }
        }
        _ => {}
    });
    Ok(Some(received))
}

/// Sends `packet` to where `request` came from, from the address that it was sent to.
pub fn send_from(socket: BorrowedFd<'_>, packet: &[u8], request: &Received) -> io::Result<()> {
    let mut control = Control::new();
    let mut vector =
        libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
    let mut destination = request.source;
    // SAFETY: msghdr is plain data, for which zero is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut destination).cast();
    message.msg_namelen = request.source_bytes;
    message.msg_iov = &mut vector;
    message.msg_iovlen = 1;
    let ipv6 = request.source.ss_family == libc::AF_INET6 as libc::sa_family_t;
    match request.destination {
        Some(std::net::IpAddr::V4(address)) if !ipv6 => {
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr { s_addr: u32::from(address).to_be() },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            put_control(&mut message, &mut control, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        Some(std::net::IpAddr::V6(address)) if ipv6 => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr { s6_addr: address.octets() },
                // A link-local address means something on its interface alone.
                ipi6_ifindex: if address.is_unicast_link_local() { request.interface } else { 0 },
            };
            put_control(&mut message, &mut control, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
        _ => {}
    }
    // SAFETY: every pointer in `message` is to memory that lives through the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes `value` the one control message of `message`.
fn put_control<T: Copy>(
    message: &mut libc::msghdr,
    control: &mut Control,
    level: libc::c_int,
    kind: libc::c_int,
    value: T,
) {
    let length = size_of::<T>() as libc::c_uint;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: the buffer is aligned and, with 512 bytes, larger than any message put here; the
    // macros compute places within it.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(length) as _;
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(length) as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
    }
}

/// Takes one entry from the error queue without blocking; none when it is empty.
pub fn error_queue(socket: BorrowedFd<'_>) -> io::Result<Option<QueueEntry>> {
    let mut control = Control::new();
    let mut buffer = [0; 64];
    let flags = libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE;
    let Some((message, _)) = receive_message(socket, &mut buffer, &mut control, None, flags)?
    else {
        return Ok(None);
    };
    let mut kernel_tx_ns = None;
    let mut error: Option<libc::sock_extended_err> = None;
    for_each_control(&message, |level, kind, data| match (level, kind) {
        (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) => kernel_tx_ns = stamp(data),
        (libc::IPPROTO_IP, libc::IP_RECVERR)
        | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        | (libc::SOL_PACKET, libc::PACKET_TX_TIMESTAMP) => error = plain(data),
        _ => {}
    });
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

/// One recvmsg; none when it would block or was interrupted. The returned header points into
/// `buffer` and `control`.
#[inline]
fn receive_message(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    control: &mut Control,
    source: Option<&mut libc::sockaddr_storage>,
    flags: libc::c_int,
) -> io::Result<Option<(libc::msghdr, usize)>> {
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: msghdr is plain data, for which zero is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control.0) as _;
    if let Some(source) = source {
        message.msg_name = (source as *mut libc::sockaddr_storage).cast();
        message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    }
    // SAFETY: every pointer in `message` is to memory that lives through the call, with its length.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
    // What the caller reads from here on is the control buffer alone.
    message.msg_iov = std::ptr::null_mut();
    message.msg_iovlen = 0;
    if length >= 0 {
        return Ok(Some((message, length as usize)));
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}

fn for_each_control(message: &libc::msghdr, mut f: impl FnMut(libc::c_int, libc::c_int, &[u8])) {
    // SAFETY: the kernel filled msg_control up to msg_controllen with well-formed messages; the
    // CMSG macros stay within it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            let head = data.offset_from(header.cast::<u8>()) as usize;
            let length = ((*header).cmsg_len as usize).saturating_sub(head);
            f((*header).cmsg_level, (*header).cmsg_type, std::slice::from_raw_parts(data, length));
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Reads a plain kernel structure; none when the message is too short for it.
fn plain<T: Copy>(data: &[u8]) -> Option<T> {
    // SAFETY: the length is checked; callers ask for C structures of integers alone, for which any
    // bytes are a value; `read_unaligned` needs no alignment.
    (data.len() >= size_of::<T>()).then(|| unsafe { data.as_ptr().cast::<T>().read_unaligned() })
}

/// The software stamp of an SCM_TIMESTAMPING message; none when it is empty.
fn stamp(data: &[u8]) -> Option<i64> {
    plain::<libc::timespec>(data).map(clock::timespec_ns).filter(|&ns| ns != 0)
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
