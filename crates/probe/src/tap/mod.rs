//! `pw-probe tap`: when each probe passed each interface, whoever sends the probes.

pub mod decode;
pub mod join;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;

use self::decode::{Proto, Wanted, decode};
use self::join::{Joiner, Sighting};
use crate::capture::{Captured, Ring};
use crate::clock::{self, ClockWatch};
use crate::error::{Error, Result};
use crate::filter::{self, SNAP_BYTES, Traffic};
use crate::netns::IfSpec;
use crate::output::{self, PacketsFile};
use crate::stop::{self, Lifetime};
use crate::threads::{self, join};

/// Records when probes pass interfaces, with the kernel's nanosecond stamps, and joins what the
/// points saw by protocol, id and sequence number.
///
/// Reply minus request at a point is the RTT there at a sender's NIC, the response time at a
/// responder's. Prints `ready` on stderr once every point captures: start the probes then. Ends on
/// SIGINT, SIGTERM, --duration or --count.
///
/// Echoes of `pw-probe ping` are joined by the 64-bit number in their payload, those of other
/// tools by identifier and unwrapped 16-bit number. Stamps are CLOCK_REALTIME.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    pw-probe tap --point nic=eth0@sender --point far=eth0@responder --duration 10\n  \
    pw-probe tap --point nic=eth0 --proto stamp --packets packets.csv")]
pub struct Args {
    /// A capture point (repeatable)
    #[arg(long, value_name = "NAME=IF[@NETNS]", required = true)]
    pub point: Vec<Point>,
    /// Which probes
    #[arg(long, value_enum, default_value = "icmp")]
    pub proto: Proto,
    /// Only probes of this echo identifier, or of this UDP port of the sender
    #[arg(long, value_name = "N")]
    pub id: Option<u16>,
    /// UDP port of the STAMP reflector; 862 without it
    #[arg(long, value_name = "PORT")]
    pub udp_port: Option<u16>,
    /// Write one CSV row a probe to this file
    #[arg(long, value_name = "FILE")]
    pub packets: Option<PathBuf>,
    /// How long to capture [s]
    #[arg(long, value_name = "S", value_parser = crate::units::seconds)]
    pub duration: Option<Duration>,
    /// End once every point has seen this many requests and replies together
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Size of each point's ring [MiB]
    #[arg(long, value_name = "MIB", default_value = "4",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ring_mib: u32,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

/// `NAME=IF[@NETNS]`. The name becomes part of column names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// Letters, digits, `_` and `-`.
    pub name: String,
    /// The interface.
    pub at: IfSpec,
}

impl FromStr for Point {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: String| {
            Error::bad_input(
                format!("'{text}' is not a capture point: {why}"),
                "write NAME=IF or NAME=IF@NETNS",
            )
        };
        let (name, at) = text.split_once('=').ok_or_else(|| wrong("it has no '='".into()))?;
        let valid = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || !name.chars().all(valid) {
            return Err(wrong("a name has letters, digits, '_' and '-'".into()));
        }
        let at = at.parse().map_err(|error: Error| wrong(error.to_string()))?;
        Ok(Self { name: name.into(), at })
    }
}

/// What one point saw, before the joining.
struct Capture {
    sightings: Vec<Sighting>,
    dropped: u64,
    error: Option<Error>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    let names: Vec<&str> = args.point.iter().map(|point| &*point.name).collect();
    if let Some((_, name)) = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
        return Err(Error::bad_input(
            format!("two capture points are called '{name}'"),
            "give each a name of its own",
        ));
    }
    let id = args.id;
    let port = args.udp_port.unwrap_or(crate::stamp::PORT);
    let wanted = Wanted { proto: args.proto, port, id };
    let packets = args.packets.as_deref().map(PacketsFile::create).transpose()?;

    let (started_ns, start_ns) = (clock::realtime_ns(), clock::monotonic_ns());
    let watch = ClockWatch::start();
    let captures = capture_all(args, wanted)?;
    let clock_steps = watch.steps();
    let duration_s = (clock::monotonic_ns() - start_ns) as f64 / 1e9;

    let sightings: Vec<_> = captures.iter().map(|point| &*point.sightings).collect();
    let joiner = Joiner::join(&sightings);
    let written = packets.map(|file| file.write(|out| joiner.write_csv(&names, out)));
    let points = args.point.iter().zip(&captures).zip(joiner.summaries());
    let points = points.map(|((point, capture), summary)| {
        let place = json!({
            "name": point.name, "source": point.at, "dropped": capture.dropped,
        });
        output::merged([place, json!(summary), output::failure(capture.error.as_ref())])
    });
    let body = json!({
        "proto": args.proto,
        "id": id,
        "udp_port": (args.proto == Proto::Stamp).then_some(port),
        "started_ns": started_ns,
        "duration_s": duration_s,
        "probes": joiner.rows(),
        "points": points.collect::<Vec<_>>(),
        "packets_file": args.packets,
        "clock_steps": clock_steps,
        "interrupted": stop::requested(),
    });
    output::print("tap", body)?;
    written.transpose()?;
    captures.into_iter().find_map(|point| point.error).map_or(Ok(()), Err)
}

/// Captures at all points until the end, each on a thread of its own.
fn capture_all(args: &Args, wanted: Wanted) -> Result<Vec<Capture>> {
    let traffic = match wanted.proto {
        Proto::Icmp => Traffic::Echo(wanted.id),
        Proto::Stamp => Traffic::Udp(wanted.port),
    };
    let filter = filter::program(traffic, SNAP_BYTES);
    let open = |point: &Point| Ring::open(&point.at, &filter, args.ring_mib, false);
    let rings = args.point.iter().map(open).collect::<Result<Vec<_>>>()?;
    eprintln!("ready");
    let ended = AtomicBool::new(false);
    let counts: Vec<AtomicU64> = rings.iter().map(|_| AtomicU64::new(0)).collect();
    let end_ns = clock::end_ns(clock::monotonic_ns(), args.duration);
    std::thread::scope(|scope| {
        let watching = rings.into_iter().zip(&counts).map(|(ring, count)| {
            let ended = &ended;
            threads::spawn(scope, move || watch(ring, wanted, count, ended))
        });
        let running = watching.collect::<Result<Vec<_>>>().inspect_err(|_| {
            ended.store(true, Ordering::Relaxed);
        })?;
        let complete = || {
            let enough = |count: &AtomicU64, n| count.load(Ordering::Relaxed) >= n;
            args.count.is_some_and(|n| counts.iter().all(|count| enough(count, n)))
        };
        while !stop::requested() && !complete() && !ended.load(Ordering::Relaxed) {
            let now = clock::monotonic_ns();
            if now >= end_ns {
                break;
            }
            clock::sleep_until(end_ns.min(now + 20_000_000));
        }
        ended.store(true, Ordering::Relaxed);
        Ok(running.into_iter().map(join).collect())
    })
}

/// Captures at one point until `ended`, and what is on its way then.
fn watch(mut ring: Ring, wanted: Wanted, count: &AtomicU64, ended: &AtomicBool) -> Capture {
    /// Longest time that a packet is on its way through the kernel [ns].
    const LAST_NS: i64 = 20_000_000;
    let mut sightings = Vec::new();
    let mut take = |captured: Captured<'_>| {
        if let Some(probe) = decode(captured.network, wanted) {
            count.fetch_add(u64::from(!probe.warmup), Ordering::Relaxed);
            sightings.push(Sighting { probe, stamp_ns: captured.stamp_ns });
        }
    };
    let mut last_ns = None;
    let error = loop {
        if let Err(error) = ring.poll(Duration::from_millis(10), &mut take) {
            ended.store(true, Ordering::Relaxed);
            break Some(error);
        }
        if ended.load(Ordering::Relaxed) {
            let now = clock::monotonic_ns();
            if now >= *last_ns.get_or_insert(now + LAST_NS) {
                break None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    Capture { sightings, dropped: ring.stats().dropped, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_a_name_and_an_interface() {
        let point: Point = "nic=eth0@a".parse().expect("valid");
        assert_eq!((point.name.as_str(), point.at.interface.as_str()), ("nic", "eth0"));
        for text in ["", "eth0", "=eth0", "a b=eth0", "a,b=eth0", "nic=", "nic=a/b"] {
            assert!(text.parse::<Point>().is_err(), "{text:?}");
        }
        pw_cases::check!().with_type::<String>().for_each(|text| {
            let _ = text.parse::<Point>();
        });
    }
}
