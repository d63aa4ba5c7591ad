//! `pw-probe ping`: round trip times by ICMP echo, STAMP or a Redis server, open loop. Knows nothing of
//! planes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::IpAddr;
use std::path::{Path as FilePath, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::affinity;
use crate::clock::{ClockStep, NANOS_PER_SECOND, Schedule};
use crate::cpu::{CpuMeter, CpuUsage};
use crate::error::{Error, Result};
use crate::histogram::LatencySummary;
use crate::output::Output;
use crate::stop;
use crate::wire;

mod departure;
mod live;
mod options;
mod packet;
mod probe;
mod record;
mod redis;
mod rehearsal;
mod ring;
mod session;
mod socket;
mod transport;
mod warmup;
mod watch;

pub use options::{Args, Protocol};
use options::{check_memory, order, parse_target, smallest, with_port};
use record::{Counts, Intended, Tally};
use socket::{ProbeFormat, ProbeRoute};
pub use warmup::Path;
use warmup::Senders;

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

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    let target = parse_target(&args.target)?;
    let order = order(args)?;
    let sized = FrameSize::of(args, target.ip())?;
    check_memory(order.count)?;
    // Opened before the run, so that a bad path costs no measurement.
    let packets = args.packets.as_deref().map(create).transpose()?;
    let route = ProbeRoute {
        target: args.port().map_or(target, |port| with_port(target, port)),
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
    let mut warnings = prioritise(args)?;
    let mut ready = ready(args, route, &sized, order.count)?;
    warnings.append(&mut ready.warnings);
    let meter = CpuMeter::start().ok();
    let (outcome, path, receive_dropped) = match &mut ready.senders {
        Senders::User(transport) => {
            affinity::pin(args.cpu)?;
            let outcome = session::run(transport.as_mut(), order, &stop::requested);
            (outcome, transport.name(), transport.dropped())
        }
        // Its own thread is pinned to that CPU; this one must stay free to end it.
        Senders::Live(live) => (live.run(&order), live.name(), 0),
    };
    let cpu = meter.and_then(|meter| meter.usage().ok());

    let plan = Intended {
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
        size_bytes: sized.frame_bytes,
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
    let stamped = args.proto != Protocol::Redis;
    if stamped && (tally.tx_stamps_missing > 0 || tally.rx_stamps_missing > 0) {
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
        path,
        interface: ready.interface,
        size_bytes: sized.frame_bytes,
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

/// The size of probes.
struct FrameSize {
    /// Ethernet frame with its FCS.
    frame_bytes: usize,
    /// Payload behind the ICMP or UDP header; of a request to Redis its message.
    payload_bytes: usize,
}

impl FrameSize {
    fn of(args: &Args, target: IpAddr) -> Result<Self> {
        if args.proto == Protocol::Redis {
            let payload_bytes = redis::message_bytes(args.size, target)?;
            return Ok(Self {
                frame_bytes: redis::size_bytes(payload_bytes, target),
                payload_bytes,
            });
        }
        let is_stamp = args.proto == Protocol::Stamp;
        let least = probe::Probe::least_payload_bytes(is_stamp);
        let frame_bytes = args.size.unwrap_or_else(|| smallest(target, least));
        let name = if is_stamp { "STAMP" } else { "echo requests" };
        let payload_bytes = wire::payload_bytes(frame_bytes, target, least, name)?;
        Ok(Self { frame_bytes, payload_bytes })
    }
}

/// Finds a way to the target and tries it.
fn ready(args: &Args, route: ProbeRoute, sized: &FrameSize, count: u64) -> Result<warmup::Ready> {
    let patience_ns = args.patience.as_nanos() as i64;
    let identifier = std::process::id() as u16;
    let kind = match args.proto {
        Protocol::Icmp => ProbeFormat::Echo(identifier),
        Protocol::Stamp => ProbeFormat::Stamp(args.time_format, identifier.max(1)),
        Protocol::Redis if !matches!(args.path, Path::Auto | Path::Socket) => {
            return Err(Error::bad_input(
                "requests to Redis go through the kernel's TCP alone",
                "leave out --path, or give --path socket",
            ));
        }
        Protocol::Redis => {
            let size = sized.payload_bytes;
            return warmup::prepare_redis(&route, size, patience_ns, &stop::requested);
        }
    };
    let request = warmup::Request {
        kind,
        route,
        payload_bytes: sized.payload_bytes,
        size_bytes: sized.frame_bytes,
        path: args.path,
        peak_pps: args.rate,
        count,
        cpu: args.cpu,
        watch: !args.no_watch && args.rate <= WATCHED_PPS,
        patience_ns,
    };
    warmup::prepare(&request, &stop::requested)
}

/// Gives this thread the requested priority; returns warnings.
fn prioritise(args: &Args) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    affinity::check_cpu(args.cpu)?;
    if args.realtime {
        let parameters = libc::sched_param { sched_priority: 10 };
        // SAFETY: the parameters live through the call.
        let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) };
        if result != 0 {
            warnings.push(format!(
                "real-time priority was refused ({}): needs CAP_SYS_NICE",
                std::io::Error::last_os_error()
            ));
        }
    }
    Ok(warnings)
}

fn create(path: &FilePath) -> Result<(File, PathBuf)> {
    let file = File::create(path).map_err(|error| {
        Error::bad_input(
            format!("cannot write {}", path.display()),
            "give --packets a file in a directory that exists and is writable",
        )
        .caused_by(error)
    })?;
    Ok((file, path.to_owned()))
}

fn write_packets(
    file: File,
    path: &FilePath,
    records: &[record::Record],
    plan: &Intended<'_>,
) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, file);
    record::write_csv(records, plan, &mut out).and_then(|()| out.flush()).map_err(|error| {
        Error::failed(
            format!("cannot write {}", path.display()),
            "the file is incomplete; the summary on stdout is not. Make space and measure again",
        )
        .caused_by(error)
    })
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
        let steps = crate::clock::StepDetector::new(&crate::clock::SystemClock);
        for schedule in
            [Schedule::steady(1_000.0), Schedule::bursts(10, 1e6, Duration::from_millis(10))]
        {
            let plan = Intended { schedule, start_ns: 1_000, timeout_ns: 1, steps: &steps };
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
