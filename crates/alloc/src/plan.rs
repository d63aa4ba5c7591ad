//! A plan: moves of VFs from and to guests, in order. A value: it can be printed, tried on a
//! snapshot, reversed, and written out as steps.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::{GuestId, Health, Snapshot, Stance, VfId, VfState};
use pw_error::{Error, Result};

/// Why a guest has, gets or loses a VF, or has none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "why")]
pub enum Reason {
    /// The operator pinned it.
    Pinned,
    /// The operator excluded it.
    Excluded,
    /// There is a VF for every guest that may have one.
    EnoughForAll,
    /// It ranks above the cut.
    AboveCut {
        /// Its packet rate [packets per second]; none when unknown.
        pps: Option<f64>,
    },
    /// It ranks below the cut.
    BelowCut {
        /// Its packet rate [packets per second]; none when unknown.
        pps: Option<f64>,
    },
    /// It ranks above the cut, yet its gain would not outweigh the switch.
    NotWorthTheSwitch,
    /// Its guaranteed share of time is behind.
    GuaranteedShare,
    /// It was moved too recently to be moved again (its minimum residency).
    Residency,
    /// Its turn has come, or lasts.
    Turn,
    /// Its turn is over, or has not come.
    TurnOfOthers,
    /// It came first.
    FirstCome,
    /// All VFs that it may have are taken by guests that rank higher, or there are none.
    NoSuitableVf,
    /// The moves of this interval are used up.
    Deferred,
    /// It could not be given one, and is not tried again yet.
    BackingOff {
        /// How often in a row.
        tries: u32,
        /// Until it is tried again [s].
        left_s: u64,
    },
    /// A move of it is under way.
    Busy,
    /// It does not answer: it is left alone.
    Stuck {
        /// What it did not do.
        what: String,
    },
    /// Its paravirtual path does not work: the VF is all it has.
    OnlyPath,
    /// The PF of its VF has no link.
    LinkDown,
    /// It holds a VF that its constraints no longer allow.
    Misplaced,
    /// The VF that it holds is quarantined, unknown, or claimed by another guest too.
    DoubtfulVf,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pps =
            |pps: &Option<f64>| pps.map_or("unknown".to_owned(), |pps| format!("{pps:.0} pps"));
        match self {
            Self::Pinned => f.write_str("pinned by the operator"),
            Self::Excluded => f.write_str("excluded by the operator"),
            Self::EnoughForAll => f.write_str("there is a VF for everybody"),
            Self::AboveCut { pps: rate } => write!(f, "ranks above the cut ({})", pps(rate)),
            Self::BelowCut { pps: rate } => write!(f, "ranks below the cut ({})", pps(rate)),
            Self::NotWorthTheSwitch => f.write_str("its gain has not outweighed a switch yet"),
            Self::GuaranteedShare => f.write_str("its guaranteed share of time is due"),
            Self::Residency => f.write_str("was moved too recently to be moved again"),
            Self::Turn => f.write_str("its turn"),
            Self::TurnOfOthers => f.write_str("other guests have their turn"),
            Self::FirstCome => f.write_str("came first"),
            Self::NoSuitableVf => f.write_str("no VF is left that it may have"),
            Self::Deferred => f.write_str("waits for the next interval: its moves are used up"),
            Self::BackingOff { tries: 1, left_s } => {
                write!(f, "could not be given a VF: tried again in {left_s} s")
            }
            Self::BackingOff { tries, left_s } => {
                write!(f, "could not be given a VF {tries} times: tried again in {left_s} s")
            }
            Self::Busy => f.write_str("is being moved"),
            Self::Stuck { what } => write!(f, "does not answer: {what}"),
            Self::OnlyPath => f.write_str("its paravirtual path is down: the VF is all it has"),
            Self::LinkDown => f.write_str("its VF's PF has no link"),
            Self::Misplaced => f.write_str("its constraints no longer allow this VF"),
            Self::DoubtfulVf => f.write_str("its VF is in doubt"),
        }
    }
}

/// Into or out of a guest's hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// The VF goes back to the pool.
    Take,
    /// The VF goes to the guest.
    Give,
}

impl Direction {
    /// Its name, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Give => "give",
        }
    }
}

/// One VF given or taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Move {
    /// Given or taken.
    pub direction: Direction,
    /// Whose.
    pub guest: GuestId,
    /// Which VF.
    pub vf: VfId,
    /// Why.
    pub reason: Reason,
}

impl Move {
    /// The move without its reason, as `give pf0/1 to web`.
    pub fn words(&self) -> String {
        match self.direction {
            Direction::Take => format!("take {} from {}", self.vf, self.guest),
            Direction::Give => format!("give {} to {}", self.vf, self.guest),
        }
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.words(), self.reason)
    }
}

/// Moves in the order in which they are to be made. A VF is taken just before it is given again, so
/// that few guests are without one at a time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Plan {
    /// The moves.
    pub moves: Vec<Move>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.moves.iter().enumerate() {
            writeln!(f, "{:>3}. {step}", at + 1)?;
        }
        Ok(())
    }
}

impl Plan {
    /// Is there nothing to do?
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }

    /// VFs given.
    pub fn given(&self) -> usize {
        self.moves.iter().filter(|change| change.direction == Direction::Give).count()
    }

    /// What will have changed: guests in the order of the moves, with the VF that each has then.
    pub fn changes(&self) -> impl Iterator<Item = (&GuestId, Option<&VfId>)> {
        self.moves.iter().map(|change| {
            (&change.guest, (change.direction == Direction::Give).then_some(&change.vf))
        })
    }

    /// The snapshot after this plan, or the first move that cannot be made, and why.
    pub fn try_on(&self, snapshot: &Snapshot) -> Result<Snapshot> {
        let mut next = snapshot.clone();
        for change in &self.moves {
            let refuse = |why: &str| {
                Err(Error::bad_input(
                    format!("cannot {change}: {why}"),
                    "ask for a new plan: things have changed",
                ))
            };
            let state = next.vfs.iter().find(|vf| vf.id == change.vf).map(|vf| vf.state.clone());
            let held = next.holder(&change.vf).is_some();
            let Some(guest) = next.guests.iter_mut().find(|guest| guest.id == change.guest) else {
                return refuse("there is no such guest");
            };
            match change.direction {
                Direction::Take => {
                    if guest.holds.as_ref() != Some(&change.vf) {
                        return refuse("the guest does not hold this VF");
                    }
                    if !guest.paravirtual_up {
                        return refuse("its paravirtual path is down");
                    }
                    guest.holds = None;
                }
                Direction::Give => {
                    if held {
                        return refuse("somebody holds it");
                    }
                    if state != Some(VfState::Usable) {
                        return refuse("the VF cannot be used");
                    }
                    if guest.holds.is_some() {
                        return refuse("the guest holds another VF");
                    }
                    if guest.health != Health::Ready
                        || guest.wish.stance == Stance::Excluded
                        || !guest.allows(&change.vf.pf)
                    {
                        return refuse("the guest may not have it now");
                    }
                    guest.holds = Some(change.vf.clone());
                }
            }
        }
        Ok(next)
    }
}

/// The decision about one guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Which guest.
    pub guest: GuestId,
    /// The VF that it has once the plan is performed.
    pub vf: Option<VfId>,
    /// Why it has it, or has none.
    pub reason: Reason,
}

/// A plan, and a verdict for each guest, in the order of the snapshot.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Decision {
    /// What is to be done.
    pub plan: Plan,
    /// The verdict on each guest.
    pub verdicts: Vec<Verdict>,
    /// VFs that would have been given, had the interval's moves not been used up.
    pub deferred: usize,
}
