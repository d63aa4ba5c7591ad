//! The receiving end of a trial, for ends on different machines.

use std::time::Duration;

use serde_json::json;

use super::DEFAULT_PORT;
use super::counters::Places;
use super::ends::{ReceivingEnd, explained};
use super::options::{MOST_FRAMES, SinkOptions};
use super::order::{Expectation, Sink};
use crate::affinity;
use crate::clock;
use crate::cpu::{CpuSample, CpuUsage};
use crate::error::Result;
use crate::frame::FrameKind;
use crate::netns::IfSpec;
use crate::output;
use crate::stop::{self, Lifetime};

/// Accounts for the frames that `pw-probe send` sends: received, duplicate, reordered.
///
/// Prints `ready` on stderr once frames are counted, and its counts when it is ended by SIGINT or
/// SIGTERM, or when --duration is over. What had arrived by then counts; what comes later, or
/// never, is lost. Reports no one-way times: the sender has another clock.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe receive --rx eth0 --first 7000 --count 100k                        on one machine\n  \
    pw-probe send --tx eth0 --dst 198.18.0.2 --rate 100k --first 7000           on the other")]
pub struct Args {
    /// Interface to receive on
    #[arg(long, value_name = "IF[@NETNS]")]
    pub rx: IfSpec,
    /// Number of the first frame, as `send` has it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1 << 63))]
    pub first: u64,
    /// How many frames may come: rate times duration of `send`, or more
    #[arg(long, value_name = "N", value_parser = count)]
    pub count: u64,
    /// Number of flows, as `send` has it
    #[arg(long, value_name = "N", default_value = "1",
        value_parser = clap::value_parser!(u16).range(1..=16_384))]
    pub flows: u16,
    /// IP version
    #[arg(long, value_name = "4|6", default_value = "4",
        value_parser = clap::value_parser!(u8).range(4..=6))]
    pub ip: u8,
    /// UDP destination port
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT,
        value_parser = clap::value_parser!(u16).range(1..))]
    pub dst_port: u16,
    /// How long to count [s]; without it until SIGINT or SIGTERM
    #[arg(long, value_name = "S", value_parser = crate::units::seconds)]
    pub duration: Option<Duration>,
    /// A further interface whose drop counters may explain loss (repeatable)
    #[arg(long, value_name = "IF[@NETNS]")]
    pub counter: Vec<IfSpec>,
    #[command(flatten)]
    pub sink: SinkOptions,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

/// Measures CPU usage from the first frame to the last, without the idle time before and after, in
/// which the other end is started and ended.
#[derive(Default)]
struct BusyMeter {
    meter: Option<CpuSample>,
    usage: Option<CpuUsage>,
    busy: bool,
}

impl BusyMeter {
    /// Notes the number of frames of the last poll.
    fn note(&mut self, count: u64) {
        if count > 0 {
            self.busy = true;
            if self.meter.is_none() {
                self.meter = CpuSample::now().ok();
            }
        } else if std::mem::take(&mut self.busy) {
            self.usage = self.meter.as_ref().and_then(|meter| meter.usage().ok());
        }
    }
}

/// Longest time for draining the ring at the end [ns].
const LAST_NS: i64 = 200_000_000;

fn count(text: &str) -> std::result::Result<u64, String> {
    let count = crate::units::pps(text)?.round();
    if count > MOST_FRAMES {
        return Err(format!("at most {MOST_FRAMES:.0} frames can be accounted for"));
    }
    Ok((count as u64).max(1))
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    affinity::check_cpu(args.sink.rx_cpu)?;
    let rx = &args.rx;
    let expected = Expectation {
        kind: FrameKind::Trial,
        first_sequence: args.first,
        planned: args.count,
        flows: args.flows,
        late_after_ns: None,
        sample_mask: 0,
        ipv6: args.ip == 6,
        port: args.dst_port,
    };
    let mut receiving = ReceivingEnd::open(rx, &expected, &args.sink)?;
    let places = Places::new(None, Some(rx), &args.counter);
    affinity::pin(args.sink.rx_cpu)?;
    let before = places.read()?;
    receiving.begin();
    let mut cpu = BusyMeter::default();
    let started_ns = clock::realtime_ns();
    let start_ns = clock::monotonic_ns();
    eprintln!("ready");

    let error = listen(args, receiving.sink.as_mut(), start_ns, &mut cpu).err();
    let duration_s = (clock::monotonic_ns() - start_ns).max(1) as f64 / 1e9;
    let (receiving, counted, ring_dropped) = receiving.report();
    let (counters, rose, counter_error) = places.since(&before, 0);
    let full = (ring_dropped > 0).then(|| explained("sink", "ring_dropped", ring_dropped));
    let drops: Vec<_> = full.into_iter().chain(rose).collect();
    let error = error.or(counter_error);
    let own = json!({
        "ip": args.ip,
        "started_ns": started_ns,
        "duration_s": duration_s,
        "first_sequence": args.first,
        "planned": args.count,
        "warmup_received": counted.warmup,
        "drops": drops,
        "counters": counters,
        "cpu": cpu.usage,
        "interrupted": args.duration.is_some() && stop::requested(),
    });
    let parts = [receiving, own, output::failure(error.as_ref())];
    output::print("receive", output::merged(parts))?;
    error.map_or(Ok(()), Err)
}

/// Counts until the end, then drains the ring.
fn listen(args: &Args, sink: &mut dyn Sink, start_ns: i64, cpu: &mut BusyMeter) -> Result<()> {
    let limit_ns = args.duration.map(|duration| start_ns + duration.as_nanos() as i64);
    let mut ended_ns = None;
    loop {
        let count = sink.poll(Duration::from_millis(20))?;
        cpu.note(count);
        let now = clock::monotonic_ns();
        match ended_ns {
            Some(ended_ns) if count == 0 || now - ended_ns > LAST_NS => {
                cpu.note(0);
                return Ok(());
            }
            None if stop::requested() || limit_ns.is_some_and(|limit_ns| now >= limit_ns) => {
                ended_ns = Some(now);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_may_have_a_unit_and_has_a_bound() {
        assert_eq!(count("100k"), Ok(100_000));
        assert_eq!(count("1"), Ok(1));
        assert!(count("1e12").is_err());
        assert!(count("none").is_err());
    }
}
