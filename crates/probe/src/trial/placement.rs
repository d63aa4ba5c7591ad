//! Which CPU a generator or sink runs on, and how fast a generator can be by itself.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, unshare};
use nix::unistd::Pid;

use super::order::{Generator, Order, Refusals};
use crate::clock::{self, Schedule};
use crate::error::{Error, Result};
use crate::netlink::Netlink;
use crate::stop;

/// Pins the calling thread to one CPU.
pub fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).map_err(|errno| {
        Error::bad_input(
            format!("cannot run on CPU {cpu}: {errno}"),
            "`nproc --all` tells how many CPUs there are; they are counted from 0",
        )
    })
}

/// Keeps the calling thread off `cpu` where it may run on others.
pub fn keep_off(cpu: usize) {
    if let Ok(mut set) = sched_getaffinity(Pid::from_raw(0)) {
        let elsewhere = (0..CpuSet::count()).any(|it| it != cpu && set.is_set(it).unwrap_or(false));
        if elsewhere && set.unset(cpu).is_ok() {
            let _ = sched_setaffinity(Pid::from_raw(0), &set);
        }
    }
}

/// Checks that a thread may run on `cpu`, before anything is sent.
pub fn check_cpu(cpu: Option<usize>) -> Result<()> {
    std::thread::scope(|scope| match scope.spawn(|| pin(cpu)).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Sleeps for a while, but not past a signal.
pub fn pause(duration: Duration) {
    clock::sleep_until(clock::monotonic_ns() + duration.as_nanos() as i64);
}

/// How long the generator's maximum is measured at a time [s]; the best of several counts.
const CALIBRATION_S: f64 = 0.04;
const CALIBRATIONS: usize = 5;
/// More than any generator sends [packets/s].
const BEYOND_PPS: f64 = 50e6;

/// The interfaces that a generator's maximum is measured on.
pub const PRIVATE_ENDS: [&str; 2] = ["pw-cal0", "pw-cal1"];
/// Where the generator's maximum is measured.
const PRIVATE_VETH: &str = "private veth pair";
/// The same where the kernel has no veth, as in a tiny virtual machine.
const PRIVATE_LOOPBACK: &str = "private loopback";

/// The maximum of the generator that `open` opens [packets/s], and where it was measured: as fast
/// as it can, on a veth pair of its own in a namespace of its own, whose other end drops every
/// frame (its MAC address is another) before any SUT could limit it. Where there is no veth, on
/// that namespace's loopback, which drops them for the same reason.
///
/// # Errors
/// A namespace may not be made (CAP_SYS_ADMIN is missing).
pub fn maximum_pps(
    frame_bytes: usize,
    open: impl FnOnce(&str) -> Result<Box<dyn Generator>> + Send,
) -> Result<(f64, &'static str)> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| {
                Error::failed(
                    format!("cannot make a namespace to measure the generator in: {errno}"),
                    "run as root or inside a user namespace, or give --max-pps from an earlier \
                     --calibrate-only",
                )
            })?;
            let mut netlink = Netlink::open()?;
            let mtu = frame_bytes.max(1500) as u32;
            let [near, far] = PRIVATE_ENDS;
            let (ends, place) = match netlink.add_veth(near, far, mtu) {
                Ok(()) => (&PRIVATE_ENDS[..], PRIVATE_VETH),
                Err(_) => (&["lo"][..], PRIVATE_LOOPBACK),
            };
            for name in ends {
                let index = netlink.link_at(name, name)?.index;
                netlink.set_up(index)?;
            }
            let mut generator = open(ends[0])?;
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
            Ok((best, place))
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
