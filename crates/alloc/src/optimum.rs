//! The optimal allocation in hindsight, net of switches: the yardstick of policies. Exact, by minimum-cost
//! flow.
//!
//! Each VF is one unit of flow through time. Per interval there is a hub, for VFs without a holder, and a
//! node for each guest. Arcs: hub to guest (a VF is given: costs the price of the
//! switch), guest to hub (it is taken), guest to the same guest one interval later (it is held: earns
//! the gain; one VF at most), hub to hub. The flow of the highest value is found by successive
//! shortest paths with potentials (Ahuja, Magnanti, Orlin: Network Flows, 1993, section 9.7), one path
//! a VF; the first potentials come from one pass through time, since without flow no arc runs back.
//! Offline paging with weights was solved by such a flow first (Chrobak, Karloff, Payne, Vishwanathan:
//! New results on server problems, SIAM J. Discrete Math. 4, 1991).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What VFs are worth over time: one row an interval, in it one number a guest [µs].
#[derive(Debug, Clone, Default)]
pub struct Gains {
    guests: usize,
    /// Row after row: what a VF saves this guest in this interval.
    held: Vec<f64>,
    /// Row after row: what is lost of that, now and in the intervals to come, when the VF is given at
    /// the beginning of this interval.
    price: Vec<f64>,
}

impl Gains {
    /// No intervals yet, for so many guests.
    pub const fn new(guests: usize) -> Self {
        Self { guests, held: Vec::new(), price: Vec::new() }
    }

    /// Adds an interval. Both slices have one number a guest; no price is below zero. An interval in
    /// which neither differs from the one before is joined with it: a switch between the two is never
    /// better than one at the beginning of the first or the end of the second.
    pub fn push(&mut self, held: &[f64], price: &[f64]) {
        debug_assert!(held.len() == self.guests && price.len() == self.guests);
        self.held.extend_from_slice(held);
        self.price.extend_from_slice(price);
    }

    /// How many guests there are.
    pub const fn guests(&self) -> usize {
        self.guests
    }

    /// How many intervals there are.
    pub fn intervals(&self) -> usize {
        self.held.len().checked_div(self.guests).unwrap_or(0)
    }

    /// What a VF saves each guest in an interval [µs].
    pub fn held(&self, at: usize) -> &[f64] {
        &self.held[at * self.guests..(at + 1) * self.guests]
    }

    /// What a give at the beginning of an interval costs, by guest [µs].
    pub fn price(&self, at: usize) -> &[f64] {
        &self.price[at * self.guests..(at + 1) * self.guests]
    }

    /// The intervals as (the first of some that are alike, how many).
    fn rows(&self) -> Vec<(usize, usize)> {
        let mut rows: Vec<(usize, usize)> = Vec::new();
        for at in 0..self.intervals() {
            match rows.last_mut() {
                Some((first, times))
                    if self.held(*first) == self.held(at)
                        && self.price(*first) == self.price(at) =>
                {
                    *times += 1;
                }
                _ => rows.push((at, 1)),
            }
        }
        rows
    }
}

/// The optimum.
#[derive(Debug, Clone, PartialEq)]
pub struct Best {
    /// Its gain, net of switches [µs].
    pub gain_us: f64,
    /// How many VFs it gives.
    pub gives: usize,
}

/// The optimum of `vfs` VFs.
pub fn best(gains: &Gains, vfs: usize) -> Best {
    let mut network = Network::new(gains);
    for _ in 0..vfs.min(gains.guests) {
        if !network.augment() {
            break;
        }
    }
    Best { gain_us: network.gain_us(), gives: network.given.iter().filter(|&&given| given).count() }
}

/// How a node was reached on the shortest path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arc {
    /// Hub to hub, one interval on.
    Wait,
    /// The same, undone.
    Unwait,
    /// Hub to guest.
    Give,
    /// The same, undone: guest to hub.
    Ungive,
    /// Guest to hub.
    Take,
    /// The same, undone: hub to guest.
    Untake,
    /// Guest to guest, one interval on.
    Hold,
    /// The same, undone.
    Unhold,
}

/// The network over time with the flow that it carries. Costs are whole numbers, so that reduced costs
/// are never below zero by rounding.
struct Network {
    guests: usize,
    intervals: usize,
    /// By interval and guest.
    gain: Vec<i64>,
    /// By interval and guest.
    price: Vec<i64>,
    /// How many of the whole numbers make one µs.
    scale: f64,
    /// By interval and guest: the arcs that carry flow.
    held: Vec<bool>,
    given: Vec<bool>,
    taken: Vec<bool>,
    /// By interval: VFs that lie in the hub.
    waiting: Vec<u32>,
    /// By node.
    potential: Vec<i64>,
    distance: Vec<i64>,
    reached: Vec<(Arc, u32)>,
}

const FAR: i64 = i64::MAX / 4;

/// The largest number becomes at most this: the sum over a hundred years of seconds fits into 63 bits.
const FINEST: f64 = (1_u64 << 31) as f64;

impl Network {
    fn new(gains: &Gains) -> Self {
        let rows = gains.rows();
        let most = rows
            .iter()
            .flat_map(|&(at, times)| {
                let held = gains.held(at).iter().map(move |v| v * times as f64);
                held.chain(gains.price(at).iter().copied())
            })
            .fold(0.0, f64::max);
        // A power of two, so that whole numbers stay exact.
        let scale = if most > 0.0 { (FINEST / most).log2().floor().exp2() } else { 1.0 };
        let whole = |value: f64| (value * scale).round() as i64;
        let (guests, intervals) = (gains.guests, rows.len());
        let mut gain = Vec::with_capacity(guests * intervals);
        let mut price = Vec::with_capacity(guests * (intervals + 1));
        for (at, times) in rows {
            gain.extend(gains.held(at).iter().map(|v| whole(v * times as f64)));
            price.extend(gains.price(at).iter().map(|v| whole(*v)));
        }
        let nodes = (intervals + 1) * (guests + 1);
        let mut network = Self {
            guests,
            intervals,
            scale,
            held: vec![false; gain.len()],
            given: vec![false; gain.len()],
            taken: vec![false; gain.len() + guests],
            waiting: vec![0; intervals],
            gain,
            price,
            potential: vec![FAR; nodes],
            distance: Vec::new(),
            reached: Vec::new(),
        };
        network.first_potentials();
        network.distance = vec![FAR; nodes];
        network.reached = vec![(Arc::Wait, 0); nodes];
        network
    }

    const fn hub(&self, interval: usize) -> usize {
        interval * (self.guests + 1)
    }

    /// Costs of the cheapest ways from the first hub, while nothing flows: interval after interval.
    fn first_potentials(&mut self) {
        self.potential[0] = 0;
        for interval in 0..=self.intervals {
            let hub = self.hub(interval);
            for guest in 0..self.guests {
                self.potential[hub] = self.potential[hub].min(self.potential[hub + 1 + guest]);
            }
            if interval == self.intervals {
                break;
            }
            let next = hub + self.guests + 1;
            self.potential[next] = self.potential[next].min(self.potential[hub]);
            for guest in 0..self.guests {
                let (at, slot) = (hub + 1 + guest, interval * self.guests + guest);
                self.potential[at] = self.potential[at].min(self.potential[hub] + self.price[slot]);
                self.potential[next + 1 + guest] = self.potential[at] - self.gain[slot];
            }
        }
    }

    /// Sends one more VF along the cheapest path through time; false when that would gain nothing.
    fn augment(&mut self) -> bool {
        let sink = self.hub(self.intervals);
        self.search(sink);
        if self.distance[sink] >= FAR {
            return false;
        }
        let reached = self.distance[sink];
        for (potential, distance) in self.potential.iter_mut().zip(&self.distance) {
            *potential += (*distance).min(reached);
        }
        // Potentials count from the first hub, which stays at 0: the sink's is the way's cost.
        if self.potential[sink] >= 0 {
            return false;
        }
        self.send(sink);
        true
    }

    /// Dijkstra's search by reduced costs, until the sink is settled.
    fn search(&mut self, sink: usize) {
        self.distance.fill(FAR);
        self.distance[0] = 0;
        let mut queue = BinaryHeap::new();
        // Ways that cost nothing more are followed at once: most are of that kind.
        let mut level = vec![0_usize];
        let mut far = 0;
        loop {
            let Some(node) = level.pop() else {
                let Some((Reverse(distance), node)) = queue.pop() else { return };
                if distance == self.distance[node] {
                    far = distance;
                    level.push(node);
                }
                continue;
            };
            if self.distance[node] != far {
                continue;
            }
            if node == sink {
                return;
            }
            let mut relax = |network: &mut Self, to: usize, cost: i64, arc: Arc| {
                let reduced = cost + network.potential[node] - network.potential[to];
                let distance = far + reduced;
                if distance < network.distance[to] {
                    network.distance[to] = distance;
                    network.reached[to] = (arc, node as u32);
                    if reduced == 0 {
                        level.push(to);
                    } else {
                        queue.push((Reverse(distance), to));
                    }
                }
            };
            let (interval, place) = (node / (self.guests + 1), node % (self.guests + 1));
            if place == 0 {
                self.relax_hub(interval, &mut relax);
            } else {
                self.relax_guest(interval, place - 1, &mut relax);
            }
        }
    }

    fn relax_hub(&mut self, interval: usize, relax: &mut impl FnMut(&mut Self, usize, i64, Arc)) {
        let hub = self.hub(interval);
        if interval < self.intervals {
            relax(self, hub + self.guests + 1, 0, Arc::Wait);
            for guest in 0..self.guests {
                let slot = interval * self.guests + guest;
                if !self.given[slot] {
                    let price = self.price[slot];
                    relax(self, hub + 1 + guest, price, Arc::Give);
                }
            }
        }
        if interval > 0 && self.waiting[interval - 1] > 0 {
            relax(self, hub - self.guests - 1, 0, Arc::Unwait);
        }
        for guest in 0..self.guests {
            if self.taken[interval * self.guests + guest] {
                relax(self, hub + 1 + guest, 0, Arc::Untake);
            }
        }
    }

    fn relax_guest(
        &mut self,
        interval: usize,
        guest: usize,
        relax: &mut impl FnMut(&mut Self, usize, i64, Arc),
    ) {
        let node = self.hub(interval) + 1 + guest;
        let slot = interval * self.guests + guest;
        if interval < self.intervals {
            if !self.held[slot] {
                let gain = self.gain[slot];
                relax(self, node + self.guests + 1, -gain, Arc::Hold);
            }
            if self.given[slot] {
                let price = self.price[slot];
                relax(self, self.hub(interval), -price, Arc::Ungive);
            }
        }
        if interval > 0 && self.held[slot - self.guests] {
            let gain = self.gain[slot - self.guests];
            relax(self, node - self.guests - 1, gain, Arc::Unhold);
        }
        if !self.taken[slot] {
            relax(self, self.hub(interval), 0, Arc::Take);
        }
    }

    /// Changes the flow along the way that was found, from its end.
    fn send(&mut self, sink: usize) {
        let step = self.guests + 1;
        let mut node = sink;
        while node != 0 {
            let (arc, previous) = self.reached[node];
            let previous = previous as usize;
            // The guest's node of the two, if any, in its interval.
            let at = if node.is_multiple_of(step) { previous } else { node };
            let slot = (at / step) * self.guests + (at % step).saturating_sub(1);
            match arc {
                Arc::Wait => self.waiting[previous / step] += 1,
                Arc::Unwait => self.waiting[node / step] -= 1,
                Arc::Give => self.given[slot] = true,
                Arc::Ungive => self.given[slot] = false,
                Arc::Take => self.taken[slot] = true,
                Arc::Untake => self.taken[slot] = false,
                Arc::Hold => self.held[slot - self.guests] = true,
                Arc::Unhold => self.held[slot] = false,
            }
            node = previous;
        }
    }

    fn gain_us(&self) -> f64 {
        let held: i64 =
            self.gain.iter().zip(&self.held).filter(|(_, on)| **on).map(|(v, _)| v).sum();
        let paid: i64 =
            self.price.iter().zip(&self.given).filter(|(_, on)| **on).map(|(v, _)| v).sum();
        (held - paid) as f64 / self.scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All ways of giving and taking, tried one by one: who may hold is a set of guests.
    fn brute_force(rows: &[(Vec<f64>, Vec<f64>)], vfs: usize) -> f64 {
        let guests = rows.first().map_or(0, |row| row.0.len());
        let sets: Vec<usize> =
            (0..1 << guests).filter(|set: &usize| set.count_ones() as usize <= vfs).collect();
        let mut value = vec![f64::NEG_INFINITY; 1 << guests];
        value[0] = 0.0;
        for (held, price) in rows {
            let mut next = vec![f64::NEG_INFINITY; 1 << guests];
            for &to in &sets {
                let earned: f64 = (0..guests).filter(|g| to >> g & 1 == 1).map(|g| held[g]).sum();
                for &from in &sets {
                    let paid: f64 =
                        (0..guests).filter(|g| (to & !from) >> g & 1 == 1).map(|g| price[g]).sum();
                    next[to] = next[to].max(value[from] + earned - paid);
                }
            }
            value = next;
        }
        value.into_iter().fold(0.0, f64::max)
    }

    struct Lots(u64);

    impl Lots {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) % end
        }
    }

    #[test]
    fn equals_brute_force_on_a_thousand_small_cases() {
        for case in 0..1_000 {
            let mut lots = Lots(case);
            let guests = 1 + lots.below(5) as usize;
            let vfs = lots.below(guests as u64 + 2) as usize;
            // Few values, so that ties and intervals that are alike occur.
            let values = 2 + lots.below(9);
            let rows: Vec<(Vec<f64>, Vec<f64>)> = (0..lots.below(9))
                .map(|_| {
                    let mut row = |least: f64| {
                        let value = |_| lots.below(values) as f64 + least;
                        (0..guests).map(value).collect::<Vec<f64>>()
                    };
                    // In every other case, to hold may cost something.
                    (row(-((case % 2) as f64)), row(0.0))
                })
                .collect();
            let mut gains = Gains::new(guests);
            for (held, price) in &rows {
                gains.push(held, price);
            }
            let (found, expected) = (best(&gains, vfs).gain_us, brute_force(&rows, vfs));
            assert!((found - expected).abs() < 1e-6, "case {case}: {found}, not {expected}");
        }
    }

    #[test]
    fn with_free_switches_the_best_of_every_interval_hold() {
        let mut gains = Gains::new(3);
        gains.push(&[3.0, 1.0, 2.0], &[0.0; 3]);
        gains.push(&[1.0, 5.0, 2.0], &[0.0; 3]);
        assert_eq!(best(&gains, 1).gain_us, 8.0);
        assert_eq!(best(&gains, 2).gain_us, 12.0);
        assert_eq!(best(&gains, 9).gain_us, 14.0);
    }

    #[test]
    fn a_switch_that_costs_more_than_it_gains_is_not_made() {
        let mut gains = Gains::new(1);
        gains.push(&[3.0], &[4.0]);
        assert_eq!(best(&gains, 1), Best { gain_us: 0.0, gives: 0 });
        gains.push(&[3.0], &[4.0]);
        assert_eq!(best(&gains, 1), Best { gain_us: 2.0, gives: 1 });
        assert_eq!(best(&Gains::new(0), 3), Best { gain_us: 0.0, gives: 0 });
    }
}
