//! Accounts for every frame of a trial: received, lost, duplicate, reordered, late.

use crate::frame::{FrameKind, Stamped};
use crate::histogram::LatencyRecorder;

/// Which frames a sink counts.
#[derive(Debug, Clone, Copy)]
pub struct Expectation {
    /// The kind of frames. Only the sinks in the kernel count answers to echo requests.
    pub kind: FrameKind,
    /// Sequence number of the first frame. The one before it is that of warm-up frames.
    pub first_sequence: u64,
    /// Number of frames that may come.
    pub planned: u64,
    /// Number of flows, which the frames take turns in.
    pub flows: u16,
    /// Frames that took longer are late [ns]. None: the sender has another clock, so that no
    /// frame's time is known.
    pub late_after_ns: Option<i64>,
    /// The sink in the kernel times one of `sample_mask` + 1 frames, a power of two.
    pub sample_mask: u32,
    /// Whether they are IPv6.
    pub ipv6: bool,
    /// UDP destination port, or the identifier of the echo requests.
    pub port: u16,
}

/// A sink's counts.
#[derive(Debug, Clone, Default)]
pub struct Counted {
    /// Frames that arrived in time, each counted once.
    pub received: u64,
    /// Further copies of frames that had arrived.
    pub duplicates: u64,
    /// Frames that arrived after a later one of their flow (RFC 4737, section 3.2).
    pub reordered: u64,
    /// Frames that took longer than the drain time; they count as lost.
    pub late: u64,
    /// Frames to the port that do not belong to this trial.
    pub foreign: u64,
    /// Warm-up frames, which have the number before the first.
    pub warmup: u64,
    /// From sending to the kernel's receive stamp, of the frames in `received` [ns].
    pub latency: LatencyRecorder,
}

impl Counted {
    /// Frames that have arrived, in time or late.
    pub fn arrived(&self) -> u64 {
        self.received + self.late
    }
}

/// Counts the frames of one trial as they arrive.
#[derive(Debug)]
pub struct Account {
    first_sequence: u64,
    planned: u64,
    late_after_ns: Option<i64>,
    /// One bit a frame: whether it has arrived.
    arrived: Vec<u64>,
    /// By flow: one more than the largest index that has arrived.
    next_of_flow: Vec<u64>,
    /// The result so far.
    pub counted: Counted,
}

impl Account {
    /// Starts an account of the expected frames.
    pub fn new(expected: &Expectation) -> Self {
        Self {
            first_sequence: expected.first_sequence,
            planned: expected.planned,
            late_after_ns: expected.late_after_ns,
            arrived: vec![0; expected.planned.div_ceil(64) as usize],
            next_of_flow: vec![0; usize::from(expected.flows.max(1))],
            counted: Counted::default(),
        }
    }

    /// Counts one frame that arrived at `rx_ns` [CLOCK_REALTIME].
    #[inline]
    pub fn record(&mut self, frame: Stamped, rx_ns: i64) {
        let counted = &mut self.counted;
        let index = frame.sequence.wrapping_sub(self.first_sequence);
        if index >= self.planned {
            if index == u64::MAX {
                counted.warmup += 1;
            } else {
                counted.foreign += 1;
            }
            return;
        }
        let (word, bit) = ((index / 64) as usize, 1_u64 << (index % 64));
        if self.arrived[word] & bit != 0 {
            counted.duplicates += 1;
            return;
        }
        self.arrived[word] |= bit;
        let flow = (frame.sequence % self.next_of_flow.len() as u64) as usize;
        if index < self.next_of_flow[flow] {
            counted.reordered += 1;
        } else {
            self.next_of_flow[flow] = index + 1;
        }
        let Some(late_after_ns) = self.late_after_ns else {
            counted.received += 1;
            return;
        };
        let latency_ns = rx_ns - frame.tx_ns;
        if latency_ns > late_after_ns {
            counted.late += 1;
        } else {
            counted.received += 1;
            counted.latency.record(latency_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn account(first_sequence: u64, planned: u64, flows: u16, late: Option<i64>) -> Account {
        Account::new(&Expectation {
            kind: FrameKind::Trial,
            first_sequence,
            planned,
            flows,
            late_after_ns: late,
            sample_mask: 0,
            ipv6: false,
            port: 9,
        })
    }

    fn frame(sequence: u64) -> Stamped {
        Stamped { sequence, tx_ns: 1_000, destination_port: 9 }
    }

    #[test]
    fn duplicates_reordered_late_and_foreign_frames_are_told_apart() {
        let mut account = account(100, 10, 1, Some(5_000));
        for (sequence, rx_ns) in [
            (100, 1_500),
            (102, 1_500),
            (101, 1_600),
            (102, 1_700),
            (103, 7_000),
            (110, 0),
            (99, 0),
        ] {
            account.record(frame(sequence), rx_ns);
        }
        assert_eq!(
            (account.counted.received, account.counted.duplicates, account.counted.reordered),
            (3, 1, 1)
        );
        assert_eq!(
            (account.counted.late, account.counted.foreign, account.counted.warmup),
            (1, 1, 1)
        );
        let latency = account.counted.latency.summary().expect("three samples");
        assert_eq!((latency.count, latency.min_ns, latency.max_ns), (3, 500, 600));
    }

    #[test]
    fn of_a_sender_with_another_clock_no_frame_is_late_and_none_has_a_latency() {
        let mut account = account(100, 10, 1, None);
        for (sequence, rx_ns) in [(100, i64::MAX), (101, i64::MIN), (101, 0), (103, 0), (102, 0)] {
            account.record(frame(sequence), rx_ns);
        }
        assert_eq!(
            (account.counted.received, account.counted.duplicates, account.counted.reordered),
            (4, 1, 1)
        );
        assert_eq!((account.counted.late, account.counted.latency.count()), (0, 0));
    }

    #[test]
    fn flows_may_overtake_each_other() {
        let mut account = account(0, 10, 2, Some(5_000));
        for sequence in [0, 2, 4, 1, 3, 5] {
            account.record(frame(sequence), 2_000);
        }
        assert_eq!(account.counted.reordered, 0);
    }

    #[test]
    fn each_frame_counts_once_in_any_order() {
        pw_cases::check!().with_type::<(u64, Vec<u8>)>().for_each(|(first, arrivals)| {
            let mut account = account(*first, 200, 3, Some(i64::MAX));
            for &index in arrivals {
                account.record(frame(first.wrapping_add(u64::from(index))), 2_000);
            }
            let of_trial = arrivals.iter().filter(|&&index| index < 200);
            let distinct = of_trial.clone().collect::<BTreeSet<_>>().len() as u64;
            assert_eq!(account.counted.received, distinct);
            assert_eq!(account.counted.duplicates, of_trial.count() as u64 - distinct);
            assert_eq!(
                account.counted.foreign,
                arrivals.iter().filter(|&&index| index >= 200).count() as u64
            );
        });
    }
}
