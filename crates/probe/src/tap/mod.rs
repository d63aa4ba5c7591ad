//! Capture points: when each probe passed each interface, live or from capture files. Knows nothing of
//! who sends the probes.

pub mod decode;
pub mod files;
pub mod join;

use std::fs::File;
use std::io::{BufWriter, PipeReader, Write, pipe};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use self::decode::{Probes, decode};
use self::files::Damage;
use self::join::{Joiner, PointSummary, Sighting};
use crate::capture::{Captured, Filter, Ring, RingOptions};
use crate::clock::{self, ClockStep, StepDetector, SystemClock};
use crate::error::{Error, Result};
use crate::filter::{self, Traffic};
use crate::netns::IfSpec;
use crate::output::{Failure, Output};
use crate::stop::{self, Lifetime};

/// Sees when probes pass interfaces, with the kernel's nanosecond stamps, and joins what the
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
    pw-probe tap --point nic=eth0 --proto stamp --packets packets.csv\n  \
    pw-probe tap --point nic=eth0 --bpf \"$(tcpdump -ddd -i eth0 'icmp and host 198.18.0.2')\"\n  \
    pw-probe tap --file nic=sender.pcap --file far=responder.pcapng --packets packets.csv")]
pub struct Args {
    /// A capture point (repeatable)
    #[arg(long, value_name = "NAME=IF[@NETNS]", required_unless_present = "file")]
    pub point: Vec<Named<IfSpec>>,
    /// A capture point from a pcap or pcapng file (repeatable)
    #[arg(long, value_name = "NAME=FILE")]
    pub file: Vec<Named<PathBuf>>,
    /// Which probes
    #[arg(long, value_enum, default_value = "icmp")]
    pub proto: Proto,
    /// Only probes of this echo identifier, or of this UDP port of the sender
    #[arg(long, value_name = "N")]
    pub id: Option<u16>,
    /// UDP port of the responder; 862 with stamp, 4862 with udp
    #[arg(long, value_name = "PORT")]
    pub udp_port: Option<u16>,
    /// A filter of your own instead of the built-in one, as `tcpdump -ddd` prints it
    #[arg(long, value_name = "PROGRAM")]
    pub bpf: Option<String>,
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
    /// Use what a damaged capture file has before the damage, instead of refusing it
    #[arg(long)]
    pub tolerant: bool,
    #[command(flatten)]
    pub lifetime: Lifetime,
}

/// Which probes to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Proto {
    /// ICMP and ICMPv6 echoes, of any tool
    Icmp,
    /// STAMP test packets (RFC 8762)
    Stamp,
    /// Frames of `pw-probe trial --src-port …`; captures do not see them leave (see docs)
    Udp,
}

/// `NAME=VALUE`. The name becomes part of column names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named<T> {
    /// The name: letters, digits, `_` and `-`.
    pub name: String,
    /// The value.
    pub value: T,
}

impl<T: FromStr<Err: std::fmt::Display>> FromStr for Named<T> {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: String| {
            Error::bad_input(
                format!("'{text}' is not a capture point: {why}"),
                "write NAME=IF, NAME=IF@NETNS or NAME=FILE",
            )
        };
        let (name, value) = text.split_once('=').ok_or_else(|| wrong("it has no '='".into()))?;
        let valid = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || !name.chars().all(valid) {
            return Err(wrong("a name has letters, digits, '_' and '-'".into()));
        }
        let value = value.parse().map_err(|error: T::Err| wrong(error.to_string()))?;
        Ok(Self { name: name.into(), value })
    }
}

#[derive(Debug, Serialize)]
struct Point {
    name: String,
    /// Interface or file.
    source: String,
    #[serde(flatten)]
    summary: PointSummary,
    /// Packets that passed the filter and found the ring full; none for files, which do not tell.
    dropped: Option<u64>,
    /// The damage of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<Damage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure>,
}

#[derive(Debug, Serialize)]
struct Report {
    proto: Proto,
    id: Option<u16>,
    udp_port: Option<u16>,
    started_ns: i64,
    duration_s: f64,
    /// Probes seen at any point.
    probes: usize,
    points: Vec<Point>,
    packets_file: Option<PathBuf>,
    clock_steps: Vec<ClockStep>,
    interrupted: bool,
}

/// The capture of one point, before the joining.
#[derive(Debug, Default)]
struct PointCapture {
    sightings: Vec<Sighting>,
    dropped: Option<u64>,
    damage: Option<Damage>,
    error: Option<Error>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    args.lifetime.begin()?;
    let names: Vec<&str> =
        args.point.iter().map(|p| &*p.name).chain(args.file.iter().map(|f| &*f.name)).collect();
    if let Some((_, name)) = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
        return Err(Error::bad_input(
            format!("two capture points are called '{name}'"),
            "give each a name of its own",
        ));
    }
    let (traffic, probes, port) = selection(args);
    let kernel_filter = match &args.bpf {
        Some(text) => filter::parse_ddd(text)?,
        None => filter::program(traffic),
    };
    // Created before the capture, so that a wrong path shows at once.
    let mut packets = args.packets.as_deref().map(create).transpose()?;

    let started_ns = clock::realtime_ns();
    let start_ns = clock::monotonic_ns();
    let mut steps = StepDetector::new(&SystemClock);
    let mut captures = capture_all(args, &kernel_filter, probes)?;
    steps.check(&SystemClock);
    let duration_s = (clock::monotonic_ns() - start_ns) as f64 / 1e9;
    for file in &args.file {
        captures.push(read_file(&file.value, probes, args.tolerant)?);
    }

    let sightings: Vec<_> =
        captures.iter_mut().map(|point| std::mem::take(&mut point.sightings)).collect();
    let joiner = Joiner::join(&sightings);
    if let (Some(out), Some(path)) = (&mut packets, &args.packets) {
        joiner
            .write_csv(&names, out)
            .and_then(|()| out.flush())
            .map_err(|error| cannot_write(path, error))?;
    }
    let sources = args.point.iter().map(|point| point.value.to_string());
    let sources: Vec<String> =
        sources.chain(args.file.iter().map(|file| file.value.display().to_string())).collect();
    let error = captures.iter_mut().find_map(|point| point.error.clone());
    let points = joiner.summaries().into_iter().zip(captures).enumerate();
    let points = points.map(|(index, (summary, capture))| Point {
        name: names[index].into(),
        source: sources[index].clone(),
        summary,
        dropped: capture.dropped,
        damage: capture.damage,
        error: capture.error.as_ref().map(Failure::of),
    });
    let report = Report {
        proto: args.proto,
        id: args.id,
        udp_port: port,
        started_ns,
        duration_s,
        probes: joiner.rows(),
        points: points.collect(),
        packets_file: args.packets.clone(),
        clock_steps: steps.steps().to_vec(),
        interrupted: stop::requested(),
    };
    Output::new("tap", report).print()?;
    error.map_or(Ok(()), Err)
}

fn selection(args: &Args) -> (Traffic, Probes, Option<u16>) {
    let id = args.id;
    match args.proto {
        Proto::Icmp => (Traffic::Echo { id }, Probes::Echo { id }, None),
        Proto::Stamp => {
            let port = args.udp_port.unwrap_or(crate::stamp::PORT);
            (Traffic::Udp { port }, Probes::Stamp { port, id }, Some(port))
        }
        Proto::Udp => {
            let port = args.udp_port.unwrap_or(crate::trial::DEFAULT_PORT);
            (Traffic::Udp { port }, Probes::Udp { port, id }, Some(port))
        }
    }
}

fn create(path: &Path) -> Result<BufWriter<File>> {
    File::create(path).map(BufWriter::new).map_err(|error| cannot_write(path, error))
}

fn cannot_write(path: &Path, error: std::io::Error) -> Error {
    Error::failed(
        format!("cannot write the packets to {}", path.display()),
        "make space, or give --packets another path",
    )
    .caused_by(error)
}

fn read_file(path: &Path, probes: Probes, tolerant: bool) -> Result<PointCapture> {
    let mut capture = PointCapture::default();
    capture.damage = files::read(path, |packet| {
        if let Some(probe) = decode(packet.network, probes) {
            capture.sightings.push(Sighting { probe, stamp_ns: packet.stamp_ns });
        }
    })?;
    match &capture.damage {
        Some(damage) if !tolerant => Err(Error::bad_input(
            format!(
                "{} is damaged at byte {}: {}",
                path.display(),
                damage.offset_bytes,
                damage.why
            ),
            format!("--tolerant uses the {} probes before it", capture.sightings.len()),
        )),
        _ => Ok(capture),
    }
}

/// Captures at all live points until the end, each on a thread of its own.
fn capture_all(args: &Args, kernel_filter: &Filter, probes: Probes) -> Result<Vec<PointCapture>> {
    const BLOCK_BYTES: u32 = 64 << 10;
    let options = RingOptions {
        block_bytes: BLOCK_BYTES,
        blocks: (args.ring_mib << 20) / BLOCK_BYTES,
        // Long, to disturb little: nothing waits for a packet here.
        retire_ms: 50,
        incoming_only: false,
    };
    let mut rings = Vec::new();
    for point in &args.point {
        rings.push(Ring::open(&point.value, kernel_filter, options)?);
    }
    if rings.is_empty() {
        return Ok(Vec::new());
    }
    // Closing the writing end wakes all threads that wait for packets.
    let (end_reader, end_writer) =
        pipe().map_err(|error| Error::failed("cannot make a pipe", "").caused_by(error))?;
    eprintln!("ready");
    let ended = AtomicBool::new(false);
    let counts: Vec<AtomicU64> = rings.iter().map(|_| AtomicU64::new(0)).collect();
    let start_ns = clock::monotonic_ns();
    let end_ns = clock::end_ns(start_ns, args.duration);
    std::thread::scope(|scope| {
        let threads: Vec<_> = rings
            .into_iter()
            .zip(&counts)
            .map(|(ring, count)| {
                let (ended, end_reader) = (&ended, &end_reader);
                scope.spawn(move || watch(ring, probes, count, ended, end_reader))
            })
            .collect();
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
        drop(end_writer);
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        Ok(joined.collect())
    })
}

/// Captures at one point until `ended`, which `end_reader` announces, then drains the ring.
fn watch(
    mut ring: Ring,
    probes: Probes,
    count: &AtomicU64,
    ended: &AtomicBool,
    end_reader: &PipeReader,
) -> PointCapture {
    let mut capture = PointCapture::default();
    let mut take = |captured: Captured<'_>| {
        if let Some(probe) = decode(captured.network, probes) {
            count.fetch_add(u64::from(!probe.warmup), Ordering::Relaxed);
            capture.sightings.push(Sighting { probe, stamp_ns: captured.stamp_ns });
        }
    };
    let mut error = None;
    while !ended.load(Ordering::Relaxed) {
        ring.wait(end_reader.as_fd(), Duration::from_secs(1));
        error = ring.poll(Duration::ZERO, &mut take).err();
        if error.is_some() {
            ended.store(true, Ordering::Relaxed);
        }
    }
    // The ring hands over the last packets within the retire time.
    let last_ns = clock::monotonic_ns() + 2 * ring.retire_time().as_nanos() as i64;
    while error.is_none() && clock::monotonic_ns() < last_ns {
        error = ring.poll(ring.retire_time(), &mut take).err();
    }
    capture.dropped = Some(ring.stats().dropped);
    capture.error = error;
    capture
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_a_name_and_an_interface_or_file() {
        let point: Named<IfSpec> = "nic=eth0@a".parse().expect("valid");
        assert_eq!((point.name.as_str(), point.value.interface.as_str()), ("nic", "eth0"));
        let file: Named<PathBuf> = "far=a=b.pcap".parse().expect("valid");
        assert_eq!(file.value, PathBuf::from("a=b.pcap"));
        for text in ["", "eth0", "=eth0", "a b=eth0", "a,b=eth0", "nic=", "nic=a/b"] {
            assert!(text.parse::<Named<IfSpec>>().is_err(), "{text:?}");
        }
        pw_cases::check!().with_type::<String>().for_each(|text| {
            let _ = text.parse::<Named<IfSpec>>();
        });
    }
}
