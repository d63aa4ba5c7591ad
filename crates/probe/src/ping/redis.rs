//! Requests to a Redis server over one TCP connection, which measure an application's response time.
//!
//! Each request is `ECHO` of a message that begins with its sequence number in hexadecimal digits
//! (the protocol: RESP 2, redis.io). Requests leave on schedule, whether or not earlier ones were
//! answered; the server answers them in order.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::record::{Arrival, MISSING};
use super::route::ProbeRoute;
use super::session::Transport;
use crate::clock;
use crate::error::{Error, Result};
use crate::sockets;
use crate::wire;

/// Redis's own port.
pub const PORT: u16 = 6379;
/// Hexadecimal digits of a sequence number.
const DIGITS: usize = 16;
/// TCP header with the timestamps that Linux negotiates.
const TCP_HEADER_BYTES: usize = 32;
/// Most bytes that wait for room in the connection's send buffer; further requests are refused.
const MOST_UNSENT_BYTES: usize = 16 << 20;
/// Longest answer that is accepted: that of the largest frame.
const LONGEST_ANSWER_BYTES: usize = wire::LARGEST_FRAME_BYTES;

/// Length of a request with a message of this length.
fn request_bytes(message_bytes: usize) -> usize {
    b"*2\r\n$4\r\nECHO\r\n$\r\n\r\n".len() + message_bytes.to_string().len() + message_bytes
}

/// Length of the frame of a request that is sent alone [bytes, FCS included].
pub fn size_bytes(message_bytes: usize, target: IpAddr) -> usize {
    wire::ETHERNET_BYTES
        + wire::ip_header_bytes(target)
        + TCP_HEADER_BYTES
        + request_bytes(message_bytes)
        + wire::FCS_BYTES
}

/// Length of the message whose request's frame has `size_bytes`, FCS included; without a size the
/// shortest.
///
/// # Errors
/// There is none: too small, too large, or a size that a further digit of the length skips.
pub fn message_bytes(size_bytes: Option<usize>, target: IpAddr) -> Result<usize> {
    let Some(size_bytes) = size_bytes else { return Ok(DIGITS) };
    let smallest = self::size_bytes(DIGITS, target);
    let largest = wire::LARGEST_FRAME_BYTES;
    if !(smallest..=largest).contains(&size_bytes) {
        return Err(Error::bad_input(
            format!("no request to Redis makes a frame of {size_bytes} bytes"),
            format!("give --size {smallest} to {largest} (the size includes the 4-byte FCS)"),
        ));
    }
    let longest = DIGITS + (size_bytes - smallest);
    (longest.saturating_sub(4)..=longest)
        .find(|&message| self::size_bytes(message, target) == size_bytes)
        .ok_or_else(|| {
            Error::bad_input(
                format!("no request to Redis makes a frame of exactly {size_bytes} bytes"),
                format!("give --size {}", size_bytes + 1),
            )
        })
}

/// The first answer in a stream.
#[derive(Debug, PartialEq, Eq)]
enum Front<'a> {
    /// Incomplete.
    Partial,
    /// The answer to the request `sequence`.
    Answer { sequence: u64, bytes: usize },
    /// The server's error message.
    Refusal(&'a [u8]),
    /// Not an answer to an `ECHO` of this program.
    Foreign,
}

/// Parses the first answer in a stream. Pure.
fn front(stream: &[u8]) -> Front<'_> {
    let Some(end) = stream.iter().take(LONGEST_ANSWER_BYTES).position(|&byte| byte == b'\r') else {
        let too_long = stream.len() > LONGEST_ANSWER_BYTES;
        return if too_long { Front::Foreign } else { Front::Partial };
    };
    let (head, body) = stream.split_at(end);
    let Some((&kind, value)) = head.split_first() else { return Front::Foreign };
    match kind {
        b'-' => Front::Refusal(value),
        b'$' => {
            let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            let Some(length) =
                length.filter(|length| (DIGITS..LONGEST_ANSWER_BYTES).contains(length))
            else {
                return Front::Foreign;
            };
            let Some(message) = body.get(2..2 + length + 2) else { return Front::Partial };
            let sequence = message
                .get(..DIGITS)
                .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
                .and_then(|digits| std::str::from_utf8(digits).ok())
                .and_then(|text| u64::from_str_radix(text, 16).ok());
            match sequence {
                Some(sequence) => Front::Answer { sequence, bytes: end + 2 + length + 2 },
                None => Front::Foreign,
            }
        }
        _ => Front::Foreign,
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct RedisTransport {
    stream: TcpStream,
    source: IpAddr,
    server: SocketAddr,
    request: Vec<u8>,
    /// Offset of the sequence number in `request`.
    digits_at: usize,
    /// Bytes of requests that the send buffer has no room for yet.
    unsent: Vec<u8>,
    received: Vec<u8>,
    /// Bytes of `received` that are parsed.
    parsed: usize,
    failure: Option<Error>,
}

impl RedisTransport {
    /// Connects along `route` within `patience_ns`.
    ///
    /// # Errors
    /// No route, no such interface or source address, no answer, or nothing listens.
    pub fn connect(route: &ProbeRoute, message_bytes: usize, patience_ns: i64) -> Result<Self> {
        let stream = TcpStream::from(connected(route, patience_ns)?);
        let unusable = |error: io::Error| {
            Error::failed(format!("cannot use the connection to {}", route.target), "")
                .caused_by(error)
        };
        // A request leaves when it is due, not once the one before is acknowledged.
        stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(unusable)?;
        let source = stream.local_addr().map_err(unusable)?.ip();
        let head = format!("*2\r\n$4\r\nECHO\r\n${message_bytes}\r\n");
        let mut request = head.clone().into_bytes();
        request.resize(head.len() + message_bytes, b'0');
        request.extend_from_slice(b"\r\n");
        Ok(Self {
            stream,
            source,
            server: route.target,
            request,
            digits_at: head.len(),
            unsent: Vec::with_capacity(1 << 16),
            received: Vec::with_capacity(1 << 16),
            parsed: 0,
            failure: None,
        })
    }

    /// The source address that the kernel chose.
    pub fn source(&self) -> IpAddr {
        self.source
    }

    /// Sends unsent bytes as far as the send buffer has room.
    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
        Ok(())
    }

    fn broken(&mut self, error: io::Error) -> io::Error {
        let kind = error.kind();
        self.failure.get_or_insert_with(|| {
            Error::failed(
                format!("the connection to the Redis server at {} broke", self.server),
                "does the server still run? What was measured until then is printed",
            )
            .caused_by(error)
        });
        kind.into()
    }

    fn protocol_error(&mut self, what: String) -> io::Error {
        self.failure.get_or_insert_with(|| {
            Error::failed(
                what,
                "name the port of a Redis server that wants no password with --port",
            )
        });
        ErrorKind::InvalidData.into()
    }
}

/// A connected socket.
fn connected(route: &ProbeRoute, patience_ns: i64) -> Result<OwnedFd> {
    let server = route.target;
    let failed = |errno: Errno| {
        Error::failed(format!("cannot open a socket for {server}: {}", errno.desc()), "")
    };
    let family = if server.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).map_err(failed)?;
    route.apply(socket.as_fd())?;
    // Bounds the time to connect, too (socket(7)).
    let patience = TimeVal::nanoseconds(patience_ns.max(1_000));
    setsockopt(&socket, sockopt::SendTimeout, &patience).map_err(failed)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(server)) {
        Ok(()) => Ok(socket),
        Err(Errno::EINPROGRESS) => Err(Error::failed(
            format!("{server} did not take a connection within {} s", patience_ns as f64 / 1e9),
            "is it up, and does a Redis server listen there? Is there a firewall?",
        )),
        Err(Errno::ECONNREFUSED) => Err(Error::failed(
            format!("nothing listens at {}, TCP port {}", server.ip(), server.port()),
            "start `redis-server --bind ADDRESS --protected-mode no` there, or name its port with \
             --port",
        )),
        Err(errno) => Err(route.unreachable(errno)),
    }
}

impl Transport for RedisTransport {
    fn transmit(&mut self, sequence: u64) -> io::Result<i64> {
        let digits = format!("{sequence:016x}");
        self.request[self.digits_at..self.digits_at + DIGITS].copy_from_slice(digits.as_bytes());
        if self.unsent.len() + self.request.len() > MOST_UNSENT_BYTES {
            self.flush()?;
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        let user_tx_ns = clock::realtime_ns();
        self.unsent.extend_from_slice(&self.request);
        self.flush()?;
        Ok(user_tx_ns)
    }

    fn receive(&mut self) -> io::Result<Option<Arrival>> {
        self.flush()?;
        loop {
            match front(self.received.get(self.parsed..).unwrap_or(&[])) {
                Front::Answer { sequence, bytes } => {
                    self.parsed += bytes;
                    return Ok(Some(Arrival {
                        sequence,
                        kernel_rx_ns: MISSING,
                        user_rx_ns: clock::realtime_ns(),
                        residence_ns: -1,
                    }));
                }
                Front::Refusal(words) => {
                    let words = String::from_utf8_lossy(words).into_owned();
                    return Err(self.protocol_error(format!(
                        "the Redis server at {} refuses: {words}",
                        self.server
                    )));
                }
                Front::Foreign => {
                    return Err(self.protocol_error(format!(
                        "what listens at {} does not speak Redis's protocol",
                        self.server
                    )));
                }
                Front::Partial => {}
            }
            self.received.drain(..self.parsed);
            self.parsed = 0;
            let mut buffer = [0; 1 << 14];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(self.broken(ErrorKind::UnexpectedEof.into())),
                Ok(bytes) => self.received.extend_from_slice(buffer.get(..bytes).unwrap_or(&[])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
    }

    fn wait(&mut self, timeout_ns: i64) -> io::Result<()> {
        sockets::wait_readable(self.stream.as_fd(), timeout_ns);
        Ok(())
    }

    fn ended(&mut self) -> Option<Error> {
        self.failure.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 2));

    #[test]
    fn a_request_has_the_frame_size_that_was_asked_for() {
        assert!(message_bytes(None, TARGET).is_ok_and(|shortest| shortest == DIGITS));
        for size in 107..=wire::LARGEST_FRAME_BYTES {
            match message_bytes(Some(size), TARGET) {
                Ok(message) => assert_eq!(size_bytes(message, TARGET), size),
                Err(error) => assert!(error.remedy.contains(&(size + 1).to_string()), "{size}"),
            }
        }
        for size in [0, 64, 106, wire::LARGEST_FRAME_BYTES + 1] {
            let error = message_bytes(Some(size), TARGET).expect_err("no request is so long");
            assert!(error.remedy.contains("107 to 9000"), "{}", error.remedy);
        }
    }

    #[test]
    fn an_answer_is_read_once_it_is_whole() {
        let whole = b"$18\r\n800000000000000axy\r\n$16\r\n";
        let answer = Front::Answer { sequence: 0x8000_0000_0000_000a, bytes: 25 };
        for length in 0..25 {
            assert_eq!(front(&whole[..length]), Front::Partial, "{length}");
        }
        assert_eq!(front(&whole[..25]), answer);
        assert_eq!(front(whole), answer);
    }

    #[test]
    fn what_is_no_answer_of_redis_is_told() {
        assert_eq!(
            front(b"-NOAUTH Authentication required.\r\n"),
            Front::Refusal(b"NOAUTH Authentication required.")
        );
        for foreign in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"\r\n",
            b"$-1\r\n",
            b"$x\r\n",
            b"$3\r\nabc\r\n",
            b"$16\r\nnot a number at all\r\n",
            b"$99999999999999999999999\r\n",
            &[b'$'; 20_000],
        ] {
            assert_eq!(front(foreign), Front::Foreign, "{}", String::from_utf8_lossy(foreign));
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_fault_and_an_answer_lies_within_them() {
        pw_cases::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            if let Front::Answer { bytes: taken, .. } = front(bytes) {
                assert!(taken <= bytes.len());
            }
        });
    }
}
