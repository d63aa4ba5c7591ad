//! Measures a generator's own maximum rate.

use std::fs;
use std::sync::atomic::AtomicU64;

use nix::sched::{CloneFlags, unshare};

use super::order::{Generator, Order, Refusals};
use crate::clock::Schedule;
use crate::error::{Error, Result};
use crate::netlink::Netlink;
use crate::stop;
use crate::threads;

/// Gives a kernel thread real-time priority, so that it runs at once when it is woken, not after the
/// time slice of another program. Without effect where the thread is not visible, as in a container.
pub fn prefer_kernel_thread(name: &str) {
    /// Length to which kernels before 5.17 cut a thread's name [bytes].
    const SHORT: usize = 15;
    let matches = |comm: &str| comm == name || comm == name.get(..SHORT).unwrap_or(name);
    let Ok(entries) = fs::read_dir("/proc") else { return };
    for entry in entries.flatten() {
        let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let (true, Some(pid)) = (matches(comm.trim_end()), pid) {
            let lowest = libc::sched_param { sched_priority: 1 };
            // SAFETY: reads the parameter, which lives through the call.
            unsafe { libc::sched_setscheduler(pid, libc::SCHED_FIFO, &raw const lowest) };
        }
    }
}

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
pub const PRIVATE_ENDS: [&str; 2] = ["pw-cal0", "pw-cal1"];
/// Name in results of the pair on which the maximum is measured.
const PRIVATE_VETH: &str = "private veth pair";
/// Its stand-in where the kernel has no veth, as in a tiny virtual machine.
const PRIVATE_LOOPBACK: &str = "private loopback";

/// Measures the maximum of the generator that `open` opens with what it needs at the far end, on a veth pair in a namespace of its own,
/// whose far end drops every frame for its MAC address, so that no SUT limits it. Without veth, on that
/// namespace's loopback, which does the same.
///
/// # Errors
/// No namespace may be made (CAP_SYS_ADMIN is missing).
pub fn maximum_pps<Peer>(
    frame_bytes: usize,
    open: impl FnOnce(&str) -> Result<(Box<dyn Generator>, Peer)> + Send,
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
        let mtu = frame_bytes.max(1500) as u32;
        let [near, far] = PRIVATE_ENDS;
        let (ends, measured_on) = match netlink.add_veth(near, far, mtu) {
            Ok(()) => (&PRIVATE_ENDS[..], PRIVATE_VETH),
            Err(_) => (&["lo"][..], PRIVATE_LOOPBACK),
        };
        for name in ends {
            let index = netlink.link_at(name, name)?.index;
            netlink.set_up(index)?;
        }
        let (mut generator, _peer) = open(ends[0])?;
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
