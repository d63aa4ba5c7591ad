//! One trial: a generator on one interface, a sink on another, every frame accounted for. Knows
//! nothing of what lies between them.

pub mod account;
pub mod backend;
pub mod counters;
mod discard;
pub mod generator;
pub mod options;
pub mod receive;
pub mod resolve;
pub mod send;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use self::account::Account;
use self::backend::{AfPacketTx, Receiver, Transmitter};
use self::counters::{Change, Explained, Places};
use self::discard::Discard;
use self::generator::{Generated, Refusals};
use self::options::{FrameOptions, frames};
use crate::capture::{Ring, RingOptions, RingStats};
use crate::clock::{self, ClockStep, StepDetector, SystemClock};
use crate::cpu::{CpuMeter, CpuUsage};
use crate::error::{Error, Result};
use crate::filter;
use crate::frame::{self, FrameSpec, Template};
use crate::histogram::{LatencyRecorder, LatencySummary};
use crate::netns::{IfSpec, run_in};
use crate::output::Output;
use crate::stop::{self, Lifetime};

/// The UDP port that trials send to unless told otherwise.
pub const DEFAULT_PORT: u16 = 4862;

/// Sends UDP frames by one interface at a set rate and accounts for what arrives at another.
///
/// Frames are paced open loop, carry a sequence number and the time of sending, and every one of
/// them is accounted for: received, lost (split by the drop counters that rose), duplicate,
/// reordered, late. `limits` says what limited the trial, so that the generator's own limit is not
/// taken for the path's: its maximum is measured first, on a private veth pair.
///
/// --size counts the whole Ethernet frame with its 4-byte check sequence (RFC 2544).
///
/// The sink's namespace must not answer with ICMP "port unreachable": a UDP socket that discards
/// everything is bound to the destination port there while the trial runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe trial --tx eth0@a --rx eth0@b --dst 198.18.0.2 --rate 100k --duration 10\n  \
    pw-probe trial --tx veth0 --rx veth1@sink --src 2001:2::1 --dst 2001:2::2 --dst-mac rx \\\n    \
    --size 128 --flows 16 --rate 1M --duration 5 --tx-cpu 0 --rx-cpu 1 --counter fwd0@router\n  \
    pw-probe trial --calibrate-only --size 64 --tx-cpu 0")]
pub struct Args {
    /// Interface to send by
    #[arg(long, value_name = "IF[@NETNS]", required_unless_present = "calibrate_only")]
    pub tx: Option<IfSpec>,
    /// Interface to receive on
    #[arg(long, value_name = "IF[@NETNS]", required_unless_present = "calibrate_only")]
    pub rx: Option<IfSpec>,
    /// Offered load [packets/s]: 1000, 10k, 1.5M
    #[arg(long, value_name = "PPS", value_parser = crate::units::pps,
        required_unless_present = "calibrate_only")]
    pub rate: Option<f64>,
    /// How long to send [s]
    #[arg(long, value_name = "S", value_parser = crate::units::seconds, default_value = "1")]
    pub duration: Duration,
    /// IP version; without it that of --dst
    #[arg(long, value_name = "4|6", value_parser = clap::value_parser!(u8).range(4..=6))]
    pub ip: Option<u8>,
    /// Destination address
    #[arg(long, value_name = "IP", required_unless_present = "calibrate_only")]
    pub dst: Option<IpAddr>,
    /// MAC address of the next hop, or `rx` for that of --rx; without it the kernel resolves it
    #[arg(long, value_name = "MAC|rx", value_parser = resolve::parse_mac_choice)]
    pub dst_mac: Option<resolve::MacChoice>,
    /// How long to wait for frames after the last was sent [s]; what takes longer is late, and lost
    #[arg(long, value_name = "S", value_parser = crate::units::seconds, default_value = "0.5")]
    pub drain: Duration,
    /// A further interface whose drop counters may explain loss (repeatable)
    #[arg(long, value_name = "IF[@NETNS]")]
    pub counter: Vec<IfSpec>,
    /// CPU for the sink
    #[arg(long, value_name = "CPU")]
    pub rx_cpu: Option<usize>,
    /// Size of the sink's ring [MiB]
    #[arg(long, value_name = "MIB", default_value = "32",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ring_mib: u32,
    /// The generator's maximum [packets/s] from an earlier --calibrate-only; not measured again
    #[arg(long, value_name = "PPS", value_parser = crate::units::pps)]
    pub max_pps: Option<f64>,
    /// Only measure the generator's maximum, with frames of this size, batch and CPU
    #[arg(long, conflicts_with_all = ["tx", "rx", "rate", "max_pps"])]
    pub calibrate_only: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its help comes from its own fields")]
    pub frames: FrameOptions,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its help comes from its own fields")]
    pub lifetime: Lifetime,
}

/// Frames before the first that find out whether the path carries any, and teach it where to.
#[derive(Debug, Default, Serialize)]
struct Warmup {
    sent: u64,
    received: bool,
}

#[derive(Debug, Serialize)]
struct GeneratorReport {
    backend: &'static str,
    /// Its own maximum, or none when that could not be measured.
    max_pps: Option<f64>,
    /// `private veth pair`, `private loopback` or `--max-pps`.
    max_pps_from: Option<&'static str>,
    max_pps_error: Option<String>,
    /// Times that the interface had no room; the frame was sent again.
    refused: u64,
    slip: Option<LatencySummary>,
}

#[derive(Debug, Serialize)]
struct SinkReport {
    #[serde(flatten)]
    ring: RingStats,
    /// Whether the frames end at the interface, before the IP stack.
    ends_at_interface: bool,
}

/// What went wrong, in the JSON beside the results so far.
#[derive(Debug, Serialize)]
struct Failure {
    what: String,
    remedy: String,
}

impl Failure {
    fn of(error: &Error) -> Self {
        Self { what: error.what.clone(), remedy: error.remedy.clone() }
    }
}

/// The generator's own maximum, or why it is not known.
struct Maximum {
    pps: Option<f64>,
    from: Option<&'static str>,
    error: Option<String>,
}

impl Maximum {
    fn report(self, refused: u64, slip: &LatencyRecorder) -> GeneratorReport {
        GeneratorReport {
            backend: "af_packet",
            max_pps: self.pps,
            max_pps_from: self.from,
            max_pps_error: self.error,
            refused,
            slip: slip.summary(),
        }
    }
}

/// The maximum that is `given`, or else as it is measured now.
fn maximum_or_why(given: Option<f64>, template: &Template, frames: &FrameOptions) -> Maximum {
    if given.is_some() {
        return Maximum { pps: given, from: Some("--max-pps"), error: None };
    }
    match generator::maximum_pps(template, usize::from(frames.batch), frames.tx_cpu) {
        Ok((pps, on)) => Maximum { pps: Some(pps), from: Some(on), error: None },
        Err(error) => Maximum { pps: None, from: None, error: Some(error.what) },
    }
}

#[derive(Debug, Serialize)]
struct Report {
    tx: IfSpec,
    rx: IfSpec,
    ip: u8,
    source: IpAddr,
    destination: IpAddr,
    destination_mac: String,
    flows: u16,
    size_bytes: usize,
    size_includes_fcs: bool,
    started_ns: i64,
    duration_s: f64,
    first_sequence: u64,
    intended_pps: f64,
    achieved_pps: f64,
    offered_pps: f64,
    received_pps: f64,
    planned: u64,
    sent: u64,
    received: u64,
    lost: u64,
    duplicate: u64,
    reordered: u64,
    late: u64,
    foreign: u64,
    loss: Vec<Explained>,
    unexplained: u64,
    excess_drops: u64,
    limits: Vec<&'static str>,
    latency: Option<LatencySummary>,
    generator: GeneratorReport,
    sink: SinkReport,
    warmup: Warmup,
    counters: Vec<Change>,
    cpu: Option<CpuUsage>,
    clock_steps: Vec<ClockStep>,
    interrupted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
}

#[derive(Debug, Serialize)]
struct Calibration {
    size_bytes: usize,
    size_includes_fcs: bool,
    batch: u16,
    max_pps: f64,
    measured_on: &'static str,
}

/// Achieved counts as intended down to this share of it.
const RATE_TOLERANCE: f64 = 0.999;

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    clock::tighten_timers();
    generator::check_cpu(args.frames.tx_cpu)?;
    generator::check_cpu(args.rx_cpu)?;
    match (&args.tx, &args.rx, args.rate, args.dst) {
        (Some(tx), Some(rx), Some(rate), Some(dst)) => trial(args, tx, rx, rate, dst),
        _ => calibrate(args),
    }
}

fn calibrate(args: &Args) -> Result<()> {
    let ipv6 = args.ip == Some(6) || args.dst.is_some_and(|dst| dst.is_ipv6());
    let address = |last| -> IpAddr {
        if ipv6 {
            std::net::Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, last).into()
        } else {
            std::net::Ipv4Addr::new(198, 18, 0, last as u8).into()
        }
    };
    let size_bytes = args.frames.size_bytes(ipv6);
    let template = Template::new(&FrameSpec {
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        source: address(1),
        destination: address(2),
        first_source_port: args.frames.src_port,
        destination_port: args.frames.dst_port,
        size_bytes,
        flows: args.frames.flows,
    })?;
    let (max_pps, measured_on) =
        generator::maximum_pps(&template, usize::from(args.frames.batch), args.frames.tx_cpu)?;
    let body = Calibration {
        size_bytes,
        size_includes_fcs: true,
        batch: args.frames.batch,
        max_pps,
        measured_on,
    };
    Output::new("trial-calibration", body).print()
}

fn trial(args: &Args, tx: &IfSpec, rx: &IfSpec, rate_pps: f64, dst: IpAddr) -> Result<()> {
    let planned = frames(rate_pps, args.duration)?;
    let version = if dst.is_ipv6() { 6 } else { 4 };
    if args.ip.is_some_and(|ip| ip != version) {
        return Err(Error::bad_input(
            format!("--ip {} does not fit --dst {dst}", args.ip.unwrap_or(0)),
            "leave --ip out, or give an address of that version",
        ));
    }
    let mut ring = Ring::open(
        rx,
        &filter::to_sink(dst.is_ipv6(), args.frames.dst_port),
        ring_options(args.ring_mib),
    )?;
    let discard = Discard::begin(rx, dst.is_ipv6(), args.frames.dst_port)?;
    let route =
        resolve::resolve(tx, Some(rx), args.frames.src, dst, args.frames.dst_port, args.dst_mac)?;
    let size_bytes = args.frames.size_bytes(dst.is_ipv6());
    let template = args.frames.template(tx, &route, dst)?;
    let maximum = maximum_or_why(args.max_pps, &template, &args.frames);
    let mut transmitter = run_in(tx.netns.as_ref(), || {
        AfPacketTx::open(&tx.interface, tx, template.bytes(), usize::from(args.frames.batch))
    })?;
    // Never seen before on this machine: no frame of an earlier trial is taken for one of this.
    let first_sequence = clock::realtime_ns() as u64;
    let warmup = warm_up(&mut transmitter, &mut ring, &template, first_sequence - 1)?;

    let places = Places::new(tx, rx, &args.counter);
    let mut steps = StepDetector::new(&SystemClock);
    let before = places.read()?;
    let ring_before = ring.stats();
    let cpu = CpuMeter::start().ok();
    let started_ns = clock::realtime_ns();
    let refusals = if before.is_virtual_tx() { Refusals::Lost } else { Refusals::SentAgain };
    let plan = Plan { rate_pps, planned, first_sequence, refusals };
    let (generated, account, sink_error) =
        send_and_receive(args, &mut transmitter, &mut ring, &template, &plan);
    let cpu = cpu.and_then(|meter| meter.usage().ok());
    let ring_stats = ring.stats();
    let sink = RingStats {
        packets: ring_stats.packets - ring_before.packets,
        dropped: ring_stats.dropped - ring_before.dropped,
    };
    steps.check(&SystemClock);
    let after = places.read();

    let sent_again = if refusals == Refusals::SentAgain { generated.refused } else { 0 };
    // An interface that is gone has no counters; what was counted until then is kept.
    let (changes, drops, counter_error) = match after {
        Ok(after) => {
            (places.changes(&before, &after), places.drops(&before, &after, sent_again), None)
        }
        Err(error) => (Vec::new(), Vec::new(), Some(error)),
    };
    let error = generated.error.or(sink_error).or(counter_error);
    let generator_pps = generated.sent as f64 * 1e9 / generated.elapsed_ns.max(1) as f64;
    // A sink cannot receive what was never sent: a frame that was cut off by an error mid-batch
    // may have been.
    let sent = generated.sent.max(account.arrived());
    let lost = sent - account.received;
    // What the sink itself knows is exact and comes first.
    let mut loss = Vec::new();
    if account.late > 0 {
        loss.push(explained(rx, "late", account.late));
    }
    if sink.dropped > 0 {
        loss.push(explained("sink", "ring_dropped", sink.dropped));
    }
    loss.extend(drops);
    let sum = |loss: &[Explained]| loss.iter().map(|part| part.count).sum::<u64>();
    let softnet = cpu.as_ref().and_then(|cpu| cpu.softnet).map_or(0, |softnet| softnet.dropped);
    let named_softnet: u64 =
        loss.iter().filter(|part| part.counter.ends_with("_dropped")).map(|part| part.count).sum();
    let elsewhere = softnet.saturating_sub(named_softnet).min(lost.saturating_sub(sum(&loss)));
    if elsewhere > 0 {
        loss.push(explained("host", "softnet_dropped", elsewhere));
    }
    let excess_drops = cap(&mut loss, lost);
    let dropped_by_tx: u64 = loss
        .iter()
        .filter(|part| part.place == tx.to_string() && part.counter.starts_with("tx_"))
        .map(|part| part.count)
        .sum();

    let mut limits = Vec::new();
    let generator_limits = !stop::requested()
        && (generator_pps < rate_pps * RATE_TOLERANCE
            || maximum.pps.is_some_and(|max| rate_pps > max));
    if generator_limits {
        limits.push("generator");
    }
    if sink.dropped > 0 {
        limits.push("sink");
    }
    if !steps.steps().is_empty() {
        limits.push("clock");
    }
    if lost > 0 && !generator_limits && sink.dropped == 0 {
        limits.push("sut");
    }
    let seconds = generated.elapsed_ns.max(1) as f64 / 1e9;
    let report = Report {
        tx: tx.clone(),
        rx: rx.clone(),
        ip: version,
        source: route.source,
        destination: dst,
        destination_mac: resolve::mac_text(route.destination_mac),
        flows: args.frames.flows,
        size_bytes,
        size_includes_fcs: true,
        started_ns,
        duration_s: seconds,
        first_sequence,
        intended_pps: rate_pps,
        achieved_pps: generator_pps,
        offered_pps: (generated.sent - dropped_by_tx.min(generated.sent)) as f64 / seconds,
        received_pps: account.received as f64 / seconds,
        planned,
        sent,
        received: account.received,
        lost,
        duplicate: account.duplicates,
        reordered: account.reordered,
        late: account.late,
        foreign: account.foreign,
        unexplained: lost - sum(&loss),
        excess_drops,
        loss,
        limits,
        latency: account.latency.summary(),
        generator: maximum.report(generated.refused, &generated.slip),
        sink: SinkReport { ring: sink, ends_at_interface: discard.is_early() },
        warmup,
        counters: changes,
        cpu,
        clock_steps: steps.steps().to_vec(),
        interrupted: stop::requested(),
        error: error.as_ref().map(Failure::of),
    };
    Output::new("trial", report).print()?;
    error.map_or(Ok(()), Err)
}

/// Takes from the parts, last first, what exceeds `lost`, and returns how much that was: counters
/// count the drops of other traffic too.
fn cap(loss: &mut Vec<Explained>, lost: u64) -> u64 {
    let mut left = lost;
    let mut excess = 0;
    for part in loss.iter_mut() {
        let count = part.count.min(left);
        excess += part.count - count;
        left -= count;
        part.count = count;
    }
    loss.retain(|part| part.count > 0);
    excess
}

fn explained(place: impl std::fmt::Display, counter: &str, count: u64) -> Explained {
    Explained { place: place.to_string(), counter: counter.into(), count }
}

fn ring_options(ring_mib: u32) -> RingOptions {
    const BLOCK_BYTES: u32 = 256 << 10;
    RingOptions {
        block_bytes: BLOCK_BYTES,
        blocks: (ring_mib << 20) / BLOCK_BYTES,
        retire_ms: 5,
        incoming_only: true,
    }
}

/// Sends a frame every 10 ms until one arrives or a second has passed. It fills the neighbour and
/// forwarding tables on the path, so that the trial does not pay for that.
fn warm_up(
    tx: &mut impl Transmitter,
    rx: &mut impl Receiver,
    template: &Template,
    sequence: u64,
) -> Result<Warmup> {
    let mut warmup = Warmup::default();
    let mut arrived = false;
    for _ in 0..100 {
        let tx_ns = clock::realtime_ns();
        let sent = tx.send(1, &mut |_, frame| template.stamp(frame, sequence, tx_ns))?;
        warmup.sent += sent.accepted as u64;
        let deadline_ns = clock::monotonic_ns() + 10_000_000;
        while !arrived && clock::monotonic_ns() < deadline_ns {
            rx.poll(Duration::from_millis(10), &mut |captured| {
                let stamped = frame::read(captured.network);
                arrived |= stamped.is_some_and(|stamped| stamped.sequence == sequence);
            })?;
        }
        if arrived || stop::requested() {
            break;
        }
    }
    warmup.received = arrived;
    Ok(warmup)
}

struct Plan {
    rate_pps: f64,
    planned: u64,
    first_sequence: u64,
    refusals: Refusals,
}

/// Runs generator and sink, each on a thread of its own, to the end of the drain.
fn send_and_receive(
    args: &Args,
    tx: &mut (impl Transmitter + Send),
    rx: &mut impl Receiver,
    template: &Template,
    plan: &Plan,
) -> (Generated, Account, Option<Error>) {
    let drain_ns = args.drain.as_nanos() as i64;
    let mut account =
        Account::new(plan.first_sequence, plan.planned, args.frames.flows, Some(drain_ns));
    let (sent, done) = (AtomicU64::new(0), AtomicBool::new(false));
    // Time for both threads to come up.
    let start_ns = clock::monotonic_ns() + 2_000_000;
    let mut sink_error = None;
    let generated = std::thread::scope(|scope| {
        let generator = scope.spawn(|| {
            let load = (plan.rate_pps, plan.planned);
            let generated = generator::pin(args.frames.tx_cpu).map_or_else(
                |error| Generated { error: Some(error), ..Generated::default() },
                |()| {
                    generator::generate(
                        tx,
                        template,
                        plan.first_sequence,
                        load,
                        start_ns,
                        plan.refusals,
                        &sent,
                    )
                },
            );
            done.store(true, Ordering::Release);
            generated
        });
        sink_error = generator::pin(args.rx_cpu)
            .and_then(|()| receive(rx, &mut account, (&sent, &done), drain_ns))
            .err();
        match generator.join() {
            Ok(generated) => generated,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    (generated, account, sink_error)
}

/// Captures until the generator is done and the drain time is over, or all has arrived and
/// nothing more comes.
fn receive(
    rx: &mut impl Receiver,
    account: &mut Account,
    (sent, done): (&AtomicU64, &AtomicBool),
    drain_ns: i64,
) -> Result<()> {
    /// With every frame there, only a duplicate can still come: wait less for it.
    const QUIET_NS: i64 = 50_000_000;
    let mut ended_ns = None;
    let mut last_ns = clock::monotonic_ns();
    loop {
        let count = rx.poll(Duration::from_millis(20), &mut |captured| {
            if let Some(stamped) = frame::read(captured.network) {
                account.record(stamped, captured.stamp_ns);
            }
        })?;
        let now = clock::monotonic_ns();
        if count > 0 {
            last_ns = now;
        }
        if !done.load(Ordering::Acquire) {
            continue;
        }
        let ended_ns = *ended_ns.get_or_insert(now);
        let complete = account.arrived() >= sent.load(Ordering::Acquire);
        let quiet = now - last_ns.max(ended_ns) > QUIET_NS.min(drain_ns);
        if now - ended_ns > drain_ns || (complete && quiet) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_loss_never_exceed_it() {
        bolero::check!().with_type::<(Vec<u32>, u32)>().for_each(|(counts, lost)| {
            let lost = u64::from(*lost);
            let mut loss: Vec<_> =
                counts.iter().map(|&count| explained("x", "y", count.into())).collect();
            let before: u64 = loss.iter().map(|part| part.count).sum();
            let excess = cap(&mut loss, lost);
            let after: u64 = loss.iter().map(|part| part.count).sum();
            assert_eq!(after, before.min(lost));
            assert_eq!(after + excess, before);
            assert!(loss.iter().all(|part| part.count > 0));
        });
    }
}
