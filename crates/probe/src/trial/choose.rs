//! Chooses the fastest generator and sink that this user, this kernel and these interfaces allow.

use super::kernel::live::{Egress, LIVE, LIVE_CARRIED, LIVE_SKB, LiveGenerator, MOST_NS};
use super::kernel::xdp::{SinkHook, XdpSink};
use super::options::{FrameOptions, GeneratorChoice, SinkChoice, SinkOptions};
use super::order::{Expectation, Generator, Order, Sink};
use super::packet::{PacketGenerator, RingSink};
use crate::error::{Error, Result};
use crate::frame::Template;
use crate::netlink::Netlink;
use crate::netns::{IfSpec, run_in};

/// Frames that AF_PACKET hands over in one call at most.
const PACKET_BATCH: u16 = 64;

/// A generator or sink, and why it is not a faster one; none where it is the fastest, or was requested.
pub type Chosen<T> = (Box<T>, Option<String>);

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
    Ok((chosen, (!texts.is_empty()).then(|| texts.join("; "))))
}

/// Opens this generator; with `Auto` the slowest one that a trial on a virtual interface would choose.
///
/// # Errors
/// The interface, the kernel or the user cannot.
pub fn open_generator(
    choice: GeneratorChoice,
    tx: &IfSpec,
    template: &Template,
    frames: &FrameOptions,
) -> Result<Box<dyn Generator>> {
    let live = |egress| -> Result<Box<dyn Generator>> {
        Ok(Box::new(LiveGenerator::open(tx, template, egress, frames.batch, frames.tx_cpu, 0)?))
    };
    let by_stack = || live(frames.carrier_cpu.map_or(Egress::Stack, Egress::Carried));
    let packet = || -> Result<Box<dyn Generator>> {
        let batch = frames.batch.unwrap_or(PACKET_BATCH);
        run_in(tx.netns.as_ref(), || {
            let generator =
                PacketGenerator::open(&tx.interface, tx, template, batch, frames.tx_cpu)?;
            Ok(Box::new(generator) as _)
        })
    };
    match choice {
        GeneratorChoice::AfPacket => packet(),
        GeneratorChoice::Live => live(Egress::Redirect),
        GeneratorChoice::LiveSkb => by_stack(),
        GeneratorChoice::Auto => by_stack().or_else(|_| packet()),
    }
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
    order: &Order,
) -> Result<Chosen<dyn Generator>> {
    use GeneratorChoice::{AfPacket, Auto, Live, LiveSkb};
    let open = |choice| {
        if choice != AfPacket && order.schedule.due_ns(order.count) > MOST_NS {
            return Err(Error::bad_input(
                "live frames are paced for up to 2 h at a time",
                "measure for a shorter time, or with --backend af_packet",
            ));
        }
        open_generator(choice, tx, template, frames)
    };
    match frames.backend {
        Auto => fastest(tx, [Live, LiveSkb], open, || open(AfPacket)),
        choice => Ok((open(choice)?, None)),
    }
}

/// The sink on this interface.
///
/// # Errors
/// The requested one cannot, or none can.
pub fn sink(
    rx: &IfSpec,
    expected: &Expectation,
    options: &SinkOptions,
) -> Result<Chosen<dyn Sink>> {
    use SinkChoice::{AfPacket, Auto, TcIngress, XdpNative};
    let open = |choice| -> Result<Box<dyn Sink>> {
        Ok(match choice {
            XdpNative => Box::new(XdpSink::open(rx, expected, SinkHook::Native)?),
            TcIngress => Box::new(XdpSink::open(rx, expected, SinkHook::Ingress)?),
            AfPacket | Auto => Box::new(RingSink::open(rx, expected, options.ring_mib)?),
        })
    };
    match options.sink {
        Auto => fastest(rx, [XdpNative, TcIngress], open, || open(AfPacket)),
        choice => Ok((open(choice)?, None)),
    }
}

/// The choice of a backend's name in results.
pub fn generator_named(backend: &str) -> GeneratorChoice {
    match backend {
        LIVE => GeneratorChoice::Live,
        LIVE_SKB | LIVE_CARRIED => GeneratorChoice::LiveSkb,
        _ => GeneratorChoice::AfPacket,
    }
}
