//! How much a waiter forgoes before it takes a VF: ski rental with a threshold that is learned from how
//! long advantages lasted. Knows no VFs and no clock.
//!
//! A waiter that gains more than a holder forgoes the difference second by second (rent), or pays a
//! switch (buys). All amounts here are in prices of that switch. If the whole advantage will come to
//! more than a price, the switch should be made at once, if to less, never; which is unknown. With a
//! threshold of one price the cost is at most twice that of knowing, for one advantage, and no rule
//! without dice does better (Karlin, Manasse, Rudolph, Sleator: Competitive snoopy caching, Algorithmica
//! 3, 1988). Where both ways count, as here, the threshold is two prices and the bound three (Borodin,
//! Linial, Saks: An optimal on-line algorithm for metrical task systems, J. ACM 39, 1992, for two
//! states), which is proven where both cost the same. The second price is that of the switch back, which is
//! less where the holder gains little: a VF given for a burst is then worth having even if it is given
//! back. Nor is the whole price paid in any case: what the waiter itself forgoes while the VF moves is lost
//! only as long as it would have gained, so that an advantage that ends meanwhile has cost no more by the
//! switch than by waiting. The bound's threshold is the rest, what is sunk there and back.
//!
//! Past advantages tell more: the threshold here is the one that would have cost least on them at the price
//! of now (average-case ski rental: Fujiwara, Iwama, Algorithmica 42, 2005). The price is that of now, as
//! leads differ: over a guest that has gone quiet next to nothing is sunk, over one that is as busy two
//! prices. It is used as long as it has cost a guest, or all of them together, no more than `CREDIT` prices
//! beyond what the bound's threshold would have; then that takes over. So with equal prices the cost is at
//! most three times that of knowing, and a constant.

use std::f64::consts::SQRT_2;

/// Thresholds to choose from [prices]: none at all, then each √2 above the one before.
const THRESHOLDS: [f64; 12] = [
    0.0,
    0.125,
    0.125 * SQRT_2,
    0.25,
    0.25 * SQRT_2,
    0.5,
    0.5 * SQRT_2,
    1.0,
    SQRT_2,
    2.0,
    2.0 * SQRT_2,
    MOST,
];
const MOST: f64 = 4.0;

/// Fewer advantages than these teach nothing.
const FEW: f32 = 5.0;
/// What a learned threshold may cost more than that of the bound before it is given up [prices].
const CREDIT: f64 = 2.0;
/// Weight of a guest's advantage relative to its next younger one: some fifty are remembered.
pub const KEEP_PER_GUEST: f32 = 0.98;
/// The same for those of all guests, some two hundred: fifty of a hundred guests are those of the last minute,
/// which tell little.
pub const KEEP_SHARED: f32 = 0.995;
/// The advantages of all guests weigh as much as so many of the guest itself, which is as many as are
/// remembered: the few of one guest are too random.
const SHARED: f32 = 50.0;

/// What a switch and the one that undoes it cost [prices of the first].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Switches {
    /// The part of the advantage that is forgone while the VF moves and until the switch is seen: an advantage
    /// that ends meanwhile costs no more than its remainder.
    pub passing: f64,
    /// The part that is paid in any case.
    pub sunk: f64,
}

impl Switches {
    /// Both cost the same, and all of it is paid in any case.
    pub const ALIKE: Self = Self { passing: 0.0, sunk: 2.0 };

    /// Do they differ enough for another threshold to be the best?
    pub fn differ(self, other: Self) -> bool {
        const LITTLE: f64 = 0.05;
        (self.passing - other.passing).abs().max((self.sunk - other.sunk).abs()) > LITTLE
    }

    /// The cost of an advantage for a guest that switches at this threshold [prices].
    fn cost(self, threshold: f64, advantage: f64) -> f64 {
        if advantage < threshold {
            advantage
        } else {
            threshold + (advantage - threshold).min(self.passing) + self.sunk
        }
    }
}

/// A histogram of past advantages.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Advantages {
    /// By the number of thresholds that the advantage reached: how many, and what they came to [prices].
    bins: [[f32; 2]; THRESHOLDS.len() + 1],
    /// What thresholds that were in force cost more than those of the bound would have [prices].
    excess: f64,
}

impl Advantages {
    /// None yet.
    pub const fn new() -> Self {
        Self { bins: [[0.0; 2]; THRESHOLDS.len() + 1], excess: 0.0 }
    }

    /// Takes in an advantage that has ended [prices], what the switches cost then, and the threshold that
    /// was in force [prices]. Of older ones so much is kept.
    pub fn ended(&mut self, advantage: f64, switches: Switches, used: f64, keep: f32) {
        if !(advantage > 0.0 && advantage.is_finite()) {
            return;
        }
        self.bins.iter_mut().flatten().for_each(|sum| *sum *= keep);
        self.excess += switches.cost(used, advantage) - switches.cost(switches.sunk, advantage);
        let reached = THRESHOLDS.partition_point(|threshold| *threshold <= advantage);
        let [count, sum] = &mut self.bins[reached];
        *count += 1.0;
        *sum += advantage.min(2.0 * MOST) as f32;
    }

    /// Weighted number of advantages.
    fn count(&self) -> f32 {
        self.bins.iter().map(|[count, _]| count).sum()
    }

    /// The threshold for a guest with these advantages, where those of all guests are `shared` and the
    /// switches cost so much now. That of the bound when nothing is known.
    pub fn threshold(&self, shared: &Self, switches: Switches) -> f64 {
        let given_up = self.excess > CREDIT && shared.excess > CREDIT;
        let of_all = shared.count();
        if given_up || self.count() + of_all < FEW {
            return switches.sunk;
        }
        let weight = if of_all > 0.0 { SHARED / of_all } else { 0.0 };
        let mut costs = [0.0; THRESHOLDS.len()];
        for (reached, (guest, all)) in self.bins.iter().zip(&shared.bins).enumerate() {
            let [count, sum] = [0, 1].map(|of| f64::from(guest[of] + weight * all[of]));
            // Advantages between the same two thresholds are taken to be alike.
            let (bought, rented) = costs.split_at_mut(reached);
            for (cost, threshold) in bought.iter_mut().zip(THRESHOLDS) {
                let waited = count * threshold;
                let passing = (sum - waited).clamp(0.0, count * switches.passing);
                *cost += waited + passing + count * switches.sunk;
            }
            rented.iter_mut().for_each(|cost| *cost += sum);
        }
        let best = THRESHOLDS.iter().zip(costs).min_by(|(_, a), (_, b)| a.total_cmp(b));
        best.map_or(switches.sunk, |(threshold, _)| *threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The threshold after these advantages, over and over, with switches that cost so much.
    fn learned_with(advantages: &[f64], switches: Switches) -> f64 {
        let (mut own, nobody) = (Advantages::new(), Advantages::new());
        for advantage in advantages.iter().cycle().take(40) {
            let used = own.threshold(&nobody, switches);
            own.ended(*advantage, switches, used, KEEP_PER_GUEST);
        }
        own.threshold(&nobody, switches)
    }

    /// The same where the switches cost so much whatever the advantage comes to.
    fn learned(advantages: &[f64], sunk: f64) -> f64 {
        learned_with(advantages, Switches { passing: 0.0, sunk })
    }

    #[test]
    fn a_switch_costs_an_advantage_that_ends_meanwhile_no_more_than_is_left_of_it() {
        // Two of three end before the VF has moved: nothing is lost by having tried.
        let advantages = [0.5, 0.5, 3.0];
        assert_eq!(learned_with(&advantages, Switches { passing: 0.9, sunk: 0.2 }), 0.0);
        // Where the same price is paid in any case, it is better to let them pass.
        assert!(learned(&advantages, 1.1) > 0.5);
    }

    #[test]
    fn who_knows_nothing_waits_for_what_is_paid_in_any_case() {
        let switches = Switches { passing: 0.4, sunk: 1.5 };
        assert_eq!(Advantages::new().threshold(&Advantages::new(), switches), 1.5);
    }

    #[test]
    fn advantages_that_last_are_taken_at_once_and_passing_ones_are_let_pass() {
        assert_eq!(learned(&[30.0, 8.0, 12.0], 2.0), 0.0);
        assert!(learned(&[0.3, 0.5, 0.2], 2.0) > 0.5);
        // Some last and some pass early: who waits for the early ones to pass saves their switches.
        let mixed = learned(&[0.1, 0.1, 0.1, 0.1, 20.0], 2.0);
        assert!(mixed > 0.1 && mixed < 0.3, "{mixed}");
        // What pays when the way back costs next to nothing does not when it costs as much.
        assert!(learned(&[1.5], 1.1) == 0.0 && learned(&[1.5], 2.0) > 1.5);
    }

    #[test]
    fn a_guest_without_a_past_does_as_all_the_others_do() {
        let mut shared = Advantages::new();
        for _ in 0..40 {
            shared.ended(20.0, Switches::ALIKE, 2.0, KEEP_SHARED);
        }
        assert_eq!(Advantages::new().threshold(&shared, Switches::ALIKE), 0.0);
        let mut own = Advantages::new();
        for _ in 0..40 {
            own.ended(0.4, Switches::ALIKE, 2.0, KEEP_PER_GUEST);
        }
        assert!(own.threshold(&shared, Switches::ALIKE) > 0.4);
    }

    #[test]
    fn a_threshold_that_has_cost_too_much_is_given_up() {
        let mut shared = Advantages::new();
        for _ in 0..40 {
            shared.ended(20.0, Switches::ALIKE, 2.0, KEEP_SHARED);
        }
        // The others' advantages lasted; each of this guest's passes just when it has switched.
        let mut own = Advantages::new();
        for _ in 0..3 {
            let used = own.threshold(&shared, Switches::ALIKE);
            own.ended(used + 0.01, Switches::ALIKE, used, KEEP_PER_GUEST);
            shared.ended(used + 0.01, Switches::ALIKE, used, KEEP_SHARED);
        }
        assert_eq!(own.threshold(&shared, Switches::ALIKE), 2.0);
        // As long as all together are better off, chance may be against one of them.
        for _ in 0..10 {
            shared.ended(20.0, Switches::ALIKE, 0.0, KEEP_SHARED);
        }
        assert!(own.threshold(&shared, Switches::ALIKE) < 2.0);
    }

    #[test]
    fn numbers_that_make_no_sense_teach_nothing() {
        let mut own = Advantages::new();
        for advantage in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            own.ended(advantage, Switches::ALIKE, 2.0, KEEP_PER_GUEST);
        }
        assert_eq!(own, Advantages::new());
    }

    #[test]
    fn the_threshold_stays_within_its_bounds() {
        for exponent in -20..20 {
            let learned = learned(&[f64::from(exponent).exp2()], 2.0);
            assert!((0.0..=MOST).contains(&learned), "{learned}");
        }
    }
}
