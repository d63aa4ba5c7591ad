//! How close policies come to the optimum, by family of traffic: mean share over seeds with its 95 %
//! interval, and VFs given an hour. Prints figures; never passes or fails.
//!
//! Run: cargo bench -p pw-alloc --bench policies -- [SEEDS [SECONDS [SWITCH_S [SETTINGS]]]]
//! where SWITCH_S is how long a switch takes (FlexVF: 0.696 s) and SETTINGS are the daemon's in JSON, as '{"interval_s": 10}'.

use std::time::Instant;

use pw_alloc::Settings;
use pw_alloc::settings::PolicyKind;
use pw_alloc::simulate::{BuiltIn, Player, Shard, built_in, compare};

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
    let players = POLICIES.map(Player::Policy);
    for BuiltIn { name, of, .. } in built_in().unwrap_or_default() {
        let began = Instant::now();
        let mut shares = vec![Vec::new(); players.len()];
        let mut moves = vec![0.0; players.len()];
        for seed in 1..=seeds {
            let mut scenario = of.clone();
            (scenario.seed, scenario.duration_s) = (u64::from(seed), seconds);
            scenario.switch_s = switch_s;
            let played = compare(&scenario, &players, &settings, Shard::WHOLE);
            let Ok(played) = played else { continue };
            for (at, outcome) in played.outcomes().iter().enumerate() {
                shares[at].extend(outcome.share_of_optimum.map(|share| share * 100.0));
                moves[at] += outcome.moves_per_h / f64::from(seeds);
            }
        }
        print!("{name:<16}");
        for ((player, shares), moves) in players.iter().zip(&shares).zip(&moves) {
            let (mean, half) = mean_and_half_width(shares);
            print!("  {} {mean:6.2} ±{half:4.2} ({moves:5.0})", player.as_str());
        }
        println!("  {:.1} s", began.elapsed().as_secs_f64());
    }
}

/// The mean and half of its 95 % interval, by the normal distribution: seeds are many.
fn mean_and_half_width(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, 1.96 * (variance / count).sqrt())
}
