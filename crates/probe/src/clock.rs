//! Clocks and pacing: reads the system's clocks, waits until a time, detects steps of the wall clock.
//!
//! Kernel software stamps are CLOCK_REALTIME, hence so are all stamps of this crate. Schedules run
//! on CLOCK_MONOTONIC, which cannot be set. Both are slewed alike, so that only a step changes
//! their difference.

use std::time::Duration;

use nix::sys::time::{TimeSpec, TimeValLike};
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};

use crate::error::{Error, Result};

/// Nanoseconds in a second.
pub const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// CLOCK_REALTIME [ns since 1970-01-01 UTC].
#[inline]
pub fn realtime_ns() -> i64 {
    read(ClockId::CLOCK_REALTIME)
}

/// CLOCK_MONOTONIC [ns].
#[inline]
pub fn monotonic_ns() -> i64 {
    read(ClockId::CLOCK_MONOTONIC)
}

#[inline]
fn read(id: ClockId) -> i64 {
    // Both clocks always exist on Linux, so the call cannot fail.
    id.now().map_or(0, timespec_ns)
}

/// A kernel timespec as nanoseconds.
#[inline]
pub fn timespec_ns(time: TimeSpec) -> i64 {
    time.tv_sec() * NANOS_PER_SECOND + time.tv_nsec()
}

/// Nanoseconds as a kernel timespec; negative durations become zero.
#[inline]
pub fn to_timespec(ns: i64) -> TimeSpec {
    TimeSpec::nanoseconds(ns.max(0))
}

/// CLOCK_REALTIME minus CLOCK_MONOTONIC [ns], and its uncertainty [ns].
///
/// The wall clock is read between two readings of the monotonic clock, a few times; the tightest
/// pair counts, so that a preemption between the readings does no harm.
pub fn realtime_offset() -> (i64, i64) {
    let mut best = (0, i64::MAX);
    for _ in 0..5 {
        let before = monotonic_ns();
        let wall = realtime_ns();
        let width = monotonic_ns() - before;
        if width < best.1 {
            best = (wall - (before + width / 2), width);
        }
        if width < 500 {
            break;
        }
    }
    best
}

/// Sleeps until `deadline_ns` on CLOCK_MONOTONIC; returns early when a signal arrives.
pub fn sleep_until(deadline_ns: i64) {
    let (clock, flags) = (ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME);
    let _ = clock_nanosleep(clock, flags, &to_timespec(deadline_ns));
}

/// Sleeps for `duration`, or until a signal.
pub fn pause(duration: Duration) {
    sleep_until(monotonic_ns() + duration.as_nanos() as i64);
}

/// The end of `duration` from `start_ns` on [ns]; never without one.
pub fn end_ns(start_ns: i64, duration: Option<Duration>) -> i64 {
    duration.map_or(i64::MAX, |d| start_ns.saturating_add_unsigned(d.as_nanos() as u64))
}

/// How long before the deadline [`wait_until`] stops sleeping and starts to spin [ns].
///
/// A sleeping thread wakes some tens of microseconds late (timer, idle state, scheduler); spinning
/// over the rest keeps the schedule.
pub const SPIN_NS: i64 = 100_000;

/// Waits until `deadline_ns` on CLOCK_MONOTONIC: sleeps, then spins the last [`SPIN_NS`].
///
/// Returns the last reading of the clock, at or after the deadline.
pub fn wait_until(deadline_ns: i64) -> i64 {
    let mut now = monotonic_ns();
    while now < deadline_ns {
        if deadline_ns - now > SPIN_NS {
            sleep_until(deadline_ns - SPIN_NS);
        } else {
            std::hint::spin_loop();
        }
        now = monotonic_ns();
    }
    now
}

/// Lowers this thread's timer slack from 50 µs to 1 ns, so that sleeps end on time.
pub fn tighten_timers() {
    let _ = nix::sys::prctl::set_timerslack(1);
}

/// When each packet is due: bursts of `burst` packets, `gap_ns` apart within a burst, bursts
/// beginning every `period_ns`. A plain rate is a burst of 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Packets in a burst, at least 1.
    pub burst: u64,
    /// Time between the packets of a burst [ns].
    pub gap_ns: f64,
    /// Time between the first packets of two bursts [ns].
    pub period_ns: f64,
}

impl Schedule {
    /// One packet every 1/`rate_pps` seconds.
    pub fn steady(rate_pps: f64) -> Self {
        Self { burst: 1, gap_ns: 0.0, period_ns: NANOS_PER_SECOND as f64 / rate_pps }
    }

    /// Packets at `rate_pps`, in bursts if `bursts` has their length and period; `option` sets the period.
    ///
    /// # Errors
    /// A burst is longer than the period.
    pub fn of(rate_pps: f64, bursts: Option<(u64, Duration)>, option: &str) -> Result<Self> {
        let Some((burst, period)) = bursts else { return Ok(Self::steady(rate_pps)) };
        let burst_s = burst as f64 / rate_pps;
        if burst_s <= period.as_secs_f64() {
            return Ok(Self::bursts(burst, rate_pps, period));
        }
        Err(Error::bad_input(
            format!(
                "{burst} packets at {rate_pps} packets/s take {burst_s} s, longer than {option}"
            ),
            format!("give {option} {burst_s} or more"),
        ))
    }

    /// `burst` packets at `rate_pps`, bursts beginning `period` apart.
    pub fn bursts(burst: u64, rate_pps: f64, period: Duration) -> Self {
        Self {
            burst: burst.max(1),
            gap_ns: NANOS_PER_SECOND as f64 / rate_pps,
            period_ns: period.as_nanos() as f64,
        }
    }

    /// When packet `index` (from 0) is due, after the schedule's start [ns].
    ///
    /// Computed from the index and not summed up, so that no rounding accumulates.
    #[inline]
    pub fn due_ns(&self, index: u64) -> i64 {
        if self.burst == 1 {
            return (index as f64 * self.period_ns).round() as i64;
        }
        let (burst, position) = (index / self.burst, index % self.burst);
        (burst as f64 * self.period_ns + position as f64 * self.gap_ns).round() as i64
    }

    /// Packets per second over a long time.
    pub fn mean_pps(&self) -> f64 {
        self.burst as f64 * NANOS_PER_SECOND as f64 / self.period_ns
    }

    /// How many packets are due before `duration` has passed.
    pub fn count_within(&self, duration: Duration) -> u64 {
        let duration_ns = duration.as_nanos() as f64;
        let periods = (duration_ns / self.period_ns).floor();
        let rest_ns = duration_ns - periods * self.period_ns;
        let in_rest = match rest_ns > 0.5 {
            false => 0.0,
            true if self.burst == 1 => 1.0,
            true => (rest_ns / self.gap_ns).ceil().clamp(1.0, self.burst as f64),
        };
        periods as u64 * self.burst + in_rest as u64
    }
}

/// A step of the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct ClockStep {
    /// CLOCK_REALTIME when it was found [ns].
    pub seen_ns: i64,
    /// By how much the wall clock jumped [ns]; negative is backwards.
    pub size_ns: i64,
}

/// Finds out whether CLOCK_REALTIME was stepped during a run, by comparing it with CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy)]
pub struct ClockWatch {
    offset_ns: i64,
    width_ns: i64,
}

/// Differences below this are reading noise [ns]. Both clocks come from one counter with one
/// multiplier, so that what remains is rounding and the time between the readings.
const STEP_TOLERANCE_NS: i64 = 1_000;

impl ClockWatch {
    /// Notes the clocks as they are now.
    pub fn start() -> Self {
        let (offset_ns, width_ns) = realtime_offset();
        Self { offset_ns, width_ns }
    }

    /// The step since the start: a list of one, or empty.
    pub fn steps(&self) -> Vec<ClockStep> {
        let size_ns = self.step_ns(realtime_offset());
        size_ns.map(|size_ns| ClockStep { seen_ns: realtime_ns(), size_ns }).into_iter().collect()
    }

    fn step_ns(&self, (offset_ns, width_ns): (i64, i64)) -> Option<i64> {
        let size_ns = offset_ns - self.offset_ns;
        (size_ns.abs() > STEP_TOLERANCE_NS + width_ns + self.width_ns).then_some(size_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_told_from_the_noise_of_reading_the_clocks() {
        let watch = ClockWatch { offset_ns: 5_000_000, width_ns: 40 };
        assert_eq!(watch.step_ns((5_000_900, 60)), None);
        assert_eq!(watch.step_ns((5_000_000 + 3_000, 40)), Some(3_000));
        assert_eq!(watch.step_ns((4_000_000, 40)), Some(-1_000_000));
        assert_eq!(watch.step_ns((5_003_000, 50_000)), None, "preempted while reading");
        assert!(ClockWatch::start().steps().is_empty(), "this machine's clocks agree");
    }

    #[test]
    fn a_steady_schedule_does_not_drift() {
        let schedule = Schedule::steady(3_000.0);
        assert_eq!(schedule.due_ns(0), 0);
        assert_eq!(schedule.due_ns(1), 333_333);
        assert_eq!(schedule.due_ns(3_000_000), 1_000 * NANOS_PER_SECOND);
    }

    #[test]
    fn bursts_are_tight_inside_and_periodic_outside() {
        let schedule = Schedule::bursts(100, 1e6, Duration::from_millis(10));
        assert_eq!(schedule.due_ns(1), 1_000);
        assert_eq!(schedule.due_ns(99), 99_000);
        assert_eq!(schedule.due_ns(100), 10_000_000);
        assert_eq!(schedule.mean_pps(), 10_000.0);
    }

    #[test]
    fn the_count_within_a_duration_is_what_is_due_before_its_end() {
        pw_cases::check!().with_type::<(u16, u8, u16)>().for_each(|&(rate, burst, millis)| {
            let rate = f64::from(rate) + 1.0;
            let burst = u64::from(burst % 16) + 1;
            let period = Duration::from_secs_f64(burst as f64 / rate * 3.0);
            let schedule = if burst == 1 {
                Schedule::steady(rate)
            } else {
                Schedule::bursts(burst, rate, period)
            };
            let duration = Duration::from_millis(u64::from(millis));
            let count = schedule.count_within(duration);
            let end_ns = duration.as_nanos() as i64;
            if count > 0 {
                assert!(schedule.due_ns(count - 1) <= end_ns);
            }
            assert!(schedule.due_ns(count) >= end_ns - 1);
        });
    }

    #[test]
    fn waiting_ends_after_the_deadline() {
        let deadline = monotonic_ns() + 2_000_000;
        assert!(wait_until(deadline) >= deadline);
        assert!(wait_until(0) > 0, "a deadline in the past does not block");
    }
}
