//! What holds of the policy `benefit`: its price against knowing the future.

#![allow(clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod common;

use common::{allocator, guests, holders, holds, rate, settings, snapshot, turn, vfs};
use pw_alloc::optimum::{Gains, best};
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

/// A trace that no policy without knowledge of the future serves well (Sleator, Tarjan: Amortized efficiency of
/// list update and paging rules, Comm. ACM 28, 1985): one guest sends at a time, always one without a VF, until
/// it gets one. What it costs the policy with `vfs` VFs, and the optimum with `fewer`.
fn adversary(vfs_count: usize, fewer: usize, rounds: usize) -> (f64, f64) {
    const SWITCH_US: f64 = 500_000.0;
    const HIGH_PPS: f64 = 2_500.0;
    let curve = BenefitSettings::default().curve;
    let mut allocator = allocator(Settings {
        benefit: BenefitSettings {
            plug_s: 0.0,
            unplug_s: 0.0,
            fixed_us: SWITCH_US,
            ..BenefitSettings::default()
        },
        ..settings(PolicyKind::Benefit)
    });
    let count = 2 * vfs_count + 1;
    let mut now = snapshot(0, guests(&vec![2.0; count]), vfs("pf0", vfs_count as u16));
    turn(&mut allocator, &mut now);
    let mut gains = Gains::new(count);
    let (mut online, mut load) = (0.0, 0.0);
    // What the optimum may hold: as the proof has it.
    let mut theirs: Vec<usize> = (0..fewer).collect();
    for _ in 0..rounds {
        let mut asked: Vec<usize> = Vec::new();
        for request in 0..vfs_count {
            let fresh = request <= vfs_count - fewer;
            let known = |at: &usize| theirs.contains(at) || asked.contains(at);
            let sender = (0..count)
                .find(|at| now.guests[*at].holds.is_none() && known(at) != fresh)
                .expect("one of these has no VF");
            asked.push(sender);
            for _ in 0..100 {
                now.now_ms += 1000;
                let pps = |at| if at == sender { HIGH_PPS } else { 2.0 };
                let held: Vec<f64> = (0..count).map(|at| curve.gain_us_per_s(pps(at))).collect();
                for (at, guest) in now.guests.iter_mut().enumerate() {
                    guest.rate = rate(pps(at));
                }
                online += SWITCH_US * turn(&mut allocator, &mut now) as f64;
                let without = now.guests.iter().zip(&held).filter(|(g, _)| g.holds.is_none());
                online += without.map(|(_, gain)| gain).sum::<f64>();
                load += held.iter().sum::<f64>();
                gains.push(&held, &vec![SWITCH_US; count]);
                if now.guests[sender].holds.is_some() {
                    break;
                }
            }
        }
        let before = std::mem::take(&mut theirs);
        for at in asked.into_iter().rev().chain(before) {
            if theirs.len() < fewer && !theirs.contains(&at) {
                theirs.push(at);
            }
        }
    }
    (online, load - best(&gains, fewer).gain_us)
}

#[test]
fn an_adversary_costs_k_vfs_as_often_as_youngs_bound_says_what_fewer_cost_the_optimum() {
    // k / (k - h + 1) for h VFs of the optimum: Young, The k-server dual and loose competitiveness for paging,
    // Algorithmica 11, 1994; no policy without dice is better. A request costs a switch
    // there; a guest that waits for its VF costs more besides.
    for k in 1..=6_usize {
        for h in 1..=k {
            let (online, optimum) = adversary(k, h, 40);
            let (ratio, bound) = (online / optimum, k as f64 / (k - h + 1) as f64);
            assert!(ratio >= bound, "{h} of {k} VFs: {ratio:.2}, the bound is {bound:.2}");
        }
    }
}
