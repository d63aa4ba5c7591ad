//! From counters to rates. A change of source re-bases, a wrap is counted, a reset is survived, and
//! an unsupported counter is unknown, never zero.

use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::model::{Origin, Rate};
use pw_error::{Error, Result};

/// Counters of one interface since some start that is its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
}

/// A source's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// It counted.
    Counted(Counters),
    /// It keeps no such counters (igb does not for its VFs): the rate is unknown.
    Unsupported,
}

/// One reading of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// When, on a clock that is never set back [ms].
    pub at_ms: u64,
    /// Which source: a number that changes when the interface does (its index, its namespace).
    pub source: u64,
    /// Who counted.
    pub origin: Origin,
    /// The answer.
    pub reading: Reading,
}

/// How rates are smoothed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Smoothing {
    /// Exponentially: what is this old weighs 1/e [s].
    Ewma(f64),
    /// The mean over this last time [s].
    Window(f64),
}

impl Smoothing {
    /// Mean age of the traffic that a rate is of [s].
    pub const fn lag_s(self) -> f64 {
        match self {
            Self::Ewma(over_s) => over_s,
            Self::Window(over_s) => over_s / 2.0,
        }
    }
}

/// How counters become rates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SignalSettings {
    /// How rates are smoothed.
    pub smoothing: Smoothing,
    /// No interface is faster [packets per second]: a larger step is a reset, not traffic.
    pub fastest_pps: f64,
    /// After this long without a reading of its own, the host's last rate gives way to the guest's
    /// report [s].
    pub fresh_s: f64,
}

impl Default for SignalSettings {
    fn default() -> Self {
        // 0.3 s: of a rate counted each second, 4 % are older; more costs up to half a point of the gain that
        // could be had (docs/reference/alloc.md). 3e8: 200 Gbit/s of minimum frames.
        Self { smoothing: Smoothing::Ewma(0.3), fastest_pps: 3e8, fresh_s: 10.0 }
    }
}

impl SignalSettings {
    /// Are these numbers usable?
    pub fn check(&self) -> Result<()> {
        let (Smoothing::Ewma(over_s) | Smoothing::Window(over_s)) = self.smoothing;
        let limits = [
            ("smoothing over", over_s, 0.1, 86_400.0, "a number of seconds from 0.1 to 86400"),
            ("fastest_pps =", self.fastest_pps, 1.0, 1e12, "a packet rate from 1 to 1e12"),
            ("fresh_s =", self.fresh_s, 0.0, 86_400.0, "a number of seconds from 0 to 86400"),
        ];
        for (name, value, least, most, range) in limits {
            if !(least..=most).contains(&value) {
                return Err(Error::bad_input(
                    format!("signal.{name} {value} is out of range"),
                    format!("give {range}"),
                ));
            }
        }
        Ok(())
    }
}

/// Samples that a window remembers at most; older ones are merged into the oldest.
const WINDOW_SAMPLES: usize = 256;
/// An Ethernet frame of the usual MTU [bytes].
const FULL_FRAME_BYTES: f64 = 1514.0;
/// The numbers of sources whose packets received are the guest's frames, while their bytes may include frames for
/// others.
pub const COUNTS_FRAMES: Range<u64> = 1 << 33..1 << 34;
/// Two readings closer than this say nothing about a rate [ms].
const SHORTEST_MS: u64 = 10;

/// Traffic between two readings.
#[derive(Debug, Clone, Copy)]
struct Passed {
    seconds: f64,
    packets: f64,
    bytes: f64,
}

#[derive(Debug, Clone, Copy)]
struct Base {
    at_ms: u64,
    source: u64,
    counters: Counters,
}

/// The rate of one origin: readings in, a smoothed rate out.
#[derive(Debug, Clone)]
struct Meter {
    base: Option<Base>,
    /// Smoothed packets and bytes per second; none before the first two readings.
    rate: Option<(f64, f64)>,
    window: VecDeque<Passed>,
    /// Time that went into the average [s]: the first readings weigh as the only ones there are.
    averaged_s: f64,
    /// The time between the last two readings, in time constants, and what an exponential average keeps
    /// over it: most are alike.
    kept: (f64, f64),
    last_ms: u64,
}

impl Meter {
    const fn new() -> Self {
        Self {
            base: None,
            rate: None,
            window: VecDeque::new(),
            averaged_s: 0.0,
            kept: (0.0, 1.0),
            last_ms: 0,
        }
    }

    fn feed(&mut self, sample: &Sample, settings: &SignalSettings) {
        let Reading::Counted(counters) = sample.reading else {
            self.base = None;
            return;
        };
        let next = Base { at_ms: sample.at_ms, source: sample.source, counters };
        let Some(base) = self.base.filter(|base| base.source == sample.source) else {
            self.base = Some(next);
            return;
        };
        let elapsed_ms = sample.at_ms.saturating_sub(base.at_ms);
        if elapsed_ms < SHORTEST_MS {
            return;
        }
        self.base = Some(next);
        let seconds = elapsed_ms as f64 / 1e3;
        let most = settings.fastest_pps * seconds;
        // A frame of Ethernet has at most 64 KiB where it is counted (segmentation offload).
        let most_bytes = most * 65_536.0;
        let last = base.counters;
        let (Some(rx), Some(tx), Some(rx_bytes), Some(tx_bytes)) = (
            advance(last.rx_packets, counters.rx_packets, most),
            advance(last.tx_packets, counters.tx_packets, most),
            advance(last.rx_bytes, counters.rx_bytes, most_bytes),
            advance(last.tx_bytes, counters.tx_bytes, most_bytes),
        ) else {
            return;
        };
        self.last_ms = sample.at_ms;
        // A paravirtual path counts packets of up to 64 KiB that become many frames (segmentation offload),
        // a VF counts frames: bulk traffic counts as full frames on either.
        let frames = |packets: f64, bytes: f64| packets.max(bytes / FULL_FRAME_BYTES);
        let rx = if COUNTS_FRAMES.contains(&sample.source) { rx } else { frames(rx, rx_bytes) };
        let packets = rx + frames(tx, tx_bytes);
        self.smooth(Passed { seconds, packets, bytes: rx_bytes + tx_bytes }, settings.smoothing);
    }

    fn smooth(&mut self, passed: Passed, smoothing: Smoothing) {
        let rate = (passed.packets / passed.seconds, passed.bytes / passed.seconds);
        match smoothing {
            Smoothing::Ewma(over_s) => {
                self.averaged_s += passed.seconds;
                let span = passed.seconds / over_s;
                if self.kept.0 != span {
                    self.kept = (span, (-span).exp());
                }
                let weight = (1.0 - self.kept.1).max(passed.seconds / self.averaged_s);
                let (pps, bytes) = self.rate.unwrap_or(rate);
                self.rate =
                    Some((pps + weight * (rate.0 - pps), bytes + weight * (rate.1 - bytes)));
            }
            Smoothing::Window(over_s) => {
                if self.window.len() == WINDOW_SAMPLES
                    && let (Some(first), Some(second)) =
                        (self.window.pop_front(), self.window.front_mut())
                {
                    second.seconds += first.seconds;
                    second.packets += first.packets;
                    second.bytes += first.bytes;
                }
                self.window.push_back(passed);
                let mut span_s: f64 = self.window.iter().map(|part| part.seconds).sum();
                while self.window.len() > 1 && span_s - self.window[0].seconds >= over_s {
                    span_s -= self.window[0].seconds;
                    self.window.pop_front();
                }
                let packets: f64 = self.window.iter().map(|part| part.packets).sum();
                let bytes: f64 = self.window.iter().map(|part| part.bytes).sum();
                self.rate = Some((packets / span_s, bytes / span_s));
            }
        }
    }
}

/// By how much a counter advanced; none when it was reset. Counters of 32 and of 64 bits may wrap.
fn advance(last: u64, current: u64, most: f64) -> Option<f64> {
    const WRAP_32: u64 = 1 << 32;
    let plausible = |step: u64| (step as f64 <= most).then_some(step as f64);
    if current >= last {
        return plausible(current - last);
    }
    let wrapped_32 = (last < WRAP_32).then(|| current + (WRAP_32 - last));
    // A small counter that falls back has wrapped only if it was near its end: else a reset to zero
    // followed by little traffic would look like billions of packets.
    wrapped_32
        .filter(|_| last >= WRAP_32 / 2 && current < WRAP_32 / 2)
        .or_else(|| (last > u64::MAX / 2).then(|| current.wrapping_sub(last)))
        .and_then(plausible)
}

/// A guest's traffic over time, from all its sources.
#[derive(Debug, Clone)]
pub struct Tracker {
    host: Meter,
    guest: Option<Box<Meter>>,
}

impl Default for Tracker {
    fn default() -> Self {
        Self { host: Meter::new(), guest: None }
    }
}

impl Tracker {
    /// Takes one reading in. Readings may come late, twice or not at all.
    pub fn feed(&mut self, sample: &Sample, settings: &SignalSettings) {
        match sample.origin {
            Origin::HostSide => self.host.feed(sample, settings),
            Origin::GuestReported => {
                self.guest.get_or_insert_with(|| Box::new(Meter::new())).feed(sample, settings);
            }
        }
    }

    /// The rate at this moment: the host's while it is fresh, else the guest's report while that is,
    /// else the host's last one with its age; none when it was never counted.
    pub fn rate(&self, now_ms: u64, settings: &SignalSettings) -> Option<Rate> {
        let rate_of = |meter: &Meter, origin| {
            let (pps, bytes_per_s) = meter.rate?;
            let age_ms = now_ms.saturating_sub(meter.last_ms);
            let blind_ms = if age_ms as f64 > settings.fresh_s * 1e3 { age_ms } else { 0 };
            Some(Rate { pps, bytes_per_s, origin, blind_ms })
        };
        let host = rate_of(&self.host, Origin::HostSide);
        let guest = self.guest.as_deref().and_then(|meter| rate_of(meter, Origin::GuestReported));
        match (host, guest) {
            (Some(host), _) if host.blind_ms == 0 => Some(host),
            (_, Some(guest)) if guest.blind_ms == 0 => Some(guest),
            (host, guest) => host.or(guest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: SignalSettings =
        SignalSettings { smoothing: Smoothing::Window(1.0), fastest_pps: 1e7, fresh_s: 5.0 };

    fn sample(at_ms: u64, source: u64, packets: u64) -> Sample {
        let counters = Counters { rx_packets: packets, ..Counters::default() };
        Sample { at_ms, source, origin: Origin::HostSide, reading: Reading::Counted(counters) }
    }

    fn pps(samples: &[Sample], settings: &SignalSettings) -> Option<f64> {
        let mut tracker = Tracker::default();
        for sample in samples {
            tracker.feed(sample, settings);
        }
        tracker.rate(samples.last()?.at_ms, settings).map(|rate| rate.pps)
    }

    #[test]
    fn a_rate_is_packets_by_time() {
        assert_eq!(pps(&[sample(0, 1, 500)], &SETTINGS), None);
        assert_eq!(pps(&[sample(0, 1, 500), sample(2000, 1, 2500)], &SETTINGS), Some(1000.0));
    }

    #[test]
    fn frames_for_others_keep_no_holder_of_a_vf_busy() {
        let rate = |source| {
            let read = |at_ms: u64, seconds: u64| {
                let (rx_packets, rx_bytes) = (10 * seconds, 400 * 1_066 * seconds);
                let counters = Counters { rx_packets, rx_bytes, ..Counters::default() };
                Sample { reading: Reading::Counted(counters), ..sample(at_ms, source, 0) }
            };
            pps(&[read(0, 0), read(1000, 1)], &SETTINGS).expect("counted").round()
        };
        assert_eq!((rate(COUNTS_FRAMES.start), rate(1)), (10.0, 282.0));
    }

    #[test]
    fn another_source_is_a_new_base_and_not_a_jump() {
        let moved = [
            sample(0, 1, 0),
            sample(1000, 1, 1000),
            sample(2000, 2, 9_000_000),
            sample(3000, 2, 9_001_000),
        ];
        assert_eq!(pps(&moved, &SETTINGS), Some(1000.0));
        assert_eq!(pps(&moved[..3], &SETTINGS), Some(1000.0));
    }

    #[test]
    fn counters_of_32_and_of_64_bits_wrap() {
        for end in [u64::from(u32::MAX), u64::MAX] {
            let wraps = [sample(0, 1, end - 499), sample(1000, 1, 500)];
            assert_eq!(pps(&wraps, &SETTINGS), Some(1000.0), "{end}");
        }
    }

    #[test]
    fn a_reset_is_no_traffic() {
        let reset =
            [sample(0, 1, 0), sample(1000, 1, 1000), sample(2000, 1, 3), sample(3000, 1, 1003)];
        assert_eq!(pps(&reset[..3], &SETTINGS), Some(1000.0));
        assert_eq!(pps(&reset, &SETTINGS), Some(1000.0));
        assert_eq!(pps(&[sample(0, 1, 0), sample(1000, 1, u64::MAX)], &SETTINGS), None);
    }

    #[test]
    fn what_is_not_counted_is_unknown_and_not_zero() {
        let unsupported = Sample { reading: Reading::Unsupported, ..sample(0, 1, 0) };
        assert_eq!(pps(&[unsupported, Sample { at_ms: 1000, ..unsupported }], &SETTINGS), None);

        let mut tracker = Tracker::default();
        for at in 0..3 {
            tracker.feed(&sample(at * 1000, 1, at * 700), &SETTINGS);
        }
        for at in 3..60 {
            tracker.feed(&Sample { at_ms: at * 1000, source: 2, ..unsupported }, &SETTINGS);
        }
        let rate = tracker.rate(60_000, &SETTINGS).expect("it was known once");
        assert_eq!((rate.pps, rate.blind_ms), (700.0, 58_000));
    }

    #[test]
    fn the_guests_word_counts_only_while_the_host_sees_nothing() {
        let mut tracker = Tracker::default();
        let mut tell = |at_ms: u64, host: Option<u64>, guest: u64| {
            if let Some(packets) = host {
                tracker.feed(&sample(at_ms, 1, packets), &SETTINGS);
            }
            let word = Sample { origin: Origin::GuestReported, ..sample(at_ms, 1, guest) };
            tracker.feed(&word, &SETTINGS);
            tracker.rate(at_ms, &SETTINGS).map(|rate| (rate.pps, rate.origin))
        };
        tell(0, Some(0), 0);
        assert_eq!(tell(1000, Some(10), 5_000_000), Some((10.0, Origin::HostSide)));
        for at in 2..7 {
            tell(at * 1000, None, at * 5_000_000);
        }
        assert_eq!(tell(7000, None, 35_000_000), Some((5e6, Origin::GuestReported)));
    }

    #[test]
    fn an_average_starts_at_the_first_rate_and_forgets_with_its_time_constant() {
        let settings = SignalSettings { smoothing: Smoothing::Ewma(10.0), ..SETTINGS };
        let mut tracker = Tracker::default();
        for at in 0..=100 {
            tracker.feed(&sample(at * 1000, 1, at * 1000), &settings);
        }
        for at in 101..=110 {
            tracker.feed(&sample(at * 1000, 1, 100_000), &settings);
        }
        let rate = tracker.rate(110_000, &settings).expect("counted").pps;
        assert!((rate - 1000.0 / std::f64::consts::E).abs() < 1.0, "{rate}");
    }

    #[test]
    fn no_readings_make_a_rate_that_is_negative_infinite_or_too_fast() {
        pw_cases::check!().with_type::<(bool, Vec<(u16, u8, u64, u64)>)>().for_each(
            |(ewma, readings)| {
                let smoothing = if *ewma { Smoothing::Ewma(3.0) } else { Smoothing::Window(3.0) };
                let settings = SignalSettings { smoothing, ..SETTINGS };
                let mut tracker = Tracker::default();
                let mut now_ms = 0_u64;
                for &(step_ms, kind, packets, bytes) in readings {
                    // Clocks that are set back are among what may come.
                    now_ms = (now_ms + u64::from(step_ms)).saturating_sub(u64::from(kind) * 20);
                    let counters =
                        Counters { rx_packets: packets, tx_bytes: bytes, ..Counters::default() };
                    let reading = match kind % 4 {
                        0 => Reading::Unsupported,
                        _ => Reading::Counted(counters),
                    };
                    let origin =
                        if kind % 8 < 4 { Origin::HostSide } else { Origin::GuestReported };
                    let source = u64::from(kind) / 128;
                    tracker.feed(&Sample { at_ms: now_ms, source, origin, reading }, &settings);
                    if let Some(rate) = tracker.rate(now_ms, &settings) {
                        // Two directions, each at most the fastest.
                        assert!((0.0..=2.0 * settings.fastest_pps * 1.001).contains(&rate.pps));
                        assert!(rate.bytes_per_s.is_finite() && rate.bytes_per_s >= 0.0);
                    }
                }
            },
        );
    }

    #[test]
    fn bulk_traffic_has_the_same_rate_on_a_paravirtual_path_and_on_a_vf() {
        let rate = |bytes_each: u64| {
            let counted = |at_ms: u64, bytes: u64| {
                let counters = Counters {
                    tx_packets: bytes / bytes_each,
                    tx_bytes: bytes,
                    ..Counters::default()
                };
                let reading = Reading::Counted(counters);
                Sample { at_ms, source: 1, origin: Origin::HostSide, reading }
            };
            pps(&[counted(0, 0), counted(1000, 151_400_000)], &SETTINGS).expect("counted")
        };
        assert!((rate(60_000) - rate(1514)).abs() < 1.0, "{} {}", rate(60_000), rate(1514));
        assert!((rate(100) - 1_514_000.0).abs() < 1.0, "small packets are counted as they are");
    }
}
