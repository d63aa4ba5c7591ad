//! What is simulated: hosts, guests and their traffic. Values alone.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::gain::{GainCurve, Point};
use crate::traffic::Traffic;

/// Guests that a simulation has at most.
const MOST_GUESTS: usize = 100_000;
/// Seconds that a simulation lasts at most.
const MOST_S: u32 = 1_000_000;

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

/// Names of the built-in scenarios, each with a line that says what it is.
pub const SCENARIOS: [(&str, &str); 9] = [
    ("flexvf", "100 guests in 4 groups of 20, 40, 80 and 100 kpps, 63 VFs (FlexVF, section 6.4)"),
    ("flexvf-ftp-quiet", "the same and a file server whose packet rate is the lowest"),
    ("flexvf-ftp-busy", "the same and a file server whose packet rate is the highest"),
    ("flapping", "20 guests, 4 VFs; half of them go above and below the cut every minute"),
    ("crossing", "20 guests, 4 VFs; rates go above and below the cut every two seconds"),
    ("bursts", "40 guests, 8 VFs; quiet guests with bursts of about 20 s"),
    ("heavy-tail", "40 guests, 8 VFs; bursts of which most are short and few very long"),
    ("diurnal", "40 guests, 8 VFs; rates that rise and fall over an hour, each at its own time"),
    ("download", "100 guests that answer requests, a server that sends long downloads, 16 VFs"),
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
            "crossing" => {
                let flap = Traffic::Flap { low_pps: 5_000.0, high_pps: 15_000.0, period_s: 4.0 };
                let crossing = Group { name: "crossing".into(), guests: 10, traffic: flap };
                (4, vec![constant("steady", 10, 10_000.0), crossing])
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
            "heavy-tail" => {
                let traffic = Traffic::HeavyTail {
                    low_pps: 500.0,
                    high_pps: 50_000.0,
                    apart_s: 120.0,
                    least_s: 5.0,
                    shape: 1.3,
                };
                let bursts = Group { name: "heavy-tail".into(), guests: 30, traffic };
                (8, vec![constant("steady", 10, 5_000.0), bursts])
            }
            "diurnal" => {
                let traffic =
                    Traffic::Diurnal { low_pps: 500.0, high_pps: 50_000.0, period_s: 3_600.0 };
                (8, vec![Group { name: "diurnal".into(), guests: 40, traffic }])
            }
            "download" => {
                let requests = Traffic::Bursts {
                    low_pps: 500.0,
                    high_pps: 8_000.0,
                    apart_s: 30.0,
                    burst_s: 10.0,
                };
                let download = Traffic::HeavyTail {
                    low_pps: 10.0,
                    high_pps: 100_000.0,
                    apart_s: 300.0,
                    least_s: 60.0,
                    shape: 1.5,
                };
                let group =
                    |name: &str, guests, traffic| Group { name: name.into(), guests, traffic };
                (16, vec![group("requests", 100, requests), group("download", 1, download)])
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
            hosts: 1,
            duration_s: 7_200,
            seed: 1,
            switch_s: default_switch_s(),
            lost_packets: 0.0,
            vf_us: default_vf_us(),
            curve: default_curve(),
        })
    }

    /// Can this be simulated?
    pub fn check(&self) -> Result<()> {
        self.check_traffic()?;
        self.check_host()
    }

    fn check_traffic(&self) -> Result<()> {
        let guests: usize = self.groups.iter().map(|group| group.guests.min(MOST_GUESTS)).sum();
        if guests == 0 || guests > MOST_GUESTS {
            return Err(Error::new(
                format!("a scenario of {guests} guests cannot be simulated"),
                format!("give its groups 1 to {MOST_GUESTS} guests in all"),
            ));
        }
        if self.hosts == 0 {
            return Err(Error::new(
                "a scenario without hosts cannot be simulated",
                "set hosts from 1",
            ));
        }
        if !(1..=MOST_S).contains(&self.duration_s) {
            return Err(Error::new(
                format!("a scenario of {} s cannot be simulated", self.duration_s),
                format!("set duration_s from 1 to {MOST_S}"),
            ));
        }
        for group in &self.groups {
            if let Some(remedy) = group.traffic.fault() {
                let what = format!("the traffic of group {:?} is out of range", group.name);
                return Err(Error::new(what, remedy));
            }
        }
        Ok(())
    }

    /// Can the host be simulated, whatever its traffic?
    pub fn check_host(&self) -> Result<()> {
        if !(0.0..=3600.0).contains(&self.switch_s) {
            return Err(Error::new(
                format!("switch_s = {} is out of range", self.switch_s),
                "give a number of seconds from 0 to 3600",
            ));
        }
        for (name, value) in [("vf_us", self.vf_us), ("lost_packets", self.lost_packets)] {
            if !(0.0..=1e9).contains(&value) {
                return Err(Error::new(
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
