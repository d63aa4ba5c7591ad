//! Captures the kernel's own first probe as it leaves: later ones copy its headers.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::SockaddrStorage;

use super::probe::Probe;
use crate::capture::{self, bind_packet_socket};
use crate::timestamping;
use crate::wire::{self, ETHERNET_HEADER_BYTES};

/// A captured frame that left this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// Number of the interface.
    pub interface: u32,
    /// ARPHRD type of the interface.
    pub hardware: u16,
    /// The frame without its FCS.
    pub frame: Vec<u8>,
}

/// Captures the frames that leave this host, on all interfaces.
#[derive(Debug)]
pub struct DepartureWatch {
    socket: OwnedFd,
}

impl DepartureWatch {
    /// Starts the capture.
    pub fn open() -> io::Result<Self> {
        let socket = capture::packet_socket().map_err(io::Error::other)?;
        bind_packet_socket(&socket, 0, libc::ETH_P_ALL as u16)?;
        timestamping::set_receive_buffer(socket.as_fd(), 4 << 20)?;
        Ok(Self { socket })
    }

    /// The next outgoing frame with a message of `probe`; none when there is none yet.
    pub fn next(&self, probe: Probe, target: IpAddr) -> io::Result<Option<Departure>> {
        let mut buffer = vec![0; wire::LARGEST_FRAME_BYTES + 64];
        while let Some(received) = timestamping::receive(self.socket.as_fd(), &mut buffer)? {
            let link = received.source.as_ref().and_then(SockaddrStorage::as_link_addr);
            let Some(link) = link.filter(|link| link.pkttype() == libc::PACKET_OUTGOING) else {
                continue;
            };
            let frame = &buffer[..received.bytes];
            let Some(ip) = frame.get(ETHERNET_HEADER_BYTES..).and_then(wire::parse_ip) else {
                continue;
            };
            let matches = ip.destination == target
                && ip.protocol == probe.protocol()
                && match probe {
                    Probe::Echo { identifier, .. } => {
                        wire::parse_icmp_echo(ip.payload, ip.protocol)
                            .is_some_and(|echo| !echo.reply && echo.identifier == identifier)
                    }
                    Probe::Stamp { source_port, port, .. } => wire::parse_udp(ip.payload)
                        .is_some_and(|udp| {
                            udp.source_port == source_port && udp.destination_port == port
                        }),
                };
            if matches {
                return Ok(Some(Departure {
                    interface: link.ifindex() as u32,
                    hardware: link.hatype(),
                    frame: frame.to_vec(),
                }));
            }
        }
        Ok(None)
    }
}

/// Name of interface number `index`.
///
/// nix's `if_indextoname` (0.30) takes the null pointer of a missing interface for success.
pub fn interface_name(index: u32) -> io::Result<String> {
    let mut name = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the function asks for.
    let result = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if result.is_null() {
        return Err(io::Error::last_os_error());
    }
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_interface_has_no_name() {
        assert_eq!(interface_name(1).ok().as_deref(), Some("lo"));
        assert!(interface_name(u32::MAX >> 1).is_err());
    }
}
