//! How close policies come to the optimum, by family of traffic: mean share over seeds with its 95 %
//! interval, VFs given an hour, and `benefit` less the better of the others, seed by seed. Prints figures;
//! never passes or fails.
//!
//! Run: cargo bench -p pw-alloc --bench policies -- [SEEDS [SECONDS [SWITCH_S [SETTINGS [FAMILY]]]]]
//! where SWITCH_S is how long a switch takes (FlexVF: 0.696 s), and SETTINGS are the daemon's in JSON, as
//! '{"interval_s": 10}'.

use std::sync::atomic::AtomicU32;
use std::time::Instant;

use pw_alloc::Settings;
use pw_alloc::settings::PolicyKind;
use pw_alloc::simulate::{BuiltIn, Player, Scenario, Shard, built_in, compare};

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
    println!(
        "{seeds} seeds of {seconds} s, {switch_s} s a switch; share of the optimum in %, VFs given an hour"
    );
    for BuiltIn { name, of: mut scenario, .. } in built_in().unwrap_or_default() {
        if words.get(4).is_some_and(|family| *family != name) {
            continue;
        }
        (scenario.duration_s, scenario.switch_s) = (seconds, switch_s);
        let began = Instant::now();
        print!("{name:<16}");
        shares_of_policies(&mut scenario, &settings, seeds);
        println!("  {:.1} s", began.elapsed().as_secs_f64());
    }
}

/// Prints each policy's share and moves, and how far the default is from the better of the two others.
fn shares_of_policies(scenario: &mut Scenario, settings: &Settings, seeds: u32) {
    let players = POLICIES.map(Player::Policy);
    let mut shares = POLICIES.map(|_| Vec::new());
    let mut moves = POLICIES.map(|_| 0.0);
    for seed in 1..=seeds {
        scenario.seed = u64::from(seed);
        let done = AtomicU32::new(0);
        let played = compare(1, scenario, &players, settings, Shard::WHOLE, &done);
        let Ok(played) = played else { continue };
        for (at, outcome) in played.outcomes().iter().enumerate() {
            shares[at].extend(outcome.share_of_optimum.map(|share| share * 100.0));
            moves[at] += outcome.moves_per_h / f64::from(seeds);
        }
    }
    for ((player, shares), moves) in players.iter().zip(&shares).zip(moves) {
        let (mean, half) = mean_and_half_width(shares);
        print!("  {} {mean:6.2} ±{half:4.2} ({moves:5.0})", player.as_str());
    }
    let [fair, activity, benefit] = &shares;
    let better =
        if mean_and_half_width(fair).0 > mean_and_half_width(activity).0 { fair } else { activity };
    // On the same seeds, so that what a seed does to all of them counts for nothing.
    let pairs = benefit.iter().zip(better).map(|(mine, theirs)| mine - theirs);
    let (mean, half) = mean_and_half_width(&pairs.collect::<Vec<f64>>());
    print!("  benefit - better {mean:+6.2} ±{half:4.2}");
}

/// The mean and half of its 95 % interval, by the normal distribution: seeds are many.
fn mean_and_half_width(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, 1.96 * (variance / count).sqrt())
}
