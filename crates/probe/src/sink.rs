//! The receiver of background load: counts the UDP datagrams to a port by source and discards them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{MsgFlags, SockaddrStorage, recvmsg};
use serde::Serialize;
use serde_json::json;

use crate::clock;
use crate::error::{Error, Result};
use crate::output;
use crate::sockets;
use crate::stop::{self, Lifetime};

/// Takes UDP datagrams on a port, counts them by source address, and discards them.
///
/// Needs no privileges, one thread and some kilobytes. Prints `ready` on stderr once datagrams
/// are counted, and its counts when it ends.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe sink --listen 198.18.0.2:5000\n  \
    pw-probe sink --listen [::]:5000 --duration 30 --with-parent      IPv4 and IPv6")]
pub struct Args {
    /// Where to listen; [::]:PORT takes IPv4 too
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: SocketAddr,
    /// How long to count [s]; without it until SIGINT or SIGTERM
    #[arg(long, value_name = "S", value_parser = crate::units::seconds)]
    pub duration: Option<Duration>,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Count {
    packets: u64,
    payload_bytes: u64,
}

/// Sources beyond this number are counted together, so that memory stays bounded.
const MOST_SOURCES: usize = 4096;

/// Longest wait for a datagram.
const WAIT: Duration = Duration::from_millis(50);

/// Longest time for receiving the datagrams that had arrived by the end [ns].
const DRAIN_NS: i64 = 50_000_000;

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    let socket = UdpSocket::bind(args.listen)
        // A bounded wait, so that the end of --duration is seen without traffic.
        .and_then(|socket| socket.set_read_timeout(Some(WAIT)).map(|()| socket))
        .map_err(|error| sockets::cannot_listen(args.listen, error))?;
    let started_ns = clock::realtime_ns();
    let start_ns = clock::monotonic_ns();
    let end_ns = clock::end_ns(start_ns, args.duration);
    eprintln!("ready");

    let mut sources: BTreeMap<IpAddr, Count> = BTreeMap::new();
    let (mut total, mut other) = (Count::default(), Count::default());
    let mut ended_ns = None;
    loop {
        let now = clock::monotonic_ns();
        if stop::requested() || now >= end_ns {
            ended_ns.get_or_insert(now);
        }
        // Datagrams still in the socket count too, for a bounded time.
        let ending = ended_ns.is_some();
        if ended_ns.is_some_and(|ended_ns| now > ended_ns + DRAIN_NS) {
            break;
        }
        match receive(&socket, ending) {
            Ok((bytes, from)) => {
                let full = sources.len() >= MOST_SOURCES && !sources.contains_key(&from);
                let source = if full { &mut other } else { sources.entry(from).or_default() };
                for count in [source, &mut total] {
                    count.packets += 1;
                    count.payload_bytes += bytes as u64;
                }
            }
            Err(nix::Error::EAGAIN) if ending => break,
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => {}
            Err(errno) => {
                return Err(Error::failed(format!("cannot receive on {}", args.listen), "")
                    .caused_by(errno));
            }
        }
    }
    let mut by_source: BTreeMap<String, Count> =
        sources.into_iter().map(|(ip, count)| (ip.to_string(), count)).collect();
    if other.packets > 0 {
        by_source.insert("other".into(), other);
    }
    let body = json!({
        "listen": args.listen,
        "started_ns": started_ns,
        "duration_s": (clock::monotonic_ns() - start_ns) as f64 / 1e9,
        "packets": total.packets,
        "payload_bytes": total.payload_bytes,
        "dropped": dropped(&socket),
        "sources": by_source,
        "interrupted": args.duration.is_some() && stop::requested(),
    });
    output::print("sink", body)
}

/// Receives one datagram; returns the length of its payload (by MSG_TRUNC, without a copy) and its
/// source.
fn receive(socket: &UdpSocket, nonblocking: bool) -> nix::Result<(usize, IpAddr)> {
    let mut flags = MsgFlags::MSG_TRUNC;
    flags.set(MsgFlags::MSG_DONTWAIT, nonblocking);
    let message = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut [], None, flags)?;
    let from = message.address.and_then(|address| {
        let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().to_canonical()))
    });
    Ok((message.bytes, from.unwrap_or(Ipv6Addr::UNSPECIFIED.into())))
}

/// Datagrams that the kernel dropped because the socket was full (SO_MEMINFO, Linux 4.12).
fn dropped(socket: &UdpSocket) -> Option<u64> {
    /// Index of the drops (linux/sock_diag.h).
    const SK_MEMINFO_DROPS: usize = 8;
    let info: std::io::Result<[u32; SK_MEMINFO_DROPS + 1]> =
        sockets::get_option(socket, libc::SOL_SOCKET, libc::SO_MEMINFO);
    info.ok().map(|info| info[SK_MEMINFO_DROPS].into())
}
