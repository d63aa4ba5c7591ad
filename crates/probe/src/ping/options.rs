//! The options of `pw-probe ping`, and the order that follows from them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::{record, redis, session};
use crate::clock::Schedule;
use crate::error::{Error, Result};
use crate::stamp;
use crate::stop::Lifetime;
use crate::{units, wire};

/// The protocol of the probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// ICMP or ICMPv6 echo: any host answers.
    Icmp,
    /// STAMP (RFC 8762) over UDP: `pw-probe reflect` or another reflector answers.
    Stamp,
    /// Requests to a Redis server over one TCP connection: an application's response time.
    Redis,
}

/// How probes are sent and received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Path {
    /// `live` for echo requests above 250k packets/s where it works, else `packet`.
    #[default]
    Auto,
    /// Whole frames by a packet socket, answers by a ring.
    Packet,
    /// The generator and the sink of trials inside the kernel, for echo requests at rates that no
    /// program keeps (needs root). There are no user stamps.
    Live,
}

/// Measure round trip times to TARGET, by ICMP echo, STAMP or requests to a Redis server.
///
/// Packets leave on schedule whether or not answers came. Each packet is stamped when it was due,
/// when this program sent it, when the kernel handed it to the driver, when the driver handed over
/// the answer, and when this program had it. Prints a table on a terminal; elsewhere, or with --json,
/// one JSON object that docs/reference/probe-output.md describes. Needs CAP_NET_RAW.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe ping 198.18.0.2 --count 1000                   1000 packets at 1000/s\n  \
    pw-probe ping 198.18.0.2 --rate 10k --duration 5        5 s at 10 000/s\n  \
    pw-probe ping 198.18.0.2 --rate 1M --burst 100 --burst-every 0.01 --duration 5\n  \
    \x20                                                       100 packets 1 us apart, every 10 ms\n  \
    pw-probe ping fe80::2%eth0 --size 128 --packets rtt.csv\n  \
    pw-probe ping 198.18.0.2 --proto stamp                  against `pw-probe reflect`\n  \
    pw-probe ping 198.18.0.2 --proto redis --rate 5k        against `redis-server`\n\n\
    Ctrl-C ends the run; what was measured until then is printed.")]
pub struct Args {
    /// IPv4 or IPv6 address; a link-local one with its interface, as fe80::1%eth0
    pub target: String,
    /// Packets per second, from 1 to 1M and beyond: 1000, 10k, 1M
    #[arg(long, value_name = "PPS", default_value = "1000", value_parser = units::pps)]
    pub rate: f64,
    /// Number of packets [default: 1000 where no duration is given]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// How long to send [s]; with --count whichever ends first
    #[arg(long, value_name = "S", value_parser = units::seconds)]
    pub duration: Option<Duration>,
    /// Send N packets back to back at the rate, then pause; needs --burst-every
    #[arg(long, value_name = "N", requires = "burst_every",
          value_parser = clap::value_parser!(u64).range(2..))]
    pub burst: Option<u64>,
    /// Time from the beginning of one burst to that of the next [s]
    #[arg(long, value_name = "S", requires = "burst", value_parser = units::seconds)]
    pub burst_every: Option<Duration>,
    /// Ethernet frame size with its 4-byte FCS [byte], 64 to 9000 [default: the smallest]
    #[arg(long, value_name = "BYTES")]
    pub size: Option<usize>,
    /// Protocol of the probes
    #[arg(long, value_enum, default_value_t = Protocol::Icmp)]
    pub proto: Protocol,
    /// Port of the STAMP reflector (UDP) or of the Redis server (TCP) [default: 862 or 6379]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// An answer later than this is late [s]; also how long to wait after the last packet
    #[arg(long, value_name = "S", default_value = "1", value_parser = units::seconds)]
    pub timeout: Duration,
    /// How long to wait for the first answer of all [s]: the kernel gives up on a neighbour after
    /// 3 s; a machine whose CPU is emulated may answer much later
    #[arg(long, value_name = "S", default_value = "3.5", value_parser = units::seconds)]
    pub patience: Duration,
    /// Write every packet's stamps to this CSV file
    #[arg(long, value_name = "FILE")]
    pub packets: Option<PathBuf>,
    /// Interface to send by [default: the route's]
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
    /// Source address [default: the route's]
    #[arg(long, value_name = "ADDRESS")]
    pub source: Option<IpAddr>,
    /// How packets are sent and answers received
    #[arg(long, value_enum, default_value_t = Path::Auto)]
    pub path: Path,
    /// Do without the second thread that looks for answers at rates up to 10k. It notes when an
    /// answer lies in memory while the kernel still works on it, and keeps a second CPU busy around
    /// each packet
    #[arg(long)]
    pub no_watch: bool,
    /// Run on this CPU alone
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Print JSON on a terminal too
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

impl Args {
    /// The destination port; none where the protocol has no ports.
    pub fn port(&self) -> Option<u16> {
        match self.proto {
            Protocol::Icmp => None,
            Protocol::Stamp => Some(self.port.unwrap_or(stamp::PORT)),
            Protocol::Redis => Some(self.port.unwrap_or(redis::PORT)),
        }
    }
}

/// Parses an address literal; IPv6 may end in `%interface` (name or number).
///
/// # Errors
/// It is no address, or there is no such interface.
pub fn parse_target(text: &str) -> Result<SocketAddr> {
    let wrong = || {
        Error::bad_input(
            format!("'{text}' is not an IPv4 or IPv6 address"),
            "give an address, for example 198.18.0.2, 2001:2::2 or fe80::2%eth0; names are not \
             looked up",
        )
    };
    let Some((address, zone)) = text.split_once('%') else {
        return Ok(SocketAddr::new(text.parse().map_err(|_| wrong())?, 0));
    };
    let address: Ipv6Addr = address.parse().map_err(|_| wrong())?;
    let scope = match zone.parse() {
        Ok(number) => number,
        Err(_) => nix::net::if_::if_nametoindex(zone).map_err(|_| {
            Error::bad_input(
                format!("there is no interface '{zone}' here"),
                "`ip link` lists them; write fe80::2%eth0",
            )
        })?,
    };
    Ok(SocketAddrV6::new(address, 0, 0, scope).into())
}

/// The target with a port.
pub fn with_port(mut target: SocketAddr, port: u16) -> SocketAddr {
    target.set_port(port);
    target
}

/// The sizes of a probe's frame with its FCS, and of its payload behind the ICMP or UDP header; of a
/// request to Redis of its message [bytes].
///
/// # Errors
/// The protocol has no frame of that size.
pub fn sizes(args: &Args, target: IpAddr) -> Result<(usize, usize)> {
    match args.proto {
        Protocol::Icmp => wire::sizes(args.size, target, wire::ECHO_HEADER_BYTES, "echo requests"),
        Protocol::Stamp => wire::sizes(args.size, target, stamp::BASE_BYTES, "STAMP"),
        Protocol::Redis => {
            let message_bytes = redis::message_bytes(args.size, target)?;
            Ok((redis::size_bytes(message_bytes, target), message_bytes))
        }
    }
}

/// The packets to send by the options.
///
/// # Errors
/// No packet is due, or more than sequence numbers can distinguish.
pub fn order(args: &Args) -> Result<session::ProbeOrder> {
    let schedule = Schedule::of(args.rate, args.burst.zip(args.burst_every), "--burst-every")?;
    let within = args.duration.map(|duration| schedule.count_within(duration));
    let count = match (args.count, within) {
        (Some(count), Some(within)) => count.min(within),
        (count, within) => count.or(within).unwrap_or(1000),
    };
    if count == 0 {
        return Err(Error::bad_input(
            "no packet is due within --duration",
            "give a longer --duration or a higher --rate",
        ));
    }
    if args.proto == Protocol::Stamp && count > u64::from(stamp::WARMUP) {
        return Err(Error::bad_input(
            format!("{count} packets are more than STAMP's 32-bit sequence numbers can tell apart"),
            "send fewer in one run, or use --proto icmp",
        ));
    }
    Ok(session::ProbeOrder {
        schedule,
        count,
        deadline_ns: args.duration.map(|duration| duration.as_nanos() as i64),
        timeout_ns: args.timeout.as_nanos() as i64,
    })
}

/// Checks that memory holds the stamps of all packets, which are written after the run.
///
/// # Errors
/// There is too little memory.
pub fn check_memory(count: u64) -> Result<()> {
    let needed = count.saturating_mul(size_of::<record::Record>() as u64);
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(1 << 30, |kib| kib * 1024);
    if needed <= available / 2 {
        return Ok(());
    }
    Err(Error::bad_input(
        format!(
            "{count} packets need {} MB of memory for their stamps, and {} MB are free",
            needed >> 20,
            available >> 20
        ),
        format!(
            "send at most {} packets in one run",
            available / 2 / size_of::<record::Record>() as u64
        ),
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Args {
        Command::parse_from(std::iter::once("ping").chain(line.split(' '))).args
    }

    #[test]
    fn targets_are_literals() {
        assert!(parse_target("198.18.0.2").is_ok_and(|target| target.is_ipv4()));
        assert!(parse_target("2001:2::2").is_ok_and(|target| target.is_ipv6()));
        let local = parse_target("fe80::1%1").expect("number of an interface");
        assert!(matches!(local, SocketAddr::V6(address) if address.scope_id() == 1));
        for wrong in ["example.org", "198.18.0.2%1", "", "%", "fe80::1%no-such-if"] {
            assert_eq!(
                parse_target(wrong).map_err(|error| error.kind),
                Err(pw_error::Kind::BadInput),
                "{wrong}"
            );
        }
        pw_cases::check!().with_type::<String>().for_each(|text| {
            let _ = parse_target(text);
        });
    }

    #[test]
    fn a_burst_is_spaced_by_the_rate_and_repeated_by_its_period() {
        let order =
            order(&parse("198.18.0.2 --rate 1M --burst 100 --burst-every 0.01 --duration 1"))
                .expect("valid");
        assert_eq!(order.count, 10_000);
        assert_eq!(order.schedule.due_ns(199), 10_099_000);
    }

    #[test]
    fn a_count_and_a_duration_end_at_whichever_comes_first() {
        for (count, expected) in [(300, 300), (3_000_000, 2_000)] {
            let line = format!("198.18.0.2 --rate 1k --duration 2 --count {count}");
            let order = order(&parse(&line)).expect("valid");
            assert_eq!((order.count, order.deadline_ns), (expected, Some(2_000_000_000)));
        }
    }

    #[test]
    fn a_burst_longer_than_its_period_is_refused_with_the_least_period() {
        let error = order(&parse("198.18.0.2 --rate 1k --burst 100 --burst-every 0.01"))
            .expect_err("100 ms do not fit into 10 ms");
        assert_eq!(error.kind, pw_error::Kind::BadInput);
        assert!(error.remedy.contains("0.1"), "{}", error.remedy);
    }

    #[test]
    fn a_run_that_cannot_be_held_in_memory_is_refused() {
        assert!(check_memory(1_000_000).is_ok());
        let error = check_memory(u64::MAX).expect_err("no machine has that");
        assert_eq!(error.kind, pw_error::Kind::BadInput);
    }
}
