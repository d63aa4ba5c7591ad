//! What is simulated: hosts, guests and their traffic. Values alone.

use serde::{Deserialize, Serialize};

use crate::gain::{GainCurve, Point};
use crate::traffic::Traffic;
use pw_error::{Error, Result};

/// Guests that a simulation has at most.
const MOST_GUESTS: usize = 100_000;
/// Seconds that a simulation lasts at most.
const MOST_S: u32 = 10_000_000;

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
    /// How many such hosts there are, each with traffic of its own.
    #[serde(default = "one_host")]
    pub hosts: u32,
    /// How long [s].
    pub duration_s: u32,
    /// For what is random.
    #[serde(default)]
    pub seed: u64,
    /// How long a VF carries nothing after it was given: unplug and plug [s].
    #[serde(default = "default_switch_s")]
    pub switch_s: f64,
    /// Packets lost in a switch, each at `benefit.loss_us`.
    #[serde(default)]
    pub lost_packets: f64,
    /// A packet's latency on a VF [µs].
    #[serde(default = "default_vf_us")]
    pub vf_us: f64,
    /// How much longer it takes on the paravirtual path, by packet rate.
    #[serde(default = "default_curve")]
    pub curve: GainCurve,
}

/// FlexVF's figures (section 6): 56 ms to unplug, 640 ms to plug.
const fn default_switch_s() -> f64 {
    0.696
}

const fn one_host() -> u32 {
    1
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

/// A scenario that is shipped.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuiltIn {
    /// What it is called.
    pub name: String,
    /// What it is, in a line.
    pub about: String,
    /// Itself.
    pub of: Scenario,
}

/// The shipped scenarios. Fails when their file is not what it should be.
pub fn built_in() -> Result<Vec<BuiltIn>> {
    #[derive(Deserialize)]
    struct Shipped {
        scenario: Vec<BuiltIn>,
    }
    toml::from_str(include_str!("scenarios.toml")).map(|shipped: Shipped| shipped.scenario).map_err(
        |error| {
            Error::bad_input(
                "the built-in scenarios cannot be read",
                "this build is broken: report it",
            )
            .caused_by(error)
        },
    )
}

impl Scenario {
    /// The built-in scenario of that name.
    pub fn named(name: &str) -> Result<Self> {
        let shipped = built_in()?;
        if let Some(named) = shipped.iter().find(|shipped| shipped.name == name) {
            return Ok(named.of.clone());
        }
        let names: Vec<&str> = shipped.iter().map(|shipped| shipped.name.as_str()).collect();
        Err(Error::bad_input(
            format!("there is no scenario {name:?}"),
            format!("choose one of {}", names.join(", ")),
        ))
    }

    /// Can this be simulated?
    pub fn check(&self) -> Result<()> {
        self.check_traffic()?;
        self.check_host()
    }

    fn check_traffic(&self) -> Result<()> {
        let guests: usize = self.groups.iter().map(|group| group.guests.min(MOST_GUESTS)).sum();
        if guests == 0 || guests > MOST_GUESTS {
            return Err(Error::bad_input(
                format!("a scenario of {guests} guests cannot be simulated"),
                format!("give its groups 1 to {MOST_GUESTS} guests in all"),
            ));
        }
        if self.hosts == 0 {
            return Err(Error::bad_input(
                "a scenario without hosts cannot be simulated",
                "set hosts from 1",
            ));
        }
        if !(1..=MOST_S).contains(&self.duration_s) {
            return Err(Error::bad_input(
                format!("a scenario of {} s cannot be simulated", self.duration_s),
                format!("set duration_s from 1 to {MOST_S}"),
            ));
        }
        for group in &self.groups {
            if let Some(remedy) = group.traffic.fault() {
                let what = format!("the traffic of group {:?} is out of range", group.name);
                return Err(Error::bad_input(what, remedy));
            }
        }
        Ok(())
    }

    /// Can the host be simulated, whatever its traffic?
    pub fn check_host(&self) -> Result<()> {
        if !(0.0..=3600.0).contains(&self.switch_s) {
            return Err(Error::bad_input(
                format!("switch_s = {} is out of range", self.switch_s),
                "give a number of seconds from 0 to 3600",
            ));
        }
        for (name, value) in [("vf_us", self.vf_us), ("lost_packets", self.lost_packets)] {
            if !(0.0..=1e9).contains(&value) {
                return Err(Error::bad_input(
                    format!("{name} = {value} is out of range"),
                    "give a number from 0 to 1e9",
                ));
            }
        }
        Ok(())
    }

    /// How many guests a host has.
    pub fn guests(&self) -> usize {
        self.groups.iter().map(|group| group.guests).sum()
    }

    /// The number of each guest's group, guest by guest.
    pub fn group_of_guests(&self) -> Vec<usize> {
        let members = |(at, group): (usize, &Group)| std::iter::repeat_n(at, group.guests);
        self.groups.iter().enumerate().flat_map(members).collect()
    }

    /// For what is random on this host.
    pub fn host_seed(&self, host: u32) -> u64 {
        // The first host's is the scenario's own.
        self.seed.wrapping_add(u64::from(host).wrapping_mul(0x2545_f491_4f6c_dd1d))
    }
}
