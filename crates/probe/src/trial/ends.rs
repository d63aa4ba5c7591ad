//! The sending and the receiving end of a trial, each with its part of the result. `trial` has both,
//! `send` and `receive` one each.

use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::account::Counted;
use super::counters::{Explained, Places, Snapshot};
use super::options::{FrameOptions, SinkOptions};
use super::order::{Expectation, Generated, Generator, Order, Refusals, Sink};
use super::{calibrate, choose};
use crate::capture::{RingStats, attach_filter};
use crate::clock::{self, ClockWatch};
use crate::cpu::CpuSample;
use crate::error::{Error, Result};
use crate::filter;
use crate::netns::{IfSpec, run_in};
use crate::resolve;
use crate::stop;
use crate::wire;

/// Share of the intended rate that counts as achieved.
const RATE_TOLERANCE: f64 = 0.999;

/// A part of the loss.
pub fn explained(place: impl std::fmt::Display, counter: &str, count: u64) -> Explained {
    Explained { place: place.to_string(), counter: counter.into(), count }
}

/// The names of the limits that hold.
pub fn limits(limits: &[(&'static str, bool)]) -> Vec<&'static str> {
    limits.iter().filter(|(_, holds)| *holds).map(|(name, _)| *name).collect()
}

/// The end that sends.
pub struct SendingEnd<'a> {
    tx: &'a IfSpec,
    route: resolve::Route,
    frames: &'a FrameOptions,
    dst: IpAddr,
    order: Order,
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
        order: Order,
        max_pps: Option<f64>,
    ) -> Result<Self> {
        let route = resolve::resolve(tx, rx, frames.src, dst, frames.dst_port, dst_mac)?;
        let template = frames.template(tx, &route, dst)?;
        let (generator, not_faster) = choose::generator(tx, &template, frames, &order)?;
        let maximum = match max_pps {
            Some(pps) => Ok((pps, "--max-pps")),
            None => {
                let choice = choose::generator_named(generator.backend());
                calibrate::maximum(choice, &template, frames)
                    .map(|maximum| (maximum.pps, maximum.measured_on))
                    .map_err(|error| error.what)
            }
        };
        Ok(Self { tx, route, frames, dst, order, generator, not_faster, maximum })
    }

    /// Sends one warm-up frame, which has the number before the first.
    ///
    /// # Errors
    /// The interface vanished, is down, or cannot take the frame.
    pub fn warm_up(&mut self) -> Result<u64> {
        self.generator.send_one(self.order.first_sequence - 1)
    }

    /// Treats refused frames as `requested` where the generator can; returns how.
    pub fn treat_refused(&mut self, requested: Refusals) -> Refusals {
        if self.generator.sends_again() {
            self.order.refusals = requested;
        }
        self.order.refusals
    }

    /// Sends all frames. `sent` counts them for other threads.
    pub fn run(&mut self, sent: &AtomicU64) -> Generated {
        self.generator.run(&self.order, sent)
    }

    /// Whether the generator fell short of the intended rate without having been stopped.
    pub fn limits(&self, generated: &Generated) -> bool {
        !stop::requested()
            && generated.achieved_pps() < self.order.schedule.mean_pps() * RATE_TOLERANCE
    }

    /// The sending end's part of the result.
    pub fn report(&self, generated: &Generated) -> Value {
        let maximum = self.maximum.as_ref();
        let mut generator = json!({
            "backend": self.generator.backend(),
            "batch": self.generator.batch(),
            "cpu": self.frames.tx_cpu,
            "max_pps": maximum.ok().map(|(pps, _)| pps),
            "max_pps_from": maximum.ok().map(|(_, from)| from),
            "max_pps_error": maximum.err(),
            "refused": generated.refused,
            "slip": generated.slip.summary(),
            "departure": generated.departure.summary(),
        });
        if let Some(why) = &self.not_faster {
            generator["not_faster"] = json!(why);
        }
        json!({
            "tx": self.tx,
            "source": self.route.source,
            "destination": self.dst,
            "destination_mac": self.route.destination_mac,
            "flows": self.frames.flows,
            "size_bytes": self.frames.size_bytes(self.dst.is_ipv6()),
            "size_includes_fcs": true,
            "duration_s": generated.elapsed_ns.max(1) as f64 / 1e9,
            "first_sequence": self.order.first_sequence,
            "intended_pps": self.order.schedule.mean_pps(),
            "achieved_pps": generated.achieved_pps(),
            "planned": self.order.count,
            "generator": generator,
        })
    }
}

/// The end that receives.
pub struct ReceivingEnd<'a> {
    rx: &'a IfSpec,
    /// Accounts for the frames.
    pub sink: Box<dyn Sink>,
    not_faster: Option<String>,
    /// Holds the frames' UDP port, and discards what comes there.
    _port: OwnedFd,
    before: RingStats,
}

impl<'a> ReceivingEnd<'a> {
    /// Opens the sink, and holds the frames' port, so that nothing answers them with ICMP "port
    /// unreachable", which would load the path.
    ///
    /// # Errors
    /// There is no such interface, the port is taken, or the user may not receive.
    pub fn open(rx: &'a IfSpec, expected: &Expectation, options: &SinkOptions) -> Result<Self> {
        let (sink, not_faster) = choose::sink(rx, expected, options)?;
        let port = run_in(rx.netns.as_ref(), || hold_port(rx, expected.ipv6, expected.port))?;
        Ok(Self { rx, sink, not_faster, _port: port, before: RingStats::default() })
    }

    /// Begins the trial: earlier packets do not count.
    pub fn begin(&mut self) {
        self.before = self.sink.stats();
    }

    /// The receiving end's part of the result, its counts, and the frames that the sink dropped.
    pub fn report(&mut self) -> (Value, Counted, u64) {
        let after = self.sink.stats();
        let (counted, dropped) = (self.sink.counted(), after.dropped - self.before.dropped);
        let mut sink = json!({
            "backend": self.sink.backend(),
            "packets": after.packets - self.before.packets,
            "dropped": dropped,
            // Before the IP stack.
            "ends_at_interface": self.sink.backend() != super::packet::AF_PACKET,
        });
        if let Some(why) = &self.not_faster {
            sink["not_faster"] = json!(why);
        }
        let report = json!({
            "rx": self.rx,
            "received": counted.received,
            "duplicate": counted.duplicates,
            "reordered": counted.reordered,
            "foreign": counted.foreign,
            "sink": sink,
        });
        (report, counted, dropped)
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

fn hold_port(rx: &IfSpec, ipv6: bool, port: u16) -> Result<OwnedFd> {
    let failed = |error: std::io::Error| {
        Error::failed(
            format!("cannot bind UDP port {port} in the namespace of {rx}"),
            "another program or trial uses it: give another --dst-port",
        )
        .caused_by(error)
    };
    let socket = UdpSocket::bind((wire::unspecified(ipv6), port)).map_err(failed)?;
    attach_filter(&socket, &filter::nothing()).map_err(failed)?;
    Ok(socket.into())
}

/// Counters, CPU usage and clock around a trial.
pub struct Surroundings {
    places: Places,
    before: Snapshot,
    clock: ClockWatch,
    cpu: Option<CpuSample>,
    started_ns: i64,
}

/// What happened around a trial.
pub struct Changes {
    /// Its part of the result.
    pub report: Value,
    /// The drop counters that rose.
    pub drops: Vec<Explained>,
    /// Frames that found a CPU's backlog full, in all namespaces.
    pub softnet_dropped: u64,
    /// Whether the wall clock was stepped.
    pub clock_stepped: bool,
    /// Counters could not be read, as of an interface that is gone.
    pub error: Option<Error>,
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
            cpu: CpuSample::now().ok(),
            started_ns: clock::realtime_ns(),
        })
    }

    /// The treatment of refused frames that fits the kind of the sending interface.
    pub fn refusals(&self) -> Refusals {
        if self.before.is_virtual_tx() { Refusals::Lost } else { Refusals::SentAgain }
    }

    /// The changes since the beginning.
    pub fn end(self, tx: &IfSpec, generated: &Generated, refusals: Refusals) -> Changes {
        let cpu = self.cpu.and_then(|meter| meter.usage().ok());
        let clock_steps = self.clock.steps();
        let sent_again = if refusals == Refusals::SentAgain { generated.refused } else { 0 };
        let (counters, mut drops, error) = self.places.since(&self.before, sent_again);
        let (count, counter) = generated.lost_before_interface;
        if count > 0 {
            drops.push(explained(tx, counter, count));
        }
        if refusals == Refusals::Lost {
            // Virtual interfaces count refused frames themselves; drivers of NICs do not.
            let tx_label = tx.to_string();
            let own = |part: &&Explained| part.place == tx_label && part.counter == "tx_dropped";
            let counted: u64 = drops.iter().filter(own).map(|part| part.count).sum();
            let uncounted = generated.refused.saturating_sub(counted);
            if uncounted > 0 {
                drops.push(explained(tx, "refused", uncounted));
            }
        }
        let softnet_dropped =
            cpu.as_ref().and_then(|cpu| cpu.softnet).map_or(0, |softnet| softnet.dropped);
        let clock_stepped = !clock_steps.is_empty();
        let report = json!({
            "started_ns": self.started_ns,
            "counters": counters,
            "cpu": cpu,
            "clock_steps": clock_steps,
            "interrupted": stop::requested(),
        });
        Changes { report, drops, softnet_dropped, clock_stepped, error }
    }
}
