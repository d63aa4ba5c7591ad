//! Before the first sample: resolves the next hop (ARP, ND), waits for a first answer, and chooses the
//! path with the least overhead.

use std::net::UdpSocket;
use std::os::fd::AsFd;

use nix::errno::Errno;

use super::departure::{DepartureWatch, interface_name};
use super::live::Live;
use super::packet::PacketTransport;
use super::redis::RedisTransport;
use super::socket::{ProbeFormat, ProbeRoute, SocketTransport, unreachable};
use super::transport::{Transport, is_warmup};
use crate::clock;
use crate::error::{Error, Result};
use crate::wire::{self, WARMUP_BIT};

/// How probes are sent and received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Path {
    /// `live` above 250k packets/s, `packet` below, where they work; else `socket`.
    #[default]
    Auto,
    /// Whole frames by a packet socket, answers by a ring: stamps closest to the wire.
    Packet,
    /// The kernel's ICMP or UDP sockets: what an application sees.
    Socket,
    /// The generator and the sink of trials inside the kernel, for echo requests at rates that no
    /// program keeps (needs root). There are no user stamps.
    Live,
}

/// Above this rate the kernel's generator sends: a program keeps bursts at a fraction of it.
const LIVE_PPS: f64 = 250_000.0;
/// Interval of warm-up packets [ns].
const INTERVAL_NS: i64 = 100_000_000;
/// How much longer than the first answer took the next ones are waited for: on an emulated machine
/// each of the first packets may take longer than all later ones.
const SLOWDOWN: i64 = 4;
/// Warm-up packets over the chosen path: they fill caches, and the kernel switches receive stamps on
/// in the background.
const ROUNDS: u64 = 10;

/// A path to the target that was tried.
pub struct Ready {
    /// Sends and receives.
    pub senders: Senders,
    /// Output interface.
    pub interface: String,
    /// Source address of the probes.
    pub source: std::net::IpAddr,
    /// Warnings for the report.
    pub warnings: Vec<String>,
}

/// The sender and receiver.
pub enum Senders {
    /// This program, packet by packet.
    User(Box<dyn Transport>),
    /// The kernel, the whole run at once.
    Live(Box<Live>),
}

impl Ready {
    fn user(
        transport: Box<dyn Transport>,
        source: std::net::IpAddr,
        warnings: Vec<String>,
    ) -> Self {
        let interface = transport.interface().0;
        Self { senders: Senders::User(transport), interface, source, warnings }
    }
}

/// The probes to send and how.
#[derive(Debug)]
pub struct Request {
    /// Kind of the probes.
    pub kind: ProbeFormat,
    /// Route to the target.
    pub route: ProbeRoute,
    /// Payload behind the ICMP or UDP header.
    pub payload_bytes: usize,
    /// Frame size with its FCS.
    pub size_bytes: usize,
    /// Path.
    pub path: Path,
    /// Highest rate, within bursts.
    pub peak_pps: f64,
    /// How many packets.
    pub count: u64,
    /// The CPU that sends.
    pub cpu: Option<usize>,
    /// Whether a second thread may look for answers.
    pub watch: bool,
    /// How long to wait for the first answer [ns].
    pub patience_ns: i64,
}

/// Opens the fastest allowed path for the probes and tries it.
///
/// # Errors
/// No route, no neighbour, no answer, too large for the MTU; or the requested path cannot be used.
pub fn prepare(request: &Request, stop: &dyn Fn() -> bool) -> Result<Ready> {
    let Request { kind, ref route, payload_bytes, size_bytes, path, peak_pps, .. } = *request;
    let patience_ns = request.patience_ns;
    let mut socket = SocketTransport::open(kind, route, payload_bytes)?;
    let source = socket.source();
    let departures = DepartureWatch::open();
    let first_ns = await_answer(&mut socket, route, size_bytes, patience_ns, stop)?;
    let wait_ns = INTERVAL_NS.max(SLOWDOWN * first_ns);
    let departure = match &departures {
        Ok(departures) => departures.next(socket.probe(), route.target.ip()).ok().flatten(),
        Err(_) => None,
    };
    if let Some(departure) = &departure
        && let Ok(name) = interface_name(departure.interface)
    {
        socket.set_interface(&name);
    }
    if path == Path::Socket {
        warm(&mut socket, wait_ns, stop);
        return Ok(Ready::user(Box::new(socket), source, Vec::new()));
    }
    let mut warnings = Vec::new();
    if path == Path::Live || (path == Path::Auto && peak_pps > LIVE_PPS) {
        let live = match &departure {
            Some(departure) => Live::open(departure, socket.probe(), request.count, request.cpu),
            None => Err(Error::failed("the kernel's own probe was not seen to leave", "")),
        };
        match live {
            Ok(live) => {
                let interface = socket.interface().0;
                return Ok(Ready {
                    senders: Senders::Live(Box::new(live)),
                    interface,
                    source,
                    warnings,
                });
            }
            Err(error) if path == Path::Live => return Err(error),
            Err(error) => {
                warnings.push(format!("not sent by the kernel's generator: {}", error.what));
            }
        }
    }
    let probe = socket.probe();
    let why = match (departures, departure) {
        (Err(error), _) => format!("packet sockets are closed to this user ({error})"),
        (_, None) => "the kernel's own probe was not seen to leave".to_owned(),
        (_, Some(departure)) => match PacketTransport::open(&departure, probe, peak_pps) {
            Ok(mut packet) => {
                if warm(&mut packet, wait_ns, stop) > 0 {
                    if request.watch {
                        packet.watch();
                    }
                    packet.hold(socket).map_err(|error| {
                        Error::failed("cannot keep the probes' port", "").caused_by(error)
                    })?;
                    return Ok(Ready::user(Box::new(packet), source, warnings));
                }
                "no answer came to frames of a packet socket".to_owned()
            }
            Err(error) => error.to_string(),
        },
    };
    if path == Path::Packet {
        return Err(Error::failed(
            format!("cannot send whole frames to {}: {why}", route.target.ip()),
            "use --path socket, or run where CAP_NET_RAW is held",
        ));
    }
    warm(&mut socket, wait_ns, stop);
    warnings
        .push(format!("probes go through the kernel's sockets, whose cost is in rtt_user: {why}"));
    Ok(Ready::user(Box::new(socket), source, warnings))
}

/// Connects to a Redis server and waits for its answer to a message of `message_bytes`.
///
/// # Errors
/// Nothing listens, or not Redis; no answer within `patience_ns`.
pub fn prepare_redis(
    route: &ProbeRoute,
    message_bytes: usize,
    patience_ns: i64,
    stop: &dyn Fn() -> bool,
) -> Result<Ready> {
    let begin = clock::monotonic_ns();
    let mut connection = RedisTransport::connect(route, message_bytes, patience_ns)?;
    let source = connection.source();
    let silent = || {
        Error::failed(
            format!("{} took the connection and answered no request", route.target),
            "does a Redis server listen there? Name its port with --port",
        )
    };
    connection.prepare(WARMUP_BIT);
    let mut answer = connection.transmit().map(|_| None);
    while let Ok(None) = answer {
        let remaining_ns = patience_ns - (clock::monotonic_ns() - begin);
        if remaining_ns <= 0 || stop() {
            return Err(silent());
        }
        answer = connection.wait(remaining_ns.min(INTERVAL_NS)).and_then(|()| connection.receive());
    }
    if answer.is_err() {
        return Err(connection.ended().unwrap_or_else(silent));
    }
    let first_ns = clock::monotonic_ns() - begin;
    warm(&mut connection, INTERVAL_NS.max(SLOWDOWN * first_ns), stop);
    Ok(Ready::user(Box::new(connection), source, Vec::new()))
}

/// Sends warm-up packets until one is answered; returns the time since the last was sent [ns].
fn await_answer(
    socket: &mut SocketTransport,
    route: &ProbeRoute,
    size_bytes: usize,
    patience_ns: i64,
    stop: &dyn Fn() -> bool,
) -> Result<i64> {
    let begin = clock::monotonic_ns();
    let mut number = 0;
    loop {
        socket.prepare(WARMUP_BIT | number);
        number += 1;
        if let Err(error) = socket.transmit() {
            match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
                Errno::EMSGSIZE => return Err(too_large(route, size_bytes)),
                Errno::ENOBUFS | Errno::EAGAIN | Errno::EINTR => {}
                errno => return Err(unreachable(route, errno)),
            }
        }
        let sent = clock::monotonic_ns();
        let next = sent + INTERVAL_NS;
        loop {
            match socket.receive() {
                Ok(Some(_)) => return Ok(clock::monotonic_ns() - sent),
                Ok(None) => {}
                Err(error) => {
                    let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
                    return Err(unreachable(route, errno));
                }
            }
            if let Some(errno) = socket.failure() {
                return Err(unreachable(route, Errno::from_raw(errno)));
            }
            let now = clock::monotonic_ns();
            if stop() {
                return Err(Error::failed("interrupted before the first answer", ""));
            }
            if now >= next {
                break;
            }
            socket
                .wait(next - now)
                .map_err(|error| Error::failed("cannot wait for answers", "").caused_by(error))?;
        }
        if clock::monotonic_ns() - begin > patience_ns {
            return Err(silent(route, patience_ns));
        }
    }
}

/// Sends warm-up packets one after the other, each awaited for `wait_ns`; returns the number of
/// answers.
fn warm(transport: &mut dyn Transport, wait_ns: i64, stop: &dyn Fn() -> bool) -> u64 {
    let mut answered = 0;
    for round in 0..ROUNDS {
        transport.prepare(WARMUP_BIT | (1_000 + round));
        if transport.transmit().is_ok() {
            let end = clock::monotonic_ns() + wait_ns;
            while clock::monotonic_ns() < end && !stop() {
                match transport.receive() {
                    Ok(Some(arrival)) if is_warmup(arrival.sequence) => {
                        answered += 1;
                        break;
                    }
                    _ => std::hint::spin_loop(),
                }
            }
        }
        if answered == 0 && round >= 3 {
            break;
        }
        // The kernel takes some milliseconds to switch receive stamps on.
        clock::sleep_until(clock::monotonic_ns() + 2_000_000);
        while transport.transmit_stamp().is_some() {}
    }
    answered
}

fn silent(route: &ProbeRoute, patience_ns: i64) -> Error {
    let (target, port) = (route.target.ip(), route.target.port());
    let seconds = patience_ns as f64 / 1e9;
    if port == 0 {
        Error::failed(
            format!("{target} did not answer an echo request within {seconds} s"),
            "is it up, and does it answer echo requests (net.ipv4.icmp_echo_ignore_all, firewall)?",
        )
    } else {
        Error::failed(
            format!("no STAMP answer from {target}, UDP port {port}, within {seconds} s"),
            "start `pw-probe reflect` there, or name its port with --port; is there a firewall?",
        )
    }
}

fn too_large(route: &ProbeRoute, size_bytes: usize) -> Error {
    let what =
        format!("a frame of {size_bytes} bytes does not fit the path to {}", route.target.ip());
    // A frame is the MTU with Ethernet header and FCS.
    let remedy = match path_mtu(route) {
        Some(mtu) => format!(
            "its MTU is {mtu}: the largest is --size {}, or raise the MTU (ip link set IF mtu N)",
            mtu + 18
        ),
        None => "choose a smaller --size, or raise the MTU (ip link set IF mtu N)".to_owned(),
    };
    Error::bad_input(what, remedy)
}

fn path_mtu(route: &ProbeRoute) -> Option<i32> {
    let ipv6 = route.target.is_ipv6();
    let socket = UdpSocket::bind((wire::unspecified(ipv6), 0)).ok()?;
    let mut target = route.target;
    target.set_port(9);
    socket.connect(target).ok()?;
    let (level, name) =
        if ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_MTU) } else { (libc::IPPROTO_IP, libc::IP_MTU) };
    crate::timestamping::get_option(socket.as_fd(), level, name).ok()
}
