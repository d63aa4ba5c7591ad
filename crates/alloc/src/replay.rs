//! Replays a recording: the same counters go through the same signals and decisions, and each plan
//! must be the same to the byte.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::Serialize;

use crate::allocator::Allocator;
use crate::model::{GuestId, GuestView, Snapshot, VfId, VfView};
use crate::recording::{Entry, FORMAT};
use crate::signal::{Counters, Reading, Sample, Tracker};
use pw_error::{Error, Result};

/// The result of a replay.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Replayed {
    /// Decisions that were made anew.
    pub decisions: usize,
    /// Decisions with moves.
    pub plans: usize,
    /// Readings that went in.
    pub readings: usize,
    /// The first decision that differs: its line, the recorded one, and the one made anew.
    pub difference: Option<(usize, String, String)>,
}

/// A replay under way.
struct Replay {
    allocator: Allocator,
    trackers: BTreeMap<GuestId, Tracker>,
    now: Snapshot,
    guests: BTreeMap<GuestId, GuestView>,
    vfs: BTreeMap<VfId, VfView>,
    result: Replayed,
}

/// Replays a recording; `source` is its name in errors. Ends at the first plan that differs.
///
/// # Errors
/// It cannot be read, or is not a recording of this format.
pub fn replay(source: &str, recording: impl BufRead) -> Result<Replayed> {
    let remedy = "give a file that `recording` in planewised's configuration named";
    let mut replay: Option<Replay> = None;
    for (number, line) in (1..).zip(recording.lines()) {
        let wrong = |what: &str| Error::bad_input(format!("{source}:{number}: {what}"), remedy);
        let line = line.map_err(|error| wrong("it cannot be read").caused_by(error))?;
        let entry: Entry = serde_json::from_str(&line)
            .map_err(|error| wrong("this is not a line of a recording").caused_by(error))?;
        match (&mut replay, entry) {
            (None, Entry::Began { format, settings }) if format == FORMAT => {
                replay = Some(Replay {
                    allocator: Allocator::new(*settings)?,
                    trackers: BTreeMap::new(),
                    now: Snapshot::default(),
                    guests: BTreeMap::new(),
                    vfs: BTreeMap::new(),
                    result: Replayed::default(),
                });
            }
            (None, Entry::Began { format, .. }) => {
                let what = format!("it is of format {format}, and {FORMAT} is what can be read");
                return Err(wrong(&what));
            }
            (None, _) => return Err(wrong("it does not begin with the settings")),
            (Some(_), Entry::Began { .. }) => return Err(wrong("another recording begins here")),
            (Some(replay), entry) => {
                if let Some(plan) = replay.apply(entry)? {
                    let text = serde_json::to_string(&plan)
                        .map_err(|error| wrong("a plan cannot be written").caused_by(error))?;
                    if text != line {
                        replay.result.difference = Some((number, line, text));
                        break;
                    }
                }
            }
        }
    }
    replay
        .map(|replay| replay.result)
        .ok_or_else(|| Error::bad_input(format!("{source}: the recording is empty"), remedy))
}

impl Replay {
    /// Repeats a recorded call; returns the decision made anew, if it was one.
    fn apply(&mut self, entry: Entry) -> Result<Option<Entry>> {
        match entry {
            Entry::Began { .. } => {}
            Entry::Configured(settings) => self.allocator.configure(*settings)?,
            Entry::Anew(id) => drop(self.trackers.insert(id, Tracker::default())),
            Entry::Read(at_ms, reads) => {
                let signal = self.allocator.settings().signal;
                self.result.readings += reads.len();
                for (id, source, origin, counted) in reads {
                    let reading = counted.map_or(Reading::Unsupported, |counts| {
                        let [rx_packets, tx_packets, rx_bytes, tx_bytes] = counts;
                        Reading::Counted(Counters { rx_packets, tx_packets, rx_bytes, tx_bytes })
                    });
                    let sample = Sample { at_ms, source, origin, reading };
                    self.trackers.entry(id).or_default().feed(&sample, &signal);
                }
            }
            Entry::Changed { guests, gone, vfs, gone_vfs } => {
                self.guests.extend(guests.into_iter().map(|guest| (guest.id.clone(), guest)));
                self.vfs.extend(vfs.into_iter().map(|vf| (vf.id.clone(), vf)));
                self.guests.retain(|id, _| !gone.contains(id));
                self.vfs.retain(|id, _| !gone_vfs.contains(id));
            }
            Entry::Observed(now_ms) => {
                self.update_snapshot(now_ms);
                self.allocator.observe(&self.now);
            }
            Entry::Decided(now_ms, _) => {
                self.update_snapshot(now_ms);
                let plan = self.allocator.decide(&self.now).plan;
                self.result.decisions += 1;
                self.result.plans += usize::from(!plan.is_empty());
                return Ok(Some(Entry::Decided(now_ms, plan)));
            }
            Entry::Committed(now_ms, plan) => self.allocator.commit(&plan, now_ms),
            Entry::Measured(direction, seconds, ()) => self.allocator.measured(direction, seconds),
            Entry::Given(guest, vf) => self.allocator.given(&guest, &vf),
            Entry::Undone(guest, vf, now_ms) => self.allocator.undone(&guest, &vf, now_ms),
            Entry::Retried(guest) => self.allocator.retry(guest.as_ref()),
        }
        Ok(None)
    }

    /// Sets the snapshot of this moment, with the rates that follow from the counters.
    fn update_snapshot(&mut self, now_ms: u64) {
        let signal = self.allocator.settings().signal;
        let rate = |id: &GuestId| self.trackers.get(id)?.rate(now_ms, &signal);
        let guests = self.guests.values();
        self.now = Snapshot {
            now_ms,
            guests: guests.map(|g| GuestView { rate: rate(&g.id), ..g.clone() }).collect(),
            vfs: self.vfs.values().cloned().collect(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_recording_is_refused_with_its_line() {
        let began = |format: u32| {
            let entry = Entry::Began { format, settings: Box::default() };
            serde_json::to_string(&entry).expect("JSON")
        };
        let (sound, newer) = (began(FORMAT), began(FORMAT + 1));
        for (text, what) in [
            ("", "r: the recording is empty"),
            ("{\"observed\":5}", "r:1: it does not begin with the settings"),
            (newer.as_str(), "r:1: it is of format 2, and 1 is what can be read"),
            (&format!("{sound}\n{sound}"), "r:2: another recording begins here"),
            (&format!("{sound}\n{{\"observed\":"), "r:2: this is not a line of a recording"),
        ] {
            let error = replay("r", text.as_bytes()).expect_err(text);
            assert!(error.what.starts_with(what) && !error.remedy.is_empty(), "{error}");
        }
        assert_eq!(replay("r", sound.as_bytes()).expect("sound"), Replayed::default());
    }

    #[test]
    fn a_plan_that_was_another_one_is_told() {
        let began =
            serde_json::to_string(&Entry::Began { format: FORMAT, settings: Box::default() });
        let text = format!(
            "{}\n{}",
            began.expect("JSON"),
            "{\"decided\":[5,[{\"direction\":\"give\",\"guest\":\"a\",\"vf\":\"pf0/1\",\"reason\":{\"why\":\"turn\"}}]]}"
        );
        let replayed = replay("r", text.as_bytes()).expect("sound");
        let (line, recorded, anew) = replayed.difference.expect("nobody is there");
        assert!(line == 2 && recorded.contains("pf0/1") && anew == "{\"decided\":[5,[]]}");
    }
}
