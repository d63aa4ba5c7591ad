//! The sending half of a trial, for two ends that no single process sees: virtual machines, two
//! servers. Knows nothing of what arrives.

use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde::Serialize;

use super::backend::{AfPacketTx, Transmitter};
use super::counters::{Change, Explained, Places, Role};
use super::generator::{self, Refusals};
use super::options::{FrameOptions, frames};
use super::{Failure, GeneratorReport, RATE_TOLERANCE, explained, maximum_or_why, resolve};
use crate::clock::{self, ClockStep, StepDetector, SystemClock};
use crate::cpu::{CpuMeter, CpuUsage};
use crate::error::Result;
use crate::frame::Template;
use crate::netns::{IfSpec, run_in};
use crate::output::Output;
use crate::stop::{self, Lifetime};

/// Sends UDP frames by one interface at a set rate, for `pw-probe receive` to account for.
///
/// The two ends may be on machines that know nothing of one another: whoever starts both gives
/// them the same --first number, sees `receive` ready before this starts, and ends it when this
/// has ended and frames have had time to arrive. What was sent and what was received together are
/// what `pw-probe trial` says of one machine, but for times on the way: no clock is shared.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe receive --rx eth0 --first 7000 --count 100k                        on one machine\n  \
    pw-probe send --tx eth0 --dst 198.18.0.2 --rate 100k --first 7000           on the other")]
pub struct Args {
    /// Interface to send by
    #[arg(long, value_name = "IF[@NETNS]")]
    pub tx: IfSpec,
    /// Offered load [packets/s]: 1000, 10k, 1.5M
    #[arg(long, value_name = "PPS", value_parser = crate::units::pps)]
    pub rate: f64,
    /// How long to send [s]
    #[arg(long, value_name = "S", value_parser = crate::units::seconds, default_value = "1")]
    pub duration: Duration,
    /// Number of the first frame; the same for `receive`, another for every trial
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1 << 63))]
    pub first: u64,
    /// Destination address
    #[arg(long, value_name = "IP")]
    pub dst: IpAddr,
    /// MAC address of the next hop; without it the kernel resolves it
    #[arg(long, value_name = "MAC", value_parser = resolve::parse_mac_choice)]
    pub dst_mac: Option<resolve::MacChoice>,
    /// Frames before the first, 10 ms apart, that teach the path where to
    #[arg(long, value_name = "N", default_value = "5")]
    pub warmup: u16,
    /// What becomes of a frame that the interface has no room for: it is lost, as what lies behind
    /// a virtual machine's NIC is to be measured, or sent again, as by a real NIC at line rate;
    /// without it as the interface's kind suggests
    #[arg(long, value_name = "lost|again")]
    pub refused: Option<Refusals>,
    /// A further interface whose drop counters may explain loss (repeatable)
    #[arg(long, value_name = "IF[@NETNS]")]
    pub counter: Vec<IfSpec>,
    /// The generator's maximum [packets/s] from `trial --calibrate-only`; not measured again
    #[arg(long, value_name = "PPS", value_parser = crate::units::pps)]
    pub max_pps: Option<f64>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its help comes from its own fields")]
    pub frames: FrameOptions,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its help comes from its own fields")]
    pub lifetime: Lifetime,
}

#[derive(Debug, Serialize)]
struct Report {
    tx: IfSpec,
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
    planned: u64,
    sent: u64,
    /// Drop counters of this end that rose. Only who knows what was received can tell how much of
    /// the loss they explain.
    drops: Vec<Explained>,
    /// `generator` and `clock`: what this end knows of.
    limits: Vec<&'static str>,
    generator: GeneratorReport,
    warmup_sent: u64,
    counters: Vec<Change>,
    cpu: Option<CpuUsage>,
    clock_steps: Vec<ClockStep>,
    interrupted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    clock::tighten_timers();
    generator::check_cpu(args.frames.tx_cpu)?;
    let planned = frames(args.rate, args.duration)?;
    let (tx, dst, of_frame) = (&args.tx, args.dst, &args.frames);
    let route = resolve::resolve(tx, None, of_frame.src, dst, of_frame.dst_port, args.dst_mac)?;
    let template = of_frame.template(tx, &route, dst)?;
    let batch = usize::from(of_frame.batch);
    let maximum = maximum_or_why(args.max_pps, &template, of_frame);
    let mut transmitter =
        run_in(tx.netns.as_ref(), || AfPacketTx::open(&tx.interface, tx, template.bytes(), batch))?;
    let warmup_sent = warm_up(&mut transmitter, &template, args)?;

    let mut at = vec![(tx.clone(), Role::Tx)];
    at.extend(args.counter.iter().map(|place| (place.clone(), Role::Between)));
    let places = Places::of(at);
    let mut steps = StepDetector::new(&SystemClock);
    let before = places.read()?;
    let default = if before.is_virtual_tx() { Refusals::Lost } else { Refusals::SentAgain };
    let refusals = args.refused.unwrap_or(default);
    let cpu = CpuMeter::start().ok();
    let started_ns = clock::realtime_ns();
    generator::pin(of_frame.tx_cpu)?;
    let generated = generator::generate(
        &mut transmitter,
        &template,
        args.first,
        (args.rate, planned),
        clock::monotonic_ns() + 2_000_000,
        refusals,
        &AtomicU64::new(0),
    );
    let cpu = cpu.and_then(|meter| meter.usage().ok());
    steps.check(&SystemClock);
    let sent_again = if refusals == Refusals::SentAgain { generated.refused } else { 0 };
    // An interface that is gone has no counters; what was counted until then is kept.
    let (changes, mut drops, counter_error) = match places.read() {
        Ok(after) => {
            (places.changes(&before, &after), places.drops(&before, &after, sent_again), None)
        }
        Err(error) => (Vec::new(), Vec::new(), Some(error)),
    };
    if refusals == Refusals::Lost {
        // Virtual interfaces count these by themselves; drivers of NICs do not.
        let counted: u64 =
            drops.iter().filter(|part| part.counter == "tx_dropped").map(|part| part.count).sum();
        let uncounted = generated.refused.saturating_sub(counted);
        if uncounted > 0 {
            drops.push(explained(tx, "refused", uncounted));
        }
    }
    let achieved_pps = generated.achieved_pps();
    let mut limits = Vec::new();
    let slow = achieved_pps < args.rate * RATE_TOLERANCE;
    if !stop::requested() && (slow || maximum.pps.is_some_and(|max| args.rate > max)) {
        limits.push("generator");
    }
    if !steps.steps().is_empty() {
        limits.push("clock");
    }
    let error = generated.error.or(counter_error);
    let report = Report {
        tx: tx.clone(),
        source: route.source,
        destination: dst,
        destination_mac: resolve::mac_text(route.destination_mac),
        flows: of_frame.flows,
        size_bytes: of_frame.size_bytes(dst.is_ipv6()),
        size_includes_fcs: true,
        started_ns,
        duration_s: generated.elapsed_ns.max(1) as f64 / 1e9,
        first_sequence: args.first,
        intended_pps: args.rate,
        achieved_pps,
        planned,
        sent: generated.sent,
        drops,
        limits,
        generator: maximum.report(generated.refused, &generated.slip),
        warmup_sent,
        counters: changes,
        cpu,
        clock_steps: steps.steps().to_vec(),
        interrupted: stop::requested(),
        error: error.as_ref().map(Failure::of),
    };
    Output::new("send", report).print()?;
    error.map_or(Ok(()), Err)
}

/// Sends the frames that come before the first; nobody here knows whether any arrives.
fn warm_up(tx: &mut impl Transmitter, template: &Template, args: &Args) -> Result<u64> {
    let mut sent = 0;
    for _ in 0..args.warmup {
        let tx_ns = clock::realtime_ns();
        let done = tx.send(1, &mut |_, frame| template.stamp(frame, args.first - 1, tx_ns))?;
        sent += done.accepted as u64;
        if stop::requested() {
            break;
        }
        generator::pause(Duration::from_millis(10));
    }
    Ok(sent)
}
