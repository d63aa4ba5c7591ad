//! How much a waiter forgoes before it takes a VF: ski rental with a threshold that is learned from how
//! long advantages lasted. Knows no VFs and no clock.
//!
//! A waiter that gains more than a holder forgoes the difference second by second (rent), or pays a
//! switch (buys). All amounts here are in prices of that switch. If the whole advantage will come to
//! more than a price, the switch should be made at once, if to less, never; nobody knows which. With a
//! threshold of one price the cost is at most twice that of knowing, for one advantage, and no rule
//! without dice does better (Karlin, Manasse, Rudolph, Sleator: Competitive snoopy caching, Algorithmica
//! 3, 1988). Where both ways count, as here, the threshold is two prices and the bound three (Borodin,
//! Linial, Saks: An optimal on-line algorithm for metrical task systems, J. ACM 39, 1992, for two
//! states), which is proven where both cost the same. The second price is that of the switch back, which is
//! less where the holder gains little: a VF given for a burst is then worth having even if it is given
//! back. Past advantages tell more: the threshold here is the one that would have cost least on them
//! (average-case ski rental: Fujiwara, Iwama, Algorithmica 42, 2005). It is used as long as it has cost
//! a guest, or all of them together, no more than `CREDIT` prices beyond what the bound's threshold would
//! have; then that takes over. So with equal prices the cost is at most three times that of knowing, and a
//! constant.

/// Thresholds to choose from: none at all, then an eighth of a price to four, each √2 above the one before.
const THRESHOLDS: usize = 12;
const LEAST: f64 = 0.125;
/// The largest threshold, as `LEAST` · √2¹⁰.
pub const MOST: f64 = 4.0;

/// So few advantages teach nothing yet.
const FEW: f32 = 5.0;
/// What a learned threshold may cost more than that of the bound before it is given up [prices].
const CREDIT: f64 = 2.0;
/// An older advantage of one's own counts so much less than the next younger one: some fifty are remembered.
pub const KEEP_OWN: f32 = 0.98;
/// The same for those of all guests, some two hundred: fifty of a hundred guests are those of the last minute,
/// which tell little.
pub const KEEP_SHARED: f32 = 0.995;
/// What is known of all guests counts as much as so many advantages of one's own, which is as many as are
/// remembered: by its own few, a guest takes chance for its nature.
const SHARED: f64 = 50.0;

fn threshold(place: usize) -> f64 {
    match place {
        0 => 0.0,
        _ => LEAST * ((place - 1) as f64 / 2.0).exp2(),
    }
}

/// Past advantages: how often they came to so much, weighed by the price at the time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Advantages {
    /// By the number of thresholds that the advantage reached: weight, and weight times advantage and
    /// times the price of the switches there and back.
    bins: [[f32; 3]; THRESHOLDS + 1],
    /// How many there were, older ones forgotten.
    count: f32,
    /// What thresholds that were in force cost more than those of the bound would have [prices].
    excess: f64,
}

/// What an advantage costs somebody who switches at this threshold, and pays for going there and back
/// [prices].
fn cost(threshold: f64, advantage: f64, there_and_back: f64) -> f64 {
    if advantage < threshold { advantage } else { threshold + there_and_back }
}

impl Advantages {
    /// None yet.
    pub const fn new() -> Self {
        Self { bins: [[0.0; 3]; THRESHOLDS + 1], count: 0.0, excess: 0.0 }
    }

    /// Takes in an advantage that has ended [prices], the price that a switch had [µs], that of the
    /// switches there and back [prices], and the threshold that was in force [prices]. Of older ones so
    /// much is kept.
    pub fn ended(
        &mut self,
        advantage: f64,
        price_us: f64,
        there_and_back: f64,
        used: f64,
        keep: f32,
    ) {
        if !(advantage > 0.0 && advantage.is_finite() && price_us > 0.0 && price_us.is_finite()) {
            return;
        }
        self.bins.iter_mut().flatten().for_each(|sum| *sum *= keep);
        self.count = self.count * keep + 1.0;
        self.excess +=
            cost(used, advantage, there_and_back) - cost(there_and_back, advantage, there_and_back);
        let reached = (0..THRESHOLDS).take_while(|&at| threshold(at) <= advantage).count();
        let [weight, sum, paid] = &mut self.bins[reached];
        *weight += price_us as f32;
        *sum += (price_us * advantage.min(2.0 * MOST)) as f32;
        *paid += (price_us * there_and_back) as f32;
    }

    /// What each threshold would have cost on average [prices]; none when nothing is known.
    fn costs(&self) -> Option<[f64; THRESHOLDS]> {
        let total = |of: usize| self.bins.iter().map(|bin| f64::from(bin[of])).sum::<f64>();
        let all = total(0);
        if all <= 0.0 {
            return None;
        }
        let (mut rented, mut bought, mut paid) = (0.0, all, total(2));
        let mut costs = [0.0; THRESHOLDS];
        for (at, cost) in costs.iter_mut().enumerate() {
            let [weight, sum, switches] = self.bins[at].map(f64::from);
            rented += sum;
            bought -= weight;
            paid -= switches;
            *cost = (rented + bought.max(0.0) * threshold(at) + paid.max(0.0)) / all;
        }
        Some(costs)
    }

    /// The threshold for a guest with these advantages, where those of all guests are `shared` and the
    /// switches there and back cost so much [prices]. That of the bound when nothing is known.
    pub fn threshold(&self, shared: &Self, there_and_back: f64) -> f64 {
        let given_up = self.excess > CREDIT && shared.excess > CREDIT;
        if given_up || self.count + shared.count < FEW {
            return there_and_back;
        }
        let mut cost = [0.0; THRESHOLDS];
        for (costs, weight) in [(self.costs(), f64::from(self.count)), (shared.costs(), SHARED)] {
            for (sum, cost) in cost.iter_mut().zip(costs.unwrap_or_default()) {
                *sum += weight * cost;
            }
        }
        let best = (0..THRESHOLDS).min_by(|&a, &b| cost[a].total_cmp(&cost[b]));
        match best {
            Some(at) if cost[at] > 0.0 => threshold(at),
            _ => there_and_back,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The threshold after these advantages, over and over, with switches that cost the same both ways.
    fn learned(advantages: &[f64], there_and_back: f64) -> f64 {
        let (mut own, nobody) = (Advantages::new(), Advantages::new());
        for advantage in advantages.iter().cycle().take(40) {
            let used = own.threshold(&nobody, there_and_back);
            own.ended(*advantage, 1_000.0, there_and_back, used, KEEP_OWN);
        }
        own.threshold(&nobody, there_and_back)
    }

    #[test]
    fn who_knows_nothing_waits_for_the_price_there_and_back() {
        assert_eq!(Advantages::new().threshold(&Advantages::new(), 1.5), 1.5);
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
            shared.ended(20.0, 5.0, 2.0, 2.0, KEEP_SHARED);
        }
        assert_eq!(Advantages::new().threshold(&shared, 2.0), 0.0);
        let mut own = Advantages::new();
        for _ in 0..40 {
            own.ended(0.4, 5_000.0, 2.0, 2.0, KEEP_OWN);
        }
        assert!(own.threshold(&shared, 2.0) > 0.4);
    }

    #[test]
    fn a_threshold_that_has_cost_too_much_is_given_up() {
        let mut shared = Advantages::new();
        for _ in 0..40 {
            shared.ended(20.0, 1.0, 2.0, 2.0, KEEP_SHARED);
        }
        // The others' advantages lasted; each of this guest's passes just when it has switched.
        let mut own = Advantages::new();
        for _ in 0..3 {
            let used = own.threshold(&shared, 2.0);
            own.ended(used + 0.01, 1.0, 2.0, used, KEEP_OWN);
            shared.ended(used + 0.01, 1.0, 2.0, used, KEEP_SHARED);
        }
        assert_eq!(own.threshold(&shared, 2.0), 2.0);
        // As long as all together are better off, chance may be against one of them.
        for _ in 0..10 {
            shared.ended(20.0, 1.0, 2.0, 0.0, KEEP_SHARED);
        }
        assert!(own.threshold(&shared, 2.0) < 2.0);
    }

    #[test]
    fn numbers_that_make_no_sense_teach_nothing() {
        let mut own = Advantages::new();
        for (advantage, price_us) in
            [(f64::NAN, 1.0), (1.0, f64::INFINITY), (-1.0, 1.0), (0.0, 1.0), (1.0, 0.0)]
        {
            own.ended(advantage, price_us, 2.0, 2.0, KEEP_OWN);
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
