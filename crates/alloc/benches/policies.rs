//! How close policies come to the optimum, by family of traffic: mean share over seeds with its 95 %
//! interval, and VFs given an hour. Beside them: `benefit` told the load of the second to come (`told`), the same
//! without limits of residency and moves (`freed`), the best that guests could hold from first to last (`static`),
//! and the bound of all policies that do not know the future (`bound`). Prints figures; never passes or fails.
//!
//! Run: cargo bench -p pw-alloc --bench policies -- [SEEDS [SECONDS [SWITCH_S [SETTINGS [FAMILY]]]]]
//! where SWITCH_S is how long a switch takes (FlexVF: 0.696 s) and SETTINGS are the daemon's in JSON, as '{"interval_s": 10}'.

mod bound;

use std::time::Instant;

use bound::{Family, WORTHS};
use pw_alloc::Settings;
use pw_alloc::settings::PolicyKind;
use pw_alloc::signal::Smoothing;
use pw_alloc::simulate::{
    BuiltIn, Feed, Host, Interval, MadeUp, Player, Scenario, Shard, built_in, compare,
};

const POLICIES: [PolicyKind; 3] = [PolicyKind::Fair, PolicyKind::Activity, PolicyKind::Benefit];

fn main() {
    // Cargo adds `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let number = |at: usize, otherwise| {
        words.get(at).and_then(|word| word.parse().ok()).unwrap_or(otherwise)
    };
    let (seeds, seconds) = (number(0, 200_u32), number(1, 1_800_u32));
    let switch_s: f64 = words.get(2).and_then(|word| word.parse().ok()).unwrap_or(0.696);
    let settings: Settings = match words.get(3).map(|word| serde_json::from_str(word)) {
        None => Settings::default(),
        Some(Ok(settings)) => settings,
        Some(Err(error)) => return eprintln!("these settings cannot be read: {error}"),
    };
    let mut told = settings.clone();
    told.signal.smoothing = Smoothing::Ewma(0.1);
    let freed = Settings { min_residency_s: 0.0, max_moves: None, ..told.clone() };
    println!(
        "{seeds} seeds of {seconds} s, {switch_s} s a switch; share of the optimum in %, VFs given an hour"
    );
    let players = POLICIES.map(Player::Policy);
    for BuiltIn { name, of: mut scenario, .. } in built_in().unwrap_or_default() {
        if words.get(4).is_some_and(|family| *family != name) {
            continue;
        }
        let began = Instant::now();
        (scenario.duration_s, scenario.switch_s) = (seconds, switch_s);
        let family = Family::of(&scenario);
        let mut shares = vec![Vec::new(); players.len() + 3];
        let mut moves = vec![0.0; players.len()];
        let (mut optima, mut bounds) = (Vec::new(), WORTHS.map(|_| Vec::new()));
        for seed in 1..=seeds {
            scenario.seed = u64::from(seed);
            let Ok(played) = compare(&scenario, &players, &settings, Shard::WHOLE) else {
                continue;
            };
            let outcomes = played.outcomes();
            for (at, outcome) in outcomes.iter().enumerate() {
                shares[at].extend(outcome.share_of_optimum.map(|share| share * 100.0));
                moves[at] += outcome.moves_per_h / f64::from(seeds);
            }
            let Some(best) = played.hindsight else { continue };
            let percent = 100.0 / best.optimum_us;
            for (at, settings) in [&told, &freed].into_iter().enumerate() {
                let saved_us = forecast(&scenario, settings).unwrap_or(f64::NAN);
                shares[players.len() + at].push(saved_us * percent);
            }
            shares[players.len() + 2].push(best.static_us * percent);
            optima.push(best.optimum_us);
            if let Some(family) = &family {
                for (bounds, bound) in bounds.iter_mut().zip(family.optima_us(&scenario)) {
                    bounds.push(bound);
                }
            }
        }
        print!("{name:<16}");
        let names = players.iter().map(|player| player.as_str()).chain(["told", "freed", "static"]);
        for (at, (name, shares)) in names.zip(&shares).enumerate() {
            let (mean, half) = mean_and_half_width(shares);
            print!("  {name} {mean:6.2} ±{half:4.2}");
            if let Some(moves) = moves.get(at) {
                print!(" ({moves:5.0})");
            }
        }
        let bound = bounds.iter().filter(|bounds| !bounds.is_empty());
        let bound = bound.map(|bounds| ratio_and_half_width(bounds, &optima));
        match bound.min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((ratio, half)) => print!("  bound {ratio:6.2} ±{half:4.2}"),
            None => print!("  bound 100, nothing comes by chance"),
        }
        println!("  {:.1} s", began.elapsed().as_secs_f64());
    }
}

/// What `benefit` collects when each decision knows the rates of the second that it is for [µs]: packets are
/// counted a second before they count.
fn forecast(scenario: &Scenario, settings: &Settings) -> Option<f64> {
    let (mut now, mut next) = (MadeUp::new(scenario, 0), MadeUp::new(scenario, 0));
    let player = Player::Policy(PolicyKind::Benefit);
    let mut host = Host::new(scenario, 0, player, settings).ok()?;
    let (mut interval, mut ahead) = (Interval::default(), Interval::default());
    next.next(&mut ahead).ok()?;
    while now.next(&mut interval).ok()? {
        interval.gain.clear();
        interval.gain.extend(interval.pps.iter().map(|pps| scenario.curve.gain_us_per_s(*pps)));
        next.next(&mut ahead).ok()?;
        interval.pps.clone_from(&ahead.pps);
        host.live(&interval, &|guest| now.name(guest)).ok()?;
    }
    Some(host.tally(&|_| 0).saved_us)
}

/// The ratio of two means [%] and half of its 95 % interval, by its residuals.
fn ratio_and_half_width(values: &[f64], of: &[f64]) -> (f64, f64) {
    let ratio = values.iter().sum::<f64>() / of.iter().sum::<f64>();
    let residuals: Vec<f64> = values.iter().zip(of).map(|(value, of)| value - ratio * of).collect();
    let mean_of = of.iter().sum::<f64>() / of.len() as f64;
    (100.0 * ratio, 100.0 * mean_and_half_width(&residuals).1 / mean_of)
}

/// The mean and half of its 95 % interval, by the normal distribution: seeds are many.
fn mean_and_half_width(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, 1.96 * (variance / count).sqrt())
}
