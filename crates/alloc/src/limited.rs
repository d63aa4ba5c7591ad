//! What could have been had with the future known under the limits that a daemon keeps to: a VF stays
//! where it is for a while, and few are given in an interval. An upper bound.
//!
//! Both limits break the network of [`crate::optimum`]: a VF that must stay is with its guest in intervals in
//! which the network would let it go. Instead the limits that bind guests together, so many VFs, so many
//! gives an interval, are given prices (Lagrangian relaxation: Held and Karp, Mathematical Programming 1, 1971;
//! Fisher, Management Science 27, 1981). Each guest alone is then solved exactly, by one pass through time, and the
//! sum is no less than the best that could be had, whatever the prices. They are improved by subgradients.

use crate::optimum::Gains;

/// What binds the one who moves VFs.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// VFs that there are.
    pub vfs: usize,
    /// Intervals for which a guest keeps what it was given, at least 1.
    pub residency: usize,
    /// VFs given in an interval at most.
    pub gives: Option<usize>,
}

/// Steps towards better prices; most of what they bring is there after a third of them.
const STEPS: u32 = 300;
/// Steps without a better bound after which they become half as long.
const PATIENCE: u32 = 10;

/// An upper bound on what anybody could have collected within these limits [µs]. `had_us` is what somebody
/// has collected: it tells how long steps should be.
pub fn bound_us(gains: &Gains, limits: Limits, had_us: f64) -> f64 {
    let intervals = gains.intervals();
    let mut prices = Prices::first(gains, limits);
    let (mut least, mut length, mut since) = (f64::INFINITY, 1.0, 0);
    let mut used = Used::new(intervals);
    for _ in 0..STEPS {
        used.clear();
        let mut value = prices.of(limits);
        for guest in 0..gains.guests() {
            value += alone(gains, guest, limits.residency.max(1), &prices, &mut used);
        }
        if value < least {
            (least, since) = (value, 0);
        } else {
            since += 1;
            if since == PATIENCE {
                (length, since) = (length / 2.0, 0);
            }
        }
        if !prices.improve(&used, limits, length * (value - had_us)) {
            break;
        }
    }
    least
}

/// What a VF costs in each interval, and what a give does [µs].
struct Prices {
    vf: Vec<f64>,
    give: Vec<f64>,
}

impl Prices {
    /// What the first guest that goes without would have gained.
    fn first(gains: &Gains, limits: Limits) -> Self {
        let cut = |interval| {
            let mut held = gains.held(interval).to_vec();
            held.sort_unstable_by(|a, b| b.total_cmp(a));
            held.get(limits.vfs).map_or(0.0, |gain| gain.max(0.0))
        };
        let intervals = gains.intervals();
        Self { vf: (0..intervals).map(cut).collect(), give: vec![0.0; intervals] }
    }

    fn of(&self, limits: Limits) -> f64 {
        let gives = limits.gives.map_or(0.0, |gives| gives as f64 * self.give.iter().sum::<f64>());
        limits.vfs as f64 * self.vf.iter().sum::<f64>() + gives
    }

    /// One step against what is used too much or too little (Polyak, USSR Computational Mathematics 9, 1969);
    /// false when nothing is.
    fn improve(&mut self, used: &Used, limits: Limits, above_us: f64) -> bool {
        let over = |used: &u32, most: usize| f64::from(*used) - most as f64;
        let gives = limits.gives.unwrap_or(usize::MAX);
        // A price of 0 does not fall, and so does not count.
        let part = |over: f64, price: f64| if over < 0.0 && price <= 0.0 { 0.0 } else { over };
        let mut length = 0.0;
        for (prices, used, most) in
            [(&self.vf, &used.vf, limits.vfs), (&self.give, &used.give, gives)]
        {
            length += prices
                .iter()
                .zip(used)
                .map(|(price, used)| part(over(used, most), *price).powi(2))
                .sum::<f64>();
        }
        if length == 0.0 || above_us <= 0.0 {
            return false;
        }
        for (prices, used, most) in
            [(&mut self.vf, &used.vf, limits.vfs), (&mut self.give, &used.give, gives)]
        {
            for (price, used) in prices.iter_mut().zip(used) {
                let over = part(over(used, most), *price);
                *price = (*price + above_us / length * over).max(0.0);
            }
        }
        true
    }
}

/// How many guests hold a VF in each interval, and are given one.
struct Used {
    vf: Vec<u32>,
    give: Vec<u32>,
}

impl Used {
    fn new(intervals: usize) -> Self {
        Self { vf: vec![0; intervals], give: vec![0; intervals] }
    }

    fn clear(&mut self) {
        self.vf.fill(0);
        self.give.fill(0);
    }
}

/// The best for one guest at these prices [µs], and what it uses.
fn alone(gains: &Gains, guest: usize, residency: usize, prices: &Prices, used: &mut Used) -> f64 {
    let intervals = gains.intervals();
    // Of what is left from an interval on: without a VF, and with one that may go.
    let (mut without, mut with) = (vec![0.0; intervals + 1], vec![0.0; intervals + 1]);
    // Of all intervals from one on, if it held throughout.
    let mut held = vec![0.0; intervals + 1];
    for at in (0..intervals).rev() {
        let gain = gains.held(at)[guest] - prices.vf[at];
        held[at] = held[at + 1] + gain;
        let until = (at + residency).min(intervals);
        let given = held[at] - held[until] + with[until] - gains.price(at)[guest] - prices.give[at];
        without[at] = f64::max(without[at + 1], given);
        with[at] = f64::max(without[at], gain + with[at + 1]);
    }
    let (mut at, mut holds) = (0, false);
    while at < intervals {
        if holds && with[at] > without[at] {
            used.vf[at] += 1;
            at += 1;
        } else if without[at] > without[at + 1] {
            let until = (at + residency).min(intervals);
            used.give[at] += 1;
            used.vf[at..until].iter_mut().for_each(|used| *used += 1);
            (at, holds) = (until, true);
        } else {
            holds = false;
            at += 1;
        }
    }
    without[0]
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::optimum::best;
    use crate::traffic::Random;

    /// The best within the limits, by trying who holds next from every state: for how many intervals each
    /// guest has held, 0 for not at all.
    fn brute_force(rows: &[[Vec<f64>; 2]], limits: Limits) -> f64 {
        let guests = rows[0][0].len();
        let mut states = HashMap::from([(vec![0; guests], 0.0)]);
        for [held, price] in rows {
            let mut next: HashMap<Vec<usize>, f64> = HashMap::new();
            for (ages, value) in &states {
                for set in 0_usize..1 << guests {
                    let holds = |guest: &usize| set >> guest & 1 == 1;
                    let given = (0..guests).filter(|guest| holds(guest) && ages[*guest] == 0);
                    let early = |guest: &usize| {
                        !holds(guest) && (1..limits.residency).contains(&ages[*guest])
                    };
                    if set.count_ones() as usize > limits.vfs
                        || limits.gives.is_some_and(|gives| given.clone().count() > gives)
                        || (0..guests).any(|guest| early(&guest))
                    {
                        continue;
                    }
                    let earned: f64 = (0..guests).filter(holds).map(|guest| held[guest]).sum();
                    let paid: f64 = given.map(|guest| price[guest]).sum();
                    let aged = |guest: usize| (ages[guest] + 1).min(limits.residency);
                    let to = (0..guests).map(|at| if holds(&at) { aged(at) } else { 0 }).collect();
                    let reached = next.entry(to).or_insert(f64::NEG_INFINITY);
                    *reached = reached.max(value + earned - paid);
                }
            }
            states = next;
        }
        states.into_values().fold(0.0, f64::max)
    }

    fn made_up(random: &mut Random) -> (Vec<[Vec<f64>; 2]>, Gains) {
        let below = |end: f64, random: &mut Random| (random.share() * end).floor();
        let guests = 1 + below(3.0, random) as usize;
        let rows: Vec<[Vec<f64>; 2]> = (0..1 + below(8.0, random) as usize)
            .map(|_| [9.0, 6.0].map(|end| (0..guests).map(|_| below(end, random)).collect()))
            .collect();
        let mut gains = Gains::new(guests);
        for [held, price] in &rows {
            gains.push(held, price);
        }
        (rows, gains)
    }

    #[test]
    fn is_never_below_and_mostly_equal_to_brute_force_on_a_thousand_small_cases() {
        let (mut equal, mut most) = (0, 0.0_f64);
        for case in 0..1_000 {
            let mut random = Random::new(case);
            let (rows, gains) = made_up(&mut random);
            let limits = Limits {
                vfs: 1 + (random.share() * 2.0) as usize,
                residency: 1 + (random.share() * 4.0) as usize,
                gives: (random.share() < 0.5).then_some(1),
            };
            let truth = brute_force(&rows, limits);
            let bound = bound_us(&gains, limits, 0.9 * truth);
            assert!(bound >= truth - 1e-6, "case {case}: {bound} is below {truth} ({limits:?})");
            equal += u32::from(bound <= truth * 1.001 + 1e-9);
            most = most.max(bound / truth.max(1.0));
        }
        println!("equal in {equal} of 1000 cases, at most {most:.3} times the truth");
        assert!(equal > 800, "{equal} of 1000, {most}");
    }

    #[test]
    fn is_the_optimum_where_no_limit_binds() {
        for case in 0..200 {
            let (_, gains) = made_up(&mut Random::new(case));
            let limits = Limits { vfs: 2, residency: 1, gives: None };
            let optimum = best(&gains, limits.vfs).gain_us;
            let bound = bound_us(&gains, limits, 0.9 * optimum);
            assert!(bound >= optimum - 1e-6);
            assert!(bound <= optimum * 1.05 + 0.5, "case {case}: {bound}, {optimum}");
        }
    }
}
