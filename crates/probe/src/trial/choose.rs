//! Chooses the fastest generator and sink that this user, this kernel and these interfaces allow.

use super::kernel::live::{Egress, LIVE, LIVE_CARRIED, LIVE_SKB, LiveGenerator, MOST_NS};
use super::kernel::xdp::{SinkHook, XdpSink};
use super::options::{FrameOptions, GeneratorChoice, SinkChoice};
use super::order::{Expectation, Generator, Sink};
use super::packet::{PacketGenerator, RingSink};
use super::placement;
use crate::clock::Schedule;
use crate::error::{Error, Result};
use crate::frame::{FrameKind, Template};
use crate::netlink::Netlink;
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

/// The first of `modes` that opens where `at` is virtual, else `fallback`.
fn fastest<M, T: ?Sized>(
    at: &IfSpec,
    modes: [M; 2],
    open: impl Fn(M) -> Result<Box<T>>,
    fallback: impl FnOnce() -> Result<Box<T>>,
) -> Result<Chosen<T>> {
    let mut reasons = Vec::new();
    let link = run_in(at.netns.as_ref(), || Netlink::open()?.link_at(&at.interface, at))?;
    let mut chosen = None;
    if link.kind.is_empty() {
        // Attaching a program to the driver of a NIC resets the link of most.
        let what = format!("{at} is not a virtual interface");
        reasons.push(Error::failed(what, "request another backend by its name"));
    } else {
        for mode in modes {
            match open(mode) {
                Ok(opened) => {
                    chosen = Some(opened);
                    break;
                }
                Err(error) => reasons.push(error),
            }
        }
        // All fail for the same reason where the user may not: name it once.
        reasons.dedup_by(|a, b| a.what == b.what);
    }
    let texts: Vec<String> = reasons
        .iter()
        .map(|error| match error.remedy.as_str() {
            "" => error.what.clone(),
            remedy => format!("{} ({remedy})", error.what),
        })
        .collect();
    let chosen = chosen.map_or_else(fallback, Ok)?;
    Ok(Chosen { chosen, not_faster: (!texts.is_empty()).then(|| texts.join("; ")) })
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
    let requested = match frames.backend {
        GeneratorChoice::AfPacket => packet()?,
        GeneratorChoice::Live => live(Egress::Redirect)?,
        GeneratorChoice::LiveSkb => live(stack(frames))?,
        GeneratorChoice::Auto => {
            return fastest(tx, [Egress::Redirect, stack(frames)], live, packet);
        }
    };
    Ok(Chosen { chosen: requested, not_faster: None })
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
    let requested = match choice {
        SinkChoice::AfPacket => ring()?,
        SinkChoice::XdpNative => xdp(SinkHook::Native)?,
        SinkChoice::TcIngress => xdp(SinkHook::Ingress)?,
        SinkChoice::Auto => {
            return fastest(rx, [SinkHook::Native, SinkHook::Ingress], xdp, ring);
        }
    };
    Ok(Chosen { chosen: requested, not_faster: None })
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
