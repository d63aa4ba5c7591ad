//! A recording of the calls of an allocator, as lines of JSON (`replay` replays it).
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

/// One reading: guest, source, origin, and packets and bytes received and sent (rx_packets, tx_packets,
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
    /// The guest's counters begin anew: it is new, or was restarted.
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
    /// The decision on the snapshot of this moment [ms].
    Decided(u64, Plan),
    /// This plan is being performed since this moment [ms].
    Committed(u64, Plan),
    /// How long a switch took [s]; null, in the place of what it lost, which nobody counts.
    Measured(Direction, f64, ()),
    /// The VF was given to the guest.
    Given(GuestId, VfId),
    /// The VF could not be given to the guest at this moment [ms].
    Undone(GuestId, VfId, u64),
    /// This guest, or all, may be tried again.
    Retried(Option<GuestId>),
}

/// Entries that have not been fetched yet.
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
        let guests = now.guests.iter().map(|guest| (guest.id.clone(), bare(guest)));
        let (guests, gone) = differences(&mut self.guests, guests.collect());
        let vfs = now.vfs.iter().map(|vf| (vf.id.clone(), vf.clone()));
        let (vfs, gone_vfs) = differences(&mut self.vfs, vfs.collect());
        if guests.len() + gone.len() + vfs.len() + gone_vfs.len() > 0 {
            self.entries.push(Entry::Changed { guests, gone, vfs, gone_vfs });
        }
    }

    /// Returns the entries since the last call.
    pub fn drain(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.entries)
    }
}

/// Values that changed or are new, and keys that are gone. Replaces `last` by `current`.
fn differences<I: Ord + Clone, V: PartialEq + Clone>(
    last: &mut BTreeMap<I, V>,
    current: BTreeMap<I, V>,
) -> (Vec<V>, Vec<I>) {
    let changed = current.iter().filter(|(id, value)| last.get(id) != Some(value));
    let changed = changed.map(|(_, value)| value.clone()).collect();
    let gone = last.keys().filter(|id| !current.contains_key(id)).cloned().collect();
    *last = current;
    (changed, gone)
}
