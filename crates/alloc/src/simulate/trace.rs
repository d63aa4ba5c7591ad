//! Recorded traffic as CSV, read interval by interval, so that a trace may be larger than memory.
//!
//! A header names the columns `time_s`, `guest`, and one of `pps` (packets a second, both directions) and
//! `bytes_per_s`. Rows go by time; those of one time are an interval, which lasts until the next one. A
//! guest without a row is not there.

use std::collections::BTreeMap;
use std::io::Read;

use csv::StringRecord;

use super::{Feed, Interval};
use crate::model::GuestId;
use pw_error::{Error, Result};

/// Guests of a trace at most.
const MOST_GUESTS: usize = 100_000;
/// Intervals may be so much longer or shorter than the first one [ms]: clocks jitter.
const JITTER_MS: u64 = 1;

/// A mix of frame sizes, which turns bytes into packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FrameMix {
    mean_bytes: f64,
}

impl std::str::FromStr for FrameMix {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let part = |part: &str| {
            let (size, share) = part.split_once(':').unwrap_or((part, "1"));
            let (size, share): (f64, f64) = (size.parse().ok()?, share.parse().ok()?);
            ((1.0..=65_536.0).contains(&size) && (1e-9..=1e9).contains(&share))
                .then_some((size * share, share))
        };
        let parts: Option<Vec<(f64, f64)>> = text.split(',').map(part).collect();
        let parts =
            parts.ok_or("write sizes in bytes, each with its share, as 64:7,594:4,1518:1")?;
        let (bytes, shares) = parts.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
        Ok(Self { mean_bytes: bytes / shares })
    }
}

/// One row.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    line: u64,
    at_ms: u64,
    guest: String,
    pps: f64,
}

/// A trace that is being read.
#[derive(Debug)]
pub struct Trace<R> {
    /// What it is called in errors.
    source: String,
    reader: csv::Reader<R>,
    /// The places of time, guest and rate in a row.
    columns: [usize; 3],
    /// Bytes of a packet, where the rate is in bytes.
    packet_bytes: f64,
    record: StringRecord,
    begins_ms: Option<u64>,
    step_ms: Option<u64>,
    /// The first row of the next interval.
    ahead: Option<Row>,
    numbers: BTreeMap<String, usize>,
    names: Vec<GuestId>,
}

impl<R: Read> Trace<R> {
    /// A trace whose header has been read. `mix` says what a packet has where rates are in bytes.
    ///
    /// # Errors
    /// It has no such header, or no row.
    pub fn new(source: &str, input: R, mix: Option<FrameMix>) -> Result<Self> {
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(input);
        let header = reader.headers().map_err(|error| unreadable(source, error))?.clone();
        let place = |name: &str| header.iter().position(|column| column == name);
        let unknown: Vec<&str> = header
            .iter()
            .filter(|name| !["time_s", "guest", "pps", "bytes_per_s"].contains(name))
            .collect();
        let remedy = "write the columns time_s, guest, and pps or bytes_per_s";
        if !unknown.is_empty() {
            let names = unknown.join(", ");
            return Err(Error::bad_input(
                format!("{source}: no unit is known for column {names}"),
                remedy,
            ));
        }
        let (rate, packet_bytes) = match (place("pps"), place("bytes_per_s"), mix) {
            (Some(rate), None, _) => (rate, 1.0),
            (None, Some(rate), Some(mix)) => (rate, mix.mean_bytes),
            (None, Some(_), None) => {
                return Err(Error::bad_input(
                    format!("{source}: its rates are bytes, and VFs are given by packets"),
                    "say how long frames are, as --mix 64:7,594:4,1518:1",
                ));
            }
            _ => {
                return Err(Error::bad_input(
                    format!("{source}: it needs one column of rates"),
                    remedy,
                ));
            }
        };
        let (Some(time), Some(guest)) = (place("time_s"), place("guest")) else {
            return Err(Error::bad_input(format!("{source}: time_s or guest is missing"), remedy));
        };
        let mut trace = Self {
            source: source.into(),
            reader,
            columns: [time, guest, rate],
            packet_bytes,
            record: StringRecord::new(),
            begins_ms: None,
            step_ms: None,
            ahead: None,
            numbers: BTreeMap::new(),
            names: Vec::new(),
        };
        trace.ahead = trace.row()?;
        match &trace.ahead {
            Some(_) => Ok(trace),
            None => Err(Error::bad_input(format!("{source}: it has no row"), remedy)),
        }
    }

    fn wrong(&self, line: u64, what: &str, remedy: &str) -> Error {
        Error::bad_input(format!("{}:{line}: {what}", self.source), remedy)
    }

    fn row(&mut self) -> Result<Option<Row>> {
        let more = self.reader.read_record(&mut self.record);
        if !more.map_err(|error| unreadable(&self.source, error))? {
            return Ok(None);
        }
        let line = self.record.position().map_or(0, csv::Position::line);
        let [time, guest, rate] = self.columns.map(|at| self.record.get(at).unwrap_or_default());
        let number = |text: &str, most: f64, name: &str| {
            text.parse().ok().filter(|value| (0.0..=most).contains(value)).ok_or_else(|| {
                let what = format!("{text:?} is not a {name}");
                self.wrong(line, &what, &format!("give a number from 0 to {most:e}"))
            })
        };
        let seconds: f64 = number(time, 1e12, "time in seconds")?;
        let pps: f64 = number(rate, 1e13, "rate")?;
        if guest.is_empty() {
            return Err(self.wrong(line, "the guest has no name", "name it"));
        }
        Ok(Some(Row {
            line,
            at_ms: (seconds * 1e3).round() as u64,
            guest: guest.to_owned(),
            pps: pps / self.packet_bytes,
        }))
    }

    /// The guest's number.
    fn number(&mut self, row: &Row) -> Result<usize> {
        if let Some(&number) = self.numbers.get(&row.guest) {
            return Ok(number);
        }
        if self.names.len() == MOST_GUESTS {
            let what = format!("it has more than {MOST_GUESTS} guests");
            return Err(self.wrong(row.line, &what, "split it by host"));
        }
        self.names.push(GuestId::from(row.guest.as_str()));
        self.numbers.insert(row.guest.clone(), self.names.len() - 1);
        Ok(self.names.len() - 1)
    }

    /// Holds the time of the next interval's first row against that of the last one.
    fn step(&mut self, from_ms: u64, next: &Row) -> Result<u64> {
        let at_s = |ms: u64| ms as f64 / 1e3;
        let (from, to) = (at_s(from_ms), at_s(next.at_ms));
        if next.at_ms < from_ms {
            let what = format!("time runs back from {from} to {to} s");
            return Err(self.wrong(next.line, &what, "sort the rows by time_s"));
        }
        let elapsed_ms = next.at_ms - from_ms;
        let step_ms = *self.step_ms.get_or_insert(elapsed_ms);
        if elapsed_ms.abs_diff(step_ms) > JITTER_MS {
            let step = at_s(step_ms);
            let what = format!("time goes from {from} to {to} s in a trace of steps of {step} s");
            return Err(self.wrong(next.line, &what, "fill the gap, or cut the trace there"));
        }
        Ok(step_ms)
    }
}

fn unreadable(source: &str, error: csv::Error) -> Error {
    let remedy = "give CSV in UTF-8 with a header, each row with as many fields as that";
    let line = error.position().map_or(1, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => Error::bad_input(
            format!("{source}:{line}: it has {len} fields, and the header {expected_len}"),
            remedy,
        ),
        csv::ErrorKind::Utf8 { .. } => {
            Error::bad_input(format!("{source}:{line}: it is no text in UTF-8"), remedy)
        }
        _ => Error::bad_input(source, remedy).caused_by(error),
    }
}

impl<R: Read> Feed for Trace<R> {
    fn next(&mut self, interval: &mut Interval) -> Result<bool> {
        let Some(first) = self.ahead.take() else { return Ok(false) };
        interval.pps.clear();
        interval.pps.resize(self.names.len(), f64::NAN);
        let at_ms = first.at_ms;
        let mut row = Some(first);
        while let Some(this) = row.take_if(|row| row.at_ms == at_ms) {
            let number = self.number(&this)?;
            if number >= interval.pps.len() {
                interval.pps.resize(number + 1, f64::NAN);
            }
            if !interval.pps[number].is_nan() {
                let what =
                    format!("guest {:?} is there twice at {} s", this.guest, at_ms as f64 / 1e3);
                return Err(self.wrong(this.line, &what, "give it one row for each time"));
            }
            interval.pps[number] = this.pps;
            row = self.row()?;
        }
        let step_ms = match (&row, self.step_ms) {
            (Some(next), _) => self.step(at_ms, next)?,
            (None, Some(step_ms)) => step_ms,
            (None, None) => {
                let what = "it has one time only, so that its length is unknown";
                return Err(self.wrong(1, what, "give it two times or more"));
            }
        };
        self.ahead = row;
        let begins_ms = *self.begins_ms.get_or_insert(at_ms);
        (interval.from_ms, interval.seconds) = (at_ms - begins_ms, step_ms as f64 / 1e3);
        Ok(true)
    }

    fn name(&self, guest: usize) -> GuestId {
        self.names.get(guest).cloned().unwrap_or_else(|| GuestId::from(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(text: &str) -> Result<Vec<Interval>> {
        let mix = "100:1,300:3".parse().ok();
        let mut trace = Trace::new("t.csv", text.as_bytes(), mix)?;
        let (mut all, mut interval) = (Vec::new(), Interval::default());
        while trace.next(&mut interval)? {
            all.push(interval.clone());
        }
        Ok(all)
    }

    #[test]
    fn guests_come_and_go_and_keep_their_numbers() {
        let all = intervals("guest,time_s,pps\na,10,1\nb,10,2\nb,12,3\na,14,4\nc,14,5\n");
        let all = all.expect("a sound trace");
        let shown: Vec<String> = all
            .iter()
            .map(|interval| format!("{} {} {:?}", interval.from_ms, interval.seconds, interval.pps))
            .collect();
        assert_eq!(shown, ["0 2 [1.0, 2.0]", "2000 2 [NaN, 3.0]", "4000 2 [4.0, NaN, 5.0]"]);
    }

    #[test]
    fn bytes_become_packets_by_the_mix() {
        let all = intervals("time_s,guest,bytes_per_s\n0,a,500\n1,a,0\n").expect("a sound trace");
        assert_eq!(all[0].pps, [2.0]);
        for mix in ["", "0", "64:-1", "64:x", "70000", "64:1,"] {
            assert!(mix.parse::<FrameMix>().is_err(), "{mix}");
        }
    }

    #[test]
    fn a_bad_trace_is_refused_with_its_line() {
        let head = "time_s,guest,pps\n";
        for (rows, what) in [
            ("", "t.csv: it has no row"),
            ("0,a,1\n", "t.csv:1: it has one time only"),
            (
                "0,a,1\n1,a,1\n3,a,1\n",
                "t.csv:4: time goes from 1 to 3 s in a trace of steps of 1 s",
            ),
            ("5,a,1\n4,a,1\n", "t.csv:3: time runs back from 5 to 4 s"),
            ("0,a,1\n0,a,2\n", "t.csv:3: guest \"a\" is there twice at 0 s"),
            ("0,a,-1\n", "t.csv:2: \"-1\" is not a rate"),
            ("0,a,NaN\n", "t.csv:2: \"NaN\" is not a rate"),
            ("noon,a,1\n", "t.csv:2: \"noon\" is not a time in seconds"),
            ("0,,1\n", "t.csv:2: the guest has no name"),
            ("0,a\n", "t.csv:2: it has 2 fields, and the header 3"),
        ] {
            let error = intervals(&format!("{head}{rows}")).expect_err(rows);
            assert!(error.what.starts_with(what) && !error.remedy.is_empty(), "{error}");
        }
        let picture = Trace::new("t.csv", &b"\x89PNG\r\n"[..], None).expect_err("no text");
        assert_eq!(picture.what, "t.csv:1: it is no text in UTF-8");
        for (header, what) in [
            ("time_s,guest,mbps", "no unit is known for column mbps"),
            ("time_s,guest", "one column of rates"),
            ("time_s,guest,pps,bytes_per_s", "one column of rates"),
            ("guest,pps", "time_s or guest is missing"),
        ] {
            let error = intervals(&format!("{header}\n")).expect_err(header);
            assert!(error.what.contains(what), "{error}");
        }
    }

    #[test]
    fn any_text_is_read_or_refused() {
        pw_cases::check!().with_type::<String>().for_each(|text| {
            let _ = intervals(&format!("time_s,guest,pps\n{text}"));
        });
    }
}
