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

/// No arc.
const NONE: u32 = u32::MAX;

/// One direction of an arc; the number of the other one differs in the last bit.
#[derive(Debug, Clone, Copy)]
struct Half {
    to: u32,
    /// Another one from the same node.
    next: u32,
    /// How much more flow it can carry.
    room: u32,
}

/// The network over time with the flow that it carries.
#[derive(Debug)]
pub struct Network {
    guests: usize,
    halves: Vec<Half>,
    /// By arc [µs].
    costs: Vec<f64>,
    /// By node: one of the arcs from it. An interval's nodes are its hub and then its guests.
    first: Vec<u32>,
    /// What the last interval gains and costs.
    last: [Vec<f64>; 2],
    /// By node: the cost of the cheapest way to it [µs].
    potential: Vec<f64>,
    distance: Vec<f64>,
    /// By node: the last arc of the cheapest way to it.
    by: Vec<u32>,
}

impl Network {
    /// No intervals yet, for so many guests.
    pub fn new(guests: usize) -> Self {
        Self {
            guests,
            halves: Vec::new(),
            costs: Vec::new(),
            first: vec![NONE; guests + 1],
            last: [Vec::new(), Vec::new()],
            potential: Vec::new(),
            distance: Vec::new(),
            by: Vec::new(),
        }
    }

    /// Adds an interval, by guest: what a VF saves in it, and what a give at its beginning costs, which is
    /// never below zero [µs]. An interval like the one before is joined with it: a switch between the two is
    /// never better than one at the beginning of the first or the end of the second.
    pub fn push(&mut self, held: &[f64], price: &[f64]) {
        debug_assert!(held.len() == self.guests && price.len() == self.guests);
        if self.last[0] == held && self.last[1] == price {
            // Of each guest's three arcs the second one holds.
            let arcs = self.costs.len() - 3 * self.guests;
            let holds = self.costs[arcs..].iter_mut().skip(1).step_by(3);
            holds.zip(held).for_each(|(cost, gain)| *cost -= gain);
            return;
        }
        self.last = [held.to_vec(), price.to_vec()];
        let next = self.first.len();
        let hub = next - self.guests - 1;
        self.first.resize(next + self.guests + 1, NONE);
        self.join(hub, next, u32::MAX, 0.0);
        for guest in 1..=self.guests {
            self.join(hub, hub + guest, 1, price[guest - 1]);
            self.join(hub + guest, next + guest, 1, -held[guest - 1]);
            self.join(next + guest, next, 1, 0.0);
        }
    }

    fn join(&mut self, from: usize, to: usize, room: u32, cost: f64) {
        for (from, to, room) in [(from, to, room), (to, from, 0)] {
            let half = self.halves.len() as u32;
            let next = std::mem::replace(&mut self.first[from], half);
            self.halves.push(Half { to: to as u32, next, room });
        }
        self.costs.push(cost);
    }

    /// Calls `reach` with each arc from this node that has room, its end and its cost.
    fn arcs(&mut self, node: usize, mut reach: impl FnMut(&mut Self, u32, usize, f64)) {
        let mut arc = self.first[node];
        while let Some(&Half { to, next, room }) = self.halves.get(arc as usize) {
            if room > 0 {
                let cost = self.costs[arc as usize / 2];
                reach(self, arc, to as usize, if arc & 1 == 0 { cost } else { -cost });
            }
            arc = next;
        }
    }

    /// The most that `vfs` VFs gain, net of switches [µs].
    pub fn optimum(mut self, vfs: usize) -> f64 {
        self.first_potentials();
        let sink = self.first.len() - self.guests - 1;
        let mut gain_us = 0.0;
        for _ in 0..vfs.min(self.guests) {
            self.search(sink);
            let reached = self.distance[sink];
            for (potential, distance) in self.potential.iter_mut().zip(&self.distance) {
                *potential += distance.min(reached);
            }
            // Potentials count from the first hub, which stays at 0: the sink's is the way's cost.
            if reached.is_infinite() || self.potential[sink] >= 0.0 {
                break;
            }
            gain_us -= self.potential[sink];
            let mut node = sink;
            while node != 0 {
                let arc = self.by[node] as usize;
                self.halves[arc].room -= 1;
                self.halves[arc ^ 1].room += 1;
                node = self.halves[arc ^ 1].to as usize;
            }
        }
        gain_us
    }

    /// Costs of the cheapest ways from the first hub, while nothing flows: interval after interval.
    fn first_potentials(&mut self) {
        self.potential = vec![f64::INFINITY; self.first.len()];
        self.potential[0] = 0.0;
        (self.distance, self.by) = (self.potential.clone(), vec![NONE; self.first.len()]);
        for hub in (0..self.first.len()).step_by(self.guests + 1) {
            // VFs are taken, then given, then held.
            let guests = hub + 1..hub + 1 + self.guests;
            for node in guests.clone().chain([hub]).chain(guests) {
                let from = self.potential[node];
                self.arcs(node, |network, _, to, cost| {
                    network.potential[to] = network.potential[to].min(from + cost);
                });
            }
        }
    }

    /// Dijkstra's search by reduced costs, until the sink is settled.
    fn search(&mut self, sink: usize) {
        self.distance.fill(f64::INFINITY);
        self.distance[0] = 0.0;
        let mut queue = BinaryHeap::new();
        // Ways that cost nothing more are followed at once: most are of that kind.
        let (mut level, mut far) = (vec![0], 0.0);
        loop {
            let Some(node) = level.pop() else {
                let Some((Reverse(bits), node)) = queue.pop() else { return };
                far = f64::from_bits(bits);
                level.push(node);
                continue;
            };
            if self.distance[node] != far {
                continue;
            }
            if node == sink {
                return;
            }
            let from = self.potential[node];
            self.arcs(node, |network, arc, to, cost| {
                // Below zero by rounding only.
                let reduced = (cost + from - network.potential[to]).max(0.0);
                if far + reduced < network.distance[to] {
                    network.distance[to] = far + reduced;
                    network.by[to] = arc;
                    if far + reduced == far {
                        level.push(to);
                    } else {
                        // The bits of numbers from 0 have the order of the numbers.
                        queue.push((Reverse((far + reduced).to_bits()), to));
                    }
                }
            });
        }
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

    fn best(guests: usize, rows: &[(Vec<f64>, Vec<f64>)], vfs: usize) -> f64 {
        let mut network = Network::new(guests);
        rows.iter().for_each(|(held, price)| network.push(held, price));
        network.optimum(vfs)
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
            let (found, expected) = (best(guests, &rows, vfs), brute_force(&rows, vfs));
            assert!((found - expected).abs() < 1e-6, "case {case}: {found}, not {expected}");
        }
    }

    #[test]
    fn with_free_switches_the_best_of_every_interval_hold() {
        let rows = [[3.0, 1.0, 2.0], [1.0, 5.0, 2.0]].map(|held| (held.to_vec(), vec![0.0; 3]));
        assert_eq!([1, 2, 9].map(|vfs| best(3, &rows, vfs)), [8.0, 12.0, 14.0]);
    }

    #[test]
    fn a_switch_that_costs_more_than_it_gains_is_not_made() {
        let row = (vec![3.0], vec![4.0]);
        assert_eq!(best(1, std::slice::from_ref(&row), 1), 0.0);
        assert_eq!(best(1, &[row.clone(), row], 1), 2.0);
        assert_eq!(best(0, &[], 3), 0.0);
    }
}
