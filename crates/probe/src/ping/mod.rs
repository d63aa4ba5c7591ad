//! `pw-probe ping`: round trip times by ICMP echo or STAMP, open loop. Knows nothing of planes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::{Path as FilePath, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::clock::{ClockStep, NANOS_PER_SECOND, Schedule};
use crate::cpu::{CpuMeter, CpuUsage};
use crate::error::{Error, Result};
use crate::histogram::LatencySummary;
use crate::output::Output;
use crate::stamp::{self, TimeFormat};
use crate::stop::{self, Lifetime};
use crate::{units, wire};

mod packet;
mod probe;
mod record;
mod rehearsal;
mod session;
mod socket;
mod transport;
mod warmup;
mod watch;

use record::{Counts, Plan, Tally};
use socket::{Kind, Route};
pub use warmup::Path;

/// The protocol of the probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// ICMP or ICMPv6 echo: any host answers.
    Icmp,
    /// STAMP (RFC 8762) over UDP: `pw-probe reflect` or another reflector answers.
    Stamp,
}

/// Round trip times to TARGET, by ICMP echo or STAMP.
///
/// Packets leave on schedule whether or not answers came. Each packet is stamped when it was due,
/// when this program sent it, when the kernel handed it to the driver, when the driver handed over
/// the answer, and when this program had it. Prints one JSON object; docs/reference/formats.md describes it.
///
/// With CAP_NET_RAW whole frames are sent by a packet socket and answers are read from a ring, which
/// keeps this program's share of the time small; else, or with --path socket, the kernel's sockets
/// do it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe ping 198.18.0.2 --count 1000                   1000 packets at 1000/s\n  \
    pw-probe ping 198.18.0.2 --rate 10k --duration 5        5 s at 10 000/s\n  \
    pw-probe ping 198.18.0.2 --rate 1M --burst 100 --burst-every 0.01 --duration 5\n  \
    \x20                                                       100 packets 1 us apart, every 10 ms\n  \
    pw-probe ping fe80::2%eth0 --size 128 --packets rtt.csv\n  \
    pw-probe ping 198.18.0.2 --proto stamp                  against `pw-probe reflect`\n\n\
    Ctrl-C ends the run; what was measured until then is printed.")]
pub struct Args {
    /// IPv4 or IPv6 address; a link-local one with its interface, as fe80::1%eth0
    pub target: String,
    /// Packets per second, from 1 to 1M and beyond: 1000, 10k, 1M
    #[arg(long, value_name = "PPS", default_value = "1000", value_parser = units::pps)]
    pub rate: f64,
    /// Number of packets [default: 1000 where no duration is given]
    #[arg(long, value_name = "N", conflicts_with = "duration",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// How long to send [s]
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
    /// UDP port of the STAMP reflector
    #[arg(long, default_value_t = stamp::PORT)]
    pub port: u16,
    /// How STAMP packets carry times
    #[arg(long, value_enum, default_value_t = TimeFormat::Ntp)]
    pub time_format: TimeFormat,
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
    /// Differentiated services code point, 0 to 63
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..64))]
    pub dscp: u8,
    /// TTL or hop limit [default: the system's]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..))]
    pub ttl: Option<u8>,
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
    /// Run with real-time priority (SCHED_FIFO), where that is allowed
    #[arg(long)]
    pub realtime: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its help comes from its own fields")]
    pub lifetime: Lifetime,
}

/// Above this rate a watching thread would keep a CPU busy all the time.
const WATCHED_PPS: f64 = 10_000.0;

#[derive(Debug, Serialize)]
struct Load {
    intended_pps: f64,
    achieved_pps: f64,
    size_bytes: usize,
}

#[derive(Debug, Serialize)]
struct Burst {
    packets: u64,
    every_ns: u64,
    intended_pps: f64,
    achieved_pps: Option<f64>,
    achieved_kernel_pps: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Report {
    target: String,
    source: IpAddr,
    proto: Protocol,
    ip_version: u8,
    path: &'static str,
    interface: String,
    size_bytes: usize,
    size_includes_fcs: bool,
    started: String,
    started_ns: i64,
    duration_s: f64,
    timeout_ns: i64,
    interrupted: bool,
    load: Load,
    burst: Option<Burst>,
    planned: u64,
    counts: Counts,
    refused: BTreeMap<String, u64>,
    rtt_user: Option<LatencySummary>,
    rtt_kernel: Option<LatencySummary>,
    slip: Option<LatencySummary>,
    reflector: Option<LatencySummary>,
    tx_stamps_missing: u64,
    rx_stamps_missing: u64,
    receive_dropped: u64,
    clock_steps: Vec<ClockStep>,
    clock_left_out: u64,
    limits: Vec<&'static str>,
    warnings: Vec<String>,
    cpu: Option<CpuUsage>,
}

impl Serialize for Protocol {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Icmp => "icmp",
            Self::Stamp => "stamp",
        })
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    let target = parse_target(&args.target)?;
    let order = order(args)?;
    let is_stamp = args.proto == Protocol::Stamp;
    let least = probe::Probe::least_payload_bytes(is_stamp);
    let size_bytes = args.size.unwrap_or_else(|| smallest(target.ip(), least));
    let name = if is_stamp { "STAMP" } else { "echo requests" };
    let payload_bytes = wire::payload_bytes(size_bytes, target.ip(), least, name)?;
    check_memory(order.count)?;
    // Opened before the run, so that a bad path costs no measurement.
    let packets = args.packets.as_deref().map(create).transpose()?;
    let route = Route {
        target: if is_stamp { with_port(target, args.port) } else { target },
        source: args.source,
        interface: args.interface.clone(),
        dscp: args.dscp,
        ttl: args.ttl,
    };
    if args.source.is_some_and(|source| source.is_ipv4() != target.is_ipv4()) {
        return Err(Error::bad_input(
            "source and target are of different IP versions",
            "give --source an address of the target's version, or leave it out",
        ));
    }
    let mut warnings = place_thread(args)?;
    let identifier = std::process::id() as u16;
    let kind = if is_stamp {
        Kind::Stamp(args.time_format, identifier.max(1))
    } else {
        Kind::Echo(identifier)
    };
    let wish = warmup::Wish {
        kind,
        route,
        payload_bytes,
        size_bytes,
        path: args.path,
        peak_pps: args.rate,
        watch: !args.no_watch && args.rate <= WATCHED_PPS,
        patience_ns: args.patience.as_nanos() as i64,
    };
    let mut ready = warmup::prepare(&wish, &stop::requested)?;
    warnings.append(&mut ready.warnings);
    let meter = CpuMeter::start().ok();
    let outcome = session::run(ready.transport.as_mut(), order, &stop::requested);
    let cpu = meter.and_then(|meter| meter.usage().ok());

    let plan = Plan {
        schedule: order.schedule,
        start_ns: outcome.start_ns,
        timeout_ns: order.timeout_ns,
        steps: &outcome.steps,
    };
    let records = outcome.records.as_slice();
    let tally = record::tally(records, &plan);
    let written = packets.map(|(file, path)| write_packets(file, &path, records, &plan));
    let load = Load {
        intended_pps: order.schedule.mean_pps(),
        achieved_pps: achieved_pps(&tally, &order.schedule),
        size_bytes,
    };
    let burst = args.burst.zip(args.burst_every).map(|(packets, every)| {
        let (achieved_pps, achieved_kernel_pps) =
            record::burst_rates(records, packets, &outcome.burst_ends_ns);
        Burst {
            packets,
            every_ns: every.as_nanos() as u64,
            intended_pps: args.rate,
            achieved_pps,
            achieved_kernel_pps,
        }
    });
    let receive_dropped = ready.transport.dropped();
    let steps = outcome.steps.steps();
    let mut limits = Vec::new();
    if rate_not_kept(&load, burst.as_ref(), &tally, &outcome.refused) {
        limits.push("generator");
        warnings.push(rate_warning(&load, burst.as_ref(), &tally));
    }
    if receive_dropped > 0 {
        limits.push("sink");
        warnings.push(format!(
            "{receive_dropped} answers found this program's receive buffer full and count as lost"
        ));
    }
    if !steps.is_empty() {
        limits.push("clock");
        let sizes: Vec<String> =
            steps.iter().map(|step| format!("{:+.6} s", step.size_ns as f64 / 1e9)).collect();
        warnings.push(format!(
            "the wall clock was stepped ({}); {} samples around it are in no distribution: stop \
             time synchronisation while you measure, or let it slew",
            sizes.join(", "),
            tally.straddling
        ));
    }
    for (error, count) in &outcome.refused {
        warnings.push(format!("the kernel refused {count} packets ({error})"));
    }
    if tally.tx_stamps_missing > 0 || tally.rx_stamps_missing > 0 {
        warnings.push(format!(
            "{} packets have no kernel transmit stamp and {} answers no receive stamp; they are \
             not in rtt_kernel",
            tally.tx_stamps_missing, tally.rx_stamps_missing
        ));
    }
    let report = Report {
        target: args.target.clone(),
        source: ready.source,
        proto: args.proto,
        ip_version: if target.is_ipv4() { 4 } else { 6 },
        path: ready.transport.name(),
        interface: ready.transport.interface().0,
        size_bytes,
        size_includes_fcs: true,
        started: utc(outcome.start_ns),
        started_ns: outcome.start_ns,
        duration_s: outcome.elapsed_ns as f64 / 1e9,
        timeout_ns: order.timeout_ns,
        interrupted: outcome.interrupted || outcome.failure.is_some(),
        load,
        burst,
        planned: order.count,
        counts: tally.counts,
        refused: outcome.refused,
        rtt_user: tally.rtt_user.summary(),
        rtt_kernel: tally.rtt_kernel.summary(),
        slip: tally.slip.summary(),
        reflector: tally.residence.summary(),
        tx_stamps_missing: tally.tx_stamps_missing,
        rx_stamps_missing: tally.rx_stamps_missing,
        receive_dropped,
        clock_steps: steps.to_vec(),
        clock_left_out: tally.straddling,
        limits,
        warnings,
        cpu,
    };
    Output::new("ping", report).print()?;
    written.transpose()?;
    outcome.failure.map_or(Ok(()), Err)
}

/// An address literal; IPv6 with `%interface` (name or number) behind it.
fn parse_target(text: &str) -> Result<SocketAddr> {
    let wrong = || {
        Error::bad_input(
            format!("'{text}' is no IPv4 or IPv6 address"),
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

fn with_port(mut target: SocketAddr, port: u16) -> SocketAddr {
    target.set_port(port);
    target
}

fn smallest(target: IpAddr, least: usize) -> usize {
    let around = wire::ETHERNET_HEADER_BYTES + wire::FCS_BYTES + wire::UPPER_HEADER_BYTES;
    (around + wire::ip_header_bytes(target) + least).max(wire::SMALLEST_FRAME_BYTES)
}

fn order(args: &Args) -> Result<session::Order> {
    let schedule = match args.burst.zip(args.burst_every) {
        None => Schedule::steady(args.rate),
        Some((burst, every)) => {
            let burst_s = burst as f64 / args.rate;
            if burst_s > every.as_secs_f64() {
                return Err(Error::bad_input(
                    format!(
                        "{burst} packets at {} packets/s take {burst_s} s, longer than --burst-every",
                        args.rate
                    ),
                    format!("give --burst-every {burst_s} or more"),
                ));
            }
            Schedule::bursts(burst, args.rate, every)
        }
    };
    let (count, deadline_ns) = match (args.count, args.duration) {
        (Some(count), _) => (count, None),
        (None, Some(duration)) => {
            (schedule.count_within(duration), Some(duration.as_nanos() as i64))
        }
        (None, None) => (1000, None),
    };
    if count == 0 {
        return Err(Error::bad_input(
            "no packet is due within --duration",
            "give a longer --duration or a higher --rate",
        ));
    }
    if args.proto == Protocol::Stamp && count > u64::from(probe::STAMP_WARMUP) {
        return Err(Error::bad_input(
            format!("{count} packets are more than STAMP's 32-bit sequence numbers can tell apart"),
            "send fewer in one run, or use --proto icmp",
        ));
    }
    Ok(session::Order {
        schedule,
        count,
        burst: args.burst.unwrap_or(1),
        deadline_ns,
        timeout_ns: args.timeout.as_nanos() as i64,
    })
}

/// All stamps are kept in memory until the end, so that nothing disturbs the run.
fn check_memory(count: u64) -> Result<()> {
    let needed = count.saturating_mul(size_of::<record::Record>() as u64);
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
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

/// Puts this thread where the user wants it; returns what could not be done.
fn place_thread(args: &Args) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    if let Some(cpu) = args.cpu {
        pin_to_cpu(cpu)?;
    }
    if args.realtime {
        let parameters = libc::sched_param { sched_priority: 10 };
        // SAFETY: the parameters live through the call.
        let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) };
        if done != 0 {
            warnings.push(format!(
                "real-time priority was refused ({}): needs CAP_SYS_NICE",
                std::io::Error::last_os_error()
            ));
        }
    }
    Ok(warnings)
}

/// Lets this thread run on one CPU alone.
///
/// # Errors
/// There is no such CPU, or it is not allowed to this process.
pub fn pin_to_cpu(cpu: usize) -> Result<()> {
    let mut set = nix::sched::CpuSet::new();
    set.set(cpu)
        .and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set))
        .map_err(|errno| {
            Error::bad_input(
                format!("cannot run on CPU {cpu}: {}", errno.desc()),
                "`nproc` tells how many there are; they count from 0",
            )
        })
}

fn create(path: &FilePath) -> Result<(File, PathBuf)> {
    let file = File::create(path).map_err(|error| {
        Error::bad_input(
            format!("cannot write {}: {error}", path.display()),
            "give --packets a file in a directory that exists and is writable",
        )
    })?;
    Ok((file, path.to_owned()))
}

fn write_packets(
    file: File,
    path: &FilePath,
    records: &[record::Record],
    plan: &Plan<'_>,
) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, file);
    record::write_csv(records, plan, &mut out).and_then(|()| out.flush()).map_err(|error| {
        Error::failed(
            format!("cannot write {}: {error}", path.display()),
            "the file is incomplete; the summary on stdout is not. Make space and measure again",
        )
    })
}

/// Packets per second from the schedule's start to one interval after the last packet; bursts count
/// with their pauses. Zero when nothing was sent.
fn achieved_pps(tally: &Tally, schedule: &Schedule) -> f64 {
    let Some(sending_ns) = tally.sending_ns else { return 0.0 };
    let interval_ns = NANOS_PER_SECOND as f64 / schedule.mean_pps();
    let meant_ns = schedule.due_ns(tally.counts.sent.saturating_sub(1)) as f64 + interval_ns;
    schedule.mean_pps() * meant_ns / (sending_ns as f64 + interval_ns)
}

/// The share of the intended rate that counts as kept.
const KEPT: f64 = 0.999;
/// The same within bursts, which are short.
const KEPT_IN_BURST: f64 = 0.99;

/// Whether the generator fell short: it sent less than 99.9 % of the intended rate while its last
/// packets were late by more than one interval, or less than 99 % within bursts, or packets were
/// refused or left over.
fn rate_not_kept(
    load: &Load,
    burst: Option<&Burst>,
    tally: &Tally,
    refused: &BTreeMap<String, u64>,
) -> bool {
    let interval_ns = NANOS_PER_SECOND as f64 / load.intended_pps;
    let slow = load.achieved_pps < load.intended_pps * KEPT;
    let behind = tally.slip.quantile_ns(0.9) as f64 > interval_ns;
    let slow_burst = burst.is_some_and(|burst| {
        burst.achieved_pps.is_some_and(|achieved| achieved < burst.intended_pps * KEPT_IN_BURST)
    });
    (slow && behind) || slow_burst || !refused.is_empty()
}

fn rate_warning(load: &Load, burst: Option<&Burst>, tally: &Tally) -> String {
    let (what, intended, achieved) = match burst {
        Some(burst) => (" within bursts", burst.intended_pps, burst.achieved_pps),
        None => ("", load.intended_pps, Some(load.achieved_pps)),
    };
    format!(
        "the rate{what} was not kept: {:.0} of {intended:.0} packets/s; 90 % of the packets slipped \
         by up to {} us: lower --rate, or give this program a CPU of its own",
        achieved.unwrap_or(0.0),
        tally.slip.quantile_ns(0.9) / 1000
    )
}

/// A time [ns since 1970] as RFC 3339 UTC with microseconds.
fn utc(unix_ns: i64) -> String {
    let time = UNIX_EPOCH + Duration::from_nanos(unix_ns.max(0) as u64);
    humantime::format_rfc3339_micros(SystemTime::min(time, SystemTime::now() + YEAR)).to_string()
}

const YEAR: Duration = Duration::from_secs(365 * 86_400);

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
            assert_eq!(parse_target(wrong).map_err(|error| error.code), Err(2), "{wrong}");
        }
        bolero::check!().with_type::<String>().for_each(|text| {
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
    fn a_burst_longer_than_its_period_is_refused_with_the_least_period() {
        let error = order(&parse("198.18.0.2 --rate 1k --burst 100 --burst-every 0.01"))
            .expect_err("100 ms do not fit into 10 ms");
        assert_eq!(error.code, 2);
        assert!(error.remedy.contains("0.1"), "{}", error.remedy);
    }

    #[test]
    fn times_are_printed_as_rfc_3339() {
        assert_eq!(utc(1_583_020_800_500_000_000), "2020-03-01T00:00:00.500000Z");
    }

    #[test]
    fn a_run_that_cannot_be_held_in_memory_is_refused() {
        assert!(check_memory(1_000_000).is_ok());
        let error = check_memory(u64::MAX).expect_err("no machine has that");
        assert_eq!(error.code, 2);
    }

    #[test]
    fn the_achieved_rate_is_the_intended_one_when_every_packet_leaves_in_time() {
        let steps = crate::clock::StepDetector::new(&crate::clock::SystemClock);
        for schedule in
            [Schedule::steady(1_000.0), Schedule::bursts(10, 1e6, Duration::from_millis(10))]
        {
            let plan = Plan { schedule, start_ns: 1_000, timeout_ns: 1, steps: &steps };
            for late_ns in [0, 1_000_000] {
                let mut records = record::Records::with_capacity(100);
                for sequence in 0..100 {
                    let slip_ns = if sequence == 99 { late_ns } else { 0 };
                    records.sent(1_000 + schedule.due_ns(sequence) + slip_ns, 0);
                }
                let tally = record::tally(records.as_slice(), &plan);
                let ratio = achieved_pps(&tally, &schedule) / schedule.mean_pps();
                assert_eq!(ratio < 0.9999, late_ns > 0, "{ratio}");
                assert!((0.98..1.0001).contains(&ratio), "{ratio}");
            }
        }
    }
}
