//! `pw-probe reflect`: a stateless STAMP Session-Reflector (RFC 8762, unauthenticated mode).

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, socket,
};
use serde::Serialize;

use crate::clock::{self, NANOS_PER_SECOND};
use crate::error::{Error, Result};
use crate::histogram::{LatencyRecorder, LatencySummary};
use crate::output;
use crate::sockets::{self, Received, set_option};
use crate::stamp::{self, ReflectorPacket, SenderPacket};
use crate::stop::{self, Lifetime};
use crate::{units, wire};

/// Answers STAMP test packets (RFC 8762) until Ctrl-C or --duration.
///
/// Every answer carries the times of receiving (T2, the kernel's stamp where there is one) and of
/// sending (T3), the TTL with which the request came, and has the request's length. Prints one JSON
/// object at its end; a line on stderr says when it is ready.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe reflect                            all addresses, UDP port 862\n  \
    pw-probe reflect --address 198.18.0.2 --port 8620\n  \
    pw-probe ping 198.18.0.2 --proto stamp      on the other host")]
pub struct Args {
    /// Local address to answer on [default: all, IPv4 and IPv6]
    #[arg(long)]
    pub address: Option<IpAddr>,
    /// UDP port to answer on; below 1024 it needs root
    #[arg(long, default_value_t = stamp::PORT)]
    pub port: u16,
    /// Interface to answer on [default: all]
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
    /// End after this time [s] [default: at Ctrl-C]
    #[arg(long, value_name = "S", value_parser = units::seconds)]
    pub duration: Option<Duration>,
    /// Poll this long for the next request before sleeping [us]; the answer then leaves sooner, for
    /// the price of a busy CPU
    #[arg(long, value_name = "US", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub poll_us: u32,
    /// Run on this CPU alone
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

#[derive(Debug, Serialize)]
struct Report {
    port: u16,
    started_ns: i64,
    duration_s: f64,
    received: u64,
    reflected: u64,
    malformed: u64,
    refused: u64,
    dropped: u64,
    rx_stamps_missing: u64,
    /// T3 − T2.
    residence: Option<LatencySummary>,
}

/// Turns the request in `packet` into its answer, but for T3; none when it is no STAMP packet.
///
/// `receive_ns` is T2. The answer's length is the request's (RFC 8762, section 4.3).
fn answer(packet: &mut [u8], ttl: u8, receive_ns: i64) -> Option<ReflectorPacket> {
    let request = SenderPacket::parse(packet)?;
    let answer = ReflectorPacket {
        sequence: request.sequence,
        timestamp: [0; 8],
        error_estimate: stamp::ERROR_ESTIMATE,
        ssid: request.ssid,
        receive_timestamp: stamp::encode(receive_ns),
        sender_sequence: request.sequence,
        sender_timestamp: request.timestamp,
        sender_error_estimate: request.error_estimate,
        sender_ttl: ttl,
    };
    answer.write(packet);
    stamp::reflect_tlvs(&mut packet[stamp::BASE_BYTES..]);
    Some(answer)
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    crate::affinity::pin(args.cpu)?;
    let socket = open(args)?;
    clock::tighten_timers();
    let started_ns = clock::realtime_ns();
    let start = clock::monotonic_ns();
    let end = args.duration.map(|duration| start + duration.as_nanos() as i64);
    eprintln!("ready: reflecting on UDP port {}", args.port);
    let mut report = Report {
        port: args.port,
        started_ns,
        duration_s: 0.0,
        received: 0,
        reflected: 0,
        malformed: 0,
        refused: 0,
        dropped: 0,
        rx_stamps_missing: 0,
        residence: None,
    };
    let mut residence = LatencyRecorder::default();
    let mut buffer = vec![0; wire::LARGEST_FRAME_BYTES];
    let poll_ns = i64::from(args.poll_us) * 1000;
    let mut last = start;
    while !stop::requested() {
        match sockets::receive(socket.as_fd(), &mut buffer) {
            Ok(Some(received)) => {
                let user_rx_ns = clock::realtime_ns();
                report.received += 1;
                report.dropped = received.dropped.map_or(report.dropped, u64::from);
                report.rx_stamps_missing += u64::from(received.kernel_rx_ns.is_none());
                let receive_ns = received.kernel_rx_ns.unwrap_or(user_rx_ns);
                let packet = &mut buffer[..received.bytes];
                match reflect(&socket, packet, &received, receive_ns) {
                    Some(Ok(send_ns)) => {
                        report.reflected += 1;
                        residence.record(send_ns - receive_ns);
                    }
                    Some(Err(_)) => report.refused += 1,
                    None => report.malformed += 1,
                }
                last = clock::monotonic_ns();
            }
            Ok(None) => {
                let now = clock::monotonic_ns();
                if end.is_some_and(|end| now >= end) {
                    break;
                }
                if now - last < poll_ns {
                    std::hint::spin_loop();
                    continue;
                }
                let remaining_ns = end.map_or(NANOS_PER_SECOND, |end| end - now);
                sockets::wait_readable(socket.as_fd(), remaining_ns.min(NANOS_PER_SECOND));
            }
            // The error of an answer that could not be delivered: the sender is gone.
            Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => {}
            Err(error) => {
                return Err(Error::failed("cannot receive", "").caused_by(error));
            }
        }
    }
    report.duration_s = (clock::monotonic_ns() - start) as f64 / 1e9;
    report.residence = residence.summary();
    output::print("reflect", report)
}

/// Answers one packet; returns T3, or none when it is no STAMP packet.
fn reflect(
    socket: &OwnedFd,
    packet: &mut [u8],
    received: &Received,
    receive_ns: i64,
) -> Option<io::Result<i64>> {
    // A reflector that cannot see the TTL says 255 (RFC 8762, section 4.3.1 leaves it open).
    let ttl = received.ttl.unwrap_or(255);
    answer(packet, ttl, receive_ns)?;
    let send_ns = clock::realtime_ns();
    packet[4..12].copy_from_slice(&stamp::encode(send_ns));
    Some(sockets::send_from(socket.as_fd(), packet, received).map(|()| send_ns))
}

fn open(args: &Args) -> Result<OwnedFd> {
    let cannot = |what: &str, error: std::io::Error| {
        Error::failed(format!("cannot {what} UDP port {}", args.port), "").caused_by(error)
    };
    // One socket for both versions: IPv4 arrives as mapped IPv6 addresses.
    let address = args.address.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
    let (socket, address) = match udp(address.is_ipv6()) {
        Ok(socket) => (socket, address),
        // A host without IPv6.
        Err(Errno::EAFNOSUPPORT) if args.address.is_none() => {
            let socket = udp(false).map_err(|errno| cannot("open", errno.into()))?;
            (socket, IpAddr::from([0, 0, 0, 0]))
        }
        Err(errno) => return Err(cannot("open", errno.into())),
    };
    let fd = socket.as_fd();
    if let Some(interface) = &args.interface {
        sockets::bind_to_device(fd, interface)?;
    }
    let options = || -> io::Result<()> {
        if address.is_ipv6() {
            set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0)?;
            set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
            set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        }
        // On an IPv6 socket these are for the mapped addresses.
        set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
        set_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        set_option(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
        sockets::set_receive_buffer(fd, 32 << 20)?;
        sockets::stamp_receipts(fd)
    };
    options().map_err(|error| cannot("set the options of", error))?;
    let local = SocketAddr::new(address, args.port);
    bind(fd.as_raw_fd(), &SockaddrStorage::from(local)).map_err(|errno| match errno {
        Errno::EACCES => Error::failed(
            format!("not allowed to answer on UDP port {}", args.port),
            "run as root, or choose --port above 1023 here and at the sender",
        ),
        Errno::EADDRINUSE => Error::failed(
            format!("UDP port {} is in use", args.port),
            "another reflector runs here (`ss -lun`); stop it or choose another --port",
        ),
        Errno::EADDRNOTAVAIL => Error::bad_input(
            format!("{address} is not an address of this host"),
            "`ip address` lists them",
        ),
        errno => cannot("bind", errno.into()),
    })?;
    Ok(socket)
}

fn udp(ipv6: bool) -> nix::Result<OwnedFd> {
    let family = if ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(family, SockType::Datagram, flags, SockProtocol::Udp)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_NS: i64 = 1_583_020_800_000_000_000;

    fn request(sequence: u32, ssid: u16, bytes: usize) -> Vec<u8> {
        let mut packet = vec![0; bytes];
        let (timestamp, error_estimate) = (stamp::encode(NOW_NS), [0x0a, 1]);
        SenderPacket { sequence, timestamp, error_estimate, ssid }.write(&mut packet);
        packet
    }

    #[test]
    fn an_answer_copies_the_senders_number_and_fields() {
        let mut packet = request(77, 5, 100);
        let answer = answer(&mut packet, 61, NOW_NS + 10).expect("a STAMP packet");
        assert_eq!((answer.sequence, answer.sender_sequence), (77, 77));
        assert_eq!((answer.ssid, answer.sender_ttl), (5, 61));
        assert_eq!(answer.sender_timestamp, stamp::encode(NOW_NS));
        assert_eq!(answer.sender_error_estimate, [0x0a, 1]);
        assert_eq!(answer.receive_timestamp, stamp::encode(NOW_NS + 10));
        assert_eq!(ReflectorPacket::parse(&packet), Some(answer));
        assert_eq!(packet.len(), 100, "the answer is as long as the request");
    }

    #[test]
    fn whatever_arrives_is_answered_in_its_own_length_or_not_at_all() {
        pw_cases::check!().for_each(|bytes: &[u8]| {
            let mut packet = bytes.to_vec();
            let answer = answer(&mut packet, 64, NOW_NS);
            assert_eq!(answer.is_some(), bytes.len() >= stamp::BASE_BYTES);
            assert_eq!(packet.len(), bytes.len());
            if answer.is_none() {
                assert_eq!(packet, bytes);
            }
        });
    }
}
