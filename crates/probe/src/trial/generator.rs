//! Sends the frames of a trial on schedule, and finds out how fast this generator can be. Knows
//! nothing of who receives them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, unshare};
use nix::unistd::Pid;

use super::backend::{AfPacketTx, Transmitter};
use crate::clock::{self, NANOS_PER_SECOND};
use crate::error::{Error, Result};
use crate::frame::Template;
use crate::histogram::LatencyRecorder;
use crate::netlink::Netlink;
use crate::stop;

/// What the generator did.
#[derive(Debug, Default)]
pub struct Generated {
    /// Frames that the kernel took.
    pub sent: u64,
    /// Frames that the interface dropped for lack of room.
    pub refused: u64,
    /// From the first frame's due time to the end of sending [ns].
    pub elapsed_ns: i64,
    /// How much later than scheduled the frames were handed over [ns].
    pub slip: LatencyRecorder,
    /// What broke it off.
    pub error: Option<Error>,
}

impl Generated {
    /// Frames per second.
    pub fn achieved_pps(&self) -> f64 {
        self.sent as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }
}

/// After the schedule's end a generator that is behind may go on for this long [ns]; what it has
/// not sent then it never sends.
const GRACE_NS: i64 = 100_000_000;

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

/// Checks that a thread may run on `cpu`, before anything is sent.
pub fn check_cpu(cpu: Option<usize>) -> Result<()> {
    std::thread::scope(|scope| match scope.spawn(|| pin(cpu)).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// What becomes of a frame that the sending interface drops for lack of room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Refusals {
    /// It is lost: a virtual interface hands frames on at once, so that what has no room is what
    /// lies behind it. Sending it again would close the loop.
    Lost,
    /// It is sent again: a physical interface has no room while it sends at line rate, which is
    /// the generator's limit.
    #[value(name = "again")]
    SentAgain,
}

/// Sends `count` frames at `rate_pps` from `start_ns` (CLOCK_MONOTONIC) on.
///
/// Open loop: frame `i` is due at `i / rate_pps`. When the generator is behind it sends what is
/// due in batches, so that the rate over the whole trial is kept where it can be; `slip` tells by
/// how much the frames were late. `sent_so_far` is updated for other threads to read.
pub fn generate(
    tx: &mut dyn Transmitter,
    template: &Template,
    first_sequence: u64,
    (rate_pps, count): (f64, u64),
    start_ns: i64,
    refusals: Refusals,
    sent_so_far: &AtomicU64,
) -> Generated {
    let mut result = Generated::default();
    let period_ns = NANOS_PER_SECOND as f64 / rate_pps;
    let due_ns = |index: u64| start_ns + (index as f64 * period_ns) as i64;
    let end_ns = due_ns(count);
    let batch = tx.batch() as u64;
    let mut now = clock::wait_until(start_ns);
    while result.sent < count && now < end_ns + GRACE_NS && !stop::requested() {
        if due_ns(result.sent) > now {
            now = clock::wait_until(due_ns(result.sent).min(now + NANOS_PER_SECOND / 10));
            continue;
        }
        let due = ((now - start_ns) as f64 / period_ns) as u64 + 1;
        let ready = due.min(count).saturating_sub(result.sent).clamp(1, batch);
        let first = result.sent;
        let tx_ns = clock::realtime_ns();
        let sent = tx.send(ready as usize, &mut |index, frame| {
            template.stamp(frame, first_sequence + first + index as u64, tx_ns);
        });
        match sent {
            Ok(sent) => {
                for index in first..first + sent.accepted as u64 {
                    result.slip.record((now - due_ns(index)).max(0));
                }
                result.sent += sent.accepted as u64;
                result.refused += u64::from(sent.refused);
                if sent.refused && refusals == Refusals::Lost {
                    result.slip.record((now - due_ns(result.sent)).max(0));
                    result.sent += 1;
                }
                sent_so_far.store(result.sent, Ordering::Relaxed);
            }
            Err(error) => {
                result.error = Some(error);
                break;
            }
        }
        now = clock::monotonic_ns();
    }
    // A schedule that was kept lasts one period beyond its last frame.
    let whole = result.sent == count;
    result.elapsed_ns = if whole { now.max(end_ns) } else { now } - start_ns;
    result
}

/// How long the generator's maximum is measured, in windows of which the best counts.
const CALIBRATION_WINDOW_NS: i64 = 40_000_000;
const CALIBRATION_WINDOWS: usize = 5;

/// Where the generator's maximum is measured.
const PRIVATE_VETH: &str = "private veth pair";
/// The same where the kernel has no veth, as in a tiny virtual machine.
const PRIVATE_LOOPBACK: &str = "private loopback";

/// The generator's own maximum with this template [packets/s], and where it was measured: as fast
/// as it can, on a veth pair of its own in a namespace of its own, whose other end drops every
/// frame (its MAC address is another) before any SUT could limit it. Where there is no veth, on
/// that namespace's loopback, which drops them for the same reason.
///
/// # Errors
/// A namespace may not be made (CAP_SYS_ADMIN is missing).
pub fn maximum_pps(
    template: &Template,
    batch: usize,
    cpu: Option<usize>,
) -> Result<(f64, &'static str)> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin(cpu)?;
            unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| {
                Error::failed(
                    format!("cannot make a namespace to measure the generator in: {errno}"),
                    "run as root or inside a user namespace, or give --max-pps from an earlier \
                     --calibrate-only",
                )
            })?;
            let mut netlink = Netlink::open()?;
            let mtu = template.bytes().len().max(1500) as u32;
            let (ends, place) = match netlink.add_veth("pw-cal0", "pw-cal1", mtu) {
                Ok(()) => (&["pw-cal0", "pw-cal1"][..], PRIVATE_VETH),
                Err(_) => (&["lo"][..], PRIVATE_LOOPBACK),
            };
            for name in ends {
                let index = netlink.link_at(name, name)?.index;
                netlink.set_up(index)?;
            }
            let mut tx = AfPacketTx::open(ends[0], &ends[0], template.bytes(), batch)?;
            let mut best = 0.0_f64;
            for _ in 0..=CALIBRATION_WINDOWS {
                best = best.max(window_pps(&mut tx, template)?);
            }
            Ok((best, place))
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn window_pps(tx: &mut dyn Transmitter, template: &Template) -> Result<f64> {
    let start_ns = clock::monotonic_ns();
    let (mut count, mut now) = (0_u64, start_ns);
    while now - start_ns < CALIBRATION_WINDOW_NS && !stop::requested() {
        let tx_ns = clock::realtime_ns();
        let sent = tx.send(tx.batch(), &mut |index, frame| {
            template.stamp(frame, count + index as u64, tx_ns);
        })?;
        count += sent.accepted as u64;
        now = clock::monotonic_ns();
    }
    Ok(count as f64 * 1e9 / (now - start_ns).max(1) as f64)
}

/// Sleeps for a while, but not past a signal.
pub fn pause(duration: Duration) {
    clock::sleep_until(clock::monotonic_ns() + duration.as_nanos() as i64);
}
