//! Ski rental: what a waiter forgoes is summed up in prices of the switch, and at a threshold it takes the VF. The
//! threshold is fixed, thrown with dice for each advantage, or learned from past ones, as `benefit` does
//! (`pw_alloc::patience`).

use std::f64::consts::E;

use pw_alloc::patience::{Advantages, KEEP_PER_GUEST, KEEP_SHARED, Switches};
use pw_alloc::traffic::Random;

use crate::game::Policy;

/// A gain is of a second that is over, on average half a second old [s].
const LAG_S: f64 = 0.5;

/// Where thresholds come from.
pub enum Thresholds {
    /// Always so many prices.
    Fixed(f64),
    /// From 0 to so many prices, by the density that is best against an adversary who does not see the dice: e^x /
    /// (e - 1) (Karlin, Manasse, McGeoch, Owicki: Competitive randomized algorithms for nonuniform problems,
    /// Algorithmica 11, 1994), for one price; stretched to two where both ways are paid.
    Drawn(f64, Random),
    /// From the advantages of the guest's class; `shared` are those of all, where they count, too.
    Learned { class: Vec<usize>, classes: Vec<Advantages>, shared: Option<Advantages> },
}

impl Thresholds {
    pub const fn drawn(prices: f64, seed: u64) -> Self {
        Self::Drawn(prices, Random::new(!seed))
    }

    pub fn learned(class: Vec<usize>, shared: bool) -> Self {
        let classes = class.iter().max().map_or(0, |last| last + 1);
        let (classes, shared) = (vec![Advantages::new(); classes], shared.then(Advantages::new));
        Self::Learned { class, classes, shared }
    }

    fn next(&mut self, guest: usize, switches: Switches) -> f64 {
        match self {
            Self::Fixed(prices) => *prices,
            Self::Drawn(prices, random) => *prices * (1.0 + random.share() * (E - 1.0)).ln(),
            Self::Learned { class, classes, shared } => {
                let of_class = &classes[class[guest]];
                of_class.threshold(shared.as_ref().unwrap_or(of_class), switches)
            }
        }
    }
}

/// A guest's lead over another.
#[derive(Clone)]
struct Lead {
    /// What waiting has cost it [prices].
    regret: f64,
    threshold: f64,
    /// The most that the advantage came to, and what it comes to now [prices].
    most: f64,
    sum: f64,
    price_us: f64,
    switches: Switches,
    /// Whose VF it took.
    rival: Option<usize>,
}

const NONE: Lead = Lead {
    regret: 0.0,
    threshold: 0.0,
    most: 0.0,
    sum: 0.0,
    price_us: 0.0,
    switches: Switches::ALIKE,
    rival: None,
};

/// The policy.
pub struct SkiRental {
    thresholds: Thresholds,
    switch_s: f64,
    gains: Vec<f64>,
    leads: Vec<Lead>,
}

impl SkiRental {
    pub fn new(thresholds: Thresholds, guests: usize, switch_s: f64) -> Self {
        Self { thresholds, switch_s, gains: Vec::new(), leads: vec![NONE; guests] }
    }

    /// The price of the switch, and what it and the one that undoes it cost, as `benefit` reckons.
    fn price(&self, waiting: f64, holding: f64) -> (f64, Switches) {
        let ahead = (waiting - holding).max(0.0);
        let price_us = self.switch_s * waiting.max(holding) + LAG_S * ahead;
        let back_us = self.switch_s * holding + LAG_S * ahead.min(holding);
        let [passing, back] = [(self.switch_s + LAG_S) * ahead, back_us]
            .map(|us| (us / price_us.max(f64::MIN_POSITIVE)).min(1.0));
        (price_us, Switches { passing, sunk: 1.0 - passing + back })
    }

    /// A guest's advantage is over: it is learned from.
    fn end(&mut self, guest: usize) {
        let lead = std::mem::replace(&mut self.leads[guest], NONE);
        let Thresholds::Learned { class, classes, shared } = &mut self.thresholds else { return };
        let keep = if shared.is_some() { KEEP_PER_GUEST } else { KEEP_SHARED };
        classes[class[guest]].ended(lead.most, lead.switches, lead.threshold, keep);
        if let Some(shared) = shared {
            shared.ended(lead.most, lead.switches, lead.threshold, KEEP_SHARED);
        }
    }
}

impl Policy for SkiRental {
    fn observe(&mut self, gains: &[f64], held: &[bool]) {
        self.gains = gains.to_vec();
        let mut order: Vec<usize> = (0..gains.len()).collect();
        order.sort_by(|&a, &b| gains[b].total_cmp(&gains[a]));
        let holders: Vec<usize> = order.iter().rev().copied().filter(|&at| held[at]).collect();
        // The best waiter against the holder that gains least, the second against the second.
        for (place, waiter) in order.into_iter().filter(|&at| !held[at]).enumerate() {
            let Some(&holder) = holders.get(place).or(holders.last()) else { return };
            let (price_us, switches) = self.price(gains[waiter], gains[holder]);
            let before = self.leads[waiter].regret;
            let ahead = (gains[waiter] - gains[holder]) / price_us.max(f64::MIN_POSITIVE);
            let regret = (before + ahead).max(0.0);
            let lead = &mut self.leads[waiter];
            lead.regret = regret;
            if regret > lead.most {
                (lead.most, lead.price_us) = (regret, price_us);
                let learns = matches!(self.thresholds, Thresholds::Learned { .. });
                if before == 0.0 || learns && switches.differ(lead.switches) {
                    lead.switches = switches;
                    lead.threshold = self.thresholds.next(waiter, switches);
                }
            }
            if regret == 0.0 && lead.most > 0.0 {
                self.end(waiter);
            }
        }
        for holder in holders {
            let lead = &mut self.leads[holder];
            let Some(rival) = lead.rival else { continue };
            lead.sum += (gains[holder] - gains[rival]) / lead.price_us.max(f64::MIN_POSITIVE);
            lead.most = lead.most.max(lead.sum);
            if lead.sum <= lead.most - 1.0 {
                self.end(holder);
            }
        }
    }

    fn worth(&self) -> &[f64] {
        &self.gains
    }

    fn takes(&mut self, waiter: usize, holder: usize) -> bool {
        let lead = &self.leads[waiter];
        self.gains[waiter] > self.gains[holder]
            && lead.regret > 0.0
            && lead.regret >= lead.threshold
    }

    fn taken(&mut self, waiter: usize, holder: usize) {
        self.end(holder);
        let lead = &mut self.leads[waiter];
        (lead.regret, lead.sum, lead.rival) = (0.0, lead.most, Some(holder));
    }
}
