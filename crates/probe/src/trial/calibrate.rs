//! Measures a generator's own maximum rate.

use std::sync::atomic::AtomicU64;

use nix::sched::{CloneFlags, unshare};

use super::choose;
use super::kernel::xdp::{SinkHook, XdpSink};
use super::options::{FrameOptions, GeneratorChoice};
use super::order::{Expectation, Order, Refusals};
use crate::clock::Schedule;
use crate::error::{Error, Result};
use crate::frame::{FrameKind, Template};
use crate::netlink::{Change, Netlink};
use crate::netns::IfSpec;
use crate::stop;
use crate::threads;

/// A generator's own maximum.
#[derive(Debug)]
pub struct Maximum {
    /// Its name in results.
    pub backend: &'static str,
    /// Frames a batch.
    pub batch: u16,
    /// Packets per second.
    pub pps: f64,
    /// `private veth pair` or `private loopback`.
    pub measured_on: &'static str,
}

/// How long the generator's maximum is measured at a time [s]; the best of several counts.
const CALIBRATION_S: f64 = 0.04;
const CALIBRATIONS: usize = 5;
/// More than any generator sends [packets/s].
const BEYOND_PPS: f64 = 50e6;

/// The interfaces that a generator's maximum is measured on.
const PRIVATE_ENDS: [&str; 2] = ["pw-cal0", "pw-cal1"];
/// Name in results of the pair on which the maximum is measured.
const PRIVATE_VETH: &str = "private veth pair";
/// Its stand-in where the kernel has no veth, as in a tiny virtual machine.
const PRIVATE_LOOPBACK: &str = "private loopback";

/// Measures the maximum of a generator by itself, on a veth pair in a namespace of its own, whose far end
/// drops every frame for its MAC address, so that no SUT limits it. Without veth, on that namespace's
/// loopback, which does the same.
///
/// # Errors
/// The generator cannot run, or no namespace may be made (CAP_SYS_ADMIN is missing).
pub fn maximum(
    choice: GeneratorChoice,
    template: &Template,
    frames: &FrameOptions,
) -> Result<Maximum> {
    threads::run(|| {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| {
            Error::failed(
                "cannot make a namespace to measure the generator in",
                "run as root or inside a user namespace, or give --max-pps from an earlier \
                     --calibrate-only",
            )
            .caused_by(errno)
        })?;
        let mut netlink = Netlink::open()?;
        let mtu = template.frame_bytes().max(1500) as u32;
        let [near, far] = PRIVATE_ENDS;
        let (ends, measured_on) = match netlink.add_veth(near, far, mtu) {
            Ok(()) => (&PRIVATE_ENDS[..], PRIVATE_VETH),
            Err(_) => (&["lo"][..], PRIVATE_LOOPBACK),
        };
        for name in ends {
            let index = netlink.link_at(name, name)?.index;
            netlink.change(index, &Change::Up(true))?;
        }
        let end = |name: &str| IfSpec { interface: name.to_string(), netns: None };
        // A veth takes XDP frames only while its peer has a program: a sink that expects none.
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
        let peer = || XdpSink::open(&end(far), &expected, SinkHook::Native);
        let _peer = (choice == GeneratorChoice::Live).then(peer).transpose()?;
        let mut generator = choose::open_generator(choice, &end(ends[0]), template, frames)?;
        let order = Order {
            first_sequence: 1,
            count: (BEYOND_PPS * CALIBRATION_S) as u64,
            schedule: Schedule::steady(BEYOND_PPS),
            refusals: Refusals::SentAgain,
        };
        let mut best = 0.0_f64;
        for _ in 0..CALIBRATIONS {
            if stop::requested() {
                break;
            }
            let generated = generator.run(&order, &AtomicU64::new(0));
            best = best.max(generated.achieved_pps());
            if let Some(error) = generated.error {
                return Err(error);
            }
        }
        // The batch is chosen by the rate, when frames are sent.
        let (backend, batch) = (generator.backend(), generator.batch());
        Ok(Maximum { backend, batch, pps: best, measured_on })
    })
}
