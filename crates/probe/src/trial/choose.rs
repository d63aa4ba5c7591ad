//! Chooses the fastest generator and sink that this user, this kernel and these interfaces allow.

use super::kernel::live::{
    Egress, LIVE, LIVE_CARRIED, LIVE_SKB, LiveGenerator, MOST_BYTES, MOST_NS,
};
use super::kernel::xdp::{SinkHook, XdpSink};
use super::options::{FrameOptions, GeneratorChoice, SinkChoice};
use super::order::{Expectation, Generator, Sink};
use super::packet::{PacketGenerator, RingSink};
use super::placement;
use crate::clock::Schedule;
use crate::error::{Error, Result};
use crate::frame::{FrameKind, Template};
use crate::netlink::{Link, Netlink};
use crate::netns::{IfSpec, run_in};

/// Frames that AF_PACKET hands over in one call at most.
const PACKET_BATCH: u16 = 64;

/// A chosen generator or sink, and why it is not a faster one.
#[derive(Debug)]
pub struct Chosen<T: ?Sized> {
    /// The generator or sink.
    pub chosen: Box<T>,
    /// Why no faster one was chosen; none where this is the fastest, or was requested.
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

fn link_of(spec: &IfSpec) -> Result<Link> {
    run_in(spec.netns.as_ref(), || Netlink::open()?.link_at(&spec.interface, spec))
}

/// NICs need an explicit choice: attaching a program to their driver resets the link of most.
fn physical(spec: &IfSpec) -> Error {
    Error::failed(
        format!("{spec} is not a virtual interface"),
        "request another backend by its name",
    )
}

fn stack(frames: &FrameOptions) -> Egress {
    frames.carrier_cpu.map_or(Egress::Stack, Egress::Carried)
}

type Open = Result<Box<dyn Generator>>;

fn live(tx: &IfSpec, template: &Template, egress: Egress, frames: &FrameOptions) -> Open {
    Ok(Box::new(LiveGenerator::open(tx, template, egress, frames.batch, frames.tx_cpu, 0)?))
}

fn packet(tx: &IfSpec, template: &Template, frames: &FrameOptions) -> Open {
    let batch = frames.batch.unwrap_or(PACKET_BATCH);
    run_in(tx.netns.as_ref(), || {
        let generator = PacketGenerator::open(&tx.interface, tx, template, batch, frames.tx_cpu)?;
        Ok(Box::new(generator) as Box<dyn Generator>)
    })
}

/// The generator for these frames.
///
/// Sends XDP frames only where the interface takes them already, because the far end counts by native
/// XDP; else by the interface's ordinary transmit path, like the guests of a plane.
///
/// # Errors
/// The requested one cannot, or none can.
pub fn generator(
    tx: &IfSpec,
    template: &Template,
    frames: &FrameOptions,
    schedule: &Schedule,
    count: u64,
) -> Result<Chosen<dyn Generator>> {
    let live = |egress| {
        if schedule.due_ns(count) > MOST_NS {
            return Err(Error::bad_input(
                "live frames are paced for up to 2 h at a time",
                "measure for a shorter time, or with --backend af_packet",
            ));
        }
        live(tx, template, egress, frames)
    };
    let packet = || packet(tx, template, frames);
    let requested = |generator| Ok(Chosen { chosen: generator, not_faster: None });
    match frames.backend {
        GeneratorChoice::AfPacket => return requested(packet()?),
        GeneratorChoice::Live => return requested(live(Egress::Redirect)?),
        GeneratorChoice::LiveSkb => return requested(live(stack(frames))?),
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
    for egress in [Egress::Redirect, stack(frames)] {
        match live(egress) {
            Ok(generator) => return Ok(Chosen::of(generator, &reasons)),
            Err(error) => reasons.push(error),
        }
    }
    // Both fail for the same reason where the user may not: name it once.
    reasons.dedup_by(|a, b| a.what == b.what);
    Ok(Chosen::of(packet()?, &reasons))
}

/// The sink on this interface.
///
/// # Errors
/// The requested one cannot, or none can.
pub fn sink(
    rx: &IfSpec,
    expected: &Expectation,
    choice: SinkChoice,
    ring_mib: u32,
) -> Result<Chosen<dyn Sink>> {
    let xdp = |mode| -> Result<Box<dyn Sink>> { Ok(Box::new(XdpSink::open(rx, expected, mode)?)) };
    let ring =
        || -> Result<Box<dyn Sink>> { Ok(Box::new(RingSink::open(rx, expected, ring_mib)?)) };
    let requested = |sink| Ok(Chosen { chosen: sink, not_faster: None });
    match choice {
        SinkChoice::AfPacket => return requested(ring()?),
        SinkChoice::XdpNative => return requested(xdp(SinkHook::Native)?),
        SinkChoice::TcIngress => return requested(xdp(SinkHook::Ingress)?),
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

/// The choice of a backend's name in results.
pub fn generator_named(backend: &str) -> GeneratorChoice {
    match backend {
        LIVE => GeneratorChoice::Live,
        LIVE_SKB | LIVE_CARRIED => GeneratorChoice::LiveSkb,
        _ => GeneratorChoice::AfPacket,
    }
}

/// A generator, and the sink at the far end that it needs, if any.
pub type Private = (Box<dyn Generator>, Option<XdpSink>);

/// A generator on the private interface `interface` of the calling thread's namespace. With `Auto` the
/// slowest one that a trial on a virtual interface would choose.
///
/// # Errors
/// The generator cannot be opened.
pub fn private_generator(
    interface: &str,
    template: &Template,
    frames: &FrameOptions,
    choice: GeneratorChoice,
) -> Result<Private> {
    let tx = IfSpec { interface: interface.to_string(), netns: None };
    let by_stack = || live(&tx, template, stack(frames), frames);
    let generator = match choice {
        GeneratorChoice::AfPacket => packet(&tx, template, frames)?,
        GeneratorChoice::LiveSkb => by_stack()?,
        GeneratorChoice::Auto => by_stack().or_else(|_| packet(&tx, template, frames))?,
        GeneratorChoice::Live => {
            // A veth takes XDP frames only while its peer has a program: a sink that expects none.
            let peer = IfSpec { interface: placement::PRIVATE_ENDS[1].to_string(), netns: None };
            let expected = Expectation {
                kind: FrameKind::Trial,
                first_sequence: u64::MAX / 2,
                planned: 1,
                flows: 1,
                late_after_ns: None,
                sample_mask: 0,
                ipv6: template.upper_at > 34,
                port: frames.dst_port,
            };
            let peer = XdpSink::open(&peer, &expected, SinkHook::Native)?;
            return Ok((live(&tx, template, Egress::Redirect, frames)?, Some(peer)));
        }
    };
    Ok((generator, None))
}
