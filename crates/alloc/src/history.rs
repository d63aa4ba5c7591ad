//! The allocator's history: how long guests held VFs and when that changed, the measured cost of a switch,
//! and the cost of waiting so far. Time comes with the snapshots.

use std::collections::{BTreeMap, VecDeque};

use crate::model::{GuestId, GuestView, Health, Snapshot, Stance, VfId};
use crate::patience::{Leads, Switches};
use crate::plan::Direction;
use crate::policy::{self, Past, Tier};
use crate::settings::{PolicyKind, Settings};

/// How long the history of a guest that is gone is kept [ms], for its return.
const REMEMBERED_MS: u64 = 600_000;
/// Largest lead or debt under the policy `fair` [turns].
const LAG_TURNS: f64 = 10.0;
/// Largest debt of a guaranteed share [ms].
const MOST_OWED_MS: f64 = 3_600_000.0;

/// A guest's lead over the one whose VF it wants or took, from its beginning until it has shrunk by a price.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Lead {
    /// What it comes to now, and the most that it came to [prices].
    now: f64,
    most: f64,
    /// The price of the switch, when it was last known [µs].
    price_us: f64,
    /// What the switch and the one that undoes it cost.
    switches: Switches,
    /// The slot of the guest that lost its VF to this one.
    rival: Option<usize>,
}

impl Lead {
    const NONE: Self =
        Self { now: 0.0, most: 0.0, price_us: 0.0, switches: Switches::ALIKE, rival: None };
}

/// The history of one guest.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// What policies rank it by, besides its traffic.
    pub past: Past,
    /// When it was last seen [ms].
    pub seen_ms: u64,
    /// How long it has held a VF in all [ms].
    pub held_ms: u64,
    /// When it last got or lost a VF [ms].
    pub changed_ms: Option<u64>,
    /// Time that its guaranteed share is behind [ms]; below zero: ahead.
    pub owed_ms: f64,
    /// Its guaranteed share is being paid.
    pub owing: bool,
    /// The lead that is going on.
    lead: Lead,
    /// How often in a row it could not be given a VF.
    pub undone: u32,
    /// Earliest time at which it is tried again [ms].
    pub retry_ms: u64,
    holds: Option<VfId>,
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl History {
    /// An empty history.
    pub const fn new() -> Self {
        Self {
            past: Past::NONE,
            seen_ms: 0,
            held_ms: 0,
            changed_ms: None,
            owed_ms: 0.0,
            owing: false,
            lead: Lead::NONE,
            undone: 0,
            retry_ms: 0,
            holds: None,
        }
    }

    /// Takes in the time since the guest was last seen.
    fn observe(&mut self, guest: &GuestView, now_ms: u64, elapsed_ms: u64, settings: &Settings) {
        self.seen_ms = now_ms;
        let share = guest.wish.min_share.clamp(0.0, 1.0);
        self.owed_ms += share * elapsed_ms as f64;
        if guest.holds.is_some() {
            self.held_ms += elapsed_ms;
            self.past.turns_ms += elapsed_ms;
            self.owed_ms -= elapsed_ms as f64;
            self.past.regret = 0.0;
        }
        let most = if share > 0.0 { MOST_OWED_MS } else { 0.0 };
        self.owed_ms = self.owed_ms.clamp(-most, most);
        // Paid in turns, not in crumbs.
        let turn_ms = settings.min_residency_s.max(settings.interval_s) * 1e3;
        self.owing = share > 0.0 && self.owed_ms > if self.owing { 0.0 } else { turn_ms };
        if self.holds != guest.holds {
            self.holds.clone_from(&guest.holds);
            self.changed_ms = Some(now_ms);
            self.past.regret = 0.0;
        }
    }
}

/// How long switches were measured to take: means that forget; none until something was measured.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SwitchCost {
    plug_s: Option<f64>,
    unplug_s: Option<f64>,
}

impl SwitchCost {
    /// Takes in the duration of one switch [s].
    pub fn measured(&mut self, direction: Direction, seconds: f64, settings: &Settings) {
        const WEIGHT: f64 = 0.2;
        let (mean, prior) = match direction {
            Direction::Give => (&mut self.plug_s, settings.benefit.plug_s),
            Direction::Take => (&mut self.unplug_s, settings.benefit.unplug_s),
        };
        if seconds.is_finite() && seconds >= 0.0 {
            let current = mean.unwrap_or(prior);
            *mean = Some(current + WEIGHT * (seconds - current));
        }
    }

    /// How long a VF carries nothing while it is handed over [s].
    fn idle_s(&self, settings: &Settings) -> f64 {
        let benefit = &settings.benefit;
        self.plug_s.unwrap_or(benefit.plug_s) + self.unplug_s.unwrap_or(benefit.unplug_s)
    }

    /// The price of handing a VF over between guests with these gains [µs].
    pub fn price_us(&self, gain_in: f64, gain_out: f64, settings: &Settings) -> f64 {
        let benefit = &settings.benefit;
        benefit.fixed_us
            + benefit.lost_packets * benefit.loss_us
            + (self.idle_s(settings) + benefit.penalty_s) * gain_in.max(gain_out)
    }
}

/// The histories of all guests.
#[derive(Debug, Clone, Default)]
pub struct Histories {
    /// By slot; a guest keeps its slot until it is forgotten.
    guests: Vec<History>,
    /// By slot.
    names: Vec<GuestId>,
    slots: BTreeMap<GuestId, usize>,
    /// The slots of the last snapshot's guests, in its order.
    order: Vec<usize>,
    last_ms: Option<u64>,
    /// When VFs were given, within the last interval [ms].
    given_ms: VecDeque<u64>,
    /// How often in a row a VF could not be given to anybody.
    refused: BTreeMap<VfId, u32>,
    /// Past leads of all guests.
    leads: Leads,
    /// What switches cost.
    pub switch: SwitchCost,
}

impl Histories {
    /// The history of the guest at this place of a snapshot: quicker when its guests are those of the last
    /// one, in the same order.
    pub fn at(&self, place: usize, id: &GuestId) -> Option<&History> {
        self.slot(place, id).map(|slot| &self.guests[slot])
    }

    /// The guest's number here, until a guest is forgotten.
    #[inline]
    fn slot(&self, place: usize, id: &GuestId) -> Option<usize> {
        let hint = self.order.get(place).copied().filter(|&slot| self.names[slot] == *id);
        hint.or_else(|| self.slots.get(id).copied())
    }

    fn slot_or_new(&mut self, id: &GuestId, new: impl FnOnce() -> History) -> usize {
        self.slots.get(id).copied().unwrap_or_else(|| {
            let slot = self.guests.len();
            self.guests.push(new());
            self.names.push(id.clone());
            self.slots.insert(id.clone(), slot);
            slot
        })
    }

    /// Forgets guests that have been gone for long.
    fn forget(&mut self, now_ms: u64) {
        let keep = |history: &History| history.seen_ms + REMEMBERED_MS >= now_ms;
        // While no guest is away none is forgotten.
        if self.guests.len() != self.order.len() && !self.guests.iter().all(keep) {
            let kept: Vec<bool> = self.guests.iter().map(keep).collect();
            retain(&mut self.guests, &kept);
            retain(&mut self.names, &kept);
            self.slots = self.names.iter().cloned().zip(0..).collect();
            self.order.clear();
            // Slots have changed.
            self.guests.iter_mut().for_each(|history| history.lead = Lead::NONE);
        }
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
        // By VF: the guest that it was taken from in the same plan.
        let mut lost: BTreeMap<VfId, usize> = BTreeMap::new();
        for (id, holds) in changes {
            let slot = self.slot_or_new(id, History::default);
            let history = &mut self.guests[slot];
            history.changed_ms = Some(now_ms);
            let previous = std::mem::replace(&mut history.holds, holds.cloned());
            match holds {
                None => {
                    lost.extend(previous.map(|vf| (vf, slot)));
                    self.end_lead(slot);
                }
                Some(vf) => {
                    let lead = history.lead;
                    history.lead = match lost.get(vf) {
                        Some(&rival) => Lead { rival: Some(rival), now: lead.most, ..lead },
                        None => Lead::NONE,
                    };
                    self.given_ms.push_back(now_ms);
                }
            }
            self.guests[slot].past.regret = 0.0;
        }
    }

    /// Ends a guest's lead, from which all learn.
    fn end_lead(&mut self, slot: usize) {
        let Lead { most, switches, .. } =
            std::mem::replace(&mut self.guests[slot].lead, Lead::NONE);
        self.leads.ended(most, switches);
    }

    /// How often in a row this VF could not be given to anybody.
    pub fn refusals(&self, vf: &VfId) -> u32 {
        self.refused.get(vf).copied().unwrap_or(0)
    }

    /// Remembers that this VF could not be given to this guest: it is tried again after one interval,
    /// then after two, four, …, up to the bound.
    pub fn undone(&mut self, id: &GuestId, vf: &VfId, now_ms: u64, settings: &Settings) {
        let slot = self.slot_or_new(id, History::default);
        let history = &mut self.guests[slot];
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

    /// Ends the wait of this guest, or of all, after VFs could not be given.
    pub fn retry(&mut self, id: Option<&GuestId>) {
        let all = self.names.iter().zip(&mut self.guests);
        for (_, history) in all.filter(|(name, _)| id.is_none_or(|id| id == *name)) {
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
        let mut order = std::mem::take(&mut self.order);
        order.resize(now.guests.len(), usize::MAX);
        for (place, guest) in now.guests.iter().enumerate() {
            let same = self.names.get(order[place]).is_some_and(|name| *name == guest.id);
            if !same {
                order[place] = self.slot_or_new(&guest.id, || History {
                    past: Past { arrived_ms: now.now_ms, ..Past::NONE },
                    holds: guest.holds.clone(),
                    ..History::default()
                });
            }
            self.guests[order[place]].observe(guest, now.now_ms, elapsed_ms, settings);
        }
        self.order = order;
        self.forget(now.now_ms);
        self.level_turns(now, settings);
        if settings.policy == PolicyKind::Benefit {
            self.regret(now, settings, elapsed_ms as f64 / 1e3);
        }
    }

    /// Keeps the turns of all guests within reach of each other: no guest saves up turns while it may not have
    /// one, and none that comes late has turns to catch up on.
    fn level_turns(&mut self, now: &Snapshot, settings: &Settings) {
        let competes =
            |guest: &GuestView| guest.wish.stance == Stance::Free && guest.health == Health::Ready;
        // A guest that has just arrived has no turns yet and is left out.
        let (mut low, mut high, mut any_left_out) = (u64::MAX, 0, false);
        for (guest, &slot) in now.guests.iter().zip(&self.order) {
            let history = &self.guests[slot];
            if competes(guest) && history.past.arrived_ms < now.now_ms {
                (low, high) = (low.min(history.past.turns_ms), high.max(history.past.turns_ms));
            } else {
                any_left_out = true;
            }
        }
        let lag_ms = (settings.fair_turn_s * 1e3 * LAG_TURNS) as u64;
        let floor = low.max(high.saturating_sub(lag_ms));
        if low == u64::MAX || floor == low && !any_left_out {
            return;
        }
        for (guest, &slot) in now.guests.iter().zip(&self.order) {
            let turns_ms = &mut self.guests[slot].past.turns_ms;
            *turns_ms = if competes(guest) { floor.max(*turns_ms) } else { floor };
        }
    }

    /// Adds the cost of waiting in the last seconds: the best waiter is compared with the holder that gains
    /// least, the second with the second, and so on. Regret falls again while the holder gains more, and never
    /// below zero. Leads that ended are learned from.
    fn regret(&mut self, now: &Snapshot, settings: &Settings, seconds: f64) {
        // By gain: movable guests with their slots, and whether the gain is known.
        let (mut waiters, mut holders) = (Vec::new(), Vec::new());
        for (guest, &slot) in now.guests.iter().zip(&self.order) {
            if guest.wish.stance == Stance::Free && guest.health == Health::Ready {
                let standing = policy::standing(guest, &self.guests[slot].past, settings);
                let all = if guest.holds.is_some() { &mut holders } else { &mut waiters };
                all.push((standing.value, slot, standing.tier != Tier::Unknown));
            }
        }
        let least =
            |all: &[(f64, usize, bool)]| all.iter().map(|one| one.0).fold(f64::INFINITY, f64::min);
        let worst = least(&holders);
        let mut values = vec![f64::NAN; self.guests.len()];
        waiters.iter().for_each(|one| values[one.1] = one.0);
        holders.iter().for_each(|one| values[one.1] = one.0);
        waiters.retain(|one| one.0 > worst || self.guests[one.1].past.regret > 0.0);
        waiters.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        holders.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        // A rate over the time between two samples is on average half of it old.
        let lag_s = seconds / 2.0 + settings.signal.smoothing.lag_s();
        for (place, &(waiting, slot, _)) in waiters.iter().enumerate() {
            let Some(&(holding, _, is_known)) = holders.get(place).or(holders.last()) else {
                break;
            };
            // A lead that is seen late also ends late: a switch costs that much, too.
            let ahead = (waiting - holding).max(0.0);
            let price_us = self.switch.price_us(waiting, holding, settings) + lag_s * ahead;
            let history = &mut self.guests[slot];
            let forgone = in_prices((waiting - holding) * seconds, price_us);
            history.past.regret = (history.past.regret + forgone).max(0.0);
            history.past.threshold = Past::NONE.threshold;
            if !is_known {
                // Nothing is learned from a lead over a guest whose gain is unknown.
                continue;
            }
            // In a switch back, the rival leads by its whole gain at most.
            let back_us =
                self.switch.price_us(holding, holding, settings) + lag_s * ahead.min(holding);
            let passing_us = (self.switch.idle_s(settings) + lag_s) * ahead;
            let [passing, back] =
                [passing_us, back_us].map(|us| (us / price_us.max(f64::MIN_POSITIVE)).min(1.0));
            let switches = Switches { passing, sunk: 1.0 - passing + back };
            history.past.threshold = self.leads.threshold(switches);
            // While it is not ahead, its regret is of a time when nothing was known of the holder.
            if ahead > 0.0 && history.past.regret > history.lead.most {
                let regret = history.past.regret;
                history.lead = Lead { now: regret, most: regret, price_us, switches, rival: None };
            } else if history.past.regret == 0.0 {
                self.end_lead(slot);
            }
        }
        for (holding, slot, _) in holders {
            let lead = &mut self.guests[slot].lead;
            let Some(rival) = lead.rival.map(|rival| values[rival]) else { continue };
            // A rival that is gone ends the lead.
            let ahead = if rival.is_nan() { f64::NEG_INFINITY } else { holding - rival };
            lead.now += in_prices(ahead * seconds, lead.price_us);
            lead.most = lead.most.max(lead.now);
            if lead.now <= lead.most - 1.0 {
                self.end_lead(slot);
            }
        }
    }
}

/// Keeps the elements whose flag is set.
fn retain<T>(all: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    all.retain(|_| kept.next() == Some(&true));
}

/// An amount in prices, bounded where the price is zero.
fn in_prices(amount_us: f64, price_us: f64) -> f64 {
    if amount_us == 0.0 {
        0.0
    } else {
        (amount_us / price_us.max(f64::MIN_POSITIVE)).clamp(-1e6, 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Origin, Rate};
    use crate::signal::Smoothing;

    fn guest(id: &str, pps: Option<f64>, holds: bool) -> GuestView {
        let holds = holds.then(|| VfId::new("pf0", 0));
        let origin = Origin::HostSide;
        let rate = pps.map(|pps| Rate { pps, bytes_per_s: 0.0, origin, blind_ms: 0 });
        GuestView { rate, holds, ..GuestView::new(id) }
    }

    #[test]
    fn a_lead_over_a_guest_of_which_nothing_is_known_teaches_nothing() {
        // The holder's counters have a new base: it is known again after a second.
        let cases = [(Some(0.0), true), (None, false)];
        for ((before, learned), over_s) in
            cases.into_iter().flat_map(|case| [0.1, 0.3, 1.0].map(|over_s| (case, over_s)))
        {
            let mut histories = Histories::default();
            let mut settings = Settings::default();
            settings.signal.smoothing = Smoothing::Ewma(over_s);
            for second in 0..20 {
                let holder = guest("holds", if second < 2 { before } else { Some(9_000.0) }, true);
                let guests = vec![holder, guest("waits", Some(5_000.0), false)];
                let now = Snapshot { now_ms: second * 1_000, guests, vfs: Vec::new() };
                histories.observe(&now, &settings);
            }
            let taught = histories.leads != Leads::default();
            assert_eq!(taught, learned, "{before:?}, rates over {over_s} s");
        }
    }
}
