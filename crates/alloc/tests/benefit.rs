//! What holds of the policy `benefit`: its price against knowing the future.

#![allow(clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod common;

use common::{allocator, guests, holders, holds, rate, settings, snapshot, turn, vfs};
use pw_alloc::settings::{BenefitSettings, PolicyKind, Settings};

#[test]
fn benefit_costs_at_most_three_times_what_knowing_the_future_would() {
    // Two guests, one VF, a switch that always costs the same. The optimum is computed backwards.
    const SWITCH_US: f64 = 500_000.0;
    pw_cases::check!(200).with_type::<Vec<(u8, bool)>>().for_each(|phases| {
        let mut rates: Vec<[f64; 2]> = Vec::new();
        for &(seconds, first) in phases.iter().take(30) {
            let pair = if first { [4000.0, 100.0] } else { [100.0, 4000.0] };
            rates.extend(std::iter::repeat_n(pair, usize::from(seconds % 40)));
        }
        let mut allocator = allocator(Settings {
            benefit: BenefitSettings {
                plug_s: 0.0,
                unplug_s: 0.0,
                fixed_us: SWITCH_US,
                ..BenefitSettings::default()
            },
            ..settings(PolicyKind::Benefit)
        });
        let curve = BenefitSettings::default().curve;
        let mut now = snapshot(0, guests(&[1.0, 1.0]), vfs("pf0", 1));
        turn(&mut allocator, &mut now);
        let start = usize::from(holds(&now, "g001"));
        let (mut online, mut optimum) = (0.0, [0.0, SWITCH_US]);
        for pair in &rates {
            now.now_ms += 1000;
            for (guest, pps) in now.guests.iter_mut().zip(pair) {
                guest.rate = rate(*pps);
            }
            let loser = usize::from(holds(&now, "g000"));
            online += curve.gain_us_per_s(pair[loser]);
            online += SWITCH_US * turn(&mut allocator, &mut now) as f64;
            // optimum[s]: the cheapest way to be in state s, 0 being the start.
            let without = |state: usize| curve.gain_us_per_s(pair[1 - (state ^ start)]);
            let stay = [optimum[0] + without(0), optimum[1] + without(1)];
            optimum = [stay[0].min(stay[1] + SWITCH_US), stay[1].min(stay[0] + SWITCH_US)];
        }
        let best = optimum[0].min(optimum[1]);
        // The additive constant: what may be owed when the sequence ends, a step of a second included.
        assert!(
            online <= 3.0 * best + 4.0 * (SWITCH_US + 4000.0 * 20.0),
            "online {online}, optimum {best}"
        );
    });
}

#[test]
fn benefit_does_not_switch_for_a_passing_burst_and_does_for_lasting_load() {
    let mut allocator = allocator(Settings {
        benefit: BenefitSettings { penalty_s: 5.0, ..BenefitSettings::default() },
        ..settings(PolicyKind::Benefit)
    });
    let mut now = snapshot(0, guests(&[10_000.0, 100.0]), vfs("pf0", 1));
    turn(&mut allocator, &mut now);
    let mut run = |seconds: u64, first: f64, second: f64| {
        now.guests[0].rate = rate(first);
        now.guests[1].rate = rate(second);
        for _ in 0..seconds {
            now.now_ms += 1000;
            turn(&mut allocator, &mut now);
        }
        holders(&now).join(" ")
    };
    assert_eq!(run(5, 10_000.0, 20_000.0), "g000");
    assert_eq!(run(60, 10_000.0, 100.0), "g000");
    assert_eq!(run(60, 10_000.0, 20_000.0), "g001");
    // A tenth more pays for a switch only after minutes.
    assert_eq!(run(60, 22_000.0, 20_000.0), "g001");
    assert_eq!(run(200, 22_000.0, 20_000.0), "g000");
}
