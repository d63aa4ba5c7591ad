//! Simulates policies under given traffic: FlexVF's scenarios, a few that it left out, and traces. Runs
//! the real path (counters, rates, decisions, plans) on made-up guests; the latencies are a model.

mod hindsight;
mod host;
mod outcome;
mod scenario;
pub mod trace;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::model::GuestId;
use crate::settings::{PolicyKind, Settings};
use crate::traffic::{Flow, Random};
use pw_error::Result;

pub use hindsight::Record;
pub use host::{Host, Interval};
pub use outcome::{Five, GroupOutcome, Hindsight, Outcome, Played, Tally};
pub use scenario::{BuiltIn, Group, Scenario, built_in};

/// The decider of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Player {
    /// No guest has a VF.
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

impl Serialize for Player {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Player {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let policies = PolicyKind::ALL.map(Self::Policy);
        ([Self::Paravirtual, Self::Random].into_iter().chain(policies))
            .find(|player| player.as_str() == name)
            .ok_or_else(|| serde::de::Error::custom(format!("there is no player {name:?}")))
    }
}

/// Where an interval's traffic comes from.
pub trait Feed {
    /// The next interval's length and rates; false when there is none. A guest keeps its number.
    ///
    /// # Errors
    /// The traffic makes no sense.
    fn next(&mut self, interval: &mut Interval) -> Result<bool>;

    /// The name of a guest that has been fed.
    fn name(&self, guest: usize) -> GuestId;
}

/// One host's made-up traffic, second by second.
#[derive(Debug)]
pub struct MadeUp {
    flows: Vec<Flow>,
    second: u32,
    end: u32,
}

impl MadeUp {
    /// The traffic of this host of a scenario.
    pub fn new(scenario: &Scenario, host: u32) -> Self {
        let mut seeds = Random::new(scenario.host_seed(host));
        let flow = |group: usize| Flow::new(scenario.groups[group].traffic, seeds.draw());
        let flows = scenario.group_of_guests().into_iter().map(flow).collect();
        Self { flows, second: 0, end: scenario.duration_s }
    }
}

impl Feed for MadeUp {
    fn next(&mut self, interval: &mut Interval) -> Result<bool> {
        let (from, to) = (f64::from(self.second), f64::from(self.second + 1));
        interval.pps.clear();
        interval.pps.extend(self.flows.iter_mut().map(|flow| flow.pps(from, to)));
        (interval.from_ms, interval.seconds) = (u64::from(self.second) * 1000, 1.0);
        self.second += 1;
        Ok(self.second <= self.end)
    }

    fn name(&self, guest: usize) -> GuestId {
        GuestId::from(format!("guest{guest}"))
    }
}

/// Traffic that counts the seconds that were fed.
#[derive(Debug)]
struct Counted<'a> {
    feed: MadeUp,
    done_s: &'a AtomicU64,
}

impl Feed for Counted<'_> {
    fn next(&mut self, interval: &mut Interval) -> Result<bool> {
        let more = self.feed.next(interval)?;
        self.done_s.fetch_add(u64::from(more), Ordering::Relaxed);
        Ok(more)
    }

    fn name(&self, guest: usize) -> GuestId {
        self.feed.name(guest)
    }
}

/// Plays a feed for all these players, interval by interval. `group` maps a guest to its group; with
/// `look_back` the optimum is computed, too, which needs memory for all intervals.
///
/// # Errors
/// The feed's, and settings that make no sense.
pub fn play(
    feed: &mut dyn Feed,
    scenario: &Scenario,
    host: u32,
    players: &[Player],
    settings: &Settings,
    group: &dyn Fn(usize) -> usize,
    look_back: bool,
) -> Result<Played> {
    let hosts = players.iter().map(|&player| Host::new(scenario, host, player, settings));
    let mut hosts = hosts.collect::<Result<Vec<Host>>>()?;
    let mut interval = Interval::default();
    let mut record = Record::default();
    let (mut seconds, mut step_s) = (0.0, 1.0);
    while feed.next(&mut interval)? {
        interval.set_gains(&scenario.curve);
        for host in &mut hosts {
            host.live(&interval, &|guest| feed.name(guest))?;
        }
        if look_back {
            record.push(&interval.gain);
        }
        step_s = interval.seconds;
        seconds += step_s;
    }
    let fixed_us = scenario.lost_packets * settings.benefit.loss_us;
    let vfs = usize::from(scenario.vfs);
    let hindsight =
        look_back.then(|| record.hindsight(vfs, step_s, scenario.switch_s, fixed_us)).flatten();
    let mut played = Played::of(scenario, players);
    played.seconds = seconds;
    played.hindsight = hindsight;
    for (tally, host) in played.tallies.iter_mut().zip(&hosts) {
        tally.add(host.tally(group));
    }
    Ok(played)
}

/// A part of a simulation's hosts: every `of`-th, from the `number`-th on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// From 1.
    pub number: u32,
    /// How many there are.
    pub of: u32,
}

impl Shard {
    /// All hosts.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    /// How many of these hosts are in it.
    pub fn hosts(self, of_hosts: u32) -> u32 {
        of_hosts.saturating_sub(self.number - 1).div_ceil(self.of)
    }

    /// This many shards, which together are this one; those without a host are empty.
    fn split(self, parts: u32) -> impl Iterator<Item = Self> {
        let of = self.of.saturating_mul(parts);
        (0..parts).map(move |nth| {
            let number = self.number.saturating_add(self.of.saturating_mul(nth));
            Self { number, of }
        })
    }
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        text.split_once('/')
            .and_then(|(number, of)| {
                Some(Self { number: number.parse().ok()?, of: of.parse().ok()? })
            })
            .filter(|shard| (1..=shard.of).contains(&shard.number))
            .ok_or_else(|| "write I/N, as 3/16 for the third of sixteen".into())
    }
}

/// Plays a shard's hosts of a scenario for all these players.
///
/// # Errors
/// The scenario or the settings make no sense.
pub fn compare(
    scenario: &Scenario,
    players: &[Player],
    settings: &Settings,
    shard: Shard,
) -> Result<Played> {
    compare_counting(scenario, players, settings, shard, &AtomicU64::new(0))
}

/// Like [`compare`], on this many CPUs at once: each plays a part of the shard's hosts. `done_s` counts
/// the seconds that were played, of all hosts together, for those who wait.
///
/// # Errors
/// The scenario or the settings make no sense.
pub fn compare_on(
    cpus: u32,
    scenario: &Scenario,
    players: &[Player],
    settings: &Settings,
    shard: Shard,
    done_s: &AtomicU64,
) -> Result<Played> {
    thread::scope(|scope| {
        let parts = shard.split(cpus).map(|part| {
            scope.spawn(move || compare_counting(scenario, players, settings, part, done_s))
        });
        let parts: Vec<_> = parts.collect();
        let mut played = Played::of(scenario, players);
        for part in parts {
            played.add(part.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(played)
    })
}

fn compare_counting(
    scenario: &Scenario,
    players: &[Player],
    settings: &Settings,
    shard: Shard,
    done_s: &AtomicU64,
) -> Result<Played> {
    scenario.check()?;
    let groups = scenario.group_of_guests();
    let mut played = Played::of(scenario, players);
    let cells = groups.len().saturating_mul(scenario.duration_s as usize);
    let look_back = cells.saturating_mul(scenario.hosts as usize) <= hindsight::MOST_CELLS;
    for host in (shard.number - 1..scenario.hosts).step_by(shard.of as usize) {
        let mut feed = Counted { feed: MadeUp::new(scenario, host), done_s };
        let group = |guest: usize| groups[guest];
        let host = play(&mut feed, scenario, host, players, settings, &group, look_back)?;
        played.add(host);
    }
    Ok(played)
}

#[cfg(test)]
mod tests;
