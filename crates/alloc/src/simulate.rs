//! What policies would do with given traffic: FlexVF's scenarios and a few that it left out. Runs the
//! real path (counters, rates, decisions, plans) on made-up guests; the latencies are a model.

use serde::{Deserialize, Serialize};

use crate::allocator::Allocator;
use crate::error::{Error, Result};
use crate::gain::{GainCurve, Point};
use crate::history::SwitchCost;
use crate::model::{
    GuestId, GuestView, Health, Holding, Origin, Snapshot, VfId, VfState, VfView, Wish,
};
use crate::plan::Direction;
use crate::settings::{PolicyKind, Settings};
use crate::signal::{Counters, Reading, Sample, Tracker};

/// Guests that a simulation has at most.
const MOST_GUESTS: usize = 100_000;
/// Seconds that a simulation lasts at most.
const MOST_S: u32 = 1_000_000;

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
}

/// Guests with the same traffic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// What it is called in the result.
    pub name: String,
    /// How many guests it has.
    pub guests: usize,
    /// How much each of them sends.
    pub traffic: Traffic,
}

/// What is simulated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// VFs of the host.
    pub vfs: u16,
    /// Its guests.
    pub groups: Vec<Group>,
    /// How long [s].
    pub duration_s: u32,
    /// For what is random.
    #[serde(default)]
    pub seed: u64,
    /// A packet's latency on a VF [µs].
    #[serde(default = "default_vf_us")]
    pub vf_us: f64,
    /// How much longer it takes on the paravirtual path, by packet rate.
    #[serde(default = "default_curve")]
    pub curve: GainCurve,
}

const fn default_vf_us() -> f64 {
    20.0
}

/// Rises with the packet rate as FlexVF's figure 5 does. Its numbers are made up: measure yours.
fn default_curve() -> GainCurve {
    let points = [(0.0, 10.0), (100_000.0, 60.0)];
    GainCurve::new(points.map(|(pps, saved_us)| Point { pps, saved_us }).to_vec())
        .unwrap_or_default()
}

/// Names of the built-in scenarios, each with a line that says what it is.
pub const SCENARIOS: [(&str, &str); 5] = [
    ("flexvf", "100 guests in 4 groups of 20, 40, 80 and 100 kpps, 63 VFs (FlexVF, section 6.4)"),
    ("flexvf-ftp-quiet", "the same and a file server whose packet rate is the lowest"),
    ("flexvf-ftp-busy", "the same and a file server whose packet rate is the highest"),
    ("flapping", "20 guests, 4 VFs; half of them go above and below the cut every minute"),
    ("bursts", "40 guests, 8 VFs; quiet guests with bursts of about 20 s"),
];

impl Scenario {
    /// The built-in scenario of that name.
    pub fn named(name: &str) -> Result<Self> {
        let constant = |name: &str, guests, pps| Group {
            name: name.into(),
            guests,
            traffic: Traffic::Constant(pps),
        };
        let flexvf = || {
            [20, 40, 80, 100]
                .map(|kpps| constant(&format!("{kpps} kpps"), 25, f64::from(kpps) * 1000.0))
        };
        let (vfs, groups) = match name {
            "flexvf" => (63, flexvf().to_vec()),
            "flexvf-ftp-quiet" => (63, [&flexvf()[..], &[constant("ftp", 1, 15_000.0)]].concat()),
            "flexvf-ftp-busy" => (63, [&flexvf()[..], &[constant("ftp", 1, 120_000.0)]].concat()),
            "flapping" => {
                let flap = Traffic::Flap { low_pps: 9_000.0, high_pps: 11_000.0, period_s: 60.0 };
                let flapping = Group { name: "flapping".into(), guests: 10, traffic: flap };
                (4, vec![constant("steady", 10, 10_000.0), flapping])
            }
            "bursts" => {
                let traffic = Traffic::Bursts {
                    low_pps: 500.0,
                    high_pps: 50_000.0,
                    apart_s: 120.0,
                    burst_s: 20.0,
                };
                let bursts = Group { name: "bursts".into(), guests: 30, traffic };
                (8, vec![constant("steady", 10, 5_000.0), bursts])
            }
            _ => {
                let names: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
                return Err(Error::new(
                    format!("there is no scenario {name:?}"),
                    format!("choose one of {}", names.join(", ")),
                ));
            }
        };
        Ok(Self {
            vfs,
            groups,
            duration_s: 7_200,
            seed: 1,
            vf_us: default_vf_us(),
            curve: default_curve(),
        })
    }

    /// Can this be simulated?
    pub fn check(&self) -> Result<()> {
        let guests: usize = self.groups.iter().map(|group| group.guests.min(MOST_GUESTS)).sum();
        if guests == 0 || guests > MOST_GUESTS {
            return Err(Error::new(
                format!("a scenario of {guests} guests cannot be simulated"),
                format!("give its groups 1 to {MOST_GUESTS} guests in all"),
            ));
        }
        if !(1..=MOST_S).contains(&self.duration_s) {
            return Err(Error::new(
                format!("a scenario of {} s cannot be simulated", self.duration_s),
                format!("set duration_s from 1 to {MOST_S}"),
            ));
        }
        for group in &self.groups {
            let numbers = match group.traffic {
                Traffic::Constant(pps) => [pps, 1.0, 1.0, 1.0],
                Traffic::Flap { low_pps, high_pps, period_s } => [low_pps, high_pps, period_s, 1.0],
                Traffic::Bursts { low_pps, high_pps, apart_s, burst_s } => {
                    [low_pps, high_pps, apart_s, burst_s]
                }
            };
            if !numbers.iter().all(|n| (0.0..=1e8).contains(n)) || numbers[2] * numbers[3] <= 0.0 {
                return Err(Error::new(
                    format!("the traffic of group {:?} is out of range", group.name),
                    "give rates from 0 to 1e8 packets per second, and times above zero",
                ));
            }
        }
        if !(0.0..=1e9).contains(&self.vf_us) {
            return Err(Error::new(
                format!("vf_us = {} is out of range", self.vf_us),
                "give a latency from 0 to 1e9 µs",
            ));
        }
        Ok(())
    }
}

/// Who decides in a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Player {
    /// Nobody has a VF.
    Paravirtual,
    /// VFs are given at random, once.
    Random,
    /// A policy, with the settings given.
    Policy(PolicyKind),
}

/// FlexVF's four scenarios (section 6.4) and ours.
pub const PLAYERS: [Player; 5] = [
    Player::Paravirtual,
    Player::Random,
    Player::Policy(PolicyKind::Fair),
    Player::Policy(PolicyKind::Activity),
    Player::Policy(PolicyKind::Benefit),
];

impl Player {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Paravirtual => "paravirtual",
            Self::Random => "random",
            Self::Policy(kind) => kind.as_str(),
        }
    }
}

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

/// How one group fared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupOutcome {
    /// Its name.
    pub name: String,
    /// Share of time on a VF, over its guests.
    pub vf_share: Option<Five>,
    /// Mean latency of a packet, over its guests [µs].
    pub latency_us: Option<Five>,
}

/// How one player fared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Who decided.
    pub player: &'static str,
    /// Group by group.
    pub groups: Vec<GroupOutcome>,
    /// Mean latency of all packets [µs].
    pub mean_latency_us: f64,
    /// Time that VFs saved all packets, by second [µs/s].
    pub saved_us_per_s: f64,
    /// The same as a share of what the best holders at each second would have saved, had switches
    /// been free and the future known.
    pub share_of_best: f64,
    /// VFs given, by hour.
    pub moves_per_h: f64,
    /// The longest that any guest went without a VF [s].
    pub longest_wait_s: u32,
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

struct Source {
    group: usize,
    traffic: Traffic,
    phase_s: f64,
    bursting: bool,
    packets: f64,
    on_vf_s: f64,
    sent: f64,
    latency_us: f64,
    waited_s: u32,
    longest_wait_s: u32,
}

impl Source {
    fn pps(&mut self, second: u32, random: &mut Random) -> f64 {
        match self.traffic {
            Traffic::Constant(pps) => pps,
            Traffic::Flap { low_pps, high_pps, period_s } => {
                let place = (f64::from(second) + self.phase_s).rem_euclid(period_s);
                if place < period_s / 2.0 { high_pps } else { low_pps }
            }
            Traffic::Bursts { low_pps, high_pps, apart_s, burst_s } => {
                let lasts_s = if self.bursting { burst_s } else { apart_s };
                self.bursting ^= random.share() < 1.0 - (-1.0 / lasts_s).exp();
                if self.bursting { high_pps } else { low_pps }
            }
        }
    }
}

/// Plays a scenario second by second.
pub fn simulate(scenario: &Scenario, player: Player, settings: &Settings) -> Result<Outcome> {
    scenario.check()?;
    let mut random = Random(scenario.seed);
    let mut sources = Vec::new();
    for (group, made) in scenario.groups.iter().enumerate() {
        for _ in 0..made.guests {
            let period_s =
                if let Traffic::Flap { period_s, .. } = made.traffic { period_s } else { 0.0 };
            sources.push(Source {
                group,
                traffic: made.traffic,
                phase_s: random.share() * period_s,
                bursting: false,
                packets: 0.0,
                on_vf_s: 0.0,
                sent: 0.0,
                latency_us: 0.0,
                waited_s: 0,
                longest_wait_s: 0,
            });
        }
    }
    let mut now = Snapshot {
        now_ms: 0,
        guests: (0..sources.len())
            .map(|at| GuestView {
                id: GuestId::from(format!("guest{at}")),
                rate: None,
                wish: Wish::default(),
                holds: None,
                health: Health::Ready,
                paravirtual_up: true,
            })
            .collect(),
        vfs: (0..scenario.vfs)
            .map(|index| VfView { id: VfId::new("pf0", index), numa: None, state: VfState::Usable })
            .collect(),
    };
    let policy = if let Player::Policy(policy) = player { policy } else { settings.policy };
    let mut chosen = Settings { policy, ..settings.clone() };
    chosen.benefit.curve = scenario.curve.clone();
    let mut allocator = Allocator::new(chosen)?;
    let switch = SwitchCost::default();
    let mut trackers = vec![Tracker::default(); sources.len()];
    // A sequence of its own, so that the traffic is the same for all players.
    let mut lots = Random(!scenario.seed);
    if player == Player::Random {
        let mut order: Vec<usize> = (0..sources.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, (lots.next() % (at as u64 + 1)) as usize);
        }
        for (guest, vf) in order.into_iter().zip(&now.vfs) {
            now.guests[guest].holds = Some(Holding { vf: vf.id.clone(), since_ms: 0 });
        }
    }
    let (mut moves, mut saved_us, mut best_us) = (0_usize, 0.0, 0.0);
    let mut next_decision_s = 0.0;
    let mut lost_s = vec![0.0_f64; sources.len()];
    for second in 0..scenario.duration_s {
        now.now_ms = u64::from(second) * 1000;
        if matches!(player, Player::Policy(_)) {
            for ((guest, tracker), source) in now.guests.iter_mut().zip(&mut trackers).zip(&sources)
            {
                let counters =
                    Counters { tx_packets: source.packets as u64, ..Counters::default() };
                let sample = Sample {
                    at_ms: now.now_ms,
                    source: u64::from(guest.holds.is_some()),
                    origin: Origin::HostSide,
                    reading: Reading::Counted(counters),
                };
                tracker.feed(&sample, &settings.signal);
                guest.rate = tracker.rate(now.now_ms, &settings.signal);
            }
            allocator.observe(&now);
            if f64::from(second) >= next_decision_s {
                next_decision_s = f64::from(second) + settings.interval_s;
                let plan = allocator.decide(&now).plan;
                now = plan.try_on(&now)?;
                allocator.commit(&plan, now.now_ms);
                moves += plan.given();
                for change in plan.moves.iter().filter(|m| m.direction == Direction::Give) {
                    if let Some(at) = now.guests.iter().position(|g| g.id == change.guest) {
                        lost_s[at] = switch.plug_s + switch.unplug_s;
                    }
                }
            }
        }
        let mut gains = Vec::with_capacity(sources.len());
        for (at, source) in sources.iter_mut().enumerate() {
            let pps = source.pps(second, &mut random);
            let gain = scenario.curve.gain_us_per_s(pps);
            gains.push(gain);
            source.packets += pps;
            source.sent += pps;
            let held = now.guests[at].holds.is_some();
            let on_vf_s = if held { 1.0 - lost_s[at].min(1.0) } else { 0.0 };
            lost_s[at] = (lost_s[at] - 1.0).max(0.0);
            source.on_vf_s += on_vf_s;
            source.latency_us += pps * scenario.vf_us + gain * (1.0 - on_vf_s);
            saved_us += gain * on_vf_s;
            source.waited_s = if held { 0 } else { source.waited_s + 1 };
            source.longest_wait_s = source.longest_wait_s.max(source.waited_s);
        }
        gains.sort_by(|a, b| b.total_cmp(a));
        best_us += gains.iter().take(usize::from(scenario.vfs)).sum::<f64>();
    }
    let seconds = f64::from(scenario.duration_s);
    let groups = scenario
        .groups
        .iter()
        .enumerate()
        .map(|(at, group)| {
            let of = |value: fn(&Source, f64) -> Option<f64>| {
                let members = sources.iter().filter(|source| source.group == at);
                Five::of(members.filter_map(|source| value(source, seconds)).collect())
            };
            GroupOutcome {
                name: group.name.clone(),
                vf_share: of(|source, seconds| Some(source.on_vf_s / seconds)),
                latency_us: of(|source, _| {
                    (source.sent > 0.0).then(|| source.latency_us / source.sent)
                }),
            }
        })
        .collect();
    let sent: f64 = sources.iter().map(|source| source.sent).sum();
    let latency_us: f64 = sources.iter().map(|source| source.latency_us).sum();
    Ok(Outcome {
        player: player.as_str(),
        groups,
        mean_latency_us: if sent > 0.0 { latency_us / sent } else { 0.0 },
        saved_us_per_s: saved_us / seconds,
        share_of_best: if best_us > 0.0 { saved_us / best_us } else { 1.0 },
        moves_per_h: moves as f64 * 3600.0 / seconds,
        longest_wait_s: sources.iter().map(|source| source.longest_wait_s).max().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(name: &str, settings: &Settings) -> Vec<Outcome> {
        let mut scenario = Scenario::named(name).expect("built in");
        scenario.duration_s = 1_800;
        PLAYERS.map(|player| simulate(&scenario, player, settings).expect("simulated")).to_vec()
    }

    /// As FlexVF runs: all moves of a decision at once, no residency.
    fn unbounded() -> Settings {
        Settings { max_moves: None, min_residency_s: 0.0, fair_turn_s: 60.0, ..Settings::default() }
    }

    #[test]
    fn flexvfs_findings_are_found() {
        let played = play("flexvf", &unbounded());
        let [none, random, fair, activity, benefit] = &played[..] else { panic!("five players") };
        let share = |outcome: &Outcome, group: usize| {
            outcome.groups[group].vf_share.map(|five| (five.min, five.max)).expect("guests")
        };
        // All on the paravirtual path is worst; random and fair are alike; activity is better.
        assert!(none.mean_latency_us > random.mean_latency_us);
        assert!((random.mean_latency_us / fair.mean_latency_us - 1.0).abs() < 0.05);
        assert!(activity.mean_latency_us < 0.95 * fair.mean_latency_us);
        // Under activity the two busiest groups hold VFs throughout, the second in part, the first
        // never ("only group 2 shows a variation").
        for group in [2, 3] {
            assert!(share(activity, group).0 > 0.98, "{:?}", share(activity, group));
        }
        // The first decision is made before any rate is known.
        assert!(share(activity, 1).1 > 0.98 && share(activity, 1).0 < 0.02);
        assert!(share(activity, 0).1 < 0.02);
        // Under fair everybody holds for about the same time.
        for group in 0..4 {
            let (low, high) = share(fair, group);
            assert!(low > 0.5 && high < 0.75, "{low} to {high}");
        }
        // With steady traffic, ours is as good.
        assert!(benefit.share_of_best > 0.98 && activity.share_of_best > 0.98);
    }

    #[test]
    fn a_file_server_holds_under_fair_whatever_its_neighbours_send() {
        for (name, under_activity) in [("flexvf-ftp-quiet", 0.0), ("flexvf-ftp-busy", 1.0)] {
            let played = play(name, &unbounded());
            let share = |player: usize| {
                let group = played[player].groups.last().expect("the file server");
                group.vf_share.expect("one guest").median
            };
            assert!((0.5..0.75).contains(&share(2)), "{name}: fair {}", share(2));
            assert!((share(3) - under_activity).abs() < 0.05, "{name}: activity {}", share(3));
        }
    }

    #[test]
    fn with_traffic_around_the_cut_ours_moves_less_and_saves_as_much() {
        let played = play("flapping", &unbounded());
        let [_, _, _, activity, benefit] = &played[..] else { panic!("five players") };
        assert!(benefit.moves_per_h < activity.moves_per_h / 5.0);
        assert!(benefit.share_of_best > 0.97 * activity.share_of_best);
    }

    #[test]
    fn what_cannot_be_simulated_is_refused_in_a_sentence() {
        let error = Scenario::named("nosuch").expect_err("no such scenario");
        assert!(error.remedy.contains("flexvf"));
        let sound = Scenario::named("bursts").expect("built in");
        let spoils: [fn(&mut Scenario); 5] = [
            |s| s.groups.clear(),
            |s| s.groups[0].guests = usize::MAX,
            |s| s.duration_s = 0,
            |s| s.groups[0].traffic = Traffic::Constant(f64::NAN),
            |s| s.groups[0].traffic = Traffic::Flap { low_pps: 1.0, high_pps: 1.0, period_s: 0.0 },
        ];
        for spoil in spoils {
            let mut spoilt = sound.clone();
            spoil(&mut spoilt);
            let error = spoilt.check().expect_err("spoilt");
            assert!(!error.what.is_empty() && !error.remedy.is_empty());
        }
    }
}
