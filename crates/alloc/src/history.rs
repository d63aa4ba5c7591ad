//! What the allocator remembers of the past: who held for how long, who changed when, what a switch
//! was measured to cost, and what waiting has cost so far. Time comes with the snapshots.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::model::{GuestId, Health, Snapshot, Stance, VfId};
use crate::policy::{self, Standing};
use crate::settings::{PolicyKind, Settings};

/// A guest that is gone is remembered for so long [ms]: coming back does not start its story anew.
const REMEMBERED_MS: u64 = 600_000;
/// A lead or a debt of the policy `fair` is at most so many turns.
const LAG_TURNS: f64 = 10.0;
/// The debt of a guaranteed share is at most so long [ms].
const MOST_OWED_MS: f64 = 3_600_000.0;

/// What is remembered of one guest.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    /// When it was first seen [ms].
    pub arrived_ms: u64,
    /// When it was last seen [ms].
    pub seen_ms: u64,
    /// How long it has held a VF in all [ms].
    pub held_ms: u64,
    /// Time held, as far as the policy `fair` counts it [ms]: newcomers start at the lowest of all.
    pub turns_ms: u64,
    /// When it last got or lost a VF [ms].
    pub changed_ms: Option<u64>,
    /// Time that its guaranteed share is behind [ms]; below zero: ahead.
    pub owed_ms: f64,
    /// Its guaranteed share is being paid.
    pub owing: bool,
    /// What waiting has cost it since its last change, beyond what it would have cost others [µs].
    pub regret_us: f64,
    /// How often in a row it could not be given a VF.
    pub undone: u32,
    /// Not before this moment is it tried again [ms].
    pub retry_ms: u64,
    holds: Option<VfId>,
}

impl History {
    /// Nothing is remembered.
    pub const fn new() -> Self {
        Self {
            arrived_ms: 0,
            seen_ms: 0,
            held_ms: 0,
            turns_ms: 0,
            changed_ms: None,
            owed_ms: 0.0,
            owing: false,
            regret_us: 0.0,
            undone: 0,
            retry_ms: 0,
            holds: None,
        }
    }
}

/// What switches were measured to cost: means that forget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwitchCost {
    /// From the order to plug until the guest sends by its VF [s].
    pub plug_s: f64,
    /// From the order to unplug until the VF is back in the pool [s].
    pub unplug_s: f64,
    /// Packets lost in a switch.
    pub lost_packets: f64,
}

impl Default for SwitchCost {
    /// FlexVF's figures (section 6): 640 ms and 56 ms, nothing lost.
    fn default() -> Self {
        Self { plug_s: 0.640, unplug_s: 0.056, lost_packets: 0.0 }
    }
}

impl SwitchCost {
    /// Takes in one measured switch: seconds, and packets lost if somebody counted them.
    pub fn measured(&mut self, plug: bool, seconds: f64, lost_packets: Option<f64>) {
        const WEIGHT: f64 = 0.2;
        let learn = |mean: &mut f64, value: f64| {
            if value.is_finite() && value >= 0.0 {
                *mean += WEIGHT * (value - *mean);
            }
        };
        learn(if plug { &mut self.plug_s } else { &mut self.unplug_s }, seconds);
        if let Some(lost) = lost_packets {
            learn(&mut self.lost_packets, lost);
        }
    }

    /// The price of handing a VF over between guests that gain so much from it [µs].
    pub fn price_us(&self, gain_in: f64, gain_out: f64, settings: &Settings) -> f64 {
        let benefit = &settings.benefit;
        benefit.fixed_us
            + self.lost_packets * benefit.loss_us
            + (self.plug_s + self.unplug_s + benefit.penalty_s) * gain_in.max(gain_out)
    }
}

/// What is remembered of all guests.
#[derive(Debug, Clone, Default)]
pub struct Histories {
    guests: BTreeMap<GuestId, History>,
    last_ms: Option<u64>,
    /// When VFs were given, within the last interval [ms].
    given_ms: VecDeque<u64>,
    /// How often in a row a VF could not be given to anybody.
    refused: BTreeMap<VfId, u32>,
    /// What switches cost.
    pub switch: SwitchCost,
}

impl Histories {
    /// What is remembered of this guest.
    pub fn of(&self, id: &GuestId) -> Option<&History> {
        self.guests.get(id)
    }

    /// VFs given in the interval that ends now.
    pub fn given(&self, now_ms: u64, settings: &Settings) -> usize {
        let since = now_ms.checked_sub((settings.interval_s * 1e3) as u64);
        self.given_ms.iter().filter(|&&at| since.is_none_or(|since| at > since)).count()
    }

    /// Remembers that these guests got or lost a VF by a plan that is being performed.
    pub fn commit<'a>(
        &mut self,
        changes: impl Iterator<Item = (&'a GuestId, Option<&'a VfId>)>,
        now_ms: u64,
    ) {
        for (id, holds) in changes {
            let history = self.guests.entry(id.clone()).or_default();
            history.changed_ms = Some(now_ms);
            history.regret_us = 0.0;
            history.holds = holds.cloned();
            if holds.is_some() {
                self.given_ms.push_back(now_ms);
            }
        }
    }

    /// How often in a row this VF could not be given to anybody.
    pub fn refusals(&self, vf: &VfId) -> u32 {
        self.refused.get(vf).copied().unwrap_or(0)
    }

    /// Remembers that this VF could not be given to this guest: it is tried again after one interval,
    /// then after two, four, …, up to the bound.
    pub fn undone(&mut self, id: &GuestId, vf: &VfId, now_ms: u64, settings: &Settings) {
        let history = self.guests.entry(id.clone()).or_default();
        let intervals = 2_f64.powi(i32::try_from(history.undone.min(64)).unwrap_or(64));
        let wait_s = (settings.interval_s * intervals).min(settings.retry_most_s);
        history.undone = history.undone.saturating_add(1);
        history.retry_ms = now_ms.saturating_add((wait_s * 1e3) as u64);
        let refused = self.refused.entry(vf.clone()).or_default();
        *refused = refused.saturating_add(1);
    }

    /// Remembers that this VF was given to this guest.
    pub fn done(&mut self, id: &GuestId, vf: &VfId) {
        self.retry(Some(id));
        self.refused.remove(vf);
    }

    /// Whoever could not be given a VF may be tried again at once: this guest, or all.
    pub fn retry(&mut self, id: Option<&GuestId>) {
        let all = self.guests.iter_mut().filter(|(known, _)| id.is_none_or(|id| id == *known));
        for (_, history) in all {
            (history.undone, history.retry_ms) = (0, 0);
        }
    }

    /// Takes in the time since the last snapshot.
    pub fn observe(&mut self, now: &Snapshot, settings: &Settings) {
        let elapsed_ms = self.last_ms.map_or(0, |last| now.now_ms.saturating_sub(last));
        self.last_ms = Some(self.last_ms.map_or(now.now_ms, |last| last.max(now.now_ms)));
        let interval_ms = (settings.interval_s * 1e3) as u64;
        while self.given_ms.front().is_some_and(|at| at.saturating_add(interval_ms) < now.now_ms) {
            self.given_ms.pop_front();
        }
        for guest in &now.guests {
            let history = self.guests.entry(guest.id.clone()).or_insert_with(|| History {
                arrived_ms: now.now_ms,
                holds: guest.holds.as_ref().map(|held| held.vf.clone()),
                ..History::default()
            });
            history.seen_ms = now.now_ms;
            let share = guest.wish.min_share.clamp(0.0, 1.0);
            history.owed_ms += share * elapsed_ms as f64;
            if guest.holds.is_some() {
                history.held_ms += elapsed_ms;
                history.turns_ms += elapsed_ms;
                history.owed_ms -= elapsed_ms as f64;
                history.regret_us = 0.0;
            }
            let most = if share > 0.0 { MOST_OWED_MS } else { 0.0 };
            history.owed_ms = history.owed_ms.clamp(-most, most);
            // Paid in turns, not in crumbs.
            let turn_ms = settings.min_residency_s.max(settings.interval_s) * 1e3;
            history.owing =
                share > 0.0 && history.owed_ms > if history.owing { 0.0 } else { turn_ms };
            let holds = guest.holds.as_ref().map(|held| &held.vf);
            if history.holds.as_ref() != holds {
                history.holds = holds.cloned();
                history.changed_ms = Some(now.now_ms);
                history.regret_us = 0.0;
            }
        }
        self.guests.retain(|_, history| history.seen_ms + REMEMBERED_MS >= now.now_ms);
        self.level_turns(now, settings);
        if settings.policy == PolicyKind::Benefit {
            self.regret(now, settings, elapsed_ms as f64 / 1e3);
        }
    }

    /// Keeps the turns of all within reach of each other: nobody saves up turns while it may not
    /// have one, and nobody who comes late has turns to catch up on.
    fn level_turns(&mut self, now: &Snapshot, settings: &Settings) {
        let competing: BTreeSet<&GuestId> = now
            .guests
            .iter()
            .filter(|guest| guest.wish.stance == Stance::Free && guest.health == Health::Ready)
            .map(|guest| &guest.id)
            .collect();
        // Whoever arrived in this moment has no turns yet and sets no standard.
        let settled = competing
            .iter()
            .filter_map(|id| self.guests.get(*id))
            .filter(|history| history.arrived_ms < now.now_ms)
            .map(|history| history.turns_ms);
        let Some((low, high)) = settled.fold(None, |range: Option<(u64, u64)>, turns| {
            Some(range.map_or((turns, turns), |(low, high)| (low.min(turns), high.max(turns))))
        }) else {
            return;
        };
        let lag_ms = (settings.fair_turn_s * 1e3 * LAG_TURNS) as u64;
        let floor = low.max(high.saturating_sub(lag_ms));
        for guest in &now.guests {
            let Some(history) = self.guests.get_mut(&guest.id) else { continue };
            if competing.contains(&guest.id) {
                history.turns_ms = history.turns_ms.max(floor);
            } else {
                history.turns_ms = floor;
            }
        }
    }

    /// Adds what waiting cost in the last seconds: the best waiter is held against the holder that
    /// gains least, the second against the second, and so on. It falls again while the holder gains
    /// more, and never below zero.
    fn regret(&mut self, now: &Snapshot, settings: &Settings, seconds: f64) {
        let blank = History::default();
        let mut waiters: Vec<(Standing, &GuestId)> = Vec::new();
        let mut holders: Vec<(Standing, &GuestId)> = Vec::new();
        for guest in &now.guests {
            if guest.wish.stance != Stance::Free || guest.health != Health::Ready {
                continue;
            }
            let standing = policy::standing(guest, &blank, settings);
            let side = if guest.holds.is_some() { &mut holders } else { &mut waiters };
            side.push((standing, &guest.id));
        }
        waiters.sort_by(|a, b| b.0.compare(&a.0).then(a.1.cmp(b.1)));
        holders.sort_by(|a, b| a.0.compare(&b.0).then(a.1.cmp(b.1)));
        for (at, (standing, id)) in waiters.iter().enumerate() {
            let Some(history) = self.guests.get_mut(*id) else { continue };
            let Some((holder, _)) = holders.get(at).or(holders.last()) else { continue };
            let forgone = (standing.value - holder.value) * seconds;
            history.regret_us = (history.regret_us + forgone).max(0.0);
        }
    }
}
