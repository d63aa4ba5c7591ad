//! What any policy can collect on average that knows the families' probabilities and sees each burst at the
//! moment it begins, but not when one will begin or end: an upper bound by information relaxation (Brown,
//! Smith, Sun: Information relaxations and duality in stochastic dynamic programs, Operations Research 58,
//! 2010). Knows no policies.
//!
//! The bound is an optimum with the future known, in which each second earns what could be expected of it
//! at its beginning, and pays for what the future shows: of the worth of holding a VF in the next second, taken
//! as `worth` prices of a switch, the part that could not be expected. For a policy that does not know the
//! future both changes are zero on average, whatever `worth` is; so the average of these optima is no less than
//! what it collects. It must keep a VF as long as a switch lasts, and no other limits bind it.

pub mod limited;

use std::iter::once;

use pw_alloc::gain::GainCurve;
use pw_alloc::optimum::{Gains, best};
use pw_alloc::simulate::Scenario;
use pw_alloc::traffic::{Flow, Random, Traffic};

/// Worths of a VF held [prices] that are tried: each gives a bound.
pub const WORTHS: [f64; 3] = [0.0, 0.5, 1.0];
/// Futures drawn for each state.
const DRAWS: u32 = 100_000;
/// A moment this short tells whether a guest bursts [s].
const MOMENT_S: f64 = 1e-6;

/// What can be expected of a state: the gain in its second, the price of a switch at its beginning, and that
/// of a switch one second later [µs].
type Expected = [f64; 3];

/// What can be expected of a guest that bursts, by how long the burst has lasted.
struct Table {
    /// Without a burst.
    off: Expected,
    /// Rising [s].
    ages: Vec<f64>,
    on: Vec<Expected>,
}

impl Table {
    fn of(&self, age_s: Option<f64>) -> Expected {
        let Some(age_s) = age_s else { return self.off };
        let above = self.ages.partition_point(|age| *age <= age_s).min(self.ages.len() - 1);
        let below = above.saturating_sub(1);
        let span = self.ages[above] - self.ages[below];
        let share = if span > 0.0 { ((age_s - self.ages[below]) / span).min(1.0) } else { 0.0 };
        std::array::from_fn(|of| {
            self.on[below][of] + share * (self.on[above][of] - self.on[below][of])
        })
    }
}

/// How bursts come and go: rates, and how long this burst or pause lasts yet.
struct Bursts {
    traffic: Traffic,
    low_pps: f64,
    high_pps: f64,
}

impl Bursts {
    /// None where everything is known in advance.
    const fn of(traffic: Traffic) -> Option<Self> {
        match traffic {
            Traffic::Bursts { low_pps, high_pps, .. }
            | Traffic::HeavyTail { low_pps, high_pps, .. } => {
                Some(Self { traffic, low_pps, high_pps })
            }
            Traffic::Constant(_) | Traffic::Flap { .. } | Traffic::Diurnal { .. } => None,
        }
    }

    fn rest_s(&self, age_s: Option<f64>, random: &mut Random) -> f64 {
        let exponential = |mean: f64, random: &mut Random| -mean * random.share().ln();
        match (self.traffic, age_s) {
            (Traffic::Bursts { burst_s, .. }, Some(_)) => exponential(burst_s, random),
            (Traffic::HeavyTail { least_s, shape, .. }, Some(age_s)) => {
                // Pareto's tail beyond an age is Pareto's again.
                age_s.max(least_s) * random.share().powf(-1.0 / shape) - age_s
            }
            (Traffic::Bursts { apart_s, .. } | Traffic::HeavyTail { apart_s, .. }, None) => {
                exponential(apart_s, random)
            }
            _ => f64::INFINITY,
        }
    }

    /// Draws a future: gains of the coming seconds, and the state after the first.
    fn draw(
        &self,
        age_s: Option<f64>,
        curve: &GainCurve,
        random: &mut Random,
        gains: &mut [f64],
    ) -> Option<f64> {
        let (mut at_s, mut age_s, mut after) = (0.0, age_s, None);
        gains.fill(0.0);
        while at_s < gains.len() as f64 {
            let end_s = at_s + self.rest_s(age_s, random);
            if let Some(age_s) = age_s {
                for (second, share) in (0_u32..).zip(gains.iter_mut()) {
                    let from_s = f64::from(second);
                    *share += (end_s.min(from_s + 1.0) - at_s.max(from_s)).max(0.0);
                }
                after = if at_s <= 1.0 && end_s > 1.0 { Some(1.0 - at_s + age_s) } else { after };
            }
            (at_s, age_s) = (end_s, if age_s.is_some() { None } else { Some(0.0) });
        }
        for gain in gains {
            *gain = curve.gain_us_per_s(self.low_pps + (self.high_pps - self.low_pps) * *gain);
        }
        after
    }

    fn table(&self, scenario: &Scenario) -> Table {
        let ages: Vec<f64> = match self.traffic {
            Traffic::HeavyTail { least_s, .. } => {
                let beyond = std::iter::successors(Some(least_s), |age| Some(age * 1.15))
                    .take_while(|age| *age < f64::from(scenario.duration_s));
                once(0.0).chain([least_s - 1.0].into_iter().filter(|age| *age > 0.0)).chain(beyond)
            }
            .collect(),
            // Without memory: the age plays no part.
            _ => vec![0.0],
        };
        let count = ages.len();
        let mut table = Table { off: [0.0; 3], ages, on: vec![[0.0; 3]; count] };
        let mut gains = vec![0.0; scenario.switch_s.ceil().max(1.0) as usize];
        let weight = 1.0 / f64::from(DRAWS);
        // The price of a switch one second later is known once all prices are.
        for later in [false, true] {
            for state in once(None).chain((0..count).map(Some)) {
                let age_s = state.map(|at| table.ages[at]);
                let mut random = Random::new(1);
                let mut sums = [0.0; 3];
                for _ in 0..DRAWS {
                    let after = self.draw(age_s, &scenario.curve, &mut random, &mut gains);
                    sums[0] += weight * gains[0];
                    sums[1] += weight * price_us(&gains, scenario.switch_s);
                    sums[2] += if later { weight * table.of(after)[1] } else { 0.0 };
                }
                *state.map_or(&mut table.off, |at| &mut table.on[at]) = sums;
            }
        }
        table
    }
}

/// What a switch that lasts so long costs of these seconds' gains [µs].
fn price_us(gains: &[f64], switch_s: f64) -> f64 {
    let seconds = (0_u32..).zip(gains);
    seconds.map(|(second, gain)| gain * (switch_s - f64::from(second)).clamp(0.0, 1.0)).sum()
}

/// What can be expected, by group of guests; none for a group of which all is known.
pub struct Family(Vec<Option<(Bursts, Table)>>);

impl Family {
    /// None where nothing comes by chance.
    pub fn of(scenario: &Scenario) -> Option<Self> {
        let table = |bursts: Bursts| {
            let table = bursts.table(scenario);
            (bursts, table)
        };
        let groups = scenario.groups.iter().map(|group| Bursts::of(group.traffic).map(table));
        let groups: Vec<Option<(Bursts, Table)>> = groups.collect();
        groups.iter().any(Option::is_some).then_some(Self(groups))
    }

    /// The optimum of this scenario, with the gains that could be expected, for each of [`WORTHS`] [µs].
    pub fn optima_us(&self, scenario: &Scenario) -> [f64; WORTHS.len()] {
        let mut seeds = Random::new(scenario.host_seed(0));
        let groups = scenario.group_of_guests();
        let mut guests: Vec<Guest<'_>> = groups
            .into_iter()
            .map(|group| Guest {
                flow: Flow::new(scenario.groups[group].traffic, seeds.draw()),
                known: self.0[group].as_ref(),
                began_s: None,
            })
            .collect();
        let mut gains = WORTHS.map(|_| Gains::new(guests.len()));
        let mut now: Vec<Expected> = guests.iter().map(|guest| guest.expected(0.0)).collect();
        for second in 0..scenario.duration_s {
            let at_s = f64::from(second);
            let price: Vec<f64> = now.iter().map(|expected| expected[1]).collect();
            let mut held: [Vec<f64>; WORTHS.len()] = WORTHS.map(|_| Vec::new());
            for (guest, now) in guests.iter_mut().zip(&mut now) {
                let pps = guest.live(at_s);
                let next = guest.expected(at_s + 1.0);
                for (held, worth) in held.iter_mut().zip(WORTHS) {
                    held.push(if guest.known.is_some() {
                        now[0] - worth * (next[1] - now[2])
                    } else {
                        scenario.curve.gain_us_per_s(pps)
                    });
                }
                *now = next;
            }
            let price = price.iter().enumerate().map(|(at, price)| {
                // Of a steady guest the price is that of its gain.
                if guests[at].known.is_some() { *price } else { held[0][at] * scenario.switch_s }
            });
            let price: Vec<f64> = price.collect();
            for (gains, held) in gains.iter_mut().zip(&held) {
                gains.push(held, &price);
            }
        }
        gains.map(|gains| best(&gains, usize::from(scenario.vfs)).gain_us)
    }
}

struct Guest<'a> {
    flow: Flow,
    known: Option<&'a (Bursts, Table)>,
    /// When the burst began that goes on; none without one [s].
    began_s: Option<f64>,
}

impl Guest<'_> {
    fn expected(&self, at_s: f64) -> Expected {
        self.known.map_or([0.0; 3], |(_, table)| table.of(self.began_s.map(|began| at_s - began)))
    }

    /// Its rate in the second from then on; its state is that at the end.
    fn live(&mut self, from_s: f64) -> f64 {
        let pps = self.flow.pps(from_s, from_s + 1.0);
        if let Some((bursts, _)) = self.known {
            let share = (pps - bursts.low_pps) / (bursts.high_pps - bursts.low_pps);
            let next = self.flow.clone().pps(from_s + 1.0, from_s + 1.0 + MOMENT_S);
            let lasts = self.began_s.filter(|_| share > 1.0 - 1e-9);
            // A burst that follows on another within a second has had half of what is left of it.
            let part = if self.began_s.is_some() { 0.5 } else { 1.0 };
            self.began_s = (next > (bursts.low_pps + bursts.high_pps) / 2.0)
                .then(|| lasts.unwrap_or(from_s + 1.0 - part * share));
        }
        pps
    }
}
