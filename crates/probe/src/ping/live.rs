//! Echo requests by the trials' generator and sink inside the kernel, for rates that no program in
//! user space keeps. Knows nothing of routes: the frame is the kernel's own first probe.
//!
//! There are no user stamps: a packet's time of sending is when the generator made it, and its
//! answer's user stamp is the sink's, which is the kernel's receive stamp as well.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::departure::{Departure, interface_name};
use super::probe::Probe;
use super::record::{Arrival, MISSING, Records};
use super::session::{ProbeOrder, SessionOutcome};
use crate::clock::{self, StepDetector, SystemClock};
use crate::error::{Error, Result};
use crate::frame::{FrameKind, Template};
use crate::netlink::Netlink;
use crate::netns::IfSpec;
use crate::stop;
use crate::trial::kernel::features;
use crate::trial::kernel::live::{Egress, LiveGenerator};
use crate::trial::kernel::xdp::{SinkHook, XdpSink};
use crate::trial::order::{self, Expectation, Generator, Refusals, Sink};
use crate::wire::{self, ETHERNET_HEADER_BYTES};

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
    name: &'static str,
}

impl Live {
    /// Opens both for `count` packets like `departure`, and waits for the answer to a first one.
    ///
    /// Sends XDP frames and takes answers by native XDP where the interface sends such frames now;
    /// else sends socket buffers and takes answers at the ingress hook.
    ///
    /// # Errors
    /// The probes are no echo requests, the user may not, the kernel cannot, or there is no answer.
    pub fn open(
        departure: &Departure,
        probe: Probe,
        count: u64,
        cpu: Option<usize>,
    ) -> Result<Self> {
        let unable = |why: &str| Error::failed(why, "");
        let Probe::Echo { ipv6, identifier } = probe else {
            return Err(unable("the kernel's generator sends echo requests only"));
        };
        if count > MOST_PACKETS {
            return Err(Error::bad_input(
                format!("the kernel's generator keeps the times of {MOST_PACKETS} packets at most"),
                "send fewer in one run, or use --path packet",
            ));
        }
        if departure.hardware != libc::ARPHRD_ETHER {
            return Err(unable("the interface is no Ethernet"));
        }
        let ip = departure.frame.get(ETHERNET_HEADER_BYTES..).and_then(wire::parse_ip);
        let ip = ip.ok_or_else(|| unable("the kernel's own probe is not a plain IP packet"))?;
        let upper_at = ip.payload.as_ptr().addr() - departure.frame.as_ptr().addr();
        if upper_at != ETHERNET_HEADER_BYTES + wire::ip_header_bytes(ip.source) {
            return Err(unable("the kernel's own probe has IP options"));
        }
        let length = upper_at + ip.payload.len();
        let pseudo_sum = if ipv6 {
            wire::pseudo_header_sum(ip.source, ip.destination, probe.protocol(), ip.payload.len())
        } else {
            0
        };
        let template = Template::of_echo(&departure.frame[..length], upper_at, pseudo_sum);
        let name = interface_name(departure.interface)
            .map_err(|error| unable(&format!("the interface is gone ({error})")))?;
        let tx = IfSpec { interface: name, netns: None };
        let virtual_interface = !Netlink::open()?.link_at(&tx.interface, &tx)?.kind.is_empty();
        let by_xdp =
            virtual_interface && features::sends_xdp_frames(departure.interface) == Some(true);
        let (egress, mode, name) = if by_xdp {
            (Egress::Redirect, SinkHook::Native, "live")
        } else {
            (Egress::Stack, SinkHook::Ingress, "live-skb")
        };
        let expected = Expectation {
            kind: FrameKind::Echo,
            first_sequence: 0,
            planned: count,
            flows: 1,
            late_after_ns: None,
            sample_mask: 0,
            ipv6,
            port: identifier,
        };
        let sink = XdpSink::open(&tx, &expected, mode)?;
        let generator = LiveGenerator::open(&tx, &template, egress, None, cpu, count as u32)?;
        let mut live = Self { generator, sink, name };
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

    /// Its name in results: `live` or `live-skb`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Sends all packets and waits for their answers.
    pub fn run(&mut self, order: &ProbeOrder) -> SessionOutcome {
        let mut steps = StepDetector::new(&SystemClock);
        let begin_ns = clock::monotonic_ns();
        let order_of_trial = order::Order {
            first_sequence: 0,
            count: order.count,
            schedule: order.schedule,
            refusals: Refusals::Lost,
        };
        let generated = self.generator.run(&order_of_trial, &AtomicU64::new(0));
        let mut failure = generated.error;
        let end_ns = clock::monotonic_ns() + order.timeout_ns;
        while failure.is_none()
            && self.sink.arrived() < generated.sent
            && clock::monotonic_ns() < end_ns
            && !stop::requested()
        {
            failure = self.sink.poll(Duration::from_millis(2)).err();
        }
        steps.check(&SystemClock);
        let records = self.records(generated.sent);
        SessionOutcome {
            burst_ends_ns: self.burst_ends(generated.sent, order),
            records,
            start_ns: self.generator.start_ns(),
            elapsed_ns: clock::monotonic_ns() - begin_ns,
            interrupted: stop::requested(),
            refused: BTreeMap::new(),
            failure,
            steps,
        }
    }

    /// The records of all packets; their clock cannot be stepped, so that none straddles a step.
    fn records(&self, sent: u64) -> Records {
        let mut records = Records::with_capacity(sent);
        let departed: Vec<_> =
            (0..sent as usize).map(|index| self.generator.departed(index)).collect();
        for departed in &departed {
            records.sent(departed.made_ns, 0);
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
                records.arrived(arrival, 0);
                records.repeated(sequence, answer.duplicates, answer.reordered != 0);
            }
        }
        records
    }

    /// When each burst ends: its first packet's time of making, plus the time from its first to its
    /// last departure, plus one gap.
    fn burst_ends(&self, sent: u64, order: &ProbeOrder) -> Vec<i64> {
        if order.burst < 2 {
            return Vec::new();
        }
        let (_, gap_ns, _) = order.schedule.parts();
        let burst = order.burst as usize;
        (0..sent as usize / burst)
            .map(|number| {
                let first = self.generator.departed(number * burst);
                let last = self.generator.departed(number * burst + burst - 1);
                first.made_ns + last.left_ns - first.left_ns + gap_ns.round() as i64
            })
            .collect()
    }
}
