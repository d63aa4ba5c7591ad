//! Distributions of times in nanoseconds.

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
    /// HdrHistogram: V2 encoding, zlib, base64.
    pub hdr: String,
}

/// Collects samples in constant memory.
#[derive(Debug, Clone)]
pub struct LatencyRecorder {
    histogram: Histogram<u64>,
    min_ns: i64,
    max_ns: i64,
    sum_ns: i128,
}

impl Default for LatencyRecorder {
    #[expect(clippy::expect_used, reason = "the bounds are constants that the library accepts")]
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, HIGHEST_NS, DIGITS);
        Self {
            histogram: histogram.expect("constant bounds are valid"),
            min_ns: i64::MAX,
            max_ns: i64::MIN,
            sum_ns: 0,
        }
    }
}

impl LatencyRecorder {
    /// A distribution from counts by bucket, and exact sum, smallest and largest sample [ns].
    pub fn from_buckets(counts: &[u64], (sum_ns, min_ns, max_ns): (i64, i64, i64)) -> Self {
        let mut recorder = Self::default();
        for (index, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            recorder.histogram.saturating_record_n(bucket_ns(index), count);
        }
        if recorder.count() > 0 {
            (recorder.min_ns, recorder.max_ns) = (min_ns, max_ns);
            recorder.sum_ns = i128::from(sum_ns);
        }
        recorder
    }

    /// Adds one sample [ns]. A negative one, of a clock that was set back meanwhile, is exact in
    /// the smallest sample and the mean, and zero in the histogram.
    pub fn record(&mut self, ns: i64) {
        self.histogram.saturating_record(ns.max(0) as u64);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        self.sum_ns += i128::from(ns);
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The smallest value that at least the share `quantile` (0 to 1) of the samples does not
    /// exceed [ns], to 3 significant digits; 0 when there are no samples.
    pub fn quantile_ns(&self, quantile: f64) -> i64 {
        self.histogram.value_at_quantile(quantile).min(i64::MAX as u64) as i64
    }

    /// The distribution in numbers; none when there are no samples.
    pub fn summary(&self) -> Option<LatencySummary> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        // A histogram's bucket may reach past the largest sample.
        let at = |quantile: f64| self.quantile_ns(quantile).clamp(self.min_ns, self.max_ns) as f64;
        let mut encoded = Vec::new();
        // Writing to memory cannot fail, and the histogram's bounds are ours.
        let _ = V2DeflateSerializer::new().serialize(&self.histogram, &mut encoded);
        Some(LatencySummary {
            count,
            min_ns: self.min_ns,
            mean_ns: self.sum_ns as f64 / count as f64,
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.max_ns,
            hdr: BASE64.encode(encoded),
        })
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::Deserializer;

    use super::*;

    impl FromIterator<i64> for LatencyRecorder {
        fn from_iter<I: IntoIterator<Item = i64>>(samples: I) -> Self {
            let mut recorder = Self::default();
            samples.into_iter().for_each(|ns| recorder.record(ns));
            recorder
        }
    }

    #[test]
    fn a_summary_describes_its_samples() {
        assert_eq!(LatencyRecorder::default().summary(), None);
        let summary = (1..=1000).collect::<LatencyRecorder>().summary().expect("samples");
        assert_eq!((summary.count, summary.min_ns, summary.max_ns), (1000, 1, 1000));
        assert_eq!(summary.mean_ns, 500.5);
        assert_eq!((summary.p50_ns, summary.p90_ns, summary.p99_ns), (500.0, 900.0, 990.0));
        assert_eq!(summary.p999_ns, 999.0);
        let negative = (-50..=49).collect::<LatencyRecorder>().summary().expect("samples");
        assert_eq!((negative.count, negative.min_ns, negative.mean_ns), (100, -50, -0.5));
        assert_eq!((negative.p50_ns, negative.p90_ns), (0.0, 39.0));
    }

    #[test]
    fn the_encoded_histogram_holds_the_samples() {
        let samples = [0, 7, 1_500, 2_000_000, i64::MAX].into_iter().collect::<LatencyRecorder>();
        let text = samples.summary().expect("samples").hdr;
        let bytes = BASE64.decode(text).expect("base64");
        let decoded: Histogram<u64> =
            Deserializer::new().deserialize(&mut bytes.as_slice()).expect("V2 deflate");
        assert_eq!((decoded.len(), decoded.sigfig()), (5, DIGITS));
        assert!(decoded.equivalent(decoded.value_at_quantile(0.6), 1_500));
    }

    #[test]
    fn counts_by_bucket_make_the_same_distribution_as_samples() {
        let bucket =
            |ns: u64| (0..BUCKETS).rev().find(|&index| bucket_ns(index) <= ns).unwrap_or(0);
        pw_cases::check!(50).with_type::<Vec<(u32, u8)>>().for_each(|samples| {
            let samples: Vec<i64> =
                samples.iter().map(|&(value, shift)| i64::from(value) << (shift % 9)).collect();
            let recorded: LatencyRecorder = samples.iter().copied().collect();
            let mut counts = vec![0; BUCKETS];
            samples.iter().for_each(|&ns| counts[bucket(ns as u64)] += 1);
            let extreme = |most: Option<&i64>| most.copied().unwrap_or(0);
            let exact = (
                samples.iter().sum(),
                extreme(samples.iter().min()),
                extreme(samples.iter().max()),
            );
            let counted = LatencyRecorder::from_buckets(&counts, exact);
            assert_eq!(counted.summary(), recorded.summary());
        });
    }
}
