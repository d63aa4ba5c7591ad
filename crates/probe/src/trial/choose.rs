//! Chooses the fastest generator and sink that this user, this kernel and these interfaces allow.

use std::sync::atomic::AtomicU64;

use super::kernel::live::{
    Egress, LIVE, LIVE_CARRIED, LIVE_SKB, LiveGenerator, MOST_BYTES, MOST_NS,
};
use super::kernel::xdp::{SinkHook, XdpSink};
use super::options::{FrameOptions, GeneratorChoice, SinkChoice};
use super::order::{Expectation, Generated, Generator, Order, Sink};
use super::packet::{PacketGenerator, RingSink};
use super::placement;
use super::xsk::XskGenerator;
use crate::clock::Schedule;
use crate::error::{Error, Result};
use crate::frame::{FrameKind, Template};
use crate::netlink::{Link, Netlink};
use crate::netns::{IfSpec, run_in};

/// Frames that AF_PACKET hands over in one call at most.
const PACKET_BATCH: u16 = 64;

/// What was chosen, and what kept from the faster.
#[derive(Debug)]
pub struct Chosen<T: ?Sized> {
    /// The generator or sink.
    pub chosen: Box<T>,
    /// Why none of the faster ones; none where this is the fastest, or was asked for.
    pub not_faster: Option<String>,
}

impl<T: ?Sized> Chosen<T> {
    fn of(chosen: Box<T>, reasons: &[Error]) -> Self {
        let texts: Vec<String> = reasons
            .iter()
            .map(|error| match error.remedy.as_str() {
                "" => error.what.clone(),
                remedy => format!("{} ({remedy})", error.what),
            })
            .collect();
        Self { chosen, not_faster: (!texts.is_empty()).then(|| texts.join("; ")) }
    }
}

fn link_of(place: &IfSpec) -> Result<Link> {
    run_in(place.netns.as_ref(), || Netlink::open()?.link_at(&place.interface, place))
}

/// NICs are left alone unless asked: a program attached to the driver resets the link of most.
fn physical(place: &IfSpec) -> Error {
    Error::failed(
        format!("{place} is not a virtual interface"),
        "ask for another backend by its name",
    )
}

fn stack(frames: &FrameOptions) -> Egress {
    frames.carrier_cpu.map_or(Egress::Stack, Egress::Carried)
}

type Open = Result<Box<dyn Generator>>;

fn live(tx: &IfSpec, template: &Template, way: Egress, frames: &FrameOptions) -> Open {
    Ok(Box::new(LiveGenerator::open(tx, template, way, frames.batch, frames.tx_cpu, 0)?))
}

fn xsk(tx: &IfSpec, template: &Template, frames: &FrameOptions) -> Open {
    Ok(Box::new(XskGenerator::open(tx, template, frames.batch, frames.tx_cpu)?))
}

fn packet(tx: &IfSpec, template: &Template, frames: &FrameOptions) -> Open {
    let batch = frames.batch.unwrap_or(PACKET_BATCH);
    run_in(tx.netns.as_ref(), || {
        let open = PacketGenerator::open(&tx.interface, tx, template, batch, frames.tx_cpu)?;
        Ok(Box::new(open) as Box<dyn Generator>)
    })
}

/// The generator for these frames.
///
/// Frames of a plane leave by the interface's ordinary way, as its guests' do: XDP frames are for
/// interfaces that take them already, because the far end counts them by native XDP.
///
/// # Errors
/// The one that was asked for cannot, or none can.
pub fn generator(
    tx: &IfSpec,
    template: &Template,
    frames: &FrameOptions,
    schedule: &Schedule,
    count: u64,
) -> Result<Chosen<dyn Generator>> {
    let live = |way| {
        if schedule.due_ns(count) > MOST_NS {
            return Err(Error::bad_input(
                "live frames are paced for up to 2 h at a time",
                "measure for a shorter time, or with --backend af_packet",
            ));
        }
        live(tx, template, way, frames)
    };
    let packet = || packet(tx, template, frames);
    let asked = |generator| Ok(Chosen { chosen: generator, not_faster: None });
    match frames.backend {
        GeneratorChoice::AfPacket => return asked(packet()?),
        GeneratorChoice::Xsk => return asked(xsk(tx, template, frames)?),
        GeneratorChoice::Live => return asked(live(Egress::Redirect)?),
        GeneratorChoice::LiveSkb => return asked(live(stack(frames))?),
        GeneratorChoice::Auto => {}
    }
    let link = link_of(tx)?;
    if link.kind.is_empty() {
        return Ok(Chosen::of(packet()?, &[physical(tx)]));
    }
    if template.frame_bytes() > MOST_BYTES {
        let long = Error::failed("the frames are longer than a page", "");
        return Ok(Chosen::of(packet()?, &[long]));
    }
    let mut reasons = Vec::new();
    for way in [Egress::Redirect, stack(frames)] {
        match live(way) {
            Ok(generator) => return Ok(Chosen::of(generator, &reasons)),
            Err(error) => reasons.push(error),
        }
    }
    // Both ways fail alike where the user may not: say it once.
    reasons.dedup_by(|a, b| a.what == b.what);
    Ok(Chosen::of(packet()?, &reasons))
}

/// The sink on this interface.
///
/// # Errors
/// The one that was asked for cannot, or none can.
pub fn sink(
    rx: &IfSpec,
    expected: &Expectation,
    choice: SinkChoice,
    ring_mib: u32,
) -> Result<Chosen<dyn Sink>> {
    let xdp = |mode| -> Result<Box<dyn Sink>> { Ok(Box::new(XdpSink::open(rx, expected, mode)?)) };
    let ring =
        || -> Result<Box<dyn Sink>> { Ok(Box::new(RingSink::open(rx, expected, ring_mib)?)) };
    let asked = |sink| Ok(Chosen { chosen: sink, not_faster: None });
    match choice {
        SinkChoice::AfPacket => return asked(ring()?),
        SinkChoice::XdpNative => return asked(xdp(SinkHook::Native)?),
        SinkChoice::TcIngress => return asked(xdp(SinkHook::Ingress)?),
        SinkChoice::Auto => {}
    }
    if link_of(rx)?.kind.is_empty() {
        return Ok(Chosen::of(ring()?, &[physical(rx)]));
    }
    let mut reasons = Vec::new();
    for mode in [SinkHook::Native, SinkHook::Ingress] {
        match xdp(mode) {
            Ok(sink) => return Ok(Chosen::of(sink, &reasons)),
            Err(error) => reasons.push(error),
        }
    }
    reasons.dedup_by(|a, b| a.what == b.what);
    Ok(Chosen::of(ring()?, &reasons))
}

/// The choice that a backend's name in results stands for.
pub fn generator_named(backend: &str) -> GeneratorChoice {
    match backend {
        LIVE => GeneratorChoice::Live,
        LIVE_SKB | LIVE_CARRIED => GeneratorChoice::LiveSkb,
        xsk if xsk.starts_with("xsk") => GeneratorChoice::Xsk,
        _ => GeneratorChoice::AfPacket,
    }
}

/// A generator on an interface of the calling thread's namespace whose frames lead nowhere. With
/// `Auto` the slowest one that a trial on a virtual interface would choose.
///
/// # Errors
/// It cannot.
pub fn private_generator(
    interface: &str,
    template: &Template,
    frames: &FrameOptions,
    choice: GeneratorChoice,
) -> Result<Box<dyn Generator>> {
    let tx = IfSpec { interface: interface.to_string(), netns: None };
    match choice {
        GeneratorChoice::AfPacket => packet(&tx, template, frames),
        GeneratorChoice::Xsk => xsk(&tx, template, frames),
        GeneratorChoice::Live => Ok(Box::new(BeyondXdp::open(&tx, template, frames)?)),
        GeneratorChoice::LiveSkb => live(&tx, template, stack(frames), frames),
        GeneratorChoice::Auto => {
            live(&tx, template, stack(frames), frames).or_else(|_| packet(&tx, template, frames))
        }
    }
}

/// Live frames into a veth whose peer drops all of them by a sink that expects none.
struct BeyondXdp {
    generator: LiveGenerator,
    _peer: XdpSink,
}

impl BeyondXdp {
    fn open(tx: &IfSpec, template: &Template, frames: &FrameOptions) -> Result<Self> {
        let peer = IfSpec { interface: placement::PRIVATE_ENDS[1].to_string(), netns: None };
        let ipv6 = template.shape().udp_at > 34;
        let expected = Expectation {
            kind: FrameKind::Trial,
            first_sequence: u64::MAX / 2,
            planned: 1,
            flows: 1,
            late_after_ns: None,
            sample_mask: 0,
            ipv6,
            port: frames.dst_port,
        };
        let peer = XdpSink::open(&peer, &expected, SinkHook::Native)?;
        let (batch, cpu) = (frames.batch, frames.tx_cpu);
        let generator = LiveGenerator::open(tx, template, Egress::Redirect, batch, cpu, 0)?;
        Ok(Self { generator, _peer: peer })
    }
}

impl Generator for BeyondXdp {
    fn backend(&self) -> &'static str {
        self.generator.backend()
    }

    fn batch(&self) -> u16 {
        self.generator.batch()
    }

    fn send_one(&mut self, sequence: u64) -> Result<u64> {
        self.generator.send_one(sequence)
    }

    fn run(&mut self, order: &Order, sent: &AtomicU64) -> Generated {
        self.generator.run(order, sent)
    }
}
