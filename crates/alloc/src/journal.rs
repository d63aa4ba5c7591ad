//! The journal, a write-ahead log: each step is written before it is done. Lines have a checksum,
//! by which a line torn by a crash is recognised.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::{GuestId, VfId};
use crate::plan::{Direction, Move};
use crate::step::Step;

/// Version of the journal's lines. Lines of earlier versions are read; a journal of a later one is
/// refused ([`Read::newer`]). 2 added [`Entry::Recover`] and [`Entry::Settled`].
pub const FORMAT: u32 = 2;

/// How a move ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "how")]
pub enum Ending {
    /// As planned.
    Completed,
    /// It could not be done and was turned round.
    Undone {
        /// Why.
        why: String,
    },
    /// The guest did not answer: it keeps what it has.
    Stuck {
        /// What it did not do.
        why: String,
    },
    /// The guest no longer has the VF, and the VF is not fit for the pool.
    Quarantined {
        /// What is wrong with it.
        why: String,
    },
}

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "entry")]
pub enum Entry {
    /// The whole state, so that no earlier line is needed.
    Checkpoint {
        /// Version of the lines.
        format: u32,
        /// Holders of VFs.
        holders: BTreeMap<VfId, GuestId>,
        /// Guests that did not answer, and what they did not do.
        marked: BTreeMap<GuestId, String>,
        /// VFs that are not fit for the pool, and what is wrong with them.
        quarantined: BTreeMap<VfId, String>,
    },
    /// A move begins.
    Begin {
        /// Its number.
        operation: u64,
        /// The move.
        change: Move,
    },
    /// A step is about to be done.
    Intent {
        /// Of which move.
        operation: u64,
        /// The step.
        step: Step,
    },
    /// The last step is done: a line of earlier versions. The host shows what is done.
    Done {
        /// Of which move.
        operation: u64,
    },
    /// A move ended.
    End {
        /// Which.
        operation: u64,
        /// How.
        ending: Ending,
    },
    /// The operator lifted a guest's mark, or the guest was restarted.
    Unmark {
        /// Which guest.
        guest: GuestId,
    },
    /// VFs on which journal and host disagree are recovered; the steps follow as intents.
    Recover {
        /// The recovery's number, from the same series as those of moves.
        operation: u64,
        /// Which VFs.
        vfs: BTreeSet<VfId>,
    },
    /// The result of a recovery. Only entries of its VFs and guests change; moves of these VFs are closed.
    Settled {
        /// Which recovery.
        operation: u64,
        /// The VFs that it is about.
        vfs: BTreeSet<VfId>,
        /// The holders of these VFs.
        holders: BTreeMap<VfId, GuestId>,
        /// Those of them that are not fit for the pool, and what is wrong with them.
        quarantined: BTreeMap<VfId, String>,
        /// Guests that are marked now, and those that are not any more (`null`).
        marks: BTreeMap<GuestId, Option<String>>,
    },
}

/// One line of text for an entry, its end included.
pub fn line(entry: &Entry) -> String {
    // A map with keys that are no strings is all that could fail; ours are strings.
    let body = serde_json::to_string(entry).unwrap_or_default();
    format!("{} {body}\n", checksum(&body))
}

fn checksum(body: &str) -> String {
    format!("{:08x}", crc32fast::hash(body.as_bytes()))
}

/// A journal as read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Read {
    /// The entries, in order.
    pub entries: Vec<Entry>,
    /// The last line was cut short by a crash; what it announced was not begun.
    pub torn: bool,
    /// Numbers of other lines that cannot be read, from 1.
    pub damaged: Vec<usize>,
    /// Number of the first line that a newer version wrote: its checksum is right.
    pub newer: Option<usize>,
}

/// Reads a journal. Never fails: lines that cannot be read are reported, and recovery surveys the host.
pub fn read(text: &[u8]) -> Read {
    let mut read = Read::default();
    let mut unread = text;
    let mut number = 0;
    while !unread.is_empty() {
        number += 1;
        let Some(end) = unread.iter().position(|byte| *byte == b'\n') else {
            read.torn = true;
            break;
        };
        let line = &unread[..end];
        unread = &unread[end + 1..];
        match entry(line) {
            Line::Entry(Entry::Checkpoint { format, .. }) if format > FORMAT => {
                read.newer.get_or_insert(number);
            }
            Line::Entry(entry) => read.entries.push(entry),
            Line::Newer => {
                read.newer.get_or_insert(number);
            }
            Line::Damaged if unread.is_empty() => read.torn = true,
            Line::Damaged => read.damaged.push(number),
        }
    }
    read
}

enum Line {
    Entry(Entry),
    /// Its checksum is right, its content is not of this version.
    Newer,
    Damaged,
}

fn entry(line: &[u8]) -> Line {
    let parts = std::str::from_utf8(line).ok().and_then(|line| line.split_once(' '));
    match parts {
        Some((sum, body)) if sum == checksum(body) => {
            serde_json::from_str(body).map_or(Line::Newer, Line::Entry)
        }
        _ => Line::Damaged,
    }
}

/// The state that a journal's entries add up to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ledger {
    /// Holders of VFs, by moves that ended.
    pub holders: BTreeMap<VfId, GuestId>,
    /// Moves that have begun and not ended, by number.
    pub open: BTreeMap<u64, Move>,
    /// Guests that did not answer, and what they did not do.
    pub marked: BTreeMap<GuestId, String>,
    /// VFs that are not fit for the pool, and what is wrong with them.
    pub quarantined: BTreeMap<VfId, String>,
    /// The next move's number.
    pub next_operation: u64,
}

impl Ledger {
    /// Adds up entries.
    pub fn replay<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        let mut ledger = Self::default();
        for entry in entries {
            ledger.apply(entry);
        }
        ledger
    }

    /// Applies one more entry. Entries that make no sense (of a move that never began) change nothing.
    pub fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Checkpoint { holders, marked, quarantined, .. } => {
                self.holders.clone_from(holders);
                self.marked.clone_from(marked);
                self.quarantined.clone_from(quarantined);
                self.open.clear();
            }
            Entry::Begin { operation, change } => {
                self.next_operation = self.next_operation.max(operation.saturating_add(1));
                self.open.insert(*operation, change.clone());
            }
            Entry::Intent { .. } | Entry::Done { .. } => {}
            Entry::End { operation, ending } => {
                let Some(change) = self.open.remove(operation) else { return };
                let holds = match (change.direction, ending) {
                    (Direction::Give, Ending::Completed)
                    | (Direction::Take, Ending::Undone { .. } | Ending::Stuck { .. }) => true,
                    (Direction::Take, Ending::Completed)
                    | (Direction::Give, Ending::Undone { .. })
                    | (_, Ending::Quarantined { .. }) => false,
                    // A VF on its way into a guest that stopped answering is that guest's.
                    (Direction::Give, Ending::Stuck { .. }) => true,
                };
                if let Ending::Stuck { why } = ending {
                    self.marked.insert(change.guest.clone(), why.clone());
                }
                if let Ending::Quarantined { why } = ending {
                    self.quarantined.insert(change.vf.clone(), why.clone());
                }
                if holds {
                    self.holders.insert(change.vf, change.guest);
                } else {
                    self.holders.remove(&change.vf);
                }
            }
            Entry::Unmark { guest } => drop(self.marked.remove(guest)),
            Entry::Recover { operation, .. } => {
                self.next_operation = self.next_operation.max(operation.saturating_add(1));
            }
            Entry::Settled { vfs, holders, quarantined, marks, .. } => {
                self.open.retain(|_, change| !vfs.contains(&change.vf));
                self.holders.retain(|vf, _| !vfs.contains(vf));
                self.quarantined.retain(|vf, _| !vfs.contains(vf));
                self.holders.extend(holders.clone());
                self.quarantined.extend(quarantined.clone());
                for (guest, mark) in marks {
                    match mark {
                        Some(why) => self.marked.insert(guest.clone(), why.clone()),
                        None => self.marked.remove(guest),
                    };
                }
            }
        }
    }

    /// The VFs that are held, quarantined, or in a move under way.
    pub fn vfs(&self) -> impl Iterator<Item = &VfId> {
        let open = self.open.values().map(|change| &change.vf);
        self.holders.keys().chain(self.quarantined.keys()).chain(open)
    }

    /// Does the ledger know anything of this VF: a holder, a move under way, a fault?
    pub fn knows(&self, vf: &VfId) -> bool {
        self.holders.contains_key(vf)
            || self.quarantined.contains_key(vf)
            || self.open.values().any(|change| change.vf == *vf)
    }

    /// The lines that replace all earlier ones: a checkpoint, then the moves under way.
    pub fn digest(&self) -> Vec<Entry> {
        let mut lines = vec![Entry::Checkpoint {
            format: FORMAT,
            holders: self.holders.clone(),
            marked: self.marked.clone(),
            quarantined: self.quarantined.clone(),
        }];
        let begin = |(&operation, change): (&u64, &Move)| Entry::Begin {
            operation,
            change: change.clone(),
        };
        lines.extend(self.open.iter().map(begin));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Reason;

    fn some_entries() -> Vec<Entry> {
        let vf = VfId::new("pf0", 2);
        let change = Move {
            direction: Direction::Give,
            guest: "web".into(),
            vf: vf.clone(),
            reason: Reason::AboveCut { pps: Some(12.5) },
        };
        vec![
            Entry::Checkpoint {
                format: FORMAT,
                holders: [(VfId::new("pf0", 0), "db".into())].into(),
                marked: [("old".into(), "kept its VF".into())].into(),
                quarantined: BTreeMap::new(),
            },
            Entry::Begin { operation: 7, change },
            Entry::Intent { operation: 7, step: Step::Reserve { vf, guest: "web".into() } },
            Entry::Done { operation: 7 },
            Entry::End { operation: 7, ending: Ending::Completed },
            Entry::Unmark { guest: "old".into() },
        ]
    }

    #[test]
    fn what_is_written_is_read_again_and_adds_up() {
        let entries = some_entries();
        let text: String = entries.iter().map(line).collect();
        let read = read(text.as_bytes());
        assert_eq!(read, Read { entries, ..Read::default() });
        let ledger = Ledger::replay(&read.entries);
        assert_eq!(ledger.holders.len(), 2);
        assert_eq!(ledger.next_operation, 8);
        assert!(ledger.marked.is_empty() && ledger.open.is_empty());
        assert_eq!(Ledger::replay(&ledger.digest()).holders, ledger.holders);
    }

    #[test]
    fn a_digest_keeps_the_moves_that_are_under_way() {
        for lines in 1..=4 {
            let ledger = Ledger::replay(&some_entries()[..lines]);
            let digest = Ledger::replay(&ledger.digest());
            assert_eq!((&digest.open, &digest.holders), (&ledger.open, &ledger.holders));
            assert_eq!(digest.marked, ledger.marked);
        }
    }

    #[test]
    fn a_journal_cut_anywhere_loses_at_most_the_line_that_was_being_written() {
        let entries = some_entries();
        let text: String = entries.iter().map(line).collect();
        for length in 0..text.len() {
            let read = read(&text.as_bytes()[..length]);
            let whole = text.as_bytes()[..length].iter().filter(|b| **b == b'\n').count();
            assert_eq!(read.entries, entries[..whole]);
            assert!(read.damaged.is_empty());
            assert_eq!(read.torn, length > 0 && text.as_bytes()[length - 1] != b'\n');
        }
    }

    #[test]
    fn a_line_of_a_newer_version_is_told_from_a_torn_one_wherever_it_stands() {
        let known = line(&Entry::Unmark { guest: "web".into() });
        let body = r#"{"entry":"from-the-future","operation":7}"#;
        let future = format!("{} {body}\n", checksum(body));
        let last = read(format!("{known}{future}").as_bytes());
        assert_eq!((last.newer, last.torn, last.entries.len()), (Some(2), false, 1));
        let first = read(format!("{future}{known}").as_bytes());
        assert_eq!((first.newer, first.damaged.len()), (Some(1), 0));
        let mut checkpoint = some_entries().swap_remove(0);
        if let Entry::Checkpoint { format, .. } = &mut checkpoint {
            *format = FORMAT + 1;
        }
        assert_eq!(read(line(&checkpoint).as_bytes()).newer, Some(1));
    }

    #[test]
    fn a_settled_recovery_changes_what_it_is_about_and_nothing_else() {
        let mut ledger = Ledger::replay(&some_entries()[..4]);
        let (mended, other) = (VfId::new("pf0", 2), VfId::new("pf0", 0));
        assert!(ledger.knows(&mended) && ledger.open.len() == 1);
        ledger.apply(&Entry::Settled {
            operation: 8,
            vfs: [mended.clone()].into(),
            holders: BTreeMap::new(),
            quarantined: BTreeMap::new(),
            marks: [("old".into(), None)].into(),
        });
        assert!(!ledger.knows(&mended) && ledger.marked.is_empty());
        assert_eq!(ledger.holders.get(&other), Some(&"db".into()));
    }

    #[test]
    fn no_bytes_stop_the_reader_and_a_changed_byte_is_noticed() {
        let entries = some_entries();
        let text: String = entries.iter().map(line).collect();
        pw_cases::check!().with_type::<(Vec<u8>, u16, u8)>().for_each(|(bytes, place, flip)| {
            read(bytes);
            let mut spoilt = text.clone().into_bytes();
            let place = usize::from(*place) % spoilt.len();
            spoilt[place] ^= flip;
            let read = read(&spoilt);
            assert!(read.entries.iter().all(|entry| entries.contains(entry)));
            assert!(*flip == 0 || read.entries.len() < entries.len());
            Ledger::replay(&read.entries);
        });
    }
}
