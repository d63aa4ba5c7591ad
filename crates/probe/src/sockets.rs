//! Socket options, control messages and kernel receive stamps.
//!
//! A stamp is CLOCK_REALTIME, taken when the driver hands the packet to the stack (Linux,
//! Documentation/networking/timestamping.rst).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, Timestamps, recvmsg, sendmsg,
    setsockopt, sockopt,
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

/// The error for an address that cannot be listened on.
pub fn cannot_listen(at: SocketAddr, error: io::Error) -> Error {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => "another program listens there: choose another port",
        io::ErrorKind::AddrNotAvailable => {
            "the address is none of this machine's: see `ip address`"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 need root: choose another",
        _ => "",
    };
    Error::failed(format!("cannot listen on {at}"), remedy).caused_by(error)
}

/// Enables receive stamps.
pub fn stamp_receipts(socket: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_RX_SOFTWARE;
    set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags)
}

/// Sets a socket's receive buffer, beyond the system's limit where that is allowed.
pub fn set_receive_buffer(socket: BorrowedFd<'_>, bytes: libc::c_int) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))
}

/// Waits until `socket` can be read or has an error, at most `timeout_ns`.
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

/// Room for control messages, which the kernel aligns.
#[repr(align(8))]
struct Control([u8; 512]);

/// Receives one packet without blocking; none when there is none.
#[inline]
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Received>> {
    let mut control = Control([0; 512]);
    let mut vector = [IoSliceMut::new(buffer)];
    let (fd, control) = (socket.as_raw_fd(), Some(&mut control.0[..]));
    let message = match recvmsg::<SockaddrStorage>(fd, &mut vector, control, MsgFlags::MSG_DONTWAIT)
    {
        Ok(message) => message,
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
        Err(errno) => return Err(errno.into()),
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

/// The software stamp; none when it is empty.
fn stamp(stamps: &Timestamps) -> Option<i64> {
    Some(clock::timespec_ns(stamps.system)).filter(|&ns| ns != 0)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_receive_stamp_lies_between_sending_and_receiving() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let address = socket.local_addr().expect("bound");
        stamp_receipts(socket.as_fd()).expect("every kernel has software stamps");
        let mut buffer = [0; 64];
        assert!(receive(socket.as_fd(), &mut buffer).expect("no error").is_none(), "no blocking");
        // The kernel switches receive stamps on in the background: the first packets may lack them.
        for _ in 0..1000 {
            let before = clock::realtime_ns();
            socket.send_to(b"probe", address).expect("loopback takes it");
            wait_readable(socket.as_fd(), 1_000_000_000);
            let packet = receive(socket.as_fd(), &mut buffer).expect("no error").expect("arrived");
            let after = clock::realtime_ns();
            assert_eq!(packet.bytes, 5);
            if let Some(kernel_rx_ns) = packet.kernel_rx_ns {
                assert!(before <= kernel_rx_ns && kernel_rx_ns <= after);
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("no packet had a stamp");
    }
}
