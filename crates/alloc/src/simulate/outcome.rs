//! Results of players: sums that can be added up over hosts and shards, and the outcomes derived from them.

use serde::{Deserialize, Serialize};

use super::Player;
use super::scenario::Scenario;

/// Smallest, lower quartile, median, upper quartile, largest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Five {
    /// Smallest.
    pub min: f64,
    /// A quarter is below.
    pub q1: f64,
    /// Half are below.
    pub median: f64,
    /// Three quarters are below.
    pub q3: f64,
    /// Largest.
    pub max: f64,
}

impl Five {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        // Linear between order statistics (Hyndman and Fan's definition 7).
        let at = |share: f64| {
            let place = share * last as f64;
            let below = place.floor() as usize;
            let above = (below + 1).min(last);
            values[below] + (place - below as f64) * (values[above] - values[below])
        };
        Some(Self { min: at(0.0), q1: at(0.25), median: at(0.5), q3: at(0.75), max: at(1.0) })
    }
}

/// The outcome of one group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupOutcome {
    /// Its name.
    pub name: String,
    /// Share of time on a VF, over its guests.
    pub vf_share: Option<Five>,
    /// Mean latency of a packet, over its guests [µs].
    pub latency_us: Option<Five>,
}

/// The outcome of one player.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The player.
    pub player: Player,
    /// Group by group.
    pub groups: Vec<GroupOutcome>,
    /// Mean latency of all packets [µs].
    pub mean_latency_us: f64,
    /// Time that VFs saved all packets less what switches cost, by second [µs/s].
    pub saved_us_per_s: f64,
    /// The same as a share of the most that could have been saved with the future known, switches
    /// paid; none when that is not known.
    pub share_of_optimum: Option<f64>,
    /// The same as a share of what the best guests hold from the first second to the last.
    pub share_of_static: Option<f64>,
    /// Jain's index of the guests' times on a VF, from 1/guests to 1; none when nobody had one.
    pub fairness: Option<f64>,
    /// VFs given, by hour.
    pub moves_per_h: f64,
    /// The longest that any guest went without a VF [s].
    pub longest_wait_s: f64,
}

/// One player's sums over guests and hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tally {
    /// The player.
    pub player: Player,
    /// Guest by guest: the group's number, the share of its time on a VF, and its packets' mean latency
    /// [µs], zero when it sent nothing.
    pub guests: Vec<(usize, f64, f64)>,
    /// All packets.
    pub packets: f64,
    /// The latency of all packets together [µs].
    pub latency_us: f64,
    /// Time saved less what switches cost [µs].
    pub saved_us: f64,
    /// VFs given.
    pub moves: usize,
    /// The longest that any guest went without a VF [s].
    pub longest_wait_s: f64,
}

impl Tally {
    /// Nothing happened yet.
    pub const fn new(player: Player) -> Self {
        Self {
            player,
            guests: Vec::new(),
            packets: 0.0,
            latency_us: 0.0,
            saved_us: 0.0,
            moves: 0,
            longest_wait_s: 0.0,
        }
    }

    /// Adds the sums of other hosts.
    pub fn add(&mut self, other: Self) {
        self.guests.extend(other.guests);
        self.packets += other.packets;
        self.latency_us += other.latency_us;
        self.saved_us += other.saved_us;
        self.moves += other.moves;
        self.longest_wait_s = self.longest_wait_s.max(other.longest_wait_s);
    }

    fn outcome(&self, seconds: f64, groups: &[String], best: Option<Hindsight>) -> Outcome {
        let groups = groups.iter().enumerate().map(|(at, name)| {
            let members = || self.guests.iter().filter(move |(group, ..)| *group == at);
            GroupOutcome {
                name: name.clone(),
                vf_share: Five::of(members().map(|&(_, share, _)| share).collect()),
                latency_us: Five::of(
                    members().map(|&(.., us)| us).filter(|us| *us > 0.0).collect(),
                ),
            }
        });
        let share = |of: f64| if of > 0.0 { self.saved_us / of } else { 1.0 };
        Outcome {
            player: self.player,
            groups: groups.collect(),
            mean_latency_us: if self.packets > 0.0 { self.latency_us / self.packets } else { 0.0 },
            saved_us_per_s: self.saved_us / seconds,
            share_of_optimum: best.map(|best| share(best.optimum_us)),
            share_of_static: best.map(|best| share(best.static_us)),
            fairness: jain(self.guests.iter().map(|&(_, share, _)| share)),
            moves_per_h: self.moves as f64 * 3600.0 / seconds,
            longest_wait_s: self.longest_wait_s,
        }
    }
}

/// The most that could have been had with the future known, switches paid [µs].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hindsight {
    /// VFs move.
    pub optimum_us: f64,
    /// The best guests hold from the first second to the last.
    pub static_us: f64,
}

/// What was played: a whole simulation, or one shard of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Played {
    /// How long each host played [s].
    pub seconds: f64,
    /// Names of the groups of guests.
    pub groups: Vec<String>,
    /// By player.
    pub tallies: Vec<Tally>,
    /// None when it was not computed on some host.
    pub hindsight: Option<Hindsight>,
}

impl Played {
    /// Nothing was played yet.
    pub fn new(seconds: f64, groups: Vec<String>, players: &[Player]) -> Self {
        let tallies = players.iter().copied().map(Tally::new).collect();
        let hindsight = Some(Hindsight { optimum_us: 0.0, static_us: 0.0 });
        Self { seconds, groups, tallies, hindsight }
    }

    /// Nothing was played yet of this scenario.
    pub fn of(scenario: &Scenario, players: &[Player]) -> Self {
        let groups = scenario.groups.iter().map(|group| group.name.clone()).collect();
        Self::new(f64::from(scenario.duration_s), groups, players)
    }

    /// Adds other hosts. The players must be the same.
    pub fn add(&mut self, other: Self) {
        for (tally, added) in self.tallies.iter_mut().zip(other.tallies) {
            tally.add(added);
        }
        self.hindsight = self.hindsight.zip(other.hindsight).map(|(a, b)| Hindsight {
            optimum_us: a.optimum_us + b.optimum_us,
            static_us: a.static_us + b.static_us,
        });
    }

    /// The outcome of each player.
    pub fn outcomes(&self) -> Vec<Outcome> {
        let outcome = |tally: &Tally| tally.outcome(self.seconds, &self.groups, self.hindsight);
        self.tallies.iter().map(outcome).collect()
    }
}

/// Jain's index: 1 when all have the same, 1/n when one has everything; none when nobody has anything
/// (Jain, Chiu, Hawe: A quantitative measure of fairness, DEC-TR-301, 1984).
fn jain(shares: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum, squares) =
        shares.fold((0.0, 0.0, 0.0), |(n, sum, sq), x| (n + 1.0, sum + x, sq + x * x));
    (squares > 0.0).then(|| sum * sum / (count * squares))
}
