//! The allocator's history: how long guests held VFs and when that changed, the measured cost of a switch,
//! and the cost of waiting so far. Time comes with the snapshots.

use std::collections::{BTreeMap, VecDeque};

use crate::model::{GuestId, GuestView, Health, Snapshot, Stance, VfId};
use crate::patience::{Advantages, KEEP_PER_GUEST, KEEP_SHARED, Switches};
use crate::policy::{self, Past, Standing};
use crate::settings::{PolicyKind, Settings};

/// How long the history of a guest that is gone is kept [ms], for its return.
const REMEMBERED_MS: u64 = 600_000;
/// Largest lead or debt under the policy `fair` [turns].
const LAG_TURNS: f64 = 10.0;
/// Largest debt of a guaranteed share [ms].
const MOST_OWED_MS: f64 = 3_600_000.0;

/// A guest's lead over a rival, from its beginning until it has shrunk by a price.
#[derive(Debug, Clone, PartialEq)]
struct Advantage {
    /// The most that it came to [prices].
    most: f64,
    /// The part of the regret that came of waiting for a holder of which nothing was known [prices].
    blind: f64,
    /// Its present sum, once the VF is taken [prices].
    sum: f64,
    /// The price of the switch, when it was last known [µs].
    price_us: f64,
    /// What the switch and the one that undoes it cost.
    switches: Switches,
    /// The guest that lost its VF to this one, and its slot then.
    rival: Option<(GuestId, usize)>,
}

impl Advantage {
    const NONE: Self = Self {
        most: 0.0,
        blind: 0.0,
        sum: 0.0,
        price_us: 0.0,
        switches: Switches::ALIKE,
        rival: None,
    };
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
    /// The advantage that is going on.
    advantage: Advantage,
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
            advantage: Advantage::NONE,
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
        let holds = guest.holds.as_ref().map(|held| &held.vf);
        if self.holds.as_ref() != holds {
            self.holds = holds.cloned();
            self.changed_ms = Some(now_ms);
            self.past.regret = 0.0;
        }
    }
}

/// What switches were measured to cost: means that forget; none until something was measured.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SwitchCost {
    plug_s: Option<f64>,
    unplug_s: Option<f64>,
    lost_packets: Option<f64>,
}

impl SwitchCost {
    /// Takes in one measured switch: seconds, and packets lost if they were counted.
    pub fn measured(
        &mut self,
        plug: bool,
        seconds: f64,
        lost_packets: Option<f64>,
        settings: &Settings,
    ) {
        const WEIGHT: f64 = 0.2;
        let learn = |mean: &mut Option<f64>, initial: f64, value: f64| {
            if value.is_finite() && value >= 0.0 {
                let current = mean.unwrap_or(initial);
                *mean = Some(current + WEIGHT * (value - current));
            }
        };
        let prior = &settings.benefit;
        if plug {
            learn(&mut self.plug_s, prior.plug_s, seconds);
        } else {
            learn(&mut self.unplug_s, prior.unplug_s, seconds);
        }
        if let Some(lost) = lost_packets {
            learn(&mut self.lost_packets, prior.lost_packets, lost);
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
            + self.lost_packets.unwrap_or(benefit.lost_packets) * benefit.loss_us
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
    /// By slot: past advantages. Apart from the rest, which is read in every interval.
    learned: Vec<Advantages>,
    slots: BTreeMap<GuestId, usize>,
    /// By slot: the place of the guest's name in alphabetical order.
    alphabet: Vec<u32>,
    /// By that place: the slot.
    by_name: Vec<usize>,
    /// The slots of the last snapshot's guests, in its order.
    order: Vec<usize>,
    /// By slot: what a VF is worth to the guest now; NaN where it cannot be moved. Kept for its memory.
    values: Vec<f64>,
    waiters: Vec<Ranked>,
    holders: Vec<Ranked>,
    last_ms: Option<u64>,
    /// When VFs were given, within the last interval [ms].
    given_ms: VecDeque<u64>,
    /// How often in a row a VF could not be given to anybody.
    refused: BTreeMap<VfId, u32>,
    /// Past advantages of all guests.
    advantages: Advantages,
    /// What switches cost.
    pub switch: SwitchCost,
}

/// A guest's place in the ranking: its standing above the place of its name, or that turned round where the
/// greatest goes first.
type Ranked = u128;

impl Histories {
    /// The history of the guest at this place of a snapshot: quicker when its guests are those of the last
    /// one, in the same order.
    pub fn at(&self, place: usize, id: &GuestId) -> Option<&History> {
        self.slot(place, id).map(|slot| &self.guests[slot])
    }

    /// The guest's number here, until a guest is forgotten.
    #[inline]
    pub(crate) fn slot(&self, place: usize, id: &GuestId) -> Option<usize> {
        let hint = self.order.get(place).copied().filter(|&slot| self.names[slot] == *id);
        hint.or_else(|| self.slots.get(id).copied())
    }

    /// The history of the guest with this number.
    pub(crate) fn in_slot(&self, slot: usize) -> &History {
        &self.guests[slot]
    }

    /// How many guests are remembered.
    pub(crate) const fn slots(&self) -> usize {
        self.guests.len()
    }

    fn slot_or_new(&mut self, id: &GuestId, new: impl FnOnce() -> History) -> usize {
        self.slots.get(id).copied().unwrap_or_else(|| {
            let slot = self.guests.len();
            self.guests.push(new());
            self.names.push(id.clone());
            self.learned.push(Advantages::new());
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
            retain(&mut self.learned, &kept);
            self.slots = self.names.iter().cloned().zip(0..).collect();
            self.alphabet.clear();
            self.order.clear();
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
                    if let Some(vf) = previous {
                        lost.insert(vf, slot);
                    }
                    self.end_advantage(slot);
                }
                Some(vf) => {
                    // A VF without a former holder has no rival to lead.
                    history.advantage = lost.get(vf).map_or(Advantage::NONE, |&rival| Advantage {
                        rival: Some((self.names[rival].clone(), rival)),
                        sum: history.advantage.most,
                        ..history.advantage.clone()
                    });
                    self.given_ms.push_back(now_ms);
                }
            }
            self.guests[slot].past.regret = 0.0;
        }
    }

    /// Ends a lead, from which its guest and all guests learn.
    fn end_advantage(&mut self, slot: usize) {
        let history = &mut self.guests[slot];
        let Advantage { most, switches, .. } =
            std::mem::replace(&mut history.advantage, Advantage::NONE);
        let used = history.past.threshold;
        for (learner, keep) in
            [(&mut self.learned[slot], KEEP_PER_GUEST), (&mut self.advantages, KEEP_SHARED)]
        {
            learner.ended(most, switches, used, keep);
        }
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
                    holds: guest.holds.as_ref().map(|held| held.vf.clone()),
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

    /// Ranks the guests that can be moved: the best waiter first, the worst holder first.
    fn rank(&mut self, now: &Snapshot, settings: &Settings) {
        if self.alphabet.len() != self.names.len() {
            self.alphabet.resize(self.names.len(), 0);
            self.by_name = self.slots.values().copied().collect();
            for (&slot, place) in self.by_name.iter().zip(0..) {
                self.alphabet[slot] = place;
            }
        }
        self.values.clear();
        self.values.resize(self.guests.len(), f64::NAN);
        self.waiters.clear();
        self.holders.clear();
        for (guest, &slot) in now.guests.iter().zip(&self.order) {
            if guest.wish.stance != Stance::Free || guest.health != Health::Ready {
                continue;
            }
            let standing = policy::standing(guest, &self.guests[slot].past, settings);
            self.values[slot] = standing.value;
            let (key, name) = (standing.key() << 32, self.alphabet[slot]);
            if guest.holds.is_some() {
                self.holders.push(key | u128::from(name));
            } else {
                self.waiters.push(key | u128::from(!name));
            }
        }
        self.holders.sort_unstable();
        let paired = self.holders.len();
        if let Some(last) = self.last_with_a_lead()
            && self.waiters.iter().filter(|waiter| **waiter >= last).count() <= paired
        {
            self.waiters.retain(|waiter| *waiter >= last);
        }
        // All waiters beyond the number of holders are compared with the same holder.
        if (1..self.waiters.len()).contains(&paired) {
            self.waiters.select_nth_unstable_by(paired, |a, b| b.cmp(a));
        }
        let paired = paired.min(self.waiters.len());
        self.waiters[..paired].sort_unstable_by(|a, b| b.cmp(a));
    }

    /// The last-ranked waiter that leads a holder, or led one and still has regret. For waiters behind it nothing
    /// changes, whichever holder they are compared with. Where there is none, the greatest of all ranks.
    fn last_with_a_lead(&self) -> Option<Ranked> {
        let gain = |holder: &Ranked| self.values[self.by_name[*holder as u32 as usize]];
        let least = self.holders.iter().map(gain).min_by(f64::total_cmp)?;
        let leads = |waiter: &Ranked| {
            let slot = self.by_name[!*waiter as u32 as usize];
            let history = &self.guests[slot];
            self.values[slot] > least || history.past.regret > 0.0 || history.advantage.most > 0.0
        };
        let leading = self.waiters.iter().filter(|waiter| leads(waiter));
        Some(leading.copied().min().unwrap_or(Ranked::MAX))
    }

    /// Adds the cost of waiting in the last seconds: the best waiter is compared with the holder that gains
    /// least, the second with the second, and so on. Regret falls again while the holder gains more, and never
    /// below zero. Leads that ended are learned from.
    fn regret(&mut self, now: &Snapshot, settings: &Settings, seconds: f64) {
        self.rank(now, settings);
        // A rate over the time between two samples is on average half of it old.
        let lag_s = seconds / 2.0 + settings.signal.smoothing.lag_s();
        let mut ended = Vec::new();
        for (place, &waiter) in self.waiters.iter().enumerate() {
            let Some(&holder) = self.holders.get(place).or(self.holders.last()) else { break };
            let unknown = Standing::is_unknown(holder >> 32);
            let (slot, holder) =
                (self.by_name[!waiter as u32 as usize], self.by_name[holder as u32 as usize]);
            let (waiting, holding) = (self.values[slot], self.values[holder]);
            let history = &mut self.guests[slot];
            // A lead that is seen late also ends late: a switch costs that much, too.
            let ahead = (waiting - holding).max(0.0);
            let price_us = self.switch.price_us(waiting, holding, settings) + lag_s * ahead;
            let lead = in_prices((waiting - holding) * seconds, price_us);
            let begins = history.past.regret == 0.0;
            history.past.regret = (history.past.regret + lead).max(0.0);
            if unknown {
                // Its gain is unknown: nothing is learned from a lead over it.
                history.past.threshold = Past::NONE.threshold;
                history.advantage.blind = history.past.regret;
                continue;
            }
            history.advantage.blind = history.advantage.blind.min(history.past.regret);
            if history.past.regret > history.advantage.most.max(history.advantage.blind) {
                // In a switch back, the rival leads by its whole gain at most.
                let back_us =
                    self.switch.price_us(holding, holding, settings) + lag_s * ahead.min(holding);
                let passing_us = (self.switch.idle_s(settings) + lag_s) * ahead;
                let [passing, back] =
                    [passing_us, back_us].map(|us| (us / price_us.max(f64::MIN_POSITIVE)).min(1.0));
                let switches = Switches { passing, sunk: 1.0 - passing + back };
                let advantage = &mut history.advantage;
                (advantage.most, advantage.price_us) = (history.past.regret, price_us);
                if begins || switches.differ(advantage.switches) {
                    advantage.switches = switches;
                    history.past.threshold =
                        self.learned[slot].threshold(&self.advantages, switches);
                }
            }
            if history.past.regret == 0.0 && history.advantage.most > 0.0 {
                ended.push(slot);
            }
        }
        for &holder in &self.holders {
            let slot = self.by_name[holder as u32 as usize];
            let Some((name, rival)) = &self.guests[slot].advantage.rival else { continue };
            let rival = Some(*rival)
                .filter(|&rival| self.names.get(rival) == Some(name))
                .or_else(|| self.slots.get(name).copied())
                .map(|rival| self.values[rival])
                .filter(|value| !value.is_nan());
            let value = self.values[slot];
            let advantage = &mut self.guests[slot].advantage;
            let lead = rival.map_or(f64::NEG_INFINITY, |rival| {
                in_prices((value - rival) * seconds, advantage.price_us)
            });
            advantage.sum += lead;
            advantage.most = advantage.most.max(advantage.sum);
            if advantage.sum <= advantage.most - 1.0 {
                ended.push(slot);
            }
        }
        for slot in ended {
            self.end_advantage(slot);
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
    use crate::model::{Holding, Origin, Rate};
    use crate::signal::Smoothing;

    fn guest(id: &str, pps: Option<f64>, holds: bool) -> GuestView {
        let holds = holds.then(|| Holding { vf: VfId::new("pf0", 0), since_ms: 0 });
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
            let taught = histories.advantages != Advantages::new();
            assert_eq!(taught, learned, "{before:?}, rates over {over_s} s");
        }
    }
}
