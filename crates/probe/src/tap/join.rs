//! Joins the packets of a probe from several capture points.

use std::collections::HashMap;
use std::io::Write;

use serde::Serialize;

use super::decode::PassedProbe;
use crate::histogram::{LatencyRecorder, LatencySummary};
use crate::stamp;

/// One probe that passed one point.
#[derive(Debug, Clone, Copy)]
pub struct Sighting {
    /// The probe.
    pub probe: PassedProbe,
    /// When [CLOCK_REALTIME, ns].
    pub stamp_ns: i64,
}

/// The counts of one point.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PointSummary {
    /// Probes, duplicates included, warm-up not.
    pub packets: u64,
    /// Requests, each counted once.
    pub requests: u64,
    /// Replies, each counted once.
    pub replies: u64,
    /// Probes seen again in the same direction.
    pub duplicates: u64,
    /// Warm-up probes; left out everywhere else.
    pub warmup: u64,
    /// Requests whose reply did not pass.
    pub requests_unmatched: u64,
    /// Replies whose request did not pass.
    pub replies_unmatched: u64,
    /// From request to reply at this point: the RTT at a sender's NIC, the response time at a
    /// responder's.
    pub response: Option<LatencySummary>,
}

/// Protocol and id.
type Flow = (&'static str, u16);
/// A flow and a number, unwrapped: below zero of a packet from before the first one.
type Key = (Flow, i128);

/// No stamp: the packet did not pass.
const MISSING: i64 = i64::MIN;

#[derive(Debug)]
struct Row {
    key: Key,
    first_ns: i64,
}

/// Joins sightings into one row a probe.
#[derive(Debug)]
pub struct Joiner {
    points: usize,
    rows: Vec<Row>,
    /// By row: request and reply of each point.
    stamps: Vec<i64>,
    index: HashMap<Key, usize>,
    /// The last unwrapped number of a flow at any point.
    last: HashMap<Flow, i128>,
    summaries: Vec<PointSummary>,
}

impl Joiner {
    /// Starts a joiner of `points` points.
    pub fn new(points: usize) -> Self {
        Self {
            points,
            rows: Vec::new(),
            stamps: Vec::new(),
            index: HashMap::new(),
            last: HashMap::new(),
            summaries: vec![PointSummary::default(); points],
        }
    }

    /// Joins the sightings of all points, in the order of time.
    pub fn join(points: &[impl AsRef<[Sighting]>]) -> Self {
        let mut joiner = Self::new(points.len());
        let mut order: Vec<(i64, usize, usize)> = Vec::new();
        for (point, sightings) in points.iter().enumerate() {
            order
                .extend(sightings.as_ref().iter().enumerate().map(|(i, s)| (s.stamp_ns, point, i)));
        }
        order.sort_unstable();
        for (_, point, index) in order {
            joiner.add(point, points[point].as_ref()[index]);
        }
        joiner
    }

    /// Adds one sighting; those of one point in the order of time.
    pub fn add(&mut self, point: usize, sighting: Sighting) {
        let Sighting { probe, stamp_ns } = sighting;
        if probe.warmup || self.is_stamp_warmup(&probe) {
            self.summaries[point].warmup += 1;
            return;
        }
        let flow = (probe.protocol, probe.id);
        let key = (flow, self.unwrap(flow, probe));
        let row = *self.index.entry(key).or_insert_with(|| {
            self.rows.push(Row { key, first_ns: stamp_ns });
            self.stamps.extend(std::iter::repeat_n(MISSING, 2 * self.points));
            self.rows.len() - 1
        });
        let summary = &mut self.summaries[point];
        summary.packets += 1;
        let slot = &mut self.stamps[(row * self.points + point) * 2 + usize::from(probe.reply)];
        if *slot != MISSING {
            summary.duplicates += 1;
            return;
        }
        *slot = stamp_ns;
        self.rows[row].first_ns = self.rows[row].first_ns.min(stamp_ns);
        *(if probe.reply { &mut summary.replies } else { &mut summary.requests }) += 1;
    }

    /// Whether a probe has one of STAMP's warm-up numbers, in a session that has not come that far.
    fn is_stamp_warmup(&self, probe: &PassedProbe) -> bool {
        let last = self.last.get(&(probe.protocol, probe.id));
        probe.bits == 32
            && probe.number >= stamp::WARMUP.into()
            && last.is_none_or(|&last| last < i128::from(stamp::WARMUP / 2))
    }

    /// The number whose lowest bits are the probe's, nearest to the flow's last one.
    fn unwrap(&mut self, flow: Flow, probe: PassedProbe) -> i128 {
        let (low, modulus) = (i128::from(probe.number), 1_i128 << probe.bits);
        let last = self.last.entry(flow).or_insert(low);
        if probe.bits < 64 {
            let ahead = (low - *last).rem_euclid(modulus);
            *last += if ahead < modulus / 2 { ahead } else { ahead - modulus };
            return *last;
        }
        low
    }

    /// Number of probes seen at any point.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    fn stamp(&self, row: usize, point: usize, reply: bool) -> Option<i64> {
        let stamp = self.stamps[(row * self.points + point) * 2 + usize::from(reply)];
        (stamp != MISSING).then_some(stamp)
    }

    /// The counts of each point.
    pub fn summaries(&self) -> Vec<PointSummary> {
        let mut summaries = self.summaries.clone();
        for (point, summary) in summaries.iter_mut().enumerate() {
            let mut response = LatencyRecorder::default();
            for row in 0..self.rows.len() {
                match (self.stamp(row, point, false), self.stamp(row, point, true)) {
                    (Some(request), Some(reply)) => response.record(reply - request),
                    (Some(_), None) => summary.requests_unmatched += 1,
                    (None, Some(_)) => summary.replies_unmatched += 1,
                    (None, None) => {}
                }
            }
            summary.response = response.summary();
        }
        summaries
    }

    /// Writes `proto,id,seq,<NAME>_request_ns,<NAME>_reply_ns,…`, one row a probe in the order of
    /// time; a missing stamp is empty.
    pub fn write_csv(&self, names: &[&str], out: &mut impl Write) -> std::io::Result<()> {
        write!(out, "proto,id,seq")?;
        for name in names {
            write!(out, ",{name}_request_ns,{name}_reply_ns")?;
        }
        writeln!(out)?;
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_by_key(|&row| self.rows[row].first_ns);
        for row in order {
            let ((protocol, id), number) = self.rows[row].key;
            write!(out, "{protocol},{id},{number}")?;
            for point in 0..self.points {
                for reply in [false, true] {
                    match self.stamp(row, point, reply) {
                        Some(stamp_ns) => write!(out, ",{stamp_ns}")?,
                        None => write!(out, ",")?,
                    }
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sighting(number: u64, bits: u32, reply: bool, stamp_ns: i64) -> Sighting {
        let protocol = if bits == 32 { "stamp" } else { "icmp" };
        Sighting {
            probe: PassedProbe { protocol, id: 5, number, bits, reply, warmup: false },
            stamp_ns,
        }
    }

    fn csv(joiner: &Joiner, names: &[&str]) -> String {
        let mut out = Vec::new();
        joiner.write_csv(names, &mut out).expect("memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_probe_is_one_row_with_the_stamps_of_all_points() {
        let joiner = Joiner::join(&[
            vec![sighting(1, 64, false, 10), sighting(1, 64, true, 90)],
            vec![sighting(1, 64, false, 30), sighting(1, 64, true, 70)],
        ]);
        assert_eq!(
            csv(&joiner, &["a", "b"]),
            "proto,id,seq,a_request_ns,a_reply_ns,b_request_ns,b_reply_ns\nicmp,5,1,10,90,30,70\n"
        );
        let response: Vec<_> =
            joiner.summaries().iter().map(|s| s.response.as_ref().map(|r| r.max_ns)).collect();
        assert_eq!(response, [Some(80), Some(40)]);
    }

    #[test]
    fn duplicates_and_the_unmatched_are_counted_and_the_first_stamp_stays() {
        let joiner = Joiner::join(&[vec![
            sighting(1, 64, false, 10),
            sighting(2, 64, false, 11),
            sighting(1, 64, true, 20),
            sighting(1, 64, true, 25),
            sighting(3, 64, true, 30),
        ]]);
        let summary = &joiner.summaries()[0];
        assert_eq!((summary.packets, summary.requests, summary.replies), (5, 2, 2));
        assert_eq!(summary.duplicates, 1);
        assert_eq!((summary.requests_unmatched, summary.replies_unmatched), (1, 1));
        assert_eq!(summary.response.as_ref().map(|r| (r.count, r.max_ns)), Some((1, 10)));
    }

    #[test]
    fn sixteen_bit_numbers_are_unwrapped_at_every_point() {
        let mut points = vec![Vec::new(), Vec::new()];
        for n in 65_000..200_000_u64 {
            let number = n % (1 << 16);
            points[0].push(sighting(number, 16, false, n as i64 * 100));
            // The second point loses some, and sees them later.
            if n % 7 != 0 {
                points[1].push(sighting(number, 16, false, n as i64 * 100 + 40));
            }
            points[0].push(sighting(number, 16, true, n as i64 * 100 + 150));
        }
        let joiner = Joiner::join(&points);
        assert_eq!(joiner.rows(), 135_000);
        let summaries = joiner.summaries();
        assert_eq!(summaries[0].response.as_ref().map(|r| (r.min_ns, r.max_ns)), Some((150, 150)));
        assert_eq!(summaries[0].duplicates + summaries[1].duplicates, 0);
        assert!(csv(&joiner, &["a", "b"]).contains("\nicmp,5,131072,"));
    }

    #[test]
    fn stamps_warm_up_numbers_are_no_samples_until_the_session_has_come_so_far() {
        let stamp = |number: u32, stamp_ns| sighting(number.into(), 32, false, stamp_ns);
        let mut sightings = vec![stamp(stamp::WARMUP, 1), stamp(stamp::WARMUP + 1000, 2)];
        sightings.extend([stamp(0, 3), stamp(stamp::WARMUP + 1001, 4), stamp(1, 5)]);
        // Half a turn and more later the numbers are the session's own.
        sightings
            .extend([1 << 30, 1 << 31, 3 << 30, stamp::WARMUP + 7].map(|n| stamp(n, n.into())));
        let joiner = Joiner::join(&[sightings]);
        assert_eq!(joiner.summaries()[0].warmup, 3);
        let rows: Vec<String> = csv(&joiner, &["a"])
            .lines()
            .skip(1)
            .map(|line| line.split(',').nth(2).unwrap_or_default().to_owned())
            .collect();
        assert_eq!(rows, ["0", "1", "1073741824", "2147483648", "3221225472", "4294901767"]);
    }

    #[test]
    fn every_sighting_is_counted_once_whatever_its_order() {
        pw_cases::check!().with_type::<Vec<(u8, bool, u8, i32)>>().for_each(|sightings| {
            let mut points = vec![Vec::new(), Vec::new(), Vec::new()];
            for &(point, reply, sequence, stamp) in sightings {
                let sighting = sighting(sequence.into(), 16, reply, stamp.into());
                points[usize::from(point % 3)].push(sighting);
            }
            let joiner = Joiner::join(&points);
            for (summary, sightings) in joiner.summaries().iter().zip(&points) {
                assert_eq!(summary.packets, sightings.len() as u64);
                let sorted = summary.requests + summary.replies + summary.duplicates;
                assert_eq!(sorted, summary.packets);
                let matched = summary.response.as_ref().map_or(0, |r| r.count);
                assert_eq!(matched + summary.requests_unmatched, summary.requests);
                assert_eq!(matched + summary.replies_unmatched, summary.replies);
            }
            let rows = csv(&joiner, &["a", "b", "c"]).lines().count();
            assert_eq!(rows, joiner.rows() + 1);
        });
    }
}
