//! How much made-up guests send: kinds of traffic, and the rates that follow from a seed.

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};

/// How much a guest sends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Traffic {
    /// Always the same [packets per second].
    Constant(f64),
    /// High and low in turns, starting at a random moment of the period.
    Flap {
        /// In the low half [packets per second].
        low_pps: f64,
        /// In the high half [packets per second].
        high_pps: f64,
        /// High and low together [s].
        period_s: f64,
    },
    /// Low, with bursts that begin at random and last for random times (both memoryless).
    Bursts {
        /// Between bursts [packets per second].
        low_pps: f64,
        /// In bursts [packets per second].
        high_pps: f64,
        /// Mean time between bursts [s].
        apart_s: f64,
        /// Mean time of a burst [s].
        burst_s: f64,
    },
    /// The same with times of bursts from a Pareto distribution: most are short, few very long.
    HeavyTail {
        /// Between bursts [packets per second].
        low_pps: f64,
        /// In bursts [packets per second].
        high_pps: f64,
        /// Mean time between bursts, memoryless [s].
        apart_s: f64,
        /// Shortest burst [s].
        least_s: f64,
        /// Exponent of the tail, above 1; the smaller, the heavier.
        shape: f64,
    },
    /// Rises and falls like a day, as a sine from a random phase.
    Diurnal {
        /// At night [packets per second].
        low_pps: f64,
        /// At noon [packets per second].
        high_pps: f64,
        /// A day [s].
        period_s: f64,
    },
}

impl Traffic {
    /// Rates and times that make sense: what is wrong otherwise.
    pub fn fault(&self) -> Option<&'static str> {
        let (rates, times) = match *self {
            Self::Constant(pps) => ([pps, pps], [1.0, 1.0]),
            Self::Flap { low_pps, high_pps, period_s }
            | Self::Diurnal { low_pps, high_pps, period_s } => {
                ([low_pps, high_pps], [period_s, 1.0])
            }
            Self::Bursts { low_pps, high_pps, apart_s, burst_s } => {
                ([low_pps, high_pps], [apart_s, burst_s])
            }
            Self::HeavyTail { low_pps, high_pps, apart_s, least_s, shape } => {
                if !(1.01..=100.0).contains(&shape) {
                    return Some("give a shape from 1.01 to 100");
                }
                ([low_pps, high_pps], [apart_s, least_s])
            }
        };
        let sound = rates.iter().all(|rate| (0.0..=1e8).contains(rate))
            && times.iter().all(|time| (1e-3..=1e8).contains(time));
        (!sound)
            .then_some("give rates from 0 to 1e8 packets per second, and times from 0.001 to 1e8 s")
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, and the same everywhere.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number in (0, 1].
    pub fn share(&mut self) -> f64 {
        ((self.draw() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.share().ln()
    }
}

/// The traffic of one guest as time goes on.
#[derive(Debug, Clone)]
pub struct Flow {
    traffic: Traffic,
    random: Random,
    phase: f64,
    bursting: bool,
    /// When the present burst or pause ends [s].
    until_s: f64,
}

impl Flow {
    /// A guest's traffic; the same seed gives the same.
    pub fn new(traffic: Traffic, seed: u64) -> Self {
        // The first numbers of neighbouring seeds are alike in nothing.
        let mut random = Random::new(Random::new(seed).draw());
        let phase = random.share();
        let mut flow = Self { traffic, random, phase, bursting: true, until_s: 0.0 };
        flow.turn();
        flow
    }

    /// Ends the present burst or pause, and draws how long the next one lasts.
    fn turn(&mut self) {
        self.bursting = !self.bursting;
        self.until_s += match (self.traffic, self.bursting) {
            (Traffic::Bursts { burst_s, .. }, true) => self.random.exponential(burst_s),
            (Traffic::HeavyTail { least_s, shape, .. }, true) => {
                least_s * self.random.share().powf(-1.0 / shape)
            }
            (Traffic::Bursts { apart_s, .. } | Traffic::HeavyTail { apart_s, .. }, false) => {
                self.random.exponential(apart_s)
            }
            _ => f64::INFINITY,
        };
    }

    /// Its mean rate from one moment to a later one [packets per second]. Ask in the order of time.
    pub fn pps(&mut self, from_s: f64, to_s: f64) -> f64 {
        match self.traffic {
            Traffic::Constant(pps) => pps,
            Traffic::Flap { low_pps, high_pps, period_s } => {
                let place = (from_s / period_s + self.phase).fract();
                if place < 0.5 { high_pps } else { low_pps }
            }
            Traffic::Diurnal { low_pps, high_pps, period_s } => {
                let wave = (TAU * (from_s / period_s + self.phase)).sin();
                low_pps + (high_pps - low_pps) * (1.0 + wave) / 2.0
            }
            Traffic::Bursts { low_pps, high_pps, .. }
            | Traffic::HeavyTail { low_pps, high_pps, .. } => {
                let (mut at_s, mut high_s) = (from_s, 0.0);
                while self.until_s < to_s {
                    high_s += if self.bursting { (self.until_s - at_s).max(0.0) } else { 0.0 };
                    at_s = self.until_s.max(at_s);
                    self.turn();
                }
                high_s += if self.bursting { to_s - at_s } else { 0.0 };
                let share = if to_s > from_s { high_s / (to_s - from_s) } else { 0.0 };
                low_pps + (high_pps - low_pps) * share
            }
        }
    }

    /// Sends otherwise from now on.
    pub fn change(&mut self, traffic: Traffic, now_s: f64) {
        (self.traffic, self.bursting, self.until_s) = (traffic, true, now_s);
        self.turn();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_pps(traffic: Traffic, seconds: u32) -> f64 {
        let mut flow = Flow::new(traffic, 7);
        let sum: f64 = (0..seconds).map(|s| flow.pps(f64::from(s), f64::from(s + 1))).sum();
        sum / f64::from(seconds)
    }

    #[test]
    fn each_kind_sends_as_much_as_its_parameters_say() {
        let (low_pps, high_pps, period_s) = (1_000.0, 3_000.0, 60.0);
        let expected = [
            (Traffic::Constant(500.0), 500.0),
            (Traffic::Flap { low_pps, high_pps, period_s }, 2_000.0),
            (Traffic::Diurnal { low_pps, high_pps, period_s }, 2_000.0),
            (Traffic::Bursts { low_pps, high_pps, apart_s: 30.0, burst_s: 10.0 }, 1_500.0),
            // Pareto's mean is shape / (shape - 1) times its least.
            (
                Traffic::HeavyTail { low_pps, high_pps, apart_s: 30.0, least_s: 6.0, shape: 2.5 },
                1_500.0,
            ),
        ];
        for (traffic, pps) in expected {
            let seen = mean_pps(traffic, 200_000);
            assert!((seen / pps - 1.0).abs() < 0.02, "{traffic:?}: {seen}, not {pps}");
        }
    }

    #[test]
    fn a_rate_does_not_depend_on_how_often_it_is_asked_for() {
        let traffic = Traffic::Bursts { low_pps: 0.0, high_pps: 1.0, apart_s: 0.7, burst_s: 0.3 };
        let (mut coarse, mut fine) = (Flow::new(traffic, 3), Flow::new(traffic, 3));
        for second in 0..1_000 {
            let tenths = (0..10).map(|tenth| {
                let from = f64::from(second) + f64::from(tenth) / 10.0;
                fine.pps(from, from + 0.1) / 10.0
            });
            let sum: f64 = tenths.sum();
            let whole = coarse.pps(f64::from(second), f64::from(second + 1));
            assert!((sum - whole).abs() < 1e-6, "second {second}: {sum} and {whole}");
        }
    }

    #[test]
    fn what_makes_no_sense_has_its_way_out_in_a_sentence() {
        let sound = Traffic::HeavyTail {
            low_pps: 1.0,
            high_pps: 2.0,
            apart_s: 1.0,
            least_s: 1.0,
            shape: 1.5,
        };
        assert_eq!(sound.fault(), None);
        for spoilt in [
            Traffic::Constant(f64::NAN),
            Traffic::Constant(-1.0),
            Traffic::Flap { low_pps: 1.0, high_pps: 1.0, period_s: 0.0 },
            Traffic::Diurnal { low_pps: 1.0, high_pps: f64::INFINITY, period_s: 5.0 },
            Traffic::HeavyTail {
                low_pps: 1.0,
                high_pps: 2.0,
                apart_s: 1.0,
                least_s: 1.0,
                shape: 1.0,
            },
        ] {
            assert!(spoilt.fault().is_some(), "{spoilt:?}");
        }
    }
}
