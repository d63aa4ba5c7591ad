//! The sending and the receiving end of a trial, each with its part of the result. `trial` has both,
//! `send` and `receive` one each.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use super::account::Counted;
use super::choose::{self, Chosen};
use super::counters::{Change, Explained, Places, Snapshot};
use super::discard::Discard;
use super::options::{FrameOptions, GeneratorChoice, Load, SinkChoice};
use super::order::{Expectation, Generated, Generator, Order, Refusals, Sink};
use super::{placement, resolve};
use crate::capture::RingStats;
use crate::clock::{self, ClockStep, ClockWatch};
use crate::cpu::{CpuMeter, CpuUsage};
use crate::error::{Error, Result};
use crate::frame::Template;
use crate::histogram::LatencySummary;
use crate::netns::IfSpec;
use crate::stop;

/// Share of the intended rate that counts as achieved.
const RATE_TOLERANCE: f64 = 0.999;

/// A part of the loss.
pub fn explained(place: impl std::fmt::Display, counter: &str, count: u64) -> Explained {
    Explained { place: place.to_string(), counter: counter.into(), count }
}

/// The generator of a trial.
#[derive(Debug, Serialize)]
pub struct GeneratorReport {
    backend: &'static str,
    /// Why it is not a faster one.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_faster: Option<String>,
    /// Most frames that were sent together.
    batch: u16,
    /// The CPU that it was bound to.
    cpu: Option<usize>,
    /// Its own maximum; none when that could not be measured.
    max_pps: Option<f64>,
    /// `private veth pair`, `private loopback` or `--max-pps`.
    max_pps_from: Option<&'static str>,
    max_pps_error: Option<String>,
    /// Times that the interface had no room.
    refused: u64,
    /// From due to stamped [ns].
    slip: Option<LatencySummary>,
    /// From due to leaving by the interface, of all frames or a sample [ns].
    departure: Option<LatencySummary>,
}

/// The sending end's part of the result.
#[derive(Debug, Serialize)]
pub struct SendingReport {
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
    generator: GeneratorReport,
}

/// The end that sends.
pub struct SendingEnd<'a> {
    tx: &'a IfSpec,
    route: resolve::Route,
    frames: &'a FrameOptions,
    dst: IpAddr,
    load: Load,
    first_sequence: u64,
    generator: Box<dyn Generator>,
    not_faster: Option<String>,
    maximum: std::result::Result<(f64, &'static str), String>,
}

impl<'a> SendingEnd<'a> {
    /// Resolves the route to `dst`, opens the generator, and measures its maximum unless `max_pps` is
    /// given.
    ///
    /// # Errors
    /// There is no route, or no generator can send these frames.
    pub fn open(
        tx: &'a IfSpec,
        rx: Option<&IfSpec>,
        (dst, dst_mac): (IpAddr, Option<resolve::MacChoice>),
        frames: &'a FrameOptions,
        load: Load,
        (first_sequence, max_pps): (u64, Option<f64>),
    ) -> Result<Self> {
        let route = resolve::resolve(tx, rx, frames.src, dst, frames.dst_port, dst_mac)?;
        let template = frames.template(tx, &route, dst)?;
        let Chosen { chosen: generator, not_faster } =
            choose::generator(tx, &template, frames, &load.schedule, load.count)?;
        let maximum = match max_pps {
            Some(pps) => Ok((pps, "--max-pps")),
            None => {
                let choice = choose::generator_named(generator.backend());
                maximum_of(choice, &template, frames)
                    .map(|maximum| (maximum.pps, maximum.measured_on))
                    .map_err(|error| error.what)
            }
        };
        Ok(Self { tx, route, frames, dst, load, first_sequence, generator, not_faster, maximum })
    }

    /// Sends one warm-up frame, which has the number before the first.
    ///
    /// # Errors
    /// The interface vanished, is down, or cannot take the frame.
    pub fn warm_up(&mut self) -> Result<u64> {
        self.generator.send_one(self.first_sequence - 1)
    }

    /// The treatment of refused frames: as `requested` where the generator can.
    pub fn refusals(&self, requested: Refusals) -> Refusals {
        if self.generator.sends_again() { requested } else { Refusals::Lost }
    }

    /// Sends all frames. `sent` counts them for other threads.
    pub fn run(&mut self, refusals: Refusals, sent: &AtomicU64) -> Generated {
        let order = Order {
            first_sequence: self.first_sequence,
            count: self.load.count,
            schedule: self.load.schedule,
            refusals,
        };
        self.generator.run(&order, sent)
    }

    /// Whether the generator fell short of the intended rate without having been stopped.
    pub fn limits(&self, generated: &Generated) -> bool {
        !stop::requested()
            && generated.achieved_pps() < self.load.schedule.mean_pps() * RATE_TOLERANCE
    }

    /// The sending end's part of the result.
    pub fn report(self, generated: &Generated, started_ns: i64) -> SendingReport {
        let (max_pps, max_pps_error) = match self.maximum {
            Ok(maximum) => (Some(maximum), None),
            Err(error) => (None, Some(error)),
        };
        SendingReport {
            tx: self.tx.clone(),
            source: self.route.source,
            destination: self.dst,
            destination_mac: resolve::mac_text(self.route.destination_mac),
            flows: self.frames.flows,
            size_bytes: self.frames.size_bytes(self.dst.is_ipv6()),
            size_includes_fcs: true,
            started_ns,
            duration_s: generated.elapsed_ns.max(1) as f64 / 1e9,
            first_sequence: self.first_sequence,
            intended_pps: self.load.schedule.mean_pps(),
            achieved_pps: generated.achieved_pps(),
            planned: self.load.count,
            generator: GeneratorReport {
                backend: self.generator.backend(),
                not_faster: self.not_faster,
                batch: self.generator.batch(),
                cpu: self.frames.tx_cpu,
                max_pps: max_pps.map(|(pps, _)| pps),
                max_pps_from: max_pps.map(|(_, from)| from),
                max_pps_error,
                refused: generated.refused,
                slip: generated.slip.summary(),
                departure: generated.departure.summary(),
            },
        }
    }
}

/// The maximum of a generator by itself.
///
/// # Errors
/// The generator cannot run, or no namespace may be made for it.
pub fn maximum_of(
    choice: GeneratorChoice,
    template: &Template,
    frames: &FrameOptions,
) -> Result<placement::Maximum> {
    placement::maximum_pps(template.frame_bytes(), |interface| {
        choose::private_generator(interface, template, frames, choice)
    })
}

/// The sink of a trial.
#[derive(Debug, Serialize)]
pub struct SinkReport {
    backend: &'static str,
    /// Why it is not a faster one.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_faster: Option<String>,
    #[serde(flatten)]
    stats: RingStats,
    /// Whether the frames end at the interface, before the IP stack.
    ends_at_interface: bool,
}

/// The receiving end's part of the result.
#[derive(Debug, Serialize)]
pub struct ReceivingReport {
    rx: IfSpec,
    received: u64,
    duplicate: u64,
    reordered: u64,
    foreign: u64,
    sink: SinkReport,
}

/// The end that receives.
pub struct ReceivingEnd<'a> {
    rx: &'a IfSpec,
    /// Accounts for the frames.
    pub sink: Box<dyn Sink>,
    not_faster: Option<String>,
    discard: Discard,
    before: RingStats,
}

impl<'a> ReceivingEnd<'a> {
    /// Opens the sink and discards the frames behind it, so that nothing answers them.
    ///
    /// # Errors
    /// There is no such interface, the port is taken, or the user may not receive.
    pub fn open(
        rx: &'a IfSpec,
        expected: &Expectation,
        choice: SinkChoice,
        ring_mib: u32,
    ) -> Result<Self> {
        let Chosen { chosen: sink, not_faster } = choose::sink(rx, expected, choice, ring_mib)?;
        let discard = Discard::begin(rx, expected.ipv6, expected.port)?;
        Ok(Self { rx, sink, not_faster, discard, before: RingStats::default() })
    }

    /// Begins the trial: earlier packets do not count.
    pub fn begin(&mut self) {
        self.before = self.sink.stats();
    }

    /// The receiving end's part of the result, its counts, and the frames that the sink dropped.
    pub fn report(mut self) -> (ReceivingReport, Counted, u64) {
        let after = self.sink.stats();
        let stats = RingStats {
            packets: after.packets - self.before.packets,
            dropped: after.dropped - self.before.dropped,
        };
        let counted = self.sink.counted();
        let in_kernel = self.sink.backend() != super::packet::AF_PACKET;
        let report = ReceivingReport {
            rx: self.rx.clone(),
            received: counted.received,
            duplicate: counted.duplicates,
            reordered: counted.reordered,
            foreign: counted.foreign,
            sink: SinkReport {
                backend: self.sink.backend(),
                not_faster: self.not_faster,
                stats,
                ends_at_interface: in_kernel || self.discard.is_early(),
            },
        };
        (report, counted, stats.dropped)
    }

    /// Counts until the generator is done and either the drain time is over or all frames have arrived
    /// and none follows.
    pub fn receive(
        &mut self,
        (sent, done): (&AtomicU64, &AtomicBool),
        drain_ns: i64,
    ) -> Result<()> {
        /// Wait for duplicates once all frames have arrived [ns].
        const QUIET_NS: i64 = 50_000_000;
        let mut ended_ns = None;
        let mut last_ns = clock::monotonic_ns();
        loop {
            let count = self.sink.poll(Duration::from_millis(20))?;
            let now = clock::monotonic_ns();
            if count > 0 {
                last_ns = now;
            }
            if !done.load(Ordering::Acquire) {
                continue;
            }
            let ended_ns = *ended_ns.get_or_insert(now);
            let complete = self.sink.arrived() >= sent.load(Ordering::Acquire);
            let quiet = now - last_ns.max(ended_ns) > QUIET_NS.min(drain_ns);
            if now - ended_ns > drain_ns || (complete && quiet) {
                return Ok(());
            }
        }
    }
}

/// Counters, CPU usage and clock around a trial.
pub struct Surroundings {
    places: Places,
    before: Snapshot,
    clock: ClockWatch,
    cpu: Option<CpuMeter>,
    /// When the trial began [CLOCK_REALTIME, ns].
    pub started_ns: i64,
}

/// The changes during a trial.
#[derive(Debug, Serialize)]
pub struct Changes {
    counters: Vec<Change>,
    /// CPU usage.
    pub cpu: Option<CpuUsage>,
    /// Steps of the wall clock.
    pub clock_steps: Vec<ClockStep>,
}

impl Surroundings {
    /// Reads the counters of all places.
    ///
    /// # Errors
    /// One of them does not exist.
    pub fn begin(places: Places) -> Result<Self> {
        let before = places.read()?;
        Ok(Self {
            places,
            before,
            clock: ClockWatch::start(),
            cpu: CpuMeter::start().ok(),
            started_ns: clock::realtime_ns(),
        })
    }

    /// The treatment of refused frames that fits the kind of the sending interface.
    pub fn refusals(&self) -> Refusals {
        if self.before.is_virtual_tx() { Refusals::Lost } else { Refusals::SentAgain }
    }

    /// The changes, the drop counters that rose, and the error by which counters could not be read, as
    /// of an interface that is gone.
    pub fn end(
        self,
        tx: &IfSpec,
        generated: &Generated,
        refusals: Refusals,
    ) -> (Changes, Vec<Explained>, Option<Error>) {
        let cpu = self.cpu.and_then(|meter| meter.usage().ok());
        let clock_steps = self.clock.steps();
        let sent_again = if refusals == Refusals::SentAgain { generated.refused } else { 0 };
        let (counters, mut drops, error) = match self.places.read() {
            Ok(after) => (
                self.places.changes(&self.before, &after),
                self.places.drops(&self.before, &after, sent_again),
                None,
            ),
            Err(error) => (Vec::new(), Vec::new(), Some(error)),
        };
        let (count, counter) = generated.lost_before_interface;
        if count > 0 {
            drops.push(explained(tx, counter, count));
        }
        if refusals == Refusals::Lost {
            // Virtual interfaces count refused frames themselves; drivers of NICs do not.
            let tx_label = tx.to_string();
            let counted: u64 = drops
                .iter()
                .filter(|part| part.place == tx_label && part.counter == "tx_dropped")
                .map(|part| part.count)
                .sum();
            let uncounted = generated.refused.saturating_sub(counted);
            if uncounted > 0 {
                drops.push(explained(tx, "refused", uncounted));
            }
        }
        (Changes { counters, cpu, clock_steps }, drops, error)
    }
}
