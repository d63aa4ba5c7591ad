//! Made-up traffic, less regular than the families have it. Knows no policy.

use pw_alloc::model::GuestId;
use pw_alloc::simulate::{Feed, Interval, MadeUp, Scenario};
use pw_alloc::traffic::{Random, Traffic};

/// A guest that goes high and low in turns.
struct Flap {
    /// Now and in the other half of its period.
    pps: [f64; 2],
    half_s: f64,
    /// When this half ends [s].
    end_s: f64,
}

/// A scenario's traffic in which by so much at most, up or down, each second's rate is changed by chance, and each
/// half of a flap's period lasts longer or shorter [share].
pub struct Rough {
    feed: MadeUp,
    by: f64,
    random: Random,
    flaps: Vec<Option<Flap>>,
}

impl Rough {
    pub fn new(scenario: &Scenario, by: f64) -> Self {
        let mut random = Random::new(!scenario.seed);
        let flap = |group: usize| match scenario.groups[group].traffic {
            Traffic::Flap { low_pps, high_pps, period_s } => {
                let pps =
                    if random.share() < 0.5 { [low_pps, high_pps] } else { [high_pps, low_pps] };
                Some(Flap { pps, half_s: period_s / 2.0, end_s: random.share() * period_s / 2.0 })
            }
            _ => None,
        };
        let flaps = scenario.group_of_guests().into_iter().map(flap).collect();
        Self { feed: MadeUp::new(scenario, 0), by, random, flaps }
    }
}

impl Feed for Rough {
    fn next(&mut self, interval: &mut Interval) -> pw_error::Result<bool> {
        let more = self.feed.next(interval)?;
        if self.by == 0.0 {
            return Ok(more);
        }
        let now_s = interval.from_ms as f64 / 1e3;
        for (pps, flap) in interval.pps.iter_mut().zip(&mut self.flaps) {
            let mut chance = || 1.0 + self.by * (2.0 * self.random.share() - 1.0);
            if let Some(flap) = flap {
                let left_s = (flap.end_s - now_s).min(1.0);
                *pps = flap.pps[0] * left_s + flap.pps[1] * (1.0 - left_s);
                if left_s < 1.0 {
                    flap.pps.reverse();
                    flap.end_s += flap.half_s * chance();
                }
            }
            *pps *= chance();
        }
        Ok(more)
    }

    fn name(&self, guest: usize) -> GuestId {
        self.feed.name(guest)
    }
}
