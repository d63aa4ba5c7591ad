//! What could have been had with the future known under the limits that a daemon keeps to: a VF stays
//! where it is for a while, and few are given in an interval. An upper bound.
//!
//! Both limits break the network of [`pw_alloc::optimum`]: a VF that must stay is with its guest in intervals in
//! which the network would let it go. Instead the limits that bind guests together, so many VFs, so many
//! gives an interval, are given prices (Lagrangian relaxation: Held and Karp, Mathematical Programming 1, 1971;
//! Fisher, Management Science 27, 1981). Each guest alone is then solved exactly, by one pass through time, and the
//! sum is no less than the best that could be had, whatever the prices. They are improved by subgradients.

use pw_alloc::optimum::Gains;

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
