//! Distributions of times in nanoseconds. Knows nothing of where the times come from.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use serde::Serialize;

/// Largest value of a histogram [ns]: an hour.
pub const HIGHEST_NS: u64 = 3_600_000_000_000;
/// Significant decimal digits of the histograms.
pub const DIGITS: u8 = 3;

/// Buckets of a histogram in its own order: those of HdrHistogram with these bounds.
pub const BUCKETS: usize = 33_792;

/// The smallest value of bucket `index` [ns].
fn bucket_ns(index: usize) -> u64 {
    const HALF: u64 = 1 << 10;
    let index = index as u64;
    match (index / HALF).checked_sub(1) {
        Some(shift) => (index % HALF + HALF) << shift,
        None => index,
    }
}

/// One metric's distribution (docs/reference/formats.md, `Latency` of the run directory).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LatencySummary {
    /// Number of samples.
    pub count: u64,
    /// Smallest sample [ns], exact.
    pub min_ns: i64,
    /// Arithmetic mean [ns], exact.
    pub mean_ns: f64,
    /// Median [ns], to 3 significant digits as all percentiles.
    pub p50_ns: f64,
    /// 90th percentile [ns].
    pub p90_ns: f64,
    /// 99th percentile [ns].
    pub p99_ns: f64,
    /// 99.9th percentile [ns].
    pub p999_ns: f64,
    /// Largest sample [ns], exact.
    pub max_ns: i64,
    /// HdrHistogram: V2 encoding, zlib, base64; none when there are negative samples.
    pub hdr: Option<String>,
}

/// Collects samples in constant memory.
#[derive(Debug, Clone)]
pub struct LatencyRecorder {
    positive: Histogram<u64>,
    /// Magnitudes of negative samples; made with the first one.
    negative: Option<Histogram<u64>>,
    min_ns: i64,
    max_ns: i64,
    sum_ns: i128,
}

impl Default for LatencyRecorder {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(clippy::expect_used, reason = "the bounds are constants that the library accepts")]
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, HIGHEST_NS, DIGITS).expect("constant bounds are valid")
}

/// The `rank`-th smallest value of the histogram, counted from 1.
fn value_at_rank(histogram: &Histogram<u64>, rank: u64) -> i64 {
    // Half a rank below the share of `rank`: the library rounds up, and a quotient that came out too
    // large would give the next rank.
    let share = (rank as f64 - 0.5) / histogram.len() as f64;
    histogram.value_at_quantile(share).min(i64::MAX as u64) as i64
}

impl LatencyRecorder {
    /// An empty distribution.
    pub fn new() -> Self {
        Self {
            positive: histogram(),
            negative: None,
            min_ns: i64::MAX,
            max_ns: i64::MIN,
            sum_ns: 0,
        }
    }

    /// A distribution from counts by bucket: samples from 0 on, magnitudes of negative ones, and
    /// exact sum, smallest and largest sample [ns].
    pub fn from_buckets(
        positive: &[u64],
        negative: &[u64],
        (sum_ns, min_ns, max_ns): (i64, i64, i64),
    ) -> Self {
        let filled = |counts: &[u64]| {
            let mut samples = histogram();
            for (index, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                samples.saturating_record_n(bucket_ns(index), count);
            }
            samples
        };
        let mut recorder = Self::new();
        recorder.positive = filled(positive);
        recorder.negative = negative.iter().any(|&count| count > 0).then(|| filled(negative));
        if recorder.count() > 0 {
            (recorder.sum_ns, recorder.min_ns, recorder.max_ns) =
                (i128::from(sum_ns), min_ns, max_ns);
        }
        recorder
    }

    /// Adds one sample [ns]. It may be negative (a difference of two intervals).
    pub fn record(&mut self, ns: i64) {
        if ns < 0 {
            self.negative.get_or_insert_with(histogram).saturating_record(ns.unsigned_abs());
        } else {
            self.positive.saturating_record(ns as u64);
        }
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        self.sum_ns += i128::from(ns);
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.positive.len() + self.negative.as_ref().map_or(0, Histogram::len)
    }

    /// The smallest value that at least the share `quantile` (0 to 1) of the samples does not
    /// exceed [ns], to 3 significant digits; 0 when there are no samples.
    pub fn quantile_ns(&self, quantile: f64) -> i64 {
        let Some(negative) = &self.negative else {
            return self.positive.value_at_quantile(quantile).min(i64::MAX as u64) as i64;
        };
        let count = self.count();
        let rank = ((quantile * count as f64).ceil() as u64).clamp(1, count);
        let below = negative.len();
        if rank > below {
            value_at_rank(&self.positive, rank - below)
        } else {
            // The largest magnitude is the smallest value.
            -value_at_rank(negative, below - rank + 1)
        }
    }

    /// The distribution in numbers; none when there are no samples.
    pub fn summary(&self) -> Option<LatencySummary> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        // A histogram's bucket may reach past the largest sample.
        let at = |quantile: f64| self.quantile_ns(quantile).clamp(self.min_ns, self.max_ns) as f64;
        Some(LatencySummary {
            count,
            min_ns: self.min_ns,
            mean_ns: self.sum_ns as f64 / count as f64,
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.max_ns,
            hdr: if self.negative.is_some() { None } else { Some(self.encode()) },
        })
    }

    fn encode(&self) -> String {
        let mut bytes = Vec::new();
        // Writing to memory cannot fail, and the histogram's bounds are ours.
        let _ = V2DeflateSerializer::new().serialize(&self.positive, &mut bytes);
        BASE64.encode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::Deserializer;

    use super::*;

    impl FromIterator<i64> for LatencyRecorder {
        fn from_iter<I: IntoIterator<Item = i64>>(samples: I) -> Self {
            let mut recorder = Self::new();
            for ns in samples {
                recorder.record(ns);
            }
            recorder
        }
    }

    #[test]
    fn no_samples_have_no_summary() {
        assert_eq!(LatencyRecorder::new().summary(), None);
    }

    #[test]
    fn a_summary_knows_its_samples() {
        let summary = (1..=1000).collect::<LatencyRecorder>().summary().expect("samples");
        assert_eq!((summary.count, summary.min_ns, summary.max_ns), (1000, 1, 1000));
        assert_eq!(summary.mean_ns, 500.5);
        assert_eq!((summary.p50_ns, summary.p90_ns, summary.p99_ns), (500.0, 900.0, 990.0));
        assert_eq!(summary.p999_ns, 999.0);
    }

    #[test]
    fn negative_samples_have_percentiles_and_no_histogram() {
        let summary = (-50..=49).collect::<LatencyRecorder>().summary().expect("samples");
        assert_eq!((summary.count, summary.min_ns, summary.max_ns), (100, -50, 49));
        assert_eq!((summary.p50_ns, summary.p90_ns), (-1.0, 39.0));
        assert_eq!(summary.hdr, None);
    }

    #[test]
    fn the_encoded_histogram_holds_the_samples() {
        let summary = [0, 7, 1_500, 2_000_000, i64::MAX].into_iter().collect::<LatencyRecorder>();
        let text = summary.summary().and_then(|summary| summary.hdr).expect("encoded");
        let bytes = BASE64.decode(text).expect("base64");
        let decoded: Histogram<u64> =
            Deserializer::new().deserialize(&mut bytes.as_slice()).expect("V2 deflate");
        assert_eq!(decoded.len(), 5);
        assert_eq!(decoded.sigfig(), DIGITS);
        assert!(decoded.equivalent(decoded.value_at_quantile(0.6), 1_500));
    }

    #[test]
    fn a_rank_among_negative_samples_is_not_rounded_to_its_neighbour() {
        for below in 1..200 {
            let recorder: LatencyRecorder = (1..=below).map(|n| -1000 * n).chain([1]).collect();
            for rank in 1..=below {
                let quantile = (rank as f64 - 0.5) / (below + 1) as f64;
                let truth = -1000 * (below + 1 - rank);
                let error = (recorder.quantile_ns(quantile) - truth).abs();
                assert!(error <= truth.abs() / 1000, "rank {rank} of {below} is {error} ns off");
            }
        }
    }

    #[test]
    fn quantiles_follow_the_sorted_samples() {
        pw_cases::check!().with_type::<Vec<i32>>().for_each(|samples| {
            let mut sorted: Vec<i64> = samples.iter().map(|&v| i64::from(v)).collect();
            sorted.sort_unstable();
            let Some(summary) = sorted.iter().copied().collect::<LatencyRecorder>().summary()
            else {
                assert!(sorted.is_empty());
                return;
            };
            let rank = (sorted.len() as f64 * 0.5).ceil() as usize;
            let truth = sorted[rank - 1] as f64;
            assert!((summary.p50_ns - truth).abs() <= truth.abs() / 1000.0 + 1.0);
            assert_eq!(summary.min_ns, sorted[0]);
            assert_eq!(summary.max_ns, sorted[sorted.len() - 1]);
            let percentiles = [summary.p50_ns, summary.p90_ns, summary.p99_ns, summary.p999_ns];
            assert!(percentiles.windows(2).all(|pair| pair[0] <= pair[1]));
        });
    }

    #[test]
    fn counts_by_bucket_make_the_same_distribution_as_samples() {
        let bucket = |ns: u64| {
            let last = BUCKETS - 1;
            (0..=last).rev().find(|&index| bucket_ns(index) <= ns).unwrap_or(0)
        };
        pw_cases::check!(50).with_type::<Vec<(u32, u8)>>().for_each(|samples| {
            let samples: Vec<i64> = samples
                .iter()
                .map(|&(value, shift)| {
                    let ns = i64::from(value) << (shift % 9);
                    if shift > 200 { -ns } else { ns }
                })
                .collect();
            let recorded: LatencyRecorder = samples.iter().copied().collect();
            let (mut positive, mut negative) = (vec![0; BUCKETS], vec![0; BUCKETS]);
            for ns in &samples {
                let counts = if *ns < 0 { &mut negative } else { &mut positive };
                counts[bucket(ns.unsigned_abs())] += 1;
            }
            let exact = (
                samples.iter().sum(),
                samples.iter().copied().min().unwrap_or(0),
                samples.iter().copied().max().unwrap_or(0),
            );
            let counted = LatencyRecorder::from_buckets(&positive, &negative, exact);
            assert_eq!(counted.summary(), recorded.summary());
        });
    }
}
