//! One trial: a generator on one interface, a sink on another, every frame accounted for.

pub mod account;
mod calibrate;
pub mod choose;
pub mod counters;
pub mod ends;
pub mod kernel;
pub mod options;
pub mod order;
pub mod packet;
pub mod receive;
pub mod send;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;

use self::counters::{Explained, Places};
use self::ends::{ReceivingEnd, SendingEnd, Surroundings, explained, limits};
use self::options::{FrameOptions, LoadOptions, SinkOptions};
use self::order::{Expectation, Generated, sample_mask};
use crate::affinity;
use crate::clock;
use crate::error::{Error, Result};
use crate::frame::{FrameKind, Template};
use crate::netlink::Mac;
use crate::netns::IfSpec;
use crate::output;
use crate::resolve;
use crate::stop::{self, Lifetime};
use crate::threads;

/// Default UDP port of trials.
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
    #[command(flatten)]
    pub load: LoadOptions,
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
    #[command(flatten)]
    pub sink: SinkOptions,
    /// The generator's maximum [packets/s] from an earlier --calibrate-only; not measured again
    #[arg(long, value_name = "PPS", value_parser = crate::units::pps)]
    pub max_pps: Option<f64>,
    /// Only measure the generator's maximum, with frames of this size, batch and CPU
    #[arg(long, conflicts_with_all = ["tx", "rx", "rate", "max_pps"])]
    pub calibrate_only: bool,
    #[command(flatten)]
    pub frames: FrameOptions,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    clock::tighten_timers();
    affinity::check_cpu(args.frames.tx_cpu)?;
    affinity::check_cpu(args.sink.rx_cpu)?;
    affinity::check_cpu(args.frames.carrier_cpu)?;
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
    let (source, destination, port) = (address(1), address(2), args.frames.dst_port);
    let mut template =
        Template::of_trial(source, destination, port, size_bytes, args.frames.flows)?;
    template.set_macs(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let frames = args.frames.placed(args.sink.rx_cpu);
    let maximum = calibrate::maximum(frames.backend, &template, &frames)?;
    let body = json!({
        "size_bytes": size_bytes,
        "size_includes_fcs": true,
        "backend": maximum.backend,
        "batch": maximum.batch,
        "max_pps": maximum.pps,
        "measured_on": maximum.measured_on,
    });
    output::print("trial-calibration", body)
}

fn trial(args: &Args, tx: &IfSpec, rx: &IfSpec, rate_pps: f64, dst: IpAddr) -> Result<()> {
    let version = if dst.is_ipv6() { 6 } else { 4 };
    if args.ip.is_some_and(|ip| ip != version) {
        return Err(Error::bad_input(
            format!("--ip {} does not fit --dst {dst}", args.ip.unwrap_or(0)),
            "leave --ip out, or give an address of that version",
        ));
    }
    // Unique on this machine, so that no frame of an earlier trial counts.
    let order = args.load.order(rate_pps, clock::realtime_ns() as u64)?;
    let drain_ns = args.drain.as_nanos() as i64;
    let expected = Expectation {
        kind: FrameKind::Trial,
        first_sequence: order.first_sequence,
        planned: order.count,
        flows: args.frames.flows,
        late_after_ns: Some(drain_ns),
        sample_mask: sample_mask(order.schedule.mean_pps()),
        ipv6: dst.is_ipv6(),
        port: args.frames.dst_port,
    };
    let mut receiving = ReceivingEnd::open(rx, &expected, &args.sink)?;
    let to = (dst, args.dst_mac);
    let frames = args.frames.placed(args.sink.rx_cpu);
    let mut sending = SendingEnd::open(tx, Some(rx), to, &frames, order, args.max_pps)?;
    let warmup = warm_up(&mut sending, &mut receiving)?;

    let surroundings = Surroundings::begin(Places::new(Some(tx), Some(rx), &args.counter))?;
    receiving.begin();
    let refusals = sending.treat_refused(surroundings.refusals());
    let (generated, sink_error) =
        send_and_receive(&mut sending, &mut receiving, args.sink.rx_cpu, drain_ns);
    let changes = surroundings.end(tx, &generated, refusals);
    let error = generated.error.clone().or(sink_error).or(changes.error);
    let (receiving, counted, ring_dropped) = receiving.report();
    // The sink knows of frames that the generator lost count of, by an error in the middle of a batch.
    let sent = generated.sent.max(counted.arrived());
    let lost = sent - counted.received;
    // The sink's own counts are exact and come first.
    let own =
        [explained(rx, "late", counted.late), explained("sink", "ring_dropped", ring_dropped)];
    let mut loss: Vec<_> = own.into_iter().chain(changes.drops).collect();
    let sum = |loss: &[Explained]| loss.iter().map(|part| part.count).sum::<u64>();
    let named = loss.iter().filter(|part| part.counter.ends_with("_dropped"));
    let unnamed = changes.softnet_dropped.saturating_sub(named.map(|part| part.count).sum());
    let unexplained = lost.saturating_sub(sum(&loss));
    loss.push(explained("host", "softnet_dropped", unnamed.min(unexplained)));
    let excess_drops = cap(&mut loss, lost);
    let tx_label = tx.to_string();
    let by_tx =
        loss.iter().filter(|part| part.place == tx_label && part.counter.starts_with("tx_"));
    let dropped_by_tx: u64 = by_tx.map(|part| part.count).sum();

    let generator_limits = sending.limits(&generated);
    let limits = limits(&[
        ("generator", generator_limits),
        ("sink", ring_dropped > 0),
        ("clock", changes.clock_stepped),
        ("sut", lost > 0 && !generator_limits && ring_dropped == 0),
    ]);
    let seconds = generated.elapsed_ns.max(1) as f64 / 1e9;
    let own = json!({
        "ip": version,
        "offered_pps": (generated.sent - dropped_by_tx.min(generated.sent)) as f64 / seconds,
        "received_pps": counted.received as f64 / seconds,
        "sent": sent,
        "lost": lost,
        "late": counted.late,
        "unexplained": lost - sum(&loss),
        "excess_drops": excess_drops,
        "loss": loss,
        "limits": limits,
        "latency": counted.latency.summary(),
        "warmup": { "sent": warmup.0, "received": warmup.1, "arrived": counted.warmup },
    });
    let error_part = output::failure(error.as_ref());
    let parts = [sending.report(&generated), receiving, own, changes.report, error_part];
    output::print("trial", output::merged(parts))?;
    error.map_or(Ok(()), Err)
}

/// Reduces the parts, last first, to a sum of `lost` at most, and returns the excess: drop counters
/// count other traffic too.
fn cap(loss: &mut Vec<Explained>, lost: u64) -> u64 {
    let mut remaining = lost;
    let mut excess = 0;
    for part in loss.iter_mut() {
        let count = part.count.min(remaining);
        excess += part.count - count;
        remaining -= count;
        part.count = count;
    }
    loss.retain(|part| part.count > 0);
    excess
}

/// Sends a frame every 10 ms until one arrives or a second has passed, which checks the path and fills its
/// neighbour and forwarding tables before the trial. Returns how many, and whether one arrived.
fn warm_up(sending: &mut SendingEnd, receiving: &mut ReceivingEnd) -> Result<(u64, bool)> {
    let (mut sent, mut received) = (0, false);
    for _ in 0..100 {
        sent += sending.warm_up()?;
        let deadline_ns = clock::monotonic_ns() + 10_000_000;
        while !received && clock::monotonic_ns() < deadline_ns {
            receiving.sink.poll(Duration::from_millis(2))?;
            received = receiving.sink.warmed_up() > 0;
        }
        if received || stop::requested() {
            break;
        }
    }
    Ok((sent, received))
}

/// Runs generator and sink, each on a thread of its own, to the end of the drain.
fn send_and_receive(
    sending: &mut SendingEnd,
    receiving: &mut ReceivingEnd,
    rx_cpu: Option<usize>,
    drain_ns: i64,
) -> (Generated, Option<Error>) {
    let (sent, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut sink_error = None;
    let generated = std::thread::scope(|scope| {
        let generator = threads::spawn(scope, || {
            let generated = sending.run(&sent);
            done.store(true, Ordering::Release);
            generated
        });
        let generator = match generator {
            Ok(generator) => generator,
            Err(error) => return Generated { error: Some(error), ..Generated::default() },
        };
        sink_error =
            affinity::pin(rx_cpu).and_then(|()| receiving.receive((&sent, &done), drain_ns)).err();
        threads::join(generator)
    });
    (generated, sink_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_loss_never_exceed_it() {
        pw_cases::check!().with_type::<(Vec<u32>, u32)>().for_each(|(counts, lost)| {
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
