//! How guests rank, and when one may take another's VF: the policies.

use std::cmp::Ordering;

use crate::model::{GuestView, Origin};
use crate::settings::{PolicyKind, Settings};

/// How a guest's traffic is known, from least to most reason to give it a VF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// The host counts next to none.
    Idle,
    /// It is unknown, which is not zero.
    Unknown,
    /// The guest reports it.
    GuestReported,
    /// The host counts it.
    HostSide,
}

/// What policies rank a guest by, besides its traffic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Past {
    /// When it was first seen [ms].
    pub arrived_ms: u64,
    /// Time held, as far as the policy `fair` counts it [ms]: newcomers start at the lowest of all.
    pub turns_ms: u64,
    /// What it has forgone since it began to gain more than the holder whose VF it would take [prices
    /// of that switch].
    pub regret: f64,
    /// The regret at which it takes the VF (`patience`).
    pub threshold: f64,
}

impl Past {
    /// No past.
    pub const NONE: Self = Self { arrived_ms: 0, turns_ms: 0, regret: 0.0, threshold: 2.0 };

    /// Has waiting cost it as much as `benefit` wants before it takes a VF?
    pub fn has_waited(&self) -> bool {
        self.regret > 0.0 && self.regret >= self.threshold
    }
}

/// Where a guest stands in the ranking; greater is better.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standing {
    /// Not idle.
    pub active: bool,
    /// Its priority class; the lowest for an idle guest.
    pub class: u8,
    /// How its traffic is known.
    pub tier: Tier,
    /// What the policy ranks by.
    pub value: f64,
}

impl Standing {
    /// The order of ranking.
    pub fn compare(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }

    /// The same order as a number: activity, class and tier above the value.
    pub const fn key(&self) -> u128 {
        let value = order_bits(self.value);
        ((self.active as u128) << 80)
            | ((self.class as u128) << 72)
            | ((self.tier as u128) << 64)
            | value as u128
    }
}

/// A number's bits, turned so that they rise with it (the order of `f64::total_cmp`).
pub const fn order_bits(value: f64) -> u64 {
    let bits = value.to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

/// The packet rate that a guest is taken to have, and how that is known. A rate of the past counts
/// half for every half-life since.
pub fn traffic(guest: &GuestView, settings: &Settings) -> (Tier, f64) {
    let Some(rate) = guest.rate else { return (Tier::Unknown, 0.0) };
    let pps = if rate.pps.is_finite() { rate.pps.max(0.0) } else { 0.0 };
    let pps = if rate.blind_ms == 0 {
        pps
    } else {
        pps * (-(rate.blind_ms as f64 / 1e3 / settings.blind_half_life_s)).exp2()
    };
    let tier = match rate.origin {
        // A guest that is no longer observed is not known to be idle.
        _ if pps < settings.idle_pps && rate.blind_ms > 0 => Tier::Unknown,
        _ if pps < settings.idle_pps => Tier::Idle,
        Origin::HostSide => Tier::HostSide,
        Origin::GuestReported => Tier::GuestReported,
    };
    (tier, pps)
}

/// The standing of this guest.
pub fn standing(guest: &GuestView, past: &Past, settings: &Settings) -> Standing {
    let class = guest.wish.class;
    let (tier, pps) = traffic(guest, settings);
    let value = match settings.policy {
        PolicyKind::Activity => pps,
        PolicyKind::Benefit => settings.benefit.curve.gain_us_per_s(pps),
        PolicyKind::Fair => -(past.turns_ms as f64),
        PolicyKind::Static => -(past.arrived_ms as f64),
    };
    match settings.policy {
        PolicyKind::Activity | PolicyKind::Benefit => {
            // An idle guest's class must not protect it from one waiter and not from the next.
            let active = tier != Tier::Idle;
            Standing { active, class: if active { class } else { 0 }, tier, value }
        }
        // Traffic plays no part.
        PolicyKind::Fair | PolicyKind::Static => {
            Standing { active: true, class, tier: Tier::Unknown, value }
        }
    }
}

/// May the waiter take the VF of the holder?
pub fn displaces(
    (waiter, waiting): (&Standing, &Past),
    holder: &Standing,
    settings: &Settings,
) -> bool {
    if settings.policy == PolicyKind::Static || waiter.compare(holder) != Ordering::Greater {
        return false;
    }
    if waiter.class > holder.class {
        return true;
    }
    match settings.policy {
        PolicyKind::Static => false,
        PolicyKind::Activity => true,
        PolicyKind::Fair => waiter.value - holder.value >= settings.fair_turn_s * 1e3,
        PolicyKind::Benefit => waiting.has_waited(),
    }
}
