//! A recording of what an allocator was told and asked, as lines of JSON (`replay` plays it again). Knows no
//! files.
//!
//! A snapshot is recorded as what differs from the one before, without rates: those follow from the
//! counters, which are whole numbers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{GuestId, GuestView, Origin, Snapshot, VfId, VfView};
use crate::plan::{Direction, Plan};
use crate::settings::Settings;
use crate::signal::{Reading, Sample};

/// The format that is written and read.
pub const FORMAT: u32 = 1;

/// One reading: guest, source, who counted, and packets and bytes received and sent (rx_packets, tx_packets,
/// rx_bytes, tx_bytes); none when it is not counted.
pub type Read = (GuestId, u64, Origin, Option<[u64; 4]>);

/// A line of a recording: one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Entry {
    /// An allocator without a past; the first line.
    Began {
        /// The recording's format.
        format: u32,
        /// The settings in force.
        settings: Box<Settings>,
    },
    /// Other settings from now on.
    Configured(Box<Settings>),
    /// The guest's counters begin anew: it came, or was started anew.
    Anew(GuestId),
    /// Counters that were read at one moment [ms].
    Read(u64, Vec<Read>),
    /// What differs from the snapshot before.
    Changed {
        /// Guests that are new or another way, without their rates.
        guests: Vec<GuestView>,
        /// Guests that are gone.
        gone: Vec<GuestId>,
        /// VFs that are new or another way.
        vfs: Vec<VfView>,
        /// VFs that are gone.
        gone_vfs: Vec<VfId>,
    },
    /// The snapshot of this moment was observed [ms].
    Observed(u64),
    /// On the snapshot of this moment [ms] it was decided so.
    Decided(u64, Plan),
    /// This plan is being performed since this moment [ms].
    Committed(u64, Plan),
    /// What a switch took [s] and lost.
    Measured(Direction, f64, Option<f64>),
    /// The VF was given to the guest.
    Given(GuestId, VfId),
    /// The VF could not be given to the guest at this moment [ms].
    Undone(GuestId, VfId, u64),
    /// This guest, or all, may be tried again.
    Retried(Option<GuestId>),
}

/// What has been recorded and not been fetched yet.
#[derive(Debug, Clone, Default)]
pub struct Recorder {
    guests: BTreeMap<GuestId, GuestView>,
    vfs: BTreeMap<VfId, VfView>,
    entries: Vec<Entry>,
}

impl Recorder {
    /// A recording of an allocator that has no past.
    pub fn begun(settings: &Settings) -> Self {
        let entry = Entry::Began { format: FORMAT, settings: Box::new(settings.clone()) };
        Self { entries: vec![entry], ..Self::default() }
    }

    /// Records a call.
    pub fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Records a reading.
    pub fn read(&mut self, id: &GuestId, sample: &Sample) {
        let counted = match sample.reading {
            Reading::Unsupported => None,
            Reading::Counted(c) => Some([c.rx_packets, c.tx_packets, c.rx_bytes, c.tx_bytes]),
        };
        let read = (id.clone(), sample.source, sample.origin, counted);
        match self.entries.last_mut() {
            Some(Entry::Read(at_ms, reads)) if *at_ms == sample.at_ms => reads.push(read),
            _ => self.entries.push(Entry::Read(sample.at_ms, vec![read])),
        }
    }

    /// Records what this snapshot changes.
    pub fn snapshot(&mut self, now: &Snapshot) {
        let bare = |guest: &GuestView| GuestView { rate: None, ..guest.clone() };
        let seen = now.guests.iter().map(|guest| (guest.id.clone(), bare(guest)));
        let (guests, gone) = differences(&mut self.guests, seen.collect());
        let seen = now.vfs.iter().map(|vf| (vf.id.clone(), vf.clone()));
        let (vfs, gone_vfs) = differences(&mut self.vfs, seen.collect());
        if guests.len() + gone.len() + vfs.len() + gone_vfs.len() > 0 {
            self.entries.push(Entry::Changed { guests, gone, vfs, gone_vfs });
        }
    }

    /// What has been recorded since this was asked for last.
    pub fn drain(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.entries)
    }
}

/// What is other than before or new, and what is gone; afterwards `before` is `now`.
fn differences<I: Ord + Clone, V: PartialEq + Clone>(
    before: &mut BTreeMap<I, V>,
    now: BTreeMap<I, V>,
) -> (Vec<V>, Vec<I>) {
    let other = now.iter().filter(|(id, value)| before.get(id) != Some(value));
    let other = other.map(|(_, value)| value.clone()).collect();
    let gone = before.keys().filter(|id| !now.contains_key(id)).cloned().collect();
    *before = now;
    (other, gone)
}
