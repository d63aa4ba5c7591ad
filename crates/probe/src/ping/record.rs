//! The stamps of each packet of a run, and the counts and distributions of them. Pure.

use std::io::{self, Write};

use serde::Serialize;

use crate::clock::Schedule;
use crate::histogram::LatencyRecorder;

/// A stamp that is missing.
pub const MISSING: i64 = 0;

/// One packet. Stamps are CLOCK_REALTIME [ns], or [`MISSING`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record {
    /// Read right before the system call that sent it (alone or, at high rates, with others);
    /// missing when it was not sent.
    pub user_tx_ns: i64,
    /// When the kernel handed it to the driver.
    pub kernel_tx_ns: i64,
    /// When the driver handed the answer to the kernel.
    pub kernel_rx_ns: i64,
    /// Read right after the answer could be read.
    pub user_rx_ns: i64,
    /// Time in the reflector [ns]; -1 when unknown.
    pub residence_ns: i32,
    /// More copies of the answer.
    pub duplicates: u16,
    /// The answer came after the answer to a later packet (RFC 4737, section 3.3).
    pub reordered: bool,
}

/// All packets of a run, by sequence number.
#[derive(Debug)]
pub struct Records {
    records: Vec<Record>,
    highest: Option<u64>,
    outstanding: u64,
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Sequence number of the packet that it answers.
    pub sequence: u64,
    /// When the driver handed it to the kernel [CLOCK_REALTIME ns], or [`MISSING`].
    pub kernel_rx_ns: i64,
    /// When it became readable [CLOCK_REALTIME ns].
    pub user_rx_ns: i64,
    /// Time in the reflector [ns]; -1 when unknown.
    pub residence_ns: i32,
}

impl Records {
    /// Room for `count` packets, written once, so that no page fault disturbs the run.
    pub fn with_capacity(count: u64) -> Self {
        let mut records = Vec::with_capacity(count as usize);
        // Up to 64 MB; the kernel adds further pages as they are used.
        let touched = (count as usize).min((64 << 20) / size_of::<Record>());
        records.resize(touched, Record { user_tx_ns: 1, ..Record::default() });
        records.clear();
        Self { records, highest: None, outstanding: 0 }
    }

    /// Notes that the next packet was sent at `user_tx_ns`; [`MISSING`] when it could not be sent.
    #[inline]
    pub fn sent(&mut self, user_tx_ns: i64) {
        self.records.push(Record { user_tx_ns, residence_ns: -1, ..Record::default() });
        self.outstanding += u64::from(user_tx_ns != MISSING);
    }

    /// Notes an answer. Answers to packets that were not sent are ignored.
    #[inline]
    pub fn arrived(&mut self, arrival: Arrival) {
        let Some(record) = self.records.get_mut(arrival.sequence as usize) else { return };
        if record.user_tx_ns == MISSING {
            return;
        }
        if record.user_rx_ns != MISSING {
            record.duplicates = record.duplicates.saturating_add(1);
            return;
        }
        record.kernel_rx_ns = arrival.kernel_rx_ns;
        record.user_rx_ns = arrival.user_rx_ns;
        record.residence_ns = arrival.residence_ns;
        record.reordered = self.highest.is_some_and(|highest| arrival.sequence < highest);
        self.highest = self.highest.max(Some(arrival.sequence));
        self.outstanding -= 1;
    }

    /// Notes further copies of an answer, and whether it came after a later packet's.
    pub fn repeated(&mut self, sequence: u64, duplicates: u32, reordered: bool) {
        if let Some(record) = self.records.get_mut(sequence as usize) {
            record.duplicates = u16::try_from(duplicates).unwrap_or(u16::MAX);
            record.reordered = reordered;
        }
    }

    /// Notes a transmit stamp. One from before the packet's sending belongs to another packet (the
    /// kernel's count slipped) and is left out.
    #[inline]
    pub fn stamped(&mut self, sequence: u64, kernel_tx_ns: i64) {
        if let Some(record) = self.records.get_mut(sequence as usize)
            && record.user_tx_ns != MISSING
            && kernel_tx_ns >= record.user_tx_ns
        {
            record.kernel_tx_ns = kernel_tx_ns;
        }
    }

    /// Packets without an answer so far.
    #[inline]
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// The packets, by sequence number.
    pub fn as_slice(&self) -> &[Record] {
        &self.records
    }
}

/// Packets of a run; sent = received + lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Packets that the kernel took.
    pub sent: u64,
    /// Packets with an answer, late ones included.
    pub received: u64,
    /// Packets without.
    pub lost: u64,
    /// Answers beyond the first.
    pub duplicate: u64,
    /// Answers that came after the answer to a later packet.
    pub reordered: u64,
    /// Answers that came after the timeout.
    pub late: u64,
}

/// The intended run, against which its records are judged.
#[derive(Debug, Clone, Copy)]
pub struct Intended {
    /// When each packet was due, after `start_ns`.
    pub schedule: Schedule,
    /// CLOCK_REALTIME of the schedule's start [ns], as read then.
    pub start_ns: i64,
    /// An answer later than this is late [ns].
    pub timeout_ns: i64,
}

impl Intended {
    /// When packet `sequence` was due [CLOCK_REALTIME ns].
    fn scheduled_ns(&self, sequence: usize) -> i64 {
        self.start_ns + self.schedule.due_ns(sequence as u64)
    }

    fn is_late(&self, record: &Record) -> bool {
        record.user_rx_ns != MISSING && record.user_rx_ns - record.user_tx_ns > self.timeout_ns
    }
}

/// Counts and distributions of the records.
#[derive(Debug, Default)]
pub struct Tally {
    /// Packets.
    pub counts: Counts,
    /// RTT between user stamps.
    pub rtt_user: LatencyRecorder,
    /// RTT between kernel stamps.
    pub rtt_kernel: LatencyRecorder,
    /// User send time minus scheduled time.
    pub slip: LatencyRecorder,
    /// Time in the reflector.
    pub residence: LatencyRecorder,
    /// Sent packets without kernel TX stamp.
    pub tx_stamps_missing: u64,
    /// Answers without kernel RX stamp.
    pub rx_stamps_missing: u64,
    /// From the schedule's start to the last packet's sending [ns]; none when nothing was sent.
    pub sending_ns: Option<i64>,
}

/// Counts and distributions of a run.
pub fn tally(records: &[Record], plan: &Intended) -> Tally {
    let mut tally = Tally::default();
    for (sequence, record) in records.iter().enumerate() {
        if record.user_tx_ns == MISSING {
            continue;
        }
        tally.counts.sent += 1;
        tally.sending_ns = Some(record.user_tx_ns - plan.start_ns);
        tally.slip.record(record.user_tx_ns - plan.scheduled_ns(sequence));
        tally.tx_stamps_missing += u64::from(record.kernel_tx_ns == MISSING);
        if record.user_rx_ns == MISSING {
            tally.counts.lost += 1;
            continue;
        }
        tally.counts.received += 1;
        tally.counts.duplicate += u64::from(record.duplicates);
        tally.counts.reordered += u64::from(record.reordered);
        tally.counts.late += u64::from(plan.is_late(record));
        tally.rx_stamps_missing += u64::from(record.kernel_rx_ns == MISSING);
        if record.residence_ns >= 0 {
            tally.residence.record(i64::from(record.residence_ns));
        }
        tally.rtt_user.record(record.user_rx_ns - record.user_tx_ns);
        if record.kernel_tx_ns != MISSING && record.kernel_rx_ns != MISSING {
            tally.rtt_kernel.record(record.kernel_rx_ns - record.kernel_tx_ns);
        }
    }
    tally
}

/// Rates inside bursts of `burst` packets [packet/s]: the median over all complete bursts. First
/// between user times, from the first packet's stamp to when the call with the last one returned
/// (`ends_ns`, by burst); second between kernel transmit stamps.
pub fn burst_rates(records: &[Record], burst: u64, ends_ns: &[i64]) -> (Option<f64>, Option<f64>) {
    let bursts = || records.chunks_exact(burst as usize);
    let user = bursts().zip(ends_ns).filter_map(|(packets, &end_ns)| {
        let first_ns = packets.first()?.user_tx_ns;
        let complete = packets.iter().all(|packet| packet.user_tx_ns != MISSING);
        (complete && end_ns > first_ns).then(|| burst as f64 * 1e9 / (end_ns - first_ns) as f64)
    });
    let kernel = bursts().filter_map(|packets| {
        let (first, last) = (packets.first()?.kernel_tx_ns, packets.last()?.kernel_tx_ns);
        (first != MISSING && last > first).then(|| (burst - 1) as f64 * 1e9 / (last - first) as f64)
    });
    (median(user.collect()), median(kernel.collect()))
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Header of the per-packet file.
pub const CSV_HEADER: &str =
    "seq,scheduled_ns,user_tx_ns,kernel_tx_ns,kernel_rx_ns,user_rx_ns,flags";

/// Writes one line a packet; missing stamps are empty, flags are joined by `+`.
pub fn write_csv(records: &[Record], plan: &Intended, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{CSV_HEADER}")?;
    for (sequence, record) in records.iter().enumerate() {
        write!(out, "{sequence},{}", plan.scheduled_ns(sequence))?;
        for stamp in
            [record.user_tx_ns, record.kernel_tx_ns, record.kernel_rx_ns, record.user_rx_ns]
        {
            if stamp == MISSING {
                write!(out, ",")?;
            } else {
                write!(out, ",{stamp}")?;
            }
        }
        let sent = record.user_tx_ns != MISSING;
        let flags = [
            (!sent, "unsent"),
            (sent && record.user_rx_ns == MISSING, "lost"),
            (plan.is_late(record), "late"),
            (record.duplicates > 0, "duplicate"),
            (record.reordered, "reordered"),
        ];
        let set: Vec<&str> = flags.iter().filter(|flag| flag.0).map(|flag| flag.1).collect();
        writeln!(out, ",{}", set.join("+"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(sequence: u64, user_rx_ns: i64) -> Arrival {
        Arrival { sequence, kernel_rx_ns: user_rx_ns - 10, user_rx_ns, residence_ns: -1 }
    }

    fn plan() -> Intended {
        Intended { schedule: Schedule::steady(1e6), start_ns: 1_000, timeout_ns: 500 }
    }

    #[test]
    fn sent_is_received_plus_lost_whatever_arrives() {
        pw_cases::check!().with_type::<(u8, Vec<(u8, u16)>)>().for_each(|(count, arrivals)| {
            let mut records = Records::with_capacity(u64::from(*count));
            for sequence in 0..*count {
                let stamp = if sequence % 7 == 6 { MISSING } else { 10_000 + i64::from(sequence) };
                records.sent(stamp);
            }
            for &(sequence, delay) in arrivals {
                records.arrived(arrival(u64::from(sequence), 20_000 + i64::from(delay)));
            }
            let tally = tally(records.as_slice(), &plan());
            let counts = tally.counts;
            assert_eq!(counts.sent, counts.received + counts.lost);
            assert_eq!(counts.lost, records.outstanding());
            assert_eq!(counts.sent, u64::from(*count - *count / 7));
            assert!(counts.reordered + counts.late <= 2 * counts.received);
            assert_eq!(tally.rtt_user.count(), counts.received);
            let mut csv = Vec::new();
            write_csv(records.as_slice(), &plan(), &mut csv).expect("memory");
            let text = String::from_utf8(csv).expect("ASCII");
            assert_eq!(text.lines().count(), usize::from(*count) + 1);
            assert!(text.lines().all(|line| line.matches(',').count() == 6));
        });
    }

    #[test]
    fn late_duplicate_and_reordered_answers_are_told_apart() {
        let mut records = Records::with_capacity(4);
        for sequence in 0..4 {
            records.sent(1_000 + sequence * 1_000);
        }
        records.arrived(arrival(1, 2_100));
        records.arrived(arrival(0, 2_200)); // after 1: reordered, and 1200 ns: late
        records.arrived(arrival(1, 2_300)); // again
        records.arrived(arrival(3, 4_200));
        records.arrived(arrival(9, 4_300)); // never sent
        let tally = tally(records.as_slice(), &plan());
        assert_eq!(
            tally.counts,
            Counts { sent: 4, received: 3, lost: 1, duplicate: 1, reordered: 1, late: 1 }
        );
        let mut csv = Vec::new();
        write_csv(records.as_slice(), &plan(), &mut csv).expect("memory");
        let text = String::from_utf8(csv).expect("ASCII");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], CSV_HEADER);
        assert_eq!(lines[1], "0,1000,1000,,2190,2200,late+reordered");
        assert_eq!(lines[2], "1,2000,2000,,2090,2100,duplicate");
        assert_eq!(lines[3], "2,3000,3000,,,,lost");
    }

    #[test]
    fn a_transmit_stamp_before_the_sending_belongs_to_another_packet() {
        let mut records = Records::with_capacity(1);
        records.sent(1_000);
        records.stamped(0, 900);
        assert_eq!(records.as_slice()[0].kernel_tx_ns, MISSING);
        records.stamped(0, 1_200);
        records.stamped(7, 1_200);
        assert_eq!(records.as_slice()[0].kernel_tx_ns, 1_200);
    }

    #[test]
    fn the_rate_inside_a_burst_is_that_of_its_packets_alone() {
        let mut records = Records::with_capacity(6);
        for burst in 0..2 {
            for packet in 0..3 {
                records.sent(1 + burst * 1_000_000 + packet * 1_000);
            }
        }
        let ends_ns = [3_001, 1_003_001];
        let rates = burst_rates(records.as_slice(), 3, &ends_ns);
        assert_eq!(rates, (Some(1e6), None), "3 packets in 3 us");
        records.stamped(0, 500);
        records.stamped(2, 4_500);
        let (_, kernel) = burst_rates(records.as_slice(), 3, &ends_ns);
        assert_eq!(kernel, Some(5e5), "2 gaps in 4 us");
    }
}
