//! `pw-probe ping`: round trip times by ICMP echo, STAMP or a Redis server, open loop.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};

use crate::affinity;
use crate::clock::{NANOS_PER_SECOND, Schedule};
use crate::cpu::{CpuSample, CpuUsage};
use crate::error::{Error, Result};
use crate::output::{self, PacketsFile};
use crate::stop;
use crate::trial::kernel::live::LIVE_SKB;

mod live;
mod options;
mod packet;
mod record;
mod redis;
mod route;
mod session;
mod table;
mod watch;

use live::Live;
pub use options::{Args, Path, Protocol};
use options::{check_memory, order, parse_target, sizes, with_port};
use packet::PacketTransport;
use record::{Intended, Tally};
use redis::RedisTransport;
use route::{Departure, ProbeRoute};
use session::{INTERVAL_NS, ProbeOrder, SessionOutcome, Transport, warm_up};

/// Above this rate the kernel's generator sends: a program keeps bursts at a fraction of it.
const LIVE_PPS: f64 = 250_000.0;
/// Above this rate the watching thread would keep a CPU busy all the time.
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

/// A way to the target that was tried, and what the report says of it.
struct Way {
    sender: Sender,
    path: &'static str,
    interface: String,
    source: IpAddr,
    warnings: Vec<String>,
}

/// What sends and receives.
enum Sender {
    /// This program, packet by packet.
    User(Box<dyn Transport>),
    /// The kernel, the whole run at once.
    Live(Box<Live>),
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    let target = parse_target(&args.target)?;
    let order = order(args)?;
    let (size_bytes, payload_bytes) = sizes(args, target.ip())?;
    check_memory(order.count)?;
    // Opened before the run, so that a bad path costs no measurement.
    let packets = args.packets.as_deref().map(PacketsFile::create).transpose()?;
    let route = ProbeRoute {
        target: args.port().map_or(target, |port| with_port(target, port)),
        source: args.source,
        interface: args.interface.clone(),
    };
    if args.source.is_some_and(|source| source.is_ipv4() != target.is_ipv4()) {
        return Err(Error::bad_input(
            "source and target are of different IP versions",
            "give --source an address of the target's version, or leave it out",
        ));
    }
    affinity::check_cpu(args.cpu)?;
    let mut way = find_way(args, route, payload_bytes, order.count)?;
    let meter = CpuSample::now().ok();
    let (outcome, receive_dropped) = match &mut way.sender {
        Sender::User(transport) => {
            affinity::pin(args.cpu)?;
            let outcome = session::run(transport.as_mut(), order);
            (outcome, transport.dropped())
        }
        // Its own thread is pinned to that CPU.
        Sender::Live(live) => (live.run(&order), 0),
    };
    let cpu = meter.and_then(|meter| meter.usage().ok());

    let plan = Intended {
        schedule: order.schedule,
        start_ns: outcome.start_ns,
        timeout_ns: order.timeout_ns,
    };
    let records = outcome.records.as_slice();
    let written = packets.map(|file| file.write(|out| record::write_csv(records, &plan, out)));
    let (report, failure) =
        report(args, order, size_bytes, way, outcome, &plan, receive_dropped, cpu);
    if args.json || !std::io::stdout().is_terminal() {
        output::print("ping", report)?;
    } else {
        output::text(&table::text(&report))?;
    }
    written.transpose()?;
    failure.map_or(Ok(()), Err)
}

/// The result of a run, and the error by which it ended early or sent nothing.
#[expect(clippy::too_many_arguments, reason = "all parts of one run")]
fn report(
    args: &Args,
    order: ProbeOrder,
    size_bytes: usize,
    way: Way,
    outcome: SessionOutcome,
    plan: &Intended,
    receive_dropped: u64,
    cpu: Option<CpuUsage>,
) -> (Value, Option<Error>) {
    let records = outcome.records.as_slice();
    let tally = record::tally(records, plan);
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
    let interrupted = stop::requested();
    let (mut limits, mut warnings) = (Vec::new(), way.warnings);
    if rate_not_kept(&load, burst.as_ref(), &tally, &outcome.refused, interrupted) {
        limits.push("generator");
        warnings.push(rate_warning(&load, burst.as_ref(), &tally));
    }
    if receive_dropped > 0 {
        limits.push("sink");
        warnings.push(format!(
            "{receive_dropped} answers found this program's receive buffer full and count as lost"
        ));
    }
    if let [step] = &outcome.clock_steps[..] {
        limits.push("clock");
        warnings.push(format!(
            "the wall clock was stepped by {:+.6} s, so that no time of this run can be trusted: \
             stop time synchronisation while you measure, or let it slew",
            step.size_ns as f64 / 1e9
        ));
    }
    for (error, count) in &outcome.refused {
        warnings.push(format!("the kernel refused {count} packets ({error})"));
    }
    let stamped = args.proto != Protocol::Redis;
    if stamped && (tally.tx_stamps_missing > 0 || tally.rx_stamps_missing > 0) {
        warnings.push(format!(
            "{} packets have no kernel transmit stamp and {} answers no receive stamp; they are \
             not in rtt_kernel",
            tally.tx_stamps_missing, tally.rx_stamps_missing
        ));
    }
    let failure = outcome.failure;
    let is_whole = outcome.clock_steps.is_empty();
    let distribution =
        |times: &crate::histogram::LatencyRecorder| times.summary().filter(|_| is_whole);
    let report = json!({
        "target": args.target,
        "source": way.source,
        "proto": args.proto,
        "ip_version": if way.source.is_ipv4() { 4 } else { 6 },
        "path": way.path,
        "interface": way.interface,
        "size_bytes": size_bytes,
        "size_includes_fcs": true,
        "started": utc(outcome.start_ns),
        "started_ns": outcome.start_ns,
        "duration_s": outcome.elapsed_ns as f64 / 1e9,
        "timeout_ns": order.timeout_ns,
        "interrupted": interrupted || failure.is_some(),
        "load": load,
        "burst": burst,
        "planned": order.count,
        "counts": tally.counts,
        "refused": outcome.refused,
        "rtt_user": distribution(&tally.rtt_user),
        "rtt_kernel": distribution(&tally.rtt_kernel),
        "slip": distribution(&tally.slip),
        "reflector": distribution(&tally.residence),
        "tx_stamps_missing": tally.tx_stamps_missing,
        "rx_stamps_missing": tally.rx_stamps_missing,
        "receive_dropped": receive_dropped,
        "clock_steps": outcome.clock_steps,
        "limits": limits,
        "warnings": warnings,
        "cpu": cpu,
    });
    (report, failure)
}

/// Opens the way that the options allow and tries it.
fn find_way(args: &Args, route: ProbeRoute, payload_bytes: usize, count: u64) -> Result<Way> {
    let patience_ns = args.patience.as_nanos() as i64;
    if args.proto == Protocol::Redis {
        return find_redis(args, &route, payload_bytes, patience_ns);
    }
    let is_stamp = args.proto == Protocol::Stamp;
    let departure = Departure::of(&route, is_stamp, payload_bytes, patience_ns)?;
    let (source, interface) = (departure.source, departure.interface.clone());
    let mut packet = PacketTransport::open(departure, route, args.rate)?;
    if !warm_up(&mut packet, INTERVAL_NS, patience_ns)? {
        return Err(silent(args, patience_ns));
    }
    let mut warnings = Vec::new();
    let fast = args.rate > LIVE_PPS && args.proto == Protocol::Icmp;
    if args.path == Path::Live || (args.path == Path::Auto && fast) {
        match Live::open(&packet.departure, count, args.cpu) {
            Ok(live) => {
                let (path, sender) = (LIVE_SKB, Sender::Live(Box::new(live)));
                return Ok(Way { sender, path, interface, source, warnings });
            }
            Err(error) if args.path == Path::Live => return Err(error),
            Err(error) => {
                warnings.push(format!("not sent by the kernel's generator: {}", error.what));
            }
        }
    }
    if !args.no_watch && args.rate <= WATCHED_PPS {
        packet.watch();
    }
    let sender = Sender::User(Box::new(packet));
    Ok(Way { sender, path: "packet", interface, source, warnings })
}

/// Connects to a Redis server and waits for its first answer.
fn find_redis(
    args: &Args,
    route: &ProbeRoute,
    message_bytes: usize,
    patience_ns: i64,
) -> Result<Way> {
    if args.path != Path::Auto {
        return Err(Error::bad_input(
            "requests to Redis go through the kernel's TCP alone",
            "leave out --path",
        ));
    }
    let mut connection = RedisTransport::connect(route, message_bytes, patience_ns)?;
    let source = connection.source();
    // TCP repeats what is lost: one request is enough.
    if !warm_up(&mut connection, i64::MAX, patience_ns)? {
        return Err(Error::failed(
            format!("{} took the connection and answered no request", route.target),
            "does a Redis server listen there? Name its port with --port",
        ));
    }
    let interface = args.interface.clone().unwrap_or_default();
    let sender = Sender::User(Box::new(connection));
    Ok(Way { sender, path: "tcp", interface, source, warnings: Vec::new() })
}

fn silent(args: &Args, patience_ns: i64) -> Error {
    let (target, seconds) = (&args.target, patience_ns as f64 / 1e9);
    match args.port() {
        None => Error::failed(
            format!("{target} did not answer an echo request within {seconds} s"),
            "is it up, and does it answer echo requests (net.ipv4.icmp_echo_ignore_all, firewall)?",
        ),
        Some(port) => Error::failed(
            format!("no STAMP answer from {target}, UDP port {port}, within {seconds} s"),
            "start `pw-probe reflect` there, or name its port with --port; is there a firewall?",
        ),
    }
}

/// Packets per second from the schedule's start to one interval after the last packet; bursts count
/// with their pauses. Zero when nothing was sent.
fn achieved_pps(tally: &Tally, schedule: &Schedule) -> f64 {
    let Some(sending_ns) = tally.sending_ns else { return 0.0 };
    let interval_ns = NANOS_PER_SECOND as f64 / schedule.mean_pps();
    let due_ns = schedule.due_ns(tally.counts.sent.saturating_sub(1)) as f64 + interval_ns;
    schedule.mean_pps() * due_ns / (sending_ns as f64 + interval_ns)
}

/// The share of the intended rate that counts as kept.
const RATE_TOLERANCE: f64 = 0.999;
/// The same within bursts, which are short.
const BURST_RATE_TOLERANCE: f64 = 0.99;

/// Whether the generator fell short: it sent nothing, or less than 99.9 % of the intended rate while
/// its last packets were late by more than one interval, or less than 99 % within bursts, or packets
/// were refused. A run that a signal ended before its first packet did not.
fn rate_not_kept(
    load: &Load,
    burst: Option<&Burst>,
    tally: &Tally,
    refused: &BTreeMap<String, u64>,
    interrupted: bool,
) -> bool {
    if tally.counts.sent == 0 {
        return !interrupted;
    }
    let interval_ns = NANOS_PER_SECOND as f64 / load.intended_pps;
    let slow = load.achieved_pps < load.intended_pps * RATE_TOLERANCE;
    let behind = tally.slip.quantile_ns(0.9) as f64 > interval_ns;
    let slow_burst = burst.is_some_and(|burst| {
        burst
            .achieved_pps
            .is_some_and(|achieved| achieved < burst.intended_pps * BURST_RATE_TOLERANCE)
    });
    (slow && behind) || slow_burst || !refused.is_empty()
}

fn rate_warning(load: &Load, burst: Option<&Burst>, tally: &Tally) -> String {
    if tally.counts.sent == 0 {
        return "nothing was sent: this program got no CPU in time, or the kernel took nothing"
            .into();
    }
    let (scope, intended, achieved) = match burst {
        Some(burst) => (" within bursts", burst.intended_pps, burst.achieved_pps),
        None => ("", load.intended_pps, Some(load.achieved_pps)),
    };
    format!(
        "the rate{scope} was not kept: {:.0} of {intended:.0} packets/s; 90 % of the packets slipped \
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
    use super::*;

    #[test]
    fn times_are_printed_as_rfc_3339() {
        assert_eq!(utc(1_583_020_800_500_000_000), "2020-03-01T00:00:00.500000Z");
    }

    #[test]
    fn the_achieved_rate_is_the_intended_one_when_every_packet_leaves_in_time() {
        for schedule in
            [Schedule::steady(1_000.0), Schedule::bursts(10, 1e6, Duration::from_millis(10))]
        {
            let plan = Intended { schedule, start_ns: 1_000, timeout_ns: 1 };
            for late_ns in [0, 1_000_000] {
                let mut records = record::Records::with_capacity(100);
                for sequence in 0..100 {
                    let slip_ns = if sequence == 99 { late_ns } else { 0 };
                    records.sent(1_000 + schedule.due_ns(sequence) + slip_ns);
                }
                let tally = record::tally(records.as_slice(), &plan);
                let ratio = achieved_pps(&tally, &schedule) / schedule.mean_pps();
                assert_eq!(ratio < 0.9999, late_ns > 0, "{ratio}");
                assert!((0.98..1.0001).contains(&ratio), "{ratio}");
            }
        }
    }

    #[test]
    fn a_run_that_sent_nothing_was_limited_by_the_generator() {
        let load = Load { intended_pps: 1e6, achieved_pps: 0.0, size_bytes: 64 };
        let limited = |interrupted| {
            rate_not_kept(&load, None, &Tally::default(), &BTreeMap::new(), interrupted)
        };
        assert!(limited(false) && !limited(true));
    }
}
