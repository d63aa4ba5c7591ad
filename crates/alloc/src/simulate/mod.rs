//! Simulates policies under given traffic: FlexVF's scenarios, a few that it left out, and traces. Runs
//! the real path (counters, rates, decisions, plans) on made-up guests; the latencies are a model.

mod hindsight;
mod host;
mod outcome;
mod scenario;
pub mod trace;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::model::GuestId;
use crate::settings::{PolicyKind, Settings};
use crate::traffic::{Flow, Random};
use pw_error::Result;

pub use host::{Host, Interval};
pub use outcome::{Five, GroupOutcome, Hindsight, Outcome, Played, Tally};
pub use scenario::{BuiltIn, Group, Scenario, built_in};

/// The decider of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Player {
    /// No guest has a VF.
    Paravirtual,
    /// VFs are given at random, once.
    Random,
    /// A policy, with the settings given.
    #[serde(untagged)]
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
    let mut record = hindsight::Record::default();
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

/// Plays a shard's hosts of a scenario for all these players, on this many CPUs at once: each plays a part of the
/// hosts. `done` counts the hosts that were played, for those who wait.
///
/// # Errors
/// The scenario or the settings make no sense.
pub fn compare(
    cpus: u32,
    scenario: &Scenario,
    players: &[Player],
    settings: &Settings,
    shard: Shard,
    done: &AtomicU32,
) -> Result<Played> {
    scenario.check()?;
    let groups = scenario.group_of_guests();
    let cells = groups.len().saturating_mul(scenario.duration_s as usize);
    let look_back = cells.saturating_mul(scenario.hosts as usize) <= hindsight::MOST_CELLS;
    let play_part = |part: Shard| -> Result<Played> {
        let mut played = Played::of(scenario, players);
        for host in (part.number - 1..scenario.hosts).step_by(part.of as usize) {
            let (mut feed, group) = (MadeUp::new(scenario, host), |guest: usize| groups[guest]);
            played.add(play(&mut feed, scenario, host, players, settings, &group, look_back)?);
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(played)
    };
    let play_part = &play_part;
    thread::scope(|scope| {
        let parts: Vec<_> =
            shard.split(cpus).map(|part| scope.spawn(move || play_part(part))).collect();
        let mut played = Played::of(scenario, players);
        for part in parts {
            played.add(part.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok(played)
    })
}

#[cfg(test)]
mod tests;
