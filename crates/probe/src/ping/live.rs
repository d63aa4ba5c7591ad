//! Echo requests by the trials' generator and sink inside the kernel, for rates that no program in
//! user space keeps.
//!
//! There are no user stamps: a packet's time of sending is when the generator made it, and its
//! answer's user stamp is the sink's, which is the kernel's receive stamp as well.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::record::{Arrival, MISSING, Records};
use super::route::Departure;
use super::session::{ProbeOrder, SessionOutcome};
use crate::clock::{self, ClockWatch};
use crate::error::{Error, Result};
use crate::frame::{FrameKind, Probe};
use crate::netns::IfSpec;
use crate::stop;
use crate::trial::kernel::live::{Egress, LiveGenerator};
use crate::trial::kernel::xdp::{SinkHook, XdpSink};
use crate::trial::order::{Expectation, Generator, Order, Refusals, Sink};

/// Most packets of a run: the kernel keeps 32 bytes for each.
const MOST_PACKETS: u64 = 4 << 20;
/// Tries of a warm-up packet, and how long to wait for each [ns].
const TRIES: usize = 10;
const TRY_NS: i64 = 20_000_000;

/// Generator and sink of one run.
#[derive(Debug)]
pub struct Live {
    generator: LiveGenerator,
    sink: XdpSink,
}

impl Live {
    /// Opens both for `count` packets like `departure`, and waits for the answer to a first one.
    ///
    /// # Errors
    /// The probes are not echo requests, the user may not, the kernel cannot, or there is no answer.
    pub fn open(departure: &Departure, count: u64, cpu: Option<usize>) -> Result<Self> {
        let Probe::Echo(identifier) = departure.probe else {
            return Err(Error::bad_input(
                "the kernel's generator sends echo requests only",
                "leave --proto out, or use --path packet",
            ));
        };
        if count > MOST_PACKETS {
            return Err(Error::bad_input(
                format!("the kernel's generator keeps the times of {MOST_PACKETS} packets at most"),
                "send fewer in one run, or use --path packet",
            ));
        }
        let tx = IfSpec { interface: departure.interface.clone(), netns: None };
        let expected = Expectation {
            kind: FrameKind::Echo,
            first_sequence: 0,
            planned: count,
            flows: 1,
            late_after_ns: None,
            sample_mask: 0,
            ipv6: departure.target.is_ipv6(),
            port: identifier,
        };
        let sink = XdpSink::open(&tx, &expected, SinkHook::Ingress)?;
        let (template, packets) = (&departure.template, count as u32);
        let generator = LiveGenerator::open(&tx, template, Egress::Stack, None, cpu, packets)?;
        let mut live = Self { generator, sink };
        live.warm_up()?;
        Ok(live)
    }

    fn warm_up(&mut self) -> Result<()> {
        for _ in 0..TRIES {
            self.generator.send_one(u64::MAX)?;
            let end_ns = clock::monotonic_ns() + TRY_NS;
            while clock::monotonic_ns() < end_ns && !stop::requested() {
                self.sink.poll(Duration::from_millis(1))?;
                if self.sink.warmed_up() > 0 {
                    return Ok(());
                }
            }
        }
        Err(Error::failed("no answer came to frames of the kernel's generator", ""))
    }

    /// Sends all packets and waits for their answers.
    pub fn run(&mut self, order: &ProbeOrder) -> SessionOutcome {
        let watch = ClockWatch::start();
        let begin_ns = clock::monotonic_ns();
        let trial = Order {
            first_sequence: 0,
            count: order.count,
            schedule: order.schedule,
            refusals: Refusals::Lost,
        };
        let generated = self.generator.run(&trial, &AtomicU64::new(0));
        let mut failure = generated.error;
        let end_ns = clock::monotonic_ns() + order.timeout_ns;
        while failure.is_none()
            && self.sink.arrived() < generated.sent
            && clock::monotonic_ns() < end_ns
            && !stop::requested()
        {
            failure = self.sink.poll(Duration::from_millis(2)).err();
        }
        SessionOutcome {
            burst_ends_ns: self.burst_ends(generated.sent, order),
            records: self.records(generated.sent),
            clock_steps: watch.steps(),
            start_ns: self.generator.start_ns(),
            elapsed_ns: clock::monotonic_ns() - begin_ns,
            refused: BTreeMap::new(),
            failure,
        }
    }

    /// The records of all packets.
    fn records(&self, sent: u64) -> Records {
        let mut records = Records::with_capacity(sent);
        let departed: Vec<_> =
            (0..sent as usize).map(|index| self.generator.departed(index)).collect();
        for departed in &departed {
            records.sent(departed.made_ns);
        }
        for (index, departed) in departed.iter().enumerate() {
            let sequence = index as u64;
            if departed.left_ns != MISSING {
                records.stamped(sequence, departed.left_ns);
            }
            let answer = self.sink.answer(index);
            if answer.first_ns != MISSING {
                let (kernel_rx_ns, user_rx_ns) = (answer.first_ns, answer.first_ns);
                let arrival = Arrival { sequence, kernel_rx_ns, user_rx_ns, residence_ns: -1 };
                records.arrived(arrival);
                records.repeated(sequence, answer.duplicates, answer.reordered != 0);
            }
        }
        records
    }

    /// When each burst ends: its first packet's time of making, plus the time from its first to its
    /// last departure, plus one gap.
    fn burst_ends(&self, sent: u64, order: &ProbeOrder) -> Vec<i64> {
        let (burst, gap_ns) = (order.schedule.burst as usize, order.schedule.gap_ns);
        if burst < 2 {
            return Vec::new();
        }
        (0..sent as usize / burst)
            .map(|number| {
                let first = self.generator.departed(number * burst);
                let last = self.generator.departed(number * burst + burst - 1);
                first.made_ns + last.left_ns - first.left_ns + gap_ns.round() as i64
            })
            .collect()
    }
}
