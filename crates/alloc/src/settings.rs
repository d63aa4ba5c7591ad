//! The operator's settings of decisions, with defaults and limits.

use serde::{Deserialize, Serialize};

use crate::gain::GainCurve;
use crate::signal::SignalSettings;
use pw_error::{Error, Result};

/// Who ranks first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// Every guest holds a VF for the same time, in turns (FlexVF, section 4.3).
    Fair,
    /// The guests with the highest packet rates (FlexVF, section 4.3).
    Activity,
    /// The guests that gain most, and only where the gain outweighs the switch.
    #[default]
    Benefit,
    /// First come, first served; no guest loses a VF to another.
    Static,
}

impl PolicyKind {
    /// Every policy, in the order of readers.
    pub const ALL: [Self; 4] = [Self::Fair, Self::Activity, Self::Benefit, Self::Static];

    /// Its name, as it is written in configurations.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fair => "fair",
            Self::Activity => "activity",
            Self::Benefit => "benefit",
            Self::Static => "static",
        }
    }
}

/// What a switch costs under the policy `benefit`, in time saved that is forgone [µs].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BenefitSettings {
    /// Time that a VF saves each packet, by packet rate.
    pub curve: GainCurve,
    /// What a switch costs until the daemon has measured its own: from the order to plug until the guest
    /// sends by its VF [s].
    pub plug_s: f64,
    /// From the order to unplug until the VF is back in the pool [s].
    pub unplug_s: f64,
    /// Packets lost in a switch.
    pub lost_packets: f64,
    /// Seconds of the larger gain that are added to the measured time of a switch [s].
    pub penalty_s: f64,
    /// Fixed cost of each switch [µs saved].
    pub fixed_us: f64,
    /// What a packet lost in a switch costs [µs]; TCP waits at least 200 ms on Linux before it sends
    /// again.
    pub loss_us: f64,
}

impl Default for BenefitSettings {
    fn default() -> Self {
        Self {
            curve: GainCurve::default(),
            // FlexVF's figures (section 6).
            plug_s: 0.640,
            unplug_s: 0.056,
            lost_packets: 0.0,
            penalty_s: 0.0,
            fixed_us: 0.0,
            loss_us: 200_000.0,
        }
    }
}

/// How decisions are made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Who ranks first.
    pub policy: PolicyKind,
    /// Time between two decisions, and the time to which `max_moves` applies [s].
    pub interval_s: f64,
    /// VFs given to a guest in one interval at most; none: as many as there are reasons for.
    pub max_moves: Option<u32>,
    /// How long a guest keeps what it has, VF or not, before traffic may change it [s].
    pub min_residency_s: f64,
    /// How long a turn lasts under the policy `fair` [s].
    pub fair_turn_s: f64,
    /// Below this rate a guest is idle: it goes after all others [packets per second].
    pub idle_pps: f64,
    /// A rate that can no longer be observed counts half after this time [s].
    pub blind_half_life_s: f64,
    /// A guest that could not be given a VF is tried again after one interval, then after two, four, …
    /// and never later than after this time [s].
    pub retry_most_s: f64,
    /// The policy `benefit`.
    pub benefit: BenefitSettings,
    /// From counters to rates.
    pub signal: SignalSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: PolicyKind::default(),
            interval_s: 1.0,
            max_moves: Some(2),
            min_residency_s: 5.0,
            fair_turn_s: 300.0,
            idle_pps: 1.0,
            blind_half_life_s: 300.0,
            retry_most_s: 600.0,
            benefit: BenefitSettings::default(),
            signal: SignalSettings::default(),
        }
    }
}

impl Settings {
    /// Are these numbers usable?
    pub fn check(&self) -> Result<()> {
        let seconds: [(&str, f64, f64); 8] = [
            ("interval_s", self.interval_s, 0.1),
            ("min_residency_s", self.min_residency_s, 0.0),
            ("fair_turn_s", self.fair_turn_s, 0.1),
            ("blind_half_life_s", self.blind_half_life_s, 0.1),
            ("retry_most_s", self.retry_most_s, 0.1),
            ("benefit.plug_s", self.benefit.plug_s, 0.0),
            ("benefit.unplug_s", self.benefit.unplug_s, 0.0),
            ("benefit.penalty_s", self.benefit.penalty_s, 0.0),
        ];
        for (name, value, least) in seconds {
            if !(least..=1e7).contains(&value) {
                return Err(Error::bad_input(
                    format!("{name} = {value} is out of range"),
                    format!("give a number of seconds from {least} to 1e7"),
                ));
            }
        }
        let amounts = [
            ("idle_pps", self.idle_pps),
            ("benefit.lost_packets", self.benefit.lost_packets),
            ("benefit.fixed_us", self.benefit.fixed_us),
            ("benefit.loss_us", self.benefit.loss_us),
        ];
        for (name, value) in amounts {
            if !(0.0..=1e18).contains(&value) {
                return Err(Error::bad_input(
                    format!("{name} = {value} is out of range"),
                    "give a number that is not below zero",
                ));
            }
        }
        if self.max_moves == Some(0) {
            return Err(Error::bad_input(
                "max_moves = 0 would let nobody have a VF",
                "leave it out for no limit, or set policy = \"static\" to move nothing by traffic",
            ));
        }
        self.signal.check()
    }
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer;
    use serde::de::value::StrDeserializer;

    use super::*;

    #[test]
    fn the_defaults_are_usable() {
        assert!(Settings::default().check().is_ok());
    }

    #[test]
    fn every_policy_is_listed_by_the_name_that_configurations_have() {
        let name: StrDeserializer<'_, serde::de::value::Error> = "nobody".into_deserializer();
        let error = PolicyKind::deserialize(name).expect_err("no policy").to_string();
        let names = PolicyKind::ALL.map(|kind| format!("`{}`", kind.as_str())).join(", ");
        assert!(error.ends_with(&format!("one of {names}")), "{error}");
    }

    #[test]
    fn every_bad_number_is_named() {
        type Spoil = fn(&mut Settings);
        let bad: [(&str, Spoil); 8] = [
            ("interval_s", |s| s.interval_s = 0.0),
            ("fair_turn_s", |s| s.fair_turn_s = f64::NAN),
            ("idle_pps", |s| s.idle_pps = -1.0),
            ("retry_most_s", |s| s.retry_most_s = 0.0),
            ("max_moves", |s| s.max_moves = Some(0)),
            ("benefit.penalty_s", |s| s.benefit.penalty_s = f64::INFINITY),
            ("signal.fastest_pps", |s| s.signal.fastest_pps = 0.0),
            ("signal.fresh_s", |s| s.signal.fresh_s = -1.0),
        ];
        for (name, spoil) in bad {
            let mut settings = Settings::default();
            spoil(&mut settings);
            let error = settings.check().expect_err(name);
            assert!(error.what.contains(name) && !error.remedy.is_empty(), "{error}");
        }
    }
}
